"""Where the models of ensembles run: which plan together, what a batch takes there and when a lane is free."""

from __future__ import annotations

import pytest
from hand_world import MS, Driver, job

from edgeserve.sched.policies.ensemble.lanes import NEVER_NS, STALE, Places, ends_at_ns, places_of, with_handovers
from edgeserve.sched.policies.ensemble.planner import Planner
from edgeserve.sched.policies.ensemble.problem import Lanes
from edgeserve.sched.policies.ensemble.queries import Query


def make(models, apps, **sections):
    """``models``: name -> (its lanes, {batch: ms}); ``apps``: name -> its models. A vote on a lane of its own each."""
    table = {name: {**times, "lanes": list(lanes)} for name, (lanes, times) in models.items()}
    graphs = {}
    for name, branches in apps.items():
        table[f"vote_{name}"] = {1: 1, "lanes": ["v"]}
        graphs[name] = [
            *({"name": branch, "after": []} for branch in branches),
            {"name": f"vote_{name}", "after": list(branches), "join": "policy"},
        ]
    lanes = sorted({lane for item in table.values() for lane in item["lanes"]})
    world = Driver(table, graphs, policy={"schemble+": {}}, lane={name: {} for name in lanes}, **sections)
    world.step(at=0)
    return world


def ensembles(world):
    return list(world.scheduler.policies[0]._ensembles.values())


def places(world):
    """All ensembles as if they planned together."""
    return Places(ensembles(world), world.scheduler.state.board, Planner())


def query(world, app):
    found = world.scheduler.policies[0]._ensembles[app]
    return Query(job(1, found.app, node=found.nodes[0].name).request, found, 90 * MS)


def one(lanes):
    return (lanes, {1: 10})


FOUR = {"a": one("l"), "b": one("n"), "c": one("lm"), "d": one("o")}


@pytest.mark.parametrize(
    ("apps", "together"),
    [
        ({"p": "ab", "q": "cd"}, [{"p", "q"}]),
        ({"p": "ab", "q": "d", "r": "c"}, [{"p", "r"}, {"q"}]),
        ({"p": "a", "q": "b", "r": "d"}, [{"p"}, {"q"}, {"r"}]),
    ],
)
def test_ensembles_that_may_use_a_common_lane_are_planned_together(apps, together):
    apps = {name: branches + f"{name}" for name, branches in apps.items()}  # and a model on a lane of its own
    world = make({**FOUR, **{name: one(name + name) for name in apps}}, apps)
    found = places_of(ensembles(world), world.scheduler.state.board, 123)
    assert [item.apps for item in found] == together
    assert {item.planner.cells_max for item in found} == {123}


def test_a_later_ensemble_brings_earlier_ones_together():
    world = make({**FOUR, "e": one("n"), "f": one("o")}, {"p": "ab", "q": "df", "r": "ce"})
    found = places_of(ensembles(world), world.scheduler.state.board, 1)
    assert [item.apps for item in found] == [{"p", "r"}, {"q"}]
    world = make(
        {"a": one("l"), "b": one("k"), "c": one("m"), "d": one("n"), "e": one("kn"), "f": one("o")},
        {"p": "ab", "q": "cd", "r": "ef"},
    )
    assert [item.apps for item in places_of(ensembles(world), world.scheduler.state.board, 1)] == [{"p", "q", "r"}]


@pytest.mark.parametrize(
    ("lanes", "place_of", "place_lanes"),
    [
        (("l", "n", "l"), (0, 1, 0), [["l"], ["n"]]),
        (("l", "m", "lm"), (0, 0, 0), [["l", "m"]]),
        (("o", "l", "n", "lm"), (0, 1, 2, 1), [["o"], ["l", "m"], ["n"]]),
        (("l", "m", "n", "no", "lm"), (0, 0, 1, 1, 0), [["l", "m"], ["n", "o"]]),
    ],
)
def test_models_that_may_use_a_common_lane_are_at_one_place(lanes, place_of, place_lanes):
    names = "abcde"[: len(lanes)]
    world = make(dict(zip(names, map(one, lanes))), {"q": names})
    found = places(world)
    assert (found.place_of, found.count, found.models) == (place_of, len(place_lanes), tuple(names))
    assert [[lane.name for lane in found.lanes(place)] for place in range(found.count)] == place_lanes


def test_models_are_numbered_over_all_ensembles_that_plan_together():
    world = make({**FOUR, "e": one("n"), "f": one("l")}, {"p": "abf", "q": "dec"})
    found, first, second = places(world), query(world, "p"), query(world, "q")
    assert found.numbers == {"p": (0, 1, 2), "q": (3, 4, 5)}
    assert [found.number(first, bit) for bit in range(3)] == [0, 1, 2]
    assert [found.number(second, bit) for bit in range(3)] == [3, 4, 5]
    assert [found.is_shared(first, bit) for bit in range(3)] == [True, False, True]  # a and f run on one lane
    assert [found.is_shared(second, bit) for bit in range(3)] == [False, False, False]  # beside those of the other app
    assert (found.size, found.is_stale) == (1, True)


