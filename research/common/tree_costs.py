"""Costs of one tree: decisions by queue length, and a runtime that has nothing to do.

    PYTHONPATH=TREE python research/common/tree_costs.py

The package is the one that ``PYTHONPATH`` names, of today or of an earlier commit, so only what both have is used here.
Each line of standard input is a question, each line of output its answer: ``decision POLICY PENDING REQUESTS SEED`` in
microseconds of processor time, ``mix CLIENTS SEED`` in the same, ``choice SEED`` in milliseconds, ``memory`` in MB,
``idle`` as a share of a core. ``missing`` answers for a policy that this tree does not have.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List

import psutil

from edgeserve.config.loading import parse_config
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.protocol.actions import RunBatch
from edgeserve.sched.protocol.events import JobResult, Request, RequestArrived, WorkFinished

SIZES = (1, 2, 4, 8, 16)
ARRIVAL_GAP_NS = 10_000
SLO_NS = 3600 * 10**9
"""No deadline is near, so nothing is dropped."""

TURNS_MAX = 1000
"""A policy that waits before it starts a batch does not wait longer than so many wake-ups."""


UNEQUAL = 64
IDLE_S = 3.0
MIX_NS = 4 * 10**9


def synthetic(count: int = 1) -> Dict[str, Any]:
    """So many models, a batch of b of which takes 2 + b ms."""
    times = {str(size): f"{2 + size}ms" for size in SIZES}
    return {f"m{index}": {"engine": "synthetic", "batch": list(SIZES), "expected": times} for index in range(count)}


def wakes_ns(scheduler: Any) -> Any:
    """The scheduler's next wake time; a commit of before November 25 has a method."""
    return scheduler.wake_ns if hasattr(scheduler, "wake_ns") else scheduler.wake_at()


class Cycle:
    """A scheduler of one model in batches of up to 16, with ``pending`` requests waiting behind a running batch."""

    def __init__(self, policy: str, pending: int, seed: int) -> None:
        self._rng = random.Random(f"{seed}/deadlines")
        self._scheduler = build_scheduler(
            parse_config(
                {
                    "server": {"pending_max": 1_000_000},
                    "model": synthetic(),
                    "policy": {"p": {"kind": policy}},
                    "app": {"a": {"model": "m0", "slo": "1h", "pending_max": 1_000_000}},
                }
            )
        )
        self._now_ns = 0
        self._arrived = 0
        self._running = self._launched(self._scheduler.step(0, self._arrivals(pending + SIZES[-1])))

    def us_per_request(self, requests: int) -> float:
        """Processor time of the scheduler per request, over at least so many: one arrival, its share of a launch and
        of an end. As many arrive while a batch runs as are in it, each in a step of its own."""
        arrivals = self._arrivals(requests + SIZES[-1])
        open_count, done = self._scheduler.open_count, 0
        gc.collect()
        began = time.process_time()
        while done < requests:
            for event in arrivals[done : done + len(self._running.jobs)]:
                self._now_ns += ARRIVAL_GAP_NS
                self._scheduler.step(self._now_ns, (event,))
                wakes_ns(self._scheduler)
            done += len(self._running.jobs)
            self._end_and_launch()
        took = time.process_time() - began
        assert self._scheduler.open_count == open_count, "a request was lost"
        return took / done * 1e6

    def _end_and_launch(self) -> None:
        started_ns, self._now_ns = self._now_ns, self._now_ns + self._running.expected_ns
        results = tuple([JobResult(job) for job in self._running.jobs])
        ended = WorkFinished(self._running.work_id, started_ns, self._now_ns, results)
        self._running = self._launched(self._scheduler.step(self._now_ns, (ended,)))

    def _launched(self, actions: Any) -> Any:
        """The batch among the actions, or the first one that a later wake-up starts."""
        for _ in range(TURNS_MAX):
            at_ns = wakes_ns(self._scheduler)
            batch = next((action for action in actions if isinstance(action, RunBatch)), None)
            if batch is not None:
                return batch
            self._now_ns = max(self._now_ns, at_ns)
            actions = self._scheduler.step(self._now_ns, ())
        raise AssertionError(f"no batch starts within {TURNS_MAX} wake-ups")

    def _arrivals(self, count: int) -> List[Any]:
        """Requests with drawn deadlines: they go into the middle of the queue."""
        first, self._arrived = self._arrived, self._arrived + count
        return [
            RequestArrived(Request(index, "a", 0, int((0.5 + self._rng.random()) * SLO_NS)))
            for index in range(first, first + count)
        ]


