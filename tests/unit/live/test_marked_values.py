"""No value gets lost or is taken for another's: drawn graphs, run by the real scheduler on values that say who made
them.

Every value carries the mark (node, part, name) of its maker. What reaches a reader is held against the graph, which is
walked here anew: a graph, or a request, in which two sources of one name could meet must have been refused instead.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import pytest

from edgeserve.config.loading import parse_config
from edgeserve.engines.base import Result
from edgeserve.errors import BadInput, ConfigError
from edgeserve.live.request import LiveRequest, RequestValidator, request_of_call
from edgeserve.live.responders import RequestFuture
from edgeserve.live.value_flow import AppPlan, name_clashes
from edgeserve.live.values import RequestValues
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.protocol.actions import FinishRequest, LeaveOut, RunBatch
from edgeserve.sched.protocol.events import JobId, Request, RequestArrived, WorkFinished
from edgeserve.testing.invariants import check_invariants

GRAPHS, REQUESTS = 200, 3
NAMES = ("p", "q", "r", "s", "t", "u")
MS = 1_000_000


class Mark(NamedTuple):
    """A value that says who made it."""

    node: str  # "request" for an input
    part: Tuple[int, ...]
    name: str


class Drawn(NamedTuple):
    """A graph: the app's table, the names that each node returns, the names that it returns for all parts of a fan-out
    together, and the nodes that fail, and that sometimes leave names out."""

    app: Dict[str, Any]
    returns: Dict[str, Tuple[str, ...]]
    shared: Dict[str, Tuple[str, ...]]
    inputs: Tuple[str, ...]
    failing: Tuple[str, ...]
    moody: Tuple[str, ...]


def draw_graph(draw: random.Random) -> Drawn:
    """A graph of three to eight nodes with joins, routes, and fan-outs that are gathered."""
    nodes: List[Dict[str, Any]] = []
    scope: Dict[str, Tuple[str, ...]] = {}
    returns: Dict[str, Tuple[str, ...]] = {}
    many = draw.random() < 0.5  # few names clash often, many seldom
    for index in range(draw.randrange(3, 9)):
        name = f"n{index}"
        node: Dict[str, Any] = {"name": name, "after": []}
        if nodes:
            around = scope[draw.choice(nodes)["name"]]
            peers = [other["name"] for other in nodes if scope[other["name"]] == around]
            node["after"] = draw.sample(peers, min(len(peers), draw.choice((1, 1, 2, 2, 3))))
            if around and draw.random() < 0.5:
                node["gather"] = True
                around = around[:-1]
            scope[name] = around
            if len(node["after"]) > 1 or node.get("gather"):
                node["join"] = draw.choice(("all", "all", 1, 1, max(1, len(node["after"]) - 1)))
        else:
            scope[name] = ()
        shape = draw.random()
        if shape < 0.2 and len(scope[name]) < 2:
            node["fan_out"] = True
            scope[name] = (*scope[name], name)
        elif shape < 0.4:
            node["route"] = "one"
        returns[name] = tuple(draw.sample(NAMES, draw.choice((1, 1, 2)))) if many else (draw.choice("pq"),)
        nodes.append(node)
    for node in nodes:
        if node["after"] and draw.random() < 0.4:
            owners = draw.sample(node["after"], draw.randrange(1, len(node["after"]) + 1))
            node["inputs"] = {f"a{owner}": f"{owner}.{draw.choice(returns[owner])}" for owner in owners}
    app: Dict[str, Any] = {"node": nodes, "on_late": draw.choice(("drop", "answer", "partial"))}
    ends = [node["name"] for node in nodes if not any(node["name"] in other["after"] for other in nodes)]
    if draw.random() < 0.5:
        chosen = draw.sample(ends, draw.randrange(1, len(ends) + 1))
        app["outputs"] = draw.choice(
            (
                [draw.choice(returns[name]) for name in chosen],
                [f"{name}.{draw.choice(returns[name])}" for name in chosen],
                {f"of_{name}": f"{name}.{draw.choice(returns[name])}" for name in chosen},
            )
        )
    inputs = ("x", *draw.sample(NAMES[:2], draw.choice((0, 0, 1))))
    failing = tuple(name for name in returns if draw.random() < 0.05)
    moody = tuple(name for name in returns if draw.random() < 0.05)
    shared = {name: tuple(draw.sample(NAMES, 1)) if draw.random() < 0.3 else () for name in returns}
    return Drawn(app, returns, shared, inputs, failing, moody)


class World:
    """The real scheduler and the real table of values; lanes end their works in a drawn order."""

    def __init__(self, drawn: Drawn, draw: random.Random, known: bool) -> None:
        models = {name: {"engine": "synthetic", "expected": {"1": "1ms"}} for name in drawn.returns}
        lanes = {f"lane{index}": {"device": "cpu"} for index in range(3)}
        table = {"app": {"a": {"slo": "1s", **drawn.app}}, "model": models, "lane": lanes, "device": {"cpu": {}}}
        self.config = parse_config({**table, "policy": {"edf": {"trials": False}}})
        self.scheduler = build_scheduler(self.config)
        self.plan = AppPlan(self.config.apps["a"])
        self.told = name_clashes(self.plan, drawn.returns if known else {})
        self.values = RequestValues()
        self.drawn, self.draw, self.now_ns = drawn, draw, 0
        self.works: List[RunBatch] = []
        # Of each node the names that are known:
        self.known = {name: set(names) if known else set() for name, names in drawn.returns.items()}
        # What each job is given, and what had come and was known then:
        self.items: List[Tuple[JobId, Dict[str, Any], Dict[JobId, Set[str]], Set[Tuple[str, str]]]] = []
        self.came: Dict[JobId, Set[str]] = {}  # the names that jobs returned, in the order in which they did
        self.ended: Optional[FinishRequest] = None

    def serve(self, id: int) -> LiveRequest:
        """One request from its arrival to its end, and that of all that still runs for it."""
        at_ns = self.now_ns + MS
        inputs = {name: Mark("request", (), name) for name in self.drawn.inputs}
        request = request_of_call("a", inputs)
        RequestValidator(self.plan).check(request, RequestFuture(lambda future: None), at_ns)
        request.id, self.now_ns, self.ended = id, at_ns, None
        self.items, self.came = [], {}
        self.values.add(request)
        arrived = Request(id, "a", at_ns, at_ns + 1000 * MS, on_late=request.on_late or "drop")
        self._perform(self.scheduler.step(at_ns, [RequestArrived(arrived)]))
        while self.ended is None or self.works:
            self._go_on()
        return request

    def _go_on(self) -> None:
        """Between one and all of the works end in one step, or the scheduler's alarm rings."""
        wake = self.scheduler.wake_ns
        if not self.works or (wake is not None and wake - self.now_ns < 1000 * MS and self.draw.random() < 0.1):
            assert wake is not None, "nothing runs, and nobody waits for a time"
            self.now_ns = max(self.now_ns, wake)
            self._perform(self.scheduler.step(self.now_ns, []))
            return
        over = self.draw.sample(self.works, self.draw.randrange(1, len(self.works) + 1))
        started_ns, self.now_ns = self.now_ns, self.now_ns + MS
        events = []
        for work in over:
            self.works.remove(work)
            results = tuple(self._returned(job) for job in work.jobs)
            events.append(WorkFinished(work.work_id, started_ns, self.now_ns, results, ""))
        self._perform(self.scheduler.step(self.now_ns, events))

    def _returned(self, job: JobId) -> Any:
        if job.node in self.drawn.failing:
            return self.values.returned(job, None, "broken on purpose")
        table = self.plan.nodes[job.node]
        node = next(node for node in self.drawn.app["node"] if node["name"] == job.node)
        names = set(self.drawn.returns[job.node])
        if job.node in self.drawn.moody:
            names = {name for name in sorted(names) if self.draw.random() < 0.5}
        values = {name: Mark(job.node, job.part, name) for name in names}
        if table.fan_out:
            parts = [
                {name: Mark(job.node, (*job.part, index), name) for name in names}
                for index in range(self.draw.randrange(0, 3))
            ]
            result = Result({name: Mark(job.node, job.part, name) for name in self.drawn.shared[job.node]}, parts=parts)
            names = {*names, *self.drawn.shared[job.node]} if parts else set()
        else:
            route = None
            if node.get("route") == "one":
                after = [other["name"] for other in self.drawn.app["node"] if job.node in other["after"]]
                route = self.draw.choice([*after, *after, ""])
            result = Result(values, route=route)
        said = self.values.returned(job, result)
        request = self.values.requests.get(job.request_id)
        if said.status == "done" and request is not None and (job.node, job.part) not in request.left_out:
            self.came[job] = names
        self.known[job.node] |= names
        return said

    def known_pairs(self) -> Set[Tuple[str, str]]:
        """(node, name) of everything that is known to be returned."""
        return {(node, name) for node, names in self.known.items() for name in names}

    def _perform(self, actions: Sequence[Any]) -> None:
        check_invariants(self.scheduler.state)
        for action in actions:
            if isinstance(action, RunBatch):
                self.works.append(action)
                for job in action.jobs:
                    if job.request_id in self.values.requests:
                        self.items.append((job, self.values.launch(job)[0], dict(self.came), self.known_pairs()))
            elif isinstance(action, LeaveOut):
                self.values.leave_out(action)
            elif isinstance(action, FinishRequest):
                self.ended = action


