"""The policies in turn on the same load of two apps with one model: the share of requests that end in time.

    python examples/dynamic/compare.py --model digits
    python examples/dynamic/compare.py --model recognise --policies plan fifo --slo 2 3 --rounds 1

First the model is profiled on this machine: its batch sizes, and the times alone of both apps' requests. Deadlines are
multiples of the 0.99-quantile of these, the rate is ``--load`` over their mean (at 1.0 a server without batches would
just be busy all the time). Each policy gets a server of its own; rounds are interleaved, since a machine changes with
time, and every round has other arrivals, the same for every policy. The finish rate counts what the client saw in time,
of all that was sent. A run in which the client itself, which mostly sleeps, could not send in time says more about the
machine than about the policy: it is repeated, also after a good result. Where that does not help, the round counts for
that deadline with none of the policies.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from inputs import Values
from load import CONFIG, Due, apps_of, bursts, pool_of, send

from edgeserve import __version__
from edgeserve.client import Client
from edgeserve.config.loading import load_config, parse_config
from edgeserve.config.machine import device_name, device_slug
from edgeserve.config.profiles import LaneProfile, profile_path, read_profile
from edgeserve.config.schema import Config
from edgeserve.config.toml_files import read_toml
from edgeserve.device.host import load_average
from edgeserve.errors import EdgeServeError
from edgeserve.server import serve
from edgeserve.units import NS_PER_S, ns_to_ms

POLICIES = ("plan", "orloj", "clockwork", "nexus", "fifo")
FACTORS = (1.5, 2.0, 3.0, 4.0, 5.0)
START_S_MAX = 60.0
STOP_S_MAX = 20.0
LAG_SHARE_MAX = 0.25
"""Of the deadline: when one request in a hundred was sent later than that after it was due, the run is disturbed."""

REPEATS_MAX = 2
OFF_MAX = 0.03
"""How far the share of batches that end by their stated 0.9-quantile may be from 0.9."""

WARM_S = 2.0
"""Of load before anything is counted: what the server learns from its first batches it has learnt then."""


class Candidate(NamedTuple):
    """One policy with its options, as ``--policies`` names it: ``plan``, ``clockwork:estimate=mean``."""

    name: str
    kind: str
    options: Dict[str, Any]


def read_candidate(text: str) -> Candidate:
    """``KIND[:key=value,...]``; values are JSON, or text where they are not."""
    kind, _, rest = text.partition(":")
    options: Dict[str, Any] = {}
    for word in filter(None, rest.split(",")):
        key, equals, value = word.partition("=")
        if not equals:
            raise argparse.ArgumentTypeError(f"{text!r}: {word!r} is no option; expected KIND:key=value,key=value")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return Candidate(text, kind, options)


# --- the server's side ------------------------------------------------------------------------------------------------


def config_of(model: str, candidate: Candidate, profiles: str, endpoint: str) -> Config:
    """``edge.toml`` with one model and its apps only, the candidate as its policy."""
    table = read_toml(CONFIG)
    table["server"] = {"endpoint": endpoint, "profiles": profiles}
    table["policy"] = {"main": {"kind": candidate.kind, **candidate.options}}
    table["model"] = {model: table["model"][model]}
    table["app"] = {name: app for name, app in table["app"].items() if app["model"] == model}
    table["lane"] = {name: table["lane"][name] for name in table["model"][model]["lanes"]}
    return parse_config(table, directory=os.path.dirname(CONFIG), source=CONFIG)


@contextlib.contextmanager
def server(model: str, candidate: Candidate, profiles: str, folder: str) -> Iterator[Client]:
    """A server in a process of its own and a client to it; both are gone afterwards."""
    endpoint = f"ipc://{folder}/bus/socket"
    process = subprocess.Popen(
        [
            sys.executable,
            os.path.abspath(__file__),
            "--model",
            model,
            "--policies",
            candidate.name,
            "--serve",
            endpoint,
            "--profiles",
            profiles,
        ]
    )
    try:
        with Client(endpoint) as bus:
            wait_until_ready(bus, process)
            yield bus
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_ready(bus: Client, process: subprocess.Popen[bytes]) -> None:
    """Until the server answers; ``RuntimeError`` when it ended or never does."""
    end_s = time.monotonic() + START_S_MAX
    while time.monotonic() < end_s:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode} before it was ready; see above")
        try:
            if bus.ask("health", timeout_ms=500)["ready"]:
                return
        except EdgeServeError:
            time.sleep(0.1)
    raise RuntimeError(f"the server was not ready within {START_S_MAX:.0f} s")


# --- one comparison ---------------------------------------------------------------------------------------------------


def profiled(model: str, out: str, seconds: float) -> LaneProfile:
    """The model's profile on this machine, measured now into ``out`` unless it is there."""
    command = [
        sys.executable,
        "-m",
        "edgeserve.cli",
        "profile",
        CONFIG,
        "--model",
        model,
        "--out",
        out,
        "--seconds",
        str(seconds),
    ]
    subprocess.run(command, check=True)
    profile = read_profile(profile_path(out, device_slug(), model))
    (lane,) = profile.lanes.values()
    return lane


