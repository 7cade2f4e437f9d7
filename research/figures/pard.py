"""Draw the pictures of ``docs/research/pard.md``: who is dropped where, reactive beside proactive.

    python research/figures/pard.py

The timeline is the product's scheduler in virtual time, a burst on three modules with a lane each. Drops over time and
per module are read from ``research/results/replicate_pard.json`` (``research/replicate/pard/run.py``).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

from common.lean_world import LeanWorld, served
from lib import plots
from replicate.pard.cases import poisson_ns

from edgeserve.sched.protocol.actions import FinishRequest, RunBatch

MS = 1_000_000
MODULES_MS = {"detect": (8, 4), "pose": (6, 5), "act": (6, 6)}  # a batch of b takes a + c * b: the last is slowest
SIZE = 4
SLO_MS = 160  # twice what a full batch in each module takes
RATES = (80, 80, 200, 200, 200, 80, 80)  # requests per second, a fifth of a second each; "act" can do 133
SLOT_S = 0.2
RULES = (("reactive (rule back)", {"kind": "pard", "rule": "back"}), ("proactive (pard+)", {"kind": "pard+"}))
IN_TIME, LOST, DROPPED = "#4878b0", "#d65f5f", "0.15"
POLICIES = {"PARD": "pard", "pard+": "pard+", "back": "reactive (rule back)", "Nexus": "rule nexus", "naive": "naive"}
COLOURS = ("#4878b0", "#6acc65", "#e8a33d", "#b47cc7", "#8c613c")


class Ran(NamedTuple):
    """One batch: whose requests, where, when."""

    row: int
    begin_ns: int
    end_ns: int
    requests: Tuple[int, ...]


class Watched(LeanWorld):
    """Notes what ran, and which module a request was to enter when it ended."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.ran: List[Ran] = []
        self.entered: Dict[int, int] = {}
        self.ended: List[Tuple[int, int, str]] = []  # (when, request, how)

    def perform(self, action: Any) -> None:
        """As the lean world does, and note it."""
        super().perform(action)
        if isinstance(action, RunBatch):
            row = list(MODULES_MS).index(action.model)
            members = tuple([job.request_id for job in action.jobs])
            self.ran.append(Ran(row, self._now_ns, self._now_ns + self._times_ns[action.model][action.size], members))
            self.entered.update(dict.fromkeys(members, row + 1))
        elif isinstance(action, FinishRequest):
            self.ended.append((self._now_ns, action.request_id, action.outcome))


def timeline(title: str, policy: Mapping[str, Any], arrivals_ns: Sequence[int], last: bool) -> plots.Panel:
    """The work of the lanes under one policy."""
    table = {
        "lane": {name: {"hang": "600s"} for name in MODULES_MS},
        "policy": {"p": dict(policy)},
        "model": {
            name: {
                "engine": "synthetic",
                "batch": list(range(1, SIZE + 1)),
                "lanes": [name],
                "expected": {str(size): f"{fixed + each * size}ms" for size in range(1, SIZE + 1)},
            }
            for name, (fixed, each) in MODULES_MS.items()
        },
        "app": {
            "watch": {"slo": f"{SLO_MS}ms", "pending_max": 100_000, "node": [{"name": name} for name in MODULES_MS]}
        },
    }
    world, _ = served(table, arrivals_ns, Watched)
    good = {request for request in range(1, len(arrivals_ns) + 1) if world.is_in_time(request)}
    bars: List[plots.Bar] = []
    for ran in world.ran:
        share = sum(request in good for request in ran.requests) / len(ran.requests)
        begin, end = ran.begin_ns / MS, ran.end_ns / MS
        middle = begin + (end - begin) * share
        if share > 0:
            bars.append(plots.Bar(ran.row, begin, middle, IN_TIME, "for answers in time"))
        if share < 1:
            bars.append(plots.Bar(ran.row, middle, end, LOST, "for requests that were lost"))
    drops = [(at_ns / MS, world.entered.get(request, 0)) for at_ns, request, how in world.ended if how != "completed"]
    spent = sum(ran.end_ns - ran.begin_ns for ran in world.ran)
    lost = sum(
        (ran.end_ns - ran.begin_ns) * sum(request not in good for request in ran.requests) / len(ran.requests)
        for ran in world.ran
    )
    print(f"{title}: {len(good)} of {len(arrivals_ns)} in time, {lost / spent:.1%} of lane time lost")
    marks = plots.Line(
        "dropped before this module", [at for at, _ in drops], [row - 0.42 for _, row in drops], "v", DROPPED
    )
    return plots.Panel(
        f"{title}: {len(good)} of {len(arrivals_ns)} in time, {lost / spent:.0%} of lane time spent on what was lost",
        "time [ms]" if last else "",
        "",
        [marks],
        rows=list(MODULES_MS),
        bars=bars,
    )


def over_time(rows: Mapping[str, Any], every_s: int = 4) -> plots.Panel:
    """Share that was lost, in means of a few seconds, of the requests that came then."""
    lines = []
    for name, label in POLICIES.items():
        seconds = rows[name]["by_second"]
        groups = [seconds[at : at + every_s] for at in range(0, len(seconds), every_s)]
        shares = [
            100 * (1 - sum(good for _, good in group) / max(1, sum(arrived for arrived, _ in group)))
            for group in groups
        ]
        lines.append(plots.Line(label, [at * every_s for at in range(len(groups))], shares, "steps"))
    return plots.Panel("Lost, of what came", "time [s]", f"lost [%], means of {every_s} s", lines)


def by_module(rows: Mapping[str, Any]) -> plots.Panel:
    """Before which module requests were dropped, and how many were late, in percent of all."""
    bars = []
    for index, name in enumerate(POLICIES):
        row, begin = rows[name], 0.0
        parts = [*row["by_module"].items(), ("answered late", row["late"])]
        for (label, count), colour in zip(parts, (*COLOURS, LOST)):
            share = 100 * count / row["offered"]
            bars.append(plots.Bar(index, begin, begin + share, colour, label))
            begin += share
    return plots.Panel(
        "Where", "dropped before this module [% of all requests]", "", [], rows=list(POLICIES.values()), bars=bars
    )


def main() -> None:
    arrivals: List[int] = []
    for slot, rate in enumerate(RATES):
        begin_ns = round(slot * SLOT_S * 1e9)
        arrivals += [begin_ns + at_ns for at_ns in poisson_ns([rate], 100 + slot) if at_ns < SLOT_S * 1e9]
    plots.draw(
        "docs/research/pard_timeline.svg",
        [timeline(title, policy, arrivals, title == RULES[-1][0]) for title, policy in RULES],
        stacked=True,
    )
    with open(os.path.join(plots.ROOT, "research", "results", "replicate_pard.json"), encoding="utf-8") as file:
        found = json.load(file)["rows"]
    rows = {row["what"]: row for row in found if "by_second" in row}
    plots.draw("docs/research/pard_drops.svg", [over_time(rows), by_module(rows)], "upper right")


if __name__ == "__main__":
    main()
