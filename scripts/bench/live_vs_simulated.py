"""Live against simulated: the same arrivals, asked of a server over the bus and of the simulator.

    python scripts/bench/live_vs_simulated.py [--configurations one_node,pipeline,reader] [--rounds 3] [--seconds 30]
        [--loads 0.7,1.2] [--profile-seconds 3] [--json FILE]

Three configurations: one network; the same between two host functions in pure Python; and ``examples/reader`` without
its voice detector (fetch its assets first). For each, ``edgeserve profile``'s measurements are made in a process of
their own, models and machine; then a server is asked in a closed loop for what it can do, and each round asks it for
``--loads`` times that rate at Poisson times. The simulator gets the profiles, the machine's costs and the times when
requests were sent; nothing of what came of them. Pages of the reader differ: how much longer than its profile a node
takes for each page is measured beforehand, one page at a time. Beside it stands what the simulator says with 20 us per
step and 15 us per event and nothing else: its default before machine costs were measured.

Needs a quiet machine: other programs slow the live server and not the simulated one.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, DefaultDict, Dict, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/

from lib import live_models
from lib.checks import Checks

from edgeserve.client import Client
from edgeserve.config.loading import parse_config, read_toml
from edgeserve.config.machine import device_slug
from edgeserve.config.machine_costs import machine_path, read_machine
from edgeserve.config.profiles import Profile, read_profiles
from edgeserve.errors import RequestError
from edgeserve.recording.trace import read_recording
from edgeserve.sched.protocol.actions import RunBatch
from edgeserve.sched.protocol.events import RequestArrived, WorkFinished
from edgeserve.sim.report import report_of
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import parse_scenario
from edgeserve.tools.machine import OTHERS_BUSY_MAX, profile_machine
from edgeserve.tools.measure import StopRule
from edgeserve.tools.profile import profile_model
from edgeserve.units import s_to_ns

READER = Path(__file__).resolve().parents[2] / "examples" / "reader"
POINTS_MAX = 3.0  # of the finish rate: what the prediction may be off
IN_FLIGHT = {"one_node": 16, "pipeline": 16, "reader": 4}
SERVICES = {"one_node": 32.0, "pipeline": 32.0, "reader": 5.0}  # the deadline, in mean times between two answers
PAGE_ROUNDS = 4  # each page of the reader alone, so many times
READY_S_MAX = 60.0
ANSWER_S_MAX = 120.0
SIMULATED_SEEDS = 5
SENT_LATE_MS_MAX = 5.0
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Asked(NamedTuple):
    """What is served and asked: the configuration, its directory, the app, and inputs by name of their kind."""

    table: Dict[str, Any]
    directory: str
    app: str
    kinds: Mapping[str, Mapping[str, Any]]


class Live(NamedTuple):
    """One live run: when what was sent (seconds after the first), the share in time, and how the others ended."""

    sent: List[Tuple[float, str]]
    finish_rate: float
    ended: Dict[str, int]
    sent_late_p99_ms: float


# --- the configurations -----------------------------------------------------------------------------------------------


def one_node() -> Asked:
    """A network that batches up to eight."""
    return Asked({"model": {"net": {"engine": "live_models:Network", "batch": [1, 2, 4, 8]}},
                  "app": {"see": {"model": "net", "inputs": {"x": {"shape": [live_models.WIDTH]}}}}},
                 str(Path(live_models.__file__).parent), "see", {"all": live_models.example_look()})


def pipeline() -> Asked:
    """The same between two host functions, on a lane of their own."""
    hosts = {name: {"engine": "python", "function": f"live_models:{name}", "lanes": ["host"],
                    "options": {"example": f"live_models:example_{name}"}} for name in ("look", "tell")}
    asked = one_node()
    table = {**asked.table, "lane": {"cpu0": {}, "host": {}},
             "model": {**hosts, "net": {**asked.table["model"]["net"], "lanes": ["cpu0"]}},
             "app": {"see": {"inputs": asked.table["app"]["see"]["inputs"], "node": [
                 {"name": "look", "inputs": {"x": "request.x"}}, {"name": "net", "inputs": {"x": "look.x"}},
                 {"name": "tell", "inputs": {"y": "net.y"}}]}}}
    return asked._replace(table=table)


def reader() -> Asked:
    """Pages of text: three networks and four host functions, a branch per line."""
    sys.path.insert(0, str(READER))
    import load as reader_load
    table = read_toml(str(READER / "edge.toml"))
    del table["app"]["ears"], table["model"]["voice"], table["lane"]["cpu1"]
    return Asked(table, str(READER), "reader",
                 {page.name: {"image": page.image} for page in reader_load.pages()})


CONFIGURATIONS = {"one_node": one_node, "pipeline": pipeline, "reader": reader}


# --- live -------------------------------------------------------------------------------------------------------------


def served_table(asked: Asked, folder: str, slo_ms: float, on_late: str, record: str = "") -> Dict[str, Any]:
    """The configuration as it is served and simulated."""
    table = json.loads(json.dumps(asked.table))
    table["app"][asked.app].update(slo=f"{slo_ms:.3f}ms", on_late=on_late, pending_max=100_000)
    table["server"] = {"endpoint": f"ipc://{folder}/bus", "profiles": os.path.join(folder, "profiles"),
                       "record": record, "pending_max": 100_000}
    return table


def child(*words: str) -> List[str]:
    """The command line of this script in another role."""
    return [sys.executable, os.path.abspath(__file__), *words]


@contextlib.contextmanager
def server(table: Mapping[str, Any], directory: str, folder: str) -> Iterator[Client]:
    """A server of its own process, and a client of it."""
    path = os.path.join(folder, "served.json")
    Path(path).write_text(json.dumps([table, directory]))
    process = subprocess.Popen(child("--serve", path), env={**os.environ, **ENVIRONMENT}, stderr=subprocess.PIPE,
                               text=True)
    try:
        with Client(table["server"]["endpoint"]) as client:
            ends_s = time.monotonic() + READY_S_MAX
            while True:
                try:
                    client.health()
                    break
                except RequestError:
                    if process.poll() is not None or time.monotonic() > ends_s:
                        raise SystemExit(f"the server did not start:\n{process.stderr.read()}") from None  # type: ignore[union-attr]
                    time.sleep(0.1)
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=READY_S_MAX)


def capacity(asked: Asked, folder: str, in_flight: int, seconds: float) -> float:
    """Answers a second with so many asked for at a time, everything answered. The first ones fill the pipeline."""
    kinds = list(asked.kinds.values())
    with server(served_table(asked, folder, 60_000, "answer"), asked.directory, folder) as client:
        waiting = [client.submit(asked.app, kinds[index % len(kinds)]) for index in range(in_flight)]
        done, begins_s = 0, 0.0
        while done < 3 * in_flight or done % len(kinds) or time.monotonic() < begins_s + seconds:
            waiting.pop(0).result(ANSWER_S_MAX)
            done += 1
            if done == in_flight:
                begins_s = time.monotonic()
            waiting.append(client.submit(asked.app, kinds[(done + in_flight - 1) % len(kinds)]))
        took_s = time.monotonic() - begins_s
        for future in waiting:
            future.result(ANSWER_S_MAX)
    return (done - in_flight) / took_s


def arrivals_of(kinds: Sequence[str], rate: float, seconds: float, seed: str) -> List[Tuple[float, str]]:
    """When which kind is asked for: Poisson times of which the number is known, and every so many all kinds."""
    draw = random.Random(seed)
    count = round(rate * seconds)
    deck: List[str] = []
    while len(deck) < count:
        deck += draw.sample(kinds, len(kinds))
    return list(zip(sorted(draw.uniform(0.0, seconds) for _ in range(count)), deck))


def ask(asked: Asked, table: Mapping[str, Any], folder: str, due: Sequence[Tuple[float, str]]) -> Live:
    """An open loop over the bus."""
    futures, sent, ended, late_ms = [], [], Counter(), []
    with server(table, asked.directory, folder) as client:
        begins_s = time.monotonic() + 0.2
        for at_s, kind in due:
            time.sleep(max(0.0, begins_s + at_s - time.monotonic()))
            now_s = time.monotonic()
            futures.append(client.submit(asked.app, asked.kinds[kind]))
            sent.append((now_s - begins_s, kind))
            late_ms.append((now_s - begins_s - at_s) * 1000)
        for future in futures:
            try:
                ended["late" if future.result(ANSWER_S_MAX).late else "in time"] += 1
            except RequestError as error:
                ended[f"{error.code}: {getattr(error, 'reason', '')}"] += 1
    return Live(sent, ended["in time"] / len(sent), dict(ended), sorted(late_ms)[int(0.99 * (len(late_ms) - 1))])


# --- what the simulator is told ---------------------------------------------------------------------------------------


def measure(asked: Asked, folder: str, seconds: float) -> None:
    """``edgeserve profile``'s measurements of the models and of the machine, in a process of their own."""
    path = os.path.join(folder, "profiled.json")
    Path(path).write_text(json.dumps([served_table(asked, folder, 1000, "drop"), asked.directory, seconds]))
    done = subprocess.run(child("--measure", path), env={**os.environ, **ENVIRONMENT})
    if done.returncode:
        raise SystemExit("the profile could not be measured")


