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
from replicate.clockwork import run as clockwork
from replicate.orloj import cases as orloj_cases
from replicate.orloj import run as orloj
from replicate.pard import run as pard
from replicate.pard.world import Outcome
from replicate.rtlm import cases as rtlm_cases
from replicate.rtlm import run as rtlm
from replicate.rtlm import world as rtlm_world
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


def short(checks):
    """The names of what falls short, in a run in which nothing is known to."""
    return [row.name for row in checks.rows if not row.holds]


def fresh(strict=True):
    return Checks("s", strict=strict)


def orloj_rows(law, change=lambda system, rate: rate):
    """Every system at the specification's rates, on every case of a law; what it has no rate for is left out."""
    cases = [case.name for case in orloj_cases.LAWS[law].cases]
    return [
        orloj.Row(law, case, 1, system, factor, change(system, rate), 0.0, 1.0)
        for (system, factor), rate in orloj.output.reference_rates(law).items()
        for case in cases
    ]


@pytest.mark.parametrize("law", sorted(orloj_cases.LAWS))
def test_orloj_holds_at_the_stated_rates_and_fails_beside_them(law):
    checks = fresh()
    orloj.check_law(checks, law, orloj_rows(law), quick=False)
    assert not short(checks) and len(checks.rows) >= 52
    for system in ("Orloj A", "Clockwork"):
        for by in (-0.06, 0.06):
            checks = fresh()
            changed = orloj_rows(law, lambda name, rate, system=system, by=by: rate + by * (name == system))
            orloj.check_law(checks, law, changed, quick=False)
            assert sum(system in name and " at " in name for name in short(checks)) == 5


def test_plan_that_gains_nothing_by_lengths_fails_in_a_quick_run_too():
    rows = [
        orloj.Row("PD", case, 1, system, factor, rate, 0.0, 1.0)
        for case in orloj.QUICK_CASES
        for system, rate in (("Orloj A", 0.88), (orloj.BETTER, 0.93), (orloj.ORACLE, 0.31))
        for factor in orloj.FACTORS
    ]
    checks = fresh()
    orloj.check_law(checks, "PD", rows, quick=True)
    assert short(checks) == ["PD points of plan, true lengths ahead of plan"]


def test_every_part_of_orloj_has_checks_that_can_fail():
    rows = [
        orloj.Row("resnet-imagenet", "resnet-imagenet", 1, system, factor, 0.05, 0.0, 1.0)
        for system in orloj.output.PAPER
        for factor in orloj.FACTORS
    ]
    checks = fresh()
    orloj.check_static(checks, "resnet-imagenet", rows)
    assert len(short(checks)) == len(checks.rows) == 4
    for by, count in ((1.0, 0), (0.8, 3), (1.2, 3)):
        checks, stated = fresh(), orloj.LOADS_STATED["PD", 3.0]
        rates = {name: rate * by for name, rate in zip(orloj.LOAD_SYSTEMS, stated)}
        orloj.check_loads(checks, [{"law": "PD", "factor": 3.0, "target": 0.95, "rates": rates}])
        assert len(short(checks)) == count


def clockwork_goodputs(clipper=500.0, infaas=800.0, tight=0.0):
    return {
        "Clockwork 20.0": {25: 570.0, 50: 775.0, 500: 800.0},
        "Clipper 20.0": {25: tight, 50: tight, 500: clipper},
        "INFaaS-like 20.0": {25: tight, 50: tight, 500: infaas},
    }


@pytest.mark.parametrize(
    ("given", "count"),
    [({}, 0), ({"clipper": 790.0}, 1), ({"clipper": 10.0}, 1), ({"infaas": 600.0}, 1), ({"tight": 400.0}, 4)],
)
def test_clockworks_baselines_are_held_on_both_sides(given, count):
    checks = fresh()
    rows = [{"system": "INFaaS-like", "slo_ms": 500, "finish_rate": 0.99}]
    clockwork._check_baselines(checks, clockwork_goodputs(**given), rows)
    assert len(short(checks)) == count


def ramp_rows(**changed):
    """Every system of the ramp at the specification's means; systems that it does not have are made up."""
    spec = rtlm_cases.SPEC_RAMP
    own = {"FIFO, kappa 2": 2.25, "LUF, kappa 2": 2.2, "plan": 0.6}
    found = {}
    for name in rtlm_cases.RAMP:
        means = [changed.get(name, 1.0) * mean for mean in spec.get(name, {}).get("DialoGPT", 3 * [own.get(name, 2.0)])]
        if name == "FIFO, kappa 2":
            means = [changed.get(name, 1.0) * 1.05 * mean for mean in spec["rtlm, kappa 2"]["DialoGPT"]]
        if name == "LUF, kappa 2":
            means = [changed.get(name, 1.0) * 1.02 * mean for mean in spec["rtlm, kappa 2"]["DialoGPT"]]
        found[name] = [rtlm_world.Result(mean, 0.0, 5.0, 0.0, 0.0, 0.0, 0.0, 1) for mean in means]
    return found


