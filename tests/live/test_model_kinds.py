"""Kinds of model files: the page says what ``edgeserve init`` makes of each, and what is served answers so."""

from __future__ import annotations

import os
from typing import Any, Dict

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")
onnxruntime = pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")

from draw import model_files  # noqa: E402
from lib import drawn, model_kinds  # noqa: E402

from edgeserve import cli  # noqa: E402
from edgeserve.config.loading import load_config  # noqa: E402
from edgeserve.runtime import Runtime  # noqa: E402

NOT_SERVED = ("grows", "no input at all", "a list of tensors", "more than 128 characters")
SERVED = [
    (number, kind)
    for number, kind in enumerate(model_kinds.KINDS)
    if kind.about != model_kinds.NO_MODELS and not any(words in kind.name for words in NOT_SERVED)
]


def test_the_page_is_up_to_date():
    assert len(model_kinds.KINDS) >= 40
    assert not drawn.stale(model_files.PAGE, model_files.parts(), model_files.SCRIPT), "run scripts/draw/model_files.py"


def drawn_values(config: Any, inputs: Dict[str, Any], shapes: Dict[str, Any], seed: int) -> Dict[str, Any]:
    """A request as the app declares it; open axes have the length of the example's."""
    draw = np.random.RandomState(seed)
    item: Dict[str, Any] = {}
    for name, tensor in inputs.items():
        shape = [one if size < 0 else size for size, one in zip(tensor.shape, shapes.get(name, tensor.shape))]
        if tensor.dtype == "text":
            item[name] = np.full(shape, ["yes", "no", "so"][seed % 3], object) if shape else f"text {seed}"
        elif np.dtype(tensor.dtype).kind in "iub":
            item[name] = draw.randint(0, 2, shape).astype(tensor.dtype)
        else:
            item[name] = np.asarray(draw.random_sample(shape)).astype(tensor.dtype)
    return item


def alone(path: str, model: Any, item: Dict[str, Any], state: Dict[str, Any]) -> Dict[str, Any]:
    """The model's own answer to one item, by the axes that the configuration declares. ``state`` is replaced by the new
    one."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    whole = model.options.get("batch_axis") is False
    size = max(model.batch) if min(model.batch) > 1 else 1
    axes = model.options.get("state_axis", 0)
    feeds: Dict[str, Any] = {}
    for node in session.get_inputs():
        kind = np.dtype({"float": "f4", "double": "f8", "float16": "f2", "bool": "?"}.get(node.type[7:-1], "i8"))
        if node.name in model.options.get("constants", {}):
            feeds[node.name] = np.array(model.options["constants"][node.name], kind)
        elif node.name in model.state:
            axis = axes if isinstance(axes, int) else axes[node.name]
            dims = [1 if place == axis else length for place, length in enumerate(node.shape)]
            feeds[node.name] = state.get(node.name, np.zeros(dims, kind))
        elif whole or node.name in model.options.get("settings", ()):
            feeds[node.name] = np.asarray(item[node.name])
        else:
            value = np.asarray(item[node.name], object if isinstance(item[node.name], str) else None)
            feeds[node.name] = np.stack([value] * size)
    answers = dict(zip([node.name for node in session.get_outputs()], session.run(None, feeds)))
    for name, output in model.state.items():
        state[name] = answers.pop(output)
    return {name: value if whole else value[0] for name, value in answers.items() if isinstance(value, np.ndarray)}


@pytest.mark.nightly  # tests/unit/commands/init serves a model of each layout
@pytest.mark.parametrize(("number", "kind"), SERVED, ids=[kind.name for _, kind in SERVED])
def test_what_is_served_answers_as_the_model_does(number, kind, tmp_path):
    path = model_kinds.write(kind, str(tmp_path), number)
    out = str(tmp_path / "edge.toml")
    assert cli.main(["init", "--here", path, "--out", out, "--cpu", "--slo", "60s"]) == 0
    config = load_config(out)
    (model,), (app,) = config.models.values(), config.apps.values()
    items = [drawn_values(config, app.inputs, model.shapes, seed) for seed in range(4)]
    streams = [{"stream": f"s{place}"} if model.state else {} for place in range(4)]
    states: Any = [{} for _ in items]
    with Runtime(config) as runtime:
        for _ in range(2):
            asked = [runtime.submit(app.name, item, **options) for item, options in zip(items, streams)]
            for item, state, future in zip(items, states, asked):
                answer, expected = future.result(60), alone(path, model, item, state)
                assert set(answer) == set(expected)
                for name, value in expected.items():
                    if np.asarray(value).dtype.kind in "OU" or isinstance(value, str):
                        assert np.array_equal(answer[name], value)
                    else:
                        np.testing.assert_allclose(answer[name], value, 2e-3, 1e-3, err_msg=name)
                        assert np.shape(answer[name]) == np.shape(value)
    assert os.path.exists(path)
