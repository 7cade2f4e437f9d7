"""A mix live: its server over the bus for ten minutes, asked as its scenario says; then simulated from its recording.

    python research/bench/mix_live.py [--mix home] [--load 1] [--seconds 600] [--json FILE]

The models are synthetic and only wait, as long as the mix's profile says; everything else is a server as people run it.
Counted are requests without an answer of any kind, memory from the second minute on, and what each app had in time, by
the server's own recording; beside that what the simulator says of the same arrivals, with the times of works and the
lags of lanes and loop that the recording teaches (the mean of :data:`RUNS` runs). Needs a quiet machine: other programs
slow the live server and not the simulated one.
"""

from __future__ import annotations

import collections
import json
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Counter, DefaultDict, Deque, Dict, List, Mapping, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

import psutil
from common.recorded import learn, run_recorded
from common.replicated import BEYOND, checks_of
from lib.checks import arguments
from lib.server_process import ServerProcess

from edgeserve.client import Client
from edgeserve.config.loading import load_config
from edgeserve.errors import RequestError, TimedOut
from edgeserve.sched.protocol.events import Request
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import CONTINUOUS, Scenario, load_scenario, with_load
from edgeserve.taps.trace import read_recording
from edgeserve.units import NS_PER_S

MIXES = Path(__file__).resolve().parents[2] / "examples" / "mixes"
RUNS = 3
POINTS_MAX = 3.0
RSS_PERCENT_MAX = 2.0
SETTLED_S = 60.0
ASKED_MIN = 50
"""An app that was asked less often is not compared."""


def asked(scenario: Scenario, seconds: float, seed: int) -> List[Request]:
    """The requests of the scenario, in order of arrival."""
    run = replace(scenario.run, duration_ns=round(seconds * NS_PER_S), warmup_ns=0)
    ended = simulate(replace(scenario, run=run), f"live/{seed}", ()).world.ended
    return sorted([item.request for item in ended], key=lambda request: (request.arrival_ns, request.id))


def inputs_of(request: Request, lengths: Mapping[str, str], draw: random.Random) -> Dict[str, Any]:
    """A synthetic language model makes a given number of steps."""
    hint = lengths.get(request.app)
    if hint is None or not request.hints:
        return {"x": "item"}
    return {"steps": max(1, round(request.hints[hint] * draw.lognormvariate(0.0, 0.3)))}


def play(
    endpoint: str, requests: Sequence[Request], lengths: Mapping[str, str], server: psutil.Process
) -> Tuple[Counter[str], List[Tuple[float, float]]]:
    """Request each at its time; outcomes, and memory in MB every five seconds."""
    draw = random.Random("live/steps")
    outcomes: Counter[str] = collections.Counter()
    pending: Deque[Future[Any]] = collections.deque()
    memory: List[Tuple[float, float]] = []
    with Client(endpoint) as client:
        start, noted = time.monotonic() + 0.5, 0.0
        for request in requests:
            at = start + request.arrival_ns / NS_PER_S
            while True:
                left = at - time.monotonic()
                if left <= 0:
                    break
                time.sleep(left)
            if at - noted > 5.0:
                noted = at
                memory.append((at - start, server.memory_info().rss / 1e6))
            options: Dict[str, Any] = {"hints": dict(request.hints)} if request.hints else {}
            if request.stream:
                options["stream"] = request.stream
            pending.append(client.submit(request.app, inputs_of(request, lengths, draw), copy=False, **options))
            while pending and pending[0].done():
                outcomes[outcome_of(pending.popleft())] += 1
        for future in pending:
            outcomes[outcome_of(future)] += 1
    return outcomes, memory


def outcome_of(future: Future[Any]) -> str:
    """The outcome of a request; ``nothing`` where no answer came."""
    try:
        future.result(timeout=120.0)
        return "completed"
    except TimedOut:
        return "nothing"
    except RequestError as error:
        return type(error).__name__


def configuration(mix: str) -> str:
    """The mix's server with a bus of its own that records; for :class:`ServerProcess`."""
    text = (MIXES / mix / "edge.toml").read_text(encoding="utf-8").replace("{", "{{").replace("}", "}}")
    return text + '\n[server]\nendpoint = "ipc://{folder}/bus"\nrecord = "{folder}/run.jsonl"\n'


def compare(folder: Path) -> Dict[str, Dict[str, float]]:
    """By app: how many were asked, percent in time live by the recording, and simulated from it."""
    config = load_config(str(folder / "edge.toml"))
    truth = learn(config, read_recording(str(folder / "run.jsonl")))
    live: DefaultDict[str, List[bool]] = defaultdict(list)
    for past in truth.history.requests:
        live[past.request.app].append(past.in_time)
    runs: DefaultDict[str, List[float]] = defaultdict(list)
    for seed in range(RUNS):
        again: DefaultDict[str, List[bool]] = defaultdict(list)
        for item in run_recorded(truth, config, seed):
            again[truth.history.requests[item.place].request.app].append(item.in_time)
        for app, found in again.items():
            runs[app].append(100.0 * statistics.fmean(found))
    return {
        app: {
            "asked": len(found),
            "live, % in time": 100.0 * statistics.fmean(found),
            "simulated, % in time": statistics.fmean(runs[app]),
        }
        for app, found in live.items()
    }


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--mix", default="home", help="default %(default)s")
    parser.add_argument("--load", type=float, default=1.0, help="default %(default)s")
    parser.add_argument("--seconds", type=float, default=600.0, help="default %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default %(default)s")
    args = parser.parse_args()
    scenario = with_load(load_scenario(str(MIXES / args.mix / "scenario.toml")), args.load)
    lengths = {
        app.name: scenario.truths[node.model].steps_hint
        for app in scenario.config.apps.values()
        for node in app.nodes
        if node.model in scenario.truths and scenario.truths[node.model].batching == CONTINUOUS
    }
    requests = asked(scenario, args.seconds, args.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = ServerProcess(folder, configuration(args.mix))
        try:
            server.wait_ready(f"ipc://{folder}/bus")
            outcomes, memory = play(f"ipc://{folder}/bus", requests, lengths, psutil.Process(server.pid))
        finally:
            server.stop()
        rows = compare(folder)
    for app, row in rows.items():
        print(f"{app:12}" + "".join(f"  {what} {value:.1f}" for what, value in row.items()))
    print(f"asked {len(requests)}: {dict(outcomes)}")
    checks = checks_of("research/bench/mix_live.py", one_side=BEYOND)
    checks.at_least("requests with an end", sum(outcomes.values()) - outcomes["nothing"], len(requests))
    settled = [mb for at_s, mb in memory if at_s >= SETTLED_S]
    if settled:
        grown = 100.0 * (settled[-1] / settled[0] - 1.0)
        checks.at_most("memory after the first minute, % more at the end", grown, RSS_PERCENT_MAX)
    for app, row in rows.items():
        if row["asked"] >= ASKED_MIN:
            off = abs(row["live, % in time"] - row["simulated, % in time"])
            checks.at_most(f"{app}: points between live and simulated", off, POINTS_MAX)
    circumstances = {"requests": len(requests), "outcomes": json.dumps(outcomes)}
    return checks.finish(args.json, circumstances, rows=rows, memory_mb=[(round(s), round(mb, 1)) for s, mb in memory])


if __name__ == "__main__":
    sys.exit(main())
