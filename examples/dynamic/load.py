"""The dynamic example's clients: both apps of one model, asked over the bus as requests come in bursts.

    python examples/dynamic/load.py --model digits --rate 100 --slo 60ms      # against a running `edgeserve serve`

Open loop: requests are sent when they are due, whether or not earlier ones are answered, and their deadline counts from
then. When they are due, which app's they are and what they ask follows from the seed, so that several servers can be
given the same.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any, Dict, List, Mapping, Sequence, Tuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from inputs import APPS, Values

from edgeserve.client import Client
from edgeserve.commands.bench import BenchTally, ResolvedOptions
from edgeserve.config.loading import load_config
from edgeserve.config.schema import Config
from edgeserve.sim.scenario import WorkloadConfig
from edgeserve.sim.workload import Workload
from edgeserve.units import ns_to_s, parse_duration_ns, s_to_ns

CONFIG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "edge.toml")
POOL = 400
"""Distinct requests per app of one load; other ones than the profile was measured with."""

POOL_SEED = 1000
"""Added to the load's seed to draw them; the profile's examples have seed 1."""

Due = Tuple[int, str]
"""When a request is due (ns from the start), and the app it asks."""


def apps_of(config: Config, model: str) -> List[str]:
    """The apps of one model, in the order of the file."""
    return [app.name for app in config.apps.values() if app.nodes[0].model == model]


def bursts(config: Config, apps: Sequence[str], rate: float, cv: float, seconds: float, seed: object) -> List[Due]:
    """Poisson arrivals whose rate is drawn anew every half second (gamma, variation ``cv``), each for either app."""
    source = Workload(
        WorkloadConfig("load", kind="gamma", rate=rate, cv=cv, apps=tuple(apps)), config, seed, s_to_ns(seconds)
    )
    due: List[Due] = []
    while True:
        arrival = source.next_open()
        if arrival is None:
            return due
        due.append((arrival.at_ns, apps[arrival.app_index]))


def pool_of(apps: Sequence[str], seed: int) -> Dict[str, List[Values]]:
    """What is asked, app by app."""
    return {app: APPS[app](POOL, POOL_SEED + seed) for app in apps}


def send(bus: Client, due: Sequence[Due], pool: Mapping[str, Sequence[Values]], slo_ns: int) -> Dict[str, Any]:
    """Send one load and wait for its end: per app what ``edgeserve bench`` reports, and the finish rate of all."""
    tallies = {app: BenchTally() for app in pool}
    start_ns = time.monotonic_ns()
    for at_ns, app in due:
        wait_ns = start_ns + at_ns - time.monotonic_ns()
        if wait_ns > 0:
            time.sleep(ns_to_s(wait_ns))
        tally, requests = tallies[app], pool[app]
        tally.send(bus, ResolvedOptions(app, requests[tally.sent % len(requests)], slo_ns), start_ns + at_ns)
    unanswered = {app: tally.wait() for app, tally in tallies.items()}
    run_s = max(1e-3, ns_to_s(due[-1][0])) if due else 1e-3
    tables = {app: tally.table(run_s, unanswered[app]) for app, tally in tallies.items()}
    sent = max(1, sum(tally.sent for tally in tallies.values()))
    return {"finish_rate": sum(tally.in_time for tally in tallies.values()) / sent, "sent": sent, "apps": tables}


def main(argv: Sequence[str] | None = None) -> int:
    """Send one load, print a line per app."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=("digits", "recognise"), default="digits")
    parser.add_argument("--rate", type=float, default=50.0, help="requests per second, both apps (default 50)")
    parser.add_argument("--cv", type=float, default=0.5, help="how much the rate varies (default 0.5)")
    parser.add_argument("--slo", default="100ms", help="deadline of every request (default 100ms)")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--endpoint", help="where the server listens (default: this user's)")
    args = parser.parse_args(argv)
    config = load_config(CONFIG)
    apps = apps_of(config, args.model)
    due = bursts(config, apps, args.rate, args.cv, args.seconds, args.seed)
    with Client(args.endpoint or config.server.endpoint or None) as bus:
        result = send(bus, due, pool_of(apps, args.seed), parse_duration_ns(args.slo))
    for app, table in result["apps"].items():
        latency = table["latency_ms"]
        print(
            f"{app:<8} {table['finish_rate']:6.1%} of {table['sent']} in time, "
            f"p50 {latency.get('p50', 0):.1f} ms, p99 {latency.get('p99', 0):.1f} ms, "
            f"late {table['late']}, otherwise {table['ended_otherwise'] or 'none'}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
