"""Where the tests find what they share, and Hypothesis for all of them.

``tests/lib`` holds worlds, servers and models made for tests; ``scripts`` (``lib``, ``replicate``, ``draw``) what is
tested there or shared with a replication.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS / "lib"), str(TESTS.parent / "scripts")]

# The same examples on every run, and no limit on time: that belongs to the machine.
settings.register_profile("edgeserve", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("edgeserve")
