"""What a run achieved: per app and in all, as a record, as JSON, and as a text table.

Only requests that arrived after the warm-up count. ``finish rate`` is the share that was completed by its deadline;
``value share`` weighs each request by its expected lane time alone times its value.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Sequence

from edgeserve.sched.protocol.actions import Outcome
from edgeserve.sim.world import Ended, SimWorld
from edgeserve.units import NS_PER_MS, NS_PER_S

ROWS_MAX = 20
"""Apps in a text table: of more, the worst are shown (the JSON has all)."""


@dataclass
class AppReport:
    """One app over one or several runs. Times in milliseconds are from arrival to the answer, of completed requests."""

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

    @property
    def finish_rate(self) -> float:
        """In time over offered; 1.0 when nothing was offered."""
        return self.in_time / self.offered if self.offered else 1.0

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

    @property
    def goodput(self) -> float:
        """Requests in time per second."""
        return self.total.in_time / (self.counted_s * self.seeds) if self.counted_s else 0.0

    def as_table(self) -> Dict[str, Any]:
        """Everything as plain values for JSON."""
        return {"seeds": self.seeds, "counted_s": self.counted_s, "goodput": self.goodput, "lanes": self.lanes,
                "total": _app_table(self.total), "apps": {name: _app_table(app) for name, app in self.apps.items()}}


def report_of(worlds: Sequence[SimWorld], warmup_ns: int, duration_ns: int) -> Report:
    """The report over the runs of several seeds of one scenario."""
    ended: Dict[str, List[Ended]] = {name: [] for name in worlds[0].config.apps}
    busy: Dict[str, float] = {}
    for world in worlds:
        for item in world.ended:
            if item.request.arrival_ns >= warmup_ns:
                ended[item.request.app].append(item)
        for name, lane in world.lanes.items():
            busy[name] = busy.get(name, 0.0) + lane.busy_ns / max(1, world.now_ns)
    lanes = {name: round(share / len(worlds), 4) for name, share in sorted(busy.items())
             if share or not name.startswith("copy:")}
    everything = [item for items in ended.values() for item in items]
    return Report({name: _app_report(items) for name, items in ended.items()}, _app_report(everything), lanes,
                  len(worlds), (duration_ns - warmup_ns) / NS_PER_S)


def _app_report(items: Iterable[Ended]) -> AppReport:
    report = AppReport()
    reasons: Counter = Counter()
    taken_ns: List[int] = []
    breakdown: Counter = Counter()
    for item in items:
        report.offered += 1
        report.value_offered_ns += item.cost_share_ns
        if item.outcome != Outcome.COMPLETED:
            reasons[f"{item.outcome}: {item.reason}" if item.reason else item.outcome] += 1
            continue
        taken_ns.append(item.end_ns - item.request.arrival_ns)
        for name, value in item.breakdown._asdict().items():
            breakdown[name] += value
        if item.end_ns <= item.request.deadline_ns:
            report.in_time += 1
            report.value_in_time_ns += item.cost_share_ns
        else:
            report.late += 1
    report.ended = dict(sorted(reasons.items(), key=lambda row: (-row[1], row[0])))
    if taken_ns:
        taken_ns.sort()
        report.p50_ms, report.p90_ms, report.p99_ms = (percentile(taken_ns, share) / NS_PER_MS
                                                       for share in (0.5, 0.9, 0.99))
        report.max_ms = taken_ns[-1] / NS_PER_MS
        report.breakdown_ms = {name[:-3]: value / len(taken_ns) / NS_PER_MS for name, value in breakdown.items()}
    return report


def percentile(ordered: Sequence[int], share: float) -> int:
    """The smallest value that at least ``share`` of the sorted values do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _app_table(app: AppReport) -> Dict[str, Any]:
    shares = (app.finish_rate, app.value_share) if app.offered else (None, None)
    return {**asdict(app), "finish_rate": shares[0], "value_share": shares[1]}


def print_reports(reports: Mapping[str, Report], console: Any) -> None:
    """A table per policy on a ``rich`` console: a row per app, and what the lanes did."""
    from rich.table import Table  # the one optional look: nothing else in the simulator needs it
    for title, report in reports.items():
        table = Table(title=f"{title} ({report.seeds} seeds x {report.counted_s:g} s)", title_justify="left")
        for name in ("app", "offered", "in time", "late", "value", "p50 ms", "p90 ms", "p99 ms"):
            table.add_column(name, justify="left" if name == "app" else "right", no_wrap=True)
        table.add_column("ended otherwise", overflow="fold")
        worst = sorted(report.apps, key=lambda name: (report.apps[name].finish_rate, name))[:ROWS_MAX]
        rows = {name: app for name, app in report.apps.items() if name in worst}
        if len(report.apps) > 1:
            rows[f"(all {len(report.apps)})"] = report.total
        for name, app in rows.items():
            others = ", ".join(f"{reason} {count}" for reason, count in list(app.ended.items())[:4])
            shares = (f"{app.finish_rate:.1%}", f"{app.value_share:.3f}") if app.offered else ("-", "-")
            table.add_row(name, str(app.offered), shares[0], str(app.late), shares[1],
                          f"{app.p50_ms:.2f}", f"{app.p90_ms:.2f}", f"{app.p99_ms:.2f}", others)
        console.print(table)
        console.print("lanes in use: " + ", ".join(f"{name} {share:.1%}" for name, share in report.lanes.items())
                      + f"; goodput {report.goodput:.1f}/s", highlight=False)
