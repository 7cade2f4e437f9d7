"""The handling of ASGI's messages that all routes share: bodies within bounds, answers, errors, clients that
disconnect."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import zlib
from functools import lru_cache, partial
from typing import (
    Any,
    AsyncIterator,
    Awaitable,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from starlette.routing import Route

from edgeserve.errors import Failed, Malformed, TooLarge
from edgeserve.front import ClientGone, Forbidden, NotServed, Places, Tokens, is_loopback, origin_of
from edgeserve.fronts.http.backend import Backend, note_parent
from edgeserve.fronts.http.failures import details_of, message_of, note_fault, status_of
from edgeserve.fronts.http.settings import HttpConfig
from edgeserve.units import ns_to_s

log = logging.getLogger("edgeserve")

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Dict[str, Any]], Awaitable[None]]
Headers = List[Tuple[bytes, bytes]]
Handler = Callable[["Call"], Awaitable[None]]
ErrorBody = Callable[[BaseException], Dict[str, Any]]

JSON = b"application/json"
RETRY_AFTER_S = b"1"
"""Seconds that a client refused because of load must wait at least: the header's smallest number."""

DISCARDED = 4
"""So many times the bound of a body is read and thrown away: a client that still sends would not see its answer."""


JSON_AT_ONCE_MAX = 1024**2
"""Bytes of JSON that the event loop reads itself, such as a conversation: some 20 ms."""

UNPACKED_STEP = 4 * 1024**2
"""Bytes of a compressed body that are unpacked before it is asked whether there is room for more."""

DIGITS_MAX = 18

JSON_COST = 8
"""Times its size that JSON takes as lists and numbers: ``1.5,`` becomes 32 bytes."""


class Bounds(NamedTuple):
    """The bounds on one request's body, and on all together (``bodies``: bytes by origin)."""

    config: HttpConfig
    bodies: Places
    host: Optional[str]  # where there is no token: the address that the front listens on

    @property
    def body_s_max(self) -> float:
        """Seconds that a body may take to arrive."""
        return ns_to_s(self.config.body_timeout_ns)


