"""Where the tests find what they share, Hypothesis for all of them, and which of them share a process.

``tests/lib`` holds worlds, servers and models made for tests; ``scripts`` (``lib``, ``replicate``, ``draw``) what is
tested there or shared with a replication.

Several tests run at once (``make test``: ``pytest -n JOBS``). Tests of the live side measure time, start servers and
load real networks once per module: one process has all of them, one after the other, while the others simulate. What
else shares something is named in ``TOGETHER``; all other tests go to whichever process is free.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, List

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS / "lib"), str(TESTS.parent / "scripts")]

# The same examples on every run, and no limit on time: that belongs to the machine.
settings.register_profile("edgeserve", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("edgeserve")


TOGETHER = ("tests/live/", "tests/hostile/", "tests/sim/test_soak.py", "tests/sim/test_tune.py", "tests/test_layout.py")
"""The tests of one of these run in one process, in order."""

WALL_TIME = ("tests/live/", "tests/hostile/", "tests/test_docs.py")
"""Tests that start processes and wait for them, on machines that others share: a failure counts when it comes twice in
a row. Those that passed at the second time are counted in pytest's closing line (``rerun``) and named with ``-rR``."""


def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(WALL_TIME):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Not ``--dist loadgroup``: pytest 9.2 keeps ids where pytest-xdist 3.8 does not write the names of its groups, and
    every test runs anywhere without a word."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((place for place in TOGETHER if nodeid.startswith(place)), nodeid)

    return Together(config, log)
