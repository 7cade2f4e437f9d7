"""The mixes and worlds that ``research/bench/heldout.py`` draws: valid, the same again, and of the requested load."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
from bench import heldout, mix
from common.heldout_apps import DEVICE, GPU, mean_lognormal
from common.heldout_mixes import MIXES, draw_mix
from common.heldout_worlds import WORLDS, draw_any

from edgeserve.lognormal import Lognormal
from edgeserve.sched.published.baselines.fifo import Fifo
from edgeserve.sim.run import sequences_of
from edgeserve.sim.scenario import CONTINUOUS
from edgeserve.sim.truth import TrueResults
from edgeserve.sim.workload import Workload

OWN = "edgeserve.sched.published.baselines.fifo:Fifo"
NAMES = sorted([*MIXES, *WORLDS])
SEEDS = range(1, 6)


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_draws_the_same_world_again_and_another_seed_another(name):
    one, again, other = [draw_any(name, seed) for seed in (1, 1, 2)]
    assert one == again
    assert one.scenario != other.scenario
    assert one.scenario.config.models != other.scenario.config.models  # shapes, not arrivals alone


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("load", [0.7, 1.3])
def test_the_rates_ask_for_the_load(name, load):
    """As ``mix.needs`` counts it, of true times, with what reading prompts takes and the lengths that each app asks."""
    assert mix.LANE == GPU
    for seed in SEEDS:
        scenario = draw_any(name, seed, load).scenario
        models, truths = scenario.config.models, scenario.truths
        for model in models.values():
            models[model.name] = replace(model, expected=truths[model.name].times)
        needs_ms, asked = mix.needs(scenario), 0.0
        for item in scenario.workloads:
            need_ms, model = needs_ms[item.app], scenario.config.apps[item.app].nodes[0].model
            truth = truths[model]
            if truth.batching == CONTINUOUS:
                need_ms += (truth.prefill_ns + truth.prefill_token_ns * mean_of(item.hints["tokens"])) / 1e6
            elif truth.hint:
                fixed_ns = truth.fixed_ns / models[model].batch[-1]
                need_ms = (fixed_ns + truth.per_unit_ns * mean_of(item.hints[truth.hint])) / 1e6
            asked += need_ms * item.rate / 1000.0
        assert asked == pytest.approx(load, rel=0.03), f"seed {seed}"


def mean_of(spread):
    """The mean of what a hint is drawn from."""
    return statistics.fmean([spread.pick((index + 0.5) / 3000) for index in range(3000)])


@pytest.mark.parametrize("name", sorted(MIXES))
def test_the_arrivals_bring_the_load(name):
    """The mean over some seeds: bursts differ."""
    loads = []
    for seed in SEEDS:
        drawn = draw_mix(name, seed)
        run = drawn.scenario.run
        for item in drawn.scenario.workloads:
            source, count = Workload(item, drawn.scenario.config, seed, run.duration_ns), 0
            while source.next_open() is not None:
                count += 1
            loads.append(count * drawn.needs_ms[item.app] * 1e6 / run.duration_ns)
    assert sum(loads) / len(SEEDS) == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_scheduler_is_told_declared_hints_alone(seed):
    told = {**told_of("workstation", seed), **told_of("home", seed)}
    assert {"length"} == told["dyna"] == told["intent"]
    assert told["dynb"] == set()
    assert told["answers"] == {"tokens"}
    assert told["lmjob"] <= {"tokens", "steps"}
    assert told["fan"] == set()


def told_of(name, seed):
    """App -> the hints of a request as the scheduler sees it."""
    scenario = draw_mix(name, seed).scenario
    laws = {
        (item.name, hint): law
        for item in scenario.workloads
        for hint, law in item.hints.items()
        if isinstance(law, Lognormal)
    }
    results, found = TrueResults(scenario.config, scenario.truths, seed, laws), {}
    for item in scenario.workloads:
        source = Workload(item, scenario.config, seed, scenario.run.duration_ns)
        request = source.request(1, source.next_open(), "")
        found[item.app] = set(results.declared(request, f"{item.name}/1").hints or {})
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_the_robots_device_holds_all_models_but_one_that_is_rarely_asked(seed):
    config = draw_mix("robot", seed).scenario.config
    memories = {name: model.memory_bytes for name, model in config.models.items()}
    rare = [memories[name] for name in memories if name.startswith("rare")]
    budget = config.devices[DEVICE].memory_bytes
    assert sum(memories.values()) - min(rare) < budget < sum(memories.values())
    assert set(sequences_of(draw_mix("robot", seed).scenario)) == {"chat"}


def test_the_mean_of_cut_lognormal_numbers():
    assert mean_lognormal(20.0, 0.5, 1e9) == pytest.approx(20.0 * 2.718281828 ** (0.125))
    assert mean_lognormal(20.0, 0.001, 20.5) == pytest.approx(20.0, rel=1e-3)
    assert mean_lognormal(20.0, 3.0, 20.0) < 20.0


def test_policies_serve_the_same_arrivals_and_a_run_can_be_repeated(monkeypatch):
    monkeypatch.setitem(heldout.KINDS, OWN, Fifo)  # the table is the process's: it is forgotten afterwards
    drawn = draw_mix("workstation", 1, 1.0, 3.0)
    found = {policy: heldout.run(drawn, policy, 3.0) for policy in ("edf", "plan", OWN)}
    assert len({item.requests for item in found.values()}) == 1
    assert len({item.digest for item in found.values()}) > 1
    again = heldout.run(drawn, "edf", 3.0)
    assert (again.digest, again.value, again.apps) == (found["edf"].digest, found["edf"].value, found["edf"].apps)
    rows = {row["policy"]: row for row in heldout.rows_of(list(found.values()), OWN)}
    assert rows["edf"]["to_edf"] == 1.0
    assert rows[OWN]["regained"] == 0.0
    assert set(rows["plan"]["apps"]) == set(drawn.scenario.config.apps)


def test_charged_time_changes_what_is_decided():
    drawn = draw_mix("home", 1, 1.0, 2.0)
    free, charged = [heldout.run(drawn, "edf", 2.0, charge) for charge in (0.0, 20.0)]
    assert charged.requests == free.requests
    assert charged.value < free.value


def test_reported_seeds_stand_apart():
    assert heldout.FIRST + 1000 < heldout.KEPT == 41_000
    assert "41000" in heldout.__doc__
