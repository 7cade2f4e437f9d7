"""A CUDA driver made of numpy, which runs what streams were given late and notices misuse.

It follows ``edgeserve.engines.cuda.driver.Driver``, so the engines' own code drives it. Nothing that is enqueued runs
before a question: each question whether an event or a stream is over runs one operation, ``synchronize`` runs all.
Misuse that a device would answer with wrong numbers raises :class:`Misuse`:

* a call without the device's context current on the thread, or ``pop`` without ``push``; a primary context that is
  released more often than it was retained (one per device, shared by all that retain it);
* a pointer outside live memory, or a handle of something destroyed;
* memory, an event or a stream freed while a waiting operation uses it;
* host memory that changed between the enqueuing of a copy and its run. Where a copy to the host waits, the host's
  memory holds :data:`POISON`, so that what is read too early is visibly wrong.

What CUDA refuses while a stream is captured it refuses here too, and the capture is then invalid: its end raises
status 901. ``use_default_stream`` is another library's call on the legacy default stream: it waits for streams that are
not ours (``library_stream``), and where one of these takes part in a capture it invalidates that (906).

``enqueue`` adds an operation of the test's own (a kernel, an execution of an engine); ``memory_at`` is what such an
operation reads and writes. Device pointers lie far from the host's. It proves nothing about speed. Where each behaviour
is read: ``tests/lib/README.md``.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import threading
from collections import deque
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from edgeserve.engines.cuda.driver import Group
from edgeserve.engines.cuda.status import NOT_READY, OUT_OF_MEMORY, error_of

POISON = 0xA5
DEVICE_BASE = 0x7_0000_0000
PAGE = 4096  # which page-locked memory begins with
GAP = 1 << 16  # between allocations: an access beyond an end meets nothing
LEGACY = 1  # the handle of the legacy default stream
CONTEXT = 0x1000  # handles of primary contexts: this and the device's number

ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 8,
    "COMPUTE_CAPABILITY_MINOR": 7,
    "INTEGRATED": 0,
    "CAN_MAP_HOST_MEMORY": 1,
    "MULTIPROCESSOR_COUNT": 16,
    "ASYNC_ENGINE_COUNT": 2,
}


class Misuse(AssertionError):
    """The code under test did what a real device would not forgive."""


class Use(NamedTuple):
    """Bytes that an operation touches."""

    pointer: int
    size: int


class Armed(NamedTuple):
    """One run of an operation, from when it was enqueued: ``check`` is asked just before it runs, ``awaits`` is an
    event and the number of its records that must have passed."""

    check: Optional[Callable[[], None]] = None
    awaits: Tuple[int, int] = (0, 0)


class Operation:
    """Something that a stream is given. ``run`` does it; ``takes_ms`` passes on the device's clock. ``arm`` is called
    when it is enqueued: each time that a graph which holds it is launched."""

    def __init__(
        self,
        name: str,
        run: Callable[[], None],
        uses: Sequence[Use] = (),
        takes_ms: float = 0.0,
        arm: Callable[[], Armed] = Armed,
    ) -> None:
        self.name = name
        self.run = run
        self.uses = tuple(uses)
        self.takes_ms = takes_ms
        self.arm = arm


class Waiting(NamedTuple):
    """An operation in a stream's queue."""

    operation: Operation
    armed: Armed


class Block:
    """One allocation. ``kind``: ``device``, ``pinned`` or ``mapped``."""

    def __init__(self, kind: str, data: np.ndarray, pointer: int) -> None:
        self.kind = kind
        self.data = data
        self.pointer = pointer
        self.live = True


class EventState:
    """``recorded`` counts the records that were enqueued, ``passed`` the ones that ran; ``at_ms`` when the last did."""

    def __init__(self, timing: bool) -> None:
        self.timing = timing
        self.recorded = 0
        self.passed = 0
        self.at_ms = 0.0


def one_at_a_time(double: type) -> type:
    """The class with each of its methods behind the object's lock: any thread may call a driver at any time."""

    def locked(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Any, *arguments: Any, **named: Any) -> Any:
            with self._lock:
                return method(self, *arguments, **named)

        return call

    for name, method in list(vars(double).items()):
        if inspect.isfunction(method) and not name.startswith("__"):
            setattr(double, name, locked(method))
    return double


