"""The contract of an engine: code that can run one model on one device.

An engine knows nothing of requests, deadlines or queues. The lane that calls it owns the thread; an engine whose
model may run on several lanes of a device must allow ``run`` from several threads at once.
``edgeserve.testing.EngineConformance`` holds every engine to this page.
"""

from __future__ import annotations

from typing import Any, Container, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

Values = Dict[str, Any]
"""Named values of one item (no batch dimension): numpy arrays, or any object for host functions."""


class LaneInfo(NamedTuple):
    """Where an engine will run: the lane's device kind (``cpu``, ``cuda``), device index, number of threads, and the
    cores that they are pinned to (``()`` = any). An engine that makes threads of its own pins those."""

    device_kind: str = "cpu"
    device_index: int = 0
    threads: int = 1
    cores: Tuple[int, ...] = ()


class Batch(NamedTuple):
    """What ``run`` gets. ``items[i]`` are the values of job i; ``size >= len(items)`` is the size to pad to.

    ``states[i]`` is what job i's last result left behind (``None`` at the start of a stream or sequence).
    ``steps_max`` bounds the steps of an iterative model in this call; ``None`` leaves the number to the engine.
    """

    items: Sequence[Values]
    size: int
    states: Sequence[Any] = ()
    steps_max: Optional[int] = None

    def without(self, failed: Container[int]) -> Batch:
        """The batch of the other items, at the same size, for engines that find some items wrong before they run."""
        kept = [index for index in range(len(self.items)) if index not in failed]
        return self._replace(items=[self.items[index] for index in kept],
                             states=[self.states[index] for index in kept] if self.states else ())


class Result:
    """What ``run`` returns for one item.

    ``outputs`` the named values; ``parts`` (fan-out nodes only) a list of named values, one per part, ``outputs`` then
    holds what all parts share; ``route`` the successor taken; ``hints`` numbers for the scheduler, which count for the
    nodes behind (``{"read.work": 2.5}``: of the request, or of the one part that the item is); ``state`` kept for the
    next call of the same stream or sequence with ``state_bytes``; ``done=False`` means unfinished (call again).
    ``steps`` are the steps that the call made for this item where ``batch.steps_max`` bounds them: the scheduler learns
    the time of one step. A call without that bound counts as one step, as a profile measures it.
    ``error`` says that this item failed, and why; nothing else of the result is looked at then, and the state that the
    item came with stays as it was.
    """

    __slots__ = ("outputs", "parts", "route", "hints", "state", "state_bytes", "done", "error", "steps")

    def __init__(self, outputs: Values, parts: List[Values] | None = None, route: str | None = None,
                 hints: Mapping[str, float] | None = None, state: Any = None, state_bytes: int = 0,
                 done: bool = True, error: Exception | None = None, steps: int = 1) -> None:
        self.outputs = outputs
        self.parts = parts
        self.route = route
        self.hints = hints
        self.state = state
        self.state_bytes = state_bytes
        self.done = done
        self.error = error
        self.steps = steps


class Footprint(NamedTuple):
    """Bytes a loaded model occupies on its device: its weights, and the working memory of its largest batch."""

    weights_bytes: int
    work_bytes: int = 0


class Engine:
    """One model on one device. Subclasses implement the four verbs; the base holds no logic.

    RequestManager: ``load`` -> (``warm_up``) -> ``run``... -> ``unload`` -> ``load`` again. ``load`` and ``unload`` are
    idempotent.
    Every failure is an :class:`edgeserve.errors.EngineError` whose text names the model and the mend. What is wrong
    with one item (an input that is missing, of another dtype or shape) is the ``error`` of its result, and the others
    run: a batch holds the requests of several clients. What ``run`` raises, whatever it is, fails the whole batch and
    nothing else: its lane time was planned for one run, so nobody runs the rest of it again.
    """

    def load(self) -> Footprint:
        """Make the model ready to run and say what it occupies, in bytes."""
        raise NotImplementedError

    def unload(self) -> None:
        """Give the memory back."""
        raise NotImplementedError

    def example(self) -> Values:
        """One item that the model accepts, for warm-up and profiling. :class:`~edgeserve.errors.ExampleUnknown` when
        it cannot be known (its text says which configuration key gives it)."""
        raise NotImplementedError

    def run(self, batch: Batch) -> List[Result]:
        """One result per item, in order, with ``error`` where that item alone failed. Pads to ``batch.size`` where the
        model needs it and cuts the padding off."""
        raise NotImplementedError


def with_failures(results: Sequence[Result], failed: Mapping[int, Exception]) -> List[Result]:
    """The results of the items that ran, in order, and between them those of the items at the places of ``failed``."""
    if not failed:
        return list(results)
    ran = iter(results)
    return [Result({}, error=failed[index]) if index in failed else next(ran)
            for index in range(len(results) + len(failed))]


def run_whole(engine: Engine, batch: Batch) -> List[Result]:
    """Run a batch for somebody who has no use for a part of it (warm-up, measurements): the first item's failure is
    raised."""
    results = engine.run(batch)
    for result in results:
        if result.error is not None:
            raise result.error
    return results
