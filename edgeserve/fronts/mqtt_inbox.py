"""The messages of a broker as they come: within a bound for each packet, and for the messages and their bytes that are
kept until each has its answer, shared among senders."""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Optional

import aiomqtt

from edgeserve.errors import Rejected, TooLarge
from edgeserve.front import Held, Places

MESSAGES_MAX = 320
"""Messages that wait to be looked at, have no answer yet, or whose answer the broker has not; more are left out and
counted. One asker or camera has three quarters at most."""

PAYLOAD_BYTES_MAX = 16 * 1024**2
WAITING_BYTES_MAX = 4 * PAYLOAD_BYTES_MAX
"""The bytes of messages that wait, are looked at, or have no answer yet. One asker or camera has three quarters at
most."""

PACKET_BYTES_MAX = PAYLOAD_BYTES_MAX + 128 * 1024
"""The bytes kept of a packet, with its topic: MQTT's own bound is 256 MiB."""

STEP_BYTES = 256 * 1024


class Arrived:
    """A message that has come. It has its ``place`` until the last of its ``users`` calls :meth:`close`, and ``room``
    for its bytes until :meth:`forget`; ``refused``: there was none, and its payload is not kept."""

    def __init__(self, message: aiomqtt.Message, place: Held, room: Held) -> None:
        self.topic = message.topic
        self.is_retained = bool(message.retain)
        self.payload = bytes(message.payload or b"")
        self.refused: Optional[Rejected] = None
        self.users = 1
        self._place = place
        self._room = room
        try:
            room.set(len(self.payload))
        except Rejected as error:
            self.payload, self.refused = b"", error.with_traceback(None)  # whose frames have the message

    def forget(self) -> None:
        """Keep the payload no longer."""
        self.payload = b""
        self._room.close()

    def close(self) -> None:
        """One of its users needs the message no more."""
        self.users -= 1
        if self.users <= 0:
            self.forget()
            self._place.close()


class Inbox(asyncio.Queue):  # type: ignore[type-arg]  # Python 3.8 has no asyncio.Queue[Arrived]
    """The messages of one connection that wait to be looked at, each an :class:`Arrived`. ``sender_of`` says which
    sender's share a topic's messages are; ``left_out`` is called for a message that finds no place."""

    def __init__(
        self, sender_of: Callable[[aiomqtt.Topic], str], left_out: Callable[[], None], maxsize: int = 0
    ) -> None:
        super().__init__(maxsize)
        self._places = Places(MESSAGES_MAX, "messages", lasting=True)
        self._bytes = Places(WAITING_BYTES_MAX, "bytes of messages without an answer", lasting=True)
        self._sender_of = sender_of
        self._left_out = left_out

    def put_nowait(self, message: Any) -> None:
        """Take a message of the client; it never raises ``QueueFull``, which the client would log for each."""
        sender = self._sender_of(message.topic)
        place = Held(self._places, sender)
        try:
            place.set(1)
        except Rejected:
            self._left_out()
        else:
            super().put_nowait(Arrived(message, place, Held(self._bytes, sender)))


def check_size(what: str, payload: bytes) -> None:
    """Raise :class:`TooLarge` for a payload of which more came than is read."""
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise TooLarge(f"{what} of more than {PAYLOAD_BYTES_MAX} bytes: no more are read")


def bound_packets(client: Any) -> None:
    """Keep :data:`PACKET_BYTES_MAX` of each packet that a client of paho reads, and throw the rest away as it comes.
    The public way, MQTT 5's Maximum Packet Size, has the broker drop larger ones: their askers would get no answer."""
    receive: Callable[[int], bytes] = client._sock_recv

    def received(count: int) -> bytes:
        packet, data = client._in_packet, receive(min(count, STEP_BYTES))
        over = len(packet["packet"]) + len(data) - PACKET_BYTES_MAX
        if over <= 0:
            return data
        kept = max(1, len(data) - over)  # nothing would be the end of the connection
        packet["to_process"] -= len(data) - kept
        return data[:kept]

    client._sock_recv = received
