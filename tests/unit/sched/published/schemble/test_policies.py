"""Decisions of the policies of ensembles: which models a request gets, when it is answered, and what is charged."""

from __future__ import annotations

import functools

import pytest
import vote_world
from hand_world import ended
from vote_world import answer_of, models_of, serve

make = functools.partial(vote_world.make, "schemble")
static = functools.partial(vote_world.make, "ensemble_static")


def test_a_hard_request_gets_more_models_while_time_allows():
    world = make()
    assert models_of(world.arrive("q", hints={"difficulty": 0.9})) == ["a", "b", "c"]
    world.finish("la", at=40)
    world.finish("lb", at=115)
    world.finish("lc", at=125)
    world.finish("lv", at=126)
    assert (answer_of(world).quality, answer_of(world).branches) == (1.0, ("a", "b", "c"))


def test_a_request_that_no_model_could_answer_is_given_up():
    world = make()
    world.arrive("q", count=9, hints={"difficulty": 0.1})
    serve(world)
    dropped = [end for end in world.ends.values() if end.outcome == "dropped"]
    assert {end.reason for end in dropped} == {"overloaded"}
    assert world.arrive("q", at=300, slo=20) == [ended(10, "rejected", "cannot_make_deadline")]


def test_a_plan_that_met_its_bound_says_so_once_in_each_story():
    world = make(options={"cells_max": 3}, slo="400ms")
    world.arrive("q", count=4, hints={"difficulty": 0.9})
    world.finish("la", at=40)
    world.finish("lb", at=75)
    world.finish("lc", at=85)
    assert world.scheduler.policies[0].figures()["plans cut short"] > 1
    for number in (3, 4):
        lines = [line for line in world.scheduler.story(number) if "planned greedily" in line]
        assert lines == ["  +0ns: planned greedily: the plan met cells_max = 3"]


# --- as published -----------------------------------------------------------------------------------------------------


def test_schemble_commits_a_whole_request_and_waits_for_all_of_it():
    world = make()
    assert models_of(world.arrive("q", hints={"difficulty": 0.9})) == ["a", "b", "c"]  # the fast path
    world.arrive("q", count=2, at=10, hints={"difficulty": 0.9})
    world.finish("la", at=40)
    assert models_of(world.actions) == ["a"]
    world.finish("lb", at=75)
    world.finish("lc", at=85)
    assert "vote" in models_of(world.actions)


def test_the_fast_path_of_schemble_takes_what_could_start_now():
    world = make(models={"memory": "90MB", "load": "40ms"}, resident={"cpu": ["a", "b", "vote", "score"]})
    assert models_of(world.arrive("q", hints={"difficulty": 0.9})) == ["a", "b"]
    world.finish("la", at=40)
    world.finish("lb", at=75)
    assert models_of(world.actions) == ["vote"], "nobody waits for a model that is not in memory"


@pytest.mark.parametrize("planner", ["exact", "published", "greedy"])
def test_every_planner_of_schemble_serves_a_burst(planner):
    world = make(options={"planner": planner, "delta": 0.05}, slo="200ms")
    world.arrive("q", count=4, hints={"difficulty": 0.9})
    serve(world)
    assert [world.outcome(number) for number in range(1, 5)] == ["completed"] * 4
    assert world.scheduler.thought_ns() > 0
    assert world.scheduler.thought_ns() == 0  # charged once


# --- baselines --------------------------------------------------------------------------------------------------------


def test_the_original_ensemble_refuses_at_arrival_what_cannot_have_all_models():
    world = static()
    world.arrive("q", count=2)
    assert models_of(world.actions) == ["a", "b", "c"]
    assert world.reason(2) == "overloaded"  # c would end at 170 ms
    world.finish("la", at=40)
    assert models_of(world.actions) == []
    world.finish("lb", at=75)
    world.finish("lc", at=85)
    world.finish("lv", at=86)
    assert world.outcome(1) == "completed"


@pytest.mark.parametrize(
    ("options", "hints", "models"),
    [
        ({"pick": "static", "models": ["a", "c"]}, {}, ["a", "c"]),
        ({"pick": "gating", "threshold": 0.4}, {"a.gate": 0.45, "b.gate": 0.2, "c.gate": 0.35}, ["a"]),
        ({"pick": "gating", "threshold": 0.9}, {"a.gate": 0.3, "b.gate": 0.5, "c.gate": 0.2}, ["b"]),  # at least one
        ({"pick": "des"}, {"a.local": 0.8, "b.local": 0.9, "c.local": 0.9}, ["b", "c"]),
        ({"pick": "des", "margin": 0.1}, {"a.local": 0.8, "b.local": 0.9, "c.local": 0.9}, ["a", "b", "c"]),
    ],
)
def test_what_the_baselines_pick(options, hints, models):
    world = static(options=options)
    assert models_of(world.arrive("q", hints=hints)) == models


@pytest.mark.parametrize("on_late", ["drop", "answer"])
def test_a_request_whose_only_model_failed_gets_another(on_late):
    alike = {"models": ["a", "b", "c"], "agreement": [[0] + [0.99] * 6 + [1]]}
    world = make(fitted=alike, options={"price": 0.4, "fast": False}, on_late=on_late, slo="400ms")
    assert models_of(world.arrive("q")) == ["a"]
    world.finish("la", at=20, status="failed")
    serve(world, 2000)
    assert world.outcome(1) == "completed"
