"""Pin the calling thread to cores, or say why that cannot be done.

A lane pins its thread once, before its first work. Pinning is a request to the operating system, never a condition:
the answer is returned, and the caller reports it.
"""

from __future__ import annotations

import os
from typing import Iterable, NamedTuple, Tuple


class Pinned(NamedTuple):
    """True if the calling thread is pinned now, to which cores, and if not, why and what mends it."""

    done: bool
    cores: Tuple[int, ...]
    why: str = ""


def allowed_cores() -> Tuple[int, ...]:
    """The cores that the calling thread may run on now, in rising order."""
    return tuple(sorted(os.sched_getaffinity(0)))


def pin_thread(cores: Iterable[int]) -> Pinned:
    """Pin the calling thread (not the process) to ``cores``; no cores means no wish. Changes nothing when refused."""
    wanted = tuple(sorted(set(cores)))
    if not wanted:
        return Pinned(False, allowed_cores(), "no cores are named; the thread runs on any that is free")
    have = os.cpu_count() or 1
    if wanted[-1] >= have:
        return Pinned(
            False,
            allowed_cores(),
            f"core {wanted[-1]} does not exist (this machine has {have}, counted from 0); correct [lane.NAME] cores",
        )
    try:
        os.sched_setaffinity(0, wanted)
    except OSError as error:
        return Pinned(
            False,
            allowed_cores(),
            f"cores {list(wanted)} are refused ({error.strerror}): a container or "
            f"cgroup allows {list(allowed_cores())}; correct [lane.NAME] cores",
        )
    got = allowed_cores()
    if got != wanted:  # a cgroup may cut the set without an error
        return Pinned(
            False,
            got,
            f"asked for cores {list(wanted)} and got {list(got)}: a cgroup allows no others; correct [lane.NAME] cores",
        )
    return Pinned(True, got)
