"""The base of a front: its settings, and a client of the server that it serves with until it is stopped."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from time import time
from typing import Any, Callable, ClassVar, Mapping, Tuple, Type

from edgeserve.client import AsyncClient
from edgeserve.config.readers import entry, string

Ready = Callable[..., None]
"""Called with the places where a front listens, or what it is connected to, as texts."""


@dataclass(frozen=True)
class FrontSettings:
    """The keys of every ``[front.NAME]`` table. A front's own are fields of a subclass, each made by ``entry``;
    ``FILES`` names fields that are paths, relative to the configuration."""

    FILES: ClassVar[Tuple[str, ...]] = ("server_key", "client_key")

    server_key: str = entry(string, "")  # the server's public CURVE key, or its file, where its bus has keys
    client_key: str = entry(string, "")  # file of the front's own CURVE keys, where the server asks for them
    places: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def where(self, key: str) -> str:
        """The place of a key, for errors: ``[front.NAME] key``, or the option of the command line."""
        return self.places.get(key, key)

    @property
    def identity(self) -> str:
        """What one front alone can be at a time, in words, such as a name on a broker; ``""`` where there is none."""
        return ""


class Front:
    """A front for clients of one protocol. Subclass it, and subclass
    ``edgeserve.testing.front_conformance.FrontConformance`` in a test file.

    ``Settings`` is read from ``[front.NAME]``; ``timeout_ms`` is how long ``client`` waits for an answer at most."""

    Settings: Type[Any] = FrontSettings
    timeout_ms: float = 30_000.0

    def __init__(self, client: AsyncClient, settings: Any) -> None:
        self.client = client
        self.settings = settings
        self.clock_s: Callable[[], float] = time  # the time of day, for protocols whose answers have it
        self.counts: Counter[str] = Counter()  # what was done, for the summary

    @classmethod
    def check(cls, settings: Any) -> None:
        """Raise :class:`~edgeserve.errors.ConfigError` for what would keep the front from starting, such as a missing
        package or a port in use. ``edgeserve serve`` asks before it loads models."""

    @classmethod
    def prepare(cls) -> None:
        """Settle what a process that runs this front alone needs, before its event loop runs."""

    @classmethod
    def drain_s(cls, settings: Any) -> float:
        """Seconds that requests may take to end when the front is stopped."""
        return 0.0

    async def look(self) -> None:
        """Ask the server for its apps. Raises :class:`~edgeserve.errors.EdgeServeError` where one cannot do what the
        settings name it for. Called before :meth:`serve`."""

    async def serve(self, stopped: asyncio.Event, ready: Ready) -> None:
        """Serve until ``stopped`` is set. ``ready(*places)`` is called when clients can come, at every connection where
        the front itself connects. Raises :class:`~edgeserve.errors.ConfigError` for a place that cannot be had."""
        raise NotImplementedError

    def summary(self) -> str:
        """A summary for the log when the front ends."""
        return ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items())) or "ended"
