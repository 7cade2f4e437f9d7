"""A local server with OpenAI's API, on a port of its own: words that follow from the prompt, one per event.

It has a given number of slots, notices a client that leaves, and holds its answers back until ``go`` is set.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Dict, Iterator, List


class LocalServer(ThreadingHTTPServer):
    """``asked``: the bodies of requests for answers, in order; ``left``: clients that went before their end."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, slots: int = 4, **about: Any) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.models = [{"id": "words", "max_model_len": 256, **about}]
        self.asked: List[Dict[str, Any]] = []
        self.left = 0
        self.go = threading.Event()
        self.go.set()
        self.breaks_after = -1  # events, then the connection ends
        self.odd: Any = None  # an event in place of the second of prompts that ask for it
        self.writes = 0  # pieces in place of as many as are asked for
        self.closes = False  # whether its answers end their connections
        self.slots = threading.Semaphore(slots)
        self.most = self.running = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


def words_of(body: Dict[str, Any]) -> List[str]:
    """The answer's pieces."""
    prompt = body.get("prompt") or "".join([each["content"] for each in body["messages"]])
    draws = random.Random(f"{prompt} {body['seed'] if body.get('temperature') else ''}")
    return [f"{draws.choice('abcdefgh')}{draws.randrange(100)} " for _ in range(body["max_tokens"])]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: LocalServer

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:  # noqa: N802 http.server's name
        assert self.path == "/v1/models"
        self._json(200, {"object": "list", "data": self.server.models})

    def do_POST(self) -> None:  # noqa: N802 http.server's name
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append({**body, "authorization": self.headers.get("Authorization", "")})
        chat = self.path.endswith("/chat/completions")
        assert chat == ("messages" in body) and body["stream"] is True
        if "refuse me" in json.dumps(body):
            self._json(400, {"error": {"message": "the request exceeds the available context size"}})
            return
        with self.server.slots:
            with self.server.lock:
                self.server.running += 1
                self.server.most = max(self.server.most, self.server.running)
            try:
                self._stream(body, chat)
            except OSError:
                self.server.left += 1
            finally:
                with self.server.lock:
                    self.server.running -= 1

    def _stream(self, body: Dict[str, Any], chat: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        if self.server.closes:
            self.send_header("Connection", "close")
        self.end_headers()
        words = words_of({**body, "max_tokens": self.server.writes or body["max_tokens"]})
        for place, word in enumerate(words):
            while not self.server.go.wait(0.02):
                self._chunk(": still here\n\n")
            if place == self.server.breaks_after:
                self.close_connection = True
                self._chunk("", end=True)
                return
            if place >= 1 and self.server.writes and self.server.odd or place == 1 and "odd" in json.dumps(body):
                self._event(self.server.odd)
                continue
            said = {"delta": {"content": word}} if chat else {"text": word}
            self._event({"choices": [{"index": 0, **said, "finish_reason": None}]})
        last = {"delta": {}} if chat else {"text": ""}
        self._event({"choices": [{"index": 0, **last, "finish_reason": "length"}]})
        if (body.get("stream_options") or {}).get("include_usage"):
            self._event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": len(words)}})
        self._chunk("data: [DONE]\n\n")
        self._chunk("", end=True)

    def _event(self, event: Any) -> None:
        self._chunk(f"data: {json.dumps(event)}\n\n")

    def _chunk(self, text: str, end: bool = False) -> None:
        data = text.encode()
        self.wfile.write(b"0\r\n\r\n" if end else b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _json(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextlib.contextmanager
def local_server(**settings: Any) -> Iterator[LocalServer]:
    """A server that runs until the end of the block."""
    server = LocalServer(**settings)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.go.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