def works_of(asked: Asked, folder: str, profiles: Sequence[Profile]) -> Dict[str, Dict[str, float]]:
    """Per kind of request: how many times longer than profiled each node takes, and how many parts it fans out into.
    Measured one request at a time; nothing to measure where all requests are alike."""
    if len(asked.kinds) == 1:
        return {kind: {} for kind in asked.kinds}
    record = os.path.join(folder, "alone.jsonl")
    order = [kind for _ in range(PAGE_ROUNDS) for kind in asked.kinds]
    with server(served_table(asked, folder, 60_000, "answer", record), asked.directory, folder) as client:
        for kind in order:
            client.submit(asked.app, asked.kinds[kind]).result(ANSWER_S_MAX)
    typical = {(profile.model, size): timing.mean_ns for profile in profiles for lane in profile.lanes.values()
               for size, timing in lane.timings.items()}
    ratios: DefaultDict[Tuple[str, str], List[float]] = defaultdict(list)
    parts: Dict[str, float] = {}
    kinds, works = {}, {}
    for step in read_recording(record).steps:
        for event in step.events:
            if isinstance(event, RequestArrived):
                kinds[event.request.id] = order[len(kinds)]
            elif isinstance(event, WorkFinished) and event.work_id in works:
                action = works.pop(event.work_id)
                kind = kinds[action.jobs[0].request_id]
                took_ns = event.finished_ns - event.started_ns
                ratios[kind, action.model].append(took_ns / typical[action.model, action.size])
                counts = [result.parts for result in event.results if result.parts is not None]
                if counts:
                    parts[kind] = float(counts[0])
        works.update({action.work_id: action for action in step.actions if isinstance(action, RunBatch)})
    found: Dict[str, Dict[str, float]] = {kind: {} for kind in asked.kinds}
    for (kind, model), values in ratios.items():
        found[kind][f"true.{model}"] = statistics.fmean(values)
    for kind, count in parts.items():
        found[kind]["lines"] = count
    return found


