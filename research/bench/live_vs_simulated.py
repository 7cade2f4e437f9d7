"""Live against simulated: the same arrivals, asked of a server over the bus and of the simulator.

    python research/bench/live_vs_simulated.py [--configurations one_node,pipeline,reader] [--rounds 3] [--seconds 12]
        [--loads 0.7,1.2] [--profile-seconds 0.4] [--json FILE]

Three configurations: one network; the same between two host functions in pure Python; and ``examples/reader`` without
its voice detector (fetch its assets first). A server is asked in a closed loop for what it can do; then each round asks
it for ``--loads`` times that rate at Poisson times. Before and after each such run ``edgeserve profile``'s measurements
are made anew, in a process of their own, models and machine. The simulator gets the times when requests were sent;
nothing of what came of them. Pages of the reader differ: how much longer than its profile a node takes for each page is
measured beforehand, one page at a time.

What the simulator says, per run:

* ``simulated``: the mean of what it says with the profile from before the run and with the one from after it;
* ``run_before``: with the times that batches took in the run before, at the round's lower load: a profile from serving;
* ``own_times``: with the times that batches took in that very run, and the machine's costs from before it, without the
  contention that these times have: what is left is the error of the model, without that of the profile;
* ``own_lags``: with what else the run tells as well, starts of works and news of their ends;
  beside what the run's scheduler counted as in time (``recorded``);
* ``points_per_percent``: how many points of the finish rate one per cent of speed is worth there;
* ``without_machine_costs``: with 20 us per step and 15 us per event and nothing else.

Needs a quiet machine: other programs slow the live server and not the simulated one.
"""

from __future__ import annotations

import argparse
import bisect
import concurrent.futures
import contextlib
import csv
import json
import multiprocessing
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any, DefaultDict, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

from common import live_models
from common.history import read_history
from common.recorded import learn, run_recorded
from lib.checks import Checks, arguments

from edgeserve.client import Client
from edgeserve.commands.measure import StopRule, summarise
from edgeserve.commands.measure_machine import OTHERS_BUSY_MAX, profile_machine
from edgeserve.commands.profile import profile_model
from edgeserve.config.loading import parse_config, read_toml
from edgeserve.config.machine import device_slug
from edgeserve.config.machine_costs import MachineCosts, machine_path, read_machine
from edgeserve.config.profiles import Profile, Timing, read_profiles
from edgeserve.errors import RequestError
from edgeserve.sched.protocol.actions import RunBatch
from edgeserve.sched.protocol.events import RequestArrived, WorkFinished
from edgeserve.sim.report import report_of
from edgeserve.sim.run import setting_of, simulate
from edgeserve.sim.scenario import parse_scenario
from edgeserve.taps.trace import RecordedStep, Recording, read_recording, start_of, step_of
from edgeserve.units import NS_PER_S, s_to_ns

READER = Path(__file__).resolve().parents[2] / "examples" / "reader"
POINTS_MAX = 3.0  # of the finish rate: what the prediction may be off
IN_FLIGHT = {"one_node": 16, "pipeline": 16, "reader": 4}
SERVICES = {"one_node": 32.0, "pipeline": 32.0, "reader": 5.0}  # the deadline, in mean times between two answers
PAGE_ROUNDS = 4  # each page of the reader alone, so many times
READY_S_MAX = 60.0
ANSWER_S_MAX = 120.0
SIMULATED_SEEDS = 2
STEPS_KEPT = 1_000_000  # of the server's decisions: all of a run
RUNS_MIN = 10  # a batch size that ran so often has the times of the run; another one the profile's, at the run's pace
FASTER = 0.05  # by how much times are changed to see what speed is worth
SENT_LATE_MS_MAX = 5.0
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Asked(NamedTuple):
    """What is served and asked: the configuration, its directory, the app, and inputs by name of their kind."""

    table: Dict[str, Any]
    directory: str
    app: str
    kinds: Mapping[str, Mapping[str, Any]]


