"""The script that runs the suite on an emulated aarch64: slices of a part, what is kept, and what its page says."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

import pytest
from dev import aarch64

PYTHON = aarch64.Emulated("3.11", "python", "Python 3.11, aarch64", [])


@pytest.mark.nightly
def test_a_slice_is_each_nth_test_in_pytests_order(tmp_path):
    (tmp_path / "test_numbers.py").write_text(
        "import pytest\n@pytest.mark.parametrize('n', range(10))\ndef test_it(n):\n    assert n % 4 == 0\n"
    )
    (tmp_path / "each_nth.py").write_text(aarch64.EACH_NTH)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "each_nth", str(tmp_path)],
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "EDGESERVE_EACH_NTH": "4"},
        stdout=subprocess.PIPE,
        timeout=100,
        check=False,
    )
    assert "3 passed, 7 deselected" in done.stdout


@pytest.mark.parametrize("text", ["scheduler", "scheduler=0", "scheduler=x", "sheduler=4"])
def test_a_slice_that_makes_no_sense_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="expected PART=N with N from 1"):
        aarch64.slice_of(text)
    assert aarch64.slice_of("live side=3") == ("live side", 3)


def test_only_a_complete_result_of_this_commit_and_of_enough_tests_is_kept(tmp_path):
    path = tmp_path / "bus.json"
    part = aarch64.Tried("bus", 5, [], [("a", "why")], 1.0, "", 4)

    def store(**changes):
        path.write_text(json.dumps({"commit": "abc", **part._replace(**changes)._asdict()}))

    assert aarch64.kept(path, "abc", 4) is None, "nothing is there"
    store()
    assert aarch64.kept(path, "abc", 4) == aarch64.kept(path, "abc", 8) == part
    assert aarch64.kept(path, "abc", 1) is None, "all tests are requested, and each fourth was run"
    assert aarch64.kept(path, "abd", 4) is aarch64.kept(path, "abc+", 4) is None
    store(ended="stopped after 9 s")
    assert aarch64.kept(path, "abc", 4) is None
    assert aarch64.stored(path, "abc").ended, "the page says so all the same"


def test_the_page_says_what_was_run_in_part_and_what_was_not():
    page = aarch64.report(
        [
            (
                PYTHON,
                [
                    aarch64.Tried("scheduler", 7, ["t::x"], [], 9.0, "", 8),
                    aarch64.Tried("bus", 3, [], [], 2.0, "stopped after 2 s"),
                ],
            )
        ],
        "command",
    )
    assert "| scheduler, 1 of 8 tests | 7 | 1 | 0 | 9 |" in page
    assert "* Not complete: bus: stopped after 2 s." in page
    assert "* Not run: device." in page
    assert "Not run: bus" not in page


def test_every_test_that_a_part_names_is_there():
    missing = [test for tests in aarch64.PARTS.values() for test in tests if not (aarch64.ROOT / test).exists()]
    assert missing == []
