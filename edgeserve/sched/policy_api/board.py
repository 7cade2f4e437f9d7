"""What a policy sees, and its moves. A thin view of the scheduler: facts are read, moves are checked.

A move takes effect at once, so the next line of the policy sees it; an illegal move raises
:class:`~edgeserve.errors.PolicyError` with the request's story and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence, Tuple

from edgeserve.sched.latency.model import ModelLatency
from edgeserve.sched.requests.graph import App, Node
from edgeserve.sched.requests.states import Job, RequestRecord
from edgeserve.sched.resources.lanes import Lane
from edgeserve.sched.resources.model_cache import LOADING, NEVER_NS, RESIDENT, Device

if TYPE_CHECKING:
    from edgeserve.sched.core.scheduler import Scheduler


class Board:
    """Facts and moves for policies. ``now_ns`` is the time of this step."""

    __slots__ = ("now_ns", "_scheduler", "_latency", "_lanes_of")

    def __init__(self, scheduler: Scheduler) -> None:
        self.now_ns = 0
        self._scheduler = scheduler
        self._latency = scheduler.latency
        self._lanes_of = scheduler.lanes_of

    # --- facts --------------------------------------------------------------------------------------------------------

    @property
    def lanes(self) -> Sequence[Lane]:
        """The lanes that run batches, in configuration order."""
        return self._scheduler.run_lanes

    def lanes_of(self, model: str) -> Sequence[Lane]:
        """The lanes that may run a model."""
        return self._lanes_of[model]

    def latency(self, model: str, lane: str) -> ModelLatency:
        """How long a model takes on a lane."""
        return self._latency[model, lane]

    def device(self, name: str) -> Device:
        """A device's memory."""
        return self._scheduler.devices[name]

    def resident_at_ns(self, model: str, lane: Lane) -> int:
        """When a model could run on a lane's device: now, when its load ends, or after a load that starts now.
        :data:`~edgeserve.sched.resources.model_cache.NEVER_NS` where none would start, since other devices serve all
        that waits for the model: whoever hoped for that load would wait for ever."""
        device = self._scheduler.devices[lane.device]
        placement = device.placements[model]
        if placement.state == RESIDENT:
            return self.now_ns
        if placement.state == LOADING:
            return max(self.now_ns, placement.due_ns)
        if device.is_served_elsewhere(placement, self._scheduler.devices.values()):
            return NEVER_NS
        copy_lane = self._scheduler.copy_lanes[lane.device]
        return copy_lane.available_ns(self.now_ns) + placement.load_ns

    def is_resident(self, model: str, lane: Lane) -> bool:
        """Whether a model can run on a lane now."""
        return self._scheduler.devices[lane.device].placements[model].state == RESIDENT

    def rest_ns(self, app: App, node: Node) -> int:
        """Time from the end of a node to the end of its request, on idle lanes."""
        return self._scheduler.costs[app.name].rest_ns[node.name] if node.succs else 0

    def rest_lane_ns(self, app: App, node: Node) -> int:
        """Lane time that a request still needs behind a node."""
        return self._scheduler.costs[app.name].rest_lane_ns[node.name] if node.succs else 0

    def is_retained(self, job: Job) -> bool:
        """Whether the world keeps this job's inputs for a probe."""
        return job.seq in self._scheduler.probes.retained

    def can_probe(self, model: str, lane: Lane) -> bool:
        """Whether a probe of a model on a lane that idles would leave the apps that use it time enough."""
        return self._scheduler.probes.fits(model, lane)

    def story(self, request: RequestRecord) -> Sequence[str]:
        """What happened to a request so far."""
        return request.story()

    def note(self, request: RequestRecord, *words: object) -> None:
        """Add a line to a request's story: why a policy decides as it does. Changes nothing else."""
        request.note(self.now_ns, *words)

    # --- moves --------------------------------------------------------------------------------------------------------

    def drop(self, request: RequestRecord, reason: str) -> None:
        """Give a request up. Its ready jobs leave (``on_gone`` is called for each), running ones are ignored."""
        self._scheduler.request_manager.end(request, "drop", reason)

    def abandon_branch(self, job: Job, reason: str) -> None:
        """A ready job cannot be in time: a request with ``on_late = "partial"`` goes on without it where it can, any
        other is dropped."""
        self._scheduler.request_manager.abandon_branch(job, reason)

    def choose(self, request: RequestRecord, nodes: Sequence[str]) -> None:
        """During ``on_request``: run only these of the first nodes and of a fork's branches; the rest are skipped."""
        self._scheduler.request_manager.choose(request, nodes)

    def settle(self, request: RequestRecord) -> None:
        """Let every join that has something go on without waiting for the rest."""
        self._scheduler.request_manager.settle(request)

    def retain(self, job: Job) -> bool:
        """Have the world keep a ready job's inputs, whatever becomes of its request, until a bid with ``probe`` runs
        them or :meth:`release`. False, and nothing is kept, while the server drains."""
        return self._scheduler.probes.retain(job)

    def release(self, job: Job) -> None:
        """No probe of this job will be run."""
        self._scheduler.probes.release(job)

    def open_requests(self) -> Tuple[RequestRecord, ...]:
        """Every accepted request that has not ended, oldest first. O(open requests): not for the hot path."""
        return tuple(self._scheduler.request_manager.requests.values())
