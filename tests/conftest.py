"""Where the tests find what they share, Hypothesis for all of them, and which of them share a process.

``tests/lib`` holds worlds, servers and models made for tests; ``scripts`` (``lib``, ``replicate``, ``draw``) what is
tested there or shared with a replication.

Several tests run at once (``make test``: ``pytest -n JOBS --dist loadgroup``). Tests of the live side measure time,
start servers and load real networks once per module: one process has all of them, one after the other, while the
others simulate. All other tests go to whichever process is free, unless they are marked.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import List

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS / "lib"), str(TESTS.parent / "scripts")]

# The same examples on every run, and no limit on time: that belongs to the machine.
settings.register_profile("edgeserve", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("edgeserve")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for the marks
def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    for item in items:
        if TESTS / "live" in Path(str(item.fspath)).parents:
            item.add_marker(pytest.mark.xdist_group("live"))
