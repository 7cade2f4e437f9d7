"""Variants in a configuration: which models may answer an app, and what is wrong with a table of them."""

from __future__ import annotations

import pytest
from hand_world import table

from edgeserve.config.loading import parse_config
from edgeserve.errors import ConfigError


def config(variants=None, model=None, small=None, app=None, **sections):
    variants = {"small": 0.8, "medium": 0.93} if variants is None else variants
    models = {
        "full": {1: 20, "variants": variants, **(model or {})},
        "medium": {1: 9},
        "small": {1: 4, **(small or {})},
    }
    return parse_config(table(models, {"camera": {"model": "full", **(app or {})}}, **sections))


def test_an_app_may_be_answered_by_the_model_and_its_variants_the_best_first():
    assert list(config().apps["camera"].variants.items()) == [("full", 1.0), ("medium", 0.93), ("small", 0.8)]


def test_those_below_the_least_quality_are_left_out():
    assert list(config(app={"least_quality": 0.9}).apps["camera"].variants) == ["full", "medium"]


def test_a_node_among_others_is_served_by_its_model():
    nodes = {"model": None, "node": [{"name": "full"}, {"name": "small"}]}
    models = {"full": {1: 20, "variants": {"small": 0.8}}, "small": {1: 4}}
    made = parse_config(table(models, {"camera": {key: value for key, value in nodes.items() if value}}))
    assert made.apps["camera"].variants == {}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"variants": {"smal": 0.8}}, r"no model 'smal'.*'small'"),
        ({"variants": {"small": 0.0}}, r"variants\.small = 0\.0: expected a quality above 0, 1 at most"),
        ({"variants": {"small": 1.2}}, r"variants\.small = 1\.2: expected a quality"),
        ({"variants": {"small": True}}, r"variants\.small = True: expected a quality"),
        ({"variants": {"full": 0.8}}, r"no variant of itself"),
        ({"small": {"variants": {"medium": 0.5}}}, r"'small' has variants of its own; name 'medium' beside it"),
        ({"small": {"engine": "lm", "file": "m.gguf"}}, r"writes its answers step by step"),
        ({"small": {"state": {"a": "b"}}}, r"'small' keeps a state"),
        ({"app": {"least_quality": 1.5}}, r"least_quality = 1\.5"),
        ({"variants": {}, "app": {"least_quality": 0.5}}, r"give \[model\.full\.variants\]"),
    ],
)
def test_what_is_wrong_says_so(given, says):
    with pytest.raises(ConfigError, match=says):
        config(**given)
