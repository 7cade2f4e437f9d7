"""Messages between client, dispatcher and replicas: a call, its reply, and what a replica expects of an app.

Plain picklable values. Errors travel inside a :class:`RayReply`, as they are: raised through Ray they would arrive
wrapped, and a refusal could not be distinguished from a process that died.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

from edgeserve.answers import Answer
from edgeserve.errors import RequestError
from edgeserve.units import ns_to_ms

BOOT_ID = "/proc/sys/kernel/random/boot_id"


def boot_id(path: str = BOOT_ID) -> str:
    """Which machine this is, since it was started: processes with the same one share the monotonic clock."""
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


@dataclass(frozen=True)
class Stamp:
    """When a request was sent. On one machine its age is exact; between machines it is as right as their wall clocks
    agree (NTP), and never negative."""

    boot: str
    monotonic_ns: int
    wall_ns: int

    @classmethod
    def now(cls) -> Stamp:
        """This moment."""
        return cls(boot_id(), time.monotonic_ns(), time.time_ns())

    def age_ms(self) -> float:
        """The time since then."""
        here = Stamp.now()
        if here.boot and here.boot == self.boot:
            return ns_to_ms(max(0, here.monotonic_ns - self.monotonic_ns))
        return ns_to_ms(max(0, here.wall_ns - self.wall_ns))


@dataclass(frozen=True)
class RayCall:
    """One request: the arguments of :meth:`~edgeserve.runtime.Runtime.infer`, and when it was sent. ``options`` has
    the ones that are not None, without ``slo_ms``."""

    app: str
    inputs: Mapping[str, Any]
    slo_ms: Optional[float] = None
    options: Mapping[str, Any] = field(default_factory=dict)
    sent: Stamp = field(default_factory=Stamp.now)


@dataclass
class RayReply:
    """The end of a call at a replica: with an answer, or with the error that a runtime raised. ``slo_ms`` is the
    deadline that held, from sending; ``tried`` names the replicas that had it, the last one replied."""

    answer: Optional[Answer] = None
    error: Optional[RequestError] = None
    slo_ms: float = 0.0
    tried: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Outlook:
    """The expectation of a request that arrived at a replica now. ``slo_ms_min``: the smallest ``slo_ms`` with which
    its policy would not give it up; None where no lane could run it."""

    slo_ms: float
    expected_ms: Optional[float] = None
    slo_ms_min: Optional[float] = None
    open: int = 0


Outlooks = Dict[str, Outlook]
"""By app."""

Told = Union[List[str], RequestError]
"""The story of a request, or the error instead."""
