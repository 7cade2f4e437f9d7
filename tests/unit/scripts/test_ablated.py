"""Every row of the ablation switches off something that exists."""

from __future__ import annotations

from pathlib import Path

import pytest
from lib.ablated import MECHANISMS, Mechanism

from edgeserve.sched.policies import POLICIES

SCHED = Path(__file__).resolve().parents[3] / "edgeserve" / "sched"


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=[mechanism.name for mechanism in MECHANISMS])
def test_what_a_row_switches_off_is_there(mechanism: Mechanism) -> None:
    assert mechanism.parts or mechanism.options
    for part in mechanism.parts:
        assert part.attribute in vars(part.owner), f"{part.owner} has no {part.attribute}: mend scripts/lib/ablated.py"
    for kind, options in mechanism.options.items():
        POLICIES[kind]("p", (), options)
    assert (SCHED / mechanism.where).exists() or (SCHED.parent / mechanism.where).exists(), mechanism.where