def marks_in(value: Any) -> List[Mark]:
    if isinstance(value, Mark):
        return [value]
    return [] if value is None else [mark for inner in value for mark in marks_in(inner)]


def check_list(value: Any, part: Tuple[int, ...], depth: int) -> None:
    """Check that gathered values stand in order: the list at place i holds what part i brought."""
    if depth == len(part):
        assert value is None or value.part == part[: len(value.part)]  # what parts share was made before them
        return
    for index, inner in enumerate(value or ()):
        check_list(inner, (*part, index), depth)


class Graph:
    """The sources of a reader by the graph, walked without the tested code."""

    def __init__(self, world: World) -> None:
        self.returns = {
            name: {*names, *(world.drawn.shared[name] if world.plan.nodes[name].fan_out else ())}
            for name, names in world.drawn.returns.items()
        }
        self.after = {node.name: node.after or () for node in world.config.apps["a"].nodes}
        self.openers = {name: plan.value_openers for name, plan in world.plan.nodes.items()}
        self.nodes = {node.name: node for node in world.config.apps["a"].nodes}

    def above(self, node: str) -> List[str]:
        """All nodes before a node whose values are no lists to it."""
        found, waiting = [], list(self.after[node])
        own = self.openers[node][:-1] if self.nodes[node].fan_out else self.openers[node]
        while waiting:
            name = waiting.pop()
            waiting += self.after[name]
            if self.openers[name] == own[: len(self.openers[name])]:
                found.append(name)
        return found

    def sources(self, reader: str, name: str) -> List[str]:
        """The nodes that a name at a reader could mean; ``""`` is the answer."""
        if not reader:
            return [node for node in self.returns if name in self.returns[node]]
        return [node for node in self.makers(reader) if name in self.returns[node]]

    def makers(self, reader: str) -> List[str]:
        """The nodes before a reader whose names it could mean."""
        return [*self.after[reader], *self.above(reader)]


