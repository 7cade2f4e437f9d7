"""The script that runs the suite on an emulated aarch64: slices of a part, what is kept, and what its page says."""

from __future__ import annotations

import json

from dev import aarch64


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


def test_every_test_that_a_part_names_is_there():
    missing = [test for tests in aarch64.PARTS.values() for test in tests if not (aarch64.ROOT / test).exists()]
    assert missing == []
