"""The drawn worlds of the regret bench, and its recommendations beside the page that users read."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import regret
from common import ensemble_worlds, worlds
from lib.checks import Checks

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_recommends_what_the_bench_calls_recommended():
    page = (ROOT / "docs" / "guide" / "policies" / "README.md").read_text(encoding="utf-8")
    assert f"**Every app gets [`{regret.RECOMMENDED}`]({regret.RECOMMENDED}.md)**" in page


@pytest.mark.parametrize("kind", ensemble_worlds.ALL_KINDS)
def test_what_is_recommended_is_compared_with_simple_rules(kind):
    compared = ensemble_worlds.POLICIES if kind == ensemble_worlds.KIND else regret.POLICIES
    assert {regret.RECOMMENDED, *regret.simple_of(kind)} <= set(compared)


@pytest.mark.parametrize("kind", sorted(worlds.KINDS))
def test_a_name_draws_the_same_world_again_and_another_name_another(kind):
    one, again, other = [worlds.draw_world(f"test/{kind}/{number}") for number in (0, 0, 1)]
    assert one == again
    assert one.scenario != other.scenario
    assert worlds.LOADS[0] <= one.load <= worlds.LOADS[1]


@pytest.mark.nightly
def test_the_kinds_of_worlds_hold_what_the_bench_claims():
    drawn = {kind: [worlds.draw_world(f"test/{kind}/{number}") for number in range(20)] for kind in worlds.KINDS}
    tags = {tag for found in drawn.values() for world in found for tag in world.tags}
    assert {
        *worlds.KNOWN,
        "poisson",
        "gamma",
        "onoff",
        "rate shifts",
        "lengths shift",
        "length told",
        "length not told",
        "predicted too short",
        "not predicted",
        "memory for half",
        "fork",
        "route",
        "fan",
    } <= tags
    nodes = {
        len(app.nodes)
        for kind in ("local", "hosts", "lanes")
        for world in drawn[kind]
        for app in world.scenario.config.apps.values()
    }
    assert nodes == set(range(2, 8))
    for world in drawn["local"]:
        assert set(world.scenario.config.lanes) == {worlds.GPU}
    for world in drawn["hosts"]:
        used = [model.lanes for model in world.scenario.config.models.values()]
        assert (worlds.GPU,) in used and (worlds.HOST,) in used


def test_the_capacity_of_one_model_is_its_best_batch_within_half_the_slo():
    model = worlds.Model("m", range(1, 9), 10.0, 2.0, ["gpu"])
    app = worlds.App("a", [{"name": "m", "model": "m"}], {"m": 1.0})
    assert worlds.capacity(app, {"m": model}, 40.0) == pytest.approx(5 / 20)  # 10 + 2 * 5 = 20 of 40
    assert worlds.capacity(app, {"m": model}, 10.0) == pytest.approx(1 / 12)  # not even one, but it has to do
    model.lanes = ["gpu0", "gpu1"]
    assert worlds.capacity(app, {"m": model}, 40.0) == pytest.approx(2 * 5 / 20)


@pytest.mark.nightly
def test_policies_of_one_world_meet_the_same_arrivals():
    shares = [regret.run_job(regret.Job("test/one/0", policy, 1)) for policy in ("edf", "fifo", "edf")]
    assert shares[0].offered == shares[1].offered > 500
    assert shares[0].percent == shares[2].percent != shares[1].percent
    assert 0.0 < shares[0].percent <= 100.0


def row(kind, **percent):
    world = worlds.draw_world(f"test/{kind}/0")
    return regret.Row(world, 1000, percent, dict.fromkeys(percent, 0.0))


def test_the_checks_name_the_world_in_which_the_recommendation_loses():
    checks = Checks("research/bench/regret.py")
    regret.judge(checks, [row("one", edf=90.0, fifo=92.0, plan=90.0), row("unequal", edf=80.0, fifo=70.0, plan=85.0)])
    by_name = {check.name: check for check in checks.rows}
    lost = by_name["one: points of plan behind the best of edf, fifo, worst world (test/one/0)"]
    assert (lost.value, lost.holds) == (2.0, False)
    won = by_name["unequal: points of plan behind the best of edf, fifo, worst world (test/unequal/0)"]
    assert (won.value, won.holds) == (-5.0, True)
    assert by_name["all: points of the recommended policy ahead, mean"].value == pytest.approx(1.5)


def test_a_policy_may_have_options():
    scenario = worlds.draw_world("test/lanes/0").scenario
    assert regret.under(scenario, "pard+").config.policies["pard+"].options == {}
    found = regret.under(scenario, "pard+;plan=0.8;work=false").config
    assert found.policies["pard+"].options == {"plan": 0.8, "work": False}
    assert {app.policy for app in found.apps.values()} == {"pard+"}


def test_a_stream_has_one_frame_in_flight_however_much_batches_save():
    model = worlds.Model("m", range(1, 9), 10.0, 2.0, ["gpu"])
    app = worlds.App("a", [{"name": "m", "model": "m"}], {"m": 1.0})
    app.in_flight = 2
    assert worlds.capacity(app, {"m": model}, 1000.0) == pytest.approx(2 / 14)


# --- ensembles --------------------------------------------------------------------------------------------------------


def test_a_name_draws_the_same_ensembles_again_and_another_name_others():
    one, again, other = [ensemble_worlds.draw(f"test/ensembles/{number}") for number in (0, 0, 1)]
    assert one == again
    assert one.world.scenario != other.world.scenario
    assert ensemble_worlds.world_of("test/ensembles/0") == one.world
    assert ensemble_worlds.world_of("test/one/0") == worlds.draw_world("test/one/0")


@pytest.mark.nightly
def test_the_worlds_of_ensembles_hold_what_the_bench_claims():
    drawn = [ensemble_worlds.draw(f"test/ensembles/{number}") for number in range(60)]
    tags = {tag for item in drawn for tag in item.world.tags}
    assert {
        *ensemble_worlds.FITS,
        *ensemble_worlds.TROUBLES[1:],
        "shared lane",
        "lanes of their own",
        "two ensembles",
        "shared model",
        "slow score",
        "camera beside",
        "guessed",
        *[f"{n} models" for n in range(2, 6)],
    } <= tags
    assert all(0.3 <= item.world.load <= 2.0 for item in drawn)
    for item in drawn:
        for truth in item.truths.values():
            assert truth.worth(0.0, 0) == 0.0
            assert truth.worth(0.99, (1 << len(truth.nodes)) - 1) == 1.0
            assert truth.worth(0.01, 1) > truth.worth(0.99, 1)  # the harder, the less the fastest knows


@pytest.mark.nightly
def test_an_answer_is_worth_what_its_models_agree_and_not_what_the_policy_believes():
    name = next(
        name
        for name in [f"test/ensembles/{number}" for number in range(60)]
        if "fit of other difficulties" in ensemble_worlds.draw(name).world.tags
    )
    rows = next(iter(ensemble_worlds.draw(name).truths.values())).rows
    assert ensemble_worlds.told_rows(rows, "fit of other difficulties")[0] == rows[-1] != rows[0]
    shares = [regret.run_job(regret.Job(name, policy, 1)) for policy in ("fastest", "plan", "fastest")]
    assert shares[0].offered == shares[1].offered > 200
    assert shares[0].percent == shares[2].percent != shares[1].percent
    assert 0.0 < shares[0].percent <= 100.0


def test_a_simple_rule_of_ensembles_names_their_fastest_models():
    scenario = ensemble_worlds.draw("test/ensembles/0").world.scenario
    found = regret.under(scenario, ensemble_worlds.rule_of(scenario, "fastest")).config.policies["ensemble_static"]
    assert found.options["pick"] == "static"
    assert found.options["models"] == [
        f"e{index}m0" for index in range(len(ensemble_worlds.draw("test/ensembles/0").truths))
    ]
    assert ensemble_worlds.rule_of(scenario, "edf") == "edf"


def test_a_wrong_fit_is_held_against_the_static_choices_alone():
    checks = Checks("research/bench/regret.py")
    wrong = next(
        name
        for name in [f"test/ensembles/{number}" for number in range(60)]
        if "fit of other models" in ensemble_worlds.draw(name).world.tags
    )
    right = next(
        name
        for name in [f"test/ensembles/{number}" for number in range(60)]
        if not set(ensemble_worlds.FITS[1:3]) & set(ensemble_worlds.draw(name).world.tags)
    )
    values = {"plan": 90.0, "edf": 95.0, "original": 50.0, "static": 91.5, "fastest": 80.0}
    rows = [
        regret.Row(ensemble_worlds.world_of(name), 1000, values, dict.fromkeys(values, 0.0)) for name in (wrong, right)
    ]
    ensemble_worlds.judge(checks, rows)
    behind = [(check.value, check.holds) for check in checks.rows if "points behind" in check.name]
    assert behind == [(5.0, False), (1.5, True)]
