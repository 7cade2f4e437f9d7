"""Graphs: order, scopes and what is wrong with a wrong one."""

from __future__ import annotations

import pytest
from hand_world import app_of

from edgeserve.errors import ConfigError


def node(name, *after, **keys):
    return {"name": name, **({"after": list(after)} if after else {}), **keys}


def names(nodes):
    return [item.name for item in nodes]


def test_nodes_without_after_follow_the_one_before():
    app = app_of([node("a"), node("b"), node("c")])
    assert names(app.nodes) == ["a", "b", "c"]
    assert [names(item.preds) for item in app.nodes] == [[], ["a"], ["b"]]
    assert (names(app.entries), names(app.exits)) == (["a"], ["c"])
    assert not app.simple


def test_nodes_are_ordered_predecessors_first_then_as_in_the_file():
    app = app_of(
        [
            {"name": "last", "after": ["x", "y"]},
            {"name": "y", "after": ["in"]},
            {"name": "x", "after": ["in"]},
            {"name": "in", "after": []},
        ]
    )
    assert names(app.nodes) == ["in", "y", "x", "last"]
    assert [item.index for item in app.nodes] == [0, 1, 2, 3]


def test_only_a_single_plain_node_is_simple():
    assert app_of("m").simple
    assert not app_of([node("m", fan_out=True)]).simple
    assert not app_of([node("m", route="one")]).simple


def test_scopes_open_behind_a_fan_out_and_close_at_the_gather():
    app = app_of(
        [
            node("cut", fan_out=True),
            node("sub", fan_out=True),
            node("read"),
            node("word", gather=True),
            node("line", gather=True),
        ]
    )
    assert [(item.name, item.depth) for item in app.nodes] == [
        ("cut", 0),
        ("sub", 1),
        ("read", 2),
        ("word", 1),
        ("line", 0),
    ]
    assert names(app.by_name["sub"].closers) == ["word"]
    assert names(app.by_name["cut"].closers) == ["line"]


def test_a_gather_may_open_the_next_scope():
    app = app_of([node("cut", fan_out=True), node("again", gather=True, fan_out=True), node("join", gather=True)])
    assert [item.depth for item in app.nodes] == [0, 0, 0]
    assert names(app.by_name["again"].closers) == ["join"]


WRONG = [
    ([node("a"), node("a")], ["two nodes named 'a'", "rename one"]),
    ([node("a"), node("b", "detct")], ["node 'b' after = 'detct' does not exist", "known: a, b"]),
    ([node("a"), node("b", "a", "a")], ["node 'b' names a predecessor twice", "['a', 'a']"]),
    ([node("a", "c"), node("b", "a"), node("c", "b")], ["cycle through a, b, c", "'after' entries away"]),
    ([node("a"), node("b", gather=True)], ["node 'b' has gather = true but no fan-out is open", "fan_out = true"]),
    ([node("a", fan_out=True, route="one"), node("b")], ["node 'a' has fan_out and route = 'one'", "node of its own"]),
    ([node("a"), node("b", join=2)], ["node 'b' join = 2", "only 1 predecessors"]),
    (
        [node("a", fan_out=True), node("b", "a"), {"name": "c", "after": []}, node("d", "b", "c")],
        ["node 'd' joins b, c", "gather the parts first"],
    ),
]


@pytest.mark.parametrize(("nodes", "words"), WRONG)
def test_a_wrong_graph_names_the_app_the_node_and_the_mend(nodes, words):
    with pytest.raises(ConfigError) as caught:
        app_of(nodes, "reader")
    for word in ["[app.reader]", *words]:
        assert word in str(caught.value)


def test_a_gather_may_join_more_parts_than_it_has_predecessors():
    app = app_of([node("cut", fan_out=True), node("read"), node("vote", gather=True, join=3)])
    assert app.by_name["vote"].join == 3


def test_hints_beyond_their_bound_count_as_much_as_that_and_others_as_they_are():
    app = app_of("m")
    steps, work = app.hint_bounds["steps"], app.hint_bounds["work"]
    assert app.bounded({"steps": steps + 1}) == {"steps": steps}
    assert app.bounded({"steps": 3, "m.work": work * 2, "mine": 1e12}) == {"steps": 3, "m.work": work, "mine": 1e12}
    within = {"steps": steps, "work": work, "mine": 1e12}
    assert app.bounded(within) is within
