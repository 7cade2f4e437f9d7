"""Streams: requests of one source in order, one in flight, with the state they leave behind.

Knows which request of a stream is in flight, which wait, what its state occupies and since when it is silent. Opening
and dropping requests is the scheduler's.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Dict, Iterator, List, Mapping, Tuple

from edgeserve.sched.protocol.actions import DropState
from edgeserve.sched.requests.states import HELD, RequestRecord
from edgeserve.sched.resources.model_cache import Device

StreamKey = Tuple[str, str]
"""(app, stream)."""


OWNER_MARK = ": "
"""Between the owner of a stream and its name."""


class StreamRecord:
    """One stream of one app. ``active`` holds the stream until none of its jobs runs any more."""

    def __init__(self) -> None:
        self.active: RequestRecord | None = None
        self.held: Deque[RequestRecord] = deque()
        self.state_bytes: Dict[str, int] = {}  # node -> bytes
        self.device: Dict[str, str] = {}  # node -> device that holds them
        self.silent_since_ns = 0


class Streams:
    """All streams, least recently used first. Changed by ``request_manager``, ``returns`` and ``ends`` alone
    (``sched/core``).

    ``due_ns`` is when the state of the stream that is silent longest may be forgotten, or None.
    """

    def __init__(self, devices: Mapping[str, Device], ttl_ns: Mapping[str, int]) -> None:
        self.streams: Dict[StreamKey, StreamRecord] = {}
        self.due_ns: int | None = None
        self._devices = devices
        self._ttl_ns = ttl_ns  # app -> how long a silent stream's state is kept

    def __len__(self) -> int:
        return len(self.streams)

    def __iter__(self) -> Iterator[Tuple[StreamKey, StreamRecord]]:
        return iter(self.streams.items())

    def arrive(self, request: RequestRecord) -> bool:
        """Take the stream for this request (True), or put it behind the ones that hold it (False)."""
        key = stream_key(request)
        stream = self.streams.pop(key, None) or StreamRecord()
        self.streams[key] = stream
        if stream.active is None:
            stream.active = request
            return True
        stream.held.append(request)
        return False

    def superseded(self, request: RequestRecord) -> List[RequestRecord]:
        """The waiting requests that a newer one of the same stream makes worthless, oldest first."""
        stream = self.streams.get(stream_key(request))
        if stream is None:
            return []
        older = [held for held in stream.held if held.state == HELD]
        active = stream.active
        if (
            active is not None
            and not active.ended
            and active.running == 0
            and active.breakdown.execute_ns == 0
            and all(not job.breakdown.execute_ns and not job.steps for job in active.jobs.values())
        ):
            older.insert(0, active)
        return older

    def abandon(self, request: RequestRecord) -> None:
        """A request that waited for its turn ended. O(requests that wait in its stream)."""
        stream = self.streams.get(stream_key(request))
        if stream is not None and request in stream.held:
            stream.held.remove(request)

    def leave(self, request: RequestRecord, now_ns: int) -> RequestRecord | None:
        """The request ended and nothing of it runs: the next in line to open, which holds the stream from now on."""
        key = stream_key(request)
        stream = self.streams.get(key)
        if stream is None or stream.active is not request:
            return None
        stream.active = None
        stream.silent_since_ns = now_ns
        if stream.held:
            stream.active = stream.held.popleft()
            return stream.active
        if not stream.state_bytes:
            del self.streams[key]
        else:
            due_ns = now_ns + self._ttl_ns[key[0]]
            self.due_ns = due_ns if self.due_ns is None else min(self.due_ns, due_ns)
        return None

    def keep_state(self, request: RequestRecord, node: str, device_name: str, bytes: int) -> List[DropState]:
        """A job left state of this size behind. Over the device's budget, silent streams are forgotten, oldest first;
        returns what the world must drop."""
        device = self._devices[device_name]
        stream = self.streams[stream_key(request)]
        if node in stream.device:  # it may have moved here from another device
            self._devices[stream.device[node]].state_bytes -= stream.state_bytes[node]
        device.state_bytes += bytes
        stream.state_bytes[node] = bytes
        stream.device[node] = device_name
        dropped: List[DropState] = []
        while device.budget_bytes and device.used_bytes + device.state_bytes > device.budget_bytes:
            oldest = next((key for key, other in self.quiet() if device_name in other.device.values()), None)
            if oldest is None:
                break
            dropped += self.forget(oldest)
        return dropped

    def bound(self, app: str, streams_max: int) -> List[DropState]:
        """Forget the least recently used silent stream of an app that has more than ``streams_max``: of the owner with
        the most, so that no owner's state is forgotten for another's streams."""
        if len(self.streams) <= streams_max or self.count(app) <= streams_max:
            return []
        quiet = [key for key, _ in self.quiet(app)]
        if not quiet:
            return []
        counts: Dict[str, int] = {}
        for key in self.streams:
            if key[0] == app:
                owner = owner_of(key[1])
                counts[owner] = counts.get(owner, 0) + 1
        oldest = quiet[0]
        for key in quiet:
            if counts[owner_of(key[1])] > counts[owner_of(oldest[1])]:
                oldest = key
        return self.forget(oldest)

    def forget_silent(self, now_ns: int) -> List[DropState]:
        """Forget the streams that have been silent for their time to live. O(streams), but only when one is due."""
        if self.due_ns is None or self.due_ns > now_ns:
            return []
        due = [(stream.silent_since_ns + self._ttl_ns[key[0]], key) for key, stream in self.quiet()]
        dropped = [action for at_ns, key in due if at_ns <= now_ns for action in self.forget(key)]
        self.due_ns = min((at_ns for at_ns, _ in due if at_ns > now_ns), default=None)
        return dropped

    def forget(self, key: StreamKey) -> List[DropState]:
        """Forget one stream with nothing in flight and give its bytes back."""
        stream = self.streams.pop(key)
        for node, bytes in stream.state_bytes.items():
            self._devices[stream.device[node]].state_bytes -= bytes
        return [DropState(app=key[0], stream=key[1])] if stream.state_bytes else []

    def quiet(self, app: str = "") -> Iterator[Tuple[StreamKey, StreamRecord]]:
        """Streams with nothing in flight whose state could be forgotten, least recently used first."""
        return (
            (key, stream)
            for key, stream in self.streams.items()
            if stream.active is None and (not app or key[0] == app)
        )

    def count(self, app: str) -> int:
        """The number of an app's streams."""
        return sum(1 for key in self.streams if key[0] == app)


def stream_key(request: RequestRecord) -> StreamKey:
    """The key of the stream that a request belongs to."""
    assert request.stream is not None, "only requests with a stream id have a stream"
    return request.app.name, request.stream


def owner_of(stream: str) -> str:
    """The owner of a stream: a server puts the owner in front of the name that a client gives. The stream's own name
    without one."""
    return stream.partition(OWNER_MARK)[0]
