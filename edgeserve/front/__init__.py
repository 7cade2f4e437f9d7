"""The names that a front imports: a front lets clients of another protocol ask the apps of a running server.

A front asks through :class:`~edgeserve.client.AsyncClient` and catches :mod:`edgeserve.errors`; what it owes its
clients is the same for every protocol, and is here once. Pictures and sound are in ``edgeserve.front.images`` and
``edgeserve.front.sound``. The page on fronts is the tutorial.

* The contract: :class:`Front` and its :class:`FrontSettings`, whose keys ``[front.NAME]`` has; :data:`Ready`. Readers
  of keys: :func:`entry` with :func:`string`, :func:`boolean`, :func:`integer`, :func:`number`, :func:`size`,
  :func:`duration`, :func:`one_of`, :func:`tuple_of`, :func:`table_of`; :func:`takes` marks one of your own.
* Who asks, for the server's shares among clients: :func:`user_at`, :func:`user_of_address`, :func:`origin_of`, and
  :class:`Tokens`, which :func:`read_tokens` reads.
* Bounds: :class:`Places` of requests or bytes, which one call has as :class:`Held`; :class:`Seats` of what lasts, which
  :func:`seated` takes for a block, and :class:`AcceptedConnections` for each connection that asyncio accepts.
* Which app takes what the front brings: :class:`ServedApp`, :func:`app_for`, :func:`of_any`, :func:`of_text`,
  :data:`STREAMS`; values as JSON: :func:`inputs_from_json`, :func:`as_json`, :func:`array_of`.
* What of a text no piece had: :func:`rest_of`.
* Names in other systems, escaped one to one: :func:`topic_part`, :func:`key_of`, :func:`label_of`.
* Errors of fronts themselves: :class:`ClientGone`, :class:`Forbidden`, :class:`NotServed`, :class:`Unauthorized`.
* Logs and settings: :class:`Troubles`, :func:`one_line`, :func:`host_and_port`, :func:`is_loopback`,
  :func:`lines_of`, :func:`read_text`.
"""

from __future__ import annotations

from edgeserve.config.addresses import host_and_port, is_loopback
from edgeserve.config.plain_text import one_line
from edgeserve.config.readers import (
    boolean,
    duration,
    entry,
    integer,
    number,
    one_of,
    size,
    string,
    table_of,
    takes,
    tuple_of,
)
from edgeserve.config.text_files import read_text
from edgeserve.front.accepting import AcceptedConnections
from edgeserve.front.contract import Front, FrontSettings, Ready
from edgeserve.front.numbers import array_of
from edgeserve.front.origins import Tokens, origin_of, read_tokens, user_at, user_of_address
from edgeserve.front.own_errors import ClientGone, Forbidden, NotServed, Unauthorized
from edgeserve.front.pieces import rest_of
from edgeserve.front.places import Held, Places, Seats, seated
from edgeserve.front.served_apps import (
    STREAMS,
    ServedApp,
    Troubles,
    app_for,
    as_json,
    inputs_from_json,
    lines_of,
    of_any,
    of_text,
)
from edgeserve.front.topics import key_of, label_of, topic_part

__all__ = [
    "STREAMS",
    "ClientGone",
    "AcceptedConnections",
    "Forbidden",
    "Front",
    "FrontSettings",
    "Held",
    "NotServed",
    "Places",
    "Ready",
    "Seats",
    "ServedApp",
    "Tokens",
    "Troubles",
    "Unauthorized",
    "app_for",
    "array_of",
    "as_json",
    "boolean",
    "duration",
    "entry",
    "host_and_port",
    "inputs_from_json",
    "integer",
    "is_loopback",
    "key_of",
    "label_of",
    "lines_of",
    "number",
    "of_any",
    "of_text",
    "one_line",
    "one_of",
    "origin_of",
    "read_text",
    "read_tokens",
    "rest_of",
    "seated",
    "size",
    "string",
    "table_of",
    "takes",
    "topic_part",
    "tuple_of",
    "user_at",
    "user_of_address",
]
