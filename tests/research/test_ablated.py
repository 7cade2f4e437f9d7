"""Every row of the ablation switches off something that exists."""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from pathlib import Path
from typing import Set

import pytest
from common.ablated import MECHANISMS, Mechanism

from edgeserve.sched.plan import choose
from edgeserve.sched.policies import POLICIES

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
SCHED = Path(__file__).resolve().parents[2] / "edgeserve" / "sched"


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=[mechanism.name for mechanism in MECHANISMS])
def test_what_a_row_switches_off_is_there(mechanism: Mechanism) -> None:
    assert mechanism.parts or mechanism.settings or mechanism.instead
    for part in mechanism.parts:
        assert part.attribute in vars(part.owner), (
            f"{part.owner} has no {part.attribute}: mend research/common/ablated.py"
        )
        replaced = vars(part.owner)[part.attribute]  # by a function, which an instance's slot cannot be
        assert callable(replaced) or isinstance(replaced, property), part.attribute
        real = inspect.signature(replaced.fget if isinstance(replaced, property) else replaced)
        inspect.signature(part.off).bind(*[item.name for item in real.parameters.values() if item.kind in POSITIONAL])
    for setting in mechanism.settings:
        assert vars(setting.owner)[setting.attribute] != setting.off
    assert set(mechanism.instead) | set(mechanism.instead.values()) <= set(POLICIES)
    assert (SCHED / mechanism.where).exists() or (SCHED.parent / mechanism.where).exists(), mechanism.where


def test_a_whole_policy_is_off_where_another_one_serves_its_apps():
    row = next(item for item in MECHANISMS if item.instead)
    kind, other = next(iter(row.instead.items()))
    acted: Set[str] = set()
    with ExitStack() as stack:
        row.switch_off(stack)
        assert POLICIES[kind] is POLICIES[other]
    assert POLICIES[kind] is not POLICIES[other]
    with ExitStack() as stack:
        row.watch(stack, acted, {other})
        assert not acted
        row.watch(stack, acted, {kind})
        assert acted == {row.name}


def test_a_constant_is_off_until_the_stack_closes_and_acts_where_plan_serves():
    row = next(item for item in MECHANISMS if item.settings)
    before, acted = choose.GUARD_MAX, set()
    with ExitStack() as stack:
        row.switch_off(stack)
        assert choose.GUARD_MAX == 0.0 != before
    assert before == choose.GUARD_MAX
    with ExitStack() as stack:
        row.watch(stack, acted, {"edf"})
        assert not acted
        row.watch(stack, acted, {"plan"})
        assert acted == {row.name}