def check_item(
    graph: Graph,
    world: World,
    job: JobId,
    item: Dict[str, Any],
    came: Dict[JobId, Set[str]],
    known: Set[Tuple[str, str]],
) -> None:
    """Everything that a job is given is what it is called, and nothing is lacking."""
    node = graph.nodes[job.node]
    if node.inputs:
        for argument, value in item.items():
            owner, _, name = node.inputs[argument].partition(".")
            assert all(mark.node == owner and mark.name == name for mark in marks_in(value)), (job, argument, value)
        return
    preds = graph.after[job.node]
    for name, value in item.items():
        owners = {mark.node for mark in marks_in(value)}
        assert all(mark.name == name for mark in marks_in(value)) and len(owners) <= 1, (job, name, value)
        if owners == {"request"}:  # no node before it may have meant another value by this name
            assert not known.intersection((maker, name) for maker in graph.makers(job.node)), (job, name)
        elif owners:
            assert owners <= set(preds), (job, name, value)
    for name in world.drawn.inputs:
        replaced = (
            len(preds) == 1 and not node.gather and any(name in came[other] for other in came if other.node in preds)
        )
        assert name in item and (marks_in(item[name])[:1] == [Mark("request", (), name)]) != replaced, (job, name)
    done = [other for other in came if other.node in preds and job.part == other.part[: len(job.part)]]
    first_only = node.join == 1 and len(preds) > 1 and not node.gather
    inside = [other for other in done if len(other.part) == len(job.part)]
    for other in inside[:1] if first_only else done:
        for name in came[other]:
            found = marks_in(item.get(name, ()))
            if graph.nodes[other.node].fan_out:
                assert found and all(mark.node == other.node for mark in found), (job, name, item)
            else:
                assert Mark(other.node, other.part, name) in found, (job, name, item, other)
    if node.gather:
        for value in item.values():
            if isinstance(value, list):
                check_list(value, job.part, len(graph.openers[marks_in(value)[0].node]) if marks_in(value) else 0)


