"""A topic of images of ROS 2 to an app of a running server, its detections to another topic, over Zenoh.

``rmw_zenoh``, ROS 2's layer on Zenoh, sends each message as CDR under ``DOMAIN/TOPIC/TYPE/HASH`` and announces nodes,
publishers and subscriptions by liveliness tokens (its design document). This front does the same, so that nodes see it
as one of them, without ROS. Of images that wait the newest stays, and deadlines count from their stamps.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any, Callable, List, Tuple

from edgeserve.errors import ConfigError, EdgeServeError
from edgeserve.fronts.image_apps import IN_FLIGHT_MAX, IN_FLIGHT_STREAM_MAX, NEWEST_WINS, Detector, NewestWins, Tally
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
)

log = logging.getLogger("edgeserve")

KINDS = {"image": IMAGE, "compressed": COMPRESSED, "cloud": CLOUD}

ROUTER = "tcp/localhost:7447"
"""Where ``ros2 run rmw_zenoh_cpp rmw_zenohd`` listens."""

NO_HASH = "TypeHashNotSupported"
"""In place of a type's hash, before ROS Iron."""

GID_BYTES = 16

BEST_EFFORT = "2::,:,:,:,,"
"""Quality of service in a token: what differs from the default, which is all but the reliability."""

NODE_ID, IMAGES_ID, DETECTIONS_ID = 0, 1, 2


def open_session(connect: str) -> Any:
    """A session of Zenoh as ROS 2 makes them: a peer of the router at ``connect``. Raises :class:`ConfigError`."""
    try:
        import zenoh
    except ImportError as error:
        raise ConfigError(f"Zenoh needs eclipse-zenoh ({error}): pip install 'edgeserve-runtime[zenoh]'") from None
    settings = {
        "mode": "peer",
        "connect": {"endpoints": [connect]},
        "scouting": {"multicast": {"enabled": False}},
    }
    try:
        return zenoh.open(zenoh.Config.from_json5(json.dumps(settings)))
    except zenoh.ZError as error:
        raise ConfigError(
            f"--connect {connect!r}: {error}; expected the router of ROS 2, started by "
            f"'ros2 run rmw_zenoh_cpp rmw_zenohd', such as {ROUTER}"
        ) from None


def topic_key(domain: int, topic: str, kind: str, type_hash: str) -> str:
    """The key expression of a topic: ``0/camera/image_raw/sensor_msgs::msg::dds_::Image_/RIHS01_...``."""
    return f"{domain}/{topic.strip('/')}/{type_name(kind)}/{type_hash}"


def type_name(kind: str) -> str:
    """``sensor_msgs/msg/Image`` -> ``sensor_msgs::msg::dds_::Image_``, as DDS names it."""
    package, _, name = kind.partition("/msg/")
    return f"{package}::msg::dds_::{name}_"


