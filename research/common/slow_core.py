"""Processes at a quarter of a core's speed, nearer to a small board: by the control group, else by stopping them.

python research/common/slow_core.py PID...     stop and continue them, until standard input ends
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Iterator, List, Sequence

SHARE = 0.25
PERIOD_S = 0.010
CGROUP = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def a_quarter(pids: Sequence[int], cgroup: Path | None = None) -> Iterator[str]:
    """Limit each of the processes, all threads of it together, while the block runs. Yields how. ``cgroup``: where
    groups are made, this process's own by default."""
    cgroup = cgroup or _own_group()
    groups = _control_groups(pids, cgroup)
    if groups:
        try:
            yield f"cpu.max {SHARE:g} of a core each, every {PERIOD_S * 1e3:g} ms"
        finally:
            for group, pid in zip(groups, pids):
                with contextlib.suppress(ProcessLookupError):
                    (cgroup / "cgroup.procs").write_text(str(pid))
                group.rmdir()
        return
    command = [sys.executable, os.path.abspath(__file__), *map(str, pids)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as cycle:
        try:
            yield f"SIGSTOP and SIGCONT, {SHARE:g} of every {PERIOD_S * 1e3:g} ms"
        finally:
            cycle.communicate()


def _own_group() -> Path:
    """The directory of this process's control group, of version 2."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    return CGROUP / next((line[len("0::/") :] for line in lines if line.startswith("0::/")), "none")


def _control_groups(pids: Sequence[int], cgroup: Path) -> List[Path]:
    """A group for each process with its ``cpu.max`` (version 2); none where the system does not allow that."""
    groups: List[Path] = []
    try:
        for pid in pids:
            group = cgroup / f"edgeserve-bench-{pid}"
            group.mkdir()
            groups.append(group)
            if not (group / "cpu.max").exists():
                raise FileNotFoundError(group / "cpu.max")
            (group / "cpu.max").write_text(f"{SHARE * PERIOD_S * 1e6:.0f} {PERIOD_S * 1e6:.0f}")
        for group, pid in zip(groups, pids):
            (group / "cgroup.procs").write_text(str(pid))
    except OSError:
        for group in groups:
            group.rmdir()
        return []
    return groups


def duty_cycle(pids: Sequence[int]) -> None:
    """Let the processes run for a quarter of the time, until standard input ends. A phase that this process overslept
    is made up for by the length of the stop that follows."""
    try:
        while True:
            began = time.monotonic()
            _send(pids, signal.SIGCONT)
            if select.select([sys.stdin], [], [], SHARE * PERIOD_S)[0]:
                return
            _send(pids, signal.SIGSTOP)
            if select.select([sys.stdin], [], [], (time.monotonic() - began) * (1 / SHARE - 1))[0]:
                return
    finally:
        _send(pids, signal.SIGCONT)


def _send(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


if __name__ == "__main__":
    duty_cycle([int(word) for word in sys.argv[1:]])
