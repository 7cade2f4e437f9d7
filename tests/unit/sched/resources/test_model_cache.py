"""Which models are in memory: demand, budget, least recently used, and what is never given up."""

from __future__ import annotations

import pytest
from hand_world import MS

from edgeserve.errors import ConfigError
from edgeserve.sched.resources.lanes import Lane, Works
from edgeserve.sched.resources.model_cache import ABSENT, EVICTING, LOADING, RESIDENT, Device, Placement
from edgeserve.sched.resources.model_loader import Memory

LOAD_RETRY_NS = 500 * MS


def device(budget=100, **models):
    """A device named d; ``models``: name -> (bytes, resident) or (bytes, resident, demand in ms)."""
    made = Device("d", budget)
    for name, (size, resident, *demand) in models.items():
        made.add(Placement(name, "d", size, 5 * MS), resident)
        wants(made, name, demand[0] if demand else 0)
    return made


def wants(made, name, demand_ms):
    """Normal requests wait for a model, worth as much as they take."""
    made.placements[name].demand_ns = made.placements[name].waiting[1] = demand_ms * MS


def choice(found):
    return None if found is None else (found[0].model, [victim.model for victim in found[1]])


def next_load(made, now_ms=0, others=()):
    return choice(made.next_load(now_ms * MS, [made, *others]))


def test_a_model_that_somebody_waits_for_is_loaded_when_there_is_room():
    assert next_load(device(a=(60, True), b=(40, False, 10))) == ("b", [])
    assert next_load(device(a=(60, True), b=(40, False))) is None


def test_the_most_wanted_is_loaded_first_and_equals_by_name():
    assert next_load(device(a=(10, False, 3), b=(10, False, 9))) == ("b", [])
    assert next_load(device(b=(10, False, 3), a=(10, False, 3))) == ("a", [])


def test_the_least_recently_used_idle_models_make_room():
    made = device(a=(40, True), b=(30, True), c=(30, True), n=(50, False, 10))
    assert next_load(made) == ("n", ["a", "b"])
    made.touch(made.placements["a"])
    assert next_load(made) == ("n", ["b", "c"])


def test_idle_models_go_before_wanted_ones_and_of_those_only_less_wanted():
    made = device(a=(50, True, 4), b=(50, True), n=(50, False, 10))
    assert next_load(made) == ("n", ["b"])
    wants(made, "b", 20)
    assert next_load(made) == ("n", ["a"])
    wants(made, "a", 10)
    assert next_load(made) is None


def test_what_works_is_pinned_or_was_loaded_for_jobs_that_did_not_run_yet_is_never_given_up():
    for spoil in ({"in_flight": 1}, {"pinned": True}, {"used": False, "demand_ns": 1 * MS}):
        made = device(a=(100, True), n=(50, False, 10))
        for name, value in spoil.items():
            setattr(made.placements["a"], name, value)
        assert next_load(made) is None, spoil
    made = device(a=(100, True), n=(50, False, 10))
    made.placements["a"].used = False  # nobody waits for it any more
    assert next_load(made) == ("n", ["a"])


def test_a_less_wanted_model_that_fits_is_loaded_when_the_most_wanted_does_not():
    made = device(a=(70, True), big=(80, False, 9), small=(30, False, 3))
    made.placements["a"].in_flight = 1
    assert next_load(made) == ("small", [])


def test_a_load_and_its_answer_move_the_memory_in_use():
    made = device(a=(60, False))
    placement = made.placements["a"]
    made.load_started(placement, 5 * MS)
    assert (placement.state, made.used_bytes, made.free_now_bytes(), placement.due_ns) == (LOADING, 60, 40, 5 * MS)
    made.load_ended(placement, 7 * MS, 7 * MS, failed=False)
    assert (placement.state, placement.since_ns, placement.load_ns, placement.used) == (RESIDENT, 7 * MS, 7 * MS, False)
    assert made.is_resident("a")
    made.evict_started(placement)
    assert (placement.state, made.used_bytes) == (EVICTING, 0)
    made.evict_ended(placement, refused=False)
    assert placement.state == ABSENT
    assert not made.is_resident("a")