def scenario_of(asked: Asked, table: Mapping[str, Any], live: Live, works: Mapping[str, Mapping[str, float]],
                folder: str, run: Mapping[str, Any]) -> Any:
    """The scenario of a live run: the same configuration and the times at which requests were sent."""
    trace = os.path.join(folder, "sent.csv")
    names = sorted({name for hints in works.values() for name in hints})
    with open(trace, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["arrival_s", *names])
        writer.writerows([f"{at_s:.6f}", *(works[kind][name] for name in names)] for at_s, kind in live.sent)
    truth: Dict[str, Any] = {model: {"hint": f"true.{model}"} for model in table["model"] if f"true.{model}" in names}
    if "lines" in names:
        truth["find_lines"] = {**truth.get("find_lines", {}), "parts_hint": "lines", "says": ["lines"]}
    return parse_scenario({**table, "truth": truth, "workload": {"sent": {"app": asked.app, "kind": "trace",
                                                                         "file": trace}},
                           "run": {"duration": f"{live.sent[-1][0] + 1:.3f}s", **run}}, asked.directory)


def predicted(scenario: Any, profiles: Sequence[Profile], measured: Any) -> Tuple[float, float, Any]:
    """The finish rate over several seeds, their deviation, and the report."""
    worlds = [simulate(scenario, seed, profiles, measured=measured).world for seed in range(SIMULATED_SEEDS)]
    report = report_of(worlds, 0, scenario.run.duration_ns)
    return report.total.finish_rate, report.total.rate_range[2], report


# --- roles ------------------------------------------------------------------------------------------------------------


def serve_role(path: str) -> int:
    from edgeserve.server import serve
    table, directory = json.loads(Path(path).read_text())
    return serve(parse_config(table, directory))