class Live(NamedTuple):
    """One live run: when what was sent (seconds after ``begins_s`` of the monotonic clock), the share in time, how the
    others ended, and what the server's scheduler was told and did."""

    sent: List[Tuple[float, str]]
    finish_rate: float
    ended: Dict[str, int]
    sent_late_p99_ms: float
    begins_s: float = 0.0
    steps: Sequence[RecordedStep] = ()


class Measured(NamedTuple):
    """What one slot between two live runs measured: profiles of the models, and the machine's costs with their file."""

    profiles: List[Profile]
    costs: Tuple[str, MachineCosts]


class Job(NamedTuple):
    """One simulation: of ``scenario`` with ``times``, and ``costs`` of the machine if any."""

    scenario: Any
    times: Sequence[Profile]
    costs: Optional[Tuple[str, MachineCosts]]
    seeds: int


# --- the configurations -----------------------------------------------------------------------------------------------


def one_node() -> Asked:
    """A network that batches up to eight."""
    return Asked(
        {
            "model": {"net": {"engine": "live_models:Network", "batch": [1, 2, 4, 8]}},
            "app": {"see": {"model": "net", "inputs": {"x": {"shape": [live_models.WIDTH]}}}},
        },
        str(Path(live_models.__file__).parent),
        "see",
        {"all": live_models.example_look()},
    )


def pipeline() -> Asked:
    """The same between two host functions, on a lane of their own."""
    hosts = {
        name: {
            "engine": "python",
            "function": f"live_models:{name}",
            "lanes": ["host"],
            "options": {"example": f"live_models:example_{name}"},
        }
        for name in ("look", "tell")
    }
    asked = one_node()
    table = {
        **asked.table,
        "lane": {"cpu0": {}, "host": {}},
        "model": {**hosts, "net": {**asked.table["model"]["net"], "lanes": ["cpu0"]}},
        "app": {
            "see": {
                "inputs": asked.table["app"]["see"]["inputs"],
                "node": [
                    {"name": "look", "inputs": {"x": "request.x"}},
                    {"name": "net", "inputs": {"x": "look.x"}},
                    {"name": "tell", "inputs": {"y": "net.y"}},
                ],
            }
        },
    }
    return asked._replace(table=table)


def reader() -> Asked:
    """Pages of text: three networks and four host functions, a branch per line."""
    sys.path.insert(0, str(READER))
    import load as reader_load

    table = read_toml(str(READER / "edge.toml"))
    del table["app"]["ears"], table["model"]["voice"], table["lane"]["cpu1"]
    return Asked(table, str(READER), "reader", {page.name: {"image": page.image} for page in reader_load.pages()})


CONFIGURATIONS = {"one_node": one_node, "pipeline": pipeline, "reader": reader}


# --- live -------------------------------------------------------------------------------------------------------------


def served_table(
    asked: Asked, folder: str, slo_ms: float, on_late: str, record: str = "", profiles: str = "profiles"
) -> Dict[str, Any]:
    """The configuration as it is served and simulated. ``profiles``: the directory in ``folder`` that has them."""
    table = json.loads(json.dumps(asked.table))
    table["app"][asked.app].update(slo=f"{slo_ms:.3f}ms", on_late=on_late, pending_max=100_000)
    table["server"] = {
        "endpoint": f"ipc://{folder}/bus",
        "profiles": os.path.join(folder, profiles),
        "record": record,
        "pending_max": 100_000,
        "trace_steps": STEPS_KEPT,
    }
    return table


def child(*words: str) -> List[str]:
    """The command line of this script in another role."""
    return [sys.executable, os.path.abspath(__file__), *words]


