"""Tensors of texts keep their shape and every character, in and out, in every way to ask."""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Dict, Iterator

import numpy as np
import onnx_models
import pytest
from serving import served

from edgeserve import cli
from edgeserve.config.loading import load_config
from edgeserve.errors import BadInput, RequestError
from edgeserve.fronts.http.settings import HttpConfig
from edgeserve.runtime import Runtime

STRANGE = ["", "a\0", "\0", "grüß dich", "👩‍👧", "a\nb\t\"'\\", "x" * 5000]
APPS: Dict[str, Any] = {"one": (), "row": (-1,), "single": (1,), "table": (-1, 3)}
VALUES = {
    "one": [np.array(text, object) for text in STRANGE],
    "row": [np.array(STRANGE, object), np.array([], object), np.array(["a"], object)],
    "single": [np.array([text], object) for text in STRANGE],
    "table": [
        np.array(STRANGE[:6], object).reshape(2, 3),
        np.empty((0, 3), object),
        np.array([["a", "", "b"]], object),
    ],
}


def tables(folder: Any) -> Dict[str, Any]:
    files = {
        app: onnx_models.words(str(folder), [size if size > 0 else f"D{axis}" for axis, size in enumerate(shape)], app)
        for app, shape in APPS.items()
    }
    shapes = {app: [max(size, 1) for size in shape] for app, shape in APPS.items()}
    models = {
        app: {"engine": "onnx", "file": file, "shapes": {"x": shapes[app]}, "options": {"process": app == "table"}}
        for app, file in files.items()
    }
    declared = {app: {"x": {"dtype": "text", "shape": list(shape)}} for app, shape in APPS.items()}
    apps = {app: {"model": app, "slo": "20s", "inputs": declared[app]} for app in APPS}
    return {"model": models, "app": {**apps, "any": {"model": "row", "slo": "20s"}}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: Any) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("texts")
    with served(tables(folder), str(folder)) as (runtime, client):
        yield runtime, client


Ask = Callable[[str, Any], Any]


@pytest.fixture(scope="module", params=["embedded", "bus", "http", "shell"])
def ask(request: Any, server: Any, tmp_path_factory: Any) -> Iterator[Ask]:
    runtime, client = server
    endpoint = runtime.endpoints[0]
    if request.param in ("embedded", "bus"):
        way = runtime if request.param == "embedded" else client
        yield lambda app, value: way.infer(app, {"x": value})["y"]
    elif request.param == "shell":
        yield _in_a_shell(endpoint, tmp_path_factory.mktemp("shell"))
    else:
        yield from _over_http(endpoint)


def _in_a_shell(endpoint: str, folder: Any) -> Ask:
    def shell(app: str, value: Any) -> Any:
        given, out = folder / "x.json", folder / "y.json"
        given.write_text(json.dumps(value.tolist()))
        how = ["--in", f"x={given}"]
        assert cli.main(["infer", app, *how, "--endpoint", endpoint, "--out", f"y={out}"]) == 0
        text = out.read_text()
        return text if app == "one" else np.array(json.loads(text), object).reshape(value.shape)

    return shell


def _over_http(endpoint: str) -> Iterator[Ask]:
    """As JSON: raw tensors of texts are those of the unit tests and of Triton's clients."""
    from http_front import FrontThread

    with FrontThread(endpoint, HttpConfig(listen="127.0.0.1:0")) as front:

        def by_http(app: str, value: Any) -> Any:
            tensor = {"name": "x", "datatype": "BYTES", "shape": list(value.shape), "data": value.ravel().tolist()}
            status, told = front.ask("POST", f"/v2/models/{app}/infer", {"inputs": [tensor]})
            if status == 400:
                raise BadInput(told["error"])
            output = told["outputs"][0]
            assert output["datatype"] == "BYTES"
            return np.array(output["data"], object).reshape(output["shape"])

        yield by_http


@pytest.mark.parametrize("app", APPS)
def test_every_text_and_shape_comes_back(ask: Ask, app: str, request: Any) -> None:
    for value in VALUES[app]:
        if "shell" in request.node.name and value.shape == (0, 3):
            continue  # JSON's [] has one axis
        back = ask(app, value)
        if app == "one":  # a string; KServe has none without an axis
            assert np.ravel(np.array(back, object)).tolist() == [value.item()]
        else:
            assert np.shape(back) == value.shape and np.array(back, object).tolist() == value.tolist()


