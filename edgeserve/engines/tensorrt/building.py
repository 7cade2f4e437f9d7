"""The parent's side of a build: start the process, show its progress, bound its memory and time, read its answer.

The memory is measured, not limited by the kernel: CUDA reserves far more address space than it uses, so a limit on
address space (``RLIMIT_AS``) would end every build. The process tells the time; this module has no clock.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Sequence

import psutil

from edgeserve.child import Child, how_it_ended, safe_environment
from edgeserve.control_groups import ControlGroups
from edgeserve.engines.tensorrt.build_errors import KINDS, BuildFailed, BuildOutOfMemory
from edgeserve.engines.tensorrt.settings import BuildRequest
from edgeserve.errors import EngineError
from edgeserve.units import NS_PER_S, format_duration, format_size
from edgeserve.waits import readable_files

log = logging.getLogger("edgeserve.tensorrt")

LOOK_S = 0.2
"""Seconds between two looks at the process's memory."""

MEMORY_FLOOR_BYTES = 128 << 20
"""The host's free memory under which the build is ended: below it a board begins to kill processes of its choice."""

SILENT_LOOKS_MAX = 300
"""Looks (one minute) without a line and without work, after which the process counts as hung. It writes a line per
second, but for the library's calls that keep the interpreter's lock."""

BUSY_SHARE = 0.2
"""A process that works uses so much of a core. One whose main thread hangs and keeps the interpreter's lock uses a
hundredth (a tenth, emulated), since its other thread asks for the lock two hundred times a second."""

LINES_KEPT, LAST_CHARS = 20, 2000
"""The last lines of the process that are kept, and their most characters in a message."""

MODULE = "edgeserve.engines.tensorrt.build_process"


class BuildLimits(NamedTuple):
    """Bounds of one build. ``memory_bytes`` 0: only the host's free memory counts."""

    memory_bytes: int
    timeout_ns: int


class BuildProgress(NamedTuple):
    """The progress of a build: ``share`` of ``phase``, 0 to 1, and the seconds since it began. It is told while the
    process says something, or works."""

    phase: str
    share: float
    elapsed_s: float


Tell = Callable[[BuildProgress], None]


def build_plan(
    library: str,
    request: BuildRequest,
    where: str,
    plan: str,
    timing_cache: str,
    limits: BuildLimits,
    tell: Tell,
    device_index: int = 0,
    free_bytes: Optional[Callable[[], int]] = None,
    gpu_bytes: Optional[Callable[[], int]] = None,
) -> Dict[str, Any]:
    """Build a plan into the file ``plan``; what the process says of it (version, profiles, layers, build_s).

    ``timing_cache`` is a file that is read and written, ``""`` for none; ``device_index`` is CUDA's; ``free_bytes``
    reads the host's available memory, ``gpu_bytes`` what the GPU has of it. Raises the process's error as it was,
    :class:`BuildOutOfMemory` when a bound or the kernel ended it, else :class:`BuildFailed` with its last words.
    """
    asked = {
        "library": library,
        "request": request._asdict(),
        "where": where,
        "plan": plan,
        "timing_cache": timing_cache,
    }
    child = Child(
        ["-m", MODULE],
        environment_of(device_index, safe_environment()),
        stdout=subprocess.PIPE,
        lines=LINES_KEPT,
    )
    try:
        watch = _Watch(child, where, limits, tell, free_bytes or _left_bytes, gpu_bytes or nvmap_bytes)
        answer = watch.until_answered(asked)
        status = child.end()
    finally:
        child.kill()
        assert child.process.stdout is not None, "it is a pipe"
        child.process.stdout.close()
    if answer is None:
        raise _ended(status, child.last_lines(), where)
    if "built" in answer:
        built: Dict[str, Any] = answer["built"]
        return built
    raise KINDS.get(answer.get("error", ""), EngineError)(str(answer.get("message")))


def environment_of(device_index: int, environment: Mapping[str, str]) -> Dict[str, str]:
    """The environment of the process that builds: it sees the one GPU that it builds for, since the builder takes the
    first that it sees."""
    made = dict(environment)
    seen = [item for item in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if item]
    if device_index or len(seen) > 1:
        made["CUDA_VISIBLE_DEVICES"] = seen[device_index] if device_index < len(seen) else str(device_index)
    return made


