"""A recorded bag of ROS through an app of a running server, at the bag's own times; its answers to another bag.

Each message is sent when it was recorded, as its topic's stream where the app has streams: the server decides which
ones are superseded, refused or late. A message is read and made an array before it is due, so that only the app is
measured. An answer is written with its message's header, at its message's time in the bag: players show both together.

Bags of ROS 2 (``mcap``, ``sqlite3``) and of ROS 1 are read by the package ``rosbags``, without ROS.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from pathlib import Path
from types import TracebackType
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Type

from edgeserve.errors import BadInput, ConfigError, EdgeServeError, nearest
from edgeserve.fronts.image_apps import Detector, Tally
from edgeserve.fronts.ros_messages import (
    CLOUD,
    COMPRESSED,
    DETECTIONS,
    IMAGE,
    array_of,
    bag_types,
    detection_array,
    header_of,
    left_ms,
    output_message,
)
from edgeserve.units import NS_PER_S, ns_to_s, s_to_ns
from edgeserve.waits import await_within

READ = (IMAGE, COMPRESSED, CLOUD)
"""Types of messages that become an app's input."""

AHEAD_S = 0.25
"""A message is read at most so long before it is due: of large frames few are held."""


class Recorded(NamedTuple):
    """A message of a bag: its time there, its topic, its type and its bytes."""

    at_ns: int
    topic: str
    kind: str
    data: Any


class BagReader:
    """The messages of some topics, in the order of their times; for a ``with`` block. Without topics: the only one of a
    type in :data:`READ`. Raises :class:`ConfigError` where the bag or the topics cannot be read."""

    def __init__(self, path: str, topics: Sequence[str]) -> None:
        self._path = path
        try:
            from rosbags.highlevel import AnyReader, AnyReaderError
            from rosbags.typesys import Stores, get_typestore
        except ImportError as error:
            raise ConfigError(f"bags need rosbags ({error}): pip install 'edgeserve-runtime[ros]'") from None
        place = Path(path)
        if place.exists() and not (place.is_file() or place.is_dir()):
            raise ConfigError(f"{path}: the bag cannot be read: it is no regular file")  # a pipe would be waited for
        if place.is_file() and place.suffix != ".bag" and (place.parent / "metadata.yaml").exists():
            place = place.parent  # the whole recording
        try:
            self._reader = AnyReader([place], default_typestore=get_typestore(Stores.ROS2_HUMBLE))
            self._reader.open()
        except (AnyReaderError, OSError, ValueError) as error:
            raise ConfigError(f"{path}: the bag cannot be read: {error}") from None
        try:
            self._chosen = [one for one in self._reader.connections if one.topic in self._topics(topics)]
        except BaseException:
            self._reader.close()
            raise

    def _topics(self, topics: Sequence[str]) -> Set[str]:
        there = {one.topic: one.msgtype for one in self._reader.connections}
        fitting = [topic for topic, kind in there.items() if kind in READ]
        listed = ", ".join(f"{topic} ({kind})" for topic, kind in sorted(there.items())) or "none"
        for topic in topics:
            if topic not in there:
                raise ConfigError(f"--topic {topic}: not in {self._path}{nearest(topic, there)} (topics: {listed})")
            if topic not in fitting:
                raise ConfigError(f"--topic {topic} is of {there[topic]}; expected one of {', '.join(READ)}")
        if not topics and len(fitting) != 1:
            raise ConfigError(f"{self._path} has {len(fitting)} topics that an app could take; give --topic ({listed})")
        return set(topics or fitting)

    def __enter__(self) -> BagReader:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._reader.close()

    @property
    def topics(self) -> List[str]:
        """The chosen topics."""
        return sorted({one.topic for one in self._chosen})

    def messages(self) -> Iterator[Recorded]:
        """All of them, as bytes."""
        for one, at_ns, data in self._reader.messages(self._chosen):
            yield Recorded(at_ns, one.topic, one.msgtype, data)

    def message(self, recorded: Recorded) -> Any:
        """A message from its bytes. Raises :class:`BadInput`."""
        try:
            return self._reader.deserialize(recorded.data, recorded.kind)
        except Exception as error:
            raise BadInput(f"a message of {recorded.topic} is no {recorded.kind}: {error}") from error


class BagWriter:
    """A new bag for answers: detections, or an app's outputs as ``std_msgs``; for a ``with`` block. Its folder must not
    be there."""

    def __init__(self, path: str) -> None:
        from rosbags import rosbag2

        if Path(path).exists():
            raise ConfigError(f"--out {path}: it is there already; a bag is a new folder")
        options: Dict[str, Any] = {}
        if "storage_plugin" in inspect.signature(rosbag2.Writer).parameters:  # older ones write sqlite3 alone
            newer: Any = rosbag2
            options = {"version": 9, "storage_plugin": newer.StoragePlugin.MCAP}
        self._writer = rosbag2.Writer(Path(path), **options)
        self._store, self.types = bag_types()
        self._connections: Dict[str, Any] = {}

    def __enter__(self) -> BagWriter:
        self._writer.open()
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._writer.close()

    def write(self, topic: str, kind: str, message: Any, at_ns: int) -> None:
        """Add one message of type ``kind``."""
        if topic not in self._connections:
            self._connections[topic] = self._writer.add_connection(topic, kind, typestore=self._store)
        self._writer.write(self._connections[topic], at_ns, bytes(self._store.serialize_cdr(message, kind)))


