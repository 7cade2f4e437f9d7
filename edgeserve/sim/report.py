"""The outcomes of a run: per app and in all, as a record and as JSON.

Only requests that arrived after the warm-up count. ``finish rate`` is the share that was completed by its deadline;
``value share`` weighs each request by its worth (``sim/worth.py``), and each answer by its quality.
Lane time is lost when it was spent on a request that was not answered in time.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from statistics import pstdev
from typing import Any, Callable, DefaultDict, Dict, Iterable, List, Sequence, Tuple

from edgeserve.sched.protocol.actions import Outcome
from edgeserve.sched.protocol.events import Request
from edgeserve.sched.requests.admission import OVER_SHARE
from edgeserve.sim.workload import owner_of
from edgeserve.sim.world import Ended, SimWorld
from edgeserve.sim.worth import worths_ns
from edgeserve.units import NS_PER_MS, NS_PER_S

BINS = 20
"""Parts of the counted time for which the finish rate is told."""

Entry = Tuple[int, Ended, float, int]
"""A request that ended: which run it was in, its end, the lane time that was spent on it, and what it counts."""


@dataclass
class AppReport:
    """One app, or one client, over one or several runs. Times in milliseconds are from arrival to the answer, of
    completed requests."""

    offered: int = 0
    in_time: int = 0
    late: int = 0
    ended: Dict[str, int] = field(default_factory=dict)  # other outcomes, and why: "dropped: expired" -> count
    value_offered_ns: int = 0
    value_in_time_ns: int = 0
    p50_ms: float = 0.0
    p90_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0
    breakdown_ms: Dict[str, float] = field(default_factory=dict)  # mean, where the time of completed requests went
    finish_rates: List[float] = field(default_factory=list)  # per seed, of those in which it was asked
    over_time: List[List[int]] = field(default_factory=list)  # [offered, in time] of what arrived in each twentieth
    gap_max_ms: float = 0.0  # longest time without an answer in time while it was asked, in any run
    lane_time_ms: float = 0.0  # spent on its requests
    lane_time_lost_ms: float = 0.0  # the part of it that was spent on requests not answered in time
    quality: float = 1.0  # mean of the answers in time, as their policy expected it
    rated: int = 0  # answers in time whose policy said a quality
    branches: float = 0.0  # mean number of branches that took part in them
    variants: Dict[str, int] = field(default_factory=dict)  # answers in time by the variant that gave them
    energy_j: float = 0.0  # of the devices that are simulated, by the lane time spent on its requests

    @property
    def finish_rate(self) -> float:
        """The share of offered requests that ended in time; 1.0 when none was offered."""
        return self.in_time / self.offered if self.offered else 1.0

    @property
    def over_share(self) -> int:
        """Requests that were refused or dropped since their client had its share."""
        return sum(count for end, count in self.ended.items() if end.endswith(f": {OVER_SHARE}"))

    @property
    def rate_range(self) -> Tuple[float, float, float]:
        """The lowest and the highest finish rate of any seed, and their standard deviation."""
        rates = self.finish_rates or [self.finish_rate]
        return min(rates), max(rates), pstdev(rates)

    @property
    def lost_share(self) -> float:
        """Lane time lost over lane time spent."""
        return self.lane_time_lost_ms / self.lane_time_ms if self.lane_time_ms else 0.0

    @property
    def joules_per_answer(self) -> float:
        """Energy per request in time; 0.0 where no device is simulated."""
        return self.energy_j / self.in_time if self.in_time else 0.0

    @property
    def value_share(self) -> float:
        """Value delivered in time over value offered."""
        return self.value_in_time_ns / self.value_offered_ns if self.value_offered_ns else 1.0


@dataclass
class Report:
    """All apps, all lanes, of ``seeds`` runs of ``counted_s`` seconds each."""

    apps: Dict[str, AppReport]
    total: AppReport
    lanes: Dict[str, float]  # share of the time in use
    seeds: int
    counted_s: float
    batches: Dict[str, Dict[int, int]] = field(default_factory=dict)  # model -> jobs in a batch -> batches
    lanes_lost: Dict[str, float] = field(default_factory=dict)  # of the lane's time in use, the share that was lost
    costs: str = ""  # what was charged for the loop and the machine
    devices: Dict[str, Dict[str, float]] = field(default_factory=dict)  # of simulated ones
    clients: Dict[str, AppReport] = field(default_factory=dict)  # of sources that name one

    @property
    def goodput(self) -> float:
        """Requests in time per second."""
        return self.total.in_time / (self.counted_s * self.seeds) if self.counted_s else 0.0

    def lanes_kept(self, of: AppReport) -> float:
        """The number of lanes that its requests kept busy on average."""
        whole_ms = self.counted_s * self.seeds * NS_PER_S / NS_PER_MS
        return of.lane_time_ms / whole_ms if whole_ms else 0.0

    def clients_table(self) -> Dict[str, Any]:
        """The clients as plain values for JSON."""
        return {
            name: {**_app_table(client), "over_share": client.over_share, "lanes_kept": self.lanes_kept(client)}
            for name, client in self.clients.items()
        }

    def as_table(self) -> Dict[str, Any]:
        """Everything as plain values for JSON."""
        devices = {"devices": self.devices} if self.devices else {}
        return {
            **devices,
            **({"clients": self.clients_table()} if self.clients else {}),
            "seeds": self.seeds,
            "counted_s": self.counted_s,
            "goodput": self.goodput,
            "lanes": self.lanes,
            "lanes_lost": self.lanes_lost,
            "batches": self.batches,
            "costs": self.costs,
            "total": _app_table(self.total),
            "apps": {name: _app_table(app) for name, app in self.apps.items()},
        }


def report_of(worlds: Sequence[SimWorld], warmup_ns: int, duration_ns: int) -> Report:
    """The report over the runs of several seeds of one scenario."""
    ended: Dict[str, List[Entry]] = {name: [] for name in worlds[0].config.apps}
    owned: DefaultDict[str, List[Entry]] = defaultdict(list)
    busy: DefaultDict[str, float] = defaultdict(float)
    spent: DefaultDict[str, float] = defaultdict(float)
    lost: DefaultDict[str, float] = defaultdict(float)
    batches: Dict[str, Counter[int]] = {}
    for run, world in enumerate(worlds):
        for item, worth_ns in zip(world.ended, worths_ns(world.config, world.ended)):
            if item.request.arrival_ns < warmup_ns:
                continue
            by_lane = world.usage.spent_ns.get(item.request.id, {})
            for name, spent_ns in by_lane.items():
                spent[name] += spent_ns
                lost[name] += 0.0 if item.in_time else spent_ns
            found = (run, item, sum(by_lane.values()), worth_ns)
            ended[item.request.app].append(found)
            owner = owner_of(item.request)
            if owner:
                owned[owner].append(found)
        for name, lane in world.lanes.items():
            busy[name] += lane.busy_ns / max(1, world.now_ns)
        for (model, jobs), count in world.usage.batches.items():
            batches.setdefault(model, Counter())[jobs] += count
    lanes = {
        name: round(share / len(worlds), 4)
        for name, share in sorted(busy.items())
        if share or not name.startswith("copy:")
    }
    energy_j = _energy_by(worlds, lambda request: request.app)
    everything = [item for items in ended.values() for item in items]
    window = (warmup_ns, max(warmup_ns + 1, duration_ns))
    apps = {name: _app_report(items, window, energy_j.get(name, 0.0)) for name, items in ended.items()}
    theirs_j = _energy_by(worlds, owner_of) if owned else {}
    return Report(
        apps,
        _app_report(everything, window, sum(energy_j.values())),
        lanes,
        len(worlds),
        (duration_ns - warmup_ns) / NS_PER_S,
        {model: dict(sorted(sizes.items())) for model, sizes in sorted(batches.items())},
        {name: round(lost[name] / spent[name], 4) for name in sorted(spent) if spent[name]},
        devices=_devices(worlds),
        clients={name: _app_report(owned[name], window, theirs_j.get(name, 0.0)) for name in sorted(owned)},
    )


def _energy_by(worlds: Sequence[SimWorld], of: Callable[[Request], str]) -> Dict[str, float]:
    """The energy of simulated devices that each app's or client's requests used: by lane time, idle power included."""
    found: DefaultDict[str, float] = defaultdict(float)
    for world in worlds:
        for device in world.hardware.values():
            spent_ns: DefaultDict[str, float] = defaultdict(float)
            for item in world.ended:
                by_lane = world.usage.spent_ns.get(item.request.id, {})
                spent_ns[of(item.request)] += sum(by_lane.get(lane, 0.0) for lane in device.lanes)
            total_ns = sum(spent_ns.values())
            for name, name_ns in spent_ns.items():
                found[name] += device.energy_j * name_ns / total_ns if total_ns else 0.0
    return found


def _devices(worlds: Sequence[SimWorld]) -> Dict[str, Dict[str, float]]:
    """Per simulated device: joules and watts on average over the runs, and how often programs ran out of memory."""
    found: Dict[str, Dict[str, float]] = {}
    for name in worlds[0].hardware:
        devices = [world.hardware[name] for world in worlds]
        found[name] = {
            "energy_j": round(sum(item.energy_j for item in devices) / len(devices), 3),
            "power_w": round(sum(item.mean_w for item in devices) / len(devices), 3),
            "heat_c_max": round(max(item.heat_c_max for item in devices), 1),
            "oom_kills": sum(item.oom_kills for item in devices),
        }
    return found


def _app_report(items: Sequence[Entry], window: Tuple[int, int], energy_j: float) -> AppReport:
    report = AppReport(energy_j=round(energy_j, 3))
    reasons: Counter[str] = Counter()
    taken_ns: List[int] = []
    quality = 0.0
    breakdown: Counter[str] = Counter()
    for _, item, spent_ns, worth_ns in items:
        report.offered += 1
        report.value_offered_ns += worth_ns
        report.lane_time_ms += spent_ns / NS_PER_MS
        in_time = item.in_time
        if not in_time:
            report.lane_time_lost_ms += spent_ns / NS_PER_MS
        if item.outcome != Outcome.COMPLETED:
            reasons[f"{item.outcome}: {item.reason}" if item.reason else item.outcome] += 1
            continue
        taken_ns.append(item.end_ns - item.request.arrival_ns)
        for name, value in item.breakdown._asdict().items():
            breakdown[name] += value
        if in_time:
            report.in_time += 1
            report.value_in_time_ns += worth_ns if item.quality == 1.0 else round(worth_ns * item.quality)
            quality += item.quality
            report.rated += bool(item.branches)
            report.branches += len(item.branches)
            if item.variant:
                report.variants[item.variant] = report.variants.get(item.variant, 0) + 1
        else:
            report.late += 1
    report.quality = quality / report.in_time if report.in_time else 1.0
    report.branches /= max(1, report.rated)
    report.ended = dict(sorted(reasons.items(), key=lambda row: (-row[1], row[0])))
    report.finish_rates = _rates(items)
    report.over_time = _over_time(items, window)
    report.gap_max_ms = _gap_max_ns(items) / NS_PER_MS
    if taken_ns:
        taken_ns.sort()
        report.p50_ms, report.p90_ms, report.p99_ms = (
            percentile(taken_ns, share) / NS_PER_MS for share in (0.5, 0.9, 0.99)
        )
        report.max_ms = taken_ns[-1] / NS_PER_MS
        report.breakdown_ms = {name[:-3]: value / len(taken_ns) / NS_PER_MS for name, value in breakdown.items()}
    return report


def _rates(items: Iterable[Entry]) -> List[float]:
    offered: Counter[int] = Counter()
    in_time: Counter[int] = Counter()
    for run, item, *_ in items:
        offered[run] += 1
        in_time[run] += item.in_time
    return [in_time[run] / offered[run] for run in sorted(offered)]


def _over_time(items: Iterable[Entry], window: Tuple[int, int]) -> List[List[int]]:
    """Offered and in time, of what arrived in each part of the counted time, all runs together."""
    bins = [[0, 0] for _ in range(BINS)]
    for _, item, *_ in items:
        place = (item.request.arrival_ns - window[0]) * BINS // (window[1] - window[0])
        chosen = bins[min(BINS - 1, place)]
        chosen[0] += 1
        chosen[1] += item.in_time
    return bins


def _gap_max_ns(items: Iterable[Entry]) -> int:
    """The longest time without an answer in time, from the first arrival of a run to the last one."""
    runs: Dict[int, List[Ended]] = {}
    for run, item, *_ in items:
        runs.setdefault(run, []).append(item)
    longest_ns = 0
    for ended in runs.values():
        marks = sorted(item.end_ns for item in ended if item.in_time)
        marks = [min(item.request.arrival_ns for item in ended), *marks, max(item.request.arrival_ns for item in ended)]
        longest_ns = max(longest_ns, *(after - before for before, after in zip(marks, marks[1:])))
    return longest_ns


def percentile(ordered: Sequence[int], share: float) -> int:
    """The smallest value that at least ``share`` of the sorted values do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _app_table(app: AppReport) -> Dict[str, Any]:
    shares = (app.finish_rate, app.value_share) if app.offered else (None, None)
    joules = {"joules_per_answer": app.joules_per_answer} if app.energy_j else {}
    table = {**asdict(app), "finish_rate": shares[0], "value_share": shares[1], **joules}
    if not app.variants:
        del table["variants"]
    return table
