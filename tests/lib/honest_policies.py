"""Three policies that keep the scheduler honest: :class:`Idle` never moves, :class:`Random` makes any legal move,
:class:`Rude` tries illegal ones and asserts that each raises."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, ClassVar, Dict, List, Mapping, Sequence, Type

from edgeserve.errors import PolicyError
from edgeserve.sched.policies.common.bidding import bid_for
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.options import PolicyOptions, option
from edgeserve.sched.policy_api.policy import Bid, Policy
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import Job, RequestRecord
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.units import NS_PER_MS


class Plain(Policy):
    """Keeps its ready jobs in order of their ids; the base of the three below."""

    def __init__(self, name: str, apps: Sequence[App], options: Mapping[str, object]) -> None:
        super().__init__(name, apps, options)
        self.jobs: Dict[int, Job] = {}

    def on_ready(self, job: Job, board: Board) -> None:
        self.jobs[job.seq] = job

    def on_gone(self, job: Job, board: Board) -> None:
        del self.jobs[job.seq]

    def on_started(self, work: Work, board: Board) -> None:
        for job in work.jobs:
            del self.jobs[job.seq]

    def queued(self) -> List[Job]:
        return list(self.jobs.values())

    def runnable(self, lane: Lane, board: Board) -> List[Job]:
        """The jobs that could run on a lane now, oldest first."""
        return [
            job
            for _, job in sorted(self.jobs.items())
            if job.node.model in lane.models
            and board.is_resident(job.node.model, lane)
            and (not job.lane or job.lane == lane.name)
        ]


class Idle(Plain):
    """Never moves. Every request must still end, by its deadline."""

    def bid(self, lane: Lane, board: Board) -> Bid | None:
        return None


@dataclass(frozen=True)
class RandomOptions(PolicyOptions):
    """Options of :class:`Random`."""

    seed: int = option(1, "of the draws")


class Random(Plain):
    """Any legal move, drawn: refuses, drops, batches of any size, membership and steps, idles now and then."""

    options_type: ClassVar[Type[PolicyOptions]] = RandomOptions

    def __init__(self, name: str, apps: Sequence[App], options: Mapping[str, object]) -> None:
        super().__init__(name, apps, options)
        own = self.options
        assert isinstance(own, RandomOptions)
        self._draw = random.Random(f"{own.seed}/random policy")

    def on_request(self, request: RequestRecord, board: Board) -> str | None:
        if self._draw.random() < 0.02:
            return "no mood"
        return None

    def plan(self, board: Board) -> None:
        jobs = self.queued()
        if jobs and self._draw.random() < 0.02:
            board.drop(self._draw.choice(jobs).request, "no mood")
        elif jobs and self._draw.random() < 0.2:
            self._move_branch(self._draw.choice(jobs), board)

    def _move_branch(self, job: Job, board: Board) -> None:
        """A move about one branch of a request, if one is legal."""
        request, what = job.request, self._draw.choice(("settle", "want", "rate"))
        joining = [node for node in request.app.nodes if node.join == "policy" and node.depth == 0 and not node.gather]
        if what == "want":
            board.want(job, self._draw.random() < 0.5)
        elif what == "rate":
            board.rate(request, self._draw.choice((0.0, 0.5, 1.0)))
        elif what == "settle" and joining:
            join = self._draw.choice(joining)
            states = {branch.node: branch.state for branch in board.branches(request, join.name)}
            if "answered" in states.values() and (request.joins or {}).get((join.index, ()), [0, 0, 1])[2] == 0:
                board.settle(request, join.name, wait_running=self._draw.random() < 0.5)

    def bid(self, lane: Lane, board: Board) -> Bid | None:
        jobs = self.runnable(lane, board)
        # A bid changes nothing, so this draw depends on what it is asked, not on how often.
        draw = random.Random(f"{board.now_ns}/{lane.name}/{len(jobs)}")
        if not jobs or draw.random() < 0.05:
            return None
        model = draw.choice(jobs).node.model
        same = [job for job in jobs if job.node.model == model]
        latency = board.latency(model, lane.name)
        size = draw.choice(latency.sizes)
        chosen = draw.sample(same, draw.randrange(1, min(size, len(same)) + 1))
        bid = bid_for(chosen, size, latency.estimate_ns[size], board)
        bid.steps_max = draw.choice((None, None, 1, 3))
        return bid

    def cut(self, work: Work, board: Board) -> bool:
        return random.Random(f"{board.now_ns}/{work.id}/cut").random() < 0.1

    def next_wakeup_ns(self, board: Board) -> int | None:
        return board.now_ns + NS_PER_MS if self.jobs else None


class Rude(Plain):
    """Tries an illegal move at every turn and asserts that it raises; runs one job at a time besides."""

    def __init__(self, name: str, apps: Sequence[App], options: Mapping[str, object]) -> None:
        super().__init__(name, apps, options)
        self.refused = 0
        self._ended: RequestRecord | None = None

    def on_gone(self, job: Job, board: Board) -> None:
        super().on_gone(job, board)
        self._ended = job.request

    def plan(self, board: Board) -> None:
        if self._ended is not None and self._ended.ended:
            self._expect(board.drop, self._ended, "again")
            self._expect(board.settle, self._ended)
            self._expect(board.rate, self._ended, 0.5)
        for job in self.queued()[:1]:
            self._expect(board.rate, job.request, 1.5)
            self._expect(board.rate, job.request, -0.5)
            self._expect(board.settle, job.request, "no such join")
            self._expect(board.branches, job.request, "no such join")

    def bid(self, lane: Lane, board: Board) -> Bid | None:
        jobs = self.runnable(lane, board)[:1]
        if not jobs:
            return None
        latency = board.latency(jobs[0].node.model, lane.name)
        return bid_for(jobs, latency.sizes[0], latency.estimate_ns[latency.sizes[0]], board)

    def _expect(self, move: Any, *arguments: Any) -> None:
        try:
            move(*arguments)
        except PolicyError:
            self.refused += 1
        else:
            raise AssertionError(f"{move.__name__}{arguments} is illegal and did not raise")


HONEST: Mapping[str, type] = {"idle": Idle, "random": Random, "rude": Rude}
