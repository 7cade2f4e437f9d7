"""A few kB that declare much: what is declared is checked before anything is allocated or looped over."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any, Dict

import declared_sizes
import pytest
from declared_sizes import CASES, NEEDS

MIB_MAX = 48.0
S_MAX = 1.5
"""Seconds of processor time: the slowest case reads 64 MiB of zeros to the bound of a body."""

UNPACKED = ("gzip", "deflate")
UNPACKED_MIB = 160.0
"""The memory of a body that is unpacked up to its bound, 64 MiB, and then is too large."""

WELL = {"wav: 4 GB follow", "ros: a cloud of 4e9 x 4e9"}
"""Cases that may end well: the file is shorter than it says, and is taken as it is."""

pytestmark = [
    pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="Linux tells the most memory there was"),
    pytest.mark.timeout(300),
]


def is_there(name: str) -> bool:
    package = NEEDS.get(name.partition(":")[0])
    return package is None or importlib.util.find_spec(package) is not None


@pytest.fixture(scope="module")
def ends() -> Dict[str, Any]:
    names = [name for name in CASES if is_there(name)]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", declared_sizes.__file__, *names],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(names), f"{names[len(found)]} ended the process: {done.stderr[-2000:]}"
    return {each["name"]: each for each in found}


@pytest.mark.parametrize("name", CASES)
def test_a_few_kb_take_little_and_end_with_a_typed_error(ends: Dict[str, Any], name: str) -> None:
    if not is_there(name):
        pytest.skip(f"needs {NEEDS[name.partition(':')[0]]}")
    end = ends[name]
    assert end["mib"] < (UNPACKED_MIB if name.startswith(UNPACKED) else MIB_MAX), end
    assert end["s"] < S_MAX, end
    assert "EdgeServeError" in end["raised"] or "BadSound" in end["raised"] or (name in WELL and not end["raised"]), end
