"""Warm-ups of models that are loaded at run time, on each lane that may run them.

A lane opens its session and runs each batch size once, one size at a time: batches of other models go between. The load
counts as finished when every lane is warm. Of a model whose file may be another than at start, the first lane looks
whether each size keeps the items apart. It belongs to the loop's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from edgeserve.config.schema import ModelConfig
from edgeserve.engines.base import Batch, Engine, Session, Values, run_whole
from edgeserve.errors import EngineError, ExampleUnknown
from edgeserve.offload.lane_thread import LaneThread, LaneWork, WorkDone, WorkNotStarted
from edgeserve.sched.protocol.actions import START_ANY_TIME_NS, LoadModel

if TYPE_CHECKING:
    from edgeserve.engines.row_check import RowCheck


class ReloadTag:
    """The tag of a work of a reload (:mod:`edgeserve.live.reloads`, which few servers load)."""


class WarmStep(NamedTuple):
    """Tag of one step on one lane; ``sizes`` are left after it. ``unchecked``: the model, whose sizes are looked at."""

    action: LoadModel
    lane: LaneThread
    engine: Engine
    sizes: Tuple[int, ...]
    unchecked: Optional[ModelConfig] = None


@dataclass(eq=False)
class Warmed:
    """A load whose warm-ups are over, and the first error among them."""

    mail: WorkDone
    error: Optional[BaseException] = None


class Warming:
    """The loads that wait for warm-ups: at most one per model and device."""

    def __init__(self) -> None:
        self._left: Dict[int, int] = {}  # work id of the load -> lanes that are not warm
        self._loads: Dict[int, Warmed] = {}

    def begin(
        self,
        mail: WorkDone,
        engine: Engine,
        lanes: Sequence[LaneThread],
        sizes: Sequence[int],
        unchecked: Optional[ModelConfig] = None,
    ) -> Optional[Warmed]:
        """The copy lane has loaded ``engine``: warm it on ``lanes``. The load itself when there is none. ``unchecked``:
        the model, where the first lane is to look at its sizes. One that mixes items fails the load."""
        action: LoadModel = mail.work.tag
        load = Warmed(mail)
        if not lanes:
            return load
        self._left[action.work_id] = len(lanes)
        self._loads[action.work_id] = load
        order = tuple(sorted(sizes, reverse=True))
        for place, lane in enumerate(lanes):
            self._give(WarmStep(action, lane, engine, order, None if place else unchecked), _open_and_run)
        return None

    def stepped(self, mail: Union[WorkDone, WorkNotStarted]) -> Optional[Warmed]:
        """Take a lane's answer to a step; returns the load when that was the last step. A lane that would not start it
        (it is down, or the server stops) needs no warm-up."""
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


Warm = Tuple[Session, Values, Optional["RowCheck"]]


def _open_and_run(argument: Tuple[WarmStep, None]) -> Warm:
    """The first step, on the lane's thread. A host function without an example raises: its first run warms it."""
    step = argument[0]
    session, item = step.lane.open(step.engine), step.engine.example()
    check = None
    if step.unchecked is not None and step.engine.rows().checked:
        from edgeserve.engines.row_check import row_check_of

        check = row_check_of(step.unchecked, step.engine)
    if check is not None:
        check.begin(session, item)
        check.stands_still()
    return _run((step, (session, item, check)))


def _run(argument: Tuple[WarmStep, Warm]) -> Warm:
    step, (session, item, check) = argument
    items: List[Values] = [item] * step.sizes[0]
    run_whole(session, Batch(items, step.sizes[0]))
    why = check.look(step.sizes[0]) if check is not None else ""
    if why:
        raise EngineError(
            f"what was loaded now must not run in the batches that the model runs in: {why}. Where the configuration "
            "is reloaded, or the server restarts, it runs in fewer"
        )
    return session, item, check
