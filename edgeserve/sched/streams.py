"""Streams: requests of one source in order, one in flight, with the state they leave behind.

Knows which request of a stream is in flight, which wait, what its state occupies and since when it is silent. Opening
and dropping requests is the scheduler's.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Dict, Iterator, List, Tuple

from edgeserve.sched.lifecycle import HELD, RequestRecord

StreamKey = Tuple[str, str]
"""(app, stream)."""


class Stream:
    """One stream of one app. ``active`` holds the stream until none of its jobs runs any more."""

    __slots__ = ("active", "held", "state_bytes", "device", "silent_since_ns")

    def __init__(self) -> None:
        self.active: RequestRecord | None = None
        self.held: Deque[RequestRecord] = deque()
        self.state_bytes: Dict[str, int] = {}  # node -> bytes
        self.device: Dict[str, str] = {}  # node -> device that holds them
        self.silent_since_ns = 0


class Streams:
    """All streams, least recently used first. Changed by the scheduler alone."""

    __slots__ = ("streams",)

    def __init__(self) -> None:
        self.streams: Dict[StreamKey, Stream] = {}

    def __len__(self) -> int:
        return len(self.streams)

    def __iter__(self) -> Iterator[Tuple[StreamKey, Stream]]:
        return iter(self.streams.items())

    def arrive(self, request: RequestRecord) -> bool:
        """Take the stream for this request (True), or put it behind those that hold it (False)."""
        key = stream_key(request)
        stream = self.streams.pop(key, None) or Stream()
        self.streams[key] = stream
        if stream.active is None:
            stream.active = request
            return True
        while stream.held and stream.held[-1].state != HELD:  # ended while it waited
            stream.held.pop()
        stream.held.append(request)
        return False

    def superseded(self, request: RequestRecord) -> List[RequestRecord]:
        """The waiting requests that a newer one of the same stream makes worthless, oldest first."""
        stream = self.streams.get(stream_key(request))
        if stream is None:
            return []
        older = [held for held in stream.held if held.state == HELD]
        active = stream.active
        if active is not None and not active.ended and active.running == 0 and active.spent.execute_ns == 0 \
                and all(not job.spent.execute_ns and not job.steps for job in active.jobs.values()):
            older.insert(0, active)
        return older

    def leave(self, request: RequestRecord, now_ns: int) -> RequestRecord | None:
        """The request ended and nothing of it runs: the next in line to open, which holds the stream from now on."""
        key = stream_key(request)
        stream = self.streams.get(key)
        if stream is None or stream.active is not request:
            return None
        stream.active = None
        stream.silent_since_ns = now_ns
        while stream.held:
            following = stream.held.popleft()
            if following.state == HELD:
                stream.active = following
                return following
        if not stream.state_bytes:
            del self.streams[key]
        return None

    def keep_state(self, request: RequestRecord, node: str, device: str, bytes: int) -> int:
        """A job left state of this size behind; returns by how much the device's use changes."""
        stream = self.streams[stream_key(request)]
        change = bytes - stream.state_bytes.get(node, 0)
        stream.state_bytes[node] = bytes
        stream.device[node] = device
        return change

    def quiet(self, app: str = "") -> Iterator[Tuple[StreamKey, Stream]]:
        """Streams with nothing in flight whose state could be forgotten, least recently used first."""
        return ((key, stream) for key, stream in self.streams.items()
                if stream.active is None and (not app or key[0] == app))

    def count(self, app: str) -> int:
        """How many streams an app has now."""
        return sum(1 for key in self.streams if key[0] == app)


def stream_key(request: RequestRecord) -> StreamKey:
    """The key of the stream that a request belongs to."""
    assert request.stream is not None, "only requests with a stream id have a stream"
    return request.app.name, request.stream
