"""One answer of a server with OpenAI's API, as it is written: a connection and the thread that reads it.

The thread puts what arrives on a list, and tells a condition that the lane waits on. Closing the connection from any
thread ends it, and the server's work on the answer with it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections import deque
from typing import Any, Deque, Dict, List, Mapping, NamedTuple, Optional
from urllib.parse import urlsplit

from edgeserve.errors import EngineError, WrongInput

ERROR_BYTES_MAX = 4096
"""The bytes of a refusal that are shown."""

ANSWER_BYTES_MAX = 1 << 24
"""The bound on the list of models."""

LINE_BYTES_MAX = 1 << 20
"""The bound on one line of a stream: an event with probabilities takes a few thousand."""

REFUSALS = (400, 404, 413, 422)
"""Statuses that blame the request, not the server."""


class Server(NamedTuple):
    """A server: the URL below which ``/models`` lies, the key that it wants (empty: none), and how long it may say
    nothing."""

    url: str
    key: str
    patience_s: float

    def ask(self, path: str) -> Dict[str, Any]:
        """The JSON object that lies there. Raises :class:`EngineError`."""
        connection = self._connected()
        try:
            return _object(self._sent(connection, path, None).read(ANSWER_BYTES_MAX))
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise EngineError(f"{self.url}{path} failed: {type(error).__name__}: {error}") from error
        finally:
            connection.close()

    def begin(self, path: str, body: Mapping[str, Any], news: threading.Condition) -> ServerStream:
        """Ask for an answer in pieces. Returns at once: what fails is told by the stream."""
        return ServerStream(self, path, body, news)

    def _connected(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=self.patience_s)

    def _sent(
        self, connection: http.client.HTTPConnection, path: str, body: Optional[Mapping[str, Any]]
    ) -> http.client.HTTPResponse:
        """The response, whose body is not read yet. Raises :class:`EngineError` where it is a refusal."""
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {self.key}"} if self.key else {})}
        data = None if body is None else json.dumps(body).encode()
        connection.request("GET" if body is None else "POST", urlsplit(self.url).path + path, data, headers)
        response = connection.getresponse()
        if response.status != 200:
            with response:
                said = response.read(ERROR_BYTES_MAX).decode("utf-8", "replace")
            kind = WrongInput if response.status in REFUSALS else EngineError
            raise kind(f"{self.url}{path} answered {response.status}: {_message(said)}")
        return response


class ServerStream:
    """The events of one answer. ``events``: the ones that arrived and were not taken; the last one is ``None`` or an
    :class:`EngineError`."""

    def __init__(self, server: Server, path: str, body: Mapping[str, Any], news: threading.Condition) -> None:
        self._server, self._path, self._body = server, path, body
        self._news = news
        self._events: Deque[Any] = deque()
        self._closed = False
        self._connection = server._connected()
        self._socket: Optional[socket.socket] = None
        threading.Thread(target=self._read, name="edgeserve-lm-stream", daemon=True).start()

    def take(self) -> List[Any]:
        """The next event, if one has arrived."""
        with self._news:
            return [self._events.popleft()] if self._events else []

    def close(self) -> None:
        """End the answer. Idempotent, on any thread; the reading thread ends by itself."""
        self._closed = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        last: Optional[EngineError] = None
        try:
            self._connection.connect()
            self._socket = self._connection.sock  # the connection forgets it where the server closes afterwards
            if self._closed:
                return
            with self._server._sent(self._connection, self._path, self._body) as response:
                self._listen(response)
        except EngineError as error:
            last = error
        except Exception as error:  # noqa: BLE001 sockets, HTTP and JSON raise many kinds; also where it was closed
            last = EngineError(f"{self._server.url} failed within an answer: {type(error).__name__}: {error}")
        finally:
            self._connection.close()
        self._tell(last)

    def _listen(self, response: http.client.HTTPResponse) -> None:
        """Tell the events up to the last. A server that fails within an answer sends an error, and the last all the
        same."""
        while not self._closed:
            line = response.readline(LINE_BYTES_MAX)
            if not line:
                raise EngineError(f"{self._server.url} ended an answer in the middle")
            if not line.startswith(b"data:"):
                continue
            if line[5:].strip() == b"[DONE]":
                return
            event = _object(line[5:])
            if event.get("error"):
                raise EngineError(f"{self._server.url} failed within an answer: {_message(json.dumps(event))}")
            self._tell(event)

    def _tell(self, event: Any) -> None:
        with self._news:
            self._events.append(event)
            self._news.notify_all()


def _object(text: bytes) -> Dict[str, Any]:
    """A JSON object. Raises :class:`ValueError` for anything else."""
    said = json.loads(text)
    if not isinstance(said, dict):
        raise ValueError(f"{text[:80]!r} is no JSON object")
    return said


def _message(text: str) -> str:
    """The message in an error of OpenAI's form; else the text."""
    try:
        said: Any = json.loads(text)
    except ValueError:
        return text.strip()
    error: Any = said.get("error", said) if isinstance(said, dict) else said
    about: Dict[str, Any] = error if isinstance(error, dict) else {}
    return str(about.get("message", error))