def time_alone(lane: LaneProfile) -> Tuple[float, float]:
    """Mean and 0.99-quantile in ns of the time alone of a request that is either app's with even odds."""
    apps = [np.asarray(times, np.float64) for times in lane.alone.values()]
    longest = max(map(len, apps))
    even = np.concatenate([np.quantile(times, np.linspace(0, 1, longest)) for times in apps])
    return float(np.mean([times.mean() for times in apps])), float(np.quantile(even, 0.99))


def one_server(
    args: argparse.Namespace, candidate: Candidate, round_number: int, rate: float, p99_ns: float, profiles: str
) -> Dict[str, Any]:
    """One policy's share of one round: every deadline once."""
    apps = apps_of(load_config(CONFIG), args.model)
    config = config_of(args.model, candidate, profiles, "")
    pool = pool_of(apps, args.seed + round_number)
    rows: Dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="edgeserve-") as folder:
        with server(args.model, candidate, profiles, folder) as bus:
            send(bus, bursts(config, apps, rate, args.cv, WARM_S, args.seed), pool, round(max(args.slo) * p99_ns))
            for factor in args.slo:
                seed = f"{args.seed + round_number}/{factor}"
                due = bursts(config, apps, rate, args.cv, args.seconds, seed)
                rows[str(factor)] = undisturbed(bus, due, pool, round(factor * p99_ns))
            stats = bus.stats()
    return {
        "policy": candidate.name,
        "round": round_number,
        "slo": rows,
        "calibration": calibration_of(stats),
        "lane_busy": {name: lane["busy"] for name, lane in stats["lanes"].items()},
        "jobs_per_work": {name: lane["jobs"] / max(1, lane["works"]) for name, lane in stats["lanes"].items()},
    }


def undisturbed(bus: Client, due: Sequence[Due], pool: Mapping[str, Sequence[Values]], slo_ns: int) -> Dict[str, Any]:
    """One load; again while the machine stood still during it, :data:`REPEATS_MAX` times at most."""
    repeats = 0
    while True:
        result = send(bus, due, pool, slo_ns)
        lag_ms = max(table["sent_late_p99_ms"] for table in result["apps"].values())
        disturbed = lag_ms > LAG_SHARE_MAX * ns_to_ms(slo_ns)
        if not disturbed or repeats == REPEATS_MAX:
            return {**result, "repeats": repeats, "sent_late_p99_ms": lag_ms, "disturbed": disturbed}
        repeats += 1


def left_out(runs: Sequence[Mapping[str, Any]]) -> List[Tuple[int, str]]:
    """The (round, deadline's factor) in which some policy's run stayed disturbed."""
    return sorted({(run["round"], factor) for run in runs for factor, row in run["slo"].items() if row["disturbed"]})


def calibration_of(stats: Mapping[str, Any]) -> Optional[Dict[str, float]]:
    """Of the batches whose 0.9-quantile was stated when they were launched: how many there were, the share that ended
    by it, and the share that would have by the model's own quantile, which what happened has not corrected. ``None``
    for a policy that states none."""
    told = stats.get("policies", {}).get("main", {}).get("calibration")
    if not told or not told["stated"]:
        return None
    return {
        "stated": told["stated"],
        "kept_share": told["kept"] / told["stated"],
        "uncorrected_share": told["uncorrected"] / told["stated"],
    }


