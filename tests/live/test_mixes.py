"""The example configurations of synthetic models, served: each app answers, as often as it is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from for_each import each_time

from edgeserve import Runtime
from edgeserve.config.loading import load_config

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MIXES = sorted(file.parent.name for file in EXAMPLES.glob("mixes/*/edge.toml"))


@pytest.mark.parametrize("mix", each_time(MIXES, "robot"))  # the others are simulated each time
def test_every_app_of_a_mix_answers(mix: str) -> None:
    """Twice: which names its nodes return is learnt from the first answer."""
    config = load_config(str(EXAMPLES / "mixes" / mix / "edge.toml"))
    with Runtime(config) as runtime:
        for name in config.apps:
            for _ in range(2):
                answer = runtime.infer(name, {"x": "item"}, slo_ms=10_000.0, on_late="answer")
                assert answer.outcome == "completed", name
