"""Profiles that say what cannot be: each wrong value is named with its key, and a server goes on without the file."""

from __future__ import annotations

import copy
import json
import math
import os
import random
import statistics
from importlib import import_module
from pathlib import Path
from typing import Any, List

import pytest

from edgeserve.config.json_schema import profile_schema
from edgeserve.config.machine import device_slug
from edgeserve.config.profiles import (
    QUANTILES,
    LaneProfile,
    Profile,
    Timing,
    find_profiles,
    modes_measured,
    profile_path,
    read_profile,
    read_profiles_here,
    write_profile,
)
from edgeserve.errors import ProfileError

ROOT = Path(__file__).resolve().parents[3]

TIMING = {
    "count": 700,
    "median_ns": 5_000,
    "p99_ns": 7_000,
    "mean_ns": 5_100,
    "sd_ns": 300,
    "drift": 0.01,
    "quantiles_ns": list(range(4_900, 4_900 + 150 * len(QUANTILES), 150)),
    "p99_error": 0.04,
}
GOOD = {
    "format": 2,
    "model": "yolo",
    "device": "orin",
    "weights_bytes": 10,
    "work_bytes": 2,
    "circumstances": {"date": "2026-11-21", "whatever": [1]},
    "lanes": {
        "gpu0": {
            "timings": {"1": TIMING, "16": TIMING},
            "fixed_ns": 4_000,
            "per_item_ns": 1_000,
            "fit_error_max": 0.04,
            "load_ns": 90_000,
            "alone": {"cam": [1, 2, 2]},
        }
    },
}


