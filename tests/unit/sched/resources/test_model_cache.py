"""Which models are in memory: demand, budget, least recently used, and what is never given up."""

from __future__ import annotations

import pytest
from hand_world import MS

from edgeserve.errors import ConfigError
from edgeserve.sched.resources.model_cache import Device
from edgeserve.sched.resources.placement import ABSENT, EVICTING, LOADING, RESIDENT, Placement

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


def test_a_small_model_stays_where_a_larger_one_alone_makes_room():
    made = device(small=(5, True), large=(60, True), other=(30, True), n=(40, False, 10))
    assert next_load(made) == ("n", ["large"])
    made = device(small=(5, True), large=(60, True), other=(30, True), n=(70, False, 10))
    assert next_load(made) == ("n", ["small", "large"])


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
    made.placements["a"].used = False  # no request waits for it any more
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


def test_under_pressure_the_least_recently_used_idle_model_goes():
    made = device(budget=160, a=(40, True, 5), b=(40, True), c=(40, True))
    assert made.under_pressure() is None  # nothing was reported
    made.free_bytes = 10
    assert made.under_pressure() is None  # exactly a sixteenth
    made.free_bytes = 9
    assert made.under_pressure().model == "b"
    made.placements["b"].in_flight = made.placements["c"].in_flight = 1
    assert made.under_pressure() is None


def test_a_load_that_waits_is_looked_at_again_when_the_next_resident_model_counts_as_idle():
    made = device(a=(50, True), b=(50, True), n=(60, False, 10), gone=(60, False))
    for name, used_ms in (("a", 300), ("b", 200), ("gone", 100)):
        made.placements[name].used_ns = used_ms * MS
    assert [made.roomier_at_ns(now_ms * MS) for now_ms in (400, 1200, 1300)] == [1200 * MS, 1300 * MS, None]
    wants(made, "n", 0)
    assert made.roomier_at_ns(400 * MS) is None


def test_what_never_fits_is_refused_at_start():
    with pytest.raises(ConfigError, match=r"model 'a' needs 101B on device 'd', more than \[device.d\] memory = 100B"):
        device(a=(101, False))
    with pytest.raises(ConfigError, match="resident at start take 120B on device 'd'"):
        device(a=(60, True), b=(60, True))
