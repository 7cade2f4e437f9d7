"""The mutants that ``scripts/dev/mutants.py`` draws, and the copy of the project that their tests run against."""

from __future__ import annotations

import os

import pytest
from dev import mutants
from lib.changed_tree import ROOT, ChangedTree


@pytest.mark.nightly
def test_every_equivalent_mutant_still_exists_and_has_a_reason():
    possible = {mutant.key[:4] for mutant in mutants.all_mutants()}
    listed = mutants.read_equivalent()
    assert [key for key in listed if key not in possible] == []
    assert all(len(why) > 15 for why in listed.values())


@pytest.mark.nightly
def test_a_change_in_a_copy_is_noticed_and_put_back():
    path = "edgeserve/units.py"
    test = "tests/unit/test_units.py"
    with ChangedTree() as tree:
        assert tree.is_imported()
        text = tree.read(path)
        tree.write(path, text.replace("1_000_000", "1_000_001"))
        changed = tree.run([test], 60)
        assert not changed.passed and changed.said.startswith(f"{test}::test_")
        tree.write(path, text + "\nwhile True: pass\n")
        assert tree.run([test], 1).said.startswith("the tests hang")
        tree.restore(path)
        assert tree.read(path) == text
        assert tree.run([f"{test}::test_wrong_durations_name_the_value_and_what_was_expected"], 60).passed
    assert not os.path.exists(tree.home)
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        assert file.read() == text


@pytest.mark.nightly
def test_a_mutant_is_judged_in_a_fork(monkeypatch):
    test = "tests/unit/sched/requests/test_admission.py"
    monkeypatch.setattr(mutants, "fast_tests", lambda root: [test])
    path = "edgeserve/sched/requests/admission.py"
    with ChangedTree() as tree:
        text = tree.read(path)
        tests = mutants.Tests(tree)
        record = tests.answer(mutants.Job([(name, 60) for name in tests.names], record=True))
        assert record.failed == "" and set(record.record) == set(tests.names)
        selection = mutants.Selection(record.record)
        found = [mutant for mutant in mutants.mutants_of(path, text) if mutant.around.name == "Admission.enter"]
        assert [mutant.old for mutant in found][:1] == ["self.pending += 1"]
        named = selection.tests(found[0])
        assert tests.answer(mutants.Job(named, path, found[0].text)).failed.startswith(f"{test}::")
        assert tests.answer(mutants.Job(named)).failed == ""  # the fork alone had it
        hang = text.replace("self.pending += 1", "while True: pass")
        assert tests.answer(mutants.Job([(name, 1) for name, _ in named], path, hang)).failed == "a hang"
        assert tree.read(path) == text
        tests.close()


@pytest.mark.nightly
def test_tests_that_cannot_be_collected_without_any_mutant_are_an_error(monkeypatch):
    """They once counted as noticing every mutant: a new test file was in the working tree and not yet in the copy."""
    with ChangedTree() as tree:
        os.remove(os.path.join(tree.home, "tests/unit/sched/requests/test_admission.py"))
        assert "tests/unit/sched/requests/test_admission.py" not in mutants.fast_tests(tree.home)
        monkeypatch.setattr(mutants, "fast_tests", lambda root: ["tests/unit/sched/requests/test_admission.py"])
        with pytest.raises(RuntimeError, match="cannot be collected without any mutant"):
            mutants.Tests(tree)
