"""A CPU lane whose cores other programs, or host functions, use too: what offloading by the monitor's view of them is
worth. In virtual time."""

from __future__ import annotations

import statistics
from typing import Any, Dict, List, NamedTuple, Sequence

from common.replicated import OURS
from lib.checks import Checks

from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import parse_scenario
from replicate.rtlm import world
from replicate.rtlm.world import Case, System

KAPPA = 1.5
SYSTEMS = {"rtlm": System(), "plan": System("plan", {}, "continuous")}
WAYS = {"none": ("none", True), "not told": ("conditional", False), "told": ("conditional", True)}
"""The rule of offloading, and whether a monitor tells the load."""

HOSTS = "host functions, the lane does not yield"
PLACES = ("others come and go", HOSTS, "host functions, the lane yields")
SECONDS = 120
EPISODES = [{"at": f"{10 * index}s", "others": 16.0 * (index % 2)} for index in range(1, SECONDS // 10)]
"""Others want all cores four times over, for ten of every twenty seconds."""


class Row(NamedTuple):
    """Mean and 95th percentile of answers in seconds, how many began on the CPU lane, and the share of host functions
    that was in time (0: there were none)."""

    mean: float
    p95: float
    aside: float
    hosts: float


def busy(seeds: Sequence[int], checks: Checks) -> Dict[str, Any]:
    """Load 1, not gathered; the lane of the CPU has four threads on four cores and yields, or two on two cores of which
    host functions need 30 % of one, and yields or does not."""
    found: Dict[str, Any] = {}
    print(f"\n{'CPU lane, kappa 1.5':55}{'mean s':>8}{'p95':>8}{'aside':>8}{'host functions in time':>24}")
    for kind in SYSTEMS:
        for place in PLACES:
            rows = {way: _over(seeds, kind, way, place) for way in WAYS}
            found[f"{kind}, {place}"] = {way: row._asdict() for way, row in rows.items()}
            for way, row in rows.items():
                print(
                    f"{f'{kind}, {place}, {way}':55}{row.mean:8.2f}{row.p95:8.2f}{row.aside:8.1f}{row.hosts:24.3f}",
                    flush=True,
                )
            if place != HOSTS:
                checks.at_most(
                    f"busy CPU, {kind}, {place}: offloading with a monitor beside without, mean",
                    rows["told"].mean / rows["not told"].mean,
                    1.02,
                    OURS,
                )
            if rows["none"].hosts:
                checks.at_least(
                    f"busy CPU, {kind}, {place}: host functions in time beside no offloading",
                    rows["told"].hosts / rows["none"].hosts,
                    0.98,
                    OURS,
                )
    return found


def _over(seeds: Sequence[int], kind: str, way: str, place: str) -> Row:
    return Row(*[statistics.fmean(column) for column in zip(*[_run(kind, way, place, seed) for seed in seeds])])


def _run(kind: str, way: str, place: str, seed: int) -> Row:
    hosts = place != PLACES[0]
    rule, monitor = WAYS[way]
    system = SYSTEMS[kind]
    table = world.scenario_of(
        system._replace(options={"offload": rule} if kind == "rtlm" else {}, kappa=KAPPA),
        Case(load=1.0, seconds=float(SECONDS), xi_ms=0.0),
    )
    table["model"]["chat"]["lanes"] = ["gpu0"] if rule == "none" else ["gpu0", "cpu0"]
    table["lane"]["cpu0"].update(threads=2 if hosts else 4, nice=0 if place == HOSTS else 10)
    table["workload"]["people"]["start"] = "2s"  # the monitor has told something by then
    processor = {"cores": 2} if hosts else {"cores": 4, "changes": EPISODES}
    table["hardware"] = {"cpu": {"monitor": monitor, "processor": processor}}
    if hosts:
        table["lane"]["hosts"] = {"device": "cpu"}
        table["model"]["cut"] = {"engine": "synthetic", "expected": {"1": "10ms"}, "lanes": ["hosts"]}
        table["app"]["chat"]["policy"] = "chat"
        table["app"]["cut"] = {"model": "cut", "slo": "30ms", "policy": "fifo"}
        table["policy"]["fifo"] = {"kind": "fifo"}
        table["workload"]["cuts"] = {"app": "cut", "kind": "poisson", "rate": 30.0}
    done = simulate(parse_scenario(table), seed, [])
    took: List[float] = sorted(
        [(end.end_ns - end.request.arrival_ns) / 1e9 for end in done.world.ended if end.request.app == "chat"]
    )
    cuts = [end for end in done.world.ended if end.request.app == "cut"]
    in_time = [end for end in cuts if end.in_time]
    aside = sum([policy.figures().get("sent to side lanes", 0) for policy in done.scheduler.policies])
    return Row(statistics.fmean(took), took[int(0.95 * len(took))], aside, len(in_time) / max(1, len(cuts)))
