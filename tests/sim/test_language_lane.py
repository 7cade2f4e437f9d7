"""A language model beside a voice detector on one lane: the real scheduler and loop of steps in virtual time."""

from __future__ import annotations

import pytest
from language_lane import MS, Case, measure
from scenarios import scenario_of

from edgeserve.sim.run import simulate


@pytest.mark.parametrize("auction", [True, False])
def test_frames_are_in_time_beside_a_saturated_language_model_that_reads_in_turns(auction):
    row = measure(Case("int8", 4, 25 * MS, auction), 2.0, seed=2)
    assert row["frames"] > 100 and row["in_time"] >= 0.99
    assert row["turn_ms_max"] <= 25


def test_they_are_not_where_prompts_are_read_whole():
    row = measure(Case("int8", 4, 0, True), 2.0, seed=2)
    assert row["in_time"] < 0.97 and row["turn_ms_max"] > 100


def frames_and_answers(prefill_turn, seed):
    """An assistant beside a camera, each of which wants about a third of the lane: what is in time, in percent."""
    scenario = scenario_of(
        {"chat": {"batch": [1, 2, 4, 8]}, "see": {1: 8, 2: 12, 4: 20}},
        {
            "assistant": {"model": "chat", "slo": "8s"},
            "frames": {"model": "see", "slo": "120ms"},
        },
        {
            "people": {
                "app": "assistant",
                "rate": 2.3,
                "hints": {"words": {"lognormal": [50.0, 0.6]}, "tokens": {"lognormal": [150.0, 0.5]}},
            },
            "camera": {"app": "frames", "rate": 58.0},
        },
        "",
        seconds=20,
        lane={"gpu0": {}},
        truth={
            "chat": {
                "steps_hint": "words",
                "steps_max": 400,
                "batching": "continuous",
                "context": 2000,
                "told": True,
                "prefill_turn": prefill_turn,
                "prefill_token": "0.1ms",
                "predict": {"rho": 0.8},
                "step": {"full": "10ms", "saturates": 8, "alone": 0.75},
            }
        },
    )
    world = simulate(scenario, seed, []).world
    in_time = {
        app: [end.outcome == "completed" for end in world.ended if end.request.app == app]
        for app in ("frames", "assistant")
    }
    return {app: 100.0 * sum(found) / len(found) for app, found in in_time.items()}


@pytest.mark.parametrize("seed", [1, 2])
def test_a_language_model_that_reads_in_turns_does_not_bid_the_worth_of_whole_answers_in_each_of_them(seed):
    found = frames_and_answers(50, seed)
    assert found["frames"] >= 99.5 and found["assistant"] >= 99.5
