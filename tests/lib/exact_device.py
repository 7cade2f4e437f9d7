"""One device whose batches take exactly the expected time, and small pipelines: for the tests of companies."""

from __future__ import annotations

import gc
import random
from types import FunctionType, ModuleType

from edgeserve.config.loading import parse_config
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.protocol.actions import FinishRequest, RunBatch
from edgeserve.sched.protocol.events import JobResult, Request, RequestArrived, WorkFinished
from edgeserve.sched.requests.states import RequestRecord
from edgeserve.testing.invariants import check_invariants

MS = 10**6


def model(fixed_ms, each_ms, limit=8, **more):
    sizes = list(range(1, limit + 1))
    return {
        "engine": "synthetic",
        "batch": sizes,
        "expected": {str(size): f"{round((fixed_ms + each_ms * size) * 1000)}us" for size in sizes},
        **more,
    }


def chain(slo_ms=100, limit=8, second=None):
    return {
        "lane": {"l": {}},
        "model": {"a": model(4, 2, limit), "b": second or model(2, 2)},
        "policy": {"p": {"kind": "plan"}},
        "app": {"app": {"slo": f"{slo_ms}ms", "node": [{"name": "a"}, {"name": "b"}]}},
    }


def with_host_function():
    """The same with a host function of 5 ms between the two, on a lane of its own."""
    table = chain()
    table["lane"] = {"gpu": {}, "host": {}}
    table["model"] = {
        "a": model(6, 4, lanes=["gpu"]),
        "f": model(5, 0, lanes=["host"]),
        "b": model(2, 2, lanes=["gpu"]),
    }
    table["app"]["app"]["node"] = [{"name": "a"}, {"name": "f"}, {"name": "b"}]
    return table


class Device:
    """Answers the scheduler's batches after exactly the expected time, or ``slower`` so many times; ``parts`` and
    ``routes`` by node. A node runs once for each of the ``steps`` that are left of a request there."""

    def __init__(self, table):
        for options in table["policy"].values():
            options.setdefault("trials", False)  # refusals are what most tests are about
        self.scheduler = build_scheduler(parse_config(table))
        self.now_ns, self.running, self.batches, self.ends = 0, [], [], {}
        self.parts, self.routes, self.slower, self.steps = {}, {}, 1, {}

    def ask(self, *requests):
        self._step([RequestArrived(request) for request in requests])

    def step(self, *events):
        self._step(list(events))

    def advance(self, to_ms=10**6):
        """Let batches end until the given time, or until nothing runs."""
        while self.running and self.running[0][0] <= to_ms * MS:
            self.now_ns, work, started_ns = self.running.pop(0)
            results = tuple(self._result(job) for job in work.jobs)
            self._step([WorkFinished(work.work_id, started_ns, self.now_ns, results)])
        return self

    def _result(self, job):
        self.steps[job.request_id, job.node] = left = self.steps.get((job.request_id, job.node), 1) - 1
        if left > 0:
            return JobResult(job, status="unfinished")
        return JobResult(job, parts=self.parts.get(job.node), route=self.routes.get(job.node))

    def _step(self, events):
        for action in self.scheduler.step(self.now_ns, events):
            if isinstance(action, RunBatch):
                self.batches.append((self.now_ns / MS, action.model, sorted(job.request_id for job in action.jobs)))
                self.running.append((self.now_ns + round(action.expected_ns * self.slower), action, self.now_ns))
                self.running.sort(key=lambda row: (row[0], row[1].work_id))
            elif isinstance(action, FinishRequest):
                self.ends[action.request_id] = (action.outcome, self.now_ns / MS)
        check_invariants(self.scheduler.state)


def ask(number, due_ms, at_ms=0, app="app", **more):
    return Request(number, app, round(at_ms * MS), round(due_ms * MS), **more)


def remembered(policy):
    """The requests that a policy holds anywhere, by number: none once all have ended and a step has passed."""
    found, seen, left = [], {id(policy)}, [policy]
    while left:
        item = left.pop()
        if isinstance(item, RequestRecord):
            found.append(item.id)
            continue
        for other in gc.get_referents(item):
            if id(other) not in seen and not isinstance(other, (type, FunctionType, ModuleType)):
                seen.add(id(other))
                left.append(other)
    return sorted(found)


def in_time(table, rate, due, seconds=3, seeds=(1, 2, 3), parts=None):
    """Percent in time of requests that come at random, ``rate`` each millisecond on average. ``due``: with a random
    number generator, the milliseconds that a request has, and its hints. ``parts``: the parts that a node makes."""
    good = count = 0
    for seed in seeds:
        draw, device, at_ms, due_ms = random.Random(seed), Device(table), 0.0, {}
        device.parts = parts or {}
        while at_ms < 1000 * seconds:
            at_ms += draw.expovariate(rate)
            number = len(due_ms) + 1
            slo_ms, hints = due(draw)
            due_ms[number] = round(at_ms) + slo_ms
            for hint, value in hints.items():
                node, _, what = hint.partition(".")
                if what == "steps":
                    device.steps[number, node] = value
            device.advance(round(at_ms))
            device.now_ns = round(at_ms) * MS
            device.ask(ask(number, due_ms[number], round(at_ms), hints=hints))
        ends = device.advance().ends
        good += sum(end == "completed" and ended_ms <= due_ms[number] for number, (end, ended_ms) in ends.items())
        count += len(ends)
    return 100.0 * good / count


def fan():
    return {
        "lane": {"l": {}},
        "model": {"look": model(2, 0), "part": model(0, 4, 4), "end": model(1, 0)},
        "policy": {"p": {"kind": "plan"}},
        "app": {
            "app": {
                "slo": "100ms",
                "node": [{"name": "look", "fan_out": True}, {"name": "part"}, {"name": "end", "gather": True}],
            }
        },
    }
