"""pard in graphs: branches that are declared or learnt, and a branch judged by the lateness of its sibling."""

from __future__ import annotations

import pytest
from hand_world import Driver, ended, ids, ran

from edgeserve.config.schema import AppConfig, NodeConfig
from edgeserve.sched.protocol.events import RequestArrived
from edgeserve.sched.published.pard import state_planner as pard_state
from edgeserve.sched.published.pard.branches import NO_BRANCH, Branches
from edgeserve.sched.published.pard.pard import PROACTIVE
from edgeserve.sched.published.pard.state_planner import LoadFactor, Planner, models_of
from edgeserve.sched.published.pard.waits import Waits
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import DONE, NO_BREAKDOWN, Job, RequestRecord

MS = 10**6
NS = 1e-6  # of a millisecond
TIMES = {"a": 10, "b": 10, "c": 25, "d": 10}
DIAMOND = [
    {"name": "a", "after": []},
    {"name": "b", "after": ["a"]},
    {"name": "c", "after": ["a"]},
    {"name": "d", "after": ["b", "c"]},
]
CHOICE = [{**DIAMOND[0], "route": "one"}, *DIAMOND[1:]]
OPEN_CHOICE = CHOICE[:3]  # the branches end the request


def graph(nodes, policy="pard", app=None, other=None, **options):
    """Every module has one lane (a0, b0, ...) and takes one job at a time: b is quick, c is slow."""
    apps = {"app": {"slo": "500ms", "node": nodes, **(app or {})}, **({"other": other} if other else {})}
    return Driver(
        {node["name"]: {1: TIMES[node["name"]], "lanes": [node["name"] + "0"]} for node in nodes},
        apps,
        policy={policy: {"lam": 0.0, **options}},
        lane={node["name"] + "0": {} for node in nodes},
    )


def ask(world, slo, at=None, **fields):
    world.now_ms = world.now_ms if at is None else at
    return world.step(RequestArrived(world.request("app", slo, **fields)))


def is_admitted(slo, nodes=CHOICE, hints=None, **options):
    return ask(graph(nodes, **options), slo, hints=hints) == [ran("a", 1)]


# --- branches that a request declares ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hints", "least"),
    [
        (None, 45),
        ({"steps": 1.0}, 45),
        ({"b.route": 0.0}, 45),  # it says nothing of the fork: the longest path
        ({"a.route": 0.0}, 30),
        ({"a.route": 1.0}, 45),
        ({"a.route": -1.0}, 10),
        ({"a.route": 2.0}, 10),
    ],
)
def test_the_branch_that_a_request_declares_is_the_path_that_counts(hints, least):
    assert is_admitted(least, hints=hints)
    assert not is_admitted(least - NS, hints=hints)


def test_a_fork_further_down_counts_from_the_entry_on():
    nodes = [{"name": "d", "after": []}, {**CHOICE[0], "after": ["d"]}, *CHOICE[1:3]]
    for hints, least in (({"a.route": 0.0}, 30), ({"a.route": 1.0}, 45), (None, 45)):
        assert ask(graph(nodes), least, hints=hints) == [ran("d", 1)]
        assert ask(graph(nodes), least - NS, hints=hints) == [ended(1, "dropped", PROACTIVE)]


def test_behind_the_fork_the_truth_counts():
    world = graph(CHOICE)
    ask(world, 45 - NS, hints={"a.route": 0.0})
    assert world.finish("a0", at=10, route="c") == [ended(1, "dropped", PROACTIVE)]
    assert any("before c - late by 1ns" in line for line in world.scheduler.story(1))
    world = graph(CHOICE)
    ask(world, 45, hints={"a.route": 1.0})
    assert world.finish("a0", at=14, route="b") == [ran("b", 1)]  # the branch that it feared is no longer before it


def planner_of(app, rest="qd"):
    planner = Planner(
        [app],
        {model: LoadFactor() for model in models_of([app])},
        Waits("uniform", 0.0, 10, 4, 1),
        rest,
        period_ns=1000 * MS,
        window_ns=5000 * MS,
        threshold_ns=0,
        worst=False,
    )
    for module in planner.modules.values():
        module.sizes = {"l": 1}
        module.set_times({"l": TIMES.get(module.model, 10) * MS}, ["l"])
    planner.begin(0)
    return planner


def app_of(nodes):
    return App(
        AppConfig(name="app", nodes=tuple(NodeConfig(**{**node, "after": tuple(node["after"])}) for node in nodes)),
        "pard",
    )


def job_at(app, node, **hints):
    world = graph(DIAMOND)
    return Job(1, RequestRecord(world.request("app", hints=hints), app), app.by_name[node], (), 0, NO_BREAKDOWN)


def test_what_is_known_of_a_declared_branch_is_renewed_with_the_rest():
    app = app_of(CHOICE)
    planner = planner_of(app)
    job = job_at(app, "a", **{"a.route": 0.0})
    assert planner.rest_of(job) == 20 * MS
    planner.modules["b"].admitted(1000 * MS, 40 * MS)
    planner.sync(1000 * MS)
    assert planner.rest_of(job) == 60 * MS


