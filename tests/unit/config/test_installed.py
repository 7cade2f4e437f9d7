"""Entry points of other packages: their commands and fronts, and that a broken package breaks itself alone."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from edgeserve import cli

GOOD = '''
"""Say a word.

Not shown.
"""
from edgeserve.errors import BadInput

ENDS = {1: "the word is short"}

def add_arguments(parser):
    parser.add_argument("word", help="what to say")

def main(args):
    if args.word == "bad":
        raise BadInput("a bad word")
    print(args.word)
    return 1 if len(args.word) < 3 else None
'''

POINTS = """
[edgeserve.commands]
word = good_word
serve = good_word
stats = good_word
raises = raising_word
exits = exiting_word
lacks = lacking_word
function = good_word:main

[edgeserve.fronts]
line = no_such_module:LineFront
http = no_such_module:LineFront
"""


@pytest.fixture(autouse=True)
def _packages(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with commands and fronts, and one whose entry points are no text."""
    modules = {"good": GOOD, "raising": "import no_such_module", "exiting": "raise SystemExit(7)", "lacking": ""}
    for name, text in modules.items():
        (tmp_path / f"{name}_word.py").write_text(text)
    for name, points in (("words", POINTS.encode()), ("damaged", b"\xff\xfe")):
        about = tmp_path / f"{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_bytes(points)
    monkeypatch.syspath_prepend(str(tmp_path))


def status_of(*words: str) -> int:
    try:
        return cli.main(words)
    except SystemExit as end:
        return int(end.code or 0)


def test_an_installed_command_is_run_by_its_name(capsys: Any) -> None:
    assert [status_of("word", word) for word in ("hello", "hi", "bad")] == [0, 1, 2]
    out = capsys.readouterr()
    assert (out.out, out.err) == ("hello\nhi\n", "edgeserve: a bad word\n")
    assert status_of("word", "--wort") == 2
    assert "--wort: there is no such option" in capsys.readouterr().err


def test_its_help_is_its_docstring_and_its_exit_statuses(capsys: Any) -> None:
    assert status_of("word", "--help") == 0
    shown = capsys.readouterr().out
    assert "Say a word." in shown and "Not shown" not in shown and "1: the word is short" in shown


def test_the_help_lists_it_with_its_package_and_imports_nothing() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from edgeserve import cli\n"
        "try: cli.main()\nexcept SystemExit: pass\n"
        "print([name for name in sys.modules if name.endswith('_word')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, sys.path[0], "--help"], capture_output=True, text=True, timeout=60
    )
    *shown, imported = done.stdout.splitlines()
    rows = [line.split(None, 1) for line in shown if "of the package words" in line]
    assert [row[0] for row in rows] == ["exits", "function", "lacks", "raises", "word"]
    assert imported == "[]"


@pytest.mark.parametrize("verb", ["serve", "stats"])
def test_it_never_stands_in_for_one_of_ours_or_for_one_that_went(verb: str, capsys: Any) -> None:
    assert verb not in cli.installed_verbs()
    assert status_of(verb, "absent.toml") == 2
    assert "absent.toml" in capsys.readouterr().err or verb == "stats"


@pytest.mark.parametrize(
    ("verb", "says"),
    [
        ("raises", "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        ("exits", "cannot be imported: SystemExit: 7"),
        ("lacks", "'lacking_word' of the package words is no command; expected a module with add_arguments(parser)"),
        ("function", "cannot be imported: ModuleNotFoundError: No module named 'good_word:main'"),
    ],
)
def test_what_is_no_command_is_said_when_it_is_asked_for(verb: str, says: str, capsys: Any) -> None:
    assert status_of(verb) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"edgeserve: {verb}: ") and says in said and said.count("\n") == 1


def test_a_wrong_verb_is_answered_with_the_nearest_that_is_installed(capsys: Any) -> None:
    assert status_of("wordd") == 2
    assert "there is no such verb; did you mean 'word'?" in capsys.readouterr().err


def test_the_help_of_fronts_lists_those_of_other_packages(capsys: Any) -> None:
    assert status_of("front", "--help") == 0
    assert "Installed as well: line (of the package words)." in " ".join(capsys.readouterr().out.split())
    assert status_of("front", "line", "--help") == 2
    assert "needs no_such_module" in capsys.readouterr().err
