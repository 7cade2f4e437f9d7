"""The advice of ``edgeserve check`` helps: of drawn configurations each change that it prints is made, and the next run
finds what the first one said."""

from __future__ import annotations

import copy
import json
import random
import re
from typing import Any, Dict, List, Tuple

import pytest

from edgeserve import cli
from edgeserve.commands import check as tool

Case = Tuple[Dict[str, Any], Dict[str, float]]  # the configuration's table, and requests per second by app


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "REQUESTS_WANTED", 150)
    monkeypatch.setattr(tool, "REQUESTS_MAX", 300)
    monkeypatch.setattr(tool, "SEEDS", 2)
    monkeypatch.setattr(tool, "STEPS", 2)


def toml_of(table: Dict[str, Any]) -> str:
    """A table of tables as TOML; JSON's texts, numbers and lists are TOML's."""
    lines: List[str] = []
    for section, items in table.items():
        for name, keys in items.items():
            lines.append(f"[{section}.{json.dumps(name)}]")
            nodes = keys.get("node", [])
            for key, value in keys.items():
                if isinstance(value, dict):
                    lines.append(
                        f"{key} = {{ {', '.join(f'{json.dumps(k)} = {json.dumps(v)}' for k, v in value.items())} }}"
                    )
                elif key != "node":
                    lines.append(f"{key} = {json.dumps(value)}")
            for node in nodes:
                lines.append(f"[[{section}.{json.dumps(name)}.node]]")
                lines += [f"{key} = {json.dumps(value)}" for key, value in node.items()]
    return "\n".join(lines) + "\n"


def draw_case(seed: int) -> Case:
    draw = random.Random(f"{seed}/advice")
    table: Dict[str, Any] = {"lane": {"gpu": {}}, "model": {}, "app": {}}
    rates: Dict[str, float] = {}
    for name in "abc"[: draw.randrange(1, 4)]:
        ms = draw.choice((0.1, 1, 3, 10, 30, 80, 200))
        sizes = draw.choice(((1,), (1,), (1, 2, 4)))
        expected = {str(size): f"{ms * (1 + 0.3 * (size - 1)):g}ms" for size in sizes}
        table["model"][f"m{name}"] = {"engine": "synthetic", "batch": list(sizes), "expected": expected}
        slo_ms = max(1, round(ms * draw.choice((0.8, 1.2, 1.5, 2, 3, 8, 40))))
        table["app"][name] = {
            "model": f"m{name}",
            "slo": f"{slo_ms}ms",
            "class": draw.choice(("critical", "normal", "normal", "background")),
        }
        rates[name] = float(f"{draw.choice((0.05, 0.2, 0.4, 0.8, 1.1)) * 1000 / ms:.3g}")
    return table, rates


def run(tmp_path: Any, capsys: Any, case: Case) -> Dict[str, Any]:
    path = tmp_path / "edge.toml"
    path.write_text(toml_of(case[0]), encoding="utf-8")
    arguments = [f"--rate={name}={rate:g}" for name, rate in case[1].items()]
    cli.main(["check", str(path), *arguments, "--json"])
    said: Dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


def changed(case: Case, app: str, line: str) -> Case | None:
    """The case with the change that a line of advice says; ``None`` where it says none."""
    table, rates = copy.deepcopy(case[0]), dict(case[1])
    slo, wait = re.search(r'\[app\.(\w+)\] slo = "(\S+)"', line), re.search(r'background_wait = "(\S+)"', line)
    lane, parts = (
        re.search(r"\(\[lane\.([\w-]+)\]", line),
        re.search(r"the model in (\d+) parts of at most (\S+),", line),
    )
    fewer = re.search(r"fewer requests: about (.*?) hold", line)
    if not (slo or wait or lane or parts or fewer):
        return None
    if slo:
        table["app"][slo[1]]["slo"] = slo[2]
    if wait:
        table["app"][app]["background_wait"] = wait[1]
    if lane:
        table["lane"][lane[1]] = {}
        for model, lanes in re.findall(r"\[model\.(\w+)\] lanes = \[(.*?)\]", line):
            table["model"][model]["lanes"] = re.findall(r"'(.*?)'", lanes)
    if parts:
        model = table["app"][app].pop("model")
        names = [f"{model}{index}" for index in range(int(parts[1]))]
        whole = {size: float(text[:-2]) for size, text in table["model"][model]["expected"].items()}
        each = {size: f"{ms / len(names):.6f}ms" for size, ms in whole.items()}
        table["model"].update({name: {**table["model"][model], "expected": each} for name in names})
        table["app"][app]["node"] = [{"name": name} for name in names]
    if fewer:
        for text in fewer[1].split(" and "):
            rate, _, name = text.partition("/s")
            rates[name[4:] or app] = float(rate)
    return table, rates


def in_time(said: Dict[str, Any], app: str) -> float:
    """The share of an app's requests in time; 1 where none was simulated."""
    found = said["apps"][app]["in_time"]
    return 1.0 if found is None else float(found)


def paid(line: str) -> List[str]:
    """The apps that a change costs something, as its line says."""
    return re.findall(r"and only [\d.]+% of (\w+)", line)


@pytest.mark.parametrize("seed", [0, *[pytest.param(seed, marks=pytest.mark.worlds) for seed in range(1, 40)]])
def test_every_change_that_is_advised_does_what_it_says(tmp_path: Any, capsys: Any, seed: int) -> None:
    case = draw_case(seed)
    said = run(tmp_path, capsys, case)
    app = said["advice_for"]
    if not app:
        return
    lines = said["change"]
    assert any("no deadline helps" in line or "a longer deadline" in line for line in lines), lines
    for line in lines:
        after = changed(case, app, line)
        if after is None:
            continue
        found = run(tmp_path, capsys, after)
        if said["holds"] and "fewer requests" not in line:  # the break came at a higher load: it comes later now
            later = found["first_break"]
            assert later["load"] > said["first_break"]["load"] or later["app"] != app, (line, lines, later)
        else:
            assert in_time(found, app) >= said["in_time_min"], (line, lines)
        for name in case[1]:
            held = in_time(said, name) >= said["in_time_min"] and name not in paid(line)
            assert in_time(found, name) >= said["in_time_min"] or not held or name == app, (line, name)
        share = re.search(r"([\d.]+)% of (\w+) are in time then", line)
        if share and not said["holds"]:
            assert f"{in_time(found, share[2]):.1%}" == f"{share[1]}%", (line, found["apps"])
    if any("no deadline helps" in line for line in lines):
        table, rates = copy.deepcopy(case)
        slo_ms = float(table["app"][app]["slo"][:-2])
        table["app"][app]["slo"] = f"{50 * slo_ms:g}ms"
        found = run(tmp_path, capsys, (table, rates))
        assert said["holds"] or in_time(found, app) < said["in_time_min"]