class Call:
    """One HTTP request and the means to answer it."""

    __slots__ = ("scope", "receive", "send", "bounds", "begun", "read", "tokens", "token_name", "held_bytes")

    def __init__(self, scope: Scope, receive: Receive, send: Send, bounds: Bounds) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.bounds = bounds
        self.begun = False  # the answer's status has been sent
        self.tokens: Optional[Tokens] = None
        self.token_name: Optional[str] = None
        self.held_bytes = 0
        self.read = scope["method"] == "GET"  # the body has come whole, so that another request may follow it

    def header(self, name: bytes) -> str:
        """A header's value, or nothing; ``name`` in small letters."""
        for key, value in self.scope["headers"]:
            if key == name:
                return str(value.decode("latin-1"))
        return ""

    @property
    def origin(self) -> str:
        """The owner of the request, for the server's shares among clients."""
        client = self.scope.get("client")
        return origin_of(self.token_name or "", str(client[0]) if client else "")

    def check_token(self) -> None:
        """Raises :class:`Unauthorized` without a token, where there are tokens; later, too: one may be taken back."""
        if self.tokens is None:
            return
        name = self.tokens.shown_by(self.header(b"authorization"))
        if self.token_name is None:  # a token that is renamed meanwhile: what the request holds is of its first name
            self.token_name = name

    def path(self, name: str) -> str:
        """A part of the path."""
        return str(self.scope["path_params"].get(name, ""))

    def hold(self, nbytes: int) -> None:
        """The request takes so much more memory, until :meth:`end`. Raises :class:`~edgeserve.errors.Rejected` where
        that is too much for its origin, or for all."""
        self.bounds.bodies.enter(self.origin, nbytes)
        self.held_bytes += nbytes

    @contextlib.contextmanager
    def holding(self, nbytes: int) -> Iterator[None]:
        """The same for as long as the block lasts."""
        self.hold(nbytes)
        try:
            yield
        finally:
            self.bounds.bodies.leave(self.origin, nbytes)
            self.held_bytes -= nbytes

    def end(self) -> None:
        """The request is over."""
        if self.held_bytes:
            self.bounds.bodies.leave(self.origin, self.held_bytes)
            self.held_bytes = 0

    def hold_json(self, nbytes: int, bytes_max: int) -> None:
        """So many bytes of JSON are about to be read, ``bytes_max`` at most: what becomes of them is larger."""
        if nbytes > bytes_max:
            mend = (
                ""
                if bytes_max == JSON_AT_ONCE_MAX
                else f"; send binary tensors, or raise {self.bounds.config.where('json_max')}"
            )
            raise TooLarge(f"the body has {nbytes} bytes of JSON, at most {bytes_max} are allowed{mend}")
        self.hold((JSON_COST - 1) * nbytes)

    async def body(self) -> bytes:
        """The whole body, unpacked where it is compressed. Raises :class:`TooLarge`, or :class:`Malformed` when it does
        not arrive."""
        bytes_max = self.bounds.config.body_bytes_max
        length = self.header(b"content-length")
        if whole_of(length) > bytes_max * DISCARDED:
            raise self._too_large(whole_of(length))
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "called by a handler"
        overdue: List[bool] = []

        def give_up() -> None:
            overdue.append(True)
            task.cancel()

        timer = loop.call_later(self.bounds.body_s_max, give_up)
        try:
            data = await self._read(bytes_max)
        except asyncio.CancelledError:
            if overdue:
                raise Malformed(f"the body did not arrive within {self.bounds.body_s_max:g} s") from None
            raise
        finally:
            timer.cancel()
        encoding = self.header(b"content-encoding").lower()
        return await self._unpacked(data, encoding, bytes_max) if encoding else data

    async def _unpacked(self, data: bytes, encoding: str, bytes_max: int) -> bytes:
        """A body that came compressed, never more than ``bytes_max`` of it, nor more than there is room for."""
        if encoding == "identity":
            return data
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise NotServed(f"content-encoding {encoding[:40]!r} is not served; send gzip, deflate or none")
        machine = zlib.decompressobj(zlib.MAX_WBITS + 32)  # both have a header that says which it is
        parts: List[bytes] = []
        size = 0
        while not machine.eof:
            try:
                step = partial(machine.decompress, machine.unconsumed_tail if parts else data, UNPACKED_STEP)
                part = await asyncio.get_running_loop().run_in_executor(None, step)
            except zlib.error as error:
                raise Malformed(f"the body is not {encoding}: {error}") from None
            if not part and not machine.eof:
                raise Malformed(f"the body ends in the middle of its {encoding} data")
            size += len(part)
            if size > bytes_max:
                raise self._too_large(size)
            self.hold(len(part))
            parts.append(part)
        if machine.unused_data:
            raise Malformed(f"bytes follow the body's {encoding} data; send it as one member")
        return b"".join(parts)

    async def _read(self, bytes_max: int) -> bytes:
        parts: List[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] != "http.request":
                raise ClientGone("the client went away before its request was complete")
            part = message.get("body", b"")
            size += len(part)
            if size > bytes_max * DISCARDED:
                raise self._too_large(size)
            if size <= bytes_max:
                self.hold(len(part))
                parts.append(part)
            if not message.get("more_body", False):
                self.read = True
                if size > bytes_max:
                    raise self._too_large(size)
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def _too_large(self, size: int) -> TooLarge:
        config = self.bounds.config
        return TooLarge(
            f"the body has {size} bytes or more, at most {config.body_bytes_max} are allowed; raise "
            f"{config.where('body_max')}"
        )

    async def json(self, empty: Any = None) -> Any:
        """The body as JSON; ``empty`` where there is none."""
        data = await self.body()
        self.hold_json(len(data), min(JSON_AT_ONCE_MAX, self.bounds.config.json_bytes_max))
        return parse_json(data, empty)

    async def gone(self) -> None:
        """Returns when the client has gone. Only after the body was read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    @contextlib.asynccontextmanager
    async def until_gone(self) -> AsyncIterator[None]:
        """The block ends early, without an error, when the client goes: for answers that are sent in pieces."""
        task = asyncio.current_task()
        assert task is not None, "called by a handler"
        has_gone = False

        async def watch() -> None:
            nonlocal has_gone
            await self.gone()
            has_gone = True
            task.cancel()

        watching = asyncio.ensure_future(watch())
        try:
            yield
        except asyncio.CancelledError:
            if not has_gone:
                raise
        finally:
            watching.cancel()

    async def answer(self, body: Any = None, status: int = 200, headers: Sequence[Tuple[bytes, bytes]] = ()) -> None:
        """Send JSON, or ``bytes`` as they are with the ``content-type`` that is in ``headers``. Raises
        :class:`Unauthorized` where the request's token was taken back meanwhile."""
        if status < 400:
            self.check_token()
        data = body if isinstance(body, bytes) else b"" if body is None else to_json(body)
        own = [] if isinstance(body, bytes) else [(b"content-type", JSON)]
        length = (b"content-length", str(len(data)).encode())
        self.begun = True
        await self._sent(
            {"type": "http.response.start", "status": status, "headers": [*own, *headers, length]},
            {"type": "http.response.body", "body": data},
        )

    async def start(self, status: int, headers: Headers) -> None:
        """Send the status and the headers."""
        self.begun = True
        await self._sent({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, part: bytes, more: bool = False) -> None:
        """Send a part of the body; ``more`` of it follow. Raises :class:`ClientGone` where the client does not read
        what was sent before."""
        await self._sent({"type": "http.response.body", "body": part, "more_body": more})

    async def _sent(self, *messages: Dict[str, Any]) -> None:
        """Send within the time limit. By a timer: before Python 3.12 ``wait_for`` loses a cancellation that comes when
        the message has just gone."""
        task, late = asyncio.current_task(), False
        assert task is not None, "called by a handler"

        def give_up() -> None:
            nonlocal late
            late = True
            task.cancel()

        timer = asyncio.get_running_loop().call_later(self.bounds.body_s_max, give_up)
        try:
            for message in messages:
                await self.send(message)
        except asyncio.CancelledError:
            if late:
                raise ClientGone("the client does not read its answer") from None
            raise
        finally:
            timer.cancel()


def whole_of(text: str) -> int:
    """A whole number from 0 in a header or a path; -1 for anything else, and for more digits than a count has."""
    return int(text) if text.isdecimal() and len(text) <= DIGITS_MAX else -1


def to_json(value: Any) -> bytes:
    """Compact JSON. Raises :class:`Failed` for what JSON has no word for, such as an infinity that an app answers."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except ValueError as error:
        raise Failed(f"the answer is no JSON: {error}") from None


def parse_json(data: Any, empty: Any = None) -> Any:
    """JSON from bytes; :class:`Malformed` says where it is none."""
    if not len(data):
        return empty
    try:
        return json.loads(bytes(data), parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the body is not JSON: {error}") from None


def _finite(text: str) -> float:
    """A number of JSON, which knows no NaN and no infinity."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is no number of JSON")
    return number


