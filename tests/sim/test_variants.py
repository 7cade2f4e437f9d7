"""Models with variants in drawn worlds: every request ends once, and none gets less than it wants."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from edgeserve.config.loading import parse_config
from edgeserve.testing.soak.run import draw_scenario, hold
from edgeserve.units import format_duration


def with_variants(scenario, seed):
    """The scenario with variants of the models of its apps of one model."""
    draw = random.Random(f"{seed}/variants")
    edge = {section: dict(table) for section, table in scenario.edge.items()}
    truths = dict(scenario.truths)
    for name, app in list(edge["app"].items()):
        model = app.get("model", "")
        truth = truths.get(model)
        if not model or "variants" in edge["model"][model] or (truth is not None and truth.state_bytes):
            continue
        variants = {}
        for index in range(draw.randrange(1, 4)):
            variant, part = f"{model}_v{index}", draw.choice((0.2, 0.5, 1.3))
            times = scenario.config.models[model].expected
            edge["model"][variant] = {
                **edge["model"][model],
                "expected": {str(size): format_duration(round(time_ns * part)) for size, time_ns in times.items()},
            }
            if draw.random() < 0.5:
                edge["model"][variant].pop("lanes", None)
            if truth is not None:
                truths[variant] = replace(truth, model=variant, times={})
            variants[variant] = draw.choice((0.4, 0.7, 0.9, 1.0))
        edge["model"][model] = {**edge["model"][model], "variants": variants}
        edge["app"][name] = {**app, "least_quality": draw.choice((0.0, 0.5, 0.8))}
    config = parse_config(edge, scenario.config.directory)
    return replace(scenario, config=config, edge=edge, truths=truths)


@pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 60), marks=pytest.mark.worlds)])
def test_every_rule_holds(seeds):
    served = 0
    for seed in seeds:
        print(f"seed {seed}")
        drawn, drain = draw_scenario(seed, ("plan",), deep=seed % 3 == 0)
        scenario = with_variants(drawn, seed)
        least = {name: app.least_quality for name, app in scenario.config.apps.items()}
        worlds = []
        hold(scenario, seed, drain, prepare=lambda scheduler, world: worlds.append(world))  # noqa: B023
        for item in worlds[0].ended:
            if item.variant:
                served += 1
                qualities = scenario.config.apps[item.request.app].variants
                assert item.quality == qualities[item.variant] >= least[item.request.app]
    assert served
