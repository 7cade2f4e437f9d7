"""The checks of the replications can fail: a result outside its band does, and a shortfall that is not as known."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path

import pytest
from common import replicated
from for_each import for_each
from lib.checks import Checks, Known
from parsed import tree_of
from replicate.schemble import run as schemble

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {
    path.relative_to(ROOT).as_posix(): path
    for folder in ("bench", "replicate")
    for path in sorted((ROOT / "research" / folder).rglob("*.py"))
}
KNOWN = {"x": Known(1.0, 2.0, "nobody knows")}


@pytest.mark.parametrize("value", [0.89, 1.11, math.nan])
def test_a_band_fails_on_either_side_and_without_a_number(value, capsys):
    for good in (0.9, 1.0, 1.1):
        checks = Checks("s", strict=True)
        checks.near("x", good, 1.0, 0.1)
        assert checks.finish(None, {}) == 0
    checks.near("x", value, 1.0, 0.1)
    assert checks.finish(None, {}) == 1
    assert f"falls short: x (stated: 1): {value:.4g} where 0.9 to 1.1" in capsys.readouterr().out


def test_a_command_without_a_check_fails(capsys):
    assert Checks("s").finish(None, {}) == 1
    assert "no check was made" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "status", "said"),
    [(1.5, 0, "known"), (0.5, 1, "NOT AS KNOWN"), (2.5, 1, "NOT AS KNOWN"), (3.5, 1, "NOT AS KNOWN")],
)
def test_what_is_known_to_fall_short_fails_when_it_becomes_worse_and_when_better(value, status, said, capsys, tmp_path):
    checks = Checks("s", KNOWN, strict=True)
    checks.at_least("x", value, 3.0, "more is better")
    checks.is_true("another", True)
    assert checks.finish(str(tmp_path / "x.json"), {}) == status
    assert said in capsys.readouterr().out
    row = json.loads((tmp_path / "x.json").read_text())["checks"][0]
    assert row["known"] == "nobody knows" and row["one_side"] == "more is better"
    assert row["holds"] == (value >= 3.0)


def test_a_shortfall_that_is_not_known_fails():
    checks = Checks("s", KNOWN)
    checks.at_most("y", 1.5, 1.0)
    assert checks.finish(None, {}) == 1


def test_one_side_needs_a_reason():
    checks = replicated.checks_of("s")
    with pytest.raises(ValueError, match="one side and no reason"):
        checks.at_least("x", 1.0, 0.0)
    checks = replicated.checks_of("s", one_side=replicated.BEYOND)
    checks.at_least("x", 1.0, 0.0)
    assert checks.rows[0].one_side == replicated.BEYOND


@for_each(lambda: sorted(SOURCES))
def test_every_command_takes_its_checks_from_the_list_of_what_is_known(path):
    called = [node.func for node in ast.walk(tree_of(SOURCES[path].read_text())) if isinstance(node, ast.Call)]
    names = {getattr(function, "id", getattr(function, "attr", "")) for function in called}
    assert "Checks" not in names, f"{path}: use common.replicated.checks_of"
    assert "finish" not in names or "checks_of" in names


def test_every_known_shortfall_has_a_command_a_band_and_a_reason():
    for command, rows in replicated.KNOWN.items():
        script = command.replace(" --quick", "")
        assert script in SOURCES
        for name, known in rows.items():
            assert known.low <= known.high and len(known.why) > 20, (command, name)


# --- each paper: its stated numbers pass, and others do not -----------------------------------------------------------


def test_digits_that_are_missing_are_told_with_the_command_that_fetches_them(monkeypatch, tmp_path):
    monkeypatch.setattr(schemble.ensemble, "resolve_path", lambda file, directory: str(tmp_path / "none"))
    with pytest.raises(SystemExit, match=r"python -m edgeserve.commands.assets examples/dynamic/assets.toml"):
        schemble.ensemble.need_digits()
