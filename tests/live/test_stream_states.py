"""Models that go on from request to request: every way to ask must name a stream, may begin it anew, and gets a warning
when the state that it left cannot be continued."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any, Callable, Dict, Iterator

import live_functions
import numpy as np
import pytest
from serving import LIB, function, served, wait_until

from edgeserve import App, Model, cli
from edgeserve.async_runtime import AsyncRuntime
from edgeserve.client import AsyncClient
from edgeserve.config.loading import parse_config
from edgeserve.errors import BadInput, ConfigError, DeadlineExpired, Dropped, Failed, RequestError
from edgeserve.fronts.http.settings import HttpConfig
from edgeserve.runtime import Runtime

INPUT = {"x": {"dtype": "float32", "shape": [4]}}
SUM = function("sum_up", options={"stateful": True})


def tables() -> Dict[str, Any]:
    both = {"node": [{"name": "echo"}, {"name": "sum"}]}
    apps = {"sum": {"model": "sum"}, "behind": both, "alone": {"model": "sum", "stream": "optional"}}
    return {
        "model": {"sum": SUM, "echo": function("echo"), "slow": {**SUM, "function": "live_functions:sum_slowly"}},
        "app": {
            **{name: {"stream": "in_order", "slo": "20s", "inputs": INPUT, **app} for name, app in apps.items()},
            "newest": {"model": "slow", "slo": "20s", "stream": "newest_wins", "inputs": INPUT},
        },
    }


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with served(tables()) as (runtime, client):
        yield runtime, client


def x(value: float) -> Any:
    return {"x": np.full(4, value, np.float32)}


Ask = Callable[..., float]
"""``ask(app, value, stream, reset)``: the total so far. Raises BadInput."""


@pytest.fixture(scope="module", params=["embedded", "async bus", "bus", "http", "form", "kserve", "grpc", "shell"])
def ask(request: Any, server: Any, tmp_path_factory: Any) -> Iterator[Ask]:
    runtime, client = server
    endpoint = runtime.endpoints[0]
    if request.param in ("http", "form", "kserve", "grpc"):
        yield from _over_http(request.param, endpoint)
    elif request.param == "shell":
        yield _in_a_shell(endpoint, tmp_path_factory.mktemp("shell"))
    elif request.param == "async bus":
        loop = asyncio.new_event_loop()

        async def connect() -> Any:
            return AsyncClient(endpoint)

        bus = loop.run_until_complete(connect())
        yield lambda app, value, stream=None, reset=None: float(
            loop.run_until_complete(bus.infer(app, x(value), stream=stream, reset=reset))["total"]
        )
        loop.run_until_complete(bus.close())
        loop.close()
    else:
        way = runtime if request.param == "embedded" else client
        yield lambda app, value, stream=None, reset=None: float(
            way.infer(app, x(value), stream=stream, reset=reset)["total"]
        )


def _over_http(kind: str, endpoint: str) -> Iterator[Ask]:
    from http_front import FrontThread

    if kind == "grpc":
        pytest.importorskip("grpc", reason="pip install -e '.[grpc]'")
        library = pytest.importorskip("tritonclient.grpc", reason="tritonclient[grpc] is not installed")
    with FrontThread(endpoint, HttpConfig(listen="127.0.0.1:0", grpc="127.0.0.1:0" if kind == "grpc" else "")) as front:

        def over_http(app: str, value: float, stream: Any = None, reset: Any = None) -> float:
            names = ("sequence_id", "sequence_start") if kind == "kserve" else ("stream", "reset")
            said = {name: one for name, one in zip(names, (stream, reset)) if one is not None}
            path = f"/v2/models/{app}/infer"
            if kind == "form":
                fields = {"x": json.dumps([value] * 4), **{name: str(one).lower() for name, one in said.items()}}
                parts = [
                    f'--b\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{text}\r\n'
                    for key, text in fields.items()
                ]
                body: Any = ("".join(parts) + "--b--\r\n").encode()
                status, told = front.ask("POST", path, body, {"content-type": "multipart/form-data; boundary=b"})
            else:
                tensor = {"name": "x", "datatype": "FP32", "shape": [4], "data": [value] * 4}
                status, told = front.ask("POST", path, {"inputs": [tensor], "parameters": said})
            if status == 400:
                raise BadInput(told["error"])
            return float(told["outputs"][0]["data"][0])

        def over_grpc(app: str, value: float, stream: Any = None, reset: Any = None) -> float:
            tensor = library.InferInput("x", [4], "FP32")
            tensor.set_data_from_numpy(np.full(4, value, np.float32))
            with library.InferenceServerClient(front.grpc) as triton:
                try:
                    answer = triton.infer(app, [tensor], sequence_id=stream or 0, sequence_start=bool(reset))
                except library.InferenceServerException as error:
                    raise BadInput(str(error)) from None
            return float(answer.as_numpy("total").reshape(-1)[0])

        yield over_grpc if kind == "grpc" else over_http


def _in_a_shell(endpoint: str, folder: Any) -> Ask:
    def shell(app: str, value: float, stream: Any = None, reset: Any = None) -> float:
        given, out = str(folder / "x.npy"), str(folder / "total.npy")
        np.save(given, np.full(4, value, np.float32))
        words = ["infer", app, "--in", f"x={given}", "--endpoint", endpoint, "--out", f"total={out}"]
        words += ["--stream", str(stream)] if stream is not None else []
        if cli.main([*words, *(["--reset"] if reset else [])]) != 0:
            raise BadInput("as the shell says")
        return float(np.load(out))

    return shell


@pytest.mark.parametrize("app", ["sum", "behind"])
def test_a_request_that_names_no_stream_is_refused(ask: Ask, app: str, capsys: Any) -> None:
    with pytest.raises(BadInput) as refused:
        ask(app, 1)
    assert "name a stream" in str(refused.value) + capsys.readouterr().err


def test_an_explicit_option_has_each_request_stand_alone(ask: Ask) -> None:
    assert [ask("alone", value) for value in (1, 2, 3)] == [1, 2, 3]


def test_a_stream_goes_on_and_begins_anew(ask: Ask, request: Any) -> None:
    if "shell" in request.node.name:
        pytest.skip("each command is a connection of its own, and over ipc so are its streams")
    stream = 7 if "grpc" in request.node.name or "kserve" in request.node.name else "7"
    assert [ask("behind", 1, stream), ask("behind", 2, stream)] == [1, 3]
    assert ask("behind", 10, stream, True) == 10
    assert ask("behind", 5, stream) == 15


def test_a_stream_that_is_to_begin_anew_must_be_named(ask: Ask) -> None:
    with pytest.raises(BadInput):
        ask("sum", 1, None, True)


def test_the_example_of_the_shell_names_one_itself(server: Any, capsys: Any) -> None:
    assert cli.main(["infer", "sum", "--example", "--endpoint", server[0].endpoints[0]]) == 0
    assert "total: float32" in capsys.readouterr().out


def test_an_asynchronous_runtime_asks_the_same() -> None:
    async def use() -> Any:
        async with AsyncRuntime(parse_config(tables(), directory=LIB)) as runtime:
            with pytest.raises(BadInput, match="name a stream"):
                await runtime.infer("sum", x(1))
            first = await runtime.infer("sum", x(1), stream="s")
            return first["total"], (await runtime.infer("sum", x(2), stream="s", reset=True))["total"]

    assert asyncio.run(use()) == (1, 2)


def test_requests_before_a_beginning_go_on_and_those_behind_it_do_not(server: Any) -> None:
    """All are sent before the first is answered."""
    runtime, _ = server
    asked = [
        runtime.submit("sum", x(value), stream="mixed", reset=reset)
        for value, reset in ((1, None), (2, None), (10, True), (20, None), (100, True), (200, None))
    ]
    assert [float(future.result(20)["total"]) for future in asked] == [1, 3, 10, 30, 100, 300]


def test_a_beginning_counts_also_where_its_request_is_not_served(server: Any) -> None:
    runtime, client = server
    for way in (runtime, client):
        assert float(way.infer("sum", x(1), stream="late")["total"]) == 1
        with pytest.raises((DeadlineExpired, Dropped, RequestError)):
            way.infer("sum", x(50), stream="late", reset=True, slo_ms=1e-6, on_late="drop")
        assert float(way.infer("sum", x(2), stream="late")["total"]) == 2


def test_a_newer_request_that_wins_takes_the_beginning_over(server: Any) -> None:
    runtime, _ = server
    live_functions.close_gate()
    first = runtime.submit("newest", x(1), stream="s")
    wait_until(live_functions.entered.is_set)
    begins = runtime.submit("newest", x(10), stream="s", reset=True)
    newest = runtime.submit("newest", x(100), stream="s")
    with pytest.raises(Dropped):
        begins.result(20)
    live_functions.gate.set()
    assert (float(first.result(20)["total"]), float(newest.result(20)["total"])) == (1, 100)


# --- at the start -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("node", [{}, {"node": [{"name": "echo"}, {"name": "sum"}]}])
def test_an_app_that_keeps_no_streams_is_refused_at_the_start(node: Any) -> None:
    app = {"slo": "20s", **(node or {"model": "sum"})}
    config = parse_config(
        {"model": {"sum": SUM, "echo": function("echo")}, "app": {"a": app}},
        directory=LIB,
    )
    with pytest.raises(
        ConfigError, match=r"\[app.a\] keeps no streams, but model 'sum'.*stream = 'in_order'.*stream = 'optional'"
    ):
        Runtime(config).start()


# --- states of tensor models ------------------------------------------------------------------------------------------


def tensor_model(folder: Any, name: str, **model: Any) -> Dict[str, Any]:
    import onnx_models

    file = getattr(onnx_models, name)(str(folder))
    return {
        "model": {"m": {"engine": "onnx", "file": file, "batch": [1, 2], **model}},
        "app": {"m": {"model": "m", "slo": "20s", "stream": "in_order"}},
    }


@pytest.mark.parametrize("process", [False, True])
@pytest.mark.parametrize("wrong", [-1.0, 0.0, float("nan"), float("inf")])
def test_a_state_that_is_no_number_is_dropped_told_and_counted(wrong: float, process: bool, tmp_path: Any) -> None:
    table = tensor_model(tmp_path, "logarithms", state={"state": "stateN"}, options={"process": process})
    with served(table, str(tmp_path)) as (runtime, client):

        def ask(value: float, stream: str = "s") -> Any:
            return client.infer("m", x(value), stream=stream)["y"][0]

        assert [ask(np.e), ask(np.e), ask(1, "other")] == [pytest.approx(np.e), pytest.approx(np.e + 1), 1]
        with pytest.raises(
            Failed, match="state lost: model 'm': the new state 'stateN' holds (NaN|infinite).*begins anew"
        ):
            ask(wrong)
        assert [ask(np.e), ask(1, "other")] == [pytest.approx(np.e), 1], "the stream begins anew, and the other goes on"
        assert client.stats()["apps"]["m"]["reasons"] == {"failed": {"state_lost": 1}}
        assert client.stats()["streams_with_state"] == 2
        runtime.check()


def test_one_item_whose_state_is_lost_leaves_the_others_of_its_batch(tmp_path: Any) -> None:
    table = tensor_model(tmp_path, "logarithms", state={"state": "stateN"})
    with served(table, str(tmp_path)) as (runtime, _):
        for _ in range(20):
            asked = [runtime.submit("m", x(value), stream=f"s{place}") for place, value in enumerate((1, -1, 1, -1, 1))]
            ended = [future.exception(20) for future in asked]
            assert [type(error) for error in ended] == [type(None), Failed, type(None), Failed, type(None)]


def test_a_state_that_grows_is_refused_at_the_start(tmp_path: Any) -> None:
    table = tensor_model(
        tmp_path, "growing", state={"memory": "memoryN"}, shapes={"x": [1, 4], "memory": [3, 4]}, batch=[1]
    )
    with pytest.raises(Exception, match=r"'memoryN' has the shape \[4, 4\] per item.*'memory'.*\[3, 4\].*grows"):
        with served(table, str(tmp_path)):
            pass


@pytest.mark.parametrize("batch", [[1], [1, 2, 4]])
def test_states_may_have_batch_axes_of_their_own(batch: Any, tmp_path: Any) -> None:
    options = {"state_axis": {"h": 1, "c": 0}}
    table = tensor_model(tmp_path, "two_states", state={"h": "hN", "c": "cN"}, options=options, batch=batch)
    with served(table, str(tmp_path)) as (runtime, _):
        streams = [f"s{place}" for place in range(5)]
        for step in range(3):
            asked = [runtime.submit("m", x(place), stream=name) for place, name in enumerate(streams)]
            answers = [future.result(20)["y"][0] for future in asked]
            assert answers == [place + step * place + step * 10 * place for place in range(5)]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"h": 1, "x": 0}, "no recurrent state"),
        ({"h": 9}, "from 0 to 8"),
        ({"h": "1"}, "a whole number"),
        ({"h": 3}, "shape"),
    ],
)
def test_a_wrong_axis_of_a_state_is_named(said: Any, why: str, tmp_path: Any) -> None:
    table = tensor_model(tmp_path, "two_states", state={"h": "hN", "c": "cN"}, options={"state_axis": said})
    with pytest.raises(Exception, match=f"state_axis.*{why}"):
        with served(table, str(tmp_path)):
            pass


@pytest.mark.parametrize("meanwhile", [0, 2])
def test_a_lane_that_comes_back_late_changes_no_stream(meanwhile: int) -> None:
    """Its request has failed, and the stream has gone on from the state before, or will."""
    back = threading.Event()

    def counts(item: Any, state: Any) -> Any:
        if item["n"] < 0:
            back.wait(30)
        return {"before": state or []}, [*(state or []), item["n"]]

    lanes = {name: {"hang": "200ms"} for name in ("cpu0", "cpu1")}
    model = Model(counts, options={"stateful": True})
    with Runtime(models={"m": model}, apps={"a": App("m", slo="20s", stream="in_order")}, lanes=lanes) as runtime:
        runtime.infer("a", {"n": 0}, stream="s")
        with pytest.raises(Failed, match="hangs"):
            runtime.infer("a", {"n": -1}, stream="s")
        for number in range(meanwhile):
            runtime.infer("a", {"n": number + 1}, stream="s")
        back.set()
        wait_until(lambda: all(lane["state"] == "up" for lane in runtime.stats()["lanes"].values()))
        assert runtime.infer("a", {"n": 9}, stream="s")["before"] == [*range(meanwhile + 1)]
