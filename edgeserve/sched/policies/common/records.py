"""The choice of an ensemble's requests that have all their models run, for the history of ``edgeserve profile --fit``.

Requests are drawn when their models become ready. The world keeps the inputs of each model
(``sched/core/experiments.py``); a model that the request itself does not run is run later, alone, as a probe. The world
records the models' answers (``predict/serving/``). A policy calls :class:`RecordDraws` from its hooks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Sequence
from zlib import crc32

from edgeserve.sched.policies.common.bidding import bid_to_measure
from edgeserve.sched.policies.common.draws import mixed
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.policy import Bid
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import DONE, GONE, JOB_FAILED, Job
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.units import NS_PER_S

REQUESTS_MAX = 8
"""Requests whose models' inputs are kept at a time: a lane that never idles gets no more of them."""

WAIT_NS = 10 * NS_PER_S
"""The time after which a kept request makes room for another: a model of it may never be in memory."""


@dataclass(eq=False)
class RecordedRequest:
    """A drawn request. ``jobs`` are those of its models that have not said anything yet."""

    drawn_ns: int
    jobs: List[Job] = field(default_factory=list)


class RecordDraws:
    """Draws requests, keeps their models' inputs and offers probes of what they did not run themselves. ``any``: there
    are apps whose requests it draws."""

    def __init__(self, name: str, apps: Sequence[App]) -> None:
        self._draw_below: Dict[str, int] = {
            app.name: round(app.history_share * 2**32) for app in apps if app.history_share > 0.0
        }
        self.any = bool(self._draw_below)
        self._salt = crc32(f"records/{name}".encode())
        self._drawn: Dict[int, RecordedRequest] = {}

    def on_ready(self, job: Job, board: Board) -> None:
        """A model's job is ready: keep its inputs if its request is drawn."""
        request = job.request
        below = self._draw_below.get(request.app.name, 0)
        if (
            not below
            or request.stream is not None
            or job.launched_ns
            or board.is_retained(job)
            or mixed(request.id + (self._salt << 32)) >= below
        ):
            return
        drawn = self._drawn.get(request.id)
        if drawn is None:
            if not self._has_room(board):
                return
            drawn = self._drawn[request.id] = RecordedRequest(board.now_ns)
        if board.retain(job):
            drawn.jobs.append(job)

    def on_gone(self, job: Job, board: Board) -> None:
        """A model was left out: it runs as a probe, unless none could start on any lane of it."""
        drawn = self._drawn.get(job.request.id)
        if (
            drawn is not None
            and job in drawn.jobs
            and not [lane for lane in board.lanes_of(job.node.model) if board.can_probe(job.node.model, lane)]
        ):
            self._forget(job.request.id, board)

    def offer(self, lane: Lane, board: Board) -> Bid | None:
        """The probe to run on a lane that nothing runs on: of the request drawn first. Changes nothing."""
        if lane.works:
            return None
        for drawn in self._drawn.values():
            for job in drawn.jobs:
                if (
                    job.state in (DONE, GONE, JOB_FAILED)
                    and job.node.model in lane.models
                    and board.is_retained(job)
                    and board.is_resident(job.node.model, lane)
                ):
                    return bid_to_measure(job, lane, board, probe=True)
        return None

    def finished(self, work: Work, board: Board) -> None:
        """A work of the policy is over: what it said need not be asked again; a model that failed ends the record."""
        jobs: Sequence[Job] = work.jobs if work.probe is None else (work.probe,)
        for job in jobs:
            drawn = self._drawn.get(job.request.id)
            if drawn is None or job not in drawn.jobs:
                continue
            if work.failed or job.state == JOB_FAILED:
                self._forget(job.request.id, board)
            elif work.probe is not None or job.state == DONE:
                if board.is_retained(job):
                    board.release(job)
                drawn.jobs.remove(job)
                if not drawn.jobs:
                    del self._drawn[job.request.id]

    def lost(self, work: Work, board: Board) -> None:
        """A probe was refused or its lane lost: the record cannot be whole."""
        if work.probe is not None and work.probe.request.id in self._drawn:
            self._forget(work.probe.request.id, board)

    def _has_room(self, board: Board) -> bool:
        for number, drawn in list(self._drawn.items()):
            if board.now_ns - drawn.drawn_ns > WAIT_NS or not [job for job in drawn.jobs if board.is_retained(job)]:
                self._forget(number, board)
        return len(self._drawn) < REQUESTS_MAX

    def _forget(self, number: int, board: Board) -> None:
        for job in self._drawn.pop(number).jobs:
            if board.is_retained(job):
                board.release(job)
