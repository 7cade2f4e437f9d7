"""Row i is item i where models serve: a start looks at the batch sizes, and says which end; many processes ask one
server, and each gets its own answers; an empty list is an answer on every way."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List

import drawn_graphs
import numpy as np
import onnx
import onnx_models
import pytest
from drawn_graphs import of_steps

from edgeserve.client import Client
from edgeserve.config.loading import parse_config
from edgeserve.engines.base import Batch, Engine, Footprint, Result
from edgeserve.errors import EngineError, RequestError
from edgeserve.runtime import Runtime
from edgeserve.sched.core.build import build_scheduler
from edgeserve.taps.replay import replay
from edgeserve.taps.trace import build_inputs, read_recording

ROOT = Path(__file__).resolve().parents[2]
APART, MIXED = of_steps("vector", drawn_graphs._scale), of_steps("vector", drawn_graphs._backwards)
"""Both are known alone: the one multiplies, the other gives its input back."""


def saved(folder: Path, **models: Any) -> None:
    for name, model in models.items():
        onnx.save(model, str(folder / f"{name}.onnx"))


def tables(folder: Path, *names: str, **settings: Any) -> Dict[str, Any]:
    model = {"engine": "onnx", "batch": [1, 2, 4], **settings}
    return {
        "model": {name: {**model, "file": f"{name}.onnx"} for name in names},
        "app": {name: {"model": name, "slo": "30s"} for name in names},
    }


def marked(count: int, seed: int = 0) -> List[np.ndarray]:
    return [np.random.RandomState(seed + place).uniform(-9, 9, 4).astype(np.float32) for place in range(count)]


def batches(runtime: Runtime, model: str) -> List[int]:
    """The batch sizes that the scheduler may use."""
    (lane,) = runtime.stats()["models"][model]["latency"].values()
    return [int(size) for size in lane["sizes"]]


def test_a_model_that_mixes_items_serves_one_at_a_time_and_the_log_says_why(tmp_path: Path, caplog: Any) -> None:
    saved(tmp_path, apart=APART, mixed=MIXED)
    with caplog.at_level(logging.WARNING, "edgeserve"), Runtime(
        parse_config(tables(tmp_path, "apart", "mixed"), directory=str(tmp_path))
    ) as runtime:
        assert batches(runtime, "apart") == [1, 2, 4] and batches(runtime, "mixed") == [1]
        (scale,) = {float((runtime.infer("apart", {"x": x})["y"] / x)[0].round(3)) for x in marked(3)}
        futures = [(name, x, runtime.submit(name, {"x": x})) for x in marked(40) for name in ("mixed", "apart")]
        for name, x, future in futures:
            np.testing.assert_allclose(future.result(30)["y"], x * (scale if name == "apart" else 1), rtol=1e-2)
    (said,) = [
        record.getMessage() for record in caplog.records if "model mixed runs in batches of [1]" in record.getMessage()
    ]
    assert "output 'y' differs" in said and "batch_tolerance" in said
    assert not [record for record in caplog.records if "model apart runs" in record.getMessage()]


def test_sizes_that_are_gone_are_unused(tmp_path: Path) -> None:
    """With any known times, also without a batch of one; what is recorded says so."""
    saved(tmp_path, mixed=MIXED)
    known = tables(tmp_path, "mixed", expected={"1": "1ms", "2": "1ms", "4": "1ms"})
    known["server"] = {"record": "run.jsonl"}
    config = parse_config(known, directory=str(tmp_path))
    with Runtime(config) as runtime:
        assert batches(runtime, "mixed") == [1]
        for future in [runtime.submit("mixed", {"x": x}) for x in marked(8)]:
            future.result(30)
    recording = read_recording(str(tmp_path / "run.jsonl"))
    assert replay(build_scheduler(config, (), **build_inputs(recording.start)), recording.steps) is None
    pairs = parse_config(tables(tmp_path, "mixed", batch=[2, 4]), directory=str(tmp_path))
    with Runtime(pairs) as runtime:
        assert batches(runtime, "mixed") == [1]
        assert np.array_equal(runtime.infer("mixed", {"x": marked(1)[0]})["y"], marked(1)[0])


def test_what_the_user_accepts_is_served_in_batches(tmp_path: Path) -> None:
    saved(tmp_path, m=of_steps("vector", drawn_graphs._tanh, drawn_graphs._quantised))
    for tolerance, sizes in ((0.0, [1]), (0.3, [1, 2, 4]), (1.0, [1, 2, 4])):
        config = parse_config(tables(tmp_path, "m", batch_tolerance=tolerance), directory=str(tmp_path))
        with Runtime(config) as runtime:
            assert batches(runtime, "m") == sizes


def test_a_reload_looks_at_what_is_new(tmp_path: Path) -> None:
    saved(tmp_path, m=APART, other=MIXED)
    config = parse_config(tables(tmp_path, "m"), directory=str(tmp_path))
    with tempfile.TemporaryDirectory(prefix="es") as folder:
        tables_now = {**tables(tmp_path, "m"), "server": {"endpoint": f"ipc://{folder}/b"}}
        config = parse_config(tables_now, directory=str(tmp_path))
        with Runtime(config, serve=True) as runtime, Client(runtime.endpoints[0]) as client:
            first = client.infer("m", {"x": marked(1)[0]})["y"]
            both = parse_config(
                {**tables(tmp_path, "m", "other"), "server": tables_now["server"]}, directory=str(tmp_path)
            )
            runtime.reload(both)
            assert batches(runtime, "other") == [1] and batches(runtime, "m") == [1, 2, 4]
            assert client.models()["other"]["batch"] == [1]
            runtime.reload(both)  # nothing is new: it is known that some end
            assert batches(runtime, "other") == [1]
            # The file is another one now: it must not run in the batches that the model runs in.
            shutil.copy(tmp_path / "other.onnx", tmp_path / "m.onnx")
            failed = client.reload("m", timeout_ms=60_000)["failed"]
            assert "must not run in the batches" in failed["cpu"] and "output 'y' differs" in failed["cpu"]
            assert np.array_equal(client.infer("m", {"x": marked(1)[0]})["y"], first), "the old one stays"
            assert client.reload("other", timeout_ms=60_000)["failed"] == {}, "one at a time it may be anything"


def test_what_is_reloaded_while_it_is_not_in_memory_is_looked_at_when_it_is_loaded(tmp_path: Path) -> None:
    saved(tmp_path, one=APART, two=APART, other=MIXED)
    now = tables(tmp_path, "one", "two", memory="10MiB", expected={"1": "1ms", "2": "1ms", "4": "1ms"})
    with tempfile.TemporaryDirectory(prefix="es") as folder:
        now.update(server={"endpoint": f"ipc://{folder}/b"}, device={"cpu": {"memory": "10MiB"}})
        with Runtime(parse_config(now, directory=str(tmp_path)), serve=True) as runtime, Client(
            runtime.endpoints[0]
        ) as client:
            first = client.infer("one", {"x": marked(1)[0]})["y"]
            shutil.copy(tmp_path / "other.onnx", tmp_path / "two.onnx")
            assert client.reload("two", timeout_ms=60_000)["failed"] == {}, "it is not loaded yet"
            for _ in range(2):
                with pytest.raises(RequestError, match="must not run in the batches"):
                    client.infer("two", {"x": marked(1)[0]}, slo_ms=3_000)
            assert np.array_equal(client.infer("one", {"x": marked(1)[0]})["y"], first)


def test_what_is_loaded_again_from_another_file_is_looked_at(tmp_path: Path) -> None:
    """Without a reload: it was evicted meanwhile."""
    saved(tmp_path, one=APART, two=APART, other=MIXED)
    now = tables(tmp_path, "one", "two", memory="10MiB", expected={"1": "1ms", "2": "1ms", "4": "1ms"})
    with Runtime(parse_config({**now, "device": {"cpu": {"memory": "10MiB"}}}, directory=str(tmp_path))) as runtime:
        answers = [runtime.infer(name, {"x": marked(1)[0]})["y"] for name in ("two", "one")]
        shutil.copy(tmp_path / "other.onnx", tmp_path / "two.onnx")
        for _ in range(2):
            with pytest.raises(RequestError, match="must not run in the batches"):
                runtime.infer("two", {"x": marked(1)[0]}, slo_ms=3_000)
        assert np.array_equal(runtime.infer("one", {"x": marked(1)[0]})["y"], answers[1])


class Counting(Engine):
    """Doubles ``x``, and counts its loads and runs."""

    loads, runs = 0, 0

    def __init__(self, model: Any, lanes: Any, directory: str) -> None:
        self._bytes = model.memory_bytes

    def load(self) -> Footprint:
        Counting.loads += 1
        return Footprint(self._bytes)

    def unload(self) -> None:
        pass

    def example(self) -> Dict[str, Any]:
        return {"x": np.zeros(4, np.float32)}

    def run(self, batch: Batch) -> List[Result]:
        Counting.runs += 1
        return [Result({"y": item["x"] * 2}) for item in batch.items]


def test_a_model_that_comes_and_goes_is_looked_at_once(tmp_path: Path) -> None:
    """Two models for which the device has room for one; a load at run time warms up, and looks at nothing."""
    (tmp_path / "counting.py").write_text("from test_rows_counting import Counting\n", encoding="utf-8")
    sys.modules["test_rows_counting"] = sys.modules[__name__]
    model = {"engine": "counting:Counting", "batch": [1, 2, 4], "memory": "10MiB"}
    model["expected"] = {"1": "1ms", "2": "1ms", "4": "1ms"}
    config = parse_config(
        {
            "device": {"cpu": {"memory": "10MiB"}},
            "model": {"one": model, "two": model},
            "app": {name: {"model": name, "slo": "30s"} for name in ("one", "two")},
        },
        directory=str(tmp_path),
    )
    Counting.loads = Counting.runs = 0
    with Runtime(config) as runtime:
        assert Counting.loads == 2, "the one that stays out was looked at, too"
        begun = Counting.runs
        for _ in range(3):
            for name in ("one", "two"):
                assert runtime.infer(name, {"x": marked(1)[0]})["y"][0] == marked(1)[0][0] * 2
        loads = Counting.loads - 2
        assert loads >= 4 and Counting.runs - begun == 6 + 3 * loads, "a warm-up runs each size once"


def test_a_start_says_what_a_model_without_rows_needs(tmp_path: Path) -> None:
    onnx_models.rows(str(tmp_path), "twice")
    with pytest.raises(EngineError, match=r"shape \[2, 4\] for a batch of 1.*options.batch_axis = false"):
        with Runtime(parse_config(tables(tmp_path, "rows"), directory=str(tmp_path))):
            pass


# --- many processes ---------------------------------------------------------------------------------------------------

ASKS = """
import json, sys
import numpy as np
from edgeserve.client import Client
endpoint, seed, known = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
draw, wrong, answered = np.random.RandomState(seed), [], 0
with Client(endpoint) as client:
    asked = []
    for _ in range(17):
        x = draw.uniform(-9, 9, 4).astype(np.float32)
        for app in known:
            item = {"x": x[None] if app == "found" else x}
            asked.append((app, x, client.submit(app, item, slo_ms=60_000)))
    for app, x, future in asked:
        y = future.result(60)["y"]
        answered += 1
        right = {"apart": x * known["apart"], "found": np.argwhere(x[None] > 0.5)}.get(app, x)
        if y.shape != right.shape or not np.allclose(y, right, rtol=1e-3, atol=1e-4):
            wrong.append([app, x.tolist(), y.tolist()])