def check_answer(graph: Graph, world: World, request: LiveRequest) -> None:
    answer = world.values.outputs(request)
    outputs = world.config.apps["a"].outputs
    references = (
        dict(outputs.items())
        if isinstance(outputs, dict)
        else {text.partition(".")[2] or text: text for text in outputs}
    )
    for argument, value in answer.items():
        owner, _, name = references.get(argument, argument).rpartition(".")
        owners = {mark.node for mark in marks_in(value)}
        assert len(owners) <= 1 and (not owner or owners <= {owner}), (argument, value)
        assert all(mark.name == name for mark in marks_in(value)), (argument, value)
    last = [job for job in world.came if not any(job.node in after for after in graph.after.values())]
    for job in last:
        for name in world.came[job]:
            wanted = [key for key, text in references.items() if text in (name, f"{job.node}.{name}")]
            for key in wanted if references else [name]:
                found = marks_in(answer.get(key, ()))
                if not graph.nodes[job.node].fan_out:
                    assert Mark(job.node, job.part, name) in found, (job, name, answer)


def check_refusal(graph: Graph, world: World, text: str) -> None:
    """A refusal names a reader and a name that two sources have there, and the key that tells them apart."""
    reader = text.partition(" node '")[2].partition("'")[0] if " the answer " not in text else ""
    found = re.search(r"would be given (the request's )?'(\w+)'", text)
    assert found is not None, text
    name = found[2]
    sources = graph.sources(reader, name) + ["request"] * (name in world.drawn.inputs and bool(reader))
    assert len(set(sources)) >= 2, text
    assert "inputs = {" in text or "outputs = {" in text, text


@pytest.mark.parametrize("known", [True, False], ids=["known at start", "learnt from answers"])
def test_no_value_gets_lost_or_is_taken_for_anothers(known: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(GRAPHS):
        draw = random.Random(f"{seed}/graphs")
        try:
            world = World(draw_graph(draw), draw, known)
        except ConfigError:
            seen["no graph"] += 1  # scopes that do not fit, or two outputs of one name
            continue
        graph = Graph(world)
        for text in world.told:
            check_refusal(graph, world, text)
        if world.told:
            seen["refused at start"] += 1
            continue
        for number in range(REQUESTS):
            try:
                request = world.serve(number + 1)
            except BadInput as error:
                check_refusal(graph, world, str(error))
                seen["input refused"] += 1
                continue
            assert world.ended is not None
            if "would be given" in world.ended.reason:
                check_refusal(graph, world, world.ended.reason)
                seen["request refused"] += 1
            else:
                seen[world.ended.outcome] += 1
            if world.ended.outcome == "completed":
                for job, item, came, names in world.items:
                    check_item(graph, world, job, item, came, names)
                check_answer(graph, world, request)
                seen["joins"] += any(len(graph.after[job.node]) > 1 for job, *_ in world.items)
            world.values.end(request)
    assert seen["completed"] > 75 and seen["joins"] > 20, seen
    assert seen["refused at start"] > 25 if known else seen["request refused"] > 25 and seen["input refused"] > 2, seen
