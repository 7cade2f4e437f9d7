"""The warning about batches that contradict a belief: once per model and lane, with both numbers and the mend."""

from __future__ import annotations

import pytest

from edgeserve.config.loading import parse_config
from edgeserve.live.estimates import warning_text
from edgeserve.sched.latency.contradiction import EXPECTED, PROFILE, START, Contradiction
from edgeserve.units import NS_PER_MS as MS

CONFIG = parse_config({}, source="edge.toml")
ONE = {"model": {"m": {"engine": "synthetic", "expected": {"1": "4ms"}}}, "app": {"a": {"model": "m"}}}


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