print(json.dumps({"answered": answered, "wrong": wrong}))
"""


def test_four_processes_ask_one_server_and_each_gets_its_own(tmp_path: Path) -> None:
    found = of_steps("vector", end=drawn_graphs._places, y=["num_found", 2])
    next(item for item in found.graph.initializer if item.data_type == onnx.TensorProto.FLOAT).CopyFrom(
        onnx.numpy_helper.from_array(np.float32(0.5), found.graph.initializer[0].name)
    )
    saved(tmp_path, apart=APART, mixed=MIXED, rolled=of_steps("vector", drawn_graphs._rolled), found=found)
    served = tables(tmp_path, "apart", "mixed", "rolled", "found")
    served["model"]["found"].update(batch=[1], shapes={"x": [1, 4]}, options={"batch_axis": False})
    with tempfile.TemporaryDirectory(prefix="es") as folder:
        served["server"] = {"endpoint": f"ipc://{folder}/b"}
        with Runtime(parse_config(served, directory=str(tmp_path)), serve=True) as runtime:
            one = np.ones(4, np.float32)
            known = {"apart": float(runtime.infer("apart", {"x": one})["y"][0]), "mixed": 1, "rolled": 1, "found": 0}
            command = [sys.executable, "-c", ASKS, runtime.endpoints[0]]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            children = [
                subprocess.Popen([*command, str(seed), json.dumps(known)], stdout=subprocess.PIPE, env=environment)
                for seed in range(4)
            ]
            said = [json.loads(child.communicate(timeout=90)[0]) for child in children]
            assert max(batches(runtime, "apart")) == 4
    assert [answer["wrong"] for answer in said] == [[]] * 4
    assert sum(answer["answered"] for answer in said) == 4 * 17 * len(known)


# --- an empty list is an answer ---------------------------------------------------------------------------------------

JOINED = """
import numpy as np