@pytest.mark.parametrize("by", [0.8, 1.25])
@pytest.mark.parametrize("system", sorted(rtlm_cases.SPEC_RAMP))
def test_rtlms_ramp_is_held_to_the_specification_on_both_sides(system, by):
    checks = fresh()
    rtlm._check_ramp(checks, "DialoGPT", ramp_rows())
    paper_only = "rtlm on one device ahead of LUF"  # the specification does not have it either
    assert all(paper_only in name for name in short(checks))
    checks = fresh()
    rtlm._check_ramp(checks, "DialoGPT", ramp_rows(**{system: by}))
    assert sum(f"{system} beside the specification" in name for name in short(checks)) == 3


def test_rtlm_is_held_against_fifo_on_as_many_devices():
    alone, beside = [rtlm_cases.RAMP[name] for name in ("FIFO", "FIFO, kappa 2")]
    assert (alone.kappa, beside.kappa) == (0.0, rtlm_cases.RAMP["rtlm, kappa 2"].kappa)
    checks = fresh()
    rtlm._check_ramp(checks, "DialoGPT", ramp_rows(**{"FIFO, kappa 2": 0.9}))
    assert sum("beside FIFO on the same lanes" in name for name in short(checks)) == 3


def schemble_rows(**changed):
    return {
        name: schemble.Result(*[0.0] * 11)._replace(
            accuracy=(right + changed.get(name, 0.0)) / 100, missed=(late - changed.get(name, 0.0)) / 100
        )
        for name, (right, late) in schemble.REFERENCE.items()
    }


@pytest.mark.parametrize("by", [-5.0, 5.0])
@pytest.mark.parametrize("name", sorted(schemble.REFERENCE))
def test_schembles_rows_are_held_on_both_sides(name, by):
    checks = fresh()
    schemble._check_table(checks, schemble_rows(), 0.0)
    assert not short(checks)
    checks = fresh()
    schemble._check_table(checks, schemble_rows(**{name: by}), 0.0)
    assert any(row.startswith(f"{name} accuracy") for row in short(checks))


def test_schemble_is_ordered_beside_the_strongest_static_choice():
    assert {len(name.split(",")[0].split("+")) for name in schemble.STATIC_ALL} == {1, 2}
    assert len(schemble.STATIC_ALL) == 9  # three of one model, or two of one and one of another
    checks = fresh()
    schemble._check_table(checks, schemble_rows(**{schemble.STATIC_BEST: 1.5}), 0.0)
    assert short(checks) == ["greedy edf ahead of static, any"]


def test_digits_that_are_missing_are_told_with_the_command_that_fetches_them(monkeypatch, tmp_path):
    monkeypatch.setattr(schemble.ensemble, "resolve_path", lambda file, directory: str(tmp_path / "none"))
    with pytest.raises(SystemExit, match=r"python -m edgeserve.commands.assets examples/dynamic/assets.toml"):
        schemble.ensemble.need_digits()


def stress(**changed):
    """The stress table of PARD at the reference's drops."""
    return {
        (name, f"rho {rho}"): Outcome(1000, 900, 0, changed.get(name, 1.0) * drops[rho] / 100, 0.0, {}, {})
        for name, (_, _, drops) in pard.STRESS.items()
        for rho in pard.STRESS_SECONDS
    }


def test_pards_stress_holds_at_the_references_drops_and_fails_beside_them(capsys):
    fluid = {f"rho {rho}": max(0.0, 1 - 1 / rho) for rho in pard.STRESS_SECONDS}
    checks = fresh()
    pard.show_stress(stress(), fluid, checks, quick=False)
    assert not short(checks)
    for given, what in (({"PARD": 1.3}, "PARD's drop"), ({"PARD": 0.5}, "PARD's drop"), ({"Nexus": 0.6}, "Nexus")):
        checks = fresh()
        pard.show_stress(stress(**given), fluid, checks, quick=False)
        assert any(what in name for name in short(checks))


def traces(**changed):
    """The traces of PARD at the reference's drops."""
    return {
        (name, where): Outcome(
            1000, 900, 0, changed.get(name, 1.0) * drop / 100, 0.0, {"a": 1, "b": 1}, {0: (100, gained)}
        )
        for where, drops in pard.REFERENCE.items()
        for name, drop, gained in zip(pard.POLICIES, drops, (90, 70, 75, 60, 91))
    }


def test_pards_traces_hold_at_the_references_drops_and_fail_beside_them(capsys):
    fluid = dict.fromkeys(pard.REFERENCE, 0.0)
    checks = fresh()
    pard.show_traces(traces(), fluid, checks, quick=False)
    assert not short(checks)
    for given in ({"Nexus": 0.3}, {"Nexus": 6.0}, {"naive": 0.2}, {"pard+": 0.4}, {"pard+": 1.6}):
        checks = fresh()
        pard.show_traces(traces(**given), fluid, checks, quick=False)
        assert short(checks)
