"""The cost of requests: alone, and from each node on."""

from __future__ import annotations

import pytest
from hand_world import MS, app_of

from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.latency.lane_gaps import DispatchGap
from edgeserve.sched.latency.path_cost import AppCosts, least_alone_ns
from edgeserve.sched.latency.timings import timing_constant

PARTS_LEN = 32
TIMES = {"cut": 1, "read": 2, "sum": 3}
REFRESH_NS = 100 * MS


def latency_of(*times_ms, lane="l"):
    """A model that takes so many ms for batches of 1, 2, ... jobs."""
    seeds = {size: timing_constant(round(time_ms * MS)) for size, time_ms in enumerate(times_ms, 1)}
    return BatchTime("m", lane, seeds, list(seeds))


def costs(nodes, times):
    """``times``: model -> lane time of one job in ms; n jobs take n times that."""
    return AppCosts(
        app_of(nodes),
        {model: [latency_of(time_ms)] for model, time_ms in times.items()},
        {model: [DispatchGap()] for model in times},
        dict.fromkeys(times, 0),
    )


def node(name, *after, **keys):
    return {"name": name, "after": list(after), **keys}


def test_rests_are_the_longest_path_and_lane_time_counts_every_branch():
    made = costs([node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c")], {"a": 1, "b": 2, "c": 5, "d": 10})
    assert made.rest_ns == {"a": 15 * MS, "b": 10 * MS, "c": 10 * MS, "d": 0}
    assert made.rest_lane_ns == {"a": 17 * MS, "b": 10 * MS, "c": 10 * MS, "d": 0}
    assert made.alone_ns == 18 * MS
    assert made.cost_share_ns == 18 * MS


def test_what_a_request_takes_itself_goes_by_what_it_declares():
    made = costs([node("cut", fan_out=True), node("read", "cut"), node("sum", "read", gather=True)], TIMES)
    assert made.own_share_ns({}) == made.cost_share_ns == 6 * MS
    assert made.own_share_ns({"cut.parts": 4}) == 12 * MS
    assert made.own_share_ns({"sum.steps": 5}) == 18 * MS
    assert made.own_share_ns({"work": 0.5}) == 3 * MS
    assert made.own_share_ns({"work": 0.5, "read.work": 10.0}) == 22 * MS


def test_work_scales_what_grows_with_it_and_not_the_fixed_part_of_a_batch():
    latency = latency_of(3, 4)  # 2 ms and 1 ms for each job: 2 ms of a full batch
    made = AppCosts(app_of([node("a")]), {"a": [latency]}, {"a": [DispatchGap()]}, {"a": 0})
    assert made.own_share_ns({"work": 3.0}) == pytest.approx(4 * MS, rel=0.01)


def test_a_length_counts_beside_the_usual_one_and_no_further_than_the_app_lets_work_count():
    made = costs([node("a")], {"a": 10})
    assert [made.own_share_ns({"length": 40.0}) for _ in range(50)][-1] == 10 * MS
    assert made.own_share_ns({"length": 80.0}) == pytest.approx(20 * MS, rel=0.05)
    made.app.hint_bounds["work"] = 3.0
    assert made.own_share_ns({"length": 1e9}) == 30 * MS


def test_fan_outs_are_predicted_by_the_mean_of_those_seen_rounded_up():
    made = costs(
        [node("cut", fan_out=True), node("read", "cut"), node("join", "read", gather=True)],
        {"cut": 1, "read": 2, "join": 3},
    )
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
    made = costs(
        [node("page", fan_out=True), node("line", "page", fan_out=True), node("read", "line")],
        {"page": 1, "line": 1, "read": 1},
    )
    made.observe_parts(made.app.by_name["page"], 3)
    made.observe_parts(made.app.by_name["line"], 4)
    made.refresh(REFRESH_NS)
    assert made.rest_lane_ns["page"] == (3 + 12) * MS
    made.observe_parts(made.app.by_name["line"], 0)
    for _ in range(PARTS_LEN):
        made.observe_parts(made.app.by_name["page"], 0)
    made.refresh(2 * REFRESH_NS)
    assert made.rest_lane_ns["page"] == 2 * MS


def measured(*took_ms, size=1, at=5, times=(50, 60, 70, 80)):
    """A measurement at this nanosecond of a model with these expected times."""
    latency = latency_of(*times)
    for time_ms in took_ms:
        latency.observe(at, size, round(time_ms * MS))
    return latency


FORK = [node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c")]


def test_the_least_time_alone_is_the_longest_path_of_the_fastest_runs():
    models = {"a": [measured(1, 9)], "b": [measured(2)], "c": [measured(8, 5, 7)], "d": [measured(10)]}
    assert least_alone_ns(app_of(FORK), {}, models, 5) == 16 * MS
    assert least_alone_ns(app_of(FORK), {"other": 1.0}, models, 5) == 16 * MS


def test_the_least_time_alone_counts_the_batches_that_the_parts_of_a_request_need():
    app = app_of([node("cut", fan_out=True), node("read", "cut"), node("join", "read", gather=True)])
    models = {"cut": [measured(1)], "read": [measured(2)], "join": [measured(3)]}
    assert least_alone_ns(app, {"cut.parts": 12.0}, models, 5) == (1 + 3 * 2 + 3) * MS, "in batches of four"
    models["read"] *= 3
    assert least_alone_ns(app, {"cut.parts": 12.0}, models, 5) == (1 + 2 + 3) * MS, "one on each of three lanes"
