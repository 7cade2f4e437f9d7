"""The CUDA calls that engines need, as one small protocol, and the choice of the library that makes them.

Handles and pointers are plain integers, sizes are bytes, priorities are CUDA's (lower is more urgent). Calls that take
no device need a current context on the calling thread. Failures are those of
:func:`edgeserve.engines.cuda.errors.error_of`.
"""

from __future__ import annotations

import importlib
from typing import Any, Dict, Protocol, Tuple

from edgeserve.errors import ConfigError, DeviceMissing, EngineError, nearest


class Driver(Protocol):
    """What an adapter of a CUDA library offers. Knows no tensor and no engine."""

    name: str
    """The library's name, as ``options.cuda`` has it."""

    graphs: bool
    """Whether the library can capture and launch CUDA graphs."""

    def version(self) -> Tuple[int, int]:
        """The CUDA version that the driver supports: ``(12, 6)``."""

    def device_count(self) -> int:
        """How many devices there are."""

    def device_name(self, index: int) -> str:
        """The device's name: ``"Orin"``."""

    def attribute(self, index: int, name: str) -> int:
        """A device attribute, named as in ``CU_DEVICE_ATTRIBUTE_*`` without that prefix."""

    def total_bytes(self, index: int) -> int:
        """The device's memory."""

    # --- contexts ---

    def retain(self, index: int) -> int:
        """A handle of the device's primary context, kept alive until :meth:`release`."""

    def release(self, index: int, context: int) -> None:
        """Give back one :meth:`retain`."""

    def push(self, context: int) -> None:
        """Make the context current on the calling thread."""

    def pop(self) -> None:
        """Make the context before it current again."""

    # --- memory ---

    def memory(self) -> Tuple[int, int]:
        """Free and total bytes of the current context's device."""

    def alloc_device(self, size: int) -> int:
        """A device pointer, aligned to 256 bytes at least."""

    def free_device(self, pointer: int) -> None:
        """Free what :meth:`alloc_device` gave."""

    def alloc_host(self, size: int, mapped: bool) -> int:
        """A host pointer to page-locked memory; ``mapped``: the device can use it in place."""

    def free_host(self, pointer: int) -> None:
        """Free what :meth:`alloc_host` gave."""

    def device_pointer(self, host_pointer: int) -> int:
        """The device's pointer to mapped host memory."""

    def copy_to_device(self, to: int, host: int, size: int, stream: int) -> None:
        """Enqueue a copy from host to device memory."""

    def copy_to_host(self, host: int, source: int, size: int, stream: int) -> None:
        """Enqueue a copy from device to host memory."""

    def copy_on_device(self, to: int, source: int, size: int, stream: int) -> None:
        """Enqueue a copy within the device."""

    def fill(self, pointer: int, byte: int, size: int, stream: int) -> None:
        """Enqueue setting every byte of device memory."""

    # --- streams ---

    def create_stream(self, priority: int) -> int:
        """A stream that does not wait for the default stream."""

    def destroy_stream(self, stream: int) -> None:
        """Destroy it; what was enqueued still runs."""

    def synchronize_stream(self, stream: int) -> None:
        """Wait until everything enqueued is over."""

    def stream_done(self, stream: int) -> bool:
        """Whether everything enqueued is over."""

    def stream_wait(self, stream: int, event: int) -> None:
        """What is enqueued from now on waits for the event's last record."""

    # --- events ---

    def create_event(self, timing: bool, blocking: bool) -> int:
        """An event; ``timing``: for :meth:`elapsed_ms`; ``blocking``: a thread that waits for it sleeps."""

    def destroy_event(self, event: int) -> None:
        """Destroy it."""

    def record(self, event: int, stream: int) -> None:
        """Enqueue the event: it is done when everything enqueued before it is."""

    def event_done(self, event: int) -> bool:
        """Whether the last record is over (also when there was none)."""

    def synchronize_event(self, event: int) -> None:
        """Wait for the last record."""

    def elapsed_ms(self, start: int, end: int) -> float:
        """Milliseconds between two records that are over."""

    # --- graphs ---

    def begin_capture(self, stream: int) -> None:
        """What this thread enqueues on the stream is recorded from now on and does not run. Other threads go on
        (the mode is thread-local)."""

    def end_capture(self, stream: int) -> int:
        """The captured graph."""

    def instantiate(self, graph: int) -> int:
        """An executable graph, which does not need ``graph`` any more."""

    def launch(self, executable: int, stream: int) -> None:
        """Enqueue an executable graph."""

    def destroy_graph(self, graph: int) -> None:
        """Destroy what :meth:`end_capture` gave."""

    def destroy_executable(self, executable: int) -> None:
        """Destroy what :meth:`instantiate` gave; it is not running."""


DRIVERS: Dict[str, str] = {
    "cuda-bindings": "edgeserve.engines.cuda.by_bindings",
    "pycuda": "edgeserve.engines.cuda.by_pycuda",
}
"""Library -> the module of its adapter, which has ``make() -> Driver``; in the order in which they are tried."""

INSTALL_MEND = (
    "pip install 'edgeserve-runtime[gpu]' (cuda-bindings, Python 3.10 and later), or on JetPack 5 "
    "pip install pycuda with nvcc on the PATH"
)

_open: Dict[str, Any] = {}


def open_driver(choice: str = "auto") -> Driver:
    """The adapter of ``choice``: a name of :data:`DRIVERS`, or ``"auto"`` for the first that is installed. One per
    process and library.

    Raises :class:`ConfigError` for another name, :class:`DeviceMissing` when no library is installed, or the driver is
    missing or too old.
    """
    if choice != "auto" and choice not in DRIVERS:
        raise ConfigError(f"options.cuda = {choice!r} is no library for CUDA{nearest(choice, (*DRIVERS, 'auto'))}")
    missing = []
    for name in DRIVERS if choice == "auto" else (choice,):
        try:
            return _opened(name)
        except ImportError as error:
            missing.append(f"{name}: {error}")
    raise DeviceMissing(f"no library for CUDA can be imported ({'; '.join(missing)}); {INSTALL_MEND}")


def _opened(name: str) -> Driver:
    if name not in _open:
        _open[name] = importlib.import_module(DRIVERS[name]).make()
    driver: Driver = _open[name]
    return driver


def is_available(choice: str = "auto") -> bool:
    """Whether a library and a device are there: for tests and scripts that can do without."""
    try:
        return open_driver(choice).device_count() > 0
    except EngineError:
        return False
