"""The deployment of Ray Serve: one replica per device behind one dispatcher. The only module that imports Ray.

Every device is a deployment of a single replica, since devices differ and a refused request is meant for one of them,
not for any. Ray queues nothing in front of a replica that its scheduler should see: ``max_ongoing_requests`` is above
``[server] pending_max``.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from typing import Any, AsyncGenerator, Awaitable, Dict, List, Mapping, Optional

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before Ray is imported: it would send usage reports

import ray.exceptions
from ray import serve
from ray.serve import metrics
from ray.serve.exceptions import RayServeException

from edgeserve.config.loading import load_config
from edgeserve.errors import ServerGone
from edgeserve.fronts.ray.calls import Outlooks, RayCall, RayReply, Told
from edgeserve.fronts.ray.client import ClusterClient
from edgeserve.fronts.ray.dispatcher import Dispatcher
from edgeserve.fronts.ray.replica import Replica

log = logging.getLogger("edgeserve")

APP_NAME = "edgeserve"
CONTROL_MAX = 64
"""Questions (what is expected, statistics, health) that a replica takes beside its requests."""

LOST = (ray.exceptions.RayError, RayServeException)
"""The exceptions of a call to a replica that ended or cannot be reached: replicas reply with their own errors."""

BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class RayMeters:
    """Metrics of one replica, which Ray exports as ``ray_edgeserve_requests_total`` and so on. It adds the labels
    ``deployment`` (here the device) and ``replica``."""

    def __init__(self) -> None:
        self._ended = metrics.Counter(
            "edgeserve_requests", "Requests that ended, by outcome and reason.", tag_keys=("app", "outcome", "reason")
        )
        self._late = metrics.Counter("edgeserve_requests_late", "Answers after their deadline.", tag_keys=("app",))
        self._took = metrics.Histogram(
            "edgeserve_request_duration_seconds",
            "From sending to answer.",
            boundaries=list(BOUNDS_S),
            tag_keys=("app",),
        )
        self._open = metrics.Gauge("edgeserve_requests_open", "Requests at the replica that have not ended.")

    def ended(self, app: str, outcome: str, reason: str, late: bool, total_ms: float) -> None:
        """See :class:`~edgeserve.fronts.ray.replica.Meters`."""
        self._ended.inc(tags={"app": app, "outcome": outcome, "reason": reason})
        if outcome == "completed":
            self._took.observe(total_ms / 1000, tags={"app": app})
        if late:
            self._late.inc(tags={"app": app})

    def open(self, count: int) -> None:
        """See :class:`~edgeserve.fronts.ray.replica.Meters`."""
        self._open.set(count)


class DeviceReplica(Replica):
    """A :class:`Replica` inside Ray Serve."""

    def __init__(self, config: str) -> None:
        super().__init__(config, RayMeters())

    def __del__(self) -> None:  # what Ray Serve calls when the requests have ended
        if hasattr(self, "_runtime"):  # the constructor may have raised
            self.close()


class RayHandle:
    """A replica, from the dispatcher."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self._streaming = handle.options(stream=True)

    def infer(self, call: RayCall) -> Awaitable[RayReply]:
        """See :meth:`Replica.infer`."""
        return self.handle.infer.remote(call)  # type: ignore[no-any-return]

    async def stream(self, call: RayCall) -> AsyncGenerator[Any, None]:
        """See :meth:`Replica.stream`."""
        items = self._streaming.stream.remote(call)
        try:
            async for item in items:
                yield item
        finally:
            items.cancel()  # does nothing when it has ended

    def outlook(self) -> Awaitable[Outlooks]:
        """See :meth:`Replica.outlook`."""
        return self.handle.outlook.remote()  # type: ignore[no-any-return]

    def stats(self) -> Awaitable[Dict[str, Any]]:
        """See :meth:`Replica.stats`."""
        return self.handle.stats.remote()  # type: ignore[no-any-return]

    def story(self, request_id: int) -> Awaitable[List[str]]:
        """See :meth:`Replica.story`."""
        return self.handle.story.remote(request_id)  # type: ignore[no-any-return]


