"""Several models, one answer, whole: every vote is counted, or the configuration is refused with the line that mends
it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict

import onnx_models
import pytest

from edgeserve.config.loading import parse_config
from edgeserve.config.schema import Config
from edgeserve.errors import ConfigError, Failed
from edgeserve.live.preflight import check_before_loading
from edgeserve.runtime import Runtime

FUNCTIONS = """
def small(item):
    values = {"p": 0.25}
    return values

def large(item):
    values = {"p": 0.75}
    if item["x"] > 1:
        raise ValueError("too large for large")
    return values

def example():
    return {"x": 1.0}

def vote(item):
    return {"seen": sorted(item), "sum": float(sum(value for name, value in item.items() if name != "x"))}
"""

NAMED = {"small": "small.p", "large": "large.p"}


def config_of(directory: Path, example: bool = False, join: Any = "all", **keys: Any) -> Config:
    (directory / "votes.py").write_text(FUNCTIONS)
    options = {"options": {"example": "votes:example"}} if example else {}
    models: Dict[str, Any] = {
        name: {"engine": "python", "function": f"votes:{name}", **(options if name != "vote" else {})}
        for name in ("small", "large", "vote")
    }
    nodes = [
        {"name": "small", "after": []},
        {"name": "large", "after": []},
        {"name": "vote", "after": ["small", "large"], "join": join, **keys},
    ]
    app = {"slo": "20s", "node": nodes}
    return parse_config({"model": models, "app": {"a": app}}, directory=str(directory))


def test_two_votes_of_one_name_are_refused_with_the_first_answer(tmp_path: Path) -> None:
    with Runtime(config_of(tmp_path)) as runtime:
        for _ in range(2):
            with pytest.raises(Failed) as failed:
                runtime.infer("a", {"x": 1.0})
            assert 'inputs = { small_p = "small.p", large_p = "large.p" }' in str(failed.value)
        runtime.check()


def test_an_example_shows_it_at_start_and_a_reload_leaves_the_old_one_serving(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'vote' would be given 'p' of node 'small' and of node 'large'"):
        with Runtime(config_of(tmp_path, example=True)):
            pass
    with Runtime(config_of(tmp_path, example=True, inputs=NAMED)) as runtime:
        with pytest.raises(ConfigError, match=r"would be given 'p'"):
            runtime.reload(config_of(tmp_path, example=True))
        answer = runtime.infer("a", {"x": 1.0})
        assert answer["seen"] == ["large", "small"] and answer["sum"] == 1.0
        assert (answer.quality, answer.branches) == (None, ("small", "large"))


def test_a_join_is_told_who_is_missing_and_so_is_the_client(tmp_path: Path) -> None:
    with Runtime(config_of(tmp_path, join=1, inputs=NAMED)) as runtime:
        answer = runtime.infer("a", {"x": 2.0})
        assert (answer["seen"], answer["sum"]) == (["small"], 0.25)
        assert (answer.quality, answer.branches) == (None, ("small",))


def test_the_outputs_of_model_files_are_known_before_they_are_loaded(tmp_path: Path) -> None:
    directory = str(tmp_path)
    models: Dict[str, Any] = {
        name: {"engine": "onnx", "file": onnx_models.linear(directory, name=name)} for name in ("one", "two")
    }
    join = {"name": "vote", "after": ["one", "two"]}
    models["vote"] = {"engine": "synthetic"}
    nodes = [{"name": "one", "after": []}, {"name": "two", "after": []}]

    def problems(*nodes: Any) -> Any:
        table = {"model": models, "app": {"a": {"node": list(nodes)}}}
        return [p.text for p in check_before_loading(parse_config(table, directory)) if p.subject == "names"]

    (text,) = problems(*nodes, join)
    assert 'inputs = { one_y = "one.y", two_y = "two.y" }' in text
    assert not problems(*nodes, {**join, "inputs": {"a": "one.y", "b": "two.y"}})
    with pytest.raises(ConfigError, match="one_y"):
        with Runtime(parse_config({"model": models, "app": {"a": {"node": [*nodes, join]}}}, directory)):
            pass


def test_a_vote_that_failed_or_is_late_is_named_and_the_others_are_counted(tmp_path: Path) -> None:
    """A late one at its deadline, by a loop that wakes when the machine lets it."""
    (tmp_path / "three.py").write_text(
        "import threading\n\ngate = threading.Event()\n\n"
        "def quick(item):\n    return {'p': 0.25}\n\n"
        "def broken(item):\n    raise ValueError('no')\n\n"
        "def slow(item):\n    gate.wait(30.0 if item['hold'] else 0.0)\n    return {'p': 0.5}\n\n"
        "def vote(item):\n    return {'seen': sorted(item)}\n"
    )
    names = ("quick", "broken", "slow", "vote")
    models = {name: {"engine": "python", "function": f"three:{name}", "lanes": [name]} for name in names}
    inputs = {name: f"{name}.p" for name in names[:3]}
    vote = {"name": "vote", "after": list(names[:3]), "join": 3, "inputs": inputs}
    nodes = [{"name": name, "after": []} for name in names[:3]] + [vote]
    table = {"model": models, "lane": {name: {} for name in names}}
    table["app"] = {"a": {"slo": "1s", "on_late": "partial", "node": nodes}}
    with Runtime(parse_config(table, directory=str(tmp_path))) as runtime:
        try:
            answer = runtime.infer("a", {"hold": False}, slo_ms=20_000)
            assert (answer["seen"], answer.branches) == (["quick", "slow"], ("quick", "slow"))
            assert answer.reason == "without broken: failed"
            answer = runtime.infer("a", {"hold": True})
            assert (answer["seen"], answer.branches) == (["quick"], ("quick",))
            assert answer.reason == "without broken: failed; did not wait for slow"
        finally:
            sys.modules["three"].gate.set()
        runtime.check()
