"""The mutants that ``scripts/dev/mutants.py`` draws, and the copy of the project that their tests run against."""

from __future__ import annotations

import ast
import os

import pytest
from dev import mutants
from lib.changed_tree import ROOT, ChangedTree

FILE = f"{mutants.SCHED}/made_up.py"


def changes(text, function="f"):
    """The mutants of a function's expressions: old -> all the new texts."""
    found = {}
    for mutant in mutants.mutants_of(FILE, text):
        ast.parse(mutant.text)
        if mutant.around.name == function:
            found.setdefault(mutant.old, []).append(mutant.new)
    return found


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("return a < b", {"a < b": ["not (a < b)", "a <= b"]}),
        ("x = a is not b", {"a is not b": ["a is b"]}),
        ("x = (a) not in (b)", {"(a) not in (b)": ["(a) in (b)"]}),
        ("x = a <= b < c", {"a <= b < c": ["a < b < c", "a <= b <= c"]}),
        ("x = a and b and c", {"a and b and c": ["a or b and c", "a and b or c"]}),
        ("x = a // b", {"a // b": ["a * b"]}),
        ("a -= b", {"a -= b": ["a += b"]}),
        ("x = a[1], g(b, default=0)", {}),  # no constant is changed
        ("x = g(lambda c: c > b)", {"c > b": ["c >= b"]}),
        ("x = 'é', a + b", {"a + b": ["a - b"]}),
        ("while not a: pass", {"not a": ["a"]}),
        ("x = a if b else c", {"b": ["not (b)"]}),
        ("return [a for a in b if a]", {"a": ["not (a)"]}),
        ("if a == b: pass", {"a == b": ["a != b"]}),  # turned round once, not twice
        ("x = True, None, '1', f'{a + 1}'", {}),
        ("x: Tuple[int, 1] = a", {}),
    ],
)
def test_each_place_is_flipped_and_nothing_else(line, expected):
    assert changes(f"LIMIT = 2 * 3\ndef f(a: int = LIMIT + 1):\n    {line}\n") == expected


def test_names_lines_and_comments_lead_to_no_wrong_place():
    text = (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    x = 1 + 2\n"
        "class C:\n"
        "    @property\n"
        "    def f(self):\n"
        "        return (self.a  # less < than\n"
        "                < self.b)\n"
    )
    found = mutants.mutants_of(FILE, text)
    assert {(item.around, item.line, item.old) for item in found} == {
        (mutants.Around("C.f", "f"), 7, "self.a # less < than < self.b")
    }
    assert "# less < than\n                <= self.b)" in found[1].text


def test_a_draw_is_repeatable_takes_a_place_once_and_survives_other_edits():
    text = "".join(f"def f{index}(a, b):\n    return a[{index}] < b\n" for index in range(30))
    drawn = mutants.drawn(mutants.mutants_of(FILE, text), 7, 10)
    assert len({item.at for item in drawn}) == 10
    assert [item.key for item in mutants.drawn(mutants.mutants_of(FILE, text), 7, 10)] == [item.key for item in drawn]
    assert [item.key for item in mutants.drawn(mutants.mutants_of(FILE, text), 8, 10)] != [item.key for item in drawn]
    later = mutants.drawn(mutants.mutants_of(FILE, "import math\n\n" + text), 7, 10)
    assert [item.key for item in later] == [item.key for item in drawn]


def test_the_tests_that_call_a_function_run_the_quickest_first():
    record = {
        name: {"seconds": seconds, "functions": functions}
        for name, seconds, functions in [
            ("tests/slow.py::a", 9.0, ["made_up.py:f"]),
            ("tests/quick.py::b", 0.1, ["made_up.py:f", "other.py:f"]),
            ("tests/test_made_up.py::c", 0.5, ["made_up.py:f"]),
            ("tests/quick.py::d", 0.1, ["made_up.py:g"]),
        ]
    }
    inside, unknown = mutants.mutants_of(FILE, "def f(a, b):\n    a += b\ndef h(a, b):\n    return a + b\n")
    selection = mutants.Selection(record)
    assert selection.tests(inside) == [
        ("tests/quick.py::b", 10),
        ("tests/test_made_up.py::c", 12),
        ("tests/slow.py::a", 55),
    ]
    assert sorted(test for test, _ in selection.tests(unknown)) == sorted(record)  # no test is known to call it


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


def test_what_tests_call_is_kept_piece_by_piece_so_that_a_cut_run_goes_on(monkeypatch, tmp_path):
    asked = []

    class Recorded:
        names = ("a", "b", "c", "d", "e")
        hangs = True

        def __init__(self, tree):
            pass

        def answer(self, job):
            tests = [name for name, _ in job.tests]
            asked.append(tests)
            if self.hangs and "c" in tests:
                return mutants.Answer("a hang")
            return mutants.Answer("", {name: {"seconds": 1.0, "functions": []} for name in tests})

        def close(self):
            pass

    monkeypatch.setattr(mutants, "Tests", Recorded)
    monkeypatch.setattr(mutants, "RECORDED_AT_ONCE", 2)
    monkeypatch.setattr(mutants, "in_copies", lambda parts, one, clean, jobs: [one(part, clean) for part in parts])
    file = str(tmp_path / "covering.json")
    assert mutants.called_by_tests(None, 1, file)[1] == "a hang"
    assert asked == [["a", "b"], ["c", "d"]]
    monkeypatch.setattr(Recorded, "hangs", False)
    record, failed = mutants.called_by_tests(None, 1, file)
    assert (sorted(record), failed) == (["a", "b", "c", "d", "e"], "")
    assert asked[2:] == [["c", "d"], ["e"]]