class RayFront:
    """The deployment that clients ask: a dispatcher over the replicas of every device."""

    def __init__(self, handles: Mapping[str, Any]) -> None:
        self._handles = dict(handles)
        self._retries = metrics.Counter(
            "edgeserve_retries", "Requests tried a second time elsewhere.", tag_keys=("first", "second", "why")
        )
        self._dispatcher: Optional[Dispatcher] = None

    async def infer(self, call: RayCall) -> RayReply:
        """See :meth:`Dispatcher.infer`."""
        return await (await self._started()).infer(call)

    async def stream(self, call: RayCall) -> AsyncGenerator[Any, None]:
        """See :meth:`Dispatcher.stream`."""
        items = (await self._started()).stream(call)
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()

    async def _started(self) -> Dispatcher:
        if self._dispatcher is None:
            self._dispatcher = Dispatcher(
                {name: RayHandle(handle) for name, handle in self._handles.items()}, LOST, self._retried
            )
        await self._dispatcher.start()
        return self._dispatcher

    def _retried(self, first: str, second: str, why: str) -> None:
        self._retries.inc(tags={"first": first, "second": second, "why": why})

    async def stats(self) -> Dict[str, Any]:
        """See :meth:`Dispatcher.stats`."""
        return await (await self._started()).stats()

    async def story(self, replica: str, request_id: int) -> Told:
        """See :meth:`Dispatcher.story`."""
        return await (await self._started()).story(replica, request_id)


@dataclass(frozen=True)
class RayDevice:
    """One device to serve on: a configuration file, and what Ray has to give its replica, such as ``{"num_gpus": 1}``
    or a node's resource. A replica with a GPU of its own sees it as GPU 0. The file and the models lie at the same
    path on every machine that may get the replica."""

    config: str
    ray_actor_options: Mapping[str, Any] = field(default_factory=lambda: {"num_cpus": 1})


def application(devices: Mapping[str, RayDevice], fronts: int = 1) -> Any:
    """The application of Ray Serve for these devices, by name; ``serve.run`` starts it. ``fronts`` is the number of
    dispatchers: more than one know nothing of each other's calls. Raises
    :class:`~edgeserve.errors.ConfigError` where a configuration is wrong."""
    replicas = {}
    for name, device in devices.items():
        path = os.path.abspath(device.config)
        pending_max = load_config(path).server.pending_max
        one = serve.deployment(
            DeviceReplica,
            name=name,
            num_replicas=1,
            max_ongoing_requests=pending_max + CONTROL_MAX,
            ray_actor_options=dict(device.ray_actor_options),
        )
        replicas[name] = one.bind(path)
    total = sum(load_config(device.config).server.pending_max for device in devices.values())
    front = serve.deployment(
        RayFront,
        name="front",
        num_replicas=fronts,
        max_ongoing_requests=total + CONTROL_MAX,
        ray_actor_options={"num_cpus": 0},
    )
    return front.bind(replicas)


def run(devices: Mapping[str, RayDevice], name: str = APP_NAME, fronts: int = 1) -> ClusterClient:
    """Deploy on the cluster that this process is connected to (else a new local one), and wait until every model is
    loaded. Ends with ``serve.delete(name)``."""
    return ClusterClient(serve.run(application(devices, fronts), name=name, route_prefix=None), LOST)


def connect(name: str = APP_NAME) -> ClusterClient:
    """A client of what runs on this cluster under that name. Raises :class:`~edgeserve.errors.ServerGone` when nothing
    does."""
    try:
        return ClusterClient(serve.get_app_handle(name), LOST)
    except LOST as error:
        raise ServerGone(f"nothing runs on this cluster as {name!r}: {error}; deploy it with run(...)") from error
