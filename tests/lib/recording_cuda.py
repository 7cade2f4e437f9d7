"""A CUDA double that knows who may touch which memory when."""

from __future__ import annotations

import gc
import sys
import time
import weakref
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from cuda_double import CudaDouble, Misuse, Operation, Use, one_at_a_time


class Access(NamedTuple):
    """An operation's place in its stream and the memory that it touches."""

    stream: int
    count: int
    name: str
    reads: Tuple[Use, ...]
    writes: Tuple[Use, ...]


class Execution(Operation):
    """An operation that knows which of its memory it writes."""

    writes: Tuple[Use, ...] = ()


@one_at_a_time
class RecordingCuda(CudaDouble):
    """A CUDA double that orders operations by streams, events and the host's waits (vector clocks), and refuses two
    that are not ordered and touch the same bytes."""

    name = "recording double"
    now_ms = property(lambda self: time.monotonic() * 1e3, lambda self, value: None)  # the lane's clock goes on too

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.contexts: weakref.WeakSet[Any] = weakref.WeakSet()
        self.engines: weakref.WeakSet[Any] = weakref.WeakSet()
        self.compiled = 0  # contexts whose kernels had to be compiled (TensorRT-RTX)
        self.refusals: List[str] = []  # what the library says instead of loading a plan, or making a context
        self._clocks: Dict[int, Dict[int, int]] = {}
        self._event_clocks: Dict[int, Dict[int, int]] = {}
        self._host: Dict[int, int] = {}
        self._open: List[Access] = []
        self._joints: List[int] = []  # events of executions that use several streams

    def record(self, event: int, stream: int) -> None:
        super().record(event, stream)
        self._event_clocks[event] = dict(self._clock(stream))

    def stream_wait(self, stream: int, event: int) -> None:
        super().stream_wait(stream, event)
        _merge(self._clock(stream), self._event_clocks.get(event, {}))

    def synchronize_event(self, event: int) -> None:
        super().synchronize_event(event)
        _merge(self._host, self._event_clocks.get(event, {}))

    def event_done(self, event: int) -> bool:
        done = super().event_done(event)
        if done:
            _merge(self._host, self._event_clocks.get(event, {}))
        return done

    def synchronize_stream(self, stream: int) -> None:
        super().synchronize_stream(stream)
        _merge(self._host, self._clock(stream))

    def stream_done(self, stream: int) -> bool:
        done = super().stream_done(stream)
        if done:
            _merge(self._host, self._clock(stream))
        return done

    def free_device(self, pointer: int) -> None:
        for context in self.contexts if sys.exc_info()[0] is None else ():  # else the traceback may keep it alive
            if context._memory is not None and context._memory.pointer == pointer:
                raise Misuse(f"device memory at {pointer:#x} was freed while an execution context has it")
        super().free_device(pointer)

    def release(self, index: int, context: int) -> None:
        if len(self.engines) and self._contexts == {index: 1}:
            gc.collect()  # cycles do not count
        if len(self.engines) and self._contexts == {index: 1}:
            raise Misuse("the device's context was given back while an engine of TensorRT lives on it")
        super().release(index, context)

    def add_context(self, context: Any) -> None:
        self.contexts.add(context)

    def add_engine(self, engine: Any) -> None:
        self.engines.add(engine)

    def is_ordered(self, stream: int, access: Access) -> bool:
        """True if an operation enqueued on ``stream`` now runs after ``access``."""
        return self._clock(stream).get(access.stream, 0) >= access.count

    def give(self, stream: int, operation: Operation) -> None:
        """Enqueue an operation, or capture it."""
        self._enter("enqueue", operation.name)
        self._give(stream, operation)

    def beside(self, stream: int, other: int, operation: Operation) -> None:
        """Enqueue an operation on another stream, between what the stream has and what it gets."""
        if self.capturing(stream):
            self.give(stream, operation)
            return
        self._joints = [event for event in self._joints if not self._forget_passed(event)]
        for first, then, what in ((stream, other, operation), (other, stream, None)):
            event = super().create_event(False)
            self._joints.append(event)
            self.record(event, first)
            self.stream_wait(then, event)
            if what is not None:
                self.give(then, what)

    def _forget_passed(self, event: int) -> bool:
        passed = self._events[event].passed >= self._events[event].recorded
        if passed:
            del self._events[event], self._event_clocks[event]
        return passed

    def leaks(self) -> List[str]:
        own = [f"event {event}" for event in self._joints if self._events[event].passed]
        return [leak for leak in super().leaks() if leak not in own]

    def capturing(self, stream: int) -> bool:
        """True if the stream is being captured."""
        return stream in self._captures

    def _clock(self, stream: int) -> Dict[int, int]:
        clock = self._clocks.setdefault(stream, {})
        _merge(clock, self._host)
        return clock

    def _give(self, stream: int, operation: Operation) -> None:
        if stream not in self._captures:
            self._order(stream, operation)
        super()._give(stream, operation)

    def _order(self, stream: int, operation: Operation) -> None:
        clock = self._clock(stream)
        clock[stream] = clock.get(stream, 0) + 1
        # Copies and fills write the first thing that they use; an execution says what it writes.
        writes = operation.writes if isinstance(operation, Execution) else operation.uses[:1]
        reads = tuple(use for use in operation.uses if use not in writes)
        self._open = [access for access in self._open if self._host.get(access.stream, 0) < access.count]
        for access in self._open:
            if self.is_ordered(stream, access):
                continue
            if _touch(writes, (*access.reads, *access.writes)) or _touch(reads, access.writes):
                raise Misuse(
                    f"{operation.name!r} on stream {stream} and {access.name!r} on stream {access.stream} "
                    "touch the same memory, and nothing orders them"
                )
        if operation.uses:
            self._open.append(Access(stream, clock[stream], operation.name, reads, tuple(writes)))


def _merge(clock: Dict[int, int], other: Dict[int, int]) -> None:
    for stream, count in other.items():
        clock[stream] = max(clock.get(stream, 0), count)


def _touch(ones: Sequence[Use], others: Sequence[Use]) -> bool:
    return any(
        one.pointer < other.pointer + other.size and other.pointer < one.pointer + one.size
        for one in ones
        for other in others
    )