@one_at_a_time
class CudaDouble:
    """See the module. ``log`` names the calls in order; ``fail`` makes the next call of a name fail with a status."""

    def __init__(
        self,
        devices: int = 1,
        memory_bytes: int = 1 << 30,
        attributes: Optional[Dict[str, int]] = None,
        context_bytes: int = 0,
        group: int = 4,
        green_bytes: int = 0,
        cuda: Tuple[int, int] = (13, 0),
    ) -> None:
        self.cuda = cuda
        self.devices = devices
        self.context_bytes = context_bytes
        self.group = group  # multiprocessors that are not parted; 0: no green contexts here
        self.green_bytes = green_bytes
        self.greens: Dict[int, Tuple[int, ...]] = {}  # green context -> its groups
        self.stream_greens: Dict[int, int] = {}
        self.foreign: Set[int] = set()  # pointers of another context
        self.split = 0  # how often the multiprocessors were split
        self.memory_bytes = memory_bytes
        self.attributes = {**ATTRIBUTES, **(attributes or {})}
        self.log: List[Tuple[Any, ...]] = []
        self.fail: Dict[str, int] = {}
        self.now_ms = 0.0
        self.lost = 0
        self.ran: List[str] = []
        self._numbers = itertools.count(16)
        self._next_pointer = DEVICE_BASE
        self._blocks: Dict[int, Block] = {}
        self._contexts: Dict[int, int] = {}  # device -> how often its primary context is retained
        self._stacks = threading.local()
        self._streams: Dict[int, Deque[Waiting]] = {LEGACY: deque()}
        self._events: Dict[int, EventState] = {}
        self.priorities: Dict[int, int] = {}  # of each stream
        self._blocking: Set[int] = set()  # streams that the default stream waits for, and that wait for it
        self._captures: Dict[int, List[Operation]] = {}  # stream -> what was captured so far
        self._captured_by: Dict[int, int] = {}  # stream -> the thread
        self._joined: Dict[int, Set[int]] = {}  # stream -> other streams that take part in its capture
        self._invalid: Set[int] = set()
        self._graphs: Dict[int, List[Operation]] = {}
        self._executables: Dict[int, List[Operation]] = {}
        self._lock = threading.RLock()

    # --- for tests ---

    def enqueue(
        self, stream: int, name: str, run: Callable[[], None], uses: Sequence[Use] = (), takes_ms: float = 1.0
    ) -> None:
        """Give a stream an operation of the test's own."""
        self._enter("enqueue", name)
        self._give(stream, Operation(name, run, uses, takes_ms))

    def memory_at(self, pointer: int, size: int) -> np.ndarray:
        """The bytes at a device pointer."""
        block = self._block(pointer, size)
        view: np.ndarray = block.data[pointer - block.pointer : pointer - block.pointer + size]
        return view

    def run_all(self) -> None:
        """Let the device finish everything."""
        for stream in list(self._streams):
            while self._streams[stream]:
                if not self._run_one(stream, set()):
                    raise Misuse(f"stream {stream} waits for an event that is never recorded")

    def leaks(self) -> List[str]:
        """The objects that were made and not freed."""
        return sorted(
            [f"{block.kind} memory of {block.data.size} bytes" for block in self._blocks.values() if block.live]
            + [f"stream {number}" for number in self._streams if number != LEGACY]
            + [f"event {number}" for number in self._events]
            + [f"graph {number}" for number in (*self._graphs, *self._executables)]
            + [f"green context {number}" for number in self.greens]
            + [f"context of device {number}" for number in self._contexts]
        )

    def library_stream(self) -> int:
        """A stream that another library made for itself, as cudaStreamCreate does: the default stream waits for it."""
        stream = self.create_stream()
        self._blocking.add(stream)
        return stream

    def use_default_stream(self, name: str) -> List[str]:
        """Another library enqueues on the legacy default stream: the names of what had to run before."""
        for stream in list(self._captures):
            if ({stream} | self._joined.get(stream, set())) & self._blocking:
                self.invalidate(stream)
                raise error_of(
                    name, 906, "operation would make the legacy stream depend on a capturing blocking stream"
                )
        before = len(self.ran)
        for stream in sorted(self._blocking & set(self._streams)):
            while self._streams[stream] and self._run_one(stream, set()):
                pass
        return self.ran[before:]

    def invalidate(self, stream: int) -> None:
        """Something that cannot be captured happened on the stream: its capture, if there is one, holds nothing."""
        if stream in self._captures:
            self._invalid.add(stream)

    def waiting(self, stream: int) -> List[str]:
        """The names of what a stream has not run."""
        return [waiting.operation.name for waiting in self._streams[stream]]

    # --- the device ---

    def version(self) -> Tuple[int, int]:
        return self.cuda

    def device_count(self) -> int:
        self._refuse("device_count")
        return self.devices

    def device_name(self, index: int) -> str:
        return f"double {index}"

    def bus_id(self, index: int) -> str:
        return f"0000:{0x65 - index:02x}:00.0"  # the fastest first, which lies last on the bus

    def attribute(self, index: int, name: str) -> int:
        return self.attributes[name]

    def total_bytes(self, index: int) -> int:
        return self.memory_bytes

    # --- contexts ---

    def retain(self, index: int) -> int:
        self._refuse("retain")
        self._contexts[index] = self._contexts.get(index, 0) + 1
        return CONTEXT + index

    def release(self, index: int, context: int) -> None:
        if context != CONTEXT + index or index not in self._contexts:
            raise Misuse(f"context {context} of device {index} was released and is not retained")
        self._contexts[index] -= 1
        if not self._contexts[index]:
            del self._contexts[index]

    def push(self, context: int) -> None:
        if context - CONTEXT not in self._contexts:
            raise Misuse(f"context {context} was made current after it was released")
        self._stack().append(context)

    def pop(self) -> None:
        if not self._stack():
            raise Misuse("a context was popped that was never pushed on this thread")
        self._stack().pop()

    # --- shares of the multiprocessors ---

    def split_multiprocessors(self, index: int) -> List[Group]:
        self._enter("split_multiprocessors")
        if not self.group:
            raise error_of("cuDeviceGetDevResource", 801, "CUDA_ERROR_NOT_SUPPORTED")
        if self.greens:
            raise Misuse("multiprocessors were split again while a green context of the first split lives")
        self.split += 1
        number = self.attributes["MULTIPROCESSOR_COUNT"] // self.group
        return [Group((self.split, place), self.group) for place in range(number)]

    def create_green(self, index: int, groups: Sequence[Group]) -> int:
        self._enter("create_green")
        places = [group.resource for group in groups]
        if any(split != self.split for split, _ in places):
            raise Misuse("groups of different splits in one descriptor")
        if set(places) & {place for taken in self.greens.values() for place in taken}:
            raise Misuse("two green contexts have the same multiprocessors")
        number = next(self._numbers)
        self.greens[number] = tuple(places)
        return number

    def destroy_green(self, green: int) -> None:
        self._enter("destroy_green", green)
        self._known(self.greens, green, "green context")
        if green in self.stream_greens.values():
            raise Misuse(f"green context {green} was destroyed before its streams")
        del self.greens[green]

    # --- memory ---

    def memory(self) -> Tuple[int, int]:
        self._enter("memory")
        return self.free_bytes(), self.memory_bytes

    def free_bytes(self) -> int:
        """The free memory as a program without a context sees it (on a board: the host's)."""
        used = sum(block.data.size for block in self._blocks.values() if block.live and block.kind == "device")
        contexts = self.context_bytes * len(self._contexts) + self.green_bytes * len(self.greens)
        return self.memory_bytes - used - contexts

    def alloc_device(self, size: int) -> int:
        self._enter("alloc_device", size)
        self._refuse_in_capture("alloc_device")
        if size > self.memory()[0]:
            raise error_of("cuMemAlloc", OUT_OF_MEMORY, "out of memory")
        pointer, self._next_pointer = self._next_pointer, self._next_pointer + -(-(size + GAP) // 256) * 256
        self._blocks[pointer] = Block("device", np.full(size, POISON, np.uint8), pointer)
        return pointer

    def free_device(self, pointer: int) -> None:
        self._free(pointer, ("device",))

    def alloc_host(self, size: int, mapped: bool) -> int:
        self._enter("alloc_host", size, mapped)
        self._refuse_in_capture("alloc_host")
        whole = np.full(size + PAGE, POISON, np.uint8)
        data = whole[-whole.ctypes.data % PAGE :][:size]
        pointer = int(data.ctypes.data)
        self._blocks[pointer] = Block("mapped" if mapped else "pinned", data, pointer)
        return pointer

    def free_host(self, pointer: int) -> None:
        self._free(pointer, ("pinned", "mapped"))

    def context_of(self, pointer: int) -> int:
        return CONTEXT + 99 if pointer in self.foreign else CONTEXT

    def device_pointer(self, host_pointer: int) -> int:
        block = self._blocks.get(host_pointer)
        if block is None or not block.live or block.kind != "mapped":
            raise Misuse(f"{host_pointer:#x} is no mapped host memory")
        return host_pointer  # one address space, as CUDA has on 64 bits

    def copy_to_device(self, to: int, host: int, size: int, stream: int) -> None:
        self._enter("copy_to_device", to, host, size, stream)
        source, target = self._host_block(host, size), self._block(to, size)
        offset = host - source.pointer

        def arm() -> Armed:
            seen = source.data[offset : offset + size].copy()

            def check() -> None:
                if not np.array_equal(seen, source.data[offset : offset + size]):
                    raise Misuse(f"host memory at {host:#x} changed before its copy to the device had run")

            return Armed(check)

        def run() -> None:
            target.data[to - target.pointer : to - target.pointer + size] = source.data[offset : offset + size]

        self._give(stream, Operation("copy_to_device", run, [Use(to, size), Use(host, size)], 0.1, arm))

    def copy_to_host(self, host: int, source: int, size: int, stream: int) -> None:
        self._enter("copy_to_host", host, source, size, stream)
        target, origin = self._host_block(host, size), self._block(source, size)
        offset = host - target.pointer

        def arm() -> Armed:
            target.data[offset : offset + size] = POISON
            return Armed()

        def run() -> None:
            target.data[offset : offset + size] = origin.data[source - origin.pointer : source - origin.pointer + size]

        self._give(stream, Operation("copy_to_host", run, [Use(host, size), Use(source, size)], 0.1, arm))

    def copy_on_device(self, to: int, source: int, size: int, stream: int) -> None:
        self._enter("copy_on_device", to, source, size, stream)
        self._give(
            stream,
            Operation(
                "copy_on_device",
                lambda: self.memory_at(to, size).__setitem__(slice(None), self.memory_at(source, size)),
                [Use(to, size), Use(source, size)],
                0.1,
            ),
        )

    def fill(self, pointer: int, byte: int, size: int, stream: int) -> None:
        self._enter("fill", pointer, byte, size, stream)
        self._give(
            stream, Operation("fill", lambda: self.memory_at(pointer, size).fill(byte), [Use(pointer, size)], 0.1)
        )

    # --- streams ---

    def stream_priorities(self) -> Tuple[int, int]:
        self._enter("stream_priorities")
        return 0, -5

    def create_stream(self, priority: int = 0, green: int = 0) -> int:
        self._enter("create_stream")
        number = next(self._numbers)
        if green:
            self._known(self.greens, green, "green context")
            self.stream_greens[number] = green
        self._streams[number] = deque()
        self.priorities[number] = priority
        return number

    def destroy_stream(self, stream: int) -> None:
        self._enter("destroy_stream", stream)
        if self._queue(stream):
            raise Misuse(f"stream {stream} was destroyed with {len(self._streams[stream])} operations waiting")
        del self._streams[stream]
        self.stream_greens.pop(stream, None)

    def synchronize_stream(self, stream: int) -> None:
        self._enter("synchronize_stream", stream)
        self._refuse_in_capture("synchronize_stream")
        while self._queue(stream):
            self._run_one(stream, set())

    def stream_done(self, stream: int) -> bool:
        self._enter("stream_done", stream)
        if stream in self._captures:
            self.invalidate(stream)
            raise error_of("stream_done", 900, "operation not permitted when stream is capturing")
        if self._queue(stream):
            self._run_one(stream, set())
            return False
        return True

    def stream_wait(self, stream: int, event: int) -> None:
        self._enter("stream_wait", stream, event)
        state = self._event(event)
        self._give(stream, Operation("stream_wait", lambda: None, arm=lambda: Armed(awaits=(event, state.recorded))))

    # --- events ---

    def create_event(self, timing: bool) -> int:
        self._enter("create_event", timing)
        number = next(self._numbers)
        self._events[number] = EventState(timing)
        return number

    def destroy_event(self, event: int) -> None:
        self._enter("destroy_event", event)
        state = self._event(event)
        if state.passed < state.recorded:
            raise Misuse(f"event {event} was destroyed while a stream was still to pass it")
        del self._events[event]

    def record(self, event: int, stream: int) -> None:
        self._enter("record", event, stream)
        state = self._event(event)

        def arm() -> Armed:
            if state.passed < state.recorded:
                raise Misuse(f"event {event} was recorded again before its last record was passed")
            state.recorded += 1
            return Armed()

        def run() -> None:
            state.passed = state.recorded
            state.at_ms = self.now_ms

        self._give(stream, Operation(f"record {event}", run, arm=arm))

    def event_done(self, event: int) -> bool:
        self._enter("event_done", event)
        self._refuse_in_capture("event_done")
        state = self._event(event)
        if state.passed < state.recorded:
            self._run_one(self._stream_of(event), set())
            return False
        return True

    def synchronize_event(self, event: int) -> None:
        self._enter("synchronize_event", event)
        state = self._event(event)
        while state.passed < state.recorded:
            self._run_one(self._stream_of(event), set())

    def elapsed_ms(self, start: int, end: int) -> float:
        self._enter("elapsed_ms", start, end)
        first, last = self._event(start), self._event(end)
        if not (first.timing and last.timing):
            raise Misuse("elapsed_ms of an event that was made without timing")
        for state in (first, last):
            if not state.recorded:
                raise Misuse("elapsed_ms of an event that was never recorded")
            if state.passed < state.recorded:
                raise error_of("cuEventElapsedTime", NOT_READY, "device not ready")
        return float(np.float32(last.at_ms - first.at_ms))

    # --- graphs ---

    def begin_capture(self, stream: int) -> None:
        self._enter("begin_capture", stream)
        if stream in self._captures:
            raise Misuse(f"stream {stream} is being captured already")
        self._queue(stream)
        self._captures[stream] = []
        self._captured_by[stream] = threading.get_ident()

    def end_capture(self, stream: int) -> int:
        captured = self._captures.pop(stream, None)  # before anything can refuse: a capture always ends
        self._joined.pop(stream, None)
        self._enter("end_capture", stream)
        if stream in self._invalid:
            self._invalid.discard(stream)
            raise error_of("cuStreamEndCapture", 901, "operation failed due to a previous error during capture")
        if captured is None:
            raise Misuse(f"stream {stream} is not being captured")
        number = next(self._numbers)
        self._graphs[number] = captured
        return number

    def instantiate(self, graph: int) -> int:
        self._enter("instantiate", graph)
        number = next(self._numbers)
        self._executables[number] = list(self._known(self._graphs, graph, "graph"))
        return number

    def launch(self, executable: int, stream: int) -> None:
        self._enter("launch", executable, stream)
        for operation in self._known(self._executables, executable, "executable graph"):
            for use in operation.uses:
                self._any_block(use.pointer, use.size)
            self._give(stream, operation)

    def destroy_graph(self, graph: int) -> None:
        self._enter("destroy_graph", graph)
        self._known(self._graphs, graph, "graph")
        del self._graphs[graph]

    def destroy_executable(self, executable: int) -> None:
        self._enter("destroy_executable", executable)
        operations = self._known(self._executables, executable, "executable graph")
        for queue in self._streams.values():
            if any(waiting.operation in operations for waiting in queue):
                raise Misuse(f"executable graph {executable} was destroyed while a stream was still to run it")
        del self._executables[executable]

    # --- the machinery ---

    def _enter(self, call: str, *arguments: Any) -> None:
        self.log.append((call, *arguments))
        if not self._stack():
            raise Misuse(f"{call} without a current context on thread {threading.current_thread().name}")
        self._refuse(call)

    def _refuse(self, call: str) -> None:
        status = self.lost or self.fail.pop(call, 0)
        if status:
            raise error_of(call, status, f"planted status {status}")

    def _refuse_in_capture(self, call: str) -> None:
        """The mode of captures is thread-local: what other threads do is not refused, and does no harm."""
        own = [stream for stream in self._captures if self._captured_by[stream] == threading.get_ident()]
        for stream in own:
            self.invalidate(stream)
        if own:
            raise error_of(call, 900, "operation not permitted when stream is capturing")

    def _stack(self) -> List[int]:
        stack: Optional[List[int]] = getattr(self._stacks, "stack", None)
        if stack is None:
            stack = self._stacks.stack = []
        return stack

    def _give(self, stream: int, operation: Operation) -> None:
        queue = self._queue(stream)
        if stream in self._invalid:
            raise error_of(operation.name, 901, "operation failed due to a previous error during capture")
        if stream in self._captures:
            self._captures[stream].append(operation)
        else:
            queue.append(Waiting(operation, operation.arm()))

    def _run_one(self, stream: int, seen: Set[int]) -> bool:
        """Run the first operation of a stream, or first of the stream that it waits for. False: it waits for ever."""
        if stream in seen:
            return False
        queue = self._queue(stream)
        operation, armed = queue[0]
        event, wanted = armed.awaits
        if event and event in self._events and self._events[event].passed < wanted:
            return self._run_one(self._stream_of(event), seen | {stream})
        queue.popleft()
        for use in operation.uses:
            self._any_block(use.pointer, use.size)
        if armed.check is not None:
            armed.check()
        self.now_ms += operation.takes_ms
        operation.run()
        self.ran.append(operation.name)
        return True

    def _stream_of(self, event: int) -> int:
        for stream, queue in self._streams.items():
            if any(waiting.operation.name == f"record {event}" for waiting in queue):
                return stream
        raise Misuse(f"event {event} is waited for, and no stream is to pass it")

    def _queue(self, stream: int) -> Deque[Waiting]:
        return self._known(self._streams, stream, "stream")

    def _event(self, event: int) -> EventState:
        return self._known(self._events, event, "event")

    def _known(self, table: Dict[int, Any], number: int, what: str) -> Any:
        if number not in table:
            raise Misuse(f"{what} {number} was used after it was destroyed, or never made")
        return table[number]

    def _block(self, pointer: int, size: int) -> Block:
        """The live memory that the device sees at ``pointer``."""
        block = self._any_block(pointer, size)
        if block.kind == "pinned":
            raise Misuse(f"{pointer:#x} is page-locked host memory, which the device cannot use in place")
        return block

    def _host_block(self, pointer: int, size: int) -> Block:
        block = self._any_block(pointer, size)
        if block.kind == "device":
            raise Misuse(f"{pointer:#x} is device memory; a host pointer was expected")
        return block

    def _any_block(self, pointer: int, size: int) -> Block:
        for block in self._blocks.values():
            if block.pointer <= pointer < block.pointer + max(block.data.size, 1):
                if not block.live:
                    raise Misuse(f"{block.kind} memory at {pointer:#x} was used after it was freed")
                if pointer + size > block.pointer + block.data.size:
                    raise Misuse(f"{size} bytes at {pointer:#x} reach beyond {block.kind} memory of {block.data.size}")
                return block
        raise Misuse(f"{pointer:#x} points to no memory that was allocated")

    def _free(self, pointer: int, kinds: Tuple[str, ...]) -> None:
        self._enter("free", pointer)
        self._refuse_in_capture("free")
        block = self._blocks.get(pointer)
        if block is None or block.kind not in kinds:
            raise Misuse(f"{pointer:#x} was freed and is no start of {' or '.join(kinds)} memory")
        if not block.live:
            raise Misuse(f"{block.kind} memory at {pointer:#x} was freed twice")
        for stream, queue in self._streams.items():
            for operation, _ in queue:
                if any(
                    block.pointer <= use.pointer < block.pointer + max(block.data.size, 1) for use in operation.uses
                ):
                    raise Misuse(
                        f"{block.kind} memory at {pointer:#x} was freed while {operation.name!r} waits on "
                        f"stream {stream}"
                    )
        block.live = False
        block.data.fill(POISON)  # the host's array stays alive: a late reader sees poison, not a crash
