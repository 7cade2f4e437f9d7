"""Where stages run and how long they take: the learnt times of all models on all lanes (``pard_local``).

A cohort has a *home*, the lane that runs the heaviest model of its pipeline. Its other stages run at home too where
they may; host functions, and models that are not allowed there, run on the fastest lane that is up. Makes no choice.
"""

from __future__ import annotations

from math import isqrt
from typing import Dict, List, Mapping, NamedTuple, Sequence, Tuple

from edgeserve.sched.latency.work_time import WorkTime
from edgeserve.sched.policies.pard_local.cost import one_by_one
from edgeserve.sched.policies.pard_local.remaining_work import Pipeline
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.requests.work import MILLI
from edgeserve.sched.resources.lanes import Lane

Steps = Mapping[int, int]
"""Node -> how often its stage runs, where that is more than once (iterative models)."""


class StagePlan(NamedTuple):
    """Where a stage runs: the lane's name, the model's times there, and when it is in memory."""

    lane: str
    usual: WorkTime
    resident_ns: int


class StageCosts:
    """Where stages run and how long they take, for one policy. The times are the shared ones of usual work."""

    __slots__ = ("_usual", "_homes")

    def __init__(self) -> None:
        self._homes: Dict[int, List[str]] = {}  # by the pipeline's identity: pipelines live as long as the policy
        self._usual: Dict[Tuple[str, str], WorkTime] = {}

    def usual(self, model: str, lane: str, board: Board) -> WorkTime:
        """How a model on a lane serves any number of jobs."""
        found = self._usual.get((model, lane))
        if found is None:
            found = self._usual[model, lane] = board.latency(model, lane).work()
        return found

    def lane_of(self, model: str, home: str, board: Board) -> Lane | None:
        """The lane of a stage: home where it may run there, else the one that is fastest for a single job; None while
        none is up."""
        best: Lane | None = None
        best_ns = 0
        for lane in board.lanes_of(model):
            if lane.up and not lane.hung:
                if lane.name == home:
                    return lane
                time_ns = self.usual(model, lane.name, board).time_ns(MILLI)
                if best is None or time_ns < best_ns:
                    best, best_ns = lane, time_ns
        return best

    def stage_plan(self, model: str, home: str, board: Board) -> StagePlan | None:
        """Where a stage runs, how fast, and from when; None while no lane is up."""
        lane = self.lane_of(model, home, board)
        return (
            None
            if lane is None
            else StagePlan(lane.name, self.usual(model, lane.name, board), board.resident_at_ns(model, lane))
        )

    def stages(
        self,
        pipeline: Pipeline,
        left: Sequence[int],
        steps: Steps,
        home: str,
        board: Board,
    ) -> List[Tuple[str, int, int]] | None:
        """(lane, time, not before) of what is left: not before the lane is free and the model is there. None while a
        stage has no lane."""
        now_ns = board.now_ns
        found: List[Tuple[str, int, int]] = []
        for node in pipeline.nodes:
            milli = left[node.index]
            if not milli:
                continue
            lane = self.lane_of(node.model, home, board)
            if lane is None:
                return None
            usual = self._usual.get((node.model, lane.name)) or self.usual(node.model, lane.name, board)
            once_ns = usual.time_ns(milli, left[len(pipeline.nodes) + node.index])
            time_ns = once_ns * steps.get(node.index, 1)
            starts_ns = board.resident_at_ns(node.model, lane)
            if lane.works:
                starts_ns = max(starts_ns, lane.available_ns(now_ns))
            found.append((lane.name, time_ns, starts_ns))
        return found

    def noise_ns(self, pipeline: Pipeline, left: Sequence[int], steps: Steps, home: str, board: Board) -> int:
        """The standard deviation of the lane time of what is left, as far as batches took more or less than was
        believed."""
        total_us2 = 0
        for node in pipeline.nodes:
            lane = self.lane_of(node.model, home, board) if left[node.index] else None
            if lane is not None:
                total_us2 += self.usual(node.model, lane.name, board).variance_us2(
                    left[node.index], left[len(pipeline.nodes) + node.index]
                ) * steps.get(node.index, 1)
        return isqrt(total_us2) * 1000

    def margin_ppm(self, pipeline: Pipeline, home: str, most_ppm: int, board: Board) -> int:
        """The margin of a cohort's time: ``most_ppm``, but no more than the worst of its models' batches miss their
        time by. What all batches have in common (another program, heat) shows in each of them."""
        found = 0
        for node in pipeline.nodes:
            lane = self.lane_of(node.model, home, board)
            if lane is not None and found < most_ppm:
                miss_ppm = self.usual(node.model, lane.name, board).miss_ppm()
                found = most_ppm if miss_ppm is None else max(found, min(most_ppm, miss_ppm))
        return found

    def alone_ends_ns(
        self,
        pipeline: Pipeline,
        left: Sequence[int],
        steps: Steps,
        home: str,
        from_ns: int,
        board: Board,
    ) -> int | None:
        """When work that starts at ``from_ns`` and shares its lanes with nothing new ends."""
        stages = self.stages(pipeline, left, steps, home, board)
        return None if stages is None else one_by_one(stages, from_ns)

    def homes(self, pipeline: Pipeline, board: Board) -> List[str]:
        """The lanes that may be a cohort's home: those that run the heaviest of the pipeline's models whose batches
        save time (of all, where none does) and are up, or any that is up when none of them is (what is left of a
        request may not need them)."""
        found = self._homes.get(id(pipeline))
        if found is None:
            shares: List[Tuple[bool, int, int]] = []
            for node in pipeline.nodes:
                places = board.lanes_of(node.model)
                share_ns = min([_share_ns(node.model, lane, board) for lane in places])
                saving = [lane for lane in places if _saves(node.model, lane, board)]
                shares.append((bool(saving), pipeline.template[node.index] * share_ns, -node.index))
            heaviest = pipeline.nodes[-max(shares)[2]]
            found = self._homes[id(pipeline)] = [lane.name for lane in board.lanes_of(heaviest.model)]
        names: List[str] = []
        others: List[str] = []
        for lane in board.lanes:
            if lane.up and not lane.hung:
                (names if lane.name in found else others).append(lane.name)
        if len(names) > 1:
            names.sort(key=found.index)
        return names or others

    def knows(self, pipeline: Pipeline) -> bool:
        """Whether the homes of a pipeline have been asked for."""
        return id(pipeline) in self._homes

    def are_resident(self, pipeline: Pipeline, board: Board) -> bool:
        """Whether all models of a pipeline are in memory wherever they may run."""
        for node in pipeline.nodes:
            for lane in board.lanes_of(node.model):
                if not board.is_resident(node.model, lane):
                    return False
        return True

    def serves(self, lane: Lane, model: str, home: str, board: Board) -> bool:
        """Whether a stage may run on this lane: its home, or any other lane when home cannot run it now."""
        if lane.name == home:
            return True
        at_home = next((other for other in board.lanes_of(model) if other.name == home), None)
        return at_home is None or not at_home.up or at_home.hung or not board.is_resident(model, at_home)

    def home_share_ns(self, pipeline: Pipeline, home: str, board: Board) -> int:
        """Time that a request which has not begun takes of its home, each job counted as its share of a full batch."""
        total = 0
        for node in pipeline.nodes:
            lane = self.lane_of(node.model, home, board)
            if lane is not None and lane.name == home:
                total += pipeline.template[node.index] * _share_ns(node.model, lane, board) // MILLI
        return total

    def cost_share_ns(self, pipeline: Pipeline, left: Sequence[int], board: Board) -> int:
        """Lane time of what is left, each usual job counted as its share of a full batch on its first lane."""
        total = 0
        for node in pipeline.nodes:
            milli, over_milli = left[node.index], left[len(pipeline.nodes) + node.index]
            if milli:
                lane = board.lanes_of(node.model)[0]
                usual = self.usual(node.model, lane.name, board)
                if usual.is_declared:
                    size_max = board.latency(node.model, lane.name).size_max
                    share_ns = usual.time_ns(size_max * MILLI) // size_max
                else:
                    share_ns = _share_ns(node.model, lane, board)
                total += max(0, milli * share_ns + over_milli * usual.each_ns) // MILLI
        return total


def _saves(model: str, lane: Lane, board: Board) -> bool:
    """Whether going together saves requests of a model time: a tenth at least in the largest batch."""
    latency = board.latency(model, lane.name)
    return _share_ns(model, lane, board) * 10 <= latency.typical_ns[latency.sizes[0]] * 9 // latency.sizes[0]


def _share_ns(model: str, lane: Lane, board: Board) -> int:
    latency = board.latency(model, lane.name)
    return latency.typical_ns[latency.size_max] // latency.size_max


def free_lanes(board: Board) -> Dict[str, int]:
    """When each lane is free."""
    return {lane.name: lane.available_ns(board.now_ns) for lane in board.lanes}
