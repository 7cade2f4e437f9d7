"""Warm-ups of models that are loaded at run time, on each lane that may run them.

A lane opens its session and runs each batch size once, one size at a time: batches of other models go between. The load
counts as finished when every lane is warm. It belongs to the loop's thread.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

from edgeserve.engines.base import Batch, Engine, Session, Values, run_whole
from edgeserve.errors import ExampleUnknown
from edgeserve.offload.lane_thread import LaneThread, LaneWork, WorkDone, WorkNotStarted
from edgeserve.sched.protocol.actions import START_ANY_TIME_NS, LoadModel


class WarmStep:
    """Tag of one step on one lane; ``sizes`` are left after it."""

    __slots__ = ("action", "lane", "engine", "sizes")

    def __init__(self, action: LoadModel, lane: LaneThread, engine: Engine, sizes: Tuple[int, ...]) -> None:
        self.action = action
        self.lane = lane
        self.engine = engine
        self.sizes = sizes


class Warmed:
    """A load whose warm-ups are over, and the first error among them."""

    __slots__ = ("mail", "error")

    def __init__(self, mail: WorkDone) -> None:
        self.mail = mail
        self.error: Optional[BaseException] = None


class Warming:
    """The loads that wait for warm-ups: at most one per model and device."""

    def __init__(self) -> None:
        self._left: Dict[int, int] = {}  # work id of the load -> lanes that are not warm
        self._loads: Dict[int, Warmed] = {}

    def begin(
        self, mail: WorkDone, engine: Engine, lanes: Sequence[LaneThread], sizes: Sequence[int]
    ) -> Optional[Warmed]:
        """The copy lane has loaded ``engine``: warm it on ``lanes``. The load itself when there is none."""
        action: LoadModel = mail.work.tag
        load = Warmed(mail)
        if not lanes:
            return load
        self._left[action.work_id] = len(lanes)
        self._loads[action.work_id] = load
        for lane in lanes:
            self._give(WarmStep(action, lane, engine, tuple(sorted(sizes, reverse=True))), _open_and_run)
        return None

    def stepped(self, mail: Union[WorkDone, WorkNotStarted]) -> Optional[Warmed]:
        """A lane answered a step. The load, when that was the last one. A lane that would not start it (it is down, or
        the server stops) needs no warm-up."""
        step: WarmStep = mail.work.tag
        load = self._loads[step.action.work_id]
        error = mail.error if isinstance(mail, WorkDone) else None
        if error is not None and not isinstance(error, ExampleUnknown) and load.error is None:
            load.error = error
        if isinstance(mail, WorkDone) and error is None and load.error is None and step.sizes[1:]:
            self._give(WarmStep(step.action, step.lane, step.engine, step.sizes[1:]), _run, mail.value)
            return None
        return self._warm(step.action.work_id)

    def _warm(self, work_id: int) -> Optional[Warmed]:
        self._left[work_id] -= 1
        if self._left[work_id]:
            return None
        del self._left[work_id]
        return self._loads.pop(work_id)

    def _give(self, step: WarmStep, call: Callable[[Any], Any], warm: Any = None) -> None:
        step.lane.give(LaneWork(0, 0, START_ANY_TIME_NS, call, (step, warm), step))


Warm = Tuple[Session, Values]


def _open_and_run(argument: Tuple[WarmStep, None]) -> Warm:
    """The first step, on the lane's thread. A host function without an example raises: its first run warms it."""
    step = argument[0]
    return _run((step, (step.lane.open(step.engine), step.engine.example())))


def _run(argument: Tuple[WarmStep, Warm]) -> Warm:
    step, (session, item) = argument
    items: List[Values] = [item] * step.sizes[0]
    run_whole(session, Batch(items, step.sizes[0]))
    return session, item
