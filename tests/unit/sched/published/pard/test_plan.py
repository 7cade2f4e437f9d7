"""Batch planning: worked by hand, and never beyond the share, with no size left that would still fit."""

from __future__ import annotations

import hand_world
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeserve.sched.published.pard.plan import path_ns, plan_sizes
from edgeserve.units import PPM

MS = 1_000_000
SIZES = tuple(range(1, 17))


def app_of(slo_ms, *nodes):
    return hand_world.app_of(list(nodes), "app", slo=f"{slo_ms}ms")


def affine(fixed, each, sizes=SIZES):
    return {size: round((fixed + each * size) * MS) for size in sizes}


PROFILES = {"person": (18, 15), "face": (9, 6.6), "expression": (7.5, 4.8), "eye": (7.5, 5.4), "pose": (13.5, 12.6)}
LV = [{"name": name} for name in PROFILES]
DA = [
    {"name": "person"},
    {"name": "pose", "after": ["person"]},
    {"name": "face", "after": ["person"]},
    {"name": "expression", "after": ["pose", "face"]},
    {"name": "eye"},
]


@pytest.mark.parametrize(
    ("slo_ms", "nodes", "share", "sizes"),
    [(500, LV, 0.5, [4, 5, 5, 5, 4]), (500, LV, 0.53, [5, 5, 5, 5, 4]), (420, DA, 0.53, [4, 5, 10, 5, 5])],
)
def test_the_specifications_pipelines_get_the_specifications_sizes(slo_ms, nodes, share, sizes):
    times = {name: affine(*line) for name, line in PROFILES.items()}
    planned = plan_sizes([app_of(slo_ms, *nodes)], times, round(share * PPM))
    assert [planned[node["name"]] for node in nodes] == sizes


def test_only_the_longest_path_counts():
    nodes = [{"name": "a"}, {"name": "quick", "after": ["a"]}, {"name": "slow", "after": ["a"]}]
    times = {"a": affine(5, 5), "quick": affine(2, 1), "slow": affine(10, 10)}
    planned = plan_sizes([app_of(100, *nodes)], times, PPM // 2)
    assert planned == {"a": 3, "quick": 16, "slow": 2}  # 20 + 30 ms; 18 ms on the other path cost nothing


def test_a_model_of_two_apps_gets_the_smaller_plan_and_what_does_not_fit_at_all_stays_at_the_smallest():
    times = {"a": affine(5, 5, (2, 4, 8))}
    assert plan_sizes([app_of(100, {"name": "a"}), app_of(60, {"name": "a"})], times, PPM // 2) == {"a": 4}
    assert plan_sizes([app_of(10, {"name": "a"})], times, PPM // 2) == {"a": 2}


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), min_size=1, max_size=4), st.integers(20, 900))
def test_the_plan_fits_and_no_single_step_more_would(lines, slo_ms):
    times = {f"m{index}": affine(fixed, each, (1, 2, 4, 8)) for index, (fixed, each) in enumerate(lines)}
    app = app_of(slo_ms, *[{"name": name} for name in times])
    planned = plan_sizes([app], times, PPM // 2)
    limit_ns = slo_ms * MS // 2
    assert path_ns(app, planned, times) <= limit_ns or set(planned.values()) == {1}
    for model, size in planned.items():
        saves = size < 8 and times[model][size] / size > times[model][2 * size] / (2 * size)
        assert not saves or path_ns(app, {**planned, model: 2 * size}, times) > limit_ns
