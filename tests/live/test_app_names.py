"""Every printable name of an app, asked over HTTP and gRPC by the clients that people use; names that a front cannot
say are refused with the configuration. The suite of fronts asks an odd name of each front."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from http_front import FrontThread
from serving import LIB, function, served

from edgeserve.config.loading import parse_config
from edgeserve.errors import ConfigError
from edgeserve.fronts.http.settings import HttpConfig

NAMES = [
    *["plain", "Qwen/Qwen3", "a.b", "a_b", "a-b", "a-2e-b", "a b", "a+b", "a#b", "100%", "%2F", "a%2Fb", "a/b", "a"],
    *[
        "ü",
        "名前",
        "🙂",
        "x",
        "x:latest",
        "qwen:8b",
        "who?",
        "a&b=c",
        "a;b",
        "{name}",
        "}}",
        '"',
        "'",
        "\\",
        "$SYS",
        "~",
    ],
    *["infer", "ready", "config", "versions", "a/infer", "b/ready", "b/infer", "v/versions/1", "models", "b/stats"],
    *["/front", "back/", "a//b", "...", "a..b", "n" * 128],
]


@pytest.fixture(scope="module")
def server():
    app = {"model": "exclaim", "slo": "20s", "inputs": {"prompt": {"dtype": "text"}}, "outputs": ["text"]}
    tables = {
        "model": {"exclaim": function("exclaim", "example_prompt", "http_functions")},
        "app": dict.fromkeys(NAMES, app),
    }
    with served(tables) as (runtime, _):
        yield runtime


@pytest.fixture(scope="module")
def front(server):
    grpc = "127.0.0.1:0"
    try:
        import google.protobuf  # noqa: F401 only whether it is there
        import grpc as _  # noqa: F401
    except ImportError:
        grpc = ""
    with FrontThread(server.endpoints[0], HttpConfig(listen="127.0.0.1:0", grpc=grpc)) as thread:
        yield thread


@pytest.mark.parametrize("slashes", ["", "/"])
def test_kserve_over_http(front, slashes):
    body = {"inputs": [{"name": "prompt", "datatype": "BYTES", "shape": [1], "data": ["hi"]}]}
    for name in NAMES:
        path = f"/v2/models/{quote(name, safe=slashes)}"
        assert front.ask("POST", path + "/infer", body)[1].get("model_name") == name, name
        assert front.ask("POST", path + "/versions/1/infer", body)[1].get("model_name") == name, name
        assert front.ask("GET", path + "/ready")[0] == 200, name
        assert front.ask("GET", path + "/config")[1].get("name") == name
        assert [each["name"] for each in front.ask("GET", path + "/stats")[1]["model_stats"]] == [name]
        if not slashes or name != "a/infer":  # else it is what another app is asked
            assert front.ask("GET", path)[1].get("name") == name


def test_a_path_of_no_app_names_what_was_asked(front):
    for path in ("nobody/infer", "no/body/infer", "nobody/versions/1/infer"):
        status, told = front.ask("POST", f"/v2/models/{path}", {"inputs": []})
        assert (status, told["code"]) == (404, "unknown_app") and path.rpartition("/")[0].split("/")[0] in told["error"]


def test_openai(front):
    openai = pytest.importorskip("openai", reason="openai is not installed")
    with openai.OpenAI(base_url=f"http://{front.http}/v1", api_key="none", max_retries=0) as client:
        assert sorted(model.id for model in client.models.list()) == sorted(NAMES)
        for name in NAMES:
            assert client.models.retrieve(name).id == name
            said = client.chat.completions.create(model=name, messages=[{"role": "user", "content": "hi"}])
            assert (said.model, said.choices[0].message.content) == (name, "hi!")


def test_ollama(front):
    ollama = pytest.importorskip("ollama", reason="ollama is not installed")
    client = ollama.Client(f"http://{front.http}")
    listed = [model.model for model in client.list().models]
    assert len(set(listed)) == len(NAMES) and all(":" in each for each in listed)
    for name, shown in zip(NAMES, listed):
        assert client.show(shown).capabilities == ["completion"]
        assert client.generate(shown, "hi").response == "hi!"
        if name != "x:latest":  # which means the app x
            assert client.chat(name, [{"role": "user", "content": "hi"}]).message.content == "hi!"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "0 characters"),
        ("n" * 129, "129 characters"),
        ("a\nb", "cannot be printed"),
        ("a\x00", "cannot be printed"),
        ("a\u202eb", "cannot be printed"),
        ("..", "KServe"),
        ("a/../b", "KServe"),
        ("./a", "KServe"),
    ],
)
def test_what_a_front_cannot_say_is_refused_by_the_configuration(name, why):
    tables = {"model": {"m": {"engine": "synthetic", "expected": {"1": "1ms"}}}, "app": {name: {"model": "m"}}}
    with pytest.raises(ConfigError, match=why):
        parse_config(tables, directory=LIB)