def choice_ms(seed: int) -> float:
    """Processor time of the step in which ``plan`` chooses a company of a three-node chain among :data:`UNEQUAL`
    requests that tell their work, from 0.5 to 2.5 times the usual, and have 0.1 to 1.1 s left."""
    rng = random.Random(f"{seed}/unequal")
    models = synthetic(3)
    chain = [{"name": name, "after": list(models)[index - 1 : index]} for index, name in enumerate(models)]
    scheduler = build_scheduler(parse_config({"model": models, "app": {"a": {"slo": "10s", "node": chain}}}))
    actions = scheduler.step(0, [RequestArrived(Request(0, "a", 0, 10**10))])
    waiting = [
        Request(index, "a", 0, int((0.1 + rng.random()) * 1e9), hints={"work": 0.5 + 2 * rng.random()})
        for index in range(1, UNEQUAL + 1)
    ]
    scheduler.step(0, [RequestArrived(request) for request in waiting])
    now_ns = 0
    while True:
        batch = next(action for action in actions if isinstance(action, RunBatch))
        started_ns, now_ns = now_ns, now_ns + batch.expected_ns
        event = WorkFinished(batch.work_id, started_ns, now_ns, tuple([JobResult(job) for job in batch.jobs]))
        began = time.thread_time()
        actions = scheduler.step(now_ns, (event,))
        took = time.thread_time() - began
        if batch.model == list(models)[-1]:
            assert any(isinstance(action, RunBatch) and len(action.jobs) > 1 for action in actions)
            return took * 1e3


ROBOT = Path(__file__).resolve().parents[2] / "examples" / "mixes" / "robot" / "scenario.toml"
"""Eight apps on one lane: a pipeline, an ensemble, a language model, critical, normal and background models."""


class Timed:
    """A scheduler, and the processor time of its steps."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.took_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def step(self, now_ns: int, events: Any = ()) -> Any:
        """As the scheduler does."""
        began = time.thread_time()
        actions = self._scheduler.step(now_ns, events)
        self.took_s += time.thread_time() - began
        return actions


def mix_us(clients: int, seed: int) -> float:
    """Processor time of the scheduler per request in the robot's mix, under the default policy, where so many
    clients of each app ask again as soon as they are answered; no deadline is near. In virtual time."""
    from edgeserve.sim.run import sequences_of, setting_of, simulate, told_times
    from edgeserve.sim.scenario import load_scenario

    scenario = load_scenario(str(ROBOT))
    apps = {name: {**table, "slo": "1h", "stream": "none"} for name, table in scenario.edge["app"].items()}
    config = parse_config({**scenario.edge, "app": apps}, scenario.config.directory)
    asks = [replace(item, kind="closed", clients=clients, rate=0.0, streams=0) for item in scenario.workloads]
    run = replace(scenario.run, duration_ns=MIX_NS, warmup_ns=0)
    scenario = replace(scenario, config=config, workloads=tuple(asks), run=run)
    setting = setting_of(config, (), run.cold)
    timed = Timed(
        build_scheduler(
            config,
            (),
            footprints=setting.footprints,
            measured=told_times(scenario),
            resident=setting.resident,
            sequences=sequences_of(scenario),
        )
    )
    gc.collect()
    ended = simulate(scenario, seed, (), scheduler=timed).world.ended
    return 1e6 * timed.took_s / len(ended)


def at_rest(what: str) -> float:
    """Resident memory of this process in MB, or its share of a core, with a runtime that has served one request."""
    import edgeserve

    with edgeserve.Runtime(parse_config({"model": synthetic(), "app": {"a": {"model": "m0"}}})) as runtime:
        runtime.infer("a", {})
        if what == "memory":
            return float(psutil.Process().memory_info().rss / 1e6)
        began = time.process_time()
        time.sleep(IDLE_S)
        return (time.process_time() - began) / IDLE_S


def answer(question: str) -> str:
    """The answer to one line."""
    what, *rest = question.split()
    if what in ("memory", "idle"):
        return f"{at_rest(what):.6f}"
    if what == "mix":
        return f"{mix_us(int(rest[0]), int(rest[1])):.3f}"
    if what == "choice":
        return f"{choice_ms(int(rest[0])):.3f}"
    policy, pending, requests, seed = rest
    if policy not in POLICIES:
        return "missing"
    return f"{Cycle(policy, int(pending), int(seed)).us_per_request(int(requests)):.3f}"


if __name__ == "__main__":
    for line in sys.stdin:
        print(answer(line), flush=True)
