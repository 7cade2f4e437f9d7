"""The front gateway: messages of the bus become requests of the world, and questions get their answers.

It belongs to the loop's thread. Which requests of which client are in flight is the bus's table; what a request may say
is checked by ``request.py``; how a request ended is told by the world, straight to the bus.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Dict, List, Mapping, Optional, Protocol, Tuple

from edgeserve.config.schema import Config
from edgeserve.errors import DeadlineExpired, NotAllowed, Rejected, RequestError
from edgeserve.ipc.bounds import BusBounds, BusKeys
from edgeserve.ipc.bus import Bus, Cancel, ClientLost, Control, News, default_endpoint
from edgeserve.ipc.wire import pack_info
from edgeserve.live.errors import CLIENT_GONE, EarlyRefusals
from edgeserve.live.loop_io import clock_ns
from edgeserve.live.request import LiveRequest, RequestValidator, unknown_app
from edgeserve.live.world import LiveWorld
from edgeserve.owners import user_of
from edgeserve.priority_class import RESERVED
from edgeserve.sched.protocol.actions import Outcome
from edgeserve.sched.protocol.events import Event
from edgeserve.sched.resources.streams import OWNER_MARK
from edgeserve.units import NS_PER_MS, NS_PER_S, counted

log = logging.getLogger("edgeserve")

BURST_MAX = 64
"""Messages taken from the socket before the scheduler decides: a burst is one decision, but not an endless one."""


TELL_GONE_NS = NS_PER_S
"""Clients that vanish with requests in flight are told in the log so often at most."""

OWNERS_KEPT = 1024
"""The number of ended requests whose owners are remembered: more than the scheduler remembers stories of."""

KEPT_KINDS = ("apps", "health", "models", "stats")
KEPT_NS = 100 * NS_PER_MS
"""An owner who asks these all the time gets an answer of this age at most: making one may take a millisecond."""

OWNERS_KINDS = ("drain", "reload", "trace")
"""Control questions that change the server for all clients, or show other clients' requests."""

_FOR_THE_OWNER = (
    "is for the server's owner: ask over ipc as the user that runs the server (or root), or with a key "
    "that [server] control_keys names"
)


class Questions(Protocol):
    """Answers the control questions of ``ipc/wire.py``: the runtime's core, as the gateway sees it."""

    def ask(self, kind: str, number: int = 0) -> Dict[str, Any]:
        """The answer to a question of ``CONTROL_KINDS``: plain numbers, strings, lists and maps. ``number``: which
        request ``story`` is about, or the step behind which ``trace`` begins."""

    def reload(self, model: str, told: Callable[[Dict[str, Any]], None]) -> None:
        """Begin to load a model anew; ``told`` gets the answer when that is done. Raises :class:`BadInput` for a model
        that there is not."""


CLIENT_SILENCE_NS = 10 * NS_PER_S
"""A client with requests in flight that says nothing for so long, no heartbeat either, is gone."""