def test_a_refused_eviction_leaves_the_model_where_it_is():
    made = device(a=(60, True))
    made.evict_started(made.placements["a"])
    made.evict_ended(made.placements["a"], refused=True)
    assert (made.placements["a"].state, made.used_bytes) == (RESIDENT, 60)


def test_a_failed_load_gives_its_memory_back_and_is_tried_again_after_a_pause():
    made = device(a=(60, False, 10))
    placement = made.placements["a"]
    made.load_started(placement, 0)
    made.load_ended(placement, 3 * MS, 3 * MS, failed=True)
    assert (placement.state, made.used_bytes, placement.failures) == (ABSENT, 0, 1)
    assert made.next_load(3 * MS + LOAD_RETRY_NS - 1, [made]) is None
    assert choice(made.next_load(3 * MS + LOAD_RETRY_NS, [made])) == ("a", [])
    made.load_started(placement, 0)
    made.load_ended(placement, 600 * MS, 3 * MS, failed=False)
    assert placement.failures == 0


def test_the_estimate_of_a_load_is_the_longest_of_the_last_ten():
    made = device(a=(60, False))
    placement = made.placements["a"]
    found = []
    for took in [50, *range(1, 11)]:
        made.load_started(placement, 0)
        made.load_ended(placement, 0, took * MS, failed=False)
        found.append(placement.load_ns // MS)
        made.evict_started(placement)
        made.evict_ended(placement, refused=False)
    assert found == [50] * 10 + [10]


def test_memory_that_the_monitor_reports_bounds_loads_and_moves_with_them():
    made = device(budget=100, a=(60, False, 10), b=(20, False, 5))
    made.free_bytes = 50
    assert next_load(made) == ("b", [])
    made.load_started(made.placements["b"], 0)
    assert made.free_now_bytes() == 30
    made.state_bytes = 60
    assert made.free_now_bytes() == 20


def test_without_a_budget_everything_fits():
    made = device(budget=0, a=(10**12, False, 10))
    assert next_load(made) == ("a", [])


def test_under_pressure_the_least_recently_used_idle_model_goes():
    made = device(budget=160, a=(40, True, 5), b=(40, True), c=(40, True))
    assert made.under_pressure() is None  # nothing was reported
    made.free_bytes = 10
    assert made.under_pressure() is None  # exactly a sixteenth
    made.free_bytes = 9
    assert made.under_pressure().model == "b"
    made.placements["b"].in_flight = made.placements["c"].in_flight = 1
    assert made.under_pressure() is None


def test_the_usual_gap_is_the_longest_lately_and_fades_by_an_eighth_at_each_use():
    made = device(a=(10, True))
    placement, gaps = made.placements["a"], []
    for now_ns in (0, 80, 90, 91, 191):
        made.touch(placement, now_ns)
        gaps.append(placement.gap_ns)
    assert gaps == [0, 80, 70, 62, 100]


@pytest.mark.parametrize(("gap_ms", "idle_ms"), [(0, 1000), (500, 1000), (501, 1002), (2500, 5000), (9000, 5000)])
def test_a_model_is_at_work_for_two_usual_gaps_but_from_one_to_five_seconds(gap_ms, idle_ms):
    placement = Placement("a", "d", 10, 0)
    placement.used_ns, placement.gap_ns = 7 * MS, gap_ms * MS
    assert placement.idle_at_ns() == (7 + idle_ms) * MS
    assert placement.is_working(placement.idle_at_ns() - 1) and not placement.is_working(placement.idle_at_ns())


def test_what_others_took_between_two_reports_is_expected_again_for_two_seconds():
    made = Device("d", 0, headroom_bytes=10)
    found = []
    for at_ms, free in ((0, 500), (100, 470), (200, 480), (300, 440)):
        made.reported(free, at_ms * MS)
        found.append(made.falling_bytes)
    assert found == [0, 30, 0, 40] and made.free_now_bytes() == 440 - 40 - 10
    for at_ns, falling in ((2300 * MS - 1, 40), (2300 * MS, 0)):
        made.calm(at_ns)
        assert made.falling_bytes == falling
    bare = Device("d", 1000)
    for free in (500, 400):
        bare.reported(free, 0)
    assert (bare.falling_bytes, bare.free_now_bytes()) == (0, 400), "only with a headroom"


def test_memory_of_works_on_the_copy_lane_is_given_or_taken_already():
    made = Device("d", 0, headroom_bytes=10)
    for name, size, resident in (("a", 40, False), ("b", 7, True), ("c", 100, True)):
        made.add(Placement(name, "d", size, 0), resident)
    made.load_started(made.placements["a"], 0)
    made.evict_started(made.placements["b"])
    made.reported(500, 0)
    assert made.free_bytes == 500 - 40 + 7


def test_room_may_come_without_a_report_when_memory_stops_to_fall_or_a_model_to_work():
    made = Device("d", 100, headroom_bytes=10)
    for name, resident in (("a", True), ("b", True), ("n", False)):
        made.add(Placement(name, "d", 30, 0), resident)
        made.placements[name].used_ns = {"a": 0, "b": 50 * MS}.get(name, -(2**62))
    wanted = made.placements["n"]
    made.placements["a"].demand_ns = 5
    assert made.roomier_at_ns(0) is None, "no load waits: what is wanted is there"
    wanted.demand_ns = 1
    made.falling_bytes, made.falling_until_ns = 5, 200 * MS
    assert [made.roomier_at_ns(now_ms * MS) for now_ms in (0, 199, 200, 999, 1000, 1049, 1050)] == [
        200 * MS,
        200 * MS,
        1000 * MS,
        1000 * MS,
        1050 * MS,
        1050 * MS,
        None,
    ]
    made.falling_bytes = 0
    assert made.roomier_at_ns(0) == 1000 * MS
    wanted.state = LOADING
    assert made.roomier_at_ns(0) is None


def test_a_load_that_failed_is_due_again_at_its_time_and_not_from_then_on():
    made = device(a=(60, False, 10))
    copy = Lane("copy:d", "d", copy=True)
    memory, placement = Memory({"d": made}, {"d": copy}, {}, Works(), ["a"], made.worth), made.placements["a"]
    assert memory.retry_at_ns(0) is None
    placement.failures, placement.retry_at_ns = 1, 500
    assert [memory.retry_at_ns(now_ns) for now_ns in (499, 500)] == [500, None]
    placement.demand_ns = 0
    assert memory.retry_at_ns(0) is None, "nobody waits for it"


def test_what_resident_copies_elsewhere_serve_is_subtracted():
    def copy(demand_ms):
        other = Device("e")
        other.add(Placement("m", "e", 10, 5 * MS), True)
        other.placements["m"].demand_ns = demand_ms * MS
        return other

    made = device(m=(10, False, 60))
    assert next_load(made, others=[copy(60)]) is None  # 60 ms of work fit the 100 ms that the other offers
    wants(made, "m", 250)
    assert next_load(made, others=[copy(250)]) == ("m", [])  # it serves 100 of 250
    assert made._priority_ns(made.placements["m"], [made, copy(250)]) == pytest.approx(150 * MS)
    assert made._priority_ns(made.placements["m"], [made, copy(250), copy(250)]) == pytest.approx(150 * MS)
    assert made._priority_ns(made.placements["m"], [made, Device("empty")]) == 250 * MS


def test_what_never_fits_is_refused_at_start():
    with pytest.raises(ConfigError, match=r"model 'a' needs 101B on device 'd', more than \[device.d\] memory = 100B"):
        device(a=(101, False))
    with pytest.raises(ConfigError, match="resident at start take 120B on device 'd'"):
        device(a=(60, True), b=(60, True))
