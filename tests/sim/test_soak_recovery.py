"""Every app whose true times allow its deadline is served again soon after what was wrong is over, under every policy.
``make soak`` runs more seeds."""

from __future__ import annotations

import random

import pytest
from lib import soak_recovery as recovery
from lib.soak_recovery import recover


@pytest.mark.parametrize("first", [0, *[pytest.param(first, marks=pytest.mark.worlds) for first in range(10, 50, 10)]])
def test_apps_are_served_again(first):
    for seed in range(first, first + 10):
        recover(seed)


def test_times_are_believed_from_the_configuration_a_profile_and_measurements_at_start():
    sources = set()
    wrong = []
    for seed in range(12):
        draw, source = random.Random(f"{seed}/recovery"), random.Random(f"{seed}/beliefs")
        scenario, _, beliefs = recovery.draw_recovery(draw, draw.choice(["edf"]), source)
        models = scenario.config.models.values()
        sources |= {"expected" for model in models if model.expected}
        sources |= {"profile" for _ in beliefs.profiles} | {"start-up" for _ in beliefs.measured}
        told = [
            {model.name for model in models if model.expected},
            {item.model for item in beliefs.profiles},
            {name for name, _ in beliefs.measured},
        ]
        assert sorted(name for names in told for name in names) == sorted(model.name for model in models)
        wrong += [
            timing.median_ns / scenario.truths[item.model].times[size]
            for item in beliefs.profiles
            for size, timing in item.lanes["l0"].timings.items()
        ]
    assert sources == {"expected", "profile", "start-up"}
    assert min(wrong) < 0.5
    assert max(wrong) > 4