class BagRun:
    """One run of a bag through an app. ``as_outputs``: outputs are written as they are, and not as detections."""

    def __init__(self, reader: BagReader, detector: Detector, writer: Optional[BagWriter], as_outputs: bool) -> None:
        self._reader = reader
        self._detector = detector
        self._writer = writer
        self._as_outputs = as_outputs
        self._open: Set[asyncio.Future[None]] = set()
        self._failed: Optional[BaseException] = None
        self.tally = Tally()
        self.span_s = 0.0
        self.lags_ns: List[int] = []  # how long after it was due each message was sent

    async def play(self, stopped: asyncio.Event) -> None:
        """Send every message when it is due until ``stopped``, and wait for the answers. Raises :class:`ConfigError`
        where the bag has no message, :class:`EdgeServeError` where answers cannot be written."""
        loop = asyncio.get_running_loop()
        first_ns, begin_s = -1, 0.0
        try:
            for recorded in self._reader.messages():
                if first_ns < 0:
                    first_ns, begin_s = recorded.at_ns, loop.time() + AHEAD_S
                due_s = begin_s + ns_to_s(recorded.at_ns - first_ns)
                self.span_s = due_s - begin_s
                await _pause(due_s - AHEAD_S - loop.time(), stopped)
                if stopped.is_set() or self._failed is not None:
                    break
                self.tally.sent += 1
                try:
                    prepared = await loop.run_in_executor(None, self._prepared, recorded)
                except BadInput as error:
                    self.tally.lost(error)
                    continue
                await asyncio.sleep(max(0.0, due_s - loop.time()))
                task: asyncio.Future[None] = asyncio.ensure_future(self._one(recorded, *prepared, due_s))
                self._open.add(task)
                task.add_done_callback(self._ended)
            if first_ns < 0:
                raise ConfigError("the bag has no message of the chosen topics")
            while self._open:
                await asyncio.wait(self._open)
        finally:
            for left in list(self._open):
                left.cancel()
        if self._failed is not None:
            raise EdgeServeError(f"an answer could not be written: {self._failed}") from self._failed

    def _ended(self, task: asyncio.Future[None]) -> None:
        self._open.discard(task)
        if not task.cancelled():
            self._failed = self._failed or task.exception()

    def _prepared(self, recorded: Recorded) -> Tuple[Any, Tuple[int, int], Any]:
        """The message, its height and width, and what the app takes. On another thread."""
        shape = self._detector.input.shape
        message = self._reader.message(recorded)
        array = array_of(message, recorded.kind, shape[-1] if len(shape) == 2 else -1)
        return message, (array.shape[0], array.shape[1]), self._detector.prepared(array)

    async def _one(self, recorded: Recorded, message: Any, size: Tuple[int, int], array: Any, due_s: float) -> None:
        loop = asyncio.get_running_loop()
        lag_ns = s_to_ns(max(0.0, loop.time() - due_s))
        self.lags_ns.append(lag_ns)
        slo_ms, _ = left_ms(message, recorded.at_ns + lag_ns, self._detector.input.slo_ms)
        if slo_ms <= 0:
            self.tally.reasons["too old"] += 1
            return
        try:
            answer = await self._detector.ask(array, slo_ms, recorded.topic)
            self.tally.answer(answer, s_to_ns(loop.time() - due_s))
            self._write(recorded, message, answer.outputs, size)
        except EdgeServeError as error:
            self.tally.lost(error)

    def _write(self, recorded: Recorded, message: Any, outputs: Mapping[str, Any], size: Tuple[int, int]) -> None:
        if self._writer is None:
            return
        types, topic = self._writer.types, recorded.topic.rstrip("/")
        if self._as_outputs:
            for name, value in outputs.items():
                kind, one = output_message(types, value)
                self._writer.write(f"{topic}/{name}", kind, one, recorded.at_ns)
            return
        boxes = self._detector.found(outputs, *size)
        self.tally.boxes += len(boxes)
        self._writer.write(
            f"{topic}/detections",
            DETECTIONS,
            detection_array(types, header_of(types, message), boxes),
            recorded.at_ns,
        )


async def _pause(seconds: float, stopped: asyncio.Event) -> None:
    """Wait so long, or until ``stopped``."""
    if seconds > 0:
        with contextlib.suppress(asyncio.TimeoutError):
            await await_within(stopped.wait(), seconds)


def arrivals_ms(reader: BagReader) -> Dict[str, List[float]]:
    """Topic -> when its messages were recorded, in ms from the first message of all."""
    found: Dict[str, List[int]] = {topic: [] for topic in reader.topics}
    for recorded in reader.messages():
        found[recorded.topic].append(recorded.at_ns)
    first_ns = min((times[0] for times in found.values() if times), default=0)
    return {topic: [(at_ns - first_ns) * 1000 / NS_PER_S for at_ns in times] for topic, times in found.items()}
