"""Clients of a running server: :class:`Client` for threads, :class:`AsyncClient` for asyncio.

One I/O thread per client owns the socket (``ipc.courier``); callers hand it frames and get futures.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import time
import weakref
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Union

import numpy as np
import zmq
from numpy.typing import NDArray

from edgeserve.answer_streams import AnswerStream, AsyncAnswerStream
from edgeserve.answers import Answer, TakesPieces, TimedOut, answer_awaited, answer_within
from edgeserve.errors import BadInput, Cancelled, ConfigError, Rejected, RequestError
from edgeserve.interpreter import check_may_wait, check_process, may_wait
from edgeserve.ipc import wire
from edgeserve.ipc.courier import Courier, PendingReply
from edgeserve.ipc.endpoints import check_server_place, default_endpoint, read_client_keys, read_public_key
from edgeserve.ipc.link import Link
from edgeserve.ipc.slab import Lease
from edgeserve.ipc.tensors import LARGE_BYTES
from edgeserve.request_options import RequestOptions, given
from edgeserve.units import NS_PER_S, ms_to_ns

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Answer", "AnswerStream", "AsyncAnswerStream", "AsyncClient", "Client", "TimedOut"]

IN_FLIGHT_MAX = 4096  # requests of one client without a reply, the server's own bound per connection
CONNECT_MS = 2000.0  # a server that is starting gets this long to listen
SILENCE_NS = 10 * NS_PER_S  # a server answers heartbeats between decisions: this long without is a hang


class Client:
    """A connection to a server, usable from several threads; connects with the first request.

    ``endpoint`` is the server's (default: this user's own bus), ``timeout_ms`` how long :meth:`infer` and the
    questions wait at most, ``name`` what the server calls this client when it shares an app among clients,
    ``server_key`` the public key (or its file) of a server with CURVE keys, ``client_key`` the file of this client's
    own keys (``NAME.key_secret``), where that server lets only some clients in. A client does not survive ``fork``:
    make one in each process. ``shared_memory``: large tensors go through memory shared with a server on this host,
    instead of its socket. Then an answer's large arrays keep their part of it for as long as they live; copy what
    you keep for long.
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
        self._keys = itertools.count(1)
        place = self.endpoint
        check_server_place(place)
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

        self._courier = Courier(make_link, place, context)
        self._finalizer = weakref.finalize(self, self._courier.stop)

    def infer(
        self,
        app: str,
        inputs: Mapping[str, Any],
        *,
        timeout_ms: float | None = None,
        origin: str | None = None,
        **options: Unpack[RequestOptions],
    ) -> Answer:
        """Ask an app and wait for the answer. ``inputs`` maps names to numpy arrays, numbers or strings.

        ``slo_ms`` counts from now; ``priority_class``, ``value``, ``on_late`` default to the app's own. ``quality_min``
        (0 to 1) is the least quality of an ensemble's answer, or of a variant, that is of use. A request that does not
        complete raises a :class:`edgeserve.errors.RequestError`; :class:`TimedOut` after ``timeout_ms``, unless a
        language model has written something by then, which is the answer. Large arrays are not copied: they must not
        change until this returns. ``origin``: see :meth:`submit`.
        """
        check_may_wait("infer()")
        pending = self._ask(app, inputs, options, copy=False, origin=origin)
        answer: Answer = self._wait(pending, timeout_ms, f"app {app!r}")
        return answer

    def submit(
        self,
        app: str,
        inputs: Mapping[str, Any],
        *,
        copy: bool = True,
        origin: str | None = None,
        **options: Unpack[RequestOptions],
    ) -> Future[Answer]:
        """Like :meth:`infer`, but returns a future at once; its ``cancel()`` cancels on the server. Its ``id`` is the
        server's number of the request, 0 until the reply is there.

        With ``copy=False`` large arrays are not copied: the caller promises not to change them until the answer.
        ``origin`` is for a front that asks for others: whose request it is. Shares among clients then go by origin,
        where the front runs as the server's user or has a control key.
        """
        return self._ask(app, inputs, options, copy, origin=origin)

    def stream(
        self,
        app: str,
        inputs: Mapping[str, Any],
        *,
        timeout_ms: float | None = None,
        origin: str | None = None,
        **options: Unpack[RequestOptions],
    ) -> AnswerStream:
        """Ask an app for an answer in pieces, as its model works them out (a language model's words): an
        :class:`~edgeserve.answer_streams.AnswerStream`. An app without such a model brings none, only the answer.
        ``timeout_ms`` (default: the client's) bounds the wait for each piece. ``origin``: see :meth:`submit`."""
        pieces = AnswerStream(self.timeout_ms if timeout_ms is None else timeout_ms)
        return pieces.follow(self._ask(app, inputs, options, True, pieces, origin))

    def buffer(self, shape: Union[int, Sequence[int]], dtype: Any = "float32") -> NDArray[Any]:
        """An array of any content, to be filled and sent as an input. Where this client and its server share memory it
        lies there, and :meth:`infer` and :meth:`submit` with ``copy=False`` copy nothing; it must not change until the
        answer. Else, and where no room is left, it is an ordinary array. Use it again and again: its place is free when
        the last array over it is gone. The first one waits for the connection."""
        kind = np.dtype(dtype)
        extents = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(shape)
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
        asked: RequestOptions,
        copy: bool,
        pieces: Optional[TakesPieces] = None,
        origin: str | None = None,
    ) -> PendingReply:
        options = given(asked)
        if "priority_class" in options:
            options["class"] = options.pop("priority_class")
        if "hints" in options:
            options["hints"] = dict(options["hints"])
        if pieces is not None:
            options["pieces"] = True
        if self._name:
            options["client"] = self._name
        if origin:
            options["origin"] = origin
        if not isinstance(inputs, Mapping):
            raise BadInput(f"inputs are a {type(inputs).__name__}, expected a mapping of names to values")
        self._check()  # before anything is written to memory that another process may have
        if not self._courier.stands.is_set() and may_wait():
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
        check_process("Client", courier.process)
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
        pieces: Optional[TakesPieces] = None,
        app: str = "",
        lease: Optional[Lease] = None,
    ) -> PendingReply:
        self._check()
        courier = self._courier
        pending = PendingReply(courier, key, app)
        pending.stream = pieces
        if lease is not None and not lease.is_empty():
            pending.lease = lease
            lease.slab.lent[key] = lease
        courier.waiting[key] = pending
        courier.post(frames, pending)
        if courier.closed:
            courier.end(key, Cancelled("the client was closed"), None)
        return pending

    def _wait(self, pending: PendingReply, timeout_ms: float | None, what: str) -> Any:
        wait_ms = self.timeout_ms if timeout_ms is None else timeout_ms
        return answer_within(pending, wait_ms, what)

    def ask(self, kind: str, timeout_ms: float | None = None) -> Dict[str, Any]:
        """A question about the server: one of ``wire.CONTROL_KINDS``."""
        info: Dict[str, Any] = self._answer_to(kind, timeout_ms)
        return info

    def _answer_to(self, kind: str, timeout_ms: float | None = None, **words: Any) -> Any:
        check_may_wait(f"{kind}()")
        return self._wait(self._question(kind, **words), timeout_ms, kind)

    def _question(self, kind: str, **words: Any) -> PendingReply:
        """Send a question about the server."""
        key = next(self._keys)
        return self._post(key, [wire.encode_question(kind, key, words)])

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
        """Ask whether the server is ready, and why not."""
        return self.ask("health")

    def story(self, request_id: int) -> List[str]:
        """The story of a request, a line for each event: by the ``id`` of an answer or an error, this client's or
        another's. No line when the server does not remember it."""
        return list(self._answer_to("story", request_id=request_id)["story"])

    def trace(self, after: int = 0) -> Dict[str, Any]:
        """A page of the scheduler's last steps, as lines of a recording: ``lines``, ``first`` (the number of the first
        line's step), ``after`` (what to ask for next) and ``now_ns`` (the server's clock, which the steps are on)."""
        info: Dict[str, Any] = self._answer_to("trace", after=after)
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
        info: Dict[str, Any] = self._answer_to("reload", timeout_ms, model=model)
        return info

    def close(self) -> None:
        """Say goodbye; requests in flight end with :class:`Cancelled`. Idempotent."""
        if os.getpid() == self._courier.process and self._finalizer.detach() is not None:
            self._courier.stop()
            self._courier.join()

    def __enter__(self) -> Client:
        check_process("Client", self._courier.process)
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class AsyncClient:
    """The asyncio twin of :class:`Client`: the same arguments, awaited. Cancelling the task that waits cancels the
    request on the server. It runs on the same I/O thread as a :class:`Client`, so there is one client to trust."""

    def __init__(self, endpoint: str | None = None, **options: Any) -> None:
        self._client = Client(endpoint, **options)

    @property
    def client(self) -> Client:
        """The same connection, for threads and for futures."""
        return self._client

    @property
    def endpoint(self) -> str:
        return self._client.endpoint

    async def buffer(self, shape: Union[int, Sequence[int]], dtype: Any = "float32") -> NDArray[Any]:
        """See :meth:`Client.buffer`."""
        self._client._check()  # a forked child lacks the executor's threads
        return await asyncio.get_running_loop().run_in_executor(None, self._client.buffer, shape, dtype)

    async def infer(
        self,
        app: str,
        inputs: Mapping[str, Any],
        *,
        timeout_ms: float | None = None,
        origin: str | None = None,
        **options: Unpack[RequestOptions],
    ) -> Answer:
        """See :meth:`Client.infer`."""
        courier = self._client._courier
        self._client._check()
        if not courier.stands.is_set():
            await asyncio.get_running_loop().run_in_executor(None, courier.connect)
        pending = self._client._ask(app, inputs, options, copy=False, origin=origin)
        answer: Answer = await self._wait(pending, timeout_ms, f"app {app!r}")
        return answer

    def stream(
        self,
        app: str,
        inputs: Mapping[str, Any],
        *,
        timeout_ms: float | None = None,
        origin: str | None = None,
        **options: Unpack[RequestOptions],
    ) -> AsyncAnswerStream:
        """See :meth:`Client.stream`. To be called while the event loop runs; iterate over it with ``async for``."""
        client = self._client
        pieces = AsyncAnswerStream(client.timeout_ms if timeout_ms is None else timeout_ms)
        return pieces.follow(client._ask(app, inputs, options, True, pieces, origin))

    async def _wait(self, pending: PendingReply, timeout_ms: float | None, what: str) -> Any:
        wait_ms = self._client.timeout_ms if timeout_ms is None else timeout_ms
        return await answer_awaited(pending, wait_ms, what)

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
        info: Dict[str, Any] = await self._wait(self._client._question("story", request_id=request_id), None, "story")
        return list(info["story"])

    async def drain(self) -> Dict[str, Any]:
        """See :meth:`Client.drain`."""
        return await self.ask("drain")

    async def reload(self, model: str = "", timeout_ms: float | None = None) -> Dict[str, Any]:
        """See :meth:`Client.reload`."""
        info: Dict[str, Any] = await self._wait(self._client._question("reload", model=model), timeout_ms, "reload")
        return info

    async def close(self) -> None:
        """See :meth:`Client.close`; does not block the event loop."""
        if os.getpid() != self._client._courier.process:
            return
        await asyncio.get_running_loop().run_in_executor(None, self._client.close)

    async def __aenter__(self) -> AsyncClient:
        check_process("Client", self._client._courier.process)
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()
