"""PARD's state planner: quantiles of waits, windows, the load factor and its delayed turns, sums over graphs."""

from __future__ import annotations

import random

import pytest

from edgeserve.config.schema import AppConfig, NodeConfig
from edgeserve.sched.policies.published.pard.state_planner import (
    PATHS_MAX,
    LoadFactor,
    Planner,
    models_of,
    paths_behind,
)
from edgeserve.sched.policies.published.pard.waits import COLUMNS_MAX, KEPT_MAX, PPM, Waits, rank_of, weighted_mean_ns
from edgeserve.sched.policies.published.pard.worker import window_start
from edgeserve.sched.requests.graph import App

S = 10**9
MS = 10**6


# --- waits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "quantile"), [(1, 0.10), (2, 0.447), (3, 0.843), (4, 1.245)])
def test_the_tenth_of_sums_of_uniform_waits_is_the_papers_example(count, quantile):
    waits = Waits("uniform", 0.1, 10_000, 4, seed=1)
    assert waits.quantile_ns(["m"] * count, [PPM] * count) / PPM == pytest.approx(quantile, abs=0.02)


def test_the_quantile_lies_between_nothing_and_everything():
    times = [3 * MS, 5 * MS, 7 * MS]
    found = [Waits("uniform", lam, 2000, 3, seed=1).quantile_ns("abc", times) for lam in (0.0, 0.1, 0.5, 0.9, 1.0)]
    assert found[0] == 0 and found[-1] == sum(times)
    assert found == sorted(found)
    assert found[2] == pytest.approx(sum(times) / 2, rel=0.05)
    assert Waits("uniform", 0.1, 100, 3, seed=1).quantile_ns([], []) == 0


def test_equal_seeds_draw_equal_quantiles():
    one, other, third = (Waits("uniform", 0.1, 500, 2, seed).quantile_ns("ab", [MS, 2 * MS]) for seed in (1, 1, 2))
    assert one == other != third


def test_observed_waits_are_drawn_again():
    waits = Waits("empirical", 0.5, 4000, 2, seed=1)
    assert waits.quantile_ns("ab", [9, 9]) == 0  # nothing seen: nothing to wait for
    for value in range(1000):
        waits.observe(value, "a", value * 1000)
        waits.observe(value, "b", 5 * MS)
    assert waits.quantile_ns("a", [9]) == pytest.approx(500_000, rel=0.05)
    assert waits.quantile_ns("ab", [9, 9]) == pytest.approx(5_500_000, rel=0.02)


def test_joint_sums_are_of_those_that_passed_the_whole_path():
    waits = Waits("joint", 0.5, 100, 2, seed=1)
    assert waits.quantile_ns("ab", [9, 9]) == 0  # nobody passed it yet
    for number in range(9):
        waits.observe(number, "a", number)
        if number < 5:
            waits.observe(number, "b", 100)
    assert waits.quantile_ns("ab", [9, 9]) == 102
    assert waits.quantile_ns("a", [9]) == 4


@pytest.mark.parametrize(("columns", "drawn"), [(0, 1), (1, 1), (3, 3), (COLUMNS_MAX, 64), (COLUMNS_MAX + 1, 64)])
def test_beyond_the_modules_of_the_longest_path_draws_repeat(columns, drawn):
    waits = Waits("uniform", 0.5, 200, columns, seed=1)
    alone = waits.quantile_ns(["m"], [MS])
    for place in range(1, drawn + 1):
        last_ns = waits.quantile_ns(["m"] * (place + 1), [0] * place + [MS])
        assert (last_ns == alone) == (place == drawn)


@pytest.mark.parametrize("estimator", ["empirical", "joint"])
def test_so_many_observed_waits_are_looked_back_on(estimator):
    waits = Waits(estimator, 1.0, 100_000, 1, seed=1)
    waits.observe(0, "m", 5 * MS)
    for number in range(1, KEPT_MAX):
        waits.observe(number, "m", 7)
    assert KEPT_MAX == 10_000 and waits.quantile_ns("m", [9]) == 5 * MS
    waits.observe(KEPT_MAX, "m", 7)
    assert waits.quantile_ns("m", [9]) == 7


