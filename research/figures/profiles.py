"""Draw ``profiles/``: published and stored latencies as profiles to simulate with, and the schema.

    python research/figures/profiles.py [--check]

The numbers stand in ``data/`` with their sources. A table that prints one time per batch size becomes that time
without any spread. Orloj's prints mean and p99 of each task alone: median and quantiles are those of the log-normal
distribution that has this mean and this p99, which the profile says. ``dynamic_alone.json`` was measured with the two
models of ``examples/dynamic``, in processor time, so that other programs do not count in it. With ``--check`` nothing
is written, and the exit status is 1 when a file is not what it would be.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import re
import statistics
import sys
from dataclasses import replace
from typing import Any, Dict, List, Sequence, Tuple

from edgeserve.commands.measure import fit_affine, summarise
from edgeserve.config.json_schema import profile_schema
from edgeserve.config.machine import slug
from edgeserve.config.profiles import QUANTILES, LaneProfile, Profile, Timing, profile_text

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DATA = os.path.join(ROOT, "research", "data")
LANE = "gpu0"
Z99 = statistics.NormalDist().inv_cdf(0.99)
ENDS = (0.001, 0.999)  # what the least and the largest of a thousand runs stand for
CLOCKWORK = (
    "Gujarati et al.: Serving DNNs like Clockwork, OSDI 2020, Appendix A: latency by batch size, weights, "
    "transfer time of the weights; Tesla V100"
)
ORLOJ = "Yu et al.: Orloj, 2022, Table 1: mean and p99 of each task's inputs alone; Tesla V100"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the files, or say which are not as they would be written."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args(argv)
    wrong = []
    for path, text in sorted(drawn().items()):
        whole = os.path.join(ROOT, path)
        there = ""
        if os.path.exists(whole):
            with open(whole, encoding="utf-8") as file:
                there = file.read()
        if there != text and args.check:
            wrong.append(path)
        elif there != text:
            os.makedirs(os.path.dirname(whole), exist_ok=True)
            with open(whole, "w", encoding="utf-8") as file:
                file.write(text)
    for path in wrong:
        print(f"{path} is not what research/figures/profiles.py draws", file=sys.stderr)
    return 1 if wrong else 0


def drawn() -> Dict[str, str]:
    """Path below the project -> text, of every file that is drawn."""
    files = {"profiles/profile.schema.json": json.dumps(profile_schema(), indent=1) + "\n"}
    for profile in (*clockwork(), *orloj(), *measured()):
        # One line per batch size, so that a table of a paper stays as readable as it was.
        text = re.sub(
            r"\[\s+([^\]]*?)\s+\]", lambda match: f"[{' '.join(match.group(1).split())}]", profile_text(profile)
        )
        files[f"profiles/{profile.device}/{profile.model}.json"] = f"{text}\n"
    return files


def rows(name: str) -> List[Dict[str, str]]:
    """A table of ``research/data``."""
    with open(os.path.join(DATA, name), encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def clockwork() -> List[Profile]:
    """A profile per model of Clockwork's zoo."""
    found = []
    for row in rows("clockwork_models.csv"):
        times = {int(key[1:-3]): ns(row[key]) for key in row if re.fullmatch(r"b\d+_ms", key) and row[key]}
        timings = {
            size: Timing(0, time_ns, time_ns, time_ns, 0, (time_ns,) * len(QUANTILES), 0.0, 1.0)
            for size, time_ns in times.items()
        }
        lane = LaneProfile(timings, *fit(times), ns(row["weights_transfer_ms"]))
        weights_bytes = round(float(row["weights_MB"]) * 1e6)
        found.append(
            Profile(
                row["model"],
                "clockwork-tesla-v100",
                {LANE: lane},
                weights_bytes,
                0,
                published(
                    CLOCKWORK,
                    family=row["family"],
                    input_bytes=round(float(row["input_kB"]) * 1e3),
                    output_bytes=round(float(row["output_kB"]) * 1e3),
                ),
            )
        )
    return found


def orloj() -> List[Profile]:
    """A profile per model and data set of Orloj's real tasks."""
    found = []
    for row in rows("orloj_table1.csv"):
        timing = log_normal(ns(row["mean_exec_ms"]), ns(row["p99_exec_ms"]))
        lane = LaneProfile({1: timing}, 0, timing.median_ns, 0.0, 0)
        name = re.sub(r"[^a-z0-9]+", "-", f"{row['model']} {row['dataset']}".lower()).strip("-")
        found.append(
            Profile(
                name,
                "orloj-tesla-v100",
                {LANE: lane},
                0,
                0,
                published(
                    ORLOJ,
                    task=row["task"],
                    derived="median, standard deviation and quantiles: of the log-normal distribution "
                    "with the printed mean and p99",
                ),
            )
        )
    return found


def measured() -> List[Profile]:
    """A profile per model of ``examples/dynamic``: requests of its two apps alone, half of each in the times of a batch
    of one."""
    with open(os.path.join(DATA, "dynamic_alone.json"), encoding="utf-8") as file:
        stored = json.load(file)
    known = {key: stored[key] for key in ("command", "date", "load_average", "versions", "clock")}
    found = []
    for (model, apps), lane in zip(sorted(stored["cases"].items()), ("cpu0", "cpu1")):
        alone = {app: tuple(sorted(round(time_ms * 1e6) for time_ms in times)) for app, times in apps.items()}
        timing = summarise([time_ns for times in alone.values() for time_ns in times])
        timing = replace(timing, drift=0.0)  # the two apps came one after the other: no drift of the device
        lanes = {lane: LaneProfile({1: timing}, 0, timing.median_ns, 0.0, 0, alone)}
        found.append(Profile(model, slug(stored["device"]), lanes, 0, 0, {**known, "device_name": stored["device"]}))
    return found


def log_normal(mean_ns: int, p99_ns: int) -> Timing:
    """The timing of a log-normal distribution with this mean and p99; of the two that have them the narrower."""
    ratio = math.log(p99_ns / mean_ns)
    sigma = Z99 - math.sqrt(Z99 * Z99 - 2 * ratio)
    mu = math.log(mean_ns) - sigma * sigma / 2
    normal = statistics.NormalDist(mu, sigma)
    # To the microsecond: the last digits of a float are another Python's.
    quantiles = tuple(round(math.exp(normal.inv_cdf(min(max(q, ENDS[0]), ENDS[1]))) / 1e3) * 1000 for q in QUANTILES)
    sd_ns = round(mean_ns * math.sqrt(math.exp(sigma * sigma) - 1) / 1e3) * 1000
    return Timing(0, quantiles[QUANTILES.index(0.5)], p99_ns, mean_ns, sd_ns, quantiles, 0.0, 1.0)


def fit(times: Dict[int, int]) -> Tuple[int, int, float]:
    """``c0``, ``c1`` and the largest error of ``c0 + c1 * batch``."""
    fixed_ns, per_item_ns, error_max = fit_affine(times)
    return fixed_ns, per_item_ns, round(error_max, 4)


def published(source: str, **more: Any) -> Dict[str, Any]:
    """Circumstances of a table that was printed: nothing here was measured."""
    return {"published": source, "device_name": "NVIDIA Tesla V100", **more}


def ns(ms: str) -> int:
    """Printed milliseconds."""
    return round(float(ms) * 1e6)


if __name__ == "__main__":
    sys.exit(main())