def test_a_graph_with_too_many_paths_still_leaves_out_the_branches_not_taken():
    nodes = [{"name": "pick", "after": [], "route": "one"}]
    for layer in range(5):  # 2 * 3 ** 4 paths
        before = ["pick"] if layer == 0 else [f"l{layer - 1}{index}" for index in range(2 if layer == 1 else 3)]
        nodes += [{"name": f"l{layer}{index}", "after": before} for index in range(2 if layer == 0 else 3)]
    app = app_of(nodes)
    assert pard_state.paths_behind([app])[app.by_name["pick"]] == 2 * 3**4 > pard_state.PATHS_MAX
    planner = planner_of(app)
    planner.modules["l01"].set_times({"l": 50 * MS}, ["l"])
    planner.renew()
    assert [
        planner.rest_of(job_at(app, "pick", **hints)) // MS
        for hints in ({}, {"pick.route": 0.0}, {"pick.route": 1.0}, {"pick.route": 7.0})
    ] == [90, 50, 90, 0]


# --- branches that are learnt -----------------------------------------------------------------------------------------


def test_of_unknown_branches_the_mean_counts_where_that_is_asked_for():
    assert is_admitted(37.5, paths="expected")
    assert not is_admitted(37.5 - 10 * NS, paths="expected")
    assert is_admitted(30, paths="expected", hints={"a.route": 0.0})  # who says more is believed


def test_what_was_chosen_lately_counts_from_the_next_period_on():
    world = graph(OPEN_CHOICE, paths="expected")
    at = 0
    for _ in range(3):
        ask(world, 200, at=at)
        world.finish("a0", at=at + 10, route="b")
        world.finish("b0", at=at + 20)
        at += 50
    assert ask(world, 27.5 - 10 * NS, at=200) == [ended(4, "dropped", PROACTIVE)]  # still as at the beginning
    world.step(at=1000)
    assert ask(world, 21.875 - 10 * NS, at=1000) == [ended(5, "dropped", PROACTIVE)]  # 7 of 8 go the quick way
    assert ask(world, 21.875, at=1000) == [ran("a", 6)]


def test_shares_count_those_that_take_no_branch_but_not_those_that_came_to_nothing():
    app = app_of(OPEN_CHOICE)
    branches = Branches([app])
    assert branches.shares_ppm(app.by_name["a"]) == [500_000, 500_000, 0]
    for state in ("completed", "dropped", "failed"):  # none of them has a job behind the fork
        job = job_at(app, "a")
        job.state, job.request.state, job.request.ended = DONE, state, True
        branches.observe(job)
    assert branches.shares_ppm(app.by_name["a"]) == [250_000, 250_000, 500_000]
    assert branches.declared(app.by_name["b"], {"a.route": 0.0}) == ()
    assert branches.declared(app.by_name["a"], {"a.route": 9.0}) == ((app.by_name["a"], NO_BRANCH),)


# --- siblings ---------------------------------------------------------------------------------------------------------


def three(slo, nodes=DIAMOND, policy="pard", app=None, **options):
    """Requests 1 and 2 have c until 35 and then until 60; 3 comes to both branches at 30, when b is free."""
    world = graph(nodes, policy, app, **options)
    ask(world, 500)
    ask(world, 500, at=10)
    world.finish("a0", at=10)
    ask(world, slo, at=20)
    world.finish("a0", at=20)
    world.finish("b0", at=20)
    world.finish("b0", at=30)
    return world, world.finish("a0", at=30)


def test_a_branch_does_not_run_for_a_request_that_its_sibling_will_make_late():
    world, actions = three(75, siblings=True)  # due at 95: its place at c is from 60 to 85, and then comes d
    assert actions == [ran("b", 3)]
    world, actions = three(75 - NS, siblings=True)
    assert actions == [ended(3, "dropped", PROACTIVE)]
    assert any("before b - late by" in line and line.endswith("in its branch c") for line in world.scheduler.story(3))
    assert sum(world.scheduler.policies[0].dropped.values()) == 1


def test_as_published_a_branch_is_judged_alone():
    assert three(75 - NS)[1] == [ran("b", 3)]
    assert three(75 - NS, policy="pard", siblings=False)[1] == [ran("b", 3)]


def test_pard_plus_looks_at_the_siblings():
    world, actions = three(50 - NS, policy="pard+", lead_ms=1.0)  # nothing has formed at c yet: 3 may start at 35
    assert actions == [ended(3, "dropped", PROACTIVE)]
    assert three(50, policy="pard+", lead_ms=1.0)[1] == [ran("b", 3)]
    assert three(50 - NS, policy="pard+", lead_ms=1.0, siblings=False)[1] == [ran("b", 3)]


@pytest.mark.parametrize(
    ("join", "app", "runs"), [("all", {}, False), (1, {}, True), ("all", {"on_late": "partial"}, True)]
)
def test_a_sibling_that_a_join_or_an_answer_can_do_without_has_no_say(join, app, runs):
    world = graph(
        [*DIAMOND[:3], {**DIAMOND[3], "join": join}], app=app, siblings=True, other={"model": "c", "slo": "500ms"}
    )
    world.arrive("other", count=2)  # they have c until 50, and a place there after that ends at 75
    ask(world, 85 - NS)
    world.finish("a0", at=10)
    assert (ran("b", 3) in world.actions) == runs


def test_a_sibling_that_started_late_ends_its_time_after_that():
    for siblings, outcome in ((False, ""), (True, "dropped")):
        world = graph(DIAMOND, siblings=siblings, other={"model": "b", "slo": "500ms"})
        ask(world, 500)
        ask(world, 72, at=10)  # request 2, due at 82
        world.finish("a0", at=10)
        world.arrive("other", at=15)  # the next at b
        world.finish("a0", at=20)  # 2 waits at b, and is to run at c from 35 to 60
        world.finish("c0", at=48, took=25)
        assert ids(world.work("c0").jobs) == [2]  # it will end there at 73, and be answered at 83
        world.finish("b0", at=50, took=10)  # the branch alone would be done at 70
        assert world.outcome(2) == outcome
