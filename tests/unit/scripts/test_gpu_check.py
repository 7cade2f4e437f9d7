"""The GPU check where there is no GPU, and what it makes of tests and numbers."""

from __future__ import annotations

import xml.etree.ElementTree

import gpu_check
import pytest
from lib.checks import Checks

REPORT = """<testsuites><testsuite>
<testcase classname="gpu.A" name="one"/>
<testcase classname="gpu.A" name="two"><failure message="2 is not 1"/></testcase>
<testcase classname="gpu.B" name="three"><skipped message="tensorrt is not installed"/></testcase>
<testcase classname="gpu.B" name="four"><skipped message="tensorrt is not installed"/></testcase>
</testsuite></testsuites>"""

RESULTS = {
    "overhead": {
        "rows": [
            {"batch": 1, "bare_ms": 1.0, "engine_ms": 2.0, "overhead": 1.0},
            {"batch": 32, "bare_ms": 6.0, "engine_ms": 6.1, "overhead": 0.0167},
        ]
    },
    "overlap": {"gain": 1.3, "rows": [{"depth": 1, "batches_per_s": 10.0}, {"depth": 2, "batches_per_s": 13.0}]},
    "profile": {"rows": [{"batch": 1, "per_item_ms": 1.0}, {"batch": 32, "per_item_ms": 0.2}]},
    "predictability": {"rows": [{"at_once": 1, "p999_to_median": 1.1}, {"at_once": 16, "p999_to_median": 9.0}]},
}


def test_without_a_gpu_it_says_what_it_would_run_and_ends_with_a_status_of_its_own(monkeypatch, capsys):
    monkeypatch.setattr(gpu_check, "device_of_torch", lambda: None)
    assert gpu_check.main([]) == gpu_check.NO_GPU == 3
    said = capsys.readouterr().out
    for text in (
        "No GPU can be used here",
        "tests/gpu",
        *gpu_check.BENCHES,
        "docs/research/results/gpu_check_DEVICE.json",
    ):
        assert text in said


def test_a_bench_that_does_not_exist_is_refused(capsys):
    with pytest.raises(SystemExit):
        gpu_check.main(["--only", "overhed"])
    assert "--only overhed: expected of overhead" in capsys.readouterr().err


def test_the_tests_are_counted_with_the_reasons_of_those_that_were_skipped():
    counted = gpu_check.read_report(xml.etree.ElementTree.fromstring(REPORT))
    assert counted == {"passed": 1, "failed": ["gpu.A.two: 2 is not 1"], "skipped": {"tensorrt is not installed": 2}}


def test_short_calls_have_no_bound_and_the_others_do():
    checks = Checks("scripts/gpu_check.py")
    gpu_check.check(RESULTS, checks)
    assert len(checks.rows) == 5
    assert all(row.holds for row in checks.rows)
    slow = {**RESULTS, "overhead": {"rows": [{"batch": 32, "bare_ms": 6.0, "engine_ms": 7.0, "overhead": 0.167}]}}
    checks = Checks("scripts/gpu_check.py")
    gpu_check.check(slow, checks)
    assert [row.holds for row in checks.rows].count(False) == 1


def test_the_report_shows_devices_failures_reasons_and_tables():
    checks = Checks("scripts/gpu_check.py")
    gpu_check.check(RESULTS, checks)
    page = gpu_check.page(
        {
            "device": {"name": "NVIDIA Test"},
            "libraries": {"torch": "2"},
            "command": "python scripts/gpu_check.py",
            "day": "2026-11-22",
            "results": RESULTS,
            "tests": gpu_check.read_report(xml.etree.ElementTree.fromstring(REPORT)),
        },
        checks,
    )
    for text in (
        "# GPU check: NVIDIA Test",
        "1 passed, 1 failed, 2 skipped",
        "* failed: gpu.A.two: 2 is not 1",
        "* skipped (2): tensorrt is not installed",
        "| at_once | p999_to_median |",
        "| 16 | 9 |",
        "| holds |",
    ):
        assert text in page
