"""The ``synthetic`` engine: takes a stated time and does nothing else. For tests, demonstrations and calibration.

How long a batch takes comes from ``expected`` (batch size -> time) or ``options.c0 + options.c1 * size``, plus
``options.per_length`` per element of an input's first axis (the longest item decides, as in a padded batch), times a
normal draw around 1 with the relative deviation ``options.noise``. Trouble can be ordered: ``fail_every``,
``hang_every`` (for ``hang``), ``lost_at`` (the device is lost with that batch), ``fan_out`` (a number, or
``[low, high]`` drawn), ``steps`` (unfinished until so many). ``variants`` are names with factors of the time.
``sequence`` makes items sequences of ``steps``, or of as many as their input ``steps`` says
(:class:`SequenceSession`). Outputs are the inputs. The draws follow ``options.seed`` and the model's name.

With ``options.pack`` it is a device that works by itself: ``launch`` packs for so long on the lane's thread, and the
lane's batches then run one after the other on the device, whose clock keeps the stated times exactly.
"""

from __future__ import annotations

import random
import threading
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from edgeserve.config.schema import ModelConfig
from edgeserve.engines.base import (
    ANSWERED,
    Batch,
    BatchControl,
    BlockingSession,
    Engine,
    Finished,
    Footprint,
    LaneInfo,
    Pending,
    Result,
    RowFacts,
    SequenceInfo,
    Session,
    Values,
    Written,
    own_failure,
    with_failures,
)
from edgeserve.engines.options import Options
from edgeserve.errors import ConfigError, DeviceLost, EngineError, nearest
from edgeserve.units import NS_PER_S, counted, parse_duration_ns

KNOWN_OPTIONS = (
    "c0",
    "c1",
    "noise",
    "per_length",
    "seed",
    "fail_every",
    "hang_every",
    "hang",
    "fan_out",
    "steps",
    "pack",
    "lost_at",
    "variants",
    "sequence",
)

NOMINAL_BYTES = 1 << 20
"""The bytes of a synthetic model when ``memory`` is not set."""

STATE_BYTES = 64
"""The reported bytes of an unfinished item's state: it is one counter."""

HANG_NS = 3600 * NS_PER_S
"""The default of ``options.hang``: longer than any lane waits."""

Sleep = Callable[[float], Any]


class _Planned(NamedTuple):
    """A batch that is about to run: what was drawn for it, and how long it takes."""

    number: int
    batch: Batch
    failed: Dict[int, EngineError]
    left: List[int]
    steps: int
    parts: List[int]
    duration_ns: int
    trouble: Optional[EngineError]  # how the whole batch ends, if not well


def make(model: ModelConfig, lanes: Sequence[LaneInfo], directory: str) -> Engine:
    """The registry's entry."""
    return SyntheticEngine(model)


