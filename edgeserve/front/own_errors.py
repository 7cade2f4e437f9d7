"""Errors of fronts themselves: a client without its token, a question that is not served, a client that has gone."""

from __future__ import annotations

from edgeserve.errors import Cancelled, RequestError


class NotServed(RequestError):
    """The protocol has this question, this server has no such thing."""

    code = "not_served"


class Unauthorized(RequestError):
    """The request does not carry the token that this front was started with."""

    code = "unauthorized"


class Forbidden(RequestError):
    """A page in a browser that is not allowed sent the request (any page may send requests to this machine's own
    ports), or one client of several asked for data that may be another's."""

    code = "forbidden"


class ClientGone(Cancelled):
    """The client closed its connection: the error has no receiver."""
