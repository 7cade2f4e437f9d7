"""Clients of a running server: :class:`Client` for threads, :class:`AsyncClient` for asyncio.

One I/O thread per client owns the socket; callers hand it frames and get futures. What the frames mean is
``ipc.wire``'s, whether the server lives is ``ipc.link``'s.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import select
import threading
import time
import weakref
from collections import OrderedDict, deque
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Protocol, Sequence, Tuple, Union

import numpy as np
import zmq
from numpy.typing import NDArray

from edgeserve.answers import BREAKDOWN_KEYS, UNREAD, Answer, AnswerStream, AsyncAnswerStream, TimedOut
from edgeserve.errors import BadInput, Cancelled, ConfigError, Rejected, RequestError, ServerGone
from edgeserve.ipc import wire
from edgeserve.ipc.endpoints import default_endpoint, read_client_keys, read_public_key, split_endpoint
from edgeserve.ipc.link import Link
from edgeserve.ipc.slab import Lease, Slab, large_bytes
from edgeserve.ipc.tensors import LARGE_BYTES
from edgeserve.ipc.wire import Reply
from edgeserve.units import NS_PER_MS, NS_PER_S, ms_to_ns, ns_to_ms

__all__ = ["Answer", "AnswerStream", "AsyncAnswerStream", "AsyncClient", "Client", "TimedOut"]

IN_FLIGHT_MAX = 4096  # requests of one client without a reply, the server's own bound per connection
CONNECT_MS = 2000.0  # a server that is starting gets this long to listen
APPS_MAX = 1024  # whose answers' sizes a client remembers
LEFT_MAX = 256  # cancelled requests whose number may still come
NUMBER_S = 0.1  # for how long a time-out waits for it
MEMORY_S = 2.5  # a buffer waits so long at most for the connection and its shared memory
STAND_S = 0.25  # the first request waits so long at most for the connection, before its time begins
SILENCE_NS = 10 * NS_PER_S  # a server answers heartbeats between decisions: this long without is a hang


class _TakesPieces(Protocol):
    """An answer in pieces, as the I/O thread sees it."""

    def put(self, piece: Dict[str, Any]) -> bool:
        """A piece has come; False when too many are unread."""


class _Pending(Future):  # type: ignore[type-arg]  # Future is no generic class at run time on Python 3.8
    """The reply to come. ``cancel()`` also cancels on the server. ``id`` is the server's number of the request, 0 until
    the reply is there; a cancelled one is numbered when the server confirms. ``lease``: what it has of shared
    memory."""

    def __init__(self, courier: _Courier, key: int, app: str = "", lease: Optional[Lease] = None) -> None:
        super().__init__()
        self.id = 0
        self.courier = courier
        self.key = key
        self.app = app
        self.lease = lease
        self.stream: Optional[_TakesPieces] = None
        self.numbered: Optional[Future[int]] = None

    def cancel(self) -> bool:
        if not super().cancel():
            return False
        if self.courier.forget(self):
            self.set_running_or_notify_cancel()  # those who wait for several futures learn it only this way
        return True

    def give_up(self) -> Future[int]:
        """Cancel; the future gets the request's number when the server confirms."""
        self.numbered = Future()
        if not self.cancel():
            self.numbered.set_result(self.id)
        return self.numbered