# --- times ------------------------------------------------------------------------------------------------------------


def test_a_request_among_many_takes_its_part_of_a_full_batch_on_the_fastest_lane():
    world = make({"a": ("lm", {1: 10, 4: 20}), "b": one("n")}, {"q": "ab"})
    found, board = places(world), world.scheduler.state.board
    board.latency("a", "m").typical_ns = {1: 10 * MS, 4: 16 * MS}
    assert [found.share_ns(index, board) for index in range(2)] == [4 * MS, 10 * MS]


def test_the_batch_that_holds_those_who_wait_is_one_of_the_lane_that_is_fastest_alone():
    world = make({"a": ("lm", {2: 10, 4: 20, 8: 30}), "b": one("n")}, {"q": "ab"})
    found, board = places(world), world.scheduler.state.board
    board.latency("a", "m").typical_ns = {2: 9, 4: 21, 8: 31}
    assert [found.block_ns(0, waiting, board) for waiting in (0, 1, 2, 3, 4, 7, 8, 50)] == [
        (9, 2),
        (9, 2),
        (9, 2),
        (9, 2),
        (21, 4),
        (21, 4),
        (31, 8),
        (31, 8),
    ]


def test_what_ensembles_ask_of_a_place():
    """Eleven requests, one in 100 ms: on two lanes 10 ms or 10 + 30 each, beside 20 ms of the other app's."""
    world = make(
        {"a": one("lm"), "b": ("m", {1: 30}), "c": one("n"), "d": ("l", {1: 20}), "e": one("n")},
        {"p": "abc", "q": "de"},
    )
    found, board = places(world), world.scheduler.state.board
    for app, period in (("p", 100), ("q", 50)):
        board.recent_arrivals(app).unread += [(at * period * MS, 10.0, 1.0, 100.0) for at in range(11)]
    board.now_ns = 1000 * MS
    assert found.asked(0, True, board) == pytest.approx((0.01 * 40 + 0.01 * 20) / 2)
    assert found.asked(0, False, board) == pytest.approx((0.01 * 10 + 0.01 * 20) / 2)
    assert found.asked(1, True, board) == found.asked(1, False, board) == pytest.approx(0.01 * 10 + 0.01 * 10)


def test_a_lane_that_is_up_and_does_not_hang_may_start_a_work():
    world = make({"a": one("l"), "b": one("m")}, {"q": "ab"})
    found, board = places(world), world.scheduler.state.board
    first, second = found.lanes(0)[0], found.lanes(1)[0]
    assert found.may_start(board)
    first.up = False
    assert found.may_start(board)
    second.hung = True
    assert not found.may_start(board)


@pytest.mark.parametrize(
    ("batch", "is_typical", "times", "sizes"),
    [
        (1, False, (12, 30), (1, 1)),
        (1, True, (8, 25), (1, 1)),
        (2, True, (16, 50), (2, 2)),
        (3, False, (19, 60), (3, 2)),
        (4, False, (19, 60), (4, 2)),
        (9, True, (22, 50), (8, 2)),
    ],
)
def test_a_batch_takes_what_it_takes_on_the_fastest_lane(batch, is_typical, times, sizes):
    world = make({"a": ("lm", {1: 10, 2: 15, 4: 20, 8: 30}), "b": ("n", {1: 10, 2: 20})}, {"q": "ab"})
    found, board = places(world), world.scheduler.state.board
    slow, fast, other = board.latency("a", "l"), board.latency("a", "m"), board.latency("b", "n")
    fast.likely_ns, slow.likely_ns = {1: 12, 2: 18, 4: 24, 8: 36}, {1: 13, 2: 18, 4: 19, 8: 40}
    fast.typical_ns, slow.typical_ns = {1: 9, 2: 16, 4: 20, 8: 22}, {1: 8, 2: 18, 4: 21, 8: 33}
    other.likely_ns, other.typical_ns = {1: 30, 2: 60}, {1: 25, 2: 50}
    for latency in (slow, fast, other):
        latency.observed_ns = board.now_ns
    lanes = found.problem(board, {}, batch, is_typical)
    assert (lanes.times_ns, lanes.sizes, lanes.lane_of) == (times, sizes, (0, 1))


def test_no_batch_takes_less_than_a_nanosecond():
    world = make({"a": one("l"), "b": one("m")}, {"q": "ab"})
    board = world.scheduler.state.board
    board.latency("a", "l").likely_ns = {1: 0}
    board.latency("b", "m").likely_ns = {1: 1}
    assert places(world).problem(board, {}).times_ns == (1, 1)