@pytest.mark.parametrize(
    ("app", "value"),
    [("table", ["a", "b"]), ("table", [["a", "b"]]), ("single", ["a", "b"]), ("one", ["a", "b"]), ("row", [["a"]])],
)
def test_another_shape_is_refused(ask: Ask, app: str, value: Any, request: Any) -> None:
    if "shell" in request.node.name:
        pytest.skip("its exit status says so: test_infer_command.py")
    try:
        back = ask(app, np.array(value, object))
    except (BadInput, RequestError):
        return
    assert (app, np.shape(back)) == ("row", (1, 1)), "a batch of one is taken off and put back, over KServe"


@pytest.mark.parametrize(
    "wrong", [[1, 2], [b"a", b"b"], ["a", None], np.array([b"a"]), np.ones(2), ["\ud800"], [["a"], ["b", "c"]]]
)
def test_what_is_no_text_is_refused_by_name(server: Any, wrong: Any) -> None:
    runtime, client = server
    for way in (runtime, client):
        for app in ("row", "any"):
            with pytest.raises(BadInput, match="'x'"):
                way.infer(app, {"x": wrong})
            assert way.infer(app, {"x": ["a"]})["y"].tolist() == ["a"], "the next one is served"


def test_lists_and_numpys_own_arrays_are_taken_as_texts(server: Any) -> None:
    for way in server:
        for value in (["a", "bc"], ("a", "bc"), np.array(["a", "bc"]), np.array(["a", "bc"], object)):
            assert way.infer("row", {"x": value})["y"].tolist() == ["a", "bc"]
        assert way.infer("one", {"x": np.array("a")})["y"] == "a"
        assert way.infer("single", {"x": "a"})["y"].tolist() == ["a"]


def test_the_forms_of_texts_are_told(server: Any) -> None:
    apps = server[1].apps()
    assert apps["table"]["inputs"]["x"] == {"dtype": "text", "shape": [-1, 3], "optional": False, "usual": [1, 3]}
    assert apps["table"]["output_types"] == {"y": {"dtype": "text", "shape": [-1, -1]}}, "as a process's warm-up tells"
    assert apps["single"]["output_types"] == {"y": {"dtype": "text", "shape": [1]}}
    assert apps["one"]["output_types"] == {"y": {"dtype": "text", "shape": []}}


# --- as init writes it ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("app", APPS)
def test_what_init_writes_serves_texts_and_never_says_object(app: str, tmp_path: Any, capsys: Any) -> None:
    shape = APPS[app]
    file = onnx_models.words(str(tmp_path), [size if size > 0 else "D" for size in shape], app)
    out = str(tmp_path / "edge.toml")
    assert cli.main(["init", "--here", os.path.join(str(tmp_path), file), "--out", out, "--cpu", "--slo", "20s"]) == 0
    assert "object" not in (tmp_path / "edge.toml").read_text() + "".join(capsys.readouterr())
    config = load_config(out)
    assert (config.apps[app].inputs["x"].dtype, config.apps[app].inputs["x"].shape) == ("text", shape)
    (tmp_path / "edge.toml").write_text(
        f'[server]\nendpoint = "ipc://{tmp_path}/b/s"\n' + (tmp_path / "edge.toml").read_text()
    )
    with Runtime(load_config(out), serve=True) as runtime:
        assert cli.main(["infer", app, "--example", "--endpoint", runtime.endpoints[0]]) == 0
        said = capsys.readouterr().out
        assert "an example" in said and ("text [" in said or app == "one") and "object" not in said


def test_a_model_may_answer_with_texts(tmp_path: Any, capsys: Any) -> None:
    out = str(tmp_path / "edge.toml")
    file = os.path.join(str(tmp_path), onnx_models.named_classes(str(tmp_path)))
    assert cli.main(["init", "--here", file, "--out", out, "--cpu", "--slo", "20s"]) == 0
    assert "It returns label (text)." in (tmp_path / "edge.toml").read_text()
    with Runtime(load_config(out)) as runtime:
        asked = [runtime.submit("named_classes", {"x": np.eye(3, dtype=np.float32)[place % 3]}) for place in range(6)]
        assert [future.result(20)["label"] for future in asked] == ["cat", "", "grüß"] * 2
