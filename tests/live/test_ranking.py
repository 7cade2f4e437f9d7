"""Through every front, a request's own claims count among the requests of its client alone."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Tuple

import numpy as np
import pytest
from serving import function, served

from edgeserve.client import Client
from edgeserve.errors import RequestError
from edgeserve.fronts.http.settings import HttpConfig
from edgeserve.runtime import Runtime

X = {"x": np.zeros(4, np.float32)}
TOKENS = {name: f"a-token-of-these-tests-{name}" for name in ("honest", "greedy")}
RANKED = "class critical and value 1e+15 rank it among its client's own alone"


def tables(**server: Any) -> Dict[str, Any]:
    inputs = {"x": {"dtype": "float32", "shape": [4]}}
    return {
        "server": server,
        "model": {
            "work": {"engine": "synthetic", "batch": [1], "expected": {"1": "20ms"}},
            "chat": function("chat", "example_chat", "http_functions"),
        },
        "app": {
            "work": {"model": "work", "slo": "400ms", "inputs": inputs},
            "chat": {"model": "chat", "slo": "20s", "inputs": {"messages": {"dtype": "text"}}},
        },
    }


@pytest.fixture(scope="module")
def ways() -> Iterator[Tuple[Runtime, Client]]:
    with served(tables()) as (runtime, client):
        yield runtime, client


@contextmanager
def front_of(runtime: Runtime, folder: Path) -> Iterator[Any]:
    from http_front import FrontThread

    place = ""
    try:
        import google.protobuf  # noqa: F401 only whether it is there
        import grpc  # noqa: F401

        place = "127.0.0.1:0"
    except ImportError:
        pass
    (folder / "tokens").write_text("".join(f"{name} {token}\n" for name, token in TOKENS.items()))
    settings = HttpConfig(listen="127.0.0.1:0", grpc=place, token_file=str(folder / "tokens"))
    with FrontThread(runtime.endpoints[0], settings) as front:
        yield front


def kserve(**parameters: Any) -> bytes:
    return json.dumps(
        {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [4], "data": [0, 0, 0, 0]}],
            "parameters": parameters,
        }
    ).encode()


def posts(path: str, body: bytes) -> Callable[[Any], None]:
    def ask(front: Any) -> None:
        headers = {"Authorization": f"Bearer {TOKENS['greedy']}", "Content-Type": "application/json"}
        status, told = front.ask("POST", path, body, headers)
        assert status == 200, told

    return ask


def over_grpc(front: Any) -> None:
    library = pytest.importorskip("tritonclient.grpc", reason="tritonclient[grpc] is not installed")
    if len(front.places) < 2:
        pytest.skip("grpcio or protobuf is not installed: there is no gRPC front")
    item = library.InferInput("x", [4], "FP32")
    item.set_data_from_numpy(X["x"])
    with library.InferenceServerClient(front.grpc) as client:
        headers = {"authorization": f"Bearer {TOKENS['greedy']}"}
        client.infer("work", [item], priority=1, parameters={"value": 1e15}, headers=headers)


CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "class": "critical", "value": 1e15}


@pytest.mark.parametrize(
    "ask",
    [
        posts("/v2/models/work/infer", kserve(priority=1, value=1e15)),
        posts("/v2/models/work/infer", kserve(**{"class": "critical", "value": 1e15})),
        posts("/v1/chat/completions", json.dumps(CHAT).encode()),
        over_grpc,
    ],
    ids=["KServe with priority", "KServe with class", "OpenAI", "gRPC"],
)
def test_clients_of_a_front_rank_their_own_requests_alone(ask: Any, ways: Any, tmp_path: Path) -> None:
    runtime, client = ways
    with front_of(runtime, tmp_path) as front:
        ask(front)
    story = client.story(client.infer("work", X).id - 1)
    assert "class normal" in story[0] and any(RANKED in line for line in story), story


@pytest.mark.parametrize("origin", ["mqtt:lamp", "address:192.0.2.7", "camera:door"])
def test_what_a_front_asks_for_others_ranks_among_theirs(origin: str, ways: Any) -> None:
    _, client = ways
    story = client.story(client.submit("work", X, priority_class="critical", value=1e15, origin=origin).result(20).id)
    assert "class normal" in story[0] and any(RANKED in line for line in story), story


def test_without_a_right_to_control_a_client_of_the_bus_ranks_its_own() -> None:
    with served(tables(endpoint="tcp://127.0.0.1:*")) as (runtime, client):
        number = client.infer("work", X, priority_class="critical", value=1e15).id
        story = runtime.story(number)
        assert "class normal" in story[0] and any(RANKED in line for line in story), story


def test_the_application_is_taken_at_its_word_and_other_programs_of_its_user_rank_their_own(ways: Any) -> None:
    runtime, client = ways
    story = client.story(runtime.infer("work", X, priority_class="critical", value=1e15).id)
    assert "class critical" in story[0] and not any(RANKED in line for line in story), story
    story = client.story(client.infer("work", X, priority_class="critical", value=1e15).id)
    assert "class normal" in story[0] and any(RANKED in line for line in story), story


@pytest.mark.parametrize(("listed", "counted"), [("token:greedy", "critical"), ("token:other", "")])
def test_the_configuration_says_whose_class_counts(listed: str, counted: str) -> None:
    with served(tables(critical_for=[listed])) as (_, client):
        future = client.submit("work", X, priority_class="critical", origin="token:greedy")
        if not counted:
            with pytest.raises(RequestError, match="critical_for"):
                future.result(20)
            return
        assert f"class {counted}" in client.story(future.result(20).id)[0]
