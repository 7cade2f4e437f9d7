"""rtlm and the plan in virtual time: better than FIFO where the paper says so, and no worse where predictions are
wrong, memory is short or lanes are slow or lost."""

from __future__ import annotations

import pytest
from replicate.rtlm import world
from replicate.rtlm.world import Case, System

from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import parse_scenario

SEED = 104
FIFO = System(options={"method": "fifo"})
RTLM = System(options={"method": "up+c"})
PLUS = System("plan", {}, "continuous")
CONTINUOUS_FIFO = System("fifo", {}, "continuous")
SHORT = Case(load=1.1, seconds=30.0, xi_ms=0.0)


def table_of(system, case=SHORT):
    return world.scenario_of(system, case)


def run(table, seed=SEED):
    return simulate(parse_scenario(table), seed, [])


def test_in_overload_rtlm_answers_in_less_than_half_of_fifos_time_and_the_plan_in_less_than_half_of_that():
    fifo, rtlm, plus = [world.run(system, SHORT, SEED).mean for system in (FIFO, RTLM, PLUS)]
    assert rtlm < 0.7 * fifo
    assert plus < 0.5 * rtlm


@pytest.mark.worlds
@pytest.mark.parametrize("wrong", [{"rho": None}, {"rho": 0.0}, {"scale": 3.0}, {"scale": 1 / 3}, {"astray": 3.0}])
def test_a_wrong_predictor_or_none_puts_the_plan_behind_continuous_fifo_by_six_percent_at_most(wrong):
    case = SHORT._replace(load=1.3, **wrong)
    assert world.run(PLUS, case, SEED).mean <= 1.06 * world.run(CONTINUOUS_FIFO, case, SEED).mean


@pytest.mark.parametrize("median", [0.1, 10_000.0])
def test_answers_of_one_token_and_of_the_maximum_are_all_given(median):
    table = table_of(PLUS, SHORT._replace(load=0.1))
    table["workload"]["people"]["hints"]["answer"]["lognormal"] = [median, 0.1]
    done = run(table)
    assert {end.outcome for end in done.world.ended} == {"completed"}
    assert done.world.reference_model.marks["BatchProgress"] + done.world.reference_model.marks["WorkFinished"] > 0


def test_memory_for_half_of_the_sequences_is_never_exceeded_and_everybody_is_answered():
    table = table_of(PLUS, SHORT._replace(load=0.9))
    table["truth"]["chat"].update(state_token="10kB", context=400)
    table["model"]["chat"]["state_memory"] = "2MB"  # five or six of eleven sequences of 37 tokens
    done = run(table)
    assert {end.outcome for end in done.world.ended} == {"completed"}
    assert done.world.reference_model.marks["CutBatch"]


@pytest.mark.parametrize("kind", ["fifo", "rtlm", "plan"])
def test_prompts_drawn_as_fractions_of_tokens_are_whole_ones_where_memory_binds(kind):
    table = table_of(PLUS, SHORT._replace(load=0.9))
    table["policy"] = {kind: {}}
    table["truth"]["chat"].update(state_token="10kB", context=400)
    table["model"]["chat"]["state_memory"] = "1MB"
    table["workload"]["people"]["hints"]["tokens"] = {"lognormal": [30.0, 0.5]}
    assert {end.outcome for end in run(table).world.ended} <= {"completed", "failed"}


@pytest.mark.worlds
def test_conditional_offloading_is_never_worse_than_none_and_a_slow_lane_stays_idle():
    for kappa in (2.0, 30.0):
        for kind, batching in (("rtlm", "static"), ("plan", "continuous")):
            with_lane, without = [
                world.run(System(kind, {}, batching, lane), SHORT._replace(load=0.9, seconds=20.0), SEED)
                for lane in (kappa, 0.0)
            ]
            assert with_lane.mean <= 1.02 * without.mean, (kind, kappa)
            assert kappa < 30.0 or with_lane.aside < 1.0


def test_a_lane_that_is_lost_while_decoding_costs_no_answer_where_another_lane_can_go_on():
    table = table_of(PLUS._replace(kappa=2.0), SHORT._replace(load=0.5))
    table["faults"] = {"lane_loss_every": "3s", "lane_loss": "300ms"}
    done = run(table)
    failed = [end.reason for end in done.world.ended if end.outcome != "completed"]
    assert set(failed) <= {"no lane can run model 'chat' now"}  # both were lost at once
    assert len(failed) < 0.1 * len(done.world.ended)
    assert done.world.reference_model.marks["LaneChanged"] > 5


@pytest.mark.worlds
def test_the_plan_never_lets_a_long_answer_starve_in_overload():
    case = SHORT._replace(load=1.5, seconds=40.0)
    assert world.run(PLUS, case, SEED).max <= 3.0 * world.run(CONTINUOUS_FIFO, case, SEED).max
