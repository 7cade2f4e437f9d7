"""Runtimes whose models and apps are given in Python: embedded, awaited, and served by the command."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

import numpy as np
import pytest
from serving import wait_until

from edgeserve import App, AsyncRuntime, Client, Model, Node, Runtime, cli
from edgeserve.engine import Batch, Engine, Footprint, Parts, Result
from edgeserve.errors import BadInput, ConfigError, EdgeServeError, EngineError, Failed, RequestError
from edgeserve.python_file import names_runtime, runtime_at

SLO_MS = 30_000


class Adder(Engine):
    def __init__(self, model: Any = None, lanes: Any = None, directory: str = "") -> None:
        self.step = 1 if model is None else 2
        self.is_loaded = False

    def load(self) -> Footprint:
        self.is_loaded = True
        return Footprint(1000)

    def unload(self) -> None:
        self.is_loaded = False

    def example(self) -> Dict[str, Any]:
        return {"x": 0}

    def run(self, batch: Batch) -> List[Result]:
        return [Result({"y": item["x"] + self.step}) for item in batch.items]


def parts(inputs: Dict[str, Any]) -> Parts:
    return Parts([{"part": value} for value in inputs["x"]])


def total(inputs: Dict[str, Any]) -> Dict[str, Any]:
    return {"total": sum(inputs["square"])}


def test_functions_that_no_file_could_name_are_called_as_they_are() -> None:
    seen: List[float] = []

    def note(inputs: Dict[str, Any]) -> Dict[str, Any]:
        seen.append(float(inputs["x"]))
        return {"y": inputs["x"] * 2}

    with Runtime(models={"note": note, "negate": lambda inputs: {"y": -inputs["x"]}},
                 apps={"note": App("note", slo="30s"), "negate": App("negate", slo="30s")}) as runtime:  # fmt: skip
        assert runtime.infer("note", {"x": 3.0})["y"] == 6.0
        assert runtime.infer("negate", {"x": 3.0})["y"] == -3.0
    assert seen == [3.0], "this very function, not a second copy of its module"


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda inputs: 3, r"<lambda> returned int 3"),
        (functools.partial(max, 1), r"functools\.partial\(<built-in function max>, 1\) raised TypeError"),
    ],
)
def test_an_error_tells_a_function_that_has_no_name(function: Any, text: str) -> None:
    with Runtime(models={"m": function}, apps={"m": App("m", slo="30s")}) as runtime:
        with pytest.raises(Failed, match=text):
            runtime.infer("m", {"x": 1})


def test_an_option_that_a_request_does_not_have_is_said_with_the_nearest() -> None:
    with Runtime(models={"m": lambda inputs: {}}, apps={"m": "m"}) as runtime:
        wrong: Dict[str, Any] = {"slo": 50}
        with pytest.raises(TypeError, match="'slo' is no option of a request; did you mean 'slo_ms'"):
            runtime.infer("m", {}, **wrong)


class Few(Adder):
    """Returns what a test says."""

    returned: Any = []

    def run(self, batch: Batch) -> Any:
        return self.returned


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (None, "a batch returned NoneType; expected a list of a Result per item"),
        ([], "a batch returned 0 for 1 item; expected one for each"),
        ([{"y": 1}], "a batch returned dict; expected a list of a Result per item"),
    ],
)
def test_what_an_engine_returns_wrongly_is_said_at_the_start_with_its_model(returned: Any, text: str) -> None:
    engine = Few()
    engine.returned = returned
    with pytest.raises(EngineError, match=f"model 'few': {text}"), Runtime(models={"few": engine}, apps={"few": "few"}):
        pass


def test_an_engine_is_given_as_a_class_or_as_an_object() -> None:
    own = Adder()
    with Runtime(models={"one": Model(own), "two": Adder}, apps={"one": "one", "two": "two"}) as runtime:
        assert own.is_loaded
        assert runtime.infer("one", {"x": 1}, slo_ms=SLO_MS)["y"] == 2
        assert runtime.infer("two", {"x": 1}, slo_ms=SLO_MS)["y"] == 3
    assert not own.is_loaded


def test_an_engine_object_is_not_made_anew() -> None:
    told: List[Dict[str, Any]] = []
    with Runtime(models={"one": Adder()}, apps={"one": "one"}) as runtime:
        runtime.on_loop(lambda core: core.reload("one", told.append))
        wait_until(lambda: told)
        assert "is an engine object, of which there is no other" in told[0]["failed"]["cpu"]
        assert runtime.infer("one", {"x": 1}, slo_ms=SLO_MS)["y"] == 2


def test_a_file_lies_in_the_directory_that_is_given(tmp_path: Path) -> None:
    import onnx_models

    name = os.path.basename(onnx_models.echo(str(tmp_path), "float32", (3,)))
    with Runtime(models={"echo": Model(name, batch=[1, 2])}, apps={"echo": "echo"}, directory=tmp_path) as runtime:
        values = np.arange(3, dtype=np.float32)
        (answer,) = runtime.infer("echo", {"x": values}, slo_ms=SLO_MS).values()
        assert answer.tolist() == values.tolist()
        assert f'file = "{name}"' in runtime.config()


def test_a_graph_with_parts_and_a_join() -> None:
    runtime = Runtime(
        models={
            "parts": parts,
            "square": lambda inputs: {"square": inputs["part"] ** 2},
            "total": total,
            "count": lambda inputs: {"count": len(inputs["x"])},
            "mean": lambda inputs: {"mean": inputs["total"] / inputs["count"]},
        },
        apps={
            "mean": App(
                Node("parts", fan_out=True),
                "square",
                Node("total", gather=True),
                Node("count", after=[]),
                Node("mean", after=["total", "count"]),
                slo="30s",
                outputs=["mean.mean", "total.total"],
            )
        },
    )
    with runtime:
        answer = runtime.infer("mean", {"x": np.arange(4.0)})
    assert (answer["mean"], answer["total"]) == (3.5, 14.0)


def test_a_process_of_its_own_needs_a_name() -> None:
    model = Model(lambda inputs: inputs, options={"process": True})
    with pytest.raises(EdgeServeError, match=r"models\['m'\] options.process = true: another process cannot import"):
        Runtime(models={"m": model}, apps={"m": "m"}).start()


def test_a_future_of_the_asyncio_runtime_is_awaited() -> None:
    async def ask() -> float:
        async with AsyncRuntime(models={"m": lambda inputs: {"y": inputs["x"] + 1}}, apps={"m": "m"}) as runtime:
            future = runtime.submit("m", {"x": 1.0}, slo_ms=SLO_MS)
            assert future.id > 0
            await runtime.reload(Runtime(models={"m": lambda inputs: {"y": 0.0}}, apps={"m": "m"}).configuration)
            later = await runtime.infer("m", {"x": 1.0}, slo_ms=SLO_MS)
            return float((await future)["y"]) + float(later["y"])

    assert asyncio.run(ask()) == 2.0, "another function without a name is another model"


# --- edgeserve serve app.py:runtime -----------------------------------------------------------------------------------

PROGRAM = """
from beside import FACTOR
import edgeserve