class _Watch:
    """Reads one process's lines and ends it when it passes a bound."""

    def __init__(
        self,
        child: Child,
        where: str,
        limits: BuildLimits,
        tell: Tell,
        free_bytes: Callable[[], int],
        gpu_bytes: Callable[[], int],
    ) -> None:
        self._child = child
        self._where = where
        self._limits = limits
        self._tell = tell
        self._free_bytes = free_bytes
        self._gpu_bytes = gpu_bytes
        self._gpu_before = gpu_bytes()
        self._rest = b""
        self._last = BuildProgress("start", 0.0, 0.0)
        self._silent_s = 0.0
        self._busy_s = 0.0

    def until_answered(self, asked: Dict[str, Any]) -> Optional[Dict[str, Any]]:
        """Its last line; ``None`` when it ended without one."""
        process = self._child.process
        assert process.stdout is not None, "it is a pipe"
        try:
            self._child.hand(json.dumps(asked).encode())
        except BrokenPipeError:
            return None
        idle = 0
        while True:
            has_said = readable_files((process.stdout.fileno(),), round(LOOK_S * NS_PER_S))
            self._check_memory()
            if not has_said:
                self._silent_s += LOOK_S
                idle += 1
                if self._has_worked(idle):
                    idle = 0
                    self._tell(self._last._replace(elapsed_s=self._last.elapsed_s + self._silent_s))
                self._check_time()
                if idle > SILENT_LOOKS_MAX:
                    raise BuildFailed(
                        f"{self._where}: the process that builds has said and done nothing for "
                        f"{SILENT_LOOKS_MAX * LOOK_S:.0f} s; it was ended. Try again; if it hangs again, "
                        "run the model with engine = 'onnx'"
                    )
                continue
            idle, self._silent_s = 0, 0.0
            self._has_worked(0)  # counts from here
            chunk = os.read(process.stdout.fileno(), 65536)
            if not chunk:
                return None
            answer = self._lines(chunk)
            if answer is not None:
                return answer

    def _lines(self, chunk: bytes) -> Optional[Dict[str, Any]]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for text in lines:
            line = json.loads(text)
            if "phase" not in line:
                answer: Dict[str, Any] = line
                return answer
            self._last = BuildProgress(line["phase"], float(line["share"]), float(line["elapsed_s"]))
            self._tell(self._last)
        self._check_time()
        return None

    def _has_worked(self, looks: int) -> bool:
        """True if the process used a share of a core in the last so many looks, in none of which it had."""
        try:
            times = psutil.Process(self._child.pid).cpu_times()
        except psutil.Error:
            return False
        busy_s = float(times.user + times.system)
        if busy_s - self._busy_s < BUSY_SHARE * LOOK_S * looks:
            return False
        self._busy_s = busy_s
        return True

    def _check_time(self) -> None:
        if (self._last.elapsed_s + self._silent_s) * NS_PER_S > self._limits.timeout_ns:
            raise BuildFailed(
                f"{self._where}: the build took longer than options.build_timeout = "
                f"{format_duration(self._limits.timeout_ns)} and was ended. Raise that option, lower "
                "options.optimization_level, or build fewer batch sizes"
            )

    def _check_memory(self) -> None:
        try:
            used = psutil.Process(self._child.pid).memory_info().rss
        except psutil.Error:
            return  # it has ended; its answer is read next
        # On a board what CUDA allocates is the host's memory, and counts in no process's resident memory.
        used += max(0, self._gpu_bytes() - self._gpu_before)
        limit = self._limits.memory_bytes
        if limit and used > limit:
            raise BuildOutOfMemory(
                f"{self._where}: the build uses {format_size(used)}, more than options.build_memory "
                f"= {format_size(limit)}; it was ended. Raise that option, lower options.workspace, "
                "or build fewer batch sizes",
                used,
                limit,
            )
        free = self._free_bytes()
        if free < MEMORY_FLOOR_BYTES:
            raise BuildOutOfMemory(
                f"{self._where}: {format_size(free)} of memory are free while the build uses "
                f"{format_size(used)}; it was ended before the system ends something else. Stop "
                "other programs (the desktop), add swap on disk, or build fewer batch sizes",
                used,
                free,
            )


def _ended(status: int, lines: Sequence[str], where: str) -> EngineError:
    """The error for a process that ended without an answer."""
    said = f" It said last: {' '.join(lines)[-LAST_CHARS:]}" if lines else ""
    if status == -signal.SIGKILL:
        return BuildOutOfMemory(
            f"{where}: the process that builds was killed, most likely by the system because "
            "memory ran out (dmesg tells). Stop other programs (the desktop), add swap on disk, "
            f"lower options.workspace, or build fewer batch sizes.{said}"
        )
    return BuildFailed(f"{where}: the process that builds ended without an answer ({how_it_ended(status)}).{said}")


def nvmap_bytes(path: str = "/proc/meminfo") -> int:
    """The bytes of the host's memory that the GPU and other units of a Jetson have, by its kernel; 0 where it reports
    none (Thor, desktops)."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            found = re.search(r"^NvMapMemUsed:\s+(\d+) kB", file.read(), re.MULTILINE)
    except OSError:
        return 0
    return int(found.group(1)) << 10 if found else 0


def _left_bytes() -> int:
    """The bytes that the process which builds can still have."""
    group = ControlGroups().memory_free_bytes()
    return available_bytes() if group is None else min(available_bytes(), group)


def available_bytes() -> int:
    """The bytes that programs of the host can still have."""
    return int(psutil.virtual_memory().available)