@contextlib.contextmanager
def server(table: Mapping[str, Any], directory: str, folder: str) -> Iterator[Client]:
    """A server of its own process, and a client of it."""
    path = os.path.join(folder, "served.json")
    Path(path).write_text(json.dumps([table, directory]))
    process = subprocess.Popen(
        child("--serve", path), env={**os.environ, **ENVIRONMENT}, stderr=subprocess.PIPE, text=True
    )
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
        steps = steps_of(client)
    return Live(
        sent,
        ended["in time"] / len(sent),
        dict(ended),
        sorted(late_ms)[int(0.99 * (len(late_ms) - 1))],
        begins_s,
        steps,
    )


def steps_of(client: Client) -> List[RecordedStep]:
    """What the server's scheduler was told and did since its start."""
    steps: List[RecordedStep] = []
    while True:
        page = client.trace(len(steps))
        if page["first"] != len(steps) + 1:
            raise SystemExit(f"the server forgot steps: the next one is {page['first']}, expected {len(steps) + 1}")
        if not page["lines"]:
            return steps
        steps += [step_of(line) for line in page["lines"]]


# --- what the simulator is told ---------------------------------------------------------------------------------------


def measure(asked: Asked, folder: str, seconds: float, slot: str = "profiles") -> Measured:
    """``edgeserve profile``'s measurements of the models and of the machine, in a process of their own, into a
    directory ``slot`` of ``folder``."""
    path = os.path.join(folder, "profiled.json")
    Path(path).write_text(
        json.dumps([served_table(asked, folder, 1000, "drop", profiles=slot), asked.directory, seconds])
    )
    done = subprocess.run(child("--measure", path), env={**os.environ, **ENVIRONMENT})
    if done.returncode:
        raise SystemExit("the profile could not be measured")
    costs_path = machine_path(os.path.join(folder, slot), device_slug())
    return Measured(read_profiles(os.path.join(folder, slot)), (costs_path, read_machine(costs_path)))


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
    typical = {
        (profile.model, size): timing.mean_ns
        for profile in profiles
        for lane in profile.lanes.values()
        for size, timing in lane.timings.items()
    }
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


def scenario_of(
    asked: Asked,
    table: Mapping[str, Any],
    live: Live,
    works: Mapping[str, Mapping[str, float]],
    folder: str,
    run: Mapping[str, Any],
    name: str = "sent",
) -> Any:
    """The scenario of a live run: the same configuration and the times at which requests were sent, in a file of this
    ``name``."""
    trace = os.path.join(folder, f"{name}.csv")
    names = sorted({name for hints in works.values() for name in hints})
    with open(trace, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["arrival_s", *names])
        writer.writerows([f"{at_s:.6f}", *(works[kind][name] for name in names)] for at_s, kind in live.sent)
    truth: Dict[str, Any] = {model: {"hint": f"true.{model}"} for model in table["model"] if f"true.{model}" in names}
    if "lines" in names:
        truth["find_lines"] = {**truth.get("find_lines", {}), "parts_hint": "lines", "says": ["lines"]}
    return parse_scenario(
        {
            **table,
            "truth": truth,
            "workload": {"sent": {"app": asked.app, "kind": "trace", "file": trace}},
            "run": {"duration": f"{live.sent[-1][0] + 1:.3f}s", **run},
        },
        asked.directory,
    )


def predicted(job: Job) -> Tuple[float, float, Any]:
    """The finish rate over several seeds, their deviation, and the report."""
    worlds = [simulate(job.scenario, seed, job.times, measured=job.costs).world for seed in range(job.seeds)]
    report = report_of(worlds, 0, job.scenario.run.duration_ns)
    return report.total.finish_rate, report.total.rate_range[2], report


def slower(profiles: Sequence[Profile], factor: float) -> List[Profile]:
    """Profiles of a machine on which everything takes ``factor`` times as long."""
    return [
        replace(
            profile,
            lanes={
                lane: replace(
                    known, timings={size: stretched(timing, factor) for size, timing in known.timings.items()}
                )
                for lane, known in profile.lanes.items()
            },
        )
        for profile in profiles
    ]