def scale(inputs):
    return {"y": inputs["x"] * FACTOR}

runtime = edgeserve.Runtime(
    models={"scale": scale}, apps={"scale": edgeserve.App("scale", slo="30s")}, server={"endpoint": "ipc://bus"}
)
twin = edgeserve.AsyncRuntime(models={"scale": scale}, apps={"scale": "scale"})
number = 7
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "beside.py").write_text("FACTOR = 3\n")
    (tmp_path / "scaling.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("place", ["scaling.py:runtime", "scaling:runtime"])
def test_a_program_is_served_on_the_bus(place: str, program: Path) -> None:
    root = str(Path(__file__).resolve().parents[2])
    server = subprocess.Popen(
        [sys.executable, "-m", "edgeserve.cli", "serve", place],
        env={**os.environ, "PYTHONPATH": root},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: (program / "bus").exists() or server.poll() is not None)
        assert server.poll() is None, server.communicate()[1]
        with Client("ipc://bus") as client:
            assert client.infer("scale", {"x": np.float32(2)})["y"] == 6
            server.send_signal(signal.SIGHUP)  # there is no file to read again, and the server goes on
            assert any("has not changed: this runtime was made from no file" in line for line in server.stderr or ())
            assert client.infer("scale", {"x": np.float32(2)})["y"] == 6
    finally:
        server.send_signal(signal.SIGTERM)
        log = server.communicate(timeout=30)[1]
    assert server.returncode == 0, log


MEASURED = """
import edgeserve

def scale(inputs):
    return {"y": inputs["x"] * 3}

def example():
    return {"x": 1.0}

model = edgeserve.Model(scale, options={"example": example})
runtime = edgeserve.Runtime(
    models={"scale": model}, apps={"focus": edgeserve.App("scale", slo="5s")}, server={"endpoint": "ipc://bus"}
)
"""


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["check", "app.py:runtime", "--rate", "focus=5"], 0, "focus"),
        (["doctor", "app.py:runtime", "--quick"], None, "app.py:runtime: 1 app, 1 model"),
        (["profile", "app.py:runtime", "--no-machine", "--seconds", "0.05"], 0, "scale on cpu0"),
        (["bench", "app.py:runtime", "--app", "focus"], 2, "ipc://bus"),
        (["front", "frigate", "app.py:runtime"], 2, "--app"),
    ],
)
def test_every_command_that_takes_a_configuration_takes_a_program(
    words: List[str], status: Optional[int], says: str, program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (program / "app.py").write_text(MEASURED)
    ended = cli.main(words)
    captured = capsys.readouterr()
    said = " ".join((captured.out + captured.err).split())
    assert says in said, said
    assert status is None or ended == status, said


@pytest.mark.parametrize("name", ["runtime", "twin"])
def test_the_runtime_of_a_program(name: str, program: Path) -> None:
    runtime = runtime_at(f"scaling.py:{name}")
    assert list(runtime.configuration.apps) == ["scale"]
    assert "scaling:scale" in runtime.config()


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("scaling.py", "which object of the program is the runtime.* scaling.py:runtime"),
        ("scaling.py:", "which object of the program is the runtime.* scaling.py:runtime"),
        ("scale.py:runtime", "there is no file scale.py"),
        ("scaling.py:runtme", "has no 'runtme'; did you mean 'runtime'"),
        ("scaling.py:number", "is a int, expected an edgeserve.Runtime"),
        ("no_such_module:runtime", "no_such_module cannot be imported: ModuleNotFoundError"),
        ("broken.py:runtime", "broken.py cannot be imported: ZeroDivisionError: division by zero"),
        ("begun.py:runtime", "was started while begun.py was imported.*__main__"),
    ],
)
def test_what_is_wrong_with_a_program_is_said(place: str, text: str, program: Path) -> None:
    (program / "broken.py").write_text("1 / 0\n")
    (program / "begun.py").write_text(PROGRAM + "with runtime: pass\n")
    assert names_runtime(place)
    with pytest.raises(ConfigError, match=text):
        runtime_at(place)