def finish_rates(runs: Sequence[Mapping[str, Any]]) -> Dict[str, Dict[str, List[float]]]:
    """Policy -> deadline's factor -> the finish rate of each round that counts; no key where none does."""
    rates: Dict[str, Dict[str, List[float]]] = {}
    out = left_out(runs)
    for run in runs:
        row = rates.setdefault(run["policy"], {})
        for factor, result in run["slo"].items():
            if (run["round"], factor) not in out:
                row.setdefault(factor, []).append(result["finish_rate"])
    return rates


def checks_of(
    rates: Mapping[str, Mapping[str, Sequence[float]]], runs: Sequence[Mapping[str, Any]]
) -> List[Dict[str, Any]]:
    """What the result should show, in the form of the scripts' results: the first policy is not behind any other, and
    nine of ten batches end by their stated 0.9-quantile."""
    if not next(iter(rates.values())):
        return []  # no round counts
    means = {name: float(np.mean([np.mean(row[factor]) for factor in row])) for name, row in rates.items()}
    first, *others = means
    checks = [
        {
            "name": f"{first} ahead of {other}, mean finish rate",
            "value": round(means[first] - means[other], 4),
            "bound": ">= 0",
            "holds": means[first] >= means[other],
        }
        for other in others
    ]
    for name, (stated, kept) in stated_by_policy(runs).items():
        checks.append(
            {
                "name": f"{name}: off nine of ten batches by the stated time",
                "value": round(abs(kept / stated - 0.9), 4),
                "bound": f"<= {OFF_MAX}",
                "holds": abs(kept / stated - 0.9) <= OFF_MAX,
            }
        )
    return checks


def stated_by_policy(runs: Sequence[Mapping[str, Any]]) -> Dict[str, Tuple[float, float]]:
    """Policy -> batches that were stated to end by a time, and how many did; over all rounds."""
    found: Dict[str, Tuple[float, float]] = {}
    for run in runs:
        told = run["calibration"]
        if told:
            stated, kept = found.get(run["policy"], (0.0, 0.0))
            found[run["policy"]] = (stated + told["stated"], kept + told["stated"] * told["kept_share"])
    return found


def as_text(rates: Mapping[str, Mapping[str, Sequence[float]]], runs: Sequence[Mapping[str, Any]]) -> str:
    """Finish rates (means over rounds), and each policy's over the first one's."""
    first = next(iter(rates))
    factors = list(rates[first])
    if not factors:
        return "no round counts: the machine stood still in every one; compare on a machine with nothing else to do"
    lines = [f"{'finish rate at':<28}" + "".join(f"{float(factor):>7g}x" for factor in factors) + "    mean   ratio"]
    means = {name: [float(np.mean(row[factor])) for factor in factors] for name, row in rates.items()}
    for name, row in means.items():
        ratio = float(np.mean(row)) / max(1e-9, float(np.mean(means[first])))
        lines.append(f"{name:<28}" + "".join(f"{rate:>8.3f}" for rate in row) + f"{np.mean(row):>8.3f}{ratio:>8.3f}")
    for name, (stated, kept) in stated_by_policy(runs).items():
        lines.append(f"{name}: {kept / stated:.1%} of {stated:.0f} batches ended by their stated 0.9-quantile")
    lines += [
        f"left out, for the machine stood still: round {number + 1} at {float(factor):g}x"
        for number, factor in left_out(runs)
    ]
    return "\n".join(lines)


