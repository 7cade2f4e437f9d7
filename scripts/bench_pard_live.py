"""Live OCR under overload on one CPU lane: cohorts (``pard_local``) beside reactive dropping, FIFO and no dropping.

    python scripts/bench_pard_live.py [--rounds N] [--seconds S] [--load 1.5] [--json FILE]

The networks, host functions and pages are those of ``examples/reader`` (fetch its assets first); what runs is the
embedded runtime. Each round first measures what the machine can do (a closed loop, everything answered; the best that
was ever seen counts, since other programs only make it slower), then asks every policy at ``--load`` times that rate
with the same Poisson arrivals, one policy after the other, each round in another order. The deadline is so many mean
service times. Goodput, lane time spent on lost requests and where requests were lost are read from the runtime's own
recording.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

HERE = os.path.dirname(os.path.abspath(__file__))
READER = os.path.join(os.path.dirname(HERE), "examples", "reader")
sys.path.insert(0, READER)

import load as reader_load  # noqa: E402
from bench_checks import Checks  # noqa: E402

import edgeserve  # noqa: E402
from edgeserve.config import parse_config, read_toml  # noqa: E402
from edgeserve.errors import RequestError  # noqa: E402
from edgeserve.sched.actions import FinishRequest, RunBatch  # noqa: E402
from edgeserve.sched.events import RequestArrived, WorkFinished  # noqa: E402
from edgeserve.trace import read_recording  # noqa: E402

LOCAL = "cohorts (pard_local)"
POLICIES: Mapping[str, Tuple[Dict[str, Any], str]] = {  # policy table, what late requests get
    LOCAL: ({"kind": "pard_local"}, "drop"),
    "reactive (pard, rule back)": ({"kind": "pard", "rule": "back"}, "drop"),
    "fifo": ({"kind": "fifo"}, "drop"),
    "fifo, nothing dropped": ({"kind": "fifo"}, "answer")}
SERVICES = 5.0  # the deadline, in mean service times: room for a cohort of two or three pages
TRIALS = 3  # measurements of what the machine can do; the best counts, since other programs only make it slower
ANSWER_S_MAX = 600.0  # without dropping the last answer comes when the whole queue is worked off


class Result(NamedTuple):
    """One policy in one round."""

    offered: int
    good: int
    seconds: float
    invalid: float  # share of lane time spent on what was dropped or late
    lost_before: Dict[str, int]  # node -> requests dropped before it; "late": answered too late

    @property
    def goodput(self) -> float:
        """Answers in time per second."""
        return self.good / self.seconds


def table_of(policy: Dict[str, Any], on_late: str, slo_ms: float, record: str) -> Dict[str, Any]:
    """The reader's configuration without the voice detector, under one policy."""
    table = read_toml(os.path.join(READER, "edge.toml"))
    del table["app"]["ears"], table["model"]["voice"], table["lane"]["cpu1"]
    table["policy"] = {"p": policy}
    table["app"]["reader"].update(policy="p", slo=f"{slo_ms:.0f}ms", on_late=on_late, pending_max=100_000)
    table["server"] = {"record": record, "profiles": "no-profiles", "pending_max": 100_000}
    return table


def images() -> List[Any]:
    """The pages to read: of one, three and seven lines."""
    return [page.image for page in reader_load.pages()]


def capacity(seconds: float) -> float:
    """Pages a second that this machine reads now, with four asked for at a time."""
    table = table_of({"kind": "fifo"}, "answer", 60_000, "")
    pages, done = images(), 0
    with edgeserve.Runtime(parse_config(table, READER)) as runtime:
        begins_s = time.monotonic()
        asked = [runtime.submit("reader", {"image": pages[index % len(pages)]}) for index in range(4)]
        while time.monotonic() < begins_s + seconds or done < 2 * len(pages):
            asked.pop(0).result(ANSWER_S_MAX)
            done += 1
            asked.append(runtime.submit("reader", {"image": pages[(done + 3) % len(pages)]}))
        took_s = time.monotonic() - begins_s
        for future in asked:
            future.cancel()
    return done / took_s