def test_files_of_toml_are_no_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a:b").write_text("")
    assert not any(map(names_runtime, ("edge.toml", "a:b", "/etc/edgeserve/edge.toml")))


def test_a_program_names_its_functions_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(
        textwrap.dedent(
            """
            from edgeserve import Runtime
            def f(inputs):
                return inputs
            print(Runtime(models={"f": f}, apps={"f": "f"}).config())
            """
        )
    )
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "hello.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
    )
    assert 'function = "hello:f"' in done.stdout, done.stderr


ITSELF = """
import sys
import edgeserve

print("begun", __name__, file=sys.stderr)

def length(inputs):
    return len(inputs["x"])

def scale(inputs):
    return {"y": inputs["x"] * 3}

runtime = edgeserve.Runtime(
    models={"scale": edgeserve.Model(scale, options={"process": PROCESS})},
    apps={"focus": edgeserve.App("scale", slo="30s", predict={"length": length})},
)

if __name__ == "__main__":
    with runtime:
        print(runtime.infer("focus", {"x": "ab"})["y"])
"""


@pytest.mark.parametrize("process", [False, True])
def test_a_program_that_is_started_names_functions_of_its_own(process: bool, tmp_path: Path) -> None:
    """Nothing waits for a program that is imported while it makes its runtime, and it is not run twice."""
    (tmp_path / "itself.py").write_text(ITSELF.replace("PROCESS", str(process)))
    done = subprocess.run(
        [sys.executable, "itself.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "ababab\n", done.stderr
    assert re.findall("begun .*", done.stderr) == ["begun __main__"] + ["begun itself"] * process


def test_what_is_said_of_an_app_in_python_names_no_table_of_a_file(caplog: pytest.LogCaptureFixture) -> None:
    """Warnings of the start, and errors of requests."""
    runtime = Runtime(
        models={"add": Model(Adder, expected={1: "50ms"}), "slow": Model(lambda inputs: time.sleep(0.2) or {"y": 1})},
        apps={
            "short": App("add", slo="10ms"),
            "few": App("slow", slo="20s", pending_max=1),
            "newest": App("slow", slo="20s", stream="newest_wins"),
        },
        lanes={"host": {"threads": 1024}},
    )
    said: List[str] = []
    with runtime:
        with pytest.raises(BadInput) as error:
            runtime.submit("few", {}, stream="camera")
        said.append(str(error.value))
        futures = [runtime.submit(app, {}, stream="s" if app == "newest" else None) for app in ("few", "newest") * 3]
        for future in futures:
            try:
                future.result(20)
            except RequestError as failed:
                said.append(str(failed))
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert any("apps['short'] slo" in text for text in warnings) and any(
        "lanes['host'] threads" in text for text in warnings
    )
    assert any("pending_max" in text for text in said) and any("newest_wins" in text for text in said[1:])
    assert [text for text in [*warnings, *said] if re.search(r"\[\[?(app|model|lane|device|policy)[.]\w", text)] == []