def changed(value: Any, *path: Any) -> Any:
    """The good table with another value at a path; the value ``...`` takes the key away."""
    table: Any = copy.deepcopy(GOOD)
    inner = table
    for key in path[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return table


LANE = ("lanes", "gpu0")
ONE = (*LANE, "timings", "1")

WRONG = [
    (changed(-5, *ONE, "median_ns"), "lanes.gpu0 timings.1 median_ns = -5: expected a whole number from 0"),
    (changed(10**30, *ONE, "p99_ns"), f"lanes.gpu0 timings.1 p99_ns = {10**30}: expected a whole number"),
    (changed(1.5, *ONE, "mean_ns"), "lanes.gpu0 timings.1 mean_ns = 1.5: expected a whole number"),
    (changed(float("nan"), *ONE, "drift"), "lanes.gpu0 timings.1 drift = nan: expected a number from -1"),
    (changed(float("inf"), *ONE, "sd_ns"), "lanes.gpu0 timings.1 sd_ns = inf: expected a whole number"),
    (changed(True, *ONE, "count"), "lanes.gpu0 timings.1 count = True: expected a whole number"),
    (changed("5ms", *ONE, "median_ns"), "lanes.gpu0 timings.1 median_ns = '5ms': expected a whole number"),
    (changed(TIMING, *LANE, "timings", "0"), "lanes.gpu0 timings.0: expected batch sizes"),
    (changed(TIMING, *LANE, "timings", "-4"), "lanes.gpu0 timings.-4: expected batch sizes"),
    (changed(TIMING, *LANE, "timings", "1.5"), "lanes.gpu0 timings.1.5: expected batch sizes"),
    (changed(TIMING, *LANE, "timings", "four"), "lanes.gpu0 timings.four: expected batch sizes"),
    (changed(TIMING, *LANE, "timings", "70000"), "lanes.gpu0 timings.70000: expected batch sizes from 1 to 65536 as"),
    (changed([1, 2, 3], *ONE, "quantiles_ns"), "quantiles_ns = [1, 2, 3]: expected none, or 15 values that rise"),
    (changed([*range(14), 0], *ONE, "quantiles_ns"), "12, 13, 0]: expected none, or 15 values that rise"),
    (
        changed(9_999, *ONE, "median_ns"),
        "timings.1 median_ns = 9999: expected a time from 4900 to 7000, as",
    ),
    (changed({**TIMING, "p99_ns": 4_990}, *ONE), "timings.1 p99_ns = 4990: expected at least median_ns, 5000"),
    (changed({**TIMING, "median_ns": 0, "quantiles_ns": []}, *ONE), "timings.1 median_ns = 0: expected a time above 0"),
    (changed([2, 1], *LANE, "alone", "cam"), "lanes.gpu0 alone.cam = [2, 1]: expected times that rise"),
    (changed(..., *ONE, "p99_ns"), "lanes.gpu0 timings.1 lacks the key 'p99_ns'"),
    (changed(..., "lanes"), "lacks the key 'lanes'"),
    (changed(3, "lanes"), "lanes = 3: expected a table"),
    (changed({}, *LANE, "alone", "cam"), "lanes.gpu0 alone.cam = {}: expected a list"),
    (changed("", "model"), "model = '': expected 1 to 128 characters"),
    (changed(7, "device"), "device = 7: expected a string"),
    (changed(-1, "weights_bytes"), "weights_bytes = -1: expected a whole number from 0"),
    (changed(1, *ONE, "p99"), "lanes.gpu0 timings.1 has no key 'p99'; did you mean 'p99_ns'"),
    (changed(LANE, "lanes", ""), "lanes: expected keys that are not empty"),
    ([], "profile = []: expected a table"),
]


def read(tmp_path: Path, table: Any) -> Profile:
    path = tmp_path / "m.json"
    path.write_text(json.dumps(table))
    return read_profile(str(path))


def test_a_good_table_is_read(tmp_path: Path) -> None:
    good = read(tmp_path, GOOD)
    assert (good.model, good.lanes["gpu0"].timings[16].count, good.lanes["gpu0"].alone) == (
        "yolo",
        700,
        {"cam": (1, 2, 2)},
    )
    assert read(tmp_path, changed(..., *ONE, "p99_error")).lanes["gpu0"].timings[1].p99_error == 1.0
    assert read(tmp_path, changed(..., *LANE, "alone")).lanes["gpu0"].alone == {}
    assert read(tmp_path, changed(5_000.0, *ONE, "median_ns")) == good, "a whole number all the same"


@pytest.mark.parametrize(("table", "says"), WRONG, ids=[row[1][:40] for row in WRONG])
def test_what_is_wrong_is_named_with_key_value_and_what_was_expected(tmp_path: Path, table: Any, says: str) -> None:
    with pytest.raises(ProfileError, match=r"m\.json: profile.*measure it again") as caught:
        read(tmp_path, table)
    assert says in str(caught.value)


def test_the_schema_says_the_same_in_json_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: the schema is not compared")
    validator = jsonschema.Draft202012Validator(json.loads(json.dumps(profile_schema())))
    assert validator.is_valid(GOOD)
    by_schema = [
        row
        for row in WRONG
        if not any(word in row[1] for word in ("rise", "quantiles_ns", "at least", "above 0", "70000", "drift"))
    ]
    assert len(by_schema) > 12
    for table, says in by_schema:
        assert not validator.is_valid(table), says


# --- what lies in profiles/ -------------------------------------------------------------------------------------------


def test_every_profile_of_the_project_is_good() -> None:
    files = [path for path in (ROOT / "profiles").rglob("*.json") if not path.name.endswith(".schema.json")]
    assert len(files) > 60
    for path in files:
        profile = read_profile(str(path))
        assert profile.model == path.stem
        assert profile.circumstances.get("published") or profile.circumstances.get("date"), f"{path}: no source"


# --- one profile per power mode ---------------------------------------------------------------------------------------


def lay(directory: Path, device: str, mode: str, *models: str) -> None:
    for model in models:
        time_ns = len(mode) + 1
        lane = LaneProfile({1: Timing(1, time_ns, time_ns, time_ns, 0)})
        write_profile(profile_path(str(directory), device, model, mode), Profile(model, device, {"gpu0": lane}))


def medians(profiles: List[Profile]) -> List[Any]:
    return [(profile.model, profile.lanes["gpu0"].timings[1].median_ns) for profile in profiles]


def test_the_profile_of_the_present_mode_counts_and_else_one_without_a_mode(tmp_path: Path) -> None:
    lay(tmp_path, device_slug(), "", "a", "b")
    lay(tmp_path, device_slug(), "MAXN", "a", "c")
    lay(tmp_path, device_slug(), "MODE_30W", "a")
    assert modes_measured(str(tmp_path / device_slug())) == ["maxn", "mode-30w"]
    assert medians(read_profiles_here(str(tmp_path), "MAXN")[0]) == [("a", 5), ("b", 1), ("c", 5)]
    assert medians(read_profiles_here(str(tmp_path), "MODE_30W")[0]) == [("a", 9), ("b", 1)]
    assert medians(read_profiles_here(str(tmp_path), "MODE_15W")[0]) == [("a", 1), ("b", 1)]
    assert medians(read_profiles_here(str(tmp_path))[0]) == [("a", 1), ("b", 1)]


def test_a_simulation_takes_the_only_mode_and_asks_which_of_several(tmp_path: Path) -> None:
    lay(tmp_path, "orin", "MAXN", "a")
    assert medians(find_profiles(str(tmp_path), elsewhere=True)) == [("a", 5)]
    lay(tmp_path, "orin", "MODE_30W", "a")
    with pytest.raises(ProfileError, match="profiles of several power modes .maxn, mode-30w.*--profiles .*mode-maxn"):
        find_profiles(str(tmp_path), elsewhere=True)
    assert medians(find_profiles(str(tmp_path), elsewhere=True, mode="MODE_30W")) == [("a", 9)]
    assert medians(find_profiles(os.path.join(str(tmp_path), "orin", "mode-maxn"), elsewhere=True)) == [("a", 5)]


def test_the_profiles_of_papers_are_what_their_numbers_draw() -> None:
    assert import_module("figures.profiles").main(["--check"]) == 0


def test_a_log_normal_timing_has_the_mean_and_the_p99_that_were_printed() -> None:
    timing = import_module("figures.profiles").log_normal(683_150_000, 2_667_540_000)  # RDI-Nets: the widest
    draw = random.Random("log-normal")
    mu = math.log(timing.median_ns)
    sigma = math.sqrt(2 * (math.log(timing.mean_ns) - mu))
    drawn = sorted(draw.lognormvariate(mu, sigma) for _ in range(100_000))
    assert statistics.fmean(drawn) == pytest.approx(683_150_000, rel=0.02)
    assert drawn[99_000] == pytest.approx(2_667_540_000, rel=0.03)
