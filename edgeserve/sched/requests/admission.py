"""Who may still come in: the bound on an app's pending requests, shared among its clients by weight.

While there is room everybody comes in. When an app is full, a client below its share takes the place of the newest
waiting request of the client that is furthest above its own; a client at or above its share is refused.
"""

from __future__ import annotations

from typing import Dict

from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import RequestRecord

QUEUE_FULL = "queue_full"
OVER_SHARE = "over_share"


class Admission:
    """Accepted requests that have not ended, of one app, by client; ``last_ns`` is when the last came in. Changed by
    the scheduler alone."""

    __slots__ = ("app", "pending", "clients", "last_ns")

    def __init__(self, app: App) -> None:
        self.app = app
        self.pending = 0
        self.last_ns = -(2**62)
        self.clients: Dict[str, Dict[int, RequestRecord]] = {}

    def enter(self, request: RequestRecord) -> None:
        """The request was accepted."""
        self.pending += 1
        theirs = self.clients.get(request.client)
        if theirs is None:
            theirs = self.clients[request.client] = {}
        theirs[request.id] = request

    def leave(self, request: RequestRecord) -> None:
        """The request ended."""
        self.pending -= 1
        theirs = self.clients[request.client]
        del theirs[request.id]
        if not theirs:
            del self.clients[request.client]

    def use(self, client: str) -> float:
        """A client's pending requests per unit of its weight."""
        return len(self.clients.get(client, ())) / self.app.weights.get(client, 1.0)

    def to_displace(self, client: str) -> RequestRecord | None:
        """When full: the request that must go so that one of ``client`` can come in, or None if ``client`` itself is
        at or above its share. O(clients + pending of the greediest)."""
        if not self.clients:
            return None
        greediest = max(sorted(self.clients), key=self.use)
        own_use = (len(self.clients.get(client, ())) + 1) / self.app.weights.get(client, 1.0)
        if greediest == client or own_use >= self.use(greediest):
            return None
        waiting = [request for request in self.clients[greediest].values() if request.running == 0]
        return waiting[-1] if waiting else None
