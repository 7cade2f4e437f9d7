"""What requests cost: alone, and from each node on."""

from __future__ import annotations

from hand_world import MS, app_of

from edgeserve.sched.latency.path_cost import PARTS_LEN, REFRESH_NS, AppCosts


def costs(nodes, times):
    """``times``: model -> lane time of one job in ms; n jobs take n times that."""
    return AppCosts(app_of(nodes), lambda model, count: times[model] * count * MS,
                    lambda model: times[model] * MS // 2)


def node(name, *after, **keys):
    return {"name": name, "after": list(after), **keys}


def test_rests_are_the_longest_path_and_lane_time_counts_every_branch():
    made = costs([node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c")], {"a": 1, "b": 2, "c": 5, "d": 10})
    assert made.rest_ns == {"a": 15 * MS, "b": 10 * MS, "c": 10 * MS, "d": 0}
    assert made.rest_lane_ns == {"a": 17 * MS, "b": 10 * MS, "c": 10 * MS, "d": 0}
    assert made.alone_ns == 18 * MS
    assert made.cost_share_ns == 9 * MS  # a full batch takes half as long per job here


def test_fan_outs_are_predicted_by_the_mean_of_those_seen_rounded_up():
    made = costs([node("cut", fan_out=True), node("read", "cut"), node("join", "read", gather=True)],
                 {"cut": 1, "read": 2, "join": 3})
    assert made.alone_ns == 6 * MS
    cut = made.app.by_name["cut"]
    made.observe_parts(cut, 2)
    made.observe_parts(cut, 5)
    made.refresh(REFRESH_NS - 1)
    assert made.alone_ns == 6 * MS  # not yet
    made.refresh(REFRESH_NS)
    assert (made.rest_ns["cut"], made.alone_ns) == (11 * MS, 12 * MS)
    for _ in range(PARTS_LEN):
        made.observe_parts(cut, 10)
    made.refresh(2 * REFRESH_NS)
    assert made.rest_ns["read"] == 3 * MS
    assert made.rest_ns["cut"] == 23 * MS


def test_nested_fan_outs_multiply_and_one_that_makes_nothing_counts_one():
    made = costs([node("page", fan_out=True), node("line", "page", fan_out=True), node("read", "line")],
                 {"page": 1, "line": 1, "read": 1})
    made.observe_parts(made.app.by_name["page"], 3)
    made.observe_parts(made.app.by_name["line"], 4)
    made.refresh(REFRESH_NS)
    assert made.rest_lane_ns["page"] == (3 + 12) * MS
    made.observe_parts(made.app.by_name["line"], 0)
    for _ in range(PARTS_LEN):
        made.observe_parts(made.app.by_name["page"], 0)
    made.refresh(2 * REFRESH_NS)
    assert made.rest_lane_ns["page"] == 2 * MS