class _Courier:
    """The I/O thread, and the mail between it and the callers. Started by the first request.

    Everything below ``run`` belongs to that thread. ``waiting`` is shared: the thread that
    pops a key ends that request.
    """

    def __init__(
        self, make_link: Callable[[zmq.Context[Any]], Link], endpoint: str, context: zmq.Context[Any] | None
    ) -> None:
        self.endpoint = endpoint
        self.waiting: Dict[int, _Pending] = {}
        self.closed = False
        self.slab: Optional[Slab] = None  # the link's memory, for the callers
        self._wants_memory = False
        self._knows_memory = threading.Event()  # it is there, or none will come
        self._left: OrderedDict[int, _Pending] = OrderedDict()  # cancelled, not confirmed yet
        self._answer_bytes: Dict[str, int] = {}  # by app, what its last answer needed of shared memory
        self._make_link = make_link
        self._context = context
        self._mail: Deque[Tuple[Any, Optional[_Pending]]] = deque()
        self._asleep = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        self.stands = threading.Event()  # the server has said something on this connection, or was waited for in vain

    def connect(self) -> None:
        """Connect before a request's time begins. When the server says nothing yet, the request waits no longer."""
        self.post((), None)
        self.stands.wait(STAND_S)
        self.stands.set()

    def memory(self) -> Optional[Slab]:
        """What is shared with the server; waits for it the first time. ``None``: nothing is."""
        if self.slab is None and not self.closed:
            self._wants_memory = True
            self.post((), None)
            self._knows_memory.wait(MEMORY_S)
            self._knows_memory.set()  # later buffers wait no more
        return self.slab

    def post(self, frames: Any, pending: Optional[_Pending]) -> None:
        """Send from any thread; ``pending`` gets the reply."""
        self._mail.append((frames, pending))
        if self._asleep:
            self._asleep = False
            self._ring()
        elif self._thread is None:
            self._start()

    def lease(self, app: str, inputs: Mapping[str, Any], stays: bool) -> Optional[Lease]:
        """Shared memory for a request to an app, with room for an answer like its last one. ``stays``: the inputs do
        not change until the reply."""
        slab = self.slab
        if slab is None:
            return None
        lease = Lease(slab)
        lease.borrow(inputs, self._answer_bytes.get(app, 0), stays)
        return lease

    def forget(self, pending: _Pending) -> bool:
        """The caller no longer wants this reply: tell the server. ``False`` when the reply was already being given."""
        if self.waiting.pop(pending.key, None) is None:
            return False
        if pending.numbered is not None:
            self._left[pending.key] = pending
            if len(self._left) > LEFT_MAX:
                self._left.popitem(last=False)
        self.post((wire.encode_plain("cancel", pending.key),), None)
        return True

    def stop(self) -> None:
        """Say goodbye and end the thread; requests that still wait are refused. Idempotent; does not wait for the
        thread."""
        self.closed = True
        if self._thread is None:
            return
        self._ring()

    def join(self) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _start(self) -> None:
        with self._start_lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="edgeserve-client", daemon=True)
                thread.start()
                self._thread = thread

    def _ring(self) -> None:
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            pass  # the pipe is full of wake-ups already

    def __del__(self) -> None:
        # Not when it stops: a caller could be about to ring, and the number might be another file's by then.
        os.close(self._wake_read)
        os.close(self._wake_write)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        own_context = self._context is None
        context: zmq.Context[Any] = zmq.Context() if self._context is None else self._context
        link: Link | None = None
        try:
            while not self.closed:
                if self._mail and link is None:
                    link = self._make_link(context)
                self._serve(link)
                if link is not None and link.lost:
                    self.slab = None
                    self.stands.clear()
                    self._knows_memory.clear()
                    self._fail_all(ServerGone(f"the server at {self.endpoint} is gone: {link.lost}"))
                    link.close()
                    link = None
        except (zmq.ZMQError, OSError) as error:
            self._fail_all(ServerGone(f"the connection to {self.endpoint} failed: {error}"))
        finally:
            self.closed = True  # before the waiting requests are refused: later callers read it
            self._knows_memory.set()
            self._fail_all(Cancelled("the client was closed"))
            if link is not None:
                link.close(goodbye=True)
            if own_context:
                context.term()

    def _serve(self, link: Link | None) -> None:
        """Until the link is lost, the first mail makes one necessary, or the client is closed."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if link is not None:
            for file in link.filenos():
                poll.register(file, select.POLLIN)
        look = True
        while not self.closed and (link is not None or not self._mail):
            timeout_ms: Optional[float] = None
            if link is not None:
                self._send_mail(link)
                has_read = self._read(link)
                now_ns = time.monotonic_ns()
                if look or now_ns >= link.due_ns:
                    link.look_after(bool(self.waiting))
                if link.lost:
                    return
                if has_read or self._mail:
                    look = False
                    continue  # libzmq's file is edge-triggered: wait only after a look found nothing
                timeout_ms = max(0, link.due_ns - now_ns) // NS_PER_MS + 1
            look = self._sleep(poll, timeout_ms, link)

    def _read(self, link: Link) -> bool:
        """Take what has come; whether something had. Nothing of it is held on to afterwards."""
        replies = link.receive()
        for reply in replies:
            self._settle(reply, link)
        self.slab = link.memory
        if link.connected and not self.stands.is_set():
            self.stands.set()
        if self._wants_memory and link.connected:
            self._look_for_memory(link)
        return bool(replies)

    def _look_for_memory(self, link: Link) -> None:
        """A caller waits for shared memory."""
        link.wish_for_memory()
        if link.memory is not None or not link.waits_for_memory:
            self._wants_memory = False
            self._knows_memory.set()

    def _sleep(self, poll: Any, timeout_ms: Optional[float], link: Link | None) -> bool:
        """Wait; ``True`` when something other than mail or a message may have happened."""
        self._asleep = True
        if self._mail or self.closed:
            self._asleep = False
            return False
        ready = poll.poll(timeout_ms)
        self._asleep = False
        for file, _ in ready:
            if file == self._wake_read:
                os.read(self._wake_read, 4096)
            elif link is not None and file == link.monitor_fileno:
                return True
        return False

    def _send_mail(self, link: Link) -> None:
        mail = self._mail
        while mail:
            frames, pending = mail.popleft()
            if pending is not None and not self._may_send(link, frames, pending):
                if pending.lease is not None:
                    pending.lease.slab.lent.pop(pending.key, None)
                    pending.lease.end()
                continue
            link.send(frames)

    def _may_send(self, link: Link, frames: Any, pending: _Pending) -> bool:
        if pending.key not in self.waiting:
            return False  # cancelled before it was sent
        if pending.lease is not None and pending.lease.slab is not link.memory:
            self.end(
                pending.key,
                ServerGone(
                    f"the server at {self.endpoint} is gone, with what lay in the memory that was shared with it"
                ),
                None,
            )
            return False
        try:
            if link.check_size(frames) >= LARGE_BYTES:
                link.wish_for_memory()
        except RequestError as error:
            self.end(pending.key, error, None)
            return False
        return True

    def _learn(self, reply: Reply, link: Link) -> None:
        """What an answer was like, for the next one of its app; what its request borrowed is given back."""
        lease = None if link.memory is None else link.memory.lent.pop(reply.key, None)
        if lease is not None:
            lease.end()
        pending = self.waiting.get(reply.key) if type(reply.key) is int else None
        if pending is None or reply.kind != "answer":
            return
        nbytes = large_bytes(reply.outputs)
        if nbytes:
            link.wish_for_memory()
        if nbytes != self._answer_bytes.get(pending.app, 0):
            if len(self._answer_bytes) >= APPS_MAX:
                self._answer_bytes.clear()
            self._answer_bytes[pending.app] = nbytes

    def _settle(self, reply: Reply, link: Link) -> None:
        if reply.kind == "answer" or reply.kind == "error":
            self._learn(reply, link)
        if reply.key is None:
            # The server could not read a message far enough to say which: with this client that is another version.
            self._fail_all(reply.error or ServerGone(f"the server at {self.endpoint} sent a reply without an id"))
        elif reply.error is not None:
            self.end(reply.key, reply.error, None)
        elif reply.kind == "piece":
            self._take_piece(reply)
        elif reply.kind == "info":
            self.end(reply.key, None, reply.info)
        else:
            self.end(reply.key, None, reply)

    def _take_piece(self, reply: Reply) -> None:
        pending = self.waiting.get(reply.key) if type(reply.key) is int else None
        if pending is None or pending.stream is None or pending.stream.put(reply.outputs):
            return
        self.end(pending.key, Cancelled(UNREAD), None)
        self.post((wire.encode_plain("cancel", pending.key),), None)

    def end(self, key: Any, error: Optional[BaseException], value: Any) -> None:
        """Give a request its one end, unless it has it already."""
        pending = self.waiting.pop(key, None)
        left = self._left.pop(key, None) if pending is None and self._left else None
        if left is not None and left.numbered is not None:
            left.id = error.id if isinstance(error, RequestError) else getattr(value, "request_id", 0)
            left.numbered.set_result(left.id)
        if pending is None or not pending.set_running_or_notify_cancel():
            return
        if error is not None:
            pending.id = error.id if isinstance(error, RequestError) else 0
            pending.set_exception(error)
        elif type(value) is Reply:
            pending.id = value.request_id
            pending.set_result(
                Answer(
                    value.outputs,
                    value.outcome,
                    value.late,
                    {name: ns_to_ms(part) for name, part in zip(BREAKDOWN_KEYS, value.breakdown)},
                    ns_to_ms(value.total_ns),
                    value.reason,
                    value.request_id,
                    value.quality,
                    value.branches,
                )
            )
        else:
            pending.set_result(value)

    def _fail_all(self, error: BaseException) -> None:
        for key in list(self.waiting):
            self.end(key, error, None)


class Client:
    """A connection to a server, usable from several threads; connects with the first request.

    ``endpoint`` is the server's (default: this user's own bus), ``timeout_ms`` how long :meth:`infer` and the
    questions wait at most, ``name`` what the server calls this client when it shares an app among clients,
    ``server_key`` the public key (or its file) of a server with CURVE keys, ``client_key`` the file of this client's
    own keys (``NAME.key_secret``), where that server lets only some clients in. A client does not survive ``fork``:
    make one in each process. ``shared_memory``: large tensors go through memory shared with a server on this host that
    gives some (``[server] shared_memory``), instead of its socket. Then an answer's large arrays keep their part of it
    for as long as they live; copy those that you keep for long.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        timeout_ms: float = 30_000.0,
        connect_ms: float = CONNECT_MS,
        name: str = "",
        server_key: str = "",
        client_key: str = "",
        shared_memory: bool = True,
        context: zmq.Context[Any] | None = None,
    ) -> None:
        self.endpoint = endpoint if endpoint is not None else default_endpoint()
        self.timeout_ms = timeout_ms
        self._name = name
        self._process = os.getpid()
        self._keys = itertools.count(1)
        place = self.endpoint
        split_endpoint(place)
        public_key = read_public_key(server_key).decode("ascii") if server_key else ""
        if client_key:
            if not server_key:
                raise ConfigError(
                    f"client_key = {client_key!r} without server_key: a client's own keys need the "
                    "server's public key; give server_key, too"
                )
            read_client_keys(client_key)  # what is wrong with it is said here, not by the connection's thread

        def make_link(link_context: zmq.Context[Any]) -> Link:
            return Link(
                place,
                link_context,
                time.monotonic_ns,
                connect_ns=ms_to_ns(connect_ms),
                silence_ns=SILENCE_NS,
                server_key=public_key,
                client_key=client_key,
                shared_memory=shared_memory,
            )

        self._courier = _Courier(make_link, place, context)
        self._finalizer = weakref.finalize(self, self._courier.stop)

    def infer(
        self,
        app: str,
        inputs: Mapping[str, Any],
        *,
        slo_ms: float | None = None,
        klass: str | None = None,
        value: float | None = None,
        stream: str | None = None,
        on_late: str | None = None,
        hints: Mapping[str, float] | None = None,
        quality_min: float | None = None,
        timeout_ms: float | None = None,
    ) -> Answer:
        """Ask an app and wait for the answer. ``inputs`` maps names to numpy arrays, numbers or strings.

        ``slo_ms`` counts from now; ``klass``, ``value``, ``on_late`` default to the app's own. ``quality_min`` (0 to 1)
        is the least quality of an ensemble's answer that is of use. A request that does not complete raises a
        :class:`edgeserve.errors.RequestError`; :class:`TimedOut` after ``timeout_ms``. Large arrays
        are not copied: they must not change until this returns.
        """
        pending = self._ask(app, inputs, False, slo_ms, klass, value, stream, on_late, hints, quality_min)
        answer: Answer = self._wait(pending, timeout_ms, f"app {app!r}")
        return answer

    def submit(
        self,
        app: str,
        inputs: Mapping[str, Any],
        *,
        slo_ms: float | None = None,
        klass: str | None = None,
        value: float | None = None,
        stream: str | None = None,
        on_late: str | None = None,
        hints: Mapping[str, float] | None = None,
        quality_min: float | None = None,
        copy: bool = True,
        origin: str | None = None,
    ) -> Future[Answer]:
        """Like :meth:`infer`, but returns a future at once; its ``cancel()`` cancels on the server. Its ``id`` is the
        server's number of the request, 0 until the reply is there.

        With ``copy=False`` large arrays are not copied: the caller promises not to change them until the answer.
        ``origin`` is for a front that asks for others: whose request it is. Shares among clients then go by origin,
        where the front runs as the server's user or has a control key.
        """
        return self._ask(app, inputs, copy, slo_ms, klass, value, stream, on_late, hints, quality_min, origin=origin)

    def stream(
        self,
        app: str,
        inputs: Mapping[str, Any],
        *,
        slo_ms: float | None = None,
        klass: str | None = None,
        value: float | None = None,
        stream: str | None = None,
        on_late: str | None = None,
        hints: Mapping[str, float] | None = None,
        quality_min: float | None = None,
        timeout_ms: float | None = None,
    ) -> AnswerStream:
        """Ask an app for an answer in pieces, as its model works them out (a language model's words): an
        :class:`~edgeserve.answers.AnswerStream`. An app without such a model brings none, only the answer.
        ``timeout_ms`` (default: the client's) bounds the wait for each piece."""
        pieces = AnswerStream((self.timeout_ms if timeout_ms is None else timeout_ms) / 1000)
        return pieces.follow(
            self._ask(app, inputs, True, slo_ms, klass, value, stream, on_late, hints, quality_min, pieces)
        )

    def buffer(self, shape: Union[int, Sequence[int]], dtype: Any = "float32") -> NDArray[Any]:
        """An array of any content, to be filled and sent as an input. Where this client and its server share memory it
        lies there, and :meth:`infer` and :meth:`submit` with ``copy=False`` copy nothing; it must not change until the
        answer. Else, and where no room is left, it is an ordinary array. Use it again and again: its place is free when
        the last array over it is gone. The first one waits for the connection."""
        kind = np.dtype(dtype)
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        if kind.hasobject or any(extent < 0 for extent in extents):
            raise BadInput(f"a buffer of dtype {kind} and shape {extents}: expected numbers, and sizes from 0")
        self._check()
        slab = self._courier.memory() if math.prod(extents) * kind.itemsize >= LARGE_BYTES else None
        made = None if slab is None else slab.buffer(extents, kind)
        return np.empty(extents, kind) if made is None else made

    def _ask(
        self,
        app: str,
        inputs: Mapping[str, Any],
        copy: bool,
        slo_ms: Any,
        klass: Any,
        value: Any,
        stream: Any,
        on_late: Any,
        hints: Any,
        quality_min: Any = None,
        pieces: Optional[_TakesPieces] = None,
        origin: str | None = None,
    ) -> _Pending:
        options: Dict[str, Any] = {}
        if pieces is not None:
            options["pieces"] = True
        if slo_ms is not None:
            options["slo_ms"] = slo_ms
        if klass is not None:
            options["class"] = klass
        if value is not None:
            options["value"] = value
        if stream is not None:
            options["stream"] = stream
        if on_late is not None:
            options["on_late"] = on_late
        if hints is not None:
            options["hints"] = dict(hints)
        if quality_min is not None:
            options["quality_min"] = quality_min
        if self._name:
            options["client"] = self._name
        if origin:
            options["origin"] = origin
        if not isinstance(inputs, Mapping):
            raise BadInput(f"inputs are a {type(inputs).__name__}, expected a mapping of names to values")
        self._check()  # before anything is written to memory that another process may have
        if not self._courier.stands.is_set():
            self._courier.connect()
        key = next(self._keys)
        lease = self._courier.lease(app, inputs, not copy)
        try:
            if lease is not None and lease.room is not None:
                options["room"] = lease.room
            frames = wire.encode_request(key, app, inputs, time.monotonic_ns(), options, lease)
            if copy:
                frames = [frame if type(frame) is bytes else bytes(frame) for frame in frames]
            return self._post(key, frames, pieces, app, lease)
        except BaseException:
            if lease is not None:
                lease.end()
            raise

    def _check(self) -> None:
        courier = self._courier
        if os.getpid() != self._process:
            raise RequestError(
                f"this client was made in process {self._process} and cannot be used in "
                f"{os.getpid()}: make a new Client after the fork"
            )
        if courier.closed:
            raise RequestError("this client is closed; make a new Client")
        if len(courier.waiting) >= IN_FLIGHT_MAX:
            raise Rejected(
                f"this client has {IN_FLIGHT_MAX} requests without a reply; wait for some first", "too many in flight"
            )

    def _post(
        self,
        key: int,
        frames: List[Any],
        pieces: Optional[_TakesPieces] = None,
        app: str = "",
        lease: Optional[Lease] = None,
    ) -> _Pending:
        self._check()
        courier = self._courier
        pending = _Pending(courier, key, app)
        pending.stream = pieces
        if lease is not None and not lease.is_empty():
            pending.lease = lease
            lease.slab.lent[key] = lease
        courier.waiting[key] = pending
        courier.post(frames, pending)
        if courier.closed:
            courier.end(key, Cancelled("the client was closed"), None)
        return pending

    def _wait(self, pending: _Pending, timeout_ms: float | None, what: str) -> Any:
        wait_ms = self.timeout_ms if timeout_ms is None else timeout_ms
        try:
            return pending.result(wait_ms / 1000)
        except FutureTimeoutError:
            if pending.done() and not pending.cancelled():
                return pending.result()  # the reply came (or was itself a time-out) at the last moment
            number = pending.give_up()
            wait((number,), NUMBER_S)
            raise _timed_out(what, wait_ms, pending) from None
        except BaseException:
            pending.cancel()  # Ctrl-C while waiting: nobody wants the answer any more
            raise

    def ask(self, kind: str, timeout_ms: float | None = None) -> Dict[str, Any]:
        """A question about the server: one of ``wire.CONTROL_KINDS``."""
        info: Dict[str, Any] = self._wait(self._question(kind), timeout_ms, kind)
        return info

    def _question(self, kind: str) -> _Pending:
        key = next(self._keys)
        return self._post(key, [wire.encode_plain(kind, key)])

    def apps(self) -> Dict[str, Any]:
        """The apps that are served, with their inputs and deadlines."""
        return self.ask("apps")

    def models(self) -> Dict[str, Any]:
        """The models, where they are loaded and what they occupy."""
        return self.ask("models")

    def stats(self) -> Dict[str, Any]:
        """Counters since the start: per app, lane and policy."""
        return self.ask("stats")

    def health(self) -> Dict[str, Any]:
        """Whether the server is ready."""
        return self.ask("health")

    def story(self, request_id: int) -> List[str]:
        """What happened to a request, a line each: by the ``id`` of an answer or an error, this client's or another's.
        No line when the server does not remember it."""
        info: Dict[str, Any] = self._wait(self._story_question(request_id), None, "story")
        return list(info["story"])

    def _story_question(self, request_id: int) -> _Pending:
        key = next(self._keys)
        return self._post(key, [wire.encode_story(key, request_id)])

    def trace(self, after: int = 0) -> Dict[str, Any]:
        """A page of the scheduler's last steps, as lines of a recording: ``lines``, ``first`` (the number of the first
        line's step), ``after`` (what to ask for next) and ``now_ns`` (the server's clock, which the steps are on)."""
        key = next(self._keys)
        info: Dict[str, Any] = self._wait(self._post(key, [wire.encode_trace(key, after)]), None, "trace")
        return info

    def drain(self) -> Dict[str, Any]:
        """Ask the server to accept nothing more and to finish what it accepted. For its owner's user id and for control
        keys: :class:`~edgeserve.errors.NotAllowed` to others."""
        return self.ask("drain")

    def reload(self, model: str = "", timeout_ms: float | None = None) -> Dict[str, Any]:
        """Without a name: have the server read its configuration again; ``failed`` is empty, or says under
        ``configuration`` why nothing has changed. With one: have a model loaded anew, beside the old one, and put in
        its place: ``devices``, and ``failed`` (device -> why it goes on with the old one). For its owner's user id
        and for control keys."""
        info: Dict[str, Any] = self._wait(self._reload_question(model), timeout_ms, "reload")
        return info

    def _reload_question(self, model: str) -> _Pending:
        key = next(self._keys)
        return self._post(key, [wire.encode_reload(key, model)])

    def close(self) -> None:
        """Say goodbye; requests in flight end with :class:`Cancelled`. Idempotent."""
        if os.getpid() == self._process and self._finalizer.detach() is not None:
            self._courier.stop()
            self._courier.join()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _timed_out(what: str, wait_ms: float, pending: _Pending) -> TimedOut:
    error = TimedOut(f"{what}: no answer within {wait_ms:g} ms; the request was cancelled")
    error.id = pending.id
    return error


