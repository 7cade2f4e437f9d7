"""A day of an Orin Nano whose over-current events tick all the time while no clock falls: what do the ticks cost?

    python research/bench/day.py [--hours 24] [--processes 2] [--json FILE]

In virtual time, hour by hour, each a world and a seed of its own: the air in its case is 17 C at night and 56 C in the
afternoon, the GPU between 40 and 80. Each hour runs without ticks and with them, on the same arrivals. Compared are the
finish rates of a camera (critical), of questions and of background work.
"""

from __future__ import annotations

import math
import os
import sys
from multiprocessing import Pool
from pathlib import Path
from typing import Any, Dict
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

from common.nano import nano, ticking
from lib.checks import Checks, arguments

from edgeserve.sim.hardware import SimHardware
from edgeserve.sim.report import report_of
from edgeserve.sim.run import simulate

COLDEST_C, WARMEST_C, COLDEST_HOUR = 17.0, 56.0, 4
SECONDS = 3600.0
LOST_POINTS_MAX = 0.5


def air_c(hour: int) -> float:
    """In the case, at an hour of the day."""
    return COLDEST_C + (WARMEST_C - COLDEST_C) * (1.0 - math.cos((hour - COLDEST_HOUR) * math.pi / 12.0)) / 2.0


def run_hour(hour: int) -> Dict[str, Any]:
    """One hour without ticks and with them."""
    setting = nano(SECONDS, air_c(hour))
    row: Dict[str, Any] = {"hour": hour, "air_c": round(air_c(hour), 1)}
    for key in ("without", "ticks"):
        readings = ticking if key == "ticks" else SimHardware.readings
        with mock.patch.object(SimHardware, "readings", readings):
            world = simulate(setting, hour, ()).world
        report = report_of([world], 0, setting.run.duration_ns)
        row[key] = {name: [app.in_time, app.offered] for name, app in report.apps.items()}
        row["heat_c_max"] = round(world.hardware["gpu"].heat_c_max, 1)
    print(row, flush=True)
    return row


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    with Pool(options.processes) as pool:
        rows = pool.map(run_hour, range(options.hours), 1)
    checks = Checks("research/bench/day.py")
    for app in rows[0]["ticks"]:
        rates = {
            key: 100.0 * sum(row[key][app][0] for row in rows) / sum(row[key][app][1] for row in rows)
            for key in ("without", "ticks")
        }
        checks.at_least(f"{app}: finished without ticks, percent", rates["without"], 90.0)
        checks.at_most(f"{app}: lost by ticks, points", rates["without"] - rates["ticks"], LOST_POINTS_MAX)
        worst = max(
            100.0 * (row["without"][app][0] / row["without"][app][1] - row["ticks"][app][0] / row["ticks"][app][1])
            for row in rows
        )
        checks.at_most(f"{app}: lost in the worst hour, points", worst, LOST_POINTS_MAX)
    heat = [row["heat_c_max"] for row in rows]
    circumstances = {"hours": options.hours, "hottest of the GPU by hour": f"{min(heat)} to {max(heat)} C"}
    return checks.finish(options.json, circumstances, hours=rows)


if __name__ == "__main__":
    sys.exit(main())