class Gateway:
    """The bus of one running server. Knows no policy."""

    def __init__(
        self,
        config: Config,
        validators: Mapping[str, RequestValidator],
        world: LiveWorld,
        questions: Questions,
        early: EarlyRefusals,
    ) -> None:
        server = config.server
        self._validators = validators
        self._world = world
        self._questions = questions
        self._early = early
        self.bus = Bus(
            [server.endpoint or default_endpoint()],
            BusBounds(
                server.message_bytes_max,
                CLIENT_SILENCE_NS,
                pending_bytes_max=server.memory_bytes,
                client_bytes_max=server.client_bytes_max,
                unread_bytes_max=server.unread_bytes_max,
                shared_memory_bytes=server.message_bytes_max,
            ),
            BusKeys(config.curve_secret_key_path, config.curve_client_keys_path, server.control_keys),
            clock_ns=clock_ns,
            ask_type=LiveRequest,
        )
        self.bus.refused = lambda error, owner: early.add("", error, owner)
        self._critical_for = frozenset(server.critical_for)
        self._owners: List[Tuple[int, str]] = [(0, "")] * (server.pending_max + OWNERS_KEPT)
        self._bursts = 0
        self._kept: Dict[str, Tuple[int, int, bytes]] = {}  # question -> its last answer: burst, until when, packed
        self._gone_count = 0
        self._tell_gone_ns = 0
        self.wait = self.bus.wait
        self.has_more = self.bus.has_more

    def change(self, validators: Mapping[str, RequestValidator], world: LiveWorld) -> None:
        """Go on with another configuration's apps, and the world that serves them."""
        self._validators = validators
        self._world = world
        self._kept.clear()

    def receive(self, events: List[Event]) -> None:
        """Take what has come, a burst at most."""
        bus = self.bus
        self._bursts += 1
        for message in bus.receive(BURST_MAX):
            if type(message) is not LiveRequest:
                self._take_other(message, events)
                continue
            validator, owner = self._validators.get(message.app), message.peer.credential.owner
            try:
                if validator is None:
                    raise unknown_app(message.app, self._validators)
                validator.check(message, bus, clock_ns())
                message.trusted = self._trusts(message)
            except Exception as error:  # noqa: BLE001 one message must not end the server
                if message.reset and isinstance(error, DeadlineExpired):  # what follows is a beginning all the same
                    self._world.values.begin_anew((message.app, self._stream_of(message)))
                self._refuse(message, bus.expected(error))
                continue
            self._owners[message.id % len(self._owners)] = (message.id, owner)
            if message.stream is not None:
                message.stream = self._stream_of(message)
            self._world.lifecycle.accept(message, events)
        if bus.costly:
            bus.charge(clock_ns())

    @property
    def endpoints(self) -> List[str]:
        """The endpoints on which the bus listens."""
        return list(self.bus.endpoints)

    def close(self) -> None:
        """Close the bus to all clients; no socket file stays behind."""
        self.bus.close()

    def _take_other(self, message: News, events: List[Event]) -> None:
        if type(message) is Control:
            self._questioned(message)
        elif type(message) is ClientLost:
            self._gone(message, events)
        elif type(message) is Cancel:
            assert isinstance(message.ask, LiveRequest), "the bus was told to make these"
            self._world.lifecycle.cancel(message.ask, events, keeps=message.keeps)

    @staticmethod
    def _stream_of(request: LiveRequest) -> str:
        """A stream's key with its owner, so that no client continues or reads another's stream."""
        owner = request.peer.credential.owner
        owner = f"{owner} for {request.origin}" if request.origin else owner
        return f"{owner}{OWNER_MARK}{request.stream}"

    def _refuse(self, request: LiveRequest, error: RequestError) -> None:
        """Answer a request that was found bad when it was checked."""
        request.ended, request.predictors = True, None  # its client may be gone in the next breath
        error.id = request.id
        self.bus.note_cost(request.peer, clock_ns(), error)
        self._early.add(request.app, error, request.peer.credential.owner)
        request.id = 0
        if isinstance(error, DeadlineExpired):
            self._world.lifecycle.count_refused(request.app, Outcome.REJECTED, "expired")
        self.bus.refuse(request, error)

    def _questioned(self, control: Control) -> None:
        credential = control.peer.credential
        number = control.word
        now_ns = clock_ns()
        is_over = self.bus.note_cost(control.peer, now_ns)
        if not credential.may_control:
            if control.kind in OWNERS_KINDS:
                self.bus.refuse(control, NotAllowed(f"{control.kind} {_FOR_THE_OWNER}"))
                return
            if control.kind == "story" and self._owner_of(number) != credential.owner:
                self.bus.refuse(
                    control, NotAllowed(f"the story of a request that this client did not send {_FOR_THE_OWNER}")
                )
                return
        try:
            if control.kind == "reload":
                self._questions.reload(control.word, lambda told: self.bus.control_reply(control, told))
            elif control.kind in KEPT_KINDS:
                self.bus.control_reply(control, self._kept_answer(control.kind, is_over, now_ns))
            else:
                self.bus.control_reply(control, self._questions.ask(control.kind, number))
        except Exception as error:  # noqa: BLE001 such as no more threads; one question must not end the server
            self.bus.refuse(control, self.bus.expected(error))

    def _kept_answer(self, kind: str, is_over: bool, now_ns: int) -> bytes:
        """The answer to a question that every client may ask: made once per burst, and not every time for an owner who
        has had more than its share."""
        burst, until_ns, packed = self._kept.get(kind, (0, 0, b""))
        if burst != self._bursts and not (is_over and now_ns < until_ns):
            packed = pack_info(self._questions.ask(kind))
            self._kept[kind] = (self._bursts, now_ns + KEPT_NS, packed)
        return packed

    def _owner_of(self, number: int) -> Optional[str]:
        """The owner that sent a request; None when it is not remembered."""
        kept, owner = self._owners[number % len(self._owners)]
        return owner if kept == number else self._early.owner(number)

    def _trusts(self, request: LiveRequest) -> bool:
        """True if a request's class and value count beside those of other owners: for the owners that the configuration
        names, or, where it names none, for those with a control key. Raises :class:`Rejected` where the client may
        not ask with this class at all."""
        peer = request.peer
        if not self._critical_for:
            return not request.origin and bool(peer.credential.trusted)
        # A front that asks for others may not lend them what it may itself.
        names = (request.origin,) if request.origin else tuple(dict.fromkeys((user_of(peer.owner), peer.owner)))
        trusted = not self._critical_for.isdisjoint(names)
        if request.priority_class in RESERVED and not trusted:
            raise Rejected(
                f"app {request.app!r}: class 'critical' is not for {' or '.join(names)}; add "
                "it to [server] critical_for, or ask with class = 'normal'",
                "class_not_allowed",
            )
        return trusted

    def _gone(self, gone: ClientLost, events: List[Event]) -> None:
        self._gone_count += 1
        now_ns = clock_ns()
        if now_ns >= self._tell_gone_ns:  # clients that vanish by the hundred must not fill the log
            log.info(
                "client %s is gone (%s): %s cancelled%s",
                gone.client.hex(),
                gone.reason,
                counted(len(gone.asks), "request"),
                f"; {counted(self._gone_count, 'client')} since the last line" if self._gone_count > 1 else "",
            )
            self._tell_gone_ns = now_ns + TELL_GONE_NS
            self._gone_count = 0
        for request in gone.asks:
            assert isinstance(request, LiveRequest), "the bus was told to make these"
            self._world.lifecycle.cancel(request, events, CLIENT_GONE + gone.reason)
