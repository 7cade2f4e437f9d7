"""Scenarios of the simulator: models and apps as in ``hand_world.table``, and who asks how often."""

from __future__ import annotations

from typing import Any, Iterable, List, Mapping, Union

import pytest
from hand_world import table

from edgeserve.sim.scenario import Scenario, parse_scenario


def scenario_of(
    models: Mapping[str, Mapping[Any, Any]],
    apps: Mapping[str, Any],
    workload: Mapping[str, Mapping[str, Any]],
    policy: Union[str, Mapping[str, Any]] = "",
    *,
    seconds: float = 1.0,
    run: Mapping[str, Any] | None = None,
    directory: str = ".",
    **sections: Any,
) -> Scenario:
    """``workload``: name -> its keys; without "app" it asks the app of its name. ``policy``: a kind, or a section."""
    if policy:
        sections["policy"] = {policy: {}} if isinstance(policy, str) else policy
    sections["workload"] = {name: {"app": name, **keys} for name, keys in workload.items()}
    sections["run"] = {"duration": f"{seconds}s", **(run or {})}
    return parse_scenario(table(models, apps, **sections), directory)


PRODUCT = ("fifo", "edf", "plan")


def product_first(policies: Iterable[str], *more: Any) -> List[Any]:
    """Values of a parameter: the product's policies; those of papers, and ``more`` ones of each, run nightly."""
    return [pytest.param(policy, *more, marks=() if policy in PRODUCT else pytest.mark.nightly) for policy in policies]


NO_STEP_COSTS = {"step_cost": "0us", "event_cost": "0us"}
"""For ``run``: the scheduler's own time is not charged."""