class SyntheticEngine(Engine):
    """Waits as long as its model says. ``sleep`` (seconds) is the only way that time enters; by default it waits on an
    event that ``unload`` sets, so that a hanging batch ends when the engine does. Safe from any thread."""

    def __init__(self, model: ModelConfig, sleep: Sleep | None = None) -> None:
        options = Options(model, KNOWN_OPTIONS)
        self._name = model.name
        self._expected_ns = dict(sorted(model.expected.items()))
        self._fixed_ns = options.duration_ns("c0", 0)
        self._per_item_ns = options.duration_ns("c1", 0)
        if not self._expected_ns and "c0" not in options and "c1" not in options:
            raise ConfigError(
                f"[model.{model.name}] does not say how long it takes; set expected = {{1 = '5ms'}} "
                "or options.c0 and options.c1"
            )
        self._noise = options.number("noise", 0.0, 0.0, 10.0)
        self._per_length_ns = _durations(options, "per_length")
        self._fail_every = options.integer("fail_every", 0, 0)
        self._hang_every = options.integer("hang_every", 0, 0)
        self._hang_ns = options.duration_ns("hang", HANG_NS)
        self._steps = options.integer("steps", 1, 1)
        self._lost_at = options.integer("lost_at", 0, 0)
        self._pack_ns = options.duration_ns("pack", 0) if "pack" in options else None
        self._factors = _factors(options)
        self.variants = tuple(self._factors)
        self._fan_out = _range(model, options)
        self._sequence = _sequence(options)
        if self._sequence is not None:
            self.variants = (*self.variants, "prefill", "decode")
            self.makes_sequences = True
        self._random = random.Random(f"{options.integer('seed', 0, 0)}/{model.name}")
        self._shapes = model.shapes
        self._load_ns = model.load_ns
        self._bytes = model.memory_bytes or NOMINAL_BYTES
        self._lock = threading.Lock()
        self._unloaded = threading.Event()
        self._sleep = sleep if sleep is not None else self._wait_or_unload
        self._loaded = False
        self._batches = 0

    def load(self) -> Footprint:
        if not self._loaded:
            self._unloaded.clear()
            if self._load_ns:
                self._sleep(self._load_ns / NS_PER_S)
            self._loaded = True
        return Footprint(self._bytes)

    def unload(self) -> None:
        self._loaded = False
        self._unloaded.set()

    def sequence(self) -> Optional[SequenceInfo]:
        return self._sequence

    def rows(self) -> RowFacts:
        return RowFacts(checked=False)

    def example(self) -> Values:
        return {name: np.zeros(shape, np.float32) for name, shape in self._shapes.items()}

    def open(self, lane: LaneInfo) -> Session:
        """A session of a device that works by itself with ``options.pack``, else one that blocks."""
        self._must_be_loaded()
        if self._sequence is not None:
            return SequenceSession(self, self._sequence)
        if self._pack_ns is None or lane.clock_ns is None:
            return BlockingSession(self)
        common = lane.common if lane.common is not None else {}
        return DeviceSession(self, common.setdefault("synthetic", DeviceQueue(lane.clock_ns)))

    def run(self, batch: Batch) -> List[Result]:
        planned = self.plan(batch)
        if planned.duration_ns:
            self._sleep(((self._pack_ns or 0) + planned.duration_ns) / NS_PER_S)
        return self.finish(planned)

    def pack(self) -> None:
        """Do the work of the lane's thread for a batch before the device can run it."""
        if self._pack_ns:
            self._sleep(self._pack_ns / NS_PER_S)

    def sleep(self, seconds: float) -> None:
        """Let time pass; raises when the engine is unloaded meanwhile."""
        self._sleep(seconds)

    def plan(self, batch: Batch) -> _Planned:
        """Check a batch and draw how it will go."""
        self._must_be_loaded()
        if batch.variant and batch.variant not in self.variants:
            raise EngineError(
                f"model {self._name!r} has no variant {batch.variant!r}"
                f"{nearest(batch.variant, self.variants)}; see options.variants"
            )
        failed = self._wrong(batch)
        if failed:
            batch = batch.without(failed)
            if not batch.items:
                return _Planned(0, batch, failed, [], 0, [], 0, None)
        with self._lock:
            self._batches += 1
            number = self._batches
            factor = max(0.0, self._random.gauss(1.0, self._noise)) if self._noise else 1.0
            parts = [self._random.randint(*self._fan_out) for _ in batch.items] if self._fan_out else []
        left = [self._left(index, batch) for index in range(len(batch.items))]
        steps = min(max(left, default=1), batch.steps_max or self._steps)
        hangs = bool(self._hang_every) and number % self._hang_every == 0
        duration_ns = (
            self._hang_ns
            if hangs
            else round(self.duration_ns(batch) * steps * factor * self._factors.get(batch.variant, 1.0))
        )
        return _Planned(number, batch, failed, left, steps, parts, duration_ns, self._trouble(number, hangs))

    def finish(self, planned: _Planned) -> List[Result]:
        """The results of a batch whose time is over."""
        if planned.trouble is not None:
            raise planned.trouble
        left, steps = planned.left, planned.steps
        results = [
            self._result(index, item, left[index] - steps, planned.parts)
            for index, item in enumerate(planned.batch.items)
        ]
        if planned.batch.steps_max:
            for index, result in enumerate(results):
                result.steps = min(steps, left[index])
        return with_failures(results, planned.failed)

    def aborted(self, planned: _Planned) -> EngineError:
        """The error of an aborted batch."""
        return EngineError(f"model {self._name!r}: batch {planned.number} was aborted")

    def _trouble(self, number: int, hangs: bool) -> Optional[EngineError]:
        if hangs:
            return EngineError(f"model {self._name!r}: batch {number} hung, as options.hang_every says")
        if self._lost_at and number >= self._lost_at:
            return DeviceLost(f"model {self._name!r}: the device was lost with batch {number}, as options.lost_at says")
        if self._fail_every and number % self._fail_every == 0:
            return EngineError(f"model {self._name!r}: batch {number} failed, as options.fail_every says")
        return None

    def _must_be_loaded(self) -> None:
        if not self._loaded:
            raise EngineError(f"model {self._name!r} is not loaded; call load() before it is run")

    def duration_ns(self, batch: Batch) -> int:
        """The stated time of one step of ``batch``, without noise."""
        lengths = sum(
            per_ns * max((len(item[name]) for item in batch.items if name in item), default=0)
            for name, per_ns in self._per_length_ns.items()
        )
        if not self._expected_ns:
            return self._fixed_ns + self._per_item_ns * batch.size + lengths
        for size, expected_ns in self._expected_ns.items():
            if size >= batch.size:
                return expected_ns + lengths
        return expected_ns * batch.size // size + lengths  # beyond the largest: in proportion

    def _left(self, index: int, batch: Batch) -> int:
        """Steps that an item still needs: its state is that number."""
        started = batch.states[index] is not None
        if self._sequence is not None and not started and "steps" in batch.items[index]:
            return max(1, int(batch.items[index]["steps"]))
        return int(batch.states[index]) if started else self._steps

    def _result(self, index: int, item: Values, left: int, parts: List[int]) -> Result:
        if left > 0:
            return Result({}, state=left, state_bytes=STATE_BYTES, done=False)
        if parts:
            return Result(dict(item), parts=[{"index": np.int64(part)} for part in range(parts[index])])
        return Result(dict(item))

    def _wrong(self, batch: Batch) -> Dict[int, EngineError]:
        """The items whose inputs are not as declared, by their places."""
        failed: Dict[int, EngineError] = {}
        for index, item in enumerate(batch.items):
            try:
                for name in self._shapes:
                    self._check(name, item)
                self._left(index, batch)
                for name in self._per_length_ns:
                    len(item.get(name, ()))
            except BaseException as error:  # noqa: BLE001 it is this item's
                failed[index] = own_failure(self._name, error)
        return failed

    def _check(self, name: str, item: Values) -> None:
        if name not in item:
            raise EngineError(f"model {self._name!r}: input {name!r} is missing (given: {', '.join(sorted(item))})")
        shape = np.shape(item[name])
        if shape != tuple(self._shapes[name]):
            raise EngineError(
                f"model {self._name!r}: input {name!r} has shape {shape}; expected "
                f"{tuple(self._shapes[name])} ([model.{self._name}] shapes)"
            )
        if np.asarray(item[name]).dtype.kind not in "biuf":
            raise EngineError(
                f"model {self._name!r}: input {name!r} is {np.asarray(item[name]).dtype}; expected numbers"
            )

    def _wait_or_unload(self, seconds: float) -> None:
        if self._unloaded.wait(seconds):
            raise EngineError(f"model {self._name!r} was unloaded while it ran")


