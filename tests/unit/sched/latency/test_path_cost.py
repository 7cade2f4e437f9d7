"""What requests cost: alone, and from each node on."""

from __future__ import annotations

from hand_world import MS, app_of

from edgeserve.sched.latency.distribution import timing_constant
from edgeserve.sched.latency.handover import Handover
from edgeserve.sched.latency.model import ModelLatency
from edgeserve.sched.latency.path_cost import AppCosts, batch_time_ns, least_alone_ns, share_time_ns

PARTS_LEN = 32
REFRESH_NS = 100 * MS


def latency_of(*times_ms, lane="l"):
    """A model that takes so many ms for batches of 1, 2, ... jobs."""
    seeds = {size: timing_constant(round(time_ms * MS)) for size, time_ms in enumerate(times_ms, 1)}
    return ModelLatency("m", lane, seeds, list(seeds))


def costs(nodes, times):
    """``times``: model -> lane time of one job in ms; n jobs take n times that."""
    return AppCosts(
        app_of(nodes),
        {model: [latency_of(time_ms)] for model, time_ms in times.items()},
        {model: [Handover()] for model in times},
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


def test_a_request_keeps_each_set_of_lanes_as_long_as_its_models_there_spread_over_their_lanes():
    made = AppCosts(
        app_of([node("see"), node("cut", "see"), node("read", "cut")]),
        {"see": [latency_of(4)], "cut": [latency_of(6)] * 3, "read": [latency_of(10)]},
        {model: [Handover()] for model in ("see", "cut", "read")},
        {"see": 7, "cut": 2, "read": 7},
    )
    assert dict(zip(made.lane_sets, made.kept_ns)) == {7: 14 * MS, 2: 2 * MS}
    assert [made.lane_sets[made.place_of[model]] for model in ("see", "cut", "read")] == [7, 2, 7]


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


def test_full_batches_and_a_rest_on_the_lane_that_is_fastest_for_them():
    slow, fast = latency_of(4, 5, 6, 7), latency_of(3, 6, lane="other")
    assert [batch_time_ns([slow, fast], count) // MS for count in (1, 2, 3, 4, 5, 9)] == [3, 5, 6, 7, 11, 18]
    assert share_time_ns([slow, fast]) == 7 * MS // 4
    assert share_time_ns([latency_of(0.0000001)]) == 1


def test_costs_are_made_anew_only_when_a_time_or_a_fan_out_has_changed():
    latency = latency_of(2)
    made = AppCosts(app_of([node("a")]), {"a": [latency]}, {"a": [Handover()]}, {"a": 0})
    made.alone_ns = -1  # stays until the costs are made anew
    latency.observe(0, 1, 2 * MS)  # as known
    made.refresh(REFRESH_NS)
    for now_ns in (1, 2):
        latency.observe(now_ns, 1, 8 * MS)
    made.refresh(2 * REFRESH_NS - 1)  # too early to look
    assert made.alone_ns == -1
    made.refresh(2 * REFRESH_NS)
    assert made.alone_ns == 8 * MS


def test_a_time_that_changed_and_was_forgotten_is_the_profiles_again():
    latency = latency_of(2)
    made = AppCosts(app_of([node("a")]), {"a": [latency]}, {"a": [Handover()]}, {"a": 0})
    for number in range(3):
        latency.observe(number, 1, 8 * MS)
    made.refresh(REFRESH_NS)
    assert made.alone_ns == 8 * MS
    latency.forget(10**12)
    made.refresh(2 * REFRESH_NS)
    assert made.alone_ns == 2 * MS


def measured(*took_ms, size=1, at=5, times=(50, 60, 70, 80)):
    """What was measured at this nanosecond of a model that was believed to take these times."""
    latency = latency_of(*times)
    for time_ms in took_ms:
        latency.observe(at, size, round(time_ms * MS))
    return latency


FORK = [node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c")]


def test_the_least_time_alone_is_the_longest_path_of_the_fastest_runs():
    models = {"a": [measured(1, 9)], "b": [measured(2)], "c": [measured(8, 5, 7)], "d": [measured(10)]}
    assert least_alone_ns(app_of(FORK), {}, models, 5) == 16 * MS
    assert least_alone_ns(app_of(FORK), {"other": 1.0}, models, 5) == 16 * MS


def test_what_was_not_measured_since_counts_nothing():
    models = {"a": [measured(1)], "b": [measured(2)], "c": [measured(5, at=4)], "d": [measured(3, size=2)]}
    assert least_alone_ns(app_of(FORK), {}, models, 5) == 3 * MS
    assert least_alone_ns(app_of(FORK), {"work": 9.0, "steps": 9.0}, {**models, "a": [measured()]}, 6) == 0
    lanes = {"m": [measured(5), measured(4)]}
    assert least_alone_ns(app_of("m"), {}, lanes, 5) == 4 * MS
    assert least_alone_ns(app_of("m"), {}, {"m": [*lanes["m"], measured()]}, 5) == 0, "one lane could be faster"


def test_declared_steps_parts_and_work_make_the_least_time_longer():
    alone = {"m": [measured(20)]}  # 40 of 50 are fixed
    assert least_alone_ns(app_of("m"), {"steps": 3.0}, alone, 5) == 60 * MS
    assert least_alone_ns(app_of("m"), {"steps": 0.0}, alone, 5) == 20 * MS
    assert least_alone_ns(app_of("m"), {"steps": 1e9}, alone, 5) == 1_000_000 * 20 * MS
    assert least_alone_ns(app_of("m"), {"work": 0.5}, alone, 5) == 20 * MS
    assert least_alone_ns(app_of("m"), {"work": 3.0}, alone, 5) == 20 * MS, "nothing of it is known to grow"
    grows = {"m": [measured(70)]}
    assert least_alone_ns(app_of("m"), {"work": 3.0}, grows, 5) == (70 + 2 * 30) * MS
    fan = app_of([node("cut", fan_out=True), node("read", "cut")])
    models = {"cut": [measured(1)], "read": [measured(10)]}  # four at a time
    assert [least_alone_ns(fan, {"cut.parts": parts}, models, 5) // MS for parts in (0.0, 3.0, 8.0, 13.0)] == [
        11,
        11,
        21,
        31,
    ]
    assert least_alone_ns(fan, {"cut.parts": 8.0}, {**models, "read": [measured(10), measured(10)]}, 5) == 11 * MS
    assert least_alone_ns(fan, {"cut.parts": 8.0, "read.steps": 2.0}, models, 5) == 41 * MS


def test_of_several_lanes_the_fastest_for_so_many_counts():
    slow, fast = latency_of(10, 12), latency_of(4, 40)
    assert [batch_time_ns([slow, fast], count) // MS for count in (0, 1, 2, 3, 4)] == [0, 4, 12, 22, 24]
    assert batch_time_ns([fast, slow], 2) == 12 * MS
    assert share_time_ns([slow, fast]) == share_time_ns([fast, slow]) == 6 * MS
