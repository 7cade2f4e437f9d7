"""The warning about batches that contradict a belief: once per model and lane, with both numbers and the mend."""

from __future__ import annotations

import logging

import pytest

from edgeserve.config.loading import parse_config
from edgeserve.live.estimates import ContradictionLog, warning_text
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.latency.batch_time import EXPECTED, PROFILE, START, Contradiction
from edgeserve.units import NS_PER_MS as MS

CONFIG = parse_config({}, source="edge.toml")
ONE = {"model": {"m": {"engine": "synthetic", "expected": {"1": "4ms"}}}, "app": {"a": {"model": "m"}}}


def test_an_app_that_moved_to_another_policy_is_said_once(caplog):
    caplog.set_level(logging.INFO, "edgeserve")
    state = build_scheduler(parse_config(ONE)).state
    app = state.apps["a"]
    log = ContradictionLog(CONFIG, {}, state)
    log.look()
    app.policy, app.policy_reason = "orloj+", "its times depend on the input"
    log.look()
    log.look()
    assert [record.getMessage() for record in caplog.records] == [
        "app a: policy orloj+ from now on, since its times depend on the input"
    ]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (PROFILE, ["its profile says 10ms", "edgeserve profile edge.toml --model m --force"]),
        (EXPECTED, ["[model.m.expected] says 10ms", "correct edge.toml", "edgeserve profile edge.toml --model m'"]),
        (START, ["the runs at start took 10ms", "edgeserve profile edge.toml --model m'"]),
    ],
)
def test_the_text_has_both_numbers_and_what_to_do(source, words):
    text = warning_text(CONFIG, "m", "gpu0", Contradiction(source, 4, 10 * MS, 16 * MS, 10))
    for word in ["model m on lane gpu0: batches of 4 take 16ms", "a factor of 1.6", *words]:
        assert word in text
    assert "a factor of 2.5" in warning_text(CONFIG, "m", "gpu0", Contradiction(source, 4, 10 * MS, 4 * MS, 10))
