"""The share of its worth that an app has with some of its models."""

from __future__ import annotations

from itertools import combinations

import pytest

from edgeserve.sched.resources.model_worth import AppDemand


@pytest.mark.parametrize("members", [0, 2, 3, 6])
@pytest.mark.parametrize("needed", [1, 2, 6])
def test_a_model_more_is_never_worth_less_and_an_ensemble_answers_with_some_of_its_members(needed, members):
    chosen = tuple(f"m{index}" for index in range(members))
    models = tuple(f"n{index}" for index in range(needed)) + chosen
    app = AppDemand(models, chosen, 1, 1.0, 0.0)
    for count in range(len(models)):
        for some in combinations(models, count):
            here = set(some)
            for model in models:
                assert app.part(here | {model}) >= app.part(here)
    assert (app.part(set()), app.part(set(models))) == (0.0, 1.0)
    for count in range(1, members):
        assert app.part(set(models[: needed + count])) == pytest.approx(count / members)


def test_of_variants_the_best_that_is_there_counts():
    app = AppDemand(("full", "small"), (), 1, 1.0, 0.0, {"full": 0.9, "small": 0.6})
    parts = [app.part(here) for here in (set(), {"small"}, {"full"}, {"full", "small"})]
    assert parts == pytest.approx([0.0, 0.6 / 0.9, 1.0, 1.0])