def test_the_rank_of_a_quantile():
    assert [rank_of(share, 10) for share in (0, 1, 100_000, 100_001, 500_000, PPM)] == [0, 0, 0, 1, 4, 9]


def test_a_sample_weighs_less_the_older_it_is():
    samples = [(0, 100), (4 * S, 10), (5 * S, 40)]
    assert weighted_mean_ns(samples, 5 * S, 5 * S) == (0 * 100 + 4 * 10 + 5 * 40) // 9
    assert weighted_mean_ns(samples, 50 * S, 5 * S) == 0  # an empty window means nothing waits, not what once did
    assert weighted_mean_ns([], 0, 5 * S) == 0


# --- load factor ------------------------------------------------------------------------------------------------------


def test_the_order_turns_late_both_ways():
    load = LoadFactor()
    turns = []
    for rate in (90, 90, 90, 90, 90, 110, 104, 104, 104, 104, 101, 99, 99, 99, 99, 99, 85):
        load.observe(rate * 1000, 100 * 1000)
        turns.append(load.high)
    #        steady below: no    jumps: 1.10 is not above 1 + eps at once; 0.99 is above 1 - eps: it stays
    assert turns[:5] == [False] * 5
    assert turns[5] is True  # eps is 16 of 560, so 0.029
    assert turns[6:16] == [True] * 10
    assert turns[16] is False


def test_what_jumps_much_turns_late_and_instant_at_once():
    jumpy, instant = LoadFactor(), LoadFactor(instant=True)
    for rate in (50, 150, 50, 150, 50, 110):
        for load in (jumpy, instant):
            load.observe(rate * 1000, 100 * 1000)
    assert jumpy.eps_ppm() > 300_000 and jumpy.high is False
    assert instant.eps_ppm() == 0 and instant.high is True


def test_nothing_arriving_ends_the_high_order():
    load = LoadFactor()
    load.observe(150_000, 100_000)
    assert load.high
    load.observe(0, 100_000)
    assert not load.high


def test_pard_plus_turns_only_when_the_load_is_clearly_too_high():
    load = LoadFactor(1.05, 1.05)
    for rate, high in ((103, False), (103, False), (112, True), (103, False)):
        load.observe(rate * 1000, 100 * 1000)
        assert load.high is high, rate