def slower_costs(costs: MachineCosts, factor: float) -> MachineCosts:
    """The loop's own time on such a machine."""
    return replace(
        costs,
        **{name: round(getattr(costs, name) * factor) for name in ("step_ns", "event_ns", "receive_ns", "answer_ns")},
    )


def stretched(timing: Timing, factor: float) -> Timing:
    return replace(
        timing,
        **{name: round(getattr(timing, name) * factor) for name in ("median_ns", "p99_ns", "mean_ns", "sd_ns")},
        quantiles_ns=tuple(round(value * factor) for value in timing.quantiles_ns),
    )


def own_profiles(
    live: Live, works: Mapping[str, Mapping[str, float]], profiles: Sequence[Profile]
) -> Tuple[List[Profile], float]:
    """Profiles of the times that the batches of a live run took, pages counted with their work; and how many times
    longer they took than ``profiles`` say, by the lanes' time."""
    history = read_history(live.steps)
    sent_s = [live.begins_s + at_s for at_s, _ in live.sent]

    def work_of(place: int, model: str) -> float:
        stamped_s = history.requests[place].request.arrival_ns / NS_PER_S
        kind = live.sent[max(0, bisect.bisect_right(sent_s, stamped_s) - 1)][1]
        return works[kind].get(f"true.{model}", 1.0)

    found: DefaultDict[Tuple[str, str, int], List[int]] = defaultdict(list)
    for ran in history.batches:
        longest = max((work_of(place, ran.model) for place in ran.members if place >= 0), default=1.0)
        found[ran.model, ran.lane, ran.size].append(max(1, round(ran.duration_ns / longest)))
    owned, took_ns, said_ns = [], 0.0, 0.0
    for profile in profiles:
        lanes = {}
        for lane, known in profile.lanes.items():
            ran_here = {size: found[profile.model, lane, size] for size in known.timings}
            here_ns = float(sum(sum(runs) for runs in ran_here.values()))
            as_told_ns = float(sum(len(ran_here[size]) * timing.mean_ns for size, timing in known.timings.items()))
            pace = here_ns / as_told_ns if as_told_ns else 1.0
            took_ns, said_ns = took_ns + here_ns, said_ns + as_told_ns
            lanes[lane] = replace(
                known,
                timings={
                    size: summarise(ran_here[size]) if len(ran_here[size]) >= RUNS_MIN else stretched(timing, pace)
                    for size, timing in known.timings.items()
                },
            )
        owned.append(replace(profile, lanes=lanes))
    return owned, took_ns / said_ns if said_ns else 1.0


def replayed(asked: Asked, table: Mapping[str, Any], live: Live, before: Measured) -> Tuple[float, float]:
    """What the run's scheduler counted as in time, and what a world made of the run says, its lags included."""
    config = parse_config(table, asked.directory)
    setting = setting_of(config, before.profiles)
    recording = Recording(start_of(setting.footprints, setting.resident), list(live.steps))
    truth = learn(config, recording, before.profiles, "the run")
    return (
        statistics.fmean(past.in_time for past in truth.history.requests),
        statistics.fmean(item.in_time for seed in range(SIMULATED_SEEDS) for item in run_recorded(truth, config, seed)),
    )


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
            outcome = profile_model(
                config, name, lane, model.batch, out, device, StopRule(time_ns_max=s_to_ns(seconds))
            )
            if outcome.why:
                print(f"{name} on {lane}: {outcome.why}", file=sys.stderr)
                return 1
    _, lacking = profile_machine(config, list(config.models), machine_path(out, device), min(2.0, seconds))
    print("\n".join(lacking), end="", file=sys.stderr)
    return int(bool(lacking))


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--configurations", default=",".join(CONFIGURATIONS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=12.0, help="arrivals per load and round")
    parser.add_argument("--loads", default="0.7,1.2")
    parser.add_argument(
        "--profile-seconds",
        type=float,
        default=0.4,
        help="per batch size, and a sixth of what the machine takes; before and after each run",
    )
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve_role(args.serve)
    if args.measure:
        return measure_role(args.measure)
    checks = Checks("research/bench/live_vs_simulated.py")
    rows: List[Dict[str, Any]] = []
    for name in args.configurations.split(","):
        with tempfile.TemporaryDirectory(prefix="edgeserve-") as folder:
            rows += compare(name, CONFIGURATIONS[name](), folder, args)
    for name in args.configurations.split(","):
        for load in sorted({row["load"] for row in rows}):
            here = [row for row in rows if (row["configuration"], row["load"]) == (name, load)]
            for key, words in (
                ("simulated", ""),
                ("run_before", ", with the times of the run before"),
                ("own_times", ", with the run's own times"),
            ):
                off = [abs(row[key] - row["live"]) * 100 for row in here if row[key] is not None]
                if not off:
                    continue
                checks.at_most(
                    f"{name} at {load:g}{words}: points off, mean of rounds", statistics.fmean(off), POINTS_MAX
                )
                checks.at_most(f"{name} at {load:g}{words}: points off, worst round", max(off), POINTS_MAX)
    return checks.finish(
        args.json,
        {
            "rounds": args.rounds,
            "seconds": args.seconds,
            "machine": device_slug(),
            "cores": os.cpu_count(),
            "others_busy": max(row["others_busy"] for row in rows),
        },
        rounds=rows,
    )