class DeviceQueue:
    """The device behind one lane: it runs batches one after the other, in the order in which they were launched."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self.clock_ns = clock_ns
        self.free_at_ns = 0

    def put(self, duration_ns: int) -> Tuple[int, int]:
        """When a batch that is launched now begins and ends."""
        started_ns = max(self.clock_ns(), self.free_at_ns)
        self.free_at_ns = started_ns + duration_ns
        return started_ns, self.free_at_ns


class DeviceSession(Session):
    """A lane's stream on a device that works by itself."""

    def __init__(self, engine: SyntheticEngine, device: DeviceQueue) -> None:
        self._engine = engine
        self._device = device

    def launch(self, batch: Batch) -> Pending:
        planned = self._engine.plan(batch)
        if not planned.batch.items:
            return Finished(self._engine.finish(planned))
        self._engine.pack()
        return SyntheticPending(self._engine, self._device, planned)


class SyntheticPending(Pending):
    """A batch on such a device. The time of its end was fixed when it was launched."""

    def __init__(self, engine: SyntheticEngine, device: DeviceQueue, planned: _Planned) -> None:
        self._engine = engine
        self._device = device
        self._planned = planned
        self._times = device.put(planned.duration_ns)
        self._aborted = False

    def done(self) -> bool:
        return self._device.clock_ns() >= self._times[1]

    def wait(self, timeout_s: float) -> bool:
        left_s = (self._times[1] - self._device.clock_ns()) / NS_PER_S
        if left_s > 0:
            self._engine.sleep(min(left_s, timeout_s))
        return self.done()

    def result(self) -> List[Result]:
        if self._aborted:
            raise self._engine.aborted(self._planned)
        return self._engine.finish(self._planned)

    def times(self) -> Optional[Tuple[int, int]]:
        return self._times

    def abort(self) -> bool:
        """Ends it where it is. What was launched behind it keeps its time."""
        now_ns = self._device.clock_ns()
        if now_ns >= self._times[1]:
            return False
        self._aborted = True
        if self._device.free_at_ns == self._times[1]:
            self._device.free_at_ns = now_ns
        self._times = (min(now_ns, self._times[0]), now_ns)
        return True


class SyntheticState:
    """The progress of an item: steps made and still to make, and the session that holds its results (None: no one)."""

    __slots__ = ("item", "made", "left", "holder")

    def __init__(self, left: int, item: Optional[Values] = None) -> None:
        self.item = item or {}
        self.made = 0
        self.left = left
        self.holder: object = None

    def release(self) -> None:
        self.holder = None

    def outputs(self) -> Values:
        return {**self.item, "steps": np.int64(self.made)}

    def written(self) -> Optional[Written]:
        return Written(self.outputs(), counted(self.made, "step")) if self.made else None

    def __int__(self) -> int:
        return self.left


