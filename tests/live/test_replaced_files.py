"""A model file that is replaced while answers are under way: no answer, and no stream, is half of one network and half
of the other."""

from __future__ import annotations

import os
import shutil
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")
pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")

from lm_models import tiny
from onnx_models import FLOAT, helper, save
from serving import served

ASKED = {"prompt": "The quick brown fox", "max_tokens": 180, "ignore_eos": True}


def put(folder: Any, name: str, place: str) -> None:
    for ending in (".onnx", ".json"):
        if os.path.exists(folder / (name + ending)):
            shutil.copy(folder / (name + ending), folder / "next")
            os.replace(folder / "next", folder / (place + ending))


def test_an_answer_ends_with_what_the_network_that_began_it_has_written(tmp_path):
    for name, seed in (("old", 1), ("new", 2)):
        tiny(str(tmp_path), name, seed)
    put(tmp_path, "old", "tiny")
    model = {"engine": "lm", "file": "tiny.onnx", "options": {"max_tokens": 200}}
    with served({"model": {"m": model}, "app": {"a": {"model": "m", "slo": "60s"}}}, str(tmp_path)) as (_, client):
        whole = client.infer("a", ASKED)
        pieces = client.stream("a", ASKED)
        next(pieces)
        put(tmp_path, "new", "tiny")
        assert not client.reload("m")["failed"]
        answer = pieces.answer()
        count = len(answer["tokens"])
        assert 0 < count < len(whole["tokens"]) and answer["finish_reason"] == "length"
        assert answer["tokens"].tolist() == whole["tokens"].tolist()[:count]
        assert client.infer("a", ASKED)["tokens"].tolist() != whole["tokens"].tolist()


def adds_up(folder: str, name: str, times: float) -> None:
    """``stateN = state + times * x``, and ``out`` the same."""
    save(
        folder,
        name,
        [
            helper.make_node("Mul", ["x", "times"], ["more"]),
            helper.make_node("Add", ["state", "more"], ["stateN"]),
            helper.make_node("Identity", ["stateN"], ["out"]),
        ],
        [("x", FLOAT, ["B", 1]), ("state", FLOAT, ["B", 1])],
        [("out", FLOAT, ["B", 1]), ("stateN", FLOAT, ["B", 1])],
        [("times", np.float32(times))],
    )


def test_a_stream_goes_on_from_no_state_of_another_network(tmp_path):
    adds_up(str(tmp_path), "old", 1.0)
    adds_up(str(tmp_path), "new", 100.0)
    put(tmp_path, "old", "sum")
    model = {"engine": "onnx", "file": "sum.onnx", "state": {"state": "stateN"}}
    app = {"model": "m", "slo": "20s", "stream": "in_order"}
    one = {"x": np.ones(1, np.float32)}
    with served({"model": {"m": model}, "app": {"a": app}}, str(tmp_path)) as (_, client):
        assert [client.infer("a", one, stream="s")["out"].item() for _ in range(2)] == [1, 2]
        assert not client.reload("m")["failed"]
        assert client.infer("a", one, stream="s")["out"].item() == 3, "the files are the same"
        put(tmp_path, "new", "sum")
        assert not client.reload("m")["failed"]
        assert [client.infer("a", one, stream="s")["out"].item() for _ in range(2)] == [100, 200]


def test_a_model_that_was_evicted_goes_on_from_no_state_of_the_file_before(tmp_path):
    adds_up(str(tmp_path), "old", 1.0)
    adds_up(str(tmp_path), "new", 100.0)
    put(tmp_path, "old", "sum")
    models = {
        name: {"engine": "onnx", "file": "sum.onnx", "state": {"state": "stateN"}, "memory": "2MB"} for name in "mn"
    }
    apps = {name: {"model": name, "slo": "20s", "stream": "in_order"} for name in "mn"}
    tables = {"device": {"cpu": {"memory": "3MB"}}, "lane": {"cpu0": {}}, "model": models, "app": apps}
    with served(tables, str(tmp_path)) as (_, client):

        def said(app):
            return client.infer(app, {"x": np.ones(1, np.float32)}, stream="s")["out"].item()

        assert [said(app) for app in "mmnm"] == [1, 2, 1, 3], "the file is the same"
        assert said("n") == 2
        put(tmp_path, "new", "sum")
        assert [said(app) for app in "mm"] == [100, 200]