class Run(NamedTuple):
    """A live run between two slots."""

    number: int
    load: float
    live: Live
    before: Measured
    after: Measured


def compare(name: str, asked: Asked, folder: str, args: argparse.Namespace) -> List[Dict[str, Any]]:
    """All rounds and loads of one configuration: first the live runs and what is measured between them, then what the
    simulator says."""
    before = measure(asked, folder, args.profile_seconds)
    works = works_of(asked, folder, before.profiles)
    rate = capacity(asked, folder, IN_FLIGHT[name], min(8.0, args.seconds))
    slo_ms = 1000 * SERVICES[name] / rate
    print(f"{name}: {rate:.2f} answers/s, deadline {slo_ms:.1f} ms", flush=True)
    runs, slot = [], "profiles"
    for number in range(args.rounds):
        for load in [float(word) for word in args.loads.split(",")]:
            table = served_table(asked, folder, slo_ms, "drop", profiles=slot)
            due = arrivals_of(sorted(asked.kinds), load * rate, args.seconds, f"live/{name}/{number}/{load}")
            live = ask(asked, table, folder, due)
            slot = f"profiles-{number}-{load:g}"
            after = measure(asked, folder, args.profile_seconds, slot)
            runs.append(Run(number, load, live, before, after))
            before = after
    rows = []
    with concurrent.futures.ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        table = served_table(asked, folder, slo_ms, "drop")
        asked_for = [
            (
                run,
                told(
                    asked,
                    table,
                    run,
                    earlier if earlier is not None and earlier.number == run.number else None,
                    works,
                    folder,
                    pool,
                ),
            )
            for run, earlier in zip(runs, [None, *runs])
        ]
        for run, answers in asked_for:
            rows.append(
                {
                    "configuration": name,
                    "round": run.number,
                    "load": run.load,
                    "rate": run.load * rate,
                    "slo_ms": slo_ms,
                    **row_of(run, answers),
                }
            )
            tell(rows[-1])
    return rows