def error_body(error: BaseException) -> Dict[str, Any]:
    """An error as the Open Inference Protocol has it, and as programs read it."""
    return {"error": message_of(error), **details_of(error)}


class Endpoint:
    """A route's ASGI application: calls ``handler`` and answers what it raises. ``tokens``: what clients must show."""

    def __init__(
        self, handler: Handler, bounds: Bounds, tokens: Optional[Tokens] = None, body: ErrorBody = error_body
    ) -> None:
        self._handler = handler
        self._bounds = bounds
        self._tokens = tokens or None
        self._error_body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        call = Call(scope, receive, send, self._bounds)
        note_parent(scope["headers"], b"traceparent")
        try:
            if self._bounds.host is not None:
                _check_page(scope["headers"], self._bounds.host, self._bounds.config)
            call.tokens = self._tokens
            call.check_token()
            await self._handler(call)
        except Exception as error:  # noqa: BLE001 logged, and answered
            note_fault(error, f"{scope['method']} {scope['path']}")
            await self._refuse(call, error)
        finally:
            call.end()

    async def _refuse(self, call: Call, error: BaseException) -> None:
        if call.begun or isinstance(error, ClientGone):
            return  # the client is gone, or the handler has sent the error in its stream
        status = status_of(error)
        headers = [(b"retry-after", RETRY_AFTER_S)] if status in (429, 503) else []
        if not call.read:
            headers.append((b"connection", b"close"))
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await call.answer(self._error_body(error), status, headers)


class Site(NamedTuple):
    """The common state of a front's routes: the server that they ask, the bounds, what clients must show, and the form
    of an error."""

    backend: Backend
    bounds: Bounds
    tokens: Tokens
    body: ErrorBody = error_body

    def route(self, path: str, handler: Handler, *methods: str, is_open: bool = False) -> Route:
        """A route; ``is_open``: for clients without a token, too."""
        endpoint = Endpoint(handler, self.bounds, None if is_open else self.tokens, self.body)
        return Route(path, endpoint, methods=list(methods))


def _check_page(headers: Headers, listens_on: str, config: HttpConfig) -> None:
    """Raises :class:`Forbidden` for what a page in a browser asks of a front without a token, unless it is the front's
    own or one of its ``origins``: any page may send requests to this machine's own ports, also by a name of its own
    that leads there."""
    own = b"http://" + next((value for key, value in headers if key == b"host"), b"")
    shown = next((value for key, value in headers if key == b"origin"), b"")
    is_allowed = shown.decode("latin-1").lower() in config.origins
    for key, value in headers:
        if (key == b"origin" and value != own and not is_allowed) or (
            key == b"sec-fetch-site" and value not in (b"none", b"same-origin") and not is_allowed
        ):
            raise Forbidden(
                "pages in a browser may ask a front that was started with a token, and send it; this one has none. "
                f"{config.where('origins')} names pages that may ask without"
            )
        if key == b"host" and not _is_own_name(value, listens_on):
            raise Forbidden(
                f"host {value[:80].decode('latin-1')!r}: a front without a token is asked by a name of this machine "
                f"alone, such as localhost, or by the address that it listens on ({listens_on})"
            )


@lru_cache(maxsize=64)
def _is_own_name(value: bytes, listens_on: str) -> bool:
    name, colon, port = value.decode("latin-1").lower().rpartition(":")
    if not colon or not port.isdecimal():
        name = value.decode("latin-1").lower()
    name = name.strip("[]").rstrip(".")
    return name == listens_on or is_loopback(name)