class ZenohFront:
    """One topic in, its detections out. ``clock_ns`` is the time of day, which ROS stamps images with."""

    def __init__(
        self,
        session: Any,
        detector: Detector,
        topic: str,
        kind: str,
        out: str,
        domain: int,
        clock_ns: Callable[[], int],
    ) -> None:
        self._session = session
        self._detector = detector
        self._topic = topic
        self._kind = kind
        self._out = out
        self._domain = domain
        self._clock_ns = clock_ns
        self._store, self._types = bag_types()
        self._hash = ""  # of the topic's messages, once one came
        self._publisher: Any = None
        self._number = 0
        self._gid = bytes.fromhex(str(session.zid()).zfill(2 * GID_BYTES))[:GID_BYTES]
        self.tally = Tally()
        self.published = 0

    async def run(self, stopped: asyncio.Event, ready: Callable[[str], None]) -> None:
        """Answer until ``stopped``; ``ready(key)`` hears what is subscribed to."""
        loop = asyncio.get_running_loop()
        in_flight_max = IN_FLIGHT_STREAM_MAX if self._detector.input.stream == NEWEST_WINS else IN_FLIGHT_MAX
        frames: NewestWins[Tuple[int, bytes]] = NewestWins(self._ask, in_flight_max, self.tally.reasons)

        def offer(frame: Tuple[int, bytes], type_hash: str) -> None:
            self.tally.sent += 1
            self._hash = type_hash
            frames.offer(frame)

        def came(sample: Any) -> None:  # on a thread of Zenoh's
            frame = (self._clock_ns(), sample.payload.to_bytes())
            loop.call_soon_threadsafe(offer, frame, str(sample.key_expr).rpartition("/")[2])

        key = topic_key(self._domain, self._topic, self._kind, "*")
        subscriber = self._session.declare_subscriber(key, came)
        tokens = [self._session.liveliness().declare_token(token) for token in self.tokens()]
        try:
            ready(key)
            await stopped.wait()
        finally:
            subscriber.undeclare()
            for token in tokens:
                token.undeclare()
            await frames.cancel()

    def tokens(self) -> List[str]:
        """The liveliness tokens of this front: a node, its subscription and its publisher."""
        head = f"@ros2_lv/{self._domain}/{self._session.zid()}/{NODE_ID}"
        where = "%/%/edgeserve"
        found = [f"{head}/{NODE_ID}/NN/{where}"]
        for number, what, topic, kind in (
            (IMAGES_ID, "MS", self._topic, self._kind),
            (DETECTIONS_ID, "MP", self._out, DETECTIONS),
        ):
            mangled = "%" + topic.strip("/").replace("/", "%")
            found.append(
                f"{head}/{number}/{what}/{where}/{mangled}/{type_name(kind)}/{self._store.hash_rihs01(kind)}/{BEST_EFFORT}"
            )
        return found

    async def _ask(self, frame: Tuple[int, bytes]) -> None:
        loop = asyncio.get_running_loop()
        came_ns, data = frame
        try:
            message, size, array = await loop.run_in_executor(None, self._read, data)
            slo_ms, _ = left_ms(message, self._clock_ns(), self._detector.input.slo_ms)
            if slo_ms <= 0:
                self.tally.reasons["too old"] += 1
                return
            answer = await self._detector.ask(array, slo_ms, self._topic)
            self.tally.answer(answer, self._clock_ns() - came_ns)
            boxes = self._detector.found(answer.outputs, *size)
            self.tally.boxes += len(boxes)
            self._publish(detection_array(self._types, header_of(self._types, message), boxes))
        except EdgeServeError as error:
            reason = self.tally.lost(error)
            if self.tally.reasons[reason] == 1:
                log.warning("no detections (%s): %s", reason, error)

    def _read(self, data: bytes) -> Tuple[Any, Tuple[int, int], Any]:
        shape = self._detector.input.shape
        try:
            message = self._store.deserialize_cdr(data, self._kind)
        except Exception as error:  # noqa: BLE001 bytes of any form come from the network
            raise ConfigError(f"a message of {self._topic} is no {self._kind}: {error}") from None
        array = array_of(message, self._kind, shape[-1] if len(shape) == 2 else -1)
        return message, (array.shape[0], array.shape[1]), self._detector.prepared(array)

    def _publish(self, message: Any) -> None:
        from zenoh.ext import Int64, z_serialize

        if self._publisher is None:  # under the kind of hash that the other side uses
            type_hash = NO_HASH if self._hash == NO_HASH else self._store.hash_rihs01(DETECTIONS)
            self._publisher = self._session.declare_publisher(topic_key(self._domain, self._out, DETECTIONS, type_hash))
        self._number += 1
        told = ("sequence_number", Int64(self._number), "source_timestamp", Int64(self._clock_ns()))
        attachment = z_serialize((*told, "source_gid", self._gid))
        data = bytes(self._store.serialize_cdr(message, DETECTIONS))
        self._publisher.put(data, attachment=attachment)
        self.published += 1