def told(
    asked: Asked,
    table: Mapping[str, Any],
    run: Run,
    earlier: Optional[Run],
    works: Mapping[str, Mapping[str, float]],
    folder: str,
    pool: concurrent.futures.Executor,
) -> Dict[str, Any]:
    """Everything that the simulator is asked about a run, as futures, and how slow the run was. ``earlier``: the run
    before in its round."""
    costs = run.before.costs
    served = (costs[0], replace(costs[1], contention=1.0))  # what times from serving have already
    name = f"sent-{run.number}-{run.load:g}"
    made = scenario_of(asked, table, run.live, works, folder, {}, name)
    bare = scenario_of(asked, table, run.live, works, folder, {"step_cost": "20us", "event_cost": "15us"}, name)
    own, pace = own_profiles(run.live, works, run.before.profiles)
    jobs = {
        "before": Job(made, run.before.profiles, costs, SIMULATED_SEEDS),
        "after": Job(made, run.after.profiles, run.after.costs, SIMULATED_SEEDS),
        "own_times": Job(made, own, served, SIMULATED_SEEDS),
        "bare": Job(bare, run.before.profiles, None, 1),
    }
    if earlier is not None:
        times, _ = own_profiles(earlier.live, works, run.before.profiles)
        jobs["run_before"] = Job(made, times, served, SIMULATED_SEEDS)
    for key, factor in (("faster", 1 - FASTER), ("slower", 1 + FASTER)):
        jobs[key] = Job(made, slower(own, factor), (costs[0], slower_costs(served[1], factor)), 1)
    return {
        **{key: pool.submit(predicted, job) for key, job in jobs.items()},
        "pace": (pace, own_profiles(run.live, works, run.after.profiles)[1]),
        "replayed": pool.submit(replayed, asked, table, run.live, run.before),
    }


def row_of(run: Run, answers: Mapping[str, Any]) -> Dict[str, Any]:
    """A run and what the simulator says of it."""
    rates = {key: future.result()[0] for key, future in answers.items() if key not in ("pace", "replayed")}
    recorded, own_lags = answers["replayed"].result()
    _, deviation, report = answers["before"].result()
    return {
        "live": run.live.finish_rate,
        "simulated": (rates["before"] + rates["after"]) / 2,
        "simulated_before": rates["before"],
        "simulated_after": rates["after"],
        "seeds_deviation": deviation,
        "run_before": rates.get("run_before"),
        "own_times": rates["own_times"],
        "recorded": recorded,
        "own_lags": own_lags,
        "points_per_percent": (rates["faster"] - rates["slower"]) / (2 * FASTER),
        "times_over_profile": list(answers["pace"]),
        "without_machine_costs": rates["bare"],
        "live_ended": run.live.ended,
        "simulated_ended": report.total.ended,
        "simulated_lanes": report.lanes,
        "others_busy": max(item.costs[1].circumstances["others_busy"] for item in (run.before, run.after)),
        "sent_late_p99_ms": run.live.sent_late_p99_ms,
    }


def tell(row: Mapping[str, Any]) -> None:
    """A row, for people."""
    off = {
        key: "none" if row[key] is None else f"{row[key]:.1%} ({100 * (row[key] - row['live']):+.1f} points)"
        for key in ("simulated", "run_before", "own_times")
    }
    before, after = row["times_over_profile"]
    print(
        f"  round {row['round'] + 1} at {row['load']:g}: live {row['live']:.1%}, simulated {off['simulated']}, from "
        f"before {row['simulated_before']:.1%}, from after {row['simulated_after']:.1%}\n"
        f"    with the times of the run before {off['run_before']}\n"
        f"    with the run's own times {off['own_times']}, with its lags too {row['own_lags']:.1%} where its "
        f"scheduler counted {row['recorded']:.1%}; without machine costs {row['without_machine_costs']:.1%}\n"
        f"    batches took {before:.3f} and {after:.3f} times what was profiled; one per cent of speed is worth "
        f"{row['points_per_percent']:.2f} points\n    live {dict(sorted(row['live_ended'].items()))}",
        flush=True,
    )
    if row["others_busy"] > OTHERS_BUSY_MAX:
        print(
            f"    others kept {row['others_busy']:g} cores busy: what was measured and what is served differ by what "
            "they do",
            flush=True,
        )
    if row["sent_late_p99_ms"] > SENT_LATE_MS_MAX:
        print(f"    the client sent 1 % of the requests {row['sent_late_p99_ms']:.1f} ms late or more", flush=True)


if __name__ == "__main__":
    sys.exit(main())
