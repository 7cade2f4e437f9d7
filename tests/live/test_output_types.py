"""The outputs of an app are known before the first request: by the model's file, else by the warm-up."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import onnx_models

from edgeserve.client import Client
from edgeserve.config.loading import parse_config
from edgeserve.runtime import Runtime

FUNCTIONS = """
import numpy as np

def example():
    return {"x": np.zeros(4, np.float32)}

def say(item):
    return {"label": "cat", "labels": ["cat", "dog"], "score": 0.5, "boxes": np.zeros((3, 4), np.float16)}

def silent(item):
    return {"z": 1}
"""


def served(folder: Path) -> Dict[str, Any]:
    (folder / "said.py").write_text(FUNCTIONS, encoding="utf-8")
    said = {"engine": "python", "function": "said:say", "options": {"example": "said:example"}}
    node = [
        {"name": "first", "model": "linear", "inputs": {"x": "request.x"}},
        {"name": "last", "model": "said", "after": ["first"], "inputs": {"x": "first.y"}},
    ]
    return {
        "server": {"endpoint": f"ipc://{folder}/bus/socket"},
        "model": {
            "linear": {"engine": "onnx", "file": onnx_models.linear(str(folder))},
            "lookup": {"engine": "onnx", "file": onnx_models.lookup(str(folder)), "shapes": {"ids": [7]}},
            "recurrent": {
                "engine": "onnx",
                "file": onnx_models.recurrent(str(folder)),
                "state": {"state": "stateN"},
                "options": {"state_axis": 1, "constants": {"rate": 1}},
            },
            "said": said,
            "silent": {"engine": "python", "function": "said:silent"},
        },
        "app": {
            **{name: {"model": name, "slo": "5s"} for name in ("linear", "lookup", "said", "silent")},
            "recurrent": {"model": "recurrent", "slo": "5s", "stream": "in_order"},
            "both": {"slo": "5s", "node": node, "outputs": ["first.y", "label"]},
        },
    }


def test_outputs_have_types_before_the_first_request(tmp_path: Path) -> None:
    with Runtime(parse_config(served(tmp_path), directory=str(tmp_path)), serve=True) as runtime, Client(
        runtime.endpoints[0]
    ) as client:
        types = {name: app["output_types"] for name, app in client.apps().items()}
    assert types["linear"] == {"y": {"dtype": "float32", "shape": [3]}}
    assert types["lookup"] == {"y": {"dtype": "float32", "shape": [-1]}}, "as long as its input: the file says so"
    assert list(types["recurrent"]) == ["out"], "a state is no output"
    assert types["said"] == {
        "label": {"dtype": "text", "shape": []},
        "labels": {"dtype": "text", "shape": []},
        "score": {"dtype": "float64", "shape": []},
        "boxes": {"dtype": "float16", "shape": [-1, -1]},
    }
    assert types["silent"] == {}, "without an example it has not run"
    assert types["both"] == {"y": types["linear"]["y"], "label": types["said"]["label"]}
