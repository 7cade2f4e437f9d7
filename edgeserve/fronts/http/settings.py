"""The settings of the HTTP front."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Tuple

from edgeserve.errors import ConfigError
from edgeserve.front import FrontSettings, duration, entry, integer, size, string, takes, tuple_of

ANY_ORIGIN = "*"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?\Z")


@takes(type="string")
def web_origin(value: Any, where: str) -> str:
    """The origin of pages as browsers send it, in small letters: ``https://app.example:8443``; ``*`` is any."""
    text = string(value, where).lower()
    if text != ANY_ORIGIN and not _ORIGIN.match(text):
        raise ConfigError(
            f"{where} = {value!r}: expected scheme://host or scheme://host:port of a page, such as "
            "'https://app.example', without a path; '*' is any"
        )
    return text


@dataclass(frozen=True)
class HttpConfig(FrontSettings):
    """``[front.http]``: the front for clients that speak HTTP or gRPC (extra ``http``)."""

    FILES: ClassVar[Tuple[str, ...]] = (*FrontSettings.FILES, "token_file")

    listen: str = entry(string, "127.0.0.1:8000")  # HOST:PORT; beyond loopback only with a token_file
    grpc: str = entry(string, "")  # HOST:PORT for gRPC, such as 127.0.0.1:8001 (extra grpc); "" = none
    token_file: str = entry(string, "")  # bearer tokens of clients: one, or lines of NAME TOKEN; "" = none is asked for
    origins: Tuple[str, ...] = entry(tuple_of(web_origin), ())  # of pages in browsers that may ask; "*" = any
    server_name: str = entry(string, "edgeserve")  # what /v2 says; some of Triton's examples insist on "triton"
    body_bytes_max: int = entry(size, 64 * 1024**2, key="body_max")  # of one request, unpacked; images too
    body_timeout_ns: int = entry(duration, 30 * 10**9, key="body_timeout")  # how long a body may take to arrive
    json_bytes_max: int = entry(size, 16 * 1024**2, key="json_max")  # of one body's JSON; binary tensors do not count
    bodies_bytes_max: int = entry(size, 512 * 1024**2, key="bodies_max")  # of requests, unread answers; JSON: 8 times
    in_flight_max: int = entry(integer(1, 4096), 1024)  # requests without an answer; more are refused with status 429
    connections_max: int = entry(integer(1), 2048)  # of HTTP; more end the longest idle. Also gRPC's plain calls
    grpc_receive_max: int = entry(integer(1), 32)  # streams of gRPC, and messages of its other calls on their way
    grpc_message_max: int = entry(size, 16 * 1024**2)  # of one message of gRPC, in place of body_max
    timeout_ns: int = entry(duration, 60 * 10**9, key="timeout")  # an answer, or a piece of one, that takes longer: 504
    drain_ns: int = entry(duration, 5 * 10**9, key="drain")  # how long requests may take to end when it stops
