"""The settings of a session of ONNX Runtime: threads, optimisation, entries of its own configuration, custom operators.

For every engine that runs ONNX Runtime. Making the session is theirs, within :func:`making`.
"""

from __future__ import annotations

import importlib
import os
import re
import threading
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterable, List, Mapping, NamedTuple, Tuple, TypeVar

import onnxruntime

from edgeserve.config.files import Remembered, file_sha256, resolve_path
from edgeserve.engines.base import LaneInfo
from edgeserve.engines.denormals import flushing
from edgeserve.engines.niceness import made_yielding
from edgeserve.engines.options import Options
from edgeserve.errors import ConfigError, EngineError, did_you_mean, nearest

Made = TypeVar("Made")

LOG_FATAL_ONLY = 4
"""ONNX Runtime's severity from which it prints: what fails is raised here, and need not be said twice."""

SESSION_OPTIONS = ("session", "optimization_level", "custom_ops", "spin", "shrink")
"""The options of a model that :func:`read_form` reads."""

LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}

ELSEWHERE = {
    "session.intra_op.allow_spinning": "options.spin",
    "session.intra_op_thread_affinities": "[lane.NAME] cores",
    "session.intra_op_num_threads": "options.threads",
    "session.graph_optimization_level": "options.optimization_level",
    "session.set_denormal_as_zero": "every lane",
    "memory.enable_memory_arena_shrinkage": "options.shrink",
}
"""Entries of ONNX Runtime that EdgeServe sets by a key of its own."""

ENTRY = re.compile(rb"\0((?:session|optimization|memory|mlas)\.[a-z0-9_.]+)(?=\0)", re.IGNORECASE)
"""The name of an entry as it stands in ONNX Runtime's library, in the areas that are its own: ``ep.`` is also that of
providers in other libraries."""


class OnnxThreads(NamedTuple):
    """The threads of one session, the cores that they are pinned to, how far they yield to others, and whether denormal
    numbers count as 0 on them."""

    number: int
    cores: Tuple[int, ...] = ()
    nice: int = 0
    flush: bool = False


class SessionForm(NamedTuple):
    """The configuration of a model's sessions. ``custom_ops`` are paths of libraries; ``shrinks``: memory goes
    back to the system after inputs that are unusually large."""

    spin: bool = False
    level: str = ""
    entries: Tuple[Tuple[str, str], ...] = ()
    custom_ops: Tuple[str, ...] = ()
    shrinks: bool = True

    def content(self) -> Dict[str, Any]:
        """The settings that change the computed graph, for caches of engines that providers build from it."""
        return {"level": self.level, "entries": self.entries, "custom_ops": list(map(file_sha256, self.custom_ops))}


DEFAULT_FORM = SessionForm()


def threads_of(lane: LaneInfo, number: int = 0) -> OnnxThreads:
    """The threads of a session for a lane: its own number unless another is given."""
    return OnnxThreads(number or lane.threads, lane.cores, lane.nice, lane.flush)


def read_form(options: Options, directory: str) -> SessionForm:
    """The options, checked: :class:`ConfigError` with the key, the value and what was expected."""
    level = options.text("optimization_level")
    known = [name for name, constant in LEVELS.items() if hasattr(onnxruntime.GraphOptimizationLevel, constant)]
    if level and level not in known:
        raise ConfigError(f"{options.where('optimization_level')} = {level!r}{nearest(level, known)}")
    entries = options.table("session")
    check_entries(entries, options.where("session"))
    return SessionForm(
        options.boolean("spin", False),
        level,
        tuple([(key, _text(value, f"{options.where('session')}.'{key}'")) for key, value in entries.items()]),
        tuple([_library(name, directory, options.where("custom_ops")) for name in options.texts("custom_ops")]),
        options.boolean("shrink", True),
    )


def check_entries(names: Iterable[str], where: str) -> None:
    """Refuse entries that another key sets, and those of ONNX Runtime's own areas that its library does not have."""
    for name in names:
        if name in ELSEWHERE:
            raise ConfigError(f"{where} has {name!r}, which {ELSEWHERE[name]} sets; leave it out")
        known = known_entries()
        begun = [entry for entry in known if entry == name or entry.endswith(".") and name.startswith(entry)]
        if not begun and name.partition(".")[0] in {entry.partition(".")[0] for entry in known}:
            raise ConfigError(
                f"{where} has {name!r}, which onnxruntime {onnxruntime.__version__} does not know"
                f"{did_you_mean(name, known)}"
            )