def measure_role(path: str) -> int:
    table, directory, seconds = json.loads(Path(path).read_text())
    config = parse_config(table, directory)
    out, device = config.profiles_path, device_slug()
    for name, model in config.models.items():
        for lane in model.lanes or tuple(config.lanes):
            outcome = profile_model(config, name, lane, model.batch, out, device,
                                    StopRule(time_ns_max=s_to_ns(seconds)))
            if outcome.why:
                print(f"{name} on {lane}: {outcome.why}", file=sys.stderr)
                return 1
    _, lacking = profile_machine(config, list(config.models), machine_path(out, device), min(2.0, seconds))
    print("\n".join(lacking), end="", file=sys.stderr)
    return int(bool(lacking))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configurations", default=",".join(CONFIGURATIONS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="arrivals per load and round")
    parser.add_argument("--loads", default="0.7,1.2")
    parser.add_argument("--profile-seconds", type=float, default=3.0)
    parser.add_argument("--json", help="write results and checks there")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve_role(arguments.serve)
    if arguments.measure:
        return measure_role(arguments.measure)
    checks = Checks("scripts/bench/live_vs_simulated.py")
    rows: List[Dict[str, Any]] = []
    for name in arguments.configurations.split(","):
        with tempfile.TemporaryDirectory(prefix="edgeserve-") as folder:
            rows += compare(name, CONFIGURATIONS[name](), folder, arguments)
    for name in arguments.configurations.split(","):
        for load in sorted({row["load"] for row in rows}):
            off = [abs(row["simulated"] - row["live"]) * 100 for row in rows
                   if (row["configuration"], row["load"]) == (name, load)]
            checks.at_most(f"{name} at {load:g}: points off, mean of rounds", statistics.fmean(off), POINTS_MAX)
            checks.at_most(f"{name} at {load:g}: points off, worst round", max(off), POINTS_MAX)
    return checks.finish(arguments.json, {"rounds": arguments.rounds, "seconds": arguments.seconds,
                                          "machine": device_slug(), "cores": os.cpu_count(),
                                          "others_busy": max(row["others_busy"] for row in rows)}, rounds=rows)


def compare(name: str, asked: Asked, folder: str, arguments: argparse.Namespace) -> List[Dict[str, Any]]:
    """All rounds and loads of one configuration."""
    measure(asked, folder, arguments.profile_seconds)
    profiles = read_profiles(os.path.join(folder, "profiles"))
    costs_path = machine_path(os.path.join(folder, "profiles"), device_slug())
    measured = (costs_path, read_machine(costs_path))
    works = works_of(asked, folder, profiles)
    rate = capacity(asked, folder, IN_FLIGHT[name], min(10.0, arguments.seconds))
    slo_ms = 1000 * SERVICES[name] / rate
    busy = measured[1].circumstances["others_busy"]
    print(f"{name}: {rate:.2f} answers/s, deadline {slo_ms:.1f} ms; others kept {busy:g} cores busy", flush=True)
    if busy > OTHERS_BUSY_MAX:
        print("  the machine is not quiet: what was measured and what is served differ by what others do", flush=True)
    rows = []
    for number in range(arguments.rounds):
        for load in [float(word) for word in arguments.loads.split(",")]:
            table = served_table(asked, folder, slo_ms, "drop")
            due = arrivals_of(sorted(asked.kinds), load * rate, arguments.seconds, f"live/{name}/{number}/{load}")
            live = ask(asked, table, folder, due)
            told, deviation, report = predicted(scenario_of(asked, table, live, works, folder, {}), profiles, measured)
            before, _, _ = predicted(scenario_of(asked, table, live, works, folder, {
                "step_cost": "20us", "event_cost": "15us"}), profiles, None)
            rows.append({"configuration": name, "round": number, "load": load, "rate": load * rate, "slo_ms": slo_ms,
                         "live": live.finish_rate, "simulated": told, "seeds_deviation": deviation,
                         "without_machine_costs": before, "live_ended": live.ended,
                         "others_busy": busy,
                         "simulated_ended": report.total.ended, "sent_late_p99_ms": live.sent_late_p99_ms,
                         "simulated_lanes": report.lanes})
            print(f"  round {number + 1} at {load:g}: live {live.finish_rate:6.1%}, simulated {told:6.1%} "
                  f"({100 * (told - live.finish_rate):+.1f} points), without machine costs {before:6.1%}; "
                  f"live {dict(sorted(live.ended.items()))}", flush=True)
            if live.sent_late_p99_ms > SENT_LATE_MS_MAX:
                print(f"    the client sent 1 % of the requests {live.sent_late_p99_ms:.1f} ms late or more",
                      flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