def circumstances(argv: Sequence[str]) -> Dict[str, Any]:
    """What a stored result says of how it came about."""
    return {
        "command": shlex.join(["python", "examples/dynamic/compare.py", *argv]),
        "device": device_name(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "load average at the end": round(load_average(), 2),
        "python": platform.python_version(),
        "edgeserve": __version__,
        "numpy": np.__version__,
        "onnxruntime": importlib.metadata.version("onnxruntime"),
    }


def compare(args: argparse.Namespace, argv: Sequence[str], profiles: str) -> Dict[str, Any]:
    """Profile, then all rounds; prints as it goes."""
    lane = profiled(args.model, profiles, args.profile_seconds)
    mean_ns, p99_ns = time_alone(lane)
    rate = args.load * NS_PER_S / mean_ns
    print(
        f"{args.model}: alone {ns_to_ms(round(mean_ns)):.2f} ms on average, p99 {ns_to_ms(round(p99_ns)):.2f} ms; "
        f"{rate:.1f} requests/s for {args.seconds:g} s a run",
        flush=True,
    )
    runs: List[Dict[str, Any]] = []
    for number in range(args.rounds):
        turn = number % len(args.policies)
        for candidate in [*args.policies[turn:], *args.policies[:turn]]:
            runs.append(one_server(args, candidate, number, rate, p99_ns, profiles))
            rows = runs[-1]["slo"]
            print(
                f"round {number + 1}: {candidate.name:<28} "
                + "  ".join(f"{float(factor):g}x {row['finish_rate']:.3f}" for factor, row in rows.items())
                + f"  ({sum(row['repeats'] for row in rows.values())} repeated)",
                flush=True,
            )
    runs.sort(key=lambda run: (args.policies.index(read_candidate(run["policy"])), run["round"]))
    rates = finish_rates(runs)
    print(as_text(rates, runs))
    return {
        "script": "examples/dynamic/compare.py",
        "circumstances": circumstances(argv),
        "checks": checks_of(rates, runs),
        "model": args.model,
        "alone_mean_ms": mean_ns / 1e6,
        "alone_p99_ms": p99_ns / 1e6,
        "rate": rate,
        "finish_rates": rates,
        "left_out": left_out(runs),
        "runs": runs,
        "profile": {
            "fixed_ms": lane.fixed_ns / 1e6,
            "per_item_ms": lane.per_item_ns / 1e6,
            "median_ms": {size: timing.median_ns / 1e6 for size, timing in lane.timings.items()},
            "alone_ms": {
                app: {f"p{percent}": float(np.quantile(times, percent / 100)) / 1e6 for percent in (0, 10, 50, 90, 99)}
                for app, times in lane.alone.items()
            },
        },
    }


def written(result: Mapping[str, Any]) -> str:
    """The result as JSON that can be compared line by line: a line per key, check and run."""
    lines = []
    for key, value in result.items():
        if key in ("checks", "runs"):
            rows = ",\n".join(f"  {json.dumps(row)}" for row in value)
            lines.append(f" {json.dumps(key)}: [\n{rows}]")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def slim(run: Mapping[str, Any]) -> Dict[str, Any]:
    """A run without what can be computed from the rest, in few digits."""
    kept = ("sent", "in_time", "late", "unanswered", "ended_otherwise", "latency_ms", "breakdown_ms")
    slo = {
        factor: {**row, "apps": {app: {key: table[key] for key in kept} for app, table in row["apps"].items()}}
        for factor, row in run["slo"].items()
    }
    text = json.dumps({**run, "slo": slo})
    rounded: Dict[str, Any] = json.loads(text, parse_float=lambda number: round(float(number), 4))
    return rounded


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments, checked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=("digits", "recognise"), default="digits")
    parser.add_argument(
        "--policies",
        nargs="+",
        type=read_candidate,
        metavar="KIND[:key=value,...]",
        default=[read_candidate(name) for name in POLICIES],
    )
    parser.add_argument(
        "--slo",
        nargs="+",
        type=float,
        default=list(FACTORS),
        metavar="FACTOR",
        help="deadlines as multiples of the p99 alone (default: 1.5 2 3 4 5)",
    )
    parser.add_argument("--load", type=float, default=0.8, help="rate times mean time alone (default 0.8)")
    parser.add_argument("--cv", type=float, default=0.5, help="how much the rate varies (default 0.5)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of load per policy, deadline and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profiles", default="", metavar="DIR", help="keep the profile here (default: measure anew)")
    parser.add_argument("--profile-seconds", type=float, default=2.0, help="longest time per batch size (default 2)")
    parser.add_argument("--json", default="", metavar="FILE", help="write everything here")
    parser.add_argument("--serve", default="", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if not args.load > 0 or not args.seconds > 0 or args.rounds < 1 or not min(args.slo) > 0:
        parser.error("--load, --seconds, --rounds and --slo must be above 0")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Compare; or, with ``--serve``, be one of the servers."""
    words = sys.argv[1:] if argv is None else list(argv)
    args = parse(words)
    if args.serve:
        return serve(config_of(args.model, args.policies[0], args.profiles, args.serve))
    with tempfile.TemporaryDirectory(prefix="edgeserve-profiles-") as folder:
        result = compare(args, words, os.path.abspath(args.profiles) if args.profiles else folder)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            file.write(written({**result, "runs": [slim(run) for run in result["runs"]]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