def known_entries() -> List[str]:
    """The names of entries in ONNX Runtime's library; none where it cannot be read."""
    try:
        return _entries_in(importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state").__file__ or "")
    except (ImportError, OSError):
        return []


def _read_entries(path: str) -> List[str]:
    with open(path, "rb") as file:
        return sorted({name.decode() for name in ENTRY.findall(file.read())})


_entries_in = Remembered(_read_entries)


def _text(value: Any, where: str) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, (str, int, float)):
        return str(value)
    raise ConfigError(f"{where} = {value!r}: expected a string, a number, or true or false")


def _library(name: str, directory: str, where: str) -> str:
    """The path of a library of operators: a file, or that of a package which tells it (``onnxruntime_extensions``)."""
    path = resolve_path(name, directory)
    if os.path.isfile(path):
        return path
    if not name.isidentifier():
        raise ConfigError(f"{where}: there is no file {path}; expected a library of operators (.so)")
    try:
        found: str = importlib.import_module(name).get_library_path()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{where}: {name!r} is neither a file in {directory} nor a package with get_library_path() ({error}); "
            "for onnxruntime_extensions: pip install onnxruntime-extensions"
        ) from None
    return found


def session_options(threads: OnnxThreads, form: SessionForm = DEFAULT_FORM, profile: str = "") -> Any:
    """The options of one session; ``profile``: how the files begin into which it writes the times of its nodes. Raises
    :class:`EngineError` where a library of operators cannot be loaded."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads.number
    settings.inter_op_num_threads = 1
    settings.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    settings.log_severity_level = LOG_FATAL_ONLY
    settings.add_session_config_entry("session.intra_op.allow_spinning", "1" if form.spin else "0")
    settings.add_session_config_entry("session.set_denormal_as_zero", "1" if threads.flush else "0")
    affinities = thread_affinities(threads.number, threads.cores)
    if affinities:
        settings.add_session_config_entry("session.intra_op_thread_affinities", affinities)
    if profile:
        settings.enable_profiling, settings.profile_file_prefix = True, profile
    if form.level:
        settings.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, LEVELS[form.level])
    for key, value in form.entries:
        settings.add_session_config_entry(key, value)
    for path in form.custom_ops:
        try:
            settings.register_custom_ops_library(path)
        except Exception as error:  # ONNX Runtime raises types of its own, one per status code
            raise EngineError(
                f"options.custom_ops: {path} cannot be loaded by onnxruntime {onnxruntime.__version__}: "
                f"{' '.join(str(error).split())}"
            ) from error
    return settings


def making(threads: OnnxThreads, make: Callable[[], Made]) -> Made:
    """The result of ``make()``: a session, whose own threads yield and flush as told. ONNX Runtime also sets the thread
    that makes its first session to flush; that one is as it was."""
    with flushing(threads.flush):
        return made_yielding(threads.nice, make)


def thread_affinities(threads: int, cores: Tuple[int, ...]) -> str:
    """ONNX Runtime's setting that pins the threads it makes itself (all but the caller's, which the lane pins); empty
    where there is nothing to pin. It counts processors from 1."""
    cores_allowed = [core for core in cores if core < (os.cpu_count() or 1)]
    if threads < 2 or not cores_allowed:
        return ""
    return ";".join(str(cores_allowed[(index + 1) % len(cores_allowed)] + 1) for index in range(threads - 1))


RUNS_KEPT = 32
"""The number of runs whose sizes are remembered."""

USUAL_RUNS = 3
"""A size is usual that so many of them have, or exceed."""

UNUSUAL_FACTOR = 2
"""ONNX Runtime's arena keeps the largest run's memory. More than this many times the usual size is given back."""


class Arena:
    """When the memory of a session should go back to the system: after a run that was unusually large, and when runs
    have become smaller. ``usual_bytes``: of inputs that the configuration declares. Any thread may ask."""

    def __init__(self, usual_bytes: int) -> None:
        self._usual_bytes = usual_bytes
        self._sizes: Deque[int] = deque(maxlen=RUNS_KEPT)
        self._kept_bytes = 0  # of the largest run since memory was given back
        self._lock = threading.Lock()

    def gives_back_after(self, feeds: Mapping[str, Any]) -> bool:
        """True if the run of these inputs, which comes now, should end with it."""
        size = sum([array.nbytes for array in feeds.values()])
        with self._lock:
            self._sizes.append(size)
            largest = sorted(self._sizes)[-USUAL_RUNS:]
            usual = max(self._usual_bytes, largest[0])
            self._kept_bytes = max(self._kept_bytes, size)
            if self._kept_bytes <= UNUSUAL_FACTOR * usual:
                return False
            self._kept_bytes = usual
            return True


def giving_back() -> Any:
    """The options of a run that ends with giving the arena's memory back to the system."""
    settings = onnxruntime.RunOptions()
    settings.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return settings
