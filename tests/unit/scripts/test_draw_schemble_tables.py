"""The tables of the page of ensembles: what was stored stands in them, and what was not names its file."""

from __future__ import annotations

import json

from draw import schemble_tables as tables

MADE = {"command": "python made.py --json x", "seeds": 2}


def result(accuracy, missed):
    return {
        "accuracy": accuracy,
        "missed": missed,
        "processed": 1.0,
        "models": 1.5,
        "mean_ms": 90.0,
        "p95_ms": 150.0,
        "max_ms": 1200.0,
    }


def store(place, name, key, value):
    (place / name).write_text(json.dumps({"script": "made.py", "circumstances": MADE, "checks": [], key: value}))


def test_a_run_that_is_not_stored_says_which_file_would_be_drawn(tmp_path):
    assert (
        tables.parts(str(tmp_path))["live"] == "No run is stored as `docs/research/results/bench_ensemble_live.json`."
    )


def test_what_was_stored_stands_in_the_tables(tmp_path):
    rows = [result(0.5, 0.4)] * 4 + [result(0.725, 0.125)]
    store(
        tmp_path,
        "replicate_schemble.json",
        "results",
        {
            "table": {"static, two": "m0+m1", "policies": {"schemble": rows}, "days": {}},
            "forced": {"schemble": result(0.951, 0.0)},
            "delta": {"0.1": [result(0.9, 0.02), result(0.8, 0.03)]},
            "lanes": {"one lane 0.6": {"original": 66.0, "edf, partial": 98.0, "schemble+": 97.5}},
        },
    )
    found = tables.parts(str(tmp_path))
    assert (
        "| schemble |" + " 50.0 / 40.0 |" * 4 + " **72.5 / 12.5** | 100.0 | 1.50 | 92.2 / 4.0 | 91.2 / 6.1 |"
        in found["policies"]
    )
    assert (
        "| schemble | 95.1 | 0.09 / 0.15 / 1.2 | 96.2: 0.103 / 0.149 / 0.94 | 97.2: 0.1 / 0.14 / 0.33 |"
        in found["forced"]
    )
    assert "| 0.1 | 90.0 / 2.0 | 80.0 / 3.0 |" in found["delta"]
    assert "| one lane, load 0.6 | 66.0 | 98.0 | 97.5 | -0.5 |" in found["lanes"]
    assert found["lanes"].endswith("`python made.py --json x` (2 seeds).")


def test_trouble_stands_by_case_and_place(tmp_path):
    store(
        tmp_path,
        "replicate_schemble_between.json",
        "results",
        {
            "no fit, one lane, load 0.6": {"original": 60.2, "edf, partial": 98.6, "schemble+": 97.7},
            "no fit, one lane, load 1.5": {"original": 40.0, "edf, partial": 91.0, "schemble+": 94.0},
        },
    )
    text = tables.parts(str(tmp_path))["trouble"]
    assert "| value in time, % | one lane, 0.6 | one lane, 1.5 |" in text
    assert "| no fit | 98 / 99 | 94 / 91 |" in text


def test_times_that_vary_stand_by_load(tmp_path):
    store(
        tmp_path,
        "replicate_schemble_varying.json",
        "results",
        {"2": {"fastest only": {"right": 90.16, "missed": 0.0}, "schemble+": {"right": 91.24, "missed": 4.96}}},
    )
    text = tables.parts(str(tmp_path))["varying"]
    assert "| load | fastest only | schemble+ |" in text
    assert "| 2 | 90.2 / 0.0 | 91.2 / 5.0 |" in text


def test_a_wrong_fit_is_held_against_the_static_choices(tmp_path):
    values = {"schemble+": 90.0, "edf": 99.0, "original": 50.0, "static": 80.0, "fastest": 85.0}
    store(
        tmp_path,
        "bench_regret_ensembles.json",
        "rows",
        [{"tags": ["right fit"], "percent": values}, {"tags": ["right fit", "fit of other models"], "percent": values}],
    )
    text = tables.parts(str(tmp_path))["regret"]
    assert "| fitted rightly or not at all: ahead of the best of edf, original, static, fastest | 1 | -9.0 |" in text
    assert "| a wrong fit: ahead of the best of static, fastest | 1 | +5.0 |" in text


def test_a_live_load_is_the_median_of_its_rounds(tmp_path):
    runs = [{"missed": missed, "agreed": 0.99, "accuracy": 0.9, "models": 1.2} for missed in (0.01, 0.5, 0.02)]
    store(tmp_path, "bench_ensemble_live.json", "results", {"2": {"schemble+": runs}})
    assert "| 2, schemble+ | 2.0 | 99.0 | 90.0 | 1.20 |" in tables.parts(str(tmp_path))["live"]


def test_what_a_plan_takes_names_the_core(tmp_path):
    (tmp_path / "bench_planner.json").write_text(
        json.dumps(
            {
                "circumstances": {"command": "python p.py", "core": "compiled"},
                "checks": [],
                "rows": [["own", 3, 16, "loose", 0.1234, 0.5, 5, 3000, 20]],
            }
        )
    )
    text = tables.parts(str(tmp_path))["planner"]
    assert "| 16 requests, 3 models, lanes of their own | loose | 0.12 | 0.50 | 25 |" in text
    assert text.endswith("`python p.py` (compiled core).")
