"""Side lanes: slower lanes of a language model, such as a group of CPU threads beside a GPU, that take an answer only
where it gains by that (RT-LM, Section IV). While no other lane is up, they take everything.

The paper sends every long answer there: a tenth of the answers has a fifth of the tokens, so unless the lane is nearly
as fast as the main one its queue grows without bound. Here both ends are compared, and what an answer would cost the
others on the main lanes. A lane whose processor is busy ends later by as much; one whose device has little memory left
takes none.
"""

from __future__ import annotations

from heapq import heapify, heapreplace, nsmallest
from typing import Dict, Final, List, NamedTuple, Sequence, Tuple

from edgeserve.sched.latency.saturation import saturating
from edgeserve.sched.plan.answers import KEEP, AnswerProgress, AnswerTable, StepTimes
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.sched.resources.placement import NEVER_NS

SIDE_FACTOR: Final = 1.25
"""A lane whose step takes so many times as long as that of the fastest is a side lane."""

LONG_SHARE: Final = 0.9
"""An answer is long that is longer than this quantile of the predicted ones (RT-LM, Section IV)."""


class MainLanes(NamedTuple):
    """The main lanes of a model: nanoseconds per step of a full batch and for its prompts, how many sequences run at
    once on all of them, the steps that the running ones still need, and the fullness of a batch of the waiting ones
    (0..1)."""

    step_ns: int
    prefill_ns: int
    places: int
    left: List[float]
    crowd: float


def is_side(model: str, lane: Lane, board: Board) -> bool:
    """True if a lane takes answers of a model only where they gain by that."""
    lanes = board.lanes_of(model)
    if len(lanes) < 2:
        return False
    fastest_ns = min([board.latency(model, other.name).alone_likely_ns for other in lanes])
    return lane.models[model].alone_likely_ns > SIDE_FACTOR * fastest_ns


def main_lanes(model: str, board: Board) -> List[Lane]:
    """The main lanes that are up and have the model, or will have."""
    return [
        lane
        for lane in board.lanes_of(model)
        if lane.up
        and not lane.hung
        and not is_side(model, lane, board)
        and board.resident_at_ns(model, lane) < NEVER_NS
    ]


def main_of(table: AnswerTable, lanes: Sequence[Lane], times: StepTimes, board: Board) -> MainLanes:
    """The main lanes as those see them that wait. O(answers)."""
    latency = board.latency(table.model, lanes[0].name)
    places = saturating(latency.typical_ns)
    step_ns = times.step_ns(latency, places)
    names = ["", *[lane.name for lane in lanes]]
    left: List[float] = []
    for answer in [*table.running.values(), *table.begun.values()]:
        job = answer.job
        if job.lane in names:
            made = (board.now_ns - job.launched_ns) // step_ns if job.seq in table.running else 0
            left.append(answer.remaining(max(0, made)))
    crowd = min(len(table.fresh), places) / places
    return MainLanes(step_ns, times.prefill_ns(latency, places), places * len(lanes), left, crowd)


def begins_ns(waiting: Sequence[AnswerProgress], main: MainLanes, needed: int, board: Board) -> int:
    """When one that stands behind all that are ``waiting`` would begin on a main lane: when so many places are free, if
    each of the others takes the one that is free first."""
    ends = main.left + [0.0] * (main.places - len(main.left))
    heapify(ends)
    for answer in waiting:
        heapreplace(ends, ends[0] + answer.steps)
    return board.now_ns + round(nsmallest(needed, ends)[-1] * main.step_ns)


class SideLanes:
    """Chooses the answers that go to side lanes. ``sent`` counts them; ``left`` is what of its processor each lane
    would get."""

    __slots__ = ("sent", "left", "_times", "_shares")

    def __init__(self, times: StepTimes) -> None:
        self.sent = 0
        self.left: Dict[str, float] = {}
        self._times = times
        self._shares: Dict[Tuple[str, str], Tuple[int, float]] = {}  # (model, lane) -> when measured, with which share

    def ended(self, work: Work, board: Board) -> None:
        """A batch of a side lane tells what its times were measured with."""
        now, before = board.cpu_share(work.lane), self._measured(work.model, work.lane, board)
        mean = now if before is None else KEEP * before + (1.0 - KEEP) * now
        self._shares[work.model, work.lane.name] = (board.now_ns, mean)

    def _measured(self, model: str, lane: Lane, board: Board) -> float | None:
        """The share of the processor that the times of a lane hold already; None where they are still the first ones,
        which hold no load."""
        at_ns, share = self._shares.get((model, lane.name), (0, 0.0))
        return share if share and board.now_ns - at_ns <= lane.models[model].age_ns else None

    def takes(
        self, table: AnswerTable, fresh: Sequence[AnswerProgress], lane: Lane, mains: Sequence[Lane], board: Board
    ) -> List[AnswerProgress]:
        """The fresh answers, in the order of the main lanes, that belong on this side lane. O(answers)."""
        long_from = table.long_from(LONG_SHARE)
        if not any(answer.steps > long_from or not answer.soft_ns for answer in fresh):
            return []
        latency, times = lane.models[table.model], self._times
        share = self.left[lane.name] = board.cpu_share(lane)
        slower = max(1.0, (self._measured(table.model, lane, board) or 1.0) / share)
        held = len(table.bound_to(lane.name))
        starts_ns = lane.available_ns(board.now_ns)
        main = main_of(table, mains, times, board)
        mean_steps = sum(table.predicted.values) / max(1, len(table.predicted.values))
        ahead = sum(main.left)  # steps before this answer, on all places
        chosen: List[AnswerProgress] = []
        bytes = 0
        for place, answer in enumerate(fresh):
            behind, before = len(main.left) + place, ahead
            ahead += answer.steps
            is_long = answer.steps > long_from
            if not is_long and answer.soft_ns:
                continue
            if len(chosen) >= saturating(latency.typical_ns) - held:
                break
            needs = board.sequence_bytes(answer.job)
            if not board.has_memory(lane, bytes + needs):
                continue
            count = len(chosen) + 1
            side_step_ns = slower * times.step_ns(latency, count + held)
            side_from_ns = starts_ns + slower * times.prefill_ns(latency, count)
            main_from_ns = float(board.now_ns + main.prefill_ns)
            if behind >= main.places:  # as many must have ended as stand before it beyond the places
                main_from_ns += before * main.step_ns / main.places * (behind - main.places + 1) / behind
            spared_ns = main.step_ns * max(0.0, answer.steps - mean_steps) * main.crowd
            main_ends_ns = main_from_ns + answer.steps * main.step_ns + spared_ns
            gains = is_long and side_from_ns + answer.steps * side_step_ns < main_ends_ns
            if gains or (
                not answer.soft_ns
                and answer.chance((answer.due_ns - side_from_ns) / side_step_ns)
                > answer.chance((answer.due_ns - main_from_ns) / main.step_ns)
            ):
                chosen.append(answer)
                bytes += needs
        return chosen
