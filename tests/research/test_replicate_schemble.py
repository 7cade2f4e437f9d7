"""Schemble's experiments: the ensemble has the reference's agreements, and answers are judged by what ran."""

from __future__ import annotations

import numpy as np
import pytest
from replicate.schemble import ensemble, run, tasks, world

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def items():
    return ensemble.draw_items(3000, 1)


def rank_correlation(one, other):
    return np.corrcoef(*[np.argsort(np.argsort(values)) for values in (one, other)])[0, 1]


def test_the_subsets_agree_with_all_models_as_in_the_reference(items):
    found = ensemble.agreements(items)
    assert found == pytest.approx([0, 0.893, 0.929, 0.947, 0.920, 0.961, 0.959, 1.0], abs=0.025)
    alike = (items.labels == items.labels[:, :1]).all(axis=1).mean()
    assert alike == pytest.approx(0.797, abs=0.02)


def test_a_score_near_0_means_that_all_models_agree(items):
    easy = items.score < np.quantile(items.score, 0.3)
    assert items.correct[easy, 1].mean() > 0.98
    assert items.correct[~easy, 1].mean() < 0.9
    assert rank_correlation(items.score, items.predicted) > 0.5


@pytest.mark.parametrize("task", ensemble.TASKS)
def test_what_policies_read_tells_something_and_never_the_truth_itself(task):
    items = ensemble.draw_items(1000, 2, task)
    models = items.labels.shape[1]
    right = items.correct[:, [1 << model for model in range(models)]]
    assert 0.1 < rank_correlation(items.score, items.predicted) < 0.99
    best = right[np.arange(len(right)), items.local.argmax(axis=1)].mean()
    assert right.mean() < best < 0.999
    assert not np.array_equal(items.gates.argmax(axis=1), right.argmax(axis=1))
    assert (np.diff(items.correct[:, [0, -1]], axis=1) == 1).all()


def test_the_fit_is_a_profile_that_a_plan_can_rely_on():
    profile = ensemble.fit(ensemble.history())  # checked where it is made
    assert len(profile.agreement) == ensemble.BINS
    assert profile.row(0.01)[1] > profile.row(0.99)[1] + 0.2
    for first in (1, 2, 4):  # one model has answered: what it said with a margin is more often the ensemble's answer
        assert profile.observed_row(first, 1.0, 0.1)[first] > profile.observed_row(first, 0.01, 0.1)[first] + 0.1


@pytest.mark.parametrize("name", tasks.TASKS)
def test_the_other_tasks_have_a_deadline_for_each_camera(name, tmp_path):
    task = tasks.TASKS[name]
    found = tasks.run_task(task, run.SYSTEMS["schemble"], 1, task.deadlines_ms[-1], 5.0, str(tmp_path), "drop")
    assert 0.5 < found.accuracy <= 1 - found.missed
    assert min(2, task.cameras) <= len(list(tmp_path.iterdir())) <= task.cameras


def test_the_day_has_its_segments():
    load = world.day(1, 100, segment_s=20.0)
    heavy = ((load.times_s > 240) & (load.times_s <= 400)).sum() / 160
    assert heavy == pytest.approx(world.HEAVY, rel=0.15)
    assert (load.times_s <= 160).sum() / 160 == pytest.approx(0.8, abs=0.3)


def test_a_run_counts_what_was_answered_by_whom(items, tmp_path):
    profile, load = ensemble.fit(ensemble.history()), world.steady(1, 3000, 6.0, 10.0)
    path, lasts_s = world.trace_path(str(tmp_path), load, items, "predicted", "few")
    found = {
        name: world.run(world.scenario_of(system, path, profile, 200, lasts_s), items, 1)
        for name, system in (
            ("original", run.SYSTEMS["original"]),
            (run.STATIC_BEST, run.STATIC_ALL["m0, three of it"]),
            ("plan", run.SYSTEMS["plan"]),
        )
    }
    assert found["original"].processed == 1.0 and found["original"].models == 3.0
    assert found[run.STATIC_BEST].models == 1.0 and 0.8 < found[run.STATIC_BEST].processed < 0.97
    assert found["plan"].accuracy > found["original"].accuracy
    assert found["plan"].missed <= found["original"].missed


def test_uneven_times_under_load_do_not_put_plan_behind_the_fastest_model(items, tmp_path, monkeypatch):
    """Every seventh batch takes up to ten times as long, and the fastest model alone would take half of the lane."""
    monkeypatch.setattr(world, "SCORE_MS", 0.3)
    times_ms = (3.0, 9.0, 15.0)
    profile, load = ensemble.fit(ensemble.history()), world.steady(1, 3000, 110.0, 6.0)
    path, lasts_s = world.trace_path(str(tmp_path), load, items, "predicted", "uneven")
    found = {}
    for name, system in (
        ("fastest", world.System("ensemble_static", {"pick": "static", "models": ["m0"]})),
        ("schemble", run.SYSTEMS["schemble"]),
        ("plan", run.SYSTEMS["plan"]),
    ):
        table = world.scenario_of(
            system, path, profile, 150, lasts_s, on_late="partial", shared=True, times_ms=times_ms
        )
        table["run"]["noise"], table["faults"] = 0.25, {"slow": 0.15, "slow_factor": 10.0}
        found[name] = world.run(table, items, 1)
    assert found["plan"].accuracy > found["fastest"].accuracy - 0.01
    assert found["plan"].missed < found["schemble"].missed / 2


def test_the_simpler_score_is_the_mean_over_pairs():
    outputs = np.array([[[0.8, 0.2], [0.5, 0.5], [0.5, 0.5]]])
    pair = (0.8 - 0.5) * np.log(0.8 / 0.5) + (0.2 - 0.5) * np.log(0.2 / 0.5)
    assert ensemble.agreement_scores(outputs)[0] == pytest.approx(2 * pair / 3)
