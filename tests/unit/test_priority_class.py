"""The meaning of a class stands in one table: a further class needs no other place."""

from __future__ import annotations

import ast
import glob
import json
import os
import subprocess
import sys

import pytest

import edgeserve
from edgeserve.priority_class import CLASSES, LEAST, ORDINARY, RANKS, RESERVED, USUAL, YIELDING

PACKAGE = os.path.dirname(edgeserve.__file__)
OTHER_MEANINGS = {
    "device/thermal.py": "a kind of trip point",
    "fronts/http/responses.py": "a field of OpenAI's responses",
    "testing/soak/language.py": "drawn worlds have more of one class than of others",
    "testing/soak/run.py": "drawn worlds have more of one class than of others",
}

WITH_HIGH = """
import json
from edgeserve import priority_class as table
table.CLASSES = ("critical", "high", "normal", "background")
table.ORDINARY = table.CLASSES[1:-1]
table.RANKS = {name: rank for rank, name in enumerate(table.CLASSES)}
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import parse_scenario
apps = {name: {"model": "m", "slo": "60ms", "class": name} for name in table.CLASSES}
world = {
    "lane": {"gpu0": {}},
    "model": {"m": {"engine": "synthetic", "batch": [1, 2], "expected": {"1": "8ms", "2": "10ms"}}},
    "app": apps,
    "run": {"duration": "4s"},
    "workload": {name: {"app": name, "kind": "poisson", "rate": 70} for name in apps},
}
ended = simulate(parse_scenario(world), 7).world.ended
print(json.dumps({
    name: sum(item.in_time for item in ended if item.request.app == name)
    / sum(item.request.app == name for item in ended)
    for name in apps
}))
"""


def test_the_parts_are_all_classes_in_order():
    assert (*RESERVED, *ORDINARY, *YIELDING) == CLASSES == tuple(sorted(CLASSES, key=RANKS.__getitem__))
    assert USUAL in ORDINARY and LEAST in YIELDING


def test_no_other_code_names_a_class():
    found = []
    for path in glob.glob(os.path.join(PACKAGE, "**", "*.py"), recursive=True):
        name = os.path.relpath(path, PACKAGE)
        if name == "priority_class.py" or name in OTHER_MEANINGS:
            continue
        with open(path, encoding="utf-8") as file:
            nodes = ast.walk(ast.parse(file.read()))
        found += [f"{name}:{node.lineno}" for node in nodes if isinstance(node, ast.Constant) and node.value in CLASSES]
    assert not found


@pytest.mark.skipif(os.environ.get("EDGESERVE_CORE") == "compiled", reason="its tables are compiled into the core")
def test_a_class_between_two_goes_before_the_lower_one():
    environment = {**os.environ, "EDGESERVE_CORE": "interpreted"}
    done = subprocess.run(
        [sys.executable, "-c", WITH_HIGH], env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    in_time = json.loads(done.stdout)
    assert in_time["critical"] > 0.97
    assert in_time["critical"] >= in_time["high"] > in_time["normal"] + 0.1 > in_time["background"] + 0.1