@pytest.mark.parametrize("seed", range(30))
def test_the_order_turns_as_the_last_rates_say(seed):
    draw = random.Random(f"load {seed}")
    high_from, low_from = draw.choice([(1.0, 1.0), (1.05, 1.05), (1.2, 0.8)])
    load, rates, high, capacity = LoadFactor(high_from, low_from), [], False, draw.randrange(1000, 9000)
    for _ in range(30):
        rates.append(0 if draw.random() < 0.05 else round(capacity * draw.uniform(0.7, 1.4)))
        load.observe(rates[-1], capacity)
        jumps = [
            abs(rate - sum(rates[max(0, at - 4) : at + 1]) // len(rates[max(0, at - 4) : at + 1]))
            for at, rate in enumerate(rates)
        ]
        eps = sum(jumps[-10:]) / sum(rates[-10:]) if any(rates[-10:]) else 0.0
        assert load.eps_ppm() == int(eps * PPM)
        if rates[-1] == 0 or rates[-1] / capacity < low_from - eps:
            high = False
        elif rates[-1] / capacity > high_from + eps:
            high = True
        assert load.high is high


def test_the_order_stays_at_the_bounds_themselves():
    load = LoadFactor(instant=True)
    for rate, high in ((100, False), (101, True), (100, True), (99, False)):
        load.observe(rate, 100)
        assert load.high is high


# --- the planner ------------------------------------------------------------------------------------------------------


def app_of(*nodes):
    made = tuple(NodeConfig(name=name, model=name, after=after) for name, after in nodes)
    return App(AppConfig(name="app", nodes=made), "pard")


DA = app_of(
    ("person", ()),
    ("pose", ("person",)),
    ("face", ("person",)),
    ("expression", ("pose", "face")),
    ("eye", ("expression",)),
)


def planner_of(app, rest, lam=0.0, worst=False, **times_ms):
    load = {model: LoadFactor() for model in models_of([app])}
    planner = Planner(
        [app],
        load,
        Waits("uniform", lam, 1000, 4, 1),
        rest,
        period_ns=S,
        window_ns=5 * S,
        threshold_ns=20 * MS,
        worst=worst,
    )
    for model, module in planner.modules.items():
        module.sizes = {"l": 5}
        module.set_times({"l": times_ms[model] * MS}, ["l"])
    planner.begin(0)
    return planner


TIMES = {"person": 80, "pose": 64, "face": 42, "expression": 30, "eye": 35}


def test_the_rest_is_the_longest_path():
    planner = planner_of(DA, "d", **TIMES)
    assert planner.batches_ns == planner.rest_ns
    rest = {node.name: planner.rest_ns[node] // MS for node in DA.nodes}
    assert rest == {"person": 64 + 30 + 35, "pose": 65, "face": 65, "expression": 35, "eye": 0}


def test_queues_count_and_may_change_which_path_is_longest():
    planner = planner_of(DA, "qd", **TIMES)
    for _ in range(3):
        planner.modules["face"].admitted(S, 40 * MS)
    planner.sync(S)
    assert planner.modules["face"].queue_ns == 40 * MS
    assert planner.rest_ns[DA.by_name["person"]] == (42 + 40 + 30 + 35) * MS
    planner.sync(7 * S)
    assert planner.modules["face"].queue_ns == 0
    assert planner.rest_ns[DA.by_name["person"]] == 129 * MS


def test_the_longest_waits_count_each_batch_twice():
    planner = planner_of(DA, "qdd", **TIMES)
    assert planner.rest_ns[DA.by_name["person"]] == 2 * 129 * MS


def test_a_module_is_as_fast_as_the_lanes_that_are_up():
    module = planner_of(DA, "d", **TIMES).modules["face"]
    module.sizes = {"fast": 5, "slow": 5}
    module.set_times({"fast": 50 * MS, "slow": 100 * MS}, ["fast", "slow"])
    assert (module.time_ns, module.capacity) == (75 * MS, 150_000)
    module.set_times({"fast": 50 * MS, "slow": 100 * MS}, ["fast"])
    assert (module.time_ns, module.capacity) == (50 * MS, 100_000)
    module.set_times({"fast": 50 * MS, "slow": 100 * MS}, [])
    assert (module.time_ns, module.capacity) == (75 * MS, 0)


def test_shares_follow_batch_times_or_the_worst_latencies_dropped_ones_too():
    planner = planner_of(DA, "none", **TIMES)
    assert planner.share[DA.by_name["face"]] == (42 * MS, (80 + 64 + 30 + 35) * MS)
    assert planner.share[DA.by_name["eye"]] == (35 * MS, (80 + 64 + 30 + 35) * MS)
    planner = planner_of(DA, "none", worst=True, **TIMES)
    planner.modules["face"].tested(0, 300 * MS)
    planner.sync(S)
    assert planner.share[DA.by_name["face"]] == (300 * MS, (80 + 300 + 30 + 35) * MS)


def test_shares_are_of_a_nanosecond_at_least_where_requests_leave_at_once():
    one = app_of(
        ("person", ()),
    )
    planner = planner_of(one, "none", worst=True, person=80)
    planner.modules["person"].tested(0, 0)
    planner.sync(S)
    assert planner.share[one.nodes[0]] == (0, 1)
    planner.modules["person"].tested(S, 1)
    planner.sync(2 * S)
    assert planner.share[one.nodes[0]] == (1, 1)


def test_the_load_counts_what_came_before_it_was_dropped_and_waits_for_enough_of_it():
    planner = planner_of(DA, "none", **TIMES)
    module = planner.modules["person"]  # one lane: 62.5 a second
    module.arrived = 40
    planner.sync(S)
    assert module.arrived == 40 and not module.load.high  # too few to tell: the bucket stays open
    module.arrived = 200
    planner.sync(2 * S)
    assert module.arrived == 0 and module.load.high


@pytest.mark.parametrize(("arrived", "periods", "closed"), [(49, 9, 0), (50, 1, 1), (49, 10, 1), (1, 10, 1), (0, 3, 3)])
def test_a_bucket_of_the_load_holds_fifty_arrivals_or_ten_periods(arrived, periods, closed):
    planner = planner_of(DA, "none", **TIMES)
    module = planner.modules["person"]
    module.arrived = arrived
    for period in range(1, periods + 1):
        planner.sync(period * S)
    assert list(module.load._rates) == [arrived * 1000 // periods] * closed
    assert module.arrived == (0 if closed else arrived)


def test_a_module_is_overloaded_when_its_requests_waited_for_more_than_the_threshold():
    planner = planner_of(DA, "none", **TIMES)
    module = planner.modules["person"]
    for at, delays, overloaded in ((1, (10, 30), False), (2, (10, 31), True), (3, (), False), (4, (21,), True)):
        for delay in delays:
            module.admitted(at * S, delay * MS)
        planner.sync(at * S)
        assert module.overloaded is overloaded


def test_samples_count_to_the_end_of_the_window_and_no_longer():
    planner = planner_of(DA, "none", worst=True, **TIMES)
    module = planner.modules["face"]
    module.tested(0, 300 * MS)
    module.ran(0, 90 * MS)
    planner.sync(1)
    assert (module.worst_ns(), module.time_ns) == (300 * MS, 90 * MS)
    planner.sync(5 * S)
    assert (module.worst_ns(), module.took_ns) == (300 * MS, 0)
    planner.sync(5 * S + 1)
    assert module.worst_ns() == module.time_ns == 90 * MS  # what ran last stays where nothing has run since


def test_what_a_job_adds_is_the_mean_of_the_lanes_that_are_up():
    module = planner_of(DA, "d", **TIMES).modules["face"]
    module.sizes = {"fast": 5, "slow": 4}
    times, fixed = {"fast": 50 * MS, "slow": 100 * MS}, {"fast": 10 * MS, "slow": 20 * MS}
    for up, each_ms in ((["fast", "slow"], 14), (["fast"], 8), ([], 14)):
        module.set_times(times, up, fixed_ns=fixed)
        assert module.each_ns == each_ms * MS
    module.set_times(times, ["slow"], fixed_ns={"slow": 101 * MS})
    assert module.each_ns == 0
    module.sizes = {"fast": 5, "slow": 1}
    module.set_times(times, ["slow"], fixed_ns={"slow": 100 * MS})
    assert module.each_ns == 0
    module.set_times(times, ["fast"])
    assert module.each_ns == 10 * MS
    module.set_times(times, ["fast"], alone_ns={"fast": 20 * MS, "slow": 40 * MS})
    assert module.time_ns == 20 * MS and module.capacity == 100_000
    module.took_ns = 33 * MS
    module.set_times(times, ["fast"], alone_ns={"fast": 20 * MS, "slow": 40 * MS})
    assert module.time_ns == 33 * MS
    module.set_times(times, ["fast"])
    assert module.time_ns == 50 * MS


def test_a_graph_of_too_many_paths_has_its_longest_path_looked_at_alone():
    counts = {node.name: count for node, count in paths_behind([DA]).items()}
    assert counts == {"person": 2, "pose": 1, "face": 1, "expression": 1, "eye": 1}
    layers = [("n0", ())]
    for layer in range(5):
        before = tuple(name for name, _ in layers if name.startswith(f"l{layer - 1}") or layer == 0)
        layers += [(f"l{layer}{index}", before) for index in range(4)]
    wide = app_of(*layers)
    assert paths_behind([wide])[wide.by_name["n0"]] == 4**5 > PATHS_MAX
    planner = planner_of(wide, "qd", **{node.name: 10 + node.index for node in wide.nodes})
    assert planner.rest_ns[wide.by_name["n0"]] == sum(10 + 4 * layer for layer in range(1, 6)) * MS


def test_the_first_window_in_which_nobody_is_late():
    assert window_start([False, False, False], 2) == 0
    assert window_start([False, True, False, False], 2) == 2
    assert window_start([True, True, False], 2) == 2  # a shorter window at the end counts
    assert window_start([False, False, True], 2) == 0  # the third is not looked at
    assert window_start([True, True], 5) == 2
    assert window_start([], 5) == 0
