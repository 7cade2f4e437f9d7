"""The share of refusals whose named deadline is kept: one in ten of those refused asks again with it, at once.

    python research/bench/promises.py [--only KIND] [--worlds N] [--dev] [--throttled] [--json FILE]

Drawn worlds of one kind of work and of unlike apps on one device, as ``ablation.py`` has them, under ``plan``, in
virtual time. Reported: how many asked again and how many of these were in time, how many refusals for a deadline
carried no number, and how many of all the others were in time. Three ways are compared, on the same arrivals: a number
that counts the running work alone, one that counts what waits too, and with the rank that a promise gives
(``sched/requests/promises.py``). The worlds follow in which too few are in time. A request that comes back with a
deadline after the last arrival is not counted: the devices are idle by then. With ``--throttled`` every device slows
down for the middle third of the run, as if it were too hot, to :data:`THROTTLED` of its clock, and only who came while
it was slow counts.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Mapping, Sequence, Tuple
from unittest import mock

os.environ["EDGESERVE_CORE"] = "interpreted"
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

from common import ensemble_worlds, mixed_worlds, worlds
from common.replicated import BEYOND, checks_of
from lib.checks import arguments

from bench import regret
from edgeserve.sched.core import entry, refusals
from edgeserve.sched.core.request_manager import SUPERSEDED
from edgeserve.sched.policy_api.policy import CANNOT_MAKE_DEADLINE
from edgeserve.sched.protocol.actions import FinishRequest
from edgeserve.sim.hardware import CapConfig, HardwareConfig
from edgeserve.sim.host import NOT_MEASURED
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import Scenario
from edgeserve.units import FOREVER_NS

KINDS = (*worlds.KINDS, *mixed_worlds.KINDS)
AGAIN = 0.1
AGAIN_MIN = 10
"""Worlds in which fewer ask again count in the sum alone."""

KEPT_PERCENT = 90.0
THROTTLED = 0.65
KEPT_THROTTLED_PERCENT = 85.0
UNNUMBERED_PERCENT = 5.0

WAYS: Mapping[str, Sequence[Any]] = {
    "running work": (
        mock.patch.object(refusals, "_ahead_ns", return_value=0),
        mock.patch.object(entry, "RANK", 1.0),
    ),
    "and what waits": (mock.patch.object(entry, "RANK", 1.0),),
    "and a rank": (),
}


class Count:
    """The counts of requests by outcome."""

    def __init__(self) -> None:
        self.again = self.kept = self.refused = self.unnumbered = self.others = self.in_time = 0

    def add(self, other: Count) -> None:
        """Add the counts of another world."""
        for name in vars(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def figures(self) -> Dict[str, float]:
        """Percent."""
        return {
            "asked_again": self.again,
            "kept_percent": 100.0 * self.kept / max(1, self.again),
            "unnumbered_percent": 100.0 * self.unnumbered / max(1, self.refused),
            "others_in_time_percent": 100.0 * self.in_time / max(1, self.others),
        }


def throttled(scenario: Scenario) -> Tuple[Scenario, int, int]:
    """Devices that are slow for the middle third of the run; from when until when."""
    third_ns = scenario.run.duration_ns // 3
    caps = (CapConfig(third_ns, third_ns, THROTTLED, "thermal"),)
    hardware = {
        name: replace(scenario.hardware.get(name, HardwareConfig(name)), clocks=(1000.0 * THROTTLED, 1000.0), caps=caps)
        for name in scenario.config.devices
    }
    return replace(scenario, hardware=hardware), third_ns, 2 * third_ns


def count(name: str, way: str, is_throttled: bool = False) -> Count:
    """Simulate one world; what became of it."""
    kind = name.split("/")[1]
    if kind in mixed_worlds.KINDS:
        world = mixed_worlds.draw(name)[0]
        scenario = world.scenario
    else:
        world = ensemble_worlds.world_of(name)
        scenario = regret.under(world.scenario, regret.RECOMMENDED)
    workloads = tuple(item if item.kind == "closed" else replace(item, again=AGAIN) for item in scenario.workloads)
    scenario = replace(scenario, workloads=workloads)
    from_ns, to_ns = 0, FOREVER_NS
    if is_throttled:
        scenario, from_ns, to_ns = throttled(scenario)
    config = scenario.config
    found = Count()

    def look(now_ns: int, events: Sequence[Any], actions: Sequence[Any]) -> None:
        for action in actions:
            if (
                isinstance(action, FinishRequest)
                and action.reason == CANNOT_MAKE_DEADLINE
                and from_ns <= now_ns < to_ns
            ):
                found.refused += 1
                found.unnumbered += action.shortfall is None or action.shortfall.slo_ns_min is None

    with ExitStack() as stack:
        for part in WAYS[way]:
            stack.enter_context(part)
        ended = simulate(
            scenario,
            f"{name}/0",
            world.profiles,
            scheduler=regret.scheduler_for(scenario, world),
            measured=NOT_MEASURED,
            on_step=look,
        ).world.ended
    slo_of = {item.app: item.slo_ns for item in workloads if item.slo_ns}
    for end in ended:
        request = end.request
        if not from_ns <= request.arrival_ns < to_ns or end.reason == SUPERSEDED:
            continue  # a newer one of the client's own stream ended it
        usual_ns = slo_of.get(request.app) or config.apps[request.app].slo_ns
        in_time = end.in_time
        if request.deadline_ns - request.arrival_ns != usual_ns:
            if request.deadline_ns > scenario.run.duration_ns:
                continue  # the devices are idle by then
            found.again += 1
            found.kept += in_time
        else:
            found.others += 1
            found.in_time += in_time
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--dev", action="store_true", help="worlds to develop on, not the reported ones")
    parser.add_argument("--throttled", action="store_true", help="while the devices are slowed down")
    parser.add_argument("--only", metavar="KIND", action="append", choices=KINDS, help=", ".join(KINDS))
    parser.add_argument("--worlds", type=int, default=4, metavar="N", help="worlds per kind (default %(default)s)")
    args = parser.parse_args(argv)
    seed = "dev" if args.dev else "report"
    names = [f"{seed}/{kind}/{index}" for kind in args.only or KINDS for index in range(args.worlds)]
    table: Dict[str, Count] = {way: Count() for way in WAYS}
    kept_percent = KEPT_THROTTLED_PERCENT if args.throttled else KEPT_PERCENT
    short: Dict[str, Dict[str, float]] = {}
    for name in names:
        for way, sums in table.items():
            found = count(name, way, args.throttled)
            sums.add(found)
        figures = found.figures()  # of the last way: with the rank
        if found.again >= AGAIN_MIN and figures["kept_percent"] < kept_percent:
            short[name] = figures
    print(f"{'way':18}{'asked again':>12}{'in time':>9}{'no number':>11}{'others in time':>16}")
    for way, sums in table.items():
        print(f"{way:18}" + "{:12.0f}{:8.1f}%{:10.1f}%{:15.1f}%".format(*sums.figures().values()))
    checks = checks_of("research/bench/promises.py", one_side=BEYOND)
    for name, figures in short.items():
        print(f"{name:18}" + "{:12.0f}{:8.1f}%{:10.1f}%{:15.1f}%".format(*figures.values()))
    row = table["and a rank"].figures()
    checks.at_least("in time of those that ask again", row["kept_percent"], kept_percent)
    checks.at_most("refusals without a number", row["unnumbered_percent"], UNNUMBERED_PERCENT)
    checks.at_most("worlds in which fewer of them are in time", len(short), 0)
    return checks.finish(
        args.json,
        {"seed": seed, "worlds": len(names)},
        rows={way: sums.figures() for way, sums in table.items()},
        short=short,
    )


if __name__ == "__main__":
    sys.exit(main())
