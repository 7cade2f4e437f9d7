"""All tables of the scheduler in one record. The modules that decide read them here; nothing is decided here.

``request_manager`` and ``ends`` change the open requests, ``auction`` and ``scheduler`` the running batches,
``experiments`` the retained inputs. The time of the step is ``board.now_ns``.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Sequence, Tuple

from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.latency.path_cost import AppCosts
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.policy import Policy
from edgeserve.sched.protocol.actions import Action
from edgeserve.sched.requests.admission import Admission, lane_sets, lane_shares
from edgeserve.sched.requests.arrivals import Sources
from edgeserve.sched.requests.critical import CriticalArrivals
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.promises import Promises
from edgeserve.sched.requests.ready_jobs import ReadyJobs
from edgeserve.sched.requests.states import Job, RequestRecord
from edgeserve.sched.resources.cpu_share import CpuShare
from edgeserve.sched.resources.energy import EnergyMeter
from edgeserve.sched.resources.lanes import Lane, Works
from edgeserve.sched.resources.model_cache import Device
from edgeserve.sched.resources.model_loader import Memory
from edgeserve.sched.resources.model_worth import ModelWorth
from edgeserve.sched.resources.sequences import SequenceModel, Sequences
from edgeserve.sched.resources.streams import Streams


class State:
    """The tables, by what they hold.

    *Configured*: ``apps``, ``pending_max`` (requests in all), ``policies``, ``policy_of`` (by app), ``devices``,
    ``lanes`` (all of them), ``run_lanes``, ``copy_lanes`` (by device), ``lanes_of`` (by model). *Learnt*: ``latency``
    (by model and lane), ``latencies_of`` (by model), ``costs`` (by app), ``frame_periods`` (by stream). *Open*:
    ``requests``, ``ready`` (jobs that wait, by class and model), ``promises`` (deadlines that refusals said would do),
    ``admission`` (by app), ``lane_shares`` (by app and class), ``streams``, ``critical`` (when critical requests come),
    ``draining``, ``has_lost`` (a lane never comes back). *On lanes and devices*: ``works``, ``memory``, ``sequences``,
    ``energy`` and ``cpu_shares`` (by device), ``retained`` (inputs that the world keeps for a probe, by the job's
    ``seq``, oldest first), ``trials`` (the policy of requests that were taken from theirs). ``actions`` is what this
    step asks of the world, in order.
    """

    def __init__(
        self,
        apps: Sequence[App],
        policies: Sequence[Policy],
        devices: Sequence[Device],
        lanes: Sequence[Lane],
        latency: Mapping[Tuple[str, str], BatchTime],
        sequences: Mapping[str, SequenceModel],
        pending_max: int,
    ) -> None:
        self.pending_max = pending_max
        self.apps = {app.name: app for app in apps}
        self.policies = tuple(policies)
        self.policy_of: Dict[str, Policy] = {app.name: policy for policy in policies for app in policy.apps}
        self.devices = {device.name: device for device in devices}
        self.lanes = {lane.name: lane for lane in lanes}
        self.run_lanes = tuple([lane for lane in lanes if not lane.copy])
        self.copy_lanes = {lane.device: lane for lane in lanes if lane.copy}
        models = list(dict.fromkeys(model for model, _ in latency))
        self.lanes_of: Dict[str, Tuple[Lane, ...]] = {
            model: tuple([lane for lane in self.run_lanes if (model, lane.name) in latency]) for model in models
        }
        for device in devices:
            for placement in device.placements.values():
                places = self.lanes_of.get(placement.model, ())
                placement.lanes = tuple([lane for lane in places if lane.device == device.name])
        self.latency = latency
        self.sequences = Sequences(sequences, self.devices, self.run_lanes)
        self.latencies_of: Dict[str, List[BatchTime]] = {
            model: [latency[model, lane.name] for lane in places] for model, places in self.lanes_of.items()
        }
        dispatch_gaps = {model: [lane.dispatch_gap for lane in places] for model, places in self.lanes_of.items()}
        sets = lane_sets({model: [lane.name for lane in places] for model, places in self.lanes_of.items()})
        self.costs = {app.name: AppCosts(app, self.latencies_of, dispatch_gaps, sets) for app in apps}
        self.requests: Dict[int, RequestRecord] = {}
        self.promises = Promises()
        self.admission = {app.name: Admission(app) for app in apps}
        self.lane_shares = lane_shares({name: costs.lane_sets for name, costs in self.costs.items()})
        self.streams = Streams(self.devices, {app.name: app.state_ttl_ns for app in apps})
        self.frame_periods = Sources()
        self.critical = CriticalArrivals()
        self.draining = False
        self.has_lost = False
        self.works = Works()
        worth = ModelWorth(apps, self.costs)
        self.memory = Memory(self.devices, self.copy_lanes, self.lanes, self.works, models, worth)
        self.energy = {device.name: EnergyMeter() for device in devices}
        self.retained: Dict[int, Job] = {}
        self.actions: List[Action] = []
        self.trials: Policy | None = None
        self.cpu_shares = {
            device.name: CpuShare([lane for lane in self.run_lanes if lane.device == device.name]) for device in devices
        }
        self.board = Board(self)
        self.ready = ReadyJobs(models, self.board)

    def set_speeds(self, lane: Lane, since_ns: int | None = None) -> None:
        """Tell the latencies of a lane's models its speed."""
        for model in lane.models:
            self.latency[model, lane.name].set_clocks(lane.clocks, lane.speed, since_ns)
        self.board.ends_ns.clear()

    def can_run(self, model: str, only: str = "") -> bool:
        """True if some lane, or this one alone, could run a model now, or after a load."""
        for lane in self._places(model, only):
            loads = self.copy_lanes[lane.device]
            here = self.devices[lane.device].is_resident(model)
            if lane.up and not lane.hung and (here or (loads.up and not loads.hung)):
                return True
        return False

    def _places(self, model: str, only: str) -> Sequence[Lane]:
        return (self.lanes[only],) if only else self.lanes_of[model]