def run(policy: Dict[str, Any], on_late: str, service: float, load: float, seconds: float, seed: str) -> Result:
    """Ask at a Poisson rate of ``load`` times the machine's own and read the recording."""
    with tempfile.TemporaryDirectory() as folder:
        record = os.path.join(folder, "run.jsonl")
        table = table_of(policy, on_late, 1000 * SERVICES / service, record)
        draw, pages, asked = random.Random(seed), images(), []
        with edgeserve.Runtime(parse_config(table, READER)) as runtime:
            begins_s, at_s = time.monotonic(), 0.0
            while True:
                at_s += draw.expovariate(service * load)
                if at_s >= seconds:
                    break
                time.sleep(max(0.0, begins_s + at_s - time.monotonic()))
                asked.append(runtime.submit("reader", {"image": draw.choice(pages)}))
            for future in asked:
                try:
                    future.result(ANSWER_S_MAX)
                except RequestError:
                    pass  # counted from the recording
        return read(record, seconds)


def read(record: str, seconds: float) -> Result:
    """What came of the requests, from the recording of every step."""
    due: Dict[int, int] = {}
    good, spent, last = set(), Counter(), {}
    works: Dict[int, RunBatch] = {}
    lost: Counter = Counter()
    for step in read_recording(record).steps:
        for event in step.events:
            if isinstance(event, RequestArrived):
                due[event.request.id] = event.request.deadline_ns
            elif isinstance(event, WorkFinished) and event.work_id in works:
                batch = works.pop(event.work_id)
                for job in batch.jobs:
                    spent[job.request_id] += (event.finished_ns - event.started_ns) / len(batch.jobs)
                    last[job.request_id] = job.node
        for action in step.actions:
            if isinstance(action, RunBatch):
                works[action.work_id] = action
            elif isinstance(action, FinishRequest) and action.request_id in due:
                if action.outcome == "completed" and step.now_ns <= due[action.request_id]:
                    good.add(action.request_id)
                else:
                    node = last.get(action.request_id, "the entry")
                    lost["late" if action.outcome == "completed" else f"after {node}"
                         if action.request_id in last else "at the entry"] += 1
    wasted = sum(time_ns for request, time_ns in spent.items() if request not in good)
    return Result(len(due), len(good), seconds, wasted / max(1.0, sum(spent.values())), dict(lost))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="arrivals per policy and round")
    parser.add_argument("--load", type=float, default=1.5, help="multiple of what the machine can do")
    parser.add_argument("--json", help="write results and checks there")
    arguments = parser.parse_args()
    results: Dict[str, List[Result]] = {name: [] for name in POLICIES}
    rates: List[float] = []
    for number in range(arguments.rounds):
        rates.append(max(capacity(arguments.seconds / 6) for _ in range(TRIALS)))
        service = max(rates)
        print(f"round {number + 1}: {service:.2f} pages/s, deadline {1000 * SERVICES / service:.0f} ms", flush=True)
        order: Sequence[str] = list(POLICIES)[number % 4:] + list(POLICIES)[:number % 4]
        for name in order:
            policy, on_late = POLICIES[name]
            result = run(policy, on_late, service, arguments.load, arguments.seconds, f"live/{number}")
            results[name].append(result)
            print(f"  {name:28} {result.good:4} of {result.offered:4} in time, {result.goodput:6.2f}/s, "
                  f"invalid {result.invalid:6.1%}  {dict(sorted(result.lost_before.items()))}", flush=True)
    goodput = {name: sum(item.good for item in items) / sum(item.seconds for item in items)
               for name, items in results.items()}
    invalid = {name: sum(item.invalid for item in items) / len(items) for name, items in results.items()}
    checks = Checks("bench_pard_live")
    best = max(value for name, value in goodput.items() if name != LOCAL)
    checks.at_least("goodput over the best of the others", goodput[LOCAL] / best if best else float("inf"), 1.3)
    checks.at_most("lane time spent on lost requests", invalid[LOCAL], 0.02)
    return checks.finish(arguments.json, {"load": arguments.load, "rounds": arguments.rounds,
                                          "pages a second": ", ".join(f"{rate:.2f}" for rate in rates)},
                         goodput=goodput, invalid=invalid,
                         rounds={name: [item._asdict() for item in items] for name, items in results.items()})


if __name__ == "__main__":
    sys.exit(main())