def test_a_lane_is_free_behind_its_works_and_its_part_of_what_is_committed():
    world = make({"a": one("lm"), "b": one("n")}, {"q": "ab"})
    world.arrive("q")  # the fastest runs
    found, board = places(world), world.scheduler.state.board
    board.now_ns = 4 * MS
    (busy, idle), (own,) = found.lanes(0), found.lanes(1)
    assert found.problem(board, {}).free_ns == ((4 * MS, 10 * MS), (4 * MS,))
    assert found.problem(board, {0: 7, 1: 3}).free_ns == ((4 * MS + 3, 10 * MS + 3), (4 * MS + 3,))
    idle.hung = True
    assert found.problem(board, {0: 7}).free_ns == ((10 * MS + 7,), (4 * MS,))
    own.up = False
    assert found.problem(board, {0: 7, 1: 3}).free_ns == ((10 * MS + 7,), (NEVER_NS,))
    assert [found.resident_at_ns(index, board) for index in range(2)] == [4 * MS, NEVER_NS]
    busy.hung = True
    assert found.resident_at_ns(0, board) == NEVER_NS


def test_a_model_that_has_to_be_loaded_ends_after_its_load():
    world = make(
        {"a": ("lm", {1: 10, "memory": "90MB", "load": "40ms"}), "b": one("n")},
        {"q": "ab"},
        device={"cpu": {"memory": "200MB"}},
        resident={"cpu": ["b", "vote_q"]},
    )
    found, board = places(world), world.scheduler.state.board
    lanes = found.problem(board, {0: 14 * MS, 1: 3 * MS})
    assert [found.resident_at_ns(index, board) for index in range(2)] == [40 * MS, 0]
    assert found.ends_ns(lanes, board) == [50 * MS, 13 * MS]


def test_one_batch_ends_behind_what_is_on_the_first_lane_that_is_free_and_its_load():
    lanes = Lanes((0, 1), (10, 25), ((30, 50), (7,)), (1, 1))
    assert [ends_at_ns(lanes, 0, at) for at in (0, 30, 31, 60)] == [40, 40, 41, 70]
    assert [ends_at_ns(lanes, 1, at) for at in (0, 7, 8)] == [32, 32, 33]


def test_handovers_lengthen_batches_but_not_the_first_of_a_lane():
    lanes = Lanes((0, 1, 0), (10, 25, 5), ((30, 50), (7,)), (1, 2, 4))
    assert with_handovers(lanes, [0, 0]) is lanes
    assert with_handovers(lanes, [0, 3]) == Lanes((0, 1, 0), (10, 28, 5), ((30, 50), (4,)), (1, 2, 4))
    assert with_handovers(lanes, [2, 3]) == Lanes((0, 1, 0), (12, 28, 7), ((28, 48), (4,)), (1, 2, 4))


# --- models that were not measured lately -----------------------------------------------------------------------------


def thawed(ages, told=(10, 20, 10, 10), times=(12, 90, 90, 90), lanes=("l", "l", "l", "n")):
    """The typical times of models whose last batch ended so many ns ago."""
    world = make(dict(zip("abcd", map(one, lanes))), {"q": "abcd"})
    found, board = places(world), world.scheduler.state.board
    board.now_ns = 1_000_000
    for index, name in enumerate("abcd"):
        latency = board.latency(name, lanes[index])
        latency.typical_ns, latency.profiled_ns = {1: times[index]}, {1: told[index]}
        latency.observed_ns = board.now_ns - ages[index]
    return found.problem(board, {}, 1, True).times_ns


def test_a_model_that_has_not_run_for_long_is_no_slower_than_those_of_its_place_beside_its_profile():
    now = (0, 0, 0, 0)
    assert thawed(now) == (12, 90, 90, 90)
    assert STALE == 10
    assert thawed((120, 900, 900, 900)) == (12, 90, 90, 90)
    assert thawed((120, 901, 901, 901)) == (12, 24, 12, 90)  # 12 / 10 of its profile; d is alone at its place
    assert thawed((121, 901, 901, 901)) == (12, 90, 90, 90)  # nothing is known of any
    assert thawed((0, 0, 901, 0)) == (12, 90, 12, 90)  # the least that another says
    assert thawed((0, 901, 0, 0), told=(10, 80, 10, 10)) == (12, 90, 90, 90)  # 96 is no less
    assert thawed((0, 901, 0, 0), told=(9, 10, 1000, 10)) == (12, 1, 90, 90)  # 900 // 1000, which is no time
    assert thawed((0, 901, 0, 0), told=(9, 10, 30, 10)) == (12, 13, 90, 90)
    assert thawed((0, 901, 0, 0), told=(0, 0, 0, 10)) == (12, 12, 90, 90)


def test_what_a_batch_was_measured_as_compares_with_its_own_size():
    world = make({"a": ("l", {1: 10, 2: 16}), "b": ("l", {1: 30, 2: 40})}, {"q": "ab"})
    found, board = places(world), world.scheduler.state.board
    board.now_ns = 1_000_000
    first, second = board.latency("a", "l"), board.latency("b", "l")
    first.typical_ns, first.profiled_ns, first.observed_ns = {1: 10, 2: 24}, {1: 10, 2: 16}, board.now_ns
    second.typical_ns, second.profiled_ns, second.observed_ns = {1: 70, 2: 80}, {1: 30, 2: 40}, 0
    assert found.problem(board, {}, 1, True).times_ns == (10, 30)
    assert found.problem(board, {}, 2, True).times_ns == (24, 60)
