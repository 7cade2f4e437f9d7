"""Every app whose true times allow its deadline is served again soon after what was wrong is over, under every policy.
``make soak`` runs more seeds."""

from __future__ import annotations

import pytest

from edgeserve.sim import soak_recovery
from edgeserve.sim.soak_recovery import RecoveryError, recover


@pytest.mark.parametrize("first", range(0, 100, 10))
def test_apps_are_served_again(first):
    for seed in range(first, first + 10):
        recover(seed)


def test_the_rule_notices_a_policy_that_stays_down(monkeypatch):
    drawn = soak_recovery.parse_scenario
    monkeypatch.setattr(soak_recovery, "parse_scenario", lambda table: drawn(
        {**table, "policy": {kind: {"trials": False} for kind in table["policy"]}}))
    failed = []
    for seed in range(60):
        try:
            recover(seed, ("edf", "clockwork"))
        except RecoveryError as error:
            failed.append(str(error))
    assert len(failed) >= 3
    assert all("seed " in text and "lost" in text for text in failed)
