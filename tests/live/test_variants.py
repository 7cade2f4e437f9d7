"""A model with variants, served: the answer says which one answered, in the process, over the bus and over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import pytest

from edgeserve import Client
from edgeserve.config.loading import parse_config
from edgeserve.config.schema import Config
from edgeserve.errors import ConfigError
from edgeserve.fronts.http.kserve import how_it_went
from edgeserve.runtime import Runtime

FUNCTIONS = """
import time

def full(item):
    time.sleep(0.03)
    return {"who": "full"}

def small(item):
    return {"who": "small"}

def other(item):
    return {"what": "other"}

def example():
    return {"x": 1.0}
"""


def config_of(directory: Path, variants: Dict[str, float], **app: Any) -> Config:
    (directory / "sizes.py").write_text(FUNCTIONS)
    models: Dict[str, Any] = {
        name: {"engine": "python", "function": f"sizes:{name}", "options": {"example": "sizes:example"}}
        for name in ("full", "small", "other")
    }
    models["full"]["variants"] = variants
    server = {"endpoint": f"ipc://{directory}/bus"}
    return parse_config(
        {"server": server, "model": models, "app": {"a": {"model": "full", "slo": "2s", **app}}},
        directory=str(directory),
    )


def test_the_answer_says_which_variant_answered_and_its_quality(tmp_path: Path) -> None:
    config = config_of(tmp_path, {"small": 0.8})
    with Runtime(config, serve=True) as runtime:
        answer = runtime.infer("a", {"x": 1.0})
        assert (answer["who"], answer.variant, answer.quality) == ("full", "full", 1.0)
        hasty = runtime.infer("a", {"x": 1.0}, slo_ms=20)
        assert (hasty["who"], hasty.variant, hasty.quality) == ("small", "small", 0.8)
        assert "quality 0.800 of small" in repr(hasty)
        with Client(runtime.endpoints[0]) as client:
            asked = client.infer("a", {"x": 1.0})
            assert (asked.variant, asked.quality) == ("full", 1.0)
            told = how_it_went(asked)
            assert (told["variant"], told["quality"]) == ("full", 1.0)
        assert runtime.stats()["apps"]["a"]["quality"]["variants"] == {"full": 2, "small": 1}
        runtime.check()


def test_a_variant_that_returns_other_names_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"variants\] other: model 'other' returns 'what' and no 'who'"):
        with Runtime(config_of(tmp_path, {"other": 0.8})):
            pass


def test_an_answer_without_variants_names_none(tmp_path: Path) -> None:
    with Runtime(config_of(tmp_path, {})) as runtime:
        answer = runtime.infer("a", {"x": 1.0})
        assert (answer.variant, answer.quality) == ("", None)