class SequenceSession(Session):
    """A lane's session for items that take many steps in one batch, each of the stated time of a batch.

    After each step every item that goes on emits a piece (``step``: how many it has made), and items that are over are
    answered. All that the contract of sequences asks for is done as a language model does it, but nothing is computed:
    a state is a count, and computing a lost one again takes one step's time more.
    """

    def __init__(self, engine: SyntheticEngine, info: SequenceInfo) -> None:
        self._engine = engine
        self._info = info

    def launch(self, batch: Batch) -> Pending:
        planned = self._engine.plan(batch)
        if planned.trouble is not None:
            self._engine.sleep(planned.duration_ns / NS_PER_S)
            raise planned.trouble
        step_s = planned.duration_ns / max(1, planned.steps) / NS_PER_S
        return Finished(with_failures(self._run(planned.batch, planned.left, step_s), planned.failed))

    def _run(self, batch: Batch, left: List[int], step_s: float) -> List[Result]:
        states = []
        for index, steps in enumerate(left):
            given = batch.states[index]
            states.append(given if isinstance(given, SyntheticState) else SyntheticState(steps, batch.items[index]))
        if any(state.made and state.holder is not self for state in states):
            self._engine.sleep(step_s)  # what another session held, or none holds any more, is computed again
        results: Dict[int, Result] = {}
        before = [state.made for state in states]
        control, steps = batch.control, 0
        going = list(range(len(states)))
        most = 1 if batch.variant == "prefill" else batch.steps_max
        while going and (most is None or steps < most) and not (steps and control is not None and control.stop):
            self._engine.sleep(step_s)
            steps += 1
            for index in list(going):
                state = states[index]
                state.holder = self
                if control is not None and control.dropped(index):
                    results[index] = _told(control, index, Result({}))
                    going.remove(index)
                    continue
                state.made += 1
                state.left -= 1
                if control is not None:
                    control.emit(index, Result({"step": np.int64(state.made)}, done=False, state=state))
                if state.left <= 0:
                    going.remove(index)
                    results[index] = _told(
                        control,
                        index,
                        Result(state.outputs(), steps=state.made - before[index]),
                    )
        for index in going:
            state = states[index]
            tokens = len(batch.items[index].get("tokens", ())) + state.made
            results[index] = Result(
                {},
                state=state,
                state_bytes=tokens * self._info.bytes_per_token,
                done=False,
                hints={"steps": state.left},
                steps=max(1, state.made - before[index]),
            )
        return [results[index] for index in range(len(states))]


def _told(control: Optional[BatchControl], index: int, result: Result) -> Result:
    """Report an ended item now where the batch has a listener. Returns the entry at its place in the results."""
    if control is None:
        return result
    control.emit(index, result)
    return ANSWERED


def _factors(options: Options) -> Dict[str, float]:
    """``variants``: by name, the factor of a batch's time."""
    table = options.table("variants")
    if not all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 1000
        for value in table.values()
    ):
        raise ConfigError(
            f"{options.where('variants')} = {table!r}: expected a table of factors, such as {{half = 0.5}}"
        )
    return {name: float(value) for name, value in table.items()}


def _sequence(options: Options) -> Optional[SequenceInfo]:
    """``sequence``: tokens of the context, bytes per token and slots, or None where the key is left out."""
    if "sequence" not in options:
        return None
    table = {"context_tokens": 4096, "bytes_per_token": 1024, "slots": 8, **options.table("sequence")}
    unknown = sorted(set(table) - set(SequenceInfo._fields))
    if unknown or not all(
        isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in table.values()
    ):
        raise ConfigError(
            f"{options.where('sequence')} = {table!r}: expected whole numbers for {', '.join(SequenceInfo._fields)}"
        )
    return SequenceInfo(**table)


def _durations(options: Options, key: str) -> dict[str, int]:
    table = options.texts_by_name(key)
    try:
        return {name: parse_duration_ns(text) for name, text in table.items()}
    except ValueError as error:
        raise ConfigError(f"{options.where(key)}: {error}") from None


def _range(model: ModelConfig, options: Options) -> Tuple[int, ...]:
    """``fan_out``: ``()``, or the lowest and highest number of parts."""
    value = model.options.get("fan_out")
    if value is None:
        return ()
    pair = [value, value] if isinstance(value, int) else value
    if not (
        isinstance(pair, (list, tuple))
        and len(pair) == 2
        and all(isinstance(item, int) and not isinstance(item, bool) for item in pair)
        and 0 <= pair[0] <= pair[1]
    ):
        raise ConfigError(f"{options.where('fan_out')} = {value!r}: expected a number of parts, or [lowest, highest]")
    return tuple(pair)
