"""The front gateway: messages of the bus become requests of the world, and questions get their answers.

It owns the bus and remembers which request of which client is open, so that a cancel finds it and a client that
vanishes takes its queued requests along. It belongs to the loop's thread.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

from edgeserve import __version__, compiled
from edgeserve.errors import RequestError
from edgeserve.ipc.bus import Ask, Bus, Cancel, ClientGone, Control, default_endpoint
from edgeserve.live.request import RequestOptions, validator_of
from edgeserve.live.responders import BusResponder
from edgeserve.live.values import LiveRequest
from edgeserve.live.world import StopAsked, clock_ns
from edgeserve.sched.protocol.events import Event, RequestCancelled

if TYPE_CHECKING:
    from edgeserve.live.runtime_core import RuntimeCore

log = logging.getLogger("edgeserve")

BURST_MAX = 64
"""Messages taken from the socket before the scheduler decides: a burst is one decision, but not an endless one."""


class Gateway:
    """The bus of one running server. Knows no policy; answers are sent by :class:`BusResponder` through its bus.

    ``fileno`` is for ``select``. It speaks only of changes, so it may be slept on only while the bus is ``drained``:
    nothing was left by the last :meth:`receive` and nothing was sent since (sending takes the sign away, too).
    """

    def __init__(self, core: RuntimeCore) -> None:
        server = core.config.server
        self._core = core
        self._validators = core.validators
        self.drained: bool = False
        self._open: Dict[bytes, Dict[Any, LiveRequest]] = {}  # connection -> key -> request that has not ended
        self._handlers: Dict[type, Callable[[Any, List[Event]], None]] = {
            Ask: self._asked, Cancel: self._cancelled, Control: self._controlled, ClientGone: self._gone}
        self.bus: Bus = Bus([server.endpoint or default_endpoint()], clock_ns=clock_ns,
                       message_bytes_max=server.message_bytes_max, clients_max=server.clients_max,
                       client_silence_ns=server.client_silence_ns,
                       curve_secret_key_file=core.config.curve_secret_key_path)
        self.fileno: int = self.bus.fileno()

    # --- the world's side ---------------------------------------------------------------------------------------------

    def receive(self, events: List[Event]) -> None:
        """Take what has come, a burst at most."""
        handlers = self._handlers
        news = self.bus.receive(BURST_MAX)
        self.drained = len(news) < BURST_MAX
        for message in news:
            handlers[type(message)](message, events)

    def next_due_ns(self) -> Optional[int]:
        return self.bus.next_due_ns()

    def forget(self, request: LiveRequest) -> None:
        """A request has ended."""
        connection = request.responder.connection
        if connection is not None:
            theirs = self._open.get(connection)
            if theirs is not None and theirs.pop(request.responder.key, None) is not None and not theirs:
                del self._open[connection]

    @property
    def endpoints(self) -> List[str]:
        return list(self.bus.endpoints)

    def close(self) -> None:
        """Nobody can come in any more; no socket file stays behind."""
        self.bus.close()

    # --- messages -----------------------------------------------------------------------------------------------------

    def _asked(self, ask: Ask, events: List[Event]) -> None:
        now_ns = clock_ns()
        try:
            validator = validator_of(self._validators, ask.app)
            validator.check_inputs(ask.inputs)
            asked = RequestOptions(ask.klass, ask.value, ask.stream, ask.on_late, ask.hints)
            options = validator.resolve_options(asked, ask.inputs)
            sent_ns = now_ns if ask.sent_ns is None else min(ask.sent_ns, now_ns)
            deadline_ns = validator.deadline_ns(ask.slo_ns, sent_ns, now_ns, options.on_late)
        except RequestError as error:
            self.drained = False
            self.bus.error(ask.client, ask.key, error)
            return
        responder = BusResponder(self, ask.client, ask.key, ask.name)
        # It arrived when it was sent, where that is known: while all lanes are busy it may be read much later.
        request = LiveRequest(validator.plan, ask.inputs, options, responder, sent_ns, deadline_ns)
        self._core.world.accept(request, events)
        if request.id:
            self._open.setdefault(ask.client, {})[ask.key] = request

    def _cancelled(self, cancel: Cancel, events: List[Event]) -> None:
        request = self._open.get(cancel.client, {}).get(cancel.key)
        if request is not None:
            events.append(RequestCancelled(request.id))

    def _gone(self, gone: ClientGone, events: List[Event]) -> None:
        theirs = self._open.get(gone.client, {})
        if theirs:
            log.info("client %s is gone (%s): %d requests are cancelled", gone.client.hex(), gone.reason, len(theirs))
        events.extend(RequestCancelled(request.id, "its client is gone: " + gone.reason) for request in theirs.values())

    def _controlled(self, control: Control, events: List[Event]) -> None:
        core = self._core
        if control.kind == "drain":
            core.mailbox.post(StopAsked(core.config.server.drain_ns))
            payload: Dict[str, Any] = {"draining": True, "open": core.world.payloads.open_count}
        elif control.kind == "stats":
            payload = core.stats()
        elif control.kind == "models":
            payload = core.models()
        elif control.kind == "apps":
            payload = core.apps()
        else:
            payload = {"ready": not core.world.stopping, "version": __version__, "core": compiled.running().kind,
                       "pid": os.getpid(), "open": core.world.payloads.open_count,
                       "lanes": {name: lane["state"] for name, lane in core.stats()["lanes"].items()}}
        self.drained = False
        self.bus.control_reply(control.client, control.key, payload)