class AsyncClient:
    """The asyncio twin of :class:`Client`: the same arguments, awaited. Cancelling the task that waits cancels the
    request on the server. It runs on the same I/O thread as a :class:`Client`, so there is one client to trust."""

    def __init__(self, endpoint: str | None = None, **options: Any) -> None:
        self._client = Client(endpoint, **options)

    @property
    def endpoint(self) -> str:
        return self._client.endpoint

    async def buffer(self, shape: Union[int, Sequence[int]], dtype: Any = "float32") -> NDArray[Any]:
        """See :meth:`Client.buffer`."""
        return await asyncio.get_running_loop().run_in_executor(None, self._client.buffer, shape, dtype)

    async def infer(
        self,
        app: str,
        inputs: Mapping[str, Any],
        *,
        slo_ms: float | None = None,
        klass: str | None = None,
        value: float | None = None,
        stream: str | None = None,
        on_late: str | None = None,
        hints: Mapping[str, float] | None = None,
        quality_min: float | None = None,
        timeout_ms: float | None = None,
    ) -> Answer:
        """See :meth:`Client.infer`."""
        courier = self._client._courier
        if not courier.stands.is_set():
            await asyncio.get_running_loop().run_in_executor(None, courier.connect)
        pending = self._client._ask(app, inputs, False, slo_ms, klass, value, stream, on_late, hints, quality_min)
        answer: Answer = await self._wait(pending, timeout_ms, f"app {app!r}")
        return answer

    def stream(
        self,
        app: str,
        inputs: Mapping[str, Any],
        *,
        slo_ms: float | None = None,
        klass: str | None = None,
        value: float | None = None,
        stream: str | None = None,
        on_late: str | None = None,
        hints: Mapping[str, float] | None = None,
        quality_min: float | None = None,
        timeout_ms: float | None = None,
        origin: str | None = None,
    ) -> AsyncAnswerStream:
        """See :meth:`Client.stream`, and :meth:`Client.submit` for ``origin``. To be called while the event loop runs;
        iterate over it with ``async for``."""
        client = self._client
        pieces = AsyncAnswerStream((client.timeout_ms if timeout_ms is None else timeout_ms) / 1000)
        return pieces.follow(
            client._ask(app, inputs, True, slo_ms, klass, value, stream, on_late, hints, quality_min, pieces, origin)
        )

    async def _wait(self, pending: _Pending, timeout_ms: float | None, what: str) -> Any:
        wait_ms = self._client.timeout_ms if timeout_ms is None else timeout_ms
        future = asyncio.wrap_future(pending)
        try:
            done, _ = await asyncio.wait({future}, timeout=wait_ms / 1000)
        except asyncio.CancelledError:
            pending.cancel()
            raise
        if done:
            return future.result()
        await asyncio.wait({asyncio.wrap_future(pending.give_up())}, timeout=NUMBER_S)
        raise _timed_out(what, wait_ms, pending)

    async def ask(self, kind: str, timeout_ms: float | None = None) -> Dict[str, Any]:
        """See :meth:`Client.ask`."""
        info: Dict[str, Any] = await self._wait(self._client._question(kind), timeout_ms, kind)
        return info

    async def apps(self) -> Dict[str, Any]:
        """See :meth:`Client.apps`."""
        return await self.ask("apps")

    async def models(self) -> Dict[str, Any]:
        """See :meth:`Client.models`."""
        return await self.ask("models")

    async def stats(self) -> Dict[str, Any]:
        """See :meth:`Client.stats`."""
        return await self.ask("stats")

    async def health(self) -> Dict[str, Any]:
        """See :meth:`Client.health`."""
        return await self.ask("health")

    async def story(self, request_id: int) -> List[str]:
        """See :meth:`Client.story`."""
        info: Dict[str, Any] = await self._wait(self._client._story_question(request_id), None, "story")
        return list(info["story"])

    async def drain(self) -> Dict[str, Any]:
        """See :meth:`Client.drain`."""
        return await self.ask("drain")

    async def reload(self, model: str = "", timeout_ms: float | None = None) -> Dict[str, Any]:
        """See :meth:`Client.reload`."""
        info: Dict[str, Any] = await self._wait(self._client._reload_question(model), timeout_ms, "reload")
        return info

    async def close(self) -> None:
        """See :meth:`Client.close`; does not block the event loop."""
        await asyncio.get_running_loop().run_in_executor(None, self._client.close)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()
