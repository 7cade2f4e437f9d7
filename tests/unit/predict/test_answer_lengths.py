"""Lengths of answers that the server predicts itself: for which apps, cut where an answer is."""

from __future__ import annotations

import json

import pytest

from edgeserve.config.loading import parse_config
from edgeserve.errors import ConfigError
from edgeserve.live.request import language_model
from edgeserve.predict.serving.answer_lengths import answer_lengths
from edgeserve.predict.serving.predictors import Predictors

TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is the capital of Peru?"}]


def lengths_of(kind: str = "plan", **app: object):
    config = parse_config(
        {
            "lane": {"cpu0": {}},
            "policy": {"words": {"kind": kind}},
            "model": {"chat": {"engine": "lm", "file": "missing.onnx", "options": {"max_tokens": 100}}},
            "app": {"chat": {"model": "chat", "slo": "1s", **app}},
        }
    )
    return answer_lengths(config.apps["chat"], language_model(config.apps["chat"], config), config)


@pytest.mark.parametrize("kind", ["rtlm", "plan"])
def test_a_language_models_answers_are_predicted_for_policies_that_order_by_them(kind: str) -> None:
    lengths = lengths_of(kind)
    closed, opened = "What is the capital of Peru?", "Write a long story about a king and explain it in detail."
    assert 1 <= lengths.steps({"prompt": closed}) < lengths.steps({"prompt": opened}) <= 100
    assert 0.1 < lengths.steps_sd({"prompt": closed}) < 3
    assert lengths.steps({"messages": json.dumps(TALK)}) == lengths.steps({"prompt": TALK[1]["content"]})
    assert lengths.steps({"prompt": opened, "max_tokens": 7}) <= 7
    assert 1 <= lengths.steps({}) <= 100


def test_an_app_that_predicts_its_own_steps_or_whose_policy_reads_none_is_left_alone() -> None:
    assert lengths_of(predict={"steps": "m:f"}) is None and lengths_of("edf") is None


@pytest.mark.parametrize(
    ("kind", "app", "said"),
    [
        ("edf", {"predict": {"steps": "a.npz"}}, r"predict.steps = 'a.npz' has no effect: .*found 'edf'"),
        ("plan", {"predict": {"steps": "none.npz"}}, "none.npz' cannot be read"),
    ],
)
def test_what_can_have_no_effect_is_refused(kind: str, app: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        lengths_of(kind, **app)


def test_a_clients_own_hint_stands() -> None:
    lengths = lengths_of()
    config = parse_config(
        {
            "lane": {"cpu0": {}},
            "model": {"m": {"engine": "synthetic", "expected": {"1": "1ms"}}},
            "app": {"m": {"model": "m", "slo": "1s"}},
        }
    )
    predictors = Predictors(config.apps["m"], ".", lengths.predictors)
    assert predictors.on_arrival({"steps": 5.0}, {"prompt": "Why?"}, lambda: 0)["steps"] == 5.0
