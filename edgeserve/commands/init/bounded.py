"""The child process in which ``edgeserve init`` reads and runs model files: a file may be made to take any time and
memory.

The memory in use is watched from outside: a limit of addresses, which the system has, would keep CUDA from starting.
"""

from __future__ import annotations

import os
import subprocess
from typing import Sequence

from edgeserve.child import Child, how_it_ended, safe_environment
from edgeserve.engines.tensorrt.building import available_bytes
from edgeserve.errors import EngineError

READ_S = 120
"""Seconds that reading one file may take: the largest models' files take a few."""

LIMIT_S = 1800.0
"""Seconds for all: TensorRT builds for minutes."""

LOOK_S = 0.02
MEMORY_SHARE = 0.75
"""The most memory that the child may take, of what is available when it starts."""


def run_bounded(arguments: Sequence[str], limit_s: float = LIMIT_S, memory_bytes: int = 0) -> int:
    """Run ``python`` with these arguments; its exit status. Raises :class:`EngineError` where it had to be ended, or
    ended otherwise than by itself. ``memory_bytes`` 0: :data:`MEMORY_SHARE`."""
    memory_bytes = memory_bytes or int(available_bytes() * MEMORY_SHARE)
    child = Child(arguments, safe_environment())
    why = ""
    for _ in range(int(limit_s / LOOK_S)):
        try:
            child.process.wait(LOOK_S)
            break
        except subprocess.TimeoutExpired:
            if _resident_bytes(child.pid) > memory_bytes > 0:
                why = f"it took more than {memory_bytes / 1024**3:.1f} GiB of memory"
                break
    else:
        why = f"it took longer than {limit_s:g} s"
    status = child.kill() if why else child.end()
    if status < 0:
        raise EngineError(
            f"the process that reads the model files was ended: {why or how_it_ended(status)}; the file that was named "
            "last is damaged, or too large for this machine. No configuration was written"
        )
    return status


def _resident_bytes(pid: int) -> int:
    """Memory in use by a process; 0 where the system does not tell."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
