"""From a configuration and profiles to a scheduler: which knowledge wins, and what is said when some is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hand_world import MS, table

from edgeserve.config.loading import parse_config
from edgeserve.config.profile_record import Clocks
from edgeserve.config.profiles import LaneProfile, Profile, Timing
from edgeserve.errors import ConfigError, ProfileError
from edgeserve.sched.core.build import ASSUMED_NS, build_scheduler, copy_lane_name
from edgeserve.sched.latency.batch_time import LIVE
from edgeserve.sched.latency.contradiction import ASSUMED, EXPECTED, PROFILE, START
from edgeserve.sched.resources.placement import RESIDENT


def config(models=None, **sections):
    return parse_config(table(models or {"m": {1: 10, 4: 20}}, {"a": next(iter(models or {"m": 0}))}, **sections))


def profile(model="m", lane="cpu0", load_ms=3, weights=1000, **ms):
    timings = {int(size[1:]): Timing(9, time * MS, (time + 1) * MS, time * MS, 0) for size, time in ms.items()}
    return Profile(model, "d", {lane: LaneProfile(timings, load_ns=load_ms * MS)}, weights, 24)


def typical(scheduler, size, lane="cpu0"):
    return scheduler.state.latency["m", lane].typical_ns[size] / MS


def test_a_profile_is_believed_before_a_warm_up_and_that_before_the_configuration():
    measured = {("m", "cpu0"): {1: [6 * MS, 7 * MS, 8 * MS], 4: [15 * MS]}}
    assert typical(build_scheduler(config()), 1) == 10
    assert typical(build_scheduler(config(), measured=measured), 1) == 7
    both = build_scheduler(config(), [profile(b1=5)], measured=measured)
    assert (typical(both, 1), typical(both, 4)) == (5, 15)


def test_what_an_estimate_stands_on_is_known_per_batch_size():
    wide = config({"m": {1: 10, 2: 12, 4: 20, "batch": [1, 2, 4]}})
    made = build_scheduler(wide, [profile(b1=5)], measured={("m", "cpu0"): {1: [6 * MS], 2: [7 * MS, 8 * MS]}})
    known = [made.state.latency["m", "cpu0"].known(size, 0) for size in (1, 2, 4)]
    assert [(item.source, item.measured, item.age_ns) for item in known] == [
        (PROFILE, 9, None),
        (START, 2, None),
        (EXPECTED, 0, None),
    ]


def test_a_model_that_could_not_be_tried_is_assumed_to_be_quick_until_it_ran():
    made = build_scheduler(config(), measured={("m", "cpu0"): {1: [], 4: []}}).state.latency["m", "cpu0"]
    assert (made.estimate_ns[4], made.known(4, 0).source) == (ASSUMED_NS, ASSUMED)
    made.observe(0, 4, 20 * MS)
    assert (made.estimate_ns[4], made.known(4, 0).source) == (20 * MS, LIVE)


def test_a_profile_of_another_lane_says_nothing_of_this_one():
    made = build_scheduler(config(lane={"cpu0": {}, "cpu1": {}}), [profile(lane="cpu1", b1=5, b4=9)])
    assert (typical(made, 1), typical(made, 1, "cpu1")) == (10, 5)


def test_a_batch_size_without_any_time_is_refused_with_what_is_known_and_the_mend():
    wrong = config({"m": {1: 10, "batch": [1, 2, 4]}})
    with pytest.raises(
        ProfileError,
        match=r"model 'm' on lane 'cpu0': batch sizes \[2, 4\] have no time \(known: 1\); "
        r"run 'edgeserve profile' or give \[model.m.expected\]",
    ):
        build_scheduler(wrong)
    assert typical(build_scheduler(wrong, [profile(b2=5, b4=6)]), 4) == 6


def test_models_run_on_the_lanes_they_name():
    made = build_scheduler(config({"m": {1: 10, "lanes": ["l1"]}}, lane={"l0": {}, "l1": {}}))
    assert [lane.name for lane in made.state.lanes_of["m"]] == ["l1"]
    assert "m" not in made.state.lanes["l0"].models
    assert sorted(made.state.lanes) == [copy_lane_name("cpu"), "l0", "l1"]


MODELS = {name: {1: 10, "memory": "40MB"} for name in ("m", "n", "o")}


def resident(scheduler):
    return sorted(name for name, item in scheduler.devices["cpu"].placements.items() if item.state == RESIDENT)


def test_at_start_as_many_models_are_resident_as_fit_pinned_ones_first():
    budget = {"cpu": {"memory": "100MB"}}
    assert resident(build_scheduler(config(MODELS, device=budget))) == ["m", "n"]
    pinned = {**MODELS, "o": {**MODELS["o"], "pinned": True}}
    assert resident(build_scheduler(config(pinned, device=budget))) == ["m", "o"]
    assert resident(build_scheduler(config(MODELS, device=budget), resident={"cpu": ["o"]})) == ["o"]
    assert resident(build_scheduler(config(MODELS, device=budget), resident={})) == []
    assert resident(build_scheduler(config(MODELS))) == ["m", "n", "o"]


def test_bytes_are_those_of_the_file_else_of_the_engine_else_of_the_profile():
    def placement(models, **known):
        return build_scheduler(config(models), [profile(b1=1)], **known).devices["cpu"].placements["m"]

    said = {"footprints": {("m", "cpu"): (700, 50)}}
    assert placement({"m": {1: 10, "memory": "5KB"}}, **said).bytes == 5000
    assert placement({"m": {1: 10}}, **said).bytes == 750
    assert placement({"m": {1: 10}}).bytes == 1024
    unknown = build_scheduler(config({"m": {1: 10}})).devices["cpu"].placements["m"]
    assert (unknown.bytes, unknown.load_ns) == (0, 0)


def test_memory_that_models_of_a_lane_share_is_kept_once_for_each_lane():
    models = {name: {1: 10, "lanes": lanes} for name, lanes in (("m", ["a", "b"]), ("n", ["a"]), ("o", ["b"]))}
    table = config(models, device={"cpu": {"memory": "1KB"}}, lane={"a": {}, "b": {}})
    said = {("m", "cpu"): (100, 20, 7), ("n", "cpu"): (100, 20, 50), ("o", "cpu"): (100, 20, 3)}
    device = build_scheduler(table, footprints=said).devices["cpu"]
    assert device.budget_bytes == 1000 - (50 + 7)
    assert [placement.bytes for placement in device.placements.values()] == [120] * 3
    profiles = [replace(profile(b1=1), model=name, weights_bytes=100, work_bytes=20, shared_bytes=50) for name in "mno"]
    device = build_scheduler(table, profiles).devices["cpu"]
    assert device.budget_bytes == 1000 - 2 * 50
    assert [placement.bytes for placement in device.placements.values()] == [120] * 3


def test_load_times_are_those_of_the_file_else_of_the_profile_else_of_the_bus():
    def load_ns(models, profiles=(), **sections):
        return build_scheduler(config(models, **sections), profiles).devices["cpu"].placements["m"].load_ns

    assert load_ns({"m": {1: 10, "load": "7ms"}}, [profile(b1=1)]) == 7 * MS
    assert load_ns({"m": {1: 10}}, [profile(b1=1)]) == 3 * MS
    assert load_ns({"m": {1: 10, "memory": "120MB"}}) == 10 * MS  # 12 GB/s
    assert load_ns({"m": {1: 10, "memory": "120MB"}}) == 10 * MS


def test_what_does_not_fit_or_exist_is_refused():
    with pytest.raises(ConfigError, match="model 'm' needs 38.15MiB on device 'cpu'"):
        build_scheduler(config(MODELS, device={"cpu": {"memory": "30MB"}}))
    with pytest.raises(ConfigError, match=r"\[policy.p\] kind = 'edff' does not exist; did you mean 'edf'\? Exp"):
        build_scheduler(config(policy={"p": {"kind": "edff"}}))
    with pytest.raises(ConfigError, match=r"\[policy.p\] kind = 'zzz' does not exist\. Expected one of clipper, clock"):
        build_scheduler(config(policy={"p": {"kind": "zzz"}}))
    with pytest.raises(ConfigError, match=r"has a cycle through"):
        build_scheduler(
            parse_config(
                table({"m": {1: 1}, "n": {1: 1}}, {"a": [{"name": "m", "after": ["n"]}, {"name": "n", "after": ["m"]}]})
            )
        )


@pytest.mark.parametrize("mhz", [0.0, 1000.0])
def test_times_that_a_scheduler_takes_over_are_at_the_clocks_that_its_lanes_begin_with(mhz):
    """A monitor that begins then tells only what is not as profiled."""
    lane = LaneProfile({size: Timing(9, 10 * MS, 10 * MS, 10 * MS, 0) for size in (1, 4)}, clock_mhz=mhz)
    profiles = [Profile("m", "d", {"cpu0": lane}, 1000, 24)]
    before = build_scheduler(config(), profiles).state
    before.lanes["cpu0"].speed, before.lanes["cpu0"].clocks = 0.5, Clocks(mhz / 2)
    before.set_speeds(before.lanes["cpu0"])
    assert before.latency["m", "cpu0"].typical_ns[1] == 20 * MS
    after = build_scheduler(config(), profiles, learnt=before.latency).state
    assert (after.lanes["cpu0"].speed, after.latency["m", "cpu0"].typical_ns[1]) == (1.0, 10 * MS)
