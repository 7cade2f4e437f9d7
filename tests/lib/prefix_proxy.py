"""A reverse proxy as ``location /edge/ { proxy_pass http://HOST:PORT/; }`` of nginx is one, for one request a
connection: what lies below its prefix goes on without it, and anything else is not found."""

from __future__ import annotations

import contextlib
import re
import socket
import socketserver
import threading
from typing import Iterator
from urllib.parse import urljoin

PREFIX = "/edge/"


@contextlib.contextmanager
def proxied(place: str) -> Iterator[str]:
    """The HOST:PORT of a proxy before the server at ``place``."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += self.rfile.readline()
            method, path, rest = head.split(b" ", 2)
            if not path.startswith(PREFIX.encode()):
                self.wfile.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                return
            own = b"\r\nHost: " + place.encode() + b"\r\nConnection: close"
            rest = re.sub(rb"(?i)\r\nhost: [^\r]*", own, rest, count=1)
            length = int((re.findall(rb"(?i)\r\ncontent-length: (\d+)", head) or [b"0"])[0])
            host, _, port = place.rpartition(":")
            with socket.create_connection((host, int(port)), 20) as server, contextlib.suppress(OSError):
                server.sendall(b" ".join((method, path[len(PREFIX) - 1 :], rest)) + self.rfile.read(length))
                for part in iter(lambda: server.recv(65536), b""):
                    self.wfile.write(part)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


ADDRESS = r"""(?:src=|href=|from |ask\()["`]([^"`?$]+)"""


def addresses(page: str, at: str, file: str = "") -> Iterator[str]:
    """The addresses that the text of a page at ``at`` has a browser ask, up to what a script puts in them. ``file``:
    where the script lies, for what it imports."""
    for found in re.finditer(ADDRESS, page):
        if not found[1].startswith("data:"):
            yield urljoin(file if found[0].startswith("from") else at, found[1])