def example():
    return {"seen": np.zeros((0, 7), np.float32), "kept": np.zeros((2, 0), np.int64)}

def join(item):
    return {"seen": item["seen"], "kept": item["kept"], "count": len(item["seen"])}
"""
SHAPES = [(0, 7), (3, 7), (0, 0), (3, 0)]


@pytest.fixture(scope="module")
def empties() -> Iterator[Any]:
    """A server whose app ``echo`` returns its input of any shape, in a batch of its own, and whose app ``joined`` has a
    join behind two of them."""
    with tempfile.TemporaryDirectory(prefix="es") as folder:
        onnx_models.echo(folder, "float32", ["W"], "echo")
        onnx_models.echo(folder, "int64", ["W"], "numbers")
        Path(folder, "joined.py").write_text(JOINED, encoding="utf-8")
        whole = {"engine": "onnx", "options": {"batch_axis": False}}
        node = [
            {"name": "left", "model": "echo", "inputs": {"x": "request.a"}},
            {"name": "right", "model": "numbers", "inputs": {"x": "request.b"}},
            {
                "name": "end",
                "model": "join",
                "after": ["left", "right"],
                "inputs": {"seen": "left.y", "kept": "right.y"},
            },
        ]
        any_shape = {"dtype": "float32", "shape": [-1, -1]}
        config = parse_config(
            {
                "server": {"endpoint": f"ipc://{folder}/b"},
                "model": {
                    "echo": {**whole, "file": "echo.onnx", "shapes": {"x": [2, 7]}},
                    "numbers": {**whole, "file": "numbers.onnx", "shapes": {"x": [2, 7]}},
                    "rows": {"engine": "onnx", "file": "echo.onnx", "batch": [1, 2], "shapes": {"x": [3]}},
                    "join": {"engine": "python", "function": "joined:join", "options": {"example": "joined:example"}},
                },
                "app": {
                    "echo": {"model": "echo", "slo": "30s", "inputs": {"x": any_shape}},
                    "rows": {"model": "rows", "slo": "30s", "inputs": {"x": {"dtype": "float32", "shape": [-1]}}},
                    "joined": {"slo": "30s", "node": node},
                },
            },
            directory=folder,
        )
        with Runtime(config, serve=True) as runtime:
            yield runtime


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", ["embedded", "bus", "bus without shared memory"])
def test_an_empty_list_is_an_answer(shape: Any, way: str, empties: Any) -> None:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    if way == "embedded":
        answers = [empties.infer("echo", {"x": x}), empties.infer("joined", {"a": x, "b": x.astype(np.int64)})]
    else:
        with Client(empties.endpoints[0], shared_memory=way == "bus") as client:
            answers = [client.infer("echo", {"x": x}), client.infer("joined", {"a": x, "b": x.astype(np.int64)})]
    assert answers[0]["y"].shape == shape and answers[0]["y"].dtype == np.float32
    assert np.array_equal(answers[0]["y"], x)
    assert answers[1]["seen"].shape == answers[1]["kept"].shape == shape and int(answers[1]["count"]) == shape[0]


def test_items_of_no_values_share_a_batch_with_each_other(empties: Any) -> None:
    nothing = np.zeros(0, np.float32)
    futures = [empties.submit("rows", {"x": nothing}) for _ in range(6)]
    assert all(future.result(30)["y"].shape == (0,) for future in futures)


@pytest.mark.parametrize("shape", SHAPES)
def test_an_empty_list_is_an_answer_over_http(shape: Any, empties: Any) -> None:
    import http.client

    from http_front import FrontThread

    from edgeserve.fronts.http.settings import HttpConfig

    x = np.arange(np.prod(shape), dtype=np.float32)
    tensor = {"name": "x", "datatype": "FP32", "shape": list(shape), "data": x.tolist()}
    with FrontThread(empties.endpoints[0], HttpConfig(listen="127.0.0.1:0")) as front:
        connection = http.client.HTTPConnection(front.http, timeout=30)
        connection.request("POST", "/v2/models/echo/infer", json.dumps({"inputs": [tensor]}))
        (output,) = json.loads(connection.getresponse().read())["outputs"]
        assert (output["shape"], output["data"]) == (list(shape), x.tolist())
        head = json.dumps(
            {
                "inputs": [
                    {
                        **{key: tensor[key] for key in ("name", "datatype", "shape")},
                        "parameters": {"binary_data_size": x.nbytes},
                    }
                ],
                "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
            }
        ).encode()
        connection.request(
            "POST", "/v2/models/echo/infer", head + x.tobytes(), {"Inference-Header-Content-Length": str(len(head))}
        )
        answer = connection.getresponse()
        size = int(answer.headers["Inference-Header-Content-Length"])
        body = answer.read()
        (output,) = json.loads(body[:size])["outputs"]
        assert output["shape"] == list(shape) and body[size:] == x.tobytes()
        connection.close()
