"""Finding the TensorRT library, and keeping what it logs.

``tensorrt`` (8.5 to 11) and ``tensorrt_rtx`` (TensorRT for RTX: desktop GPUs) have the same interface; what differs is
:mod:`edgeserve.engines.tensorrt.versions`'. TensorRT reports failures as ``None`` or ``False`` and says why in its log
alone, so every call goes with a :class:`Log` whose last words become the error's text.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import logging
import sys
import threading
from collections import deque
from typing import Any, Deque, Dict, List, NamedTuple, Sequence, Tuple

from edgeserve.engines.tensorrt.build_errors import LibraryMissing
from edgeserve.engines.tensorrt.settings import LIBRARIES
from edgeserve.engines.tensorrt.versions import Api
from edgeserve.units import NS_PER_MS

log = logging.getLogger("edgeserve.tensorrt")

LINES_KEPT = 32
"""Lines of the library's log that are kept for error messages."""

INSTALL_MEND = (
    "on a Jetson: sudo apt install tensorrt python3-libnvinfer, and a venv of the system's Python with "
    "--system-site-packages; on a desktop GPU: pip install tensorrt, or pip install "
    "'edgeserve-runtime[tensorrt-rtx]'"
)


class Library(NamedTuple):
    """An imported library: its module's name, what it has, and its log."""

    name: str
    api: Api
    log: Any

    @property
    def trt(self) -> Any:
        """The module."""
        return self.api.trt

    @property
    def version(self) -> str:
        """Its own word for its version: ``10.3.0``."""
        return self.api.version

    def new_context(self, engine: Any, runtime: Any = None) -> Any:
        """An execution context without memory of its own; ``None`` on failure, which :meth:`why` explains. ``runtime``:
        the runtime's configuration (TensorRT-RTX). TensorRT 8
        gives the first one profile 0 by itself and logs an error for each further one, which goes on well once its
        profile is selected: no later failure is to quote that."""
        context = self.api.create_context(engine, runtime)
        if context is not None:
            self.log.take_errors()
        return context

    def why(self, otherwise: str) -> str:
        """The library's last words on errors, for a message; ``otherwise`` without any."""
        return "; ".join(self.log.take_errors()) or otherwise


def open_library(choice: str) -> Library:
    """The library of ``choice``: a name of :data:`LIBRARIES` or ``"auto"``. Raises :class:`LibraryMissing` with what
    was tried, why each failed, and what to install."""
    tried: List[str] = []
    for name in LIBRARIES if choice == "auto" else (choice,):
        try:
            trt = importlib.import_module(name)
        except (ImportError, OSError, RuntimeError) as error:  # a broken installation raises the latter two
            tried.append(f"{name}: {error}")
            continue
        library = Library(name, Api(trt), _make_log(trt))
        _register_plugins(library)
        return library
    raise LibraryMissing(f"TensorRT cannot be imported ({'; '.join(tried)}); {INSTALL_MEND}")


def load_plugins(paths: Sequence[str], where: str) -> None:
    """Load libraries of plugins of one's own, which register themselves: before a network is parsed and before a plan
    is loaded. Raises :class:`LibraryMissing`."""
    for path in paths:
        try:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise LibraryMissing(
                f"{where}: the plugins in {path} cannot be loaded ({error}); build them for this release of "
                "TensorRT, and install what they need"
            ) from None


def check_installed(choice: str) -> None:
    """Raise :class:`LibraryMissing` where the library of ``choice`` is not there. It is not imported."""
    names = LIBRARIES if choice == "auto" else (choice,)
    for name in names:
        with contextlib.suppress(ImportError):  # of a package that is there in part
            if name in sys.modules or importlib.util.find_spec(name) is not None:
                return
    raise LibraryMissing(f"TensorRT cannot be imported (no module {' or '.join(names)}); {INSTALL_MEND}")


def _register_plugins(library: Library) -> None:
    """TensorRT's own plugins (``EfficientNMS_TRT`` and others), which exported detectors and plans name. They are
    found after this call alone; TensorRT-RTX has the call and none of the plugins."""
    register = getattr(library.trt, "init_libnvinfer_plugins", None)
    if register is not None:
        register(library.log, "")


def layer_recorder(library: Library) -> Any:
    """A profiler of the library's own type; ``times`` has (layer, nanoseconds) of each run, in turn."""

    class LayerTimes(library.trt.IProfiler):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            library.trt.IProfiler.__init__(self)
            self.times: List[Tuple[str, int]] = []

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.times.append((layer_name, int(ms * NS_PER_MS)))

    return LayerTimes()


def output_places(library: Library) -> Any:
    """An allocator of the library's own type, for outputs whose shape depends on values. ``places`` are the memory that
    each may have, as ``(pointer, bytes)``; ``shapes`` what TensorRT has told while it enqueued."""

    class OutputPlaces(library.trt.IOutputAllocator):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            library.trt.IOutputAllocator.__init__(self)
            self.places: Dict[str, Tuple[int, int]] = {}
            self.shapes: Dict[str, Tuple[int, ...]] = {}

        def reallocate_output(self, tensor_name: str, memory: Any, size: int, alignment: int) -> int:
            pointer, bound = self.places[tensor_name]
            return pointer if size <= bound else 0  # the enqueue then fails

        def reallocate_output_async(self, tensor_name: str, memory: Any, size: int, alignment: int, stream: int) -> int:
            return self.reallocate_output(tensor_name, memory, size, alignment)

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            self.shapes[tensor_name] = tuple(int(dim) for dim in shape)

    return OutputPlaces()


def _make_log(trt: Any) -> Any:
    """A logger of the library's own type, which hands on its lines: warnings to this package's log, errors to
    :meth:`Library.why`. TensorRT calls it from threads of its own."""
    severities = {int(getattr(trt.ILogger, name)): level for name, level in _LEVELS}

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self._lock = threading.Lock()
            self._errors: Deque[str] = deque(maxlen=LINES_KEPT)

        def log(self, severity: Any, message: str) -> None:
            level = severities.get(int(severity), logging.DEBUG)
            if level >= logging.ERROR:
                with self._lock:
                    self._errors.append(" ".join(message.split()))
            log.log(logging.DEBUG if level < logging.WARNING else logging.INFO, "%s", message)

        def take_errors(self) -> List[str]:
            """The errors since the last time, oldest first."""
            with self._lock:
                taken = list(dict.fromkeys(self._errors))
                self._errors.clear()
            return taken

    return Log()


_LEVELS: Tuple[Tuple[str, int], ...] = (
    ("INTERNAL_ERROR", logging.ERROR),
    ("ERROR", logging.ERROR),
    ("WARNING", logging.WARNING),
    ("INFO", logging.DEBUG),
    ("VERBOSE", logging.DEBUG),
)
