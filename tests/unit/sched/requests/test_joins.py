"""Tokens: forks, joins, fan-outs, routes, and what is skipped. Written as the order in which nodes may run.
A join that may do without some of its predecessors, and got none because they failed, has failed itself."""

from __future__ import annotations

import pytest
from hand_world import Driver, app_of, ended, job

from edgeserve.sched.protocol.events import JobId, JobResult
from edgeserve.sched.requests import joins
from edgeserve.sched.requests.states import Job


class Walk:
    """One request of an app; ``done("node", part)`` says what may run after it."""

    def __init__(self, nodes):
        self.app = app_of(nodes)
        self.request = job(1, self.app).request

    def start(self):
        return shown([(node, ()) for node in self.request.app.entries])

    def job(self, name, *part):
        return Job(1, self.request, self.app.by_name[name], part, 0, self.request.breakdown)

    def done(self, name, *part, **result):
        made = self.job(name, *part)
        return shown(joins.after(self.request, made, JobResult(JobId(1, name, part), **result)))

    def skip(self, name, *part):
        return shown(joins.skip(self.request, self.job(name, *part)))


def shown(places):
    return [(node.name, *part) for node, part in places]


def node(name, *after, **keys):
    return {"name": name, "after": list(after), **keys}


DIAMOND = [node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c")]


def test_a_join_waits_for_all_its_predecessors():
    walk = Walk(DIAMOND)
    assert walk.start() == [("a",)]
    assert walk.done("a") == [("b",), ("c",)]
    assert walk.done("c") == []
    assert [row[:2] for row in walk.request.joins.values()] == [[1, 1]]
    assert walk.done("b") == [("d",)]
    assert [row[2] for row in walk.request.joins.values()] == [1]


def test_a_join_of_at_least_n_goes_on_at_the_nth_and_only_once():
    walk = Walk([node("a"), node("b", "a"), node("c", "a"), node("d", "a"), node("e", "b", "c", "d", join=2)])
    walk.start()
    walk.done("a")
    assert walk.done("d") == []
    assert walk.done("b") == [("e",)]
    assert walk.done("c") == []


def test_a_join_of_at_least_n_goes_on_with_fewer_when_no_more_can_come():
    walk = Walk([node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c", join=2)])
    walk.start()
    walk.done("a")
    assert walk.done("b") == []
    assert walk.skip("c") == [("d",)]


def test_a_policys_join_waits_until_it_is_settled_or_complete():
    nodes = [node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c", join="policy")]
    settled, complete = Walk(nodes), Walk(nodes)
    for walk in (settled, complete):
        walk.start()
        walk.done("a")
        assert walk.done("b") == []
    assert shown(joins.settle(settled.request)) == [("d",)]
    assert shown(joins.settle(settled.request)) == []
    assert settled.done("c") == []
    assert complete.done("c") == [("d",)]


FAN = [node("cut", fan_out=True), node("read", "cut"), node("join", "read", gather=True), node("end", "join")]


def test_a_fan_out_runs_what_follows_once_per_part_and_gathers_all_of_them():
    walk = Walk(FAN)
    walk.start()
    assert walk.done("cut", parts=3) == [("read", 0), ("read", 1), ("read", 2)]
    assert walk.done("read", 2) == []
    assert walk.done("read", 0) == []
    assert walk.done("read", 1) == [("join",)]
    assert walk.done("join") == [("end",)]


def test_a_fan_out_into_nothing_runs_the_gather_with_nothing():
    walk = Walk(FAN)
    walk.start()
    assert walk.done("cut", parts=0) == [("join",)]


def test_a_fan_out_that_was_skipped_skips_its_gather_too():
    walk = Walk(
        [
            node("a", route="one"),
            node("cut", "a", fan_out=True),
            node("read", "cut"),
            node("join", "read", gather=True),
            node("other", "a"),
            node("end", "join", "other"),
        ]
    )
    walk.start()
    assert walk.done("a", route="other") == [("other",)]
    assert walk.done("other") == [("end",)]


def test_fan_outs_nest_and_each_inner_gather_waits_for_its_own_parts():
    walk = Walk(
        [
            node("page", fan_out=True),
            node("line", "page", fan_out=True),
            node("read", "line"),
            node("text", "read", gather=True),
            node("book", "text", gather=True),
        ]
    )
    walk.start()
    assert walk.done("page", parts=2) == [("line", 0), ("line", 1)]
    assert walk.done("line", 0, parts=2) == [("read", 0, 0), ("read", 0, 1)]
    assert walk.done("line", 1, parts=0) == [("text", 1)]
    assert walk.done("text", 1) == []
    assert walk.done("read", 0, 0) == []
    assert walk.done("read", 0, 1) == [("text", 0)]
    assert walk.done("text", 0) == [("book",)]


ROUTE = [
    node("look", route="one"),
    node("easy", "look"),
    node("hard", "look"),
    node("more", "hard"),
    node("end", "easy", "more"),
]


@pytest.mark.parametrize(("route", "path"), [("easy", ["easy", "end"]), ("hard", ["hard", "more", "end"])])
def test_a_join_below_a_route_never_waits_for_the_branch_that_was_not_taken(route, path):
    walk = Walk(ROUTE)
    walk.start()
    assert walk.done("look", route=route) == [(path[0],)]
    for here, following in zip(path, path[1:]):
        assert walk.done(here) == [(following,)]
    assert walk.done("end") == []


def test_a_route_to_nowhere_ends_the_request():
    walk = Walk(ROUTE)
    walk.start()
    assert walk.done("look", route="") == []


@pytest.mark.parametrize(
    ("name", "result", "words"),
    [
        ("cut", {}, "'cut' has fan_out = true but its result names no number of parts"),
        ("cut", {"parts": -1}, "names no number of parts"),
        ("cut", {"parts": 4}, "'cut' made 4 parts, more than its parts_max = 3"),
        ("cut", {"parts": 3}, ""),
        ("pick", {}, "'pick' has route = 'one' but chose None (successors: 'x', 'y', or '' for none)"),
        ("pick", {"route": "z"}, "chose 'z'"),
        ("pick", {"route": "y"}, ""),
        ("pick", {"route": ""}, ""),
        ("x", {"parts": 7}, ""),
    ],
)
def test_results_that_cannot_be_used_say_why(name, result, words):
    walk = Walk(
        [node("cut", fan_out=True, parts_max=3), node("pick", "cut", route="one"), node("x", "pick"), node("y", "pick")]
    )
    found = joins.wrong_result(walk.job(name), JobResult(JobId(1, name, ()), **result))
    assert words in found
    assert bool(found) == bool(words)


def test_only_what_feeds_nothing_but_patient_joins_can_be_done_without():
    walk = Walk(
        [
            node("a"),
            node("b", "a"),
            node("c", "a"),
            node("two", "b", "c", join=1),
            node("all", "b", "c"),
            node("d", "a", join=1),
        ]
    )
    assert not walk.job("b").node.spared  # "all" needs it
    assert not walk.job("a").node.spared
    assert not walk.job("two").node.spared  # an exit is the answer itself
    lean = Walk([node("a"), node("b", "a"), node("c", "a"), node("two", "b", "c", join=1)])
    assert lean.job("b").node.spared
    fan = Walk([node("cut", fan_out=True), node("read", "cut"), node("vote", "read", gather=True, join=2)])
    assert fan.job("read", 0).node.spared


def test_a_job_is_useless_once_every_join_behind_it_has_fired():
    walk = Walk([node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c", join=1), node("e", "b", "c", join=2)])
    walk.start()
    walk.done("a")
    assert walk.done("b") == [("d",)]
    assert not joins.is_useless(walk.request, walk.job("c"))  # "e" still waits for it
    fan = Walk([node("cut", fan_out=True), node("read", "cut"), node("vote", "read", gather=True, join=1)])
    fan.start()
    fan.done("cut", parts=2)
    assert not joins.is_useless(fan.request, fan.job("read", 1))
    fan.done("read", 0)
    assert joins.is_useless(fan.request, fan.job("read", 1))


# --- joins whose predecessors fail -----------------------------------------------------------------------------------


BOTH = [
    {"name": "look", "after": []},
    {"name": "left", "after": ["look"]},
    {"name": "right", "after": ["look"]},
    {"name": "either", "after": ["left", "right"], "join": 1},
    {"name": "other", "after": ["look"]},
]


def world(*last):
    nodes = [*BOTH, *last]
    names = [node["name"] for node in nodes]
    driver = Driver(
        {name: {1: 1, "lanes": [name]} for name in names},
        {"app": nodes},
        policy="fifo",
        lane={name: {} for name in names},
    )
    driver.arrive("app")
    driver.finish("look", at=1, status="done")
    return driver


def test_what_needs_all_fails_with_it():
    driver = world({"name": "end", "after": ["either", "other"]})
    driver.finish("other", at=2)
    assert driver.finish("left", at=3, status="failed", reason="no light") == []  # the other branch may still come
    assert driver.finish("right", at=4, status="failed", reason="dark") == [ended(1, "failed", "dark")]
    driver.over()


def test_what_can_do_without_it_goes_on():
    driver = world({"name": "end", "after": ["either", "other"], "join": 1})
    driver.finish("left", at=2, status="failed", reason="no light")
    assert driver.finish("right", at=3, status="failed", reason="dark") == []
    driver.finish("other", at=4)
    assert driver.finish("end", at=5)[:1] == [ended(1, "completed")]
    driver.over()


def test_a_join_that_ends_the_app_takes_it_with_it_although_another_end_was_reached():
    driver = world()
    driver.finish("other", at=2)
    driver.finish("left", at=3, status="failed", reason="no light")
    assert driver.finish("right", at=4, status="failed", reason="dark") == [ended(1, "failed", "dark")]
    driver.over()


@pytest.mark.parametrize(("done", "starved"), [(0, True), (1, False)])
def test_parts_that_all_came_to_nothing_starve_what_gathers_them(done, starved):
    walk = Walk([node("a", fan_out=True), node("b", "a"), node("c", "b", gather=True, join="policy"), node("d", "c")])
    walk.start()
    walk.done("a", parts=2)
    if done:
        walk.done("b", 0)
    else:
        walk.skip("b", 0)
    walk.skip("b", 1)
    assert joins.is_starved(walk.request, walk.job("b", 1)) == starved


def test_a_failed_branch_fails_the_request_where_the_other_one_leads_nowhere():
    names = ("left", "look", "right", "either")
    nodes = [
        {"name": "left", "after": []},
        {"name": "look", "after": [], "route": "one"},
        {"name": "right", "after": ["look"]},
        {"name": "either", "after": ["left", "right"], "join": 1},
    ]
    driver = Driver(
        {name: {1: 1, "lanes": [name]} for name in names},
        {"app": [{"model": node["name"], **node} for node in nodes]},
        policy="fifo",
        lane={name: {} for name in names},
    )
    driver.arrive("app")
    assert driver.finish("left", at=1, status="failed", reason="no light") == []
    assert driver.finish("look", at=2, route="") == [ended(1, "failed", "no light")]
    driver.over()
