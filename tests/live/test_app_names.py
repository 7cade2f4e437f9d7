"""Every printable name of an app, asked over every front by the clients that people use; names that a front cannot say
are refused with the configuration."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import quote

import numpy as np
import pytest
from serving import LIB, function, served

from edgeserve.client import AsyncClient
from edgeserve.config.loading import parse_config
from edgeserve.errors import ConfigError
from edgeserve.fronts.http.settings import HttpConfig

pytest.importorskip("starlette", reason="starlette is not installed: there is no HTTP front")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: there is no HTTP front")

from http_front import FrontThread

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


def inputs_of(module):
    wish = module.InferInput("prompt", [1], "BYTES")
    wish.set_data_from_numpy(np.array(["hi"], object))
    return [wish]


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


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_tritonclient(front, transport):
    module = pytest.importorskip(f"tritonclient.{transport}", reason="tritonclient is not installed")
    with module.InferenceServerClient(front.http if transport == "http" else front.grpc) as client:
        for name in NAMES:
            answer = client.infer(name, inputs_of(module))
            assert answer.as_numpy("text").tolist() == [b"hi!"], name
            assert client.is_model_ready(name), name
            told = client.get_inference_statistics(name)
            stats = told["model_stats"][0]["name"] if transport == "http" else told.model_stats[0].name
            assert stats == name


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


def test_mqtt(server):
    aiomqtt = pytest.importorskip("aiomqtt", reason="the front needs aiomqtt: pip install '.[mqtt]'")
    from mqtt_broker import broker

    from edgeserve.front.topics import topic_part
    from edgeserve.fronts.mqtt import Mqtt, MqttFront

    async def asked(port):
        stopped, ready = asyncio.Event(), asyncio.Event()
        answers, states, keys = {}, set(), []
        async with AsyncClient(server.endpoints[0]) as client:
            front = MqttFront(client, Mqtt(port=port, name="names", ask=tuple(NAMES)))
            await front.look()
            serving = asyncio.ensure_future(front.serve(stopped, lambda place: ready.set()))
            async with aiomqtt.Client("127.0.0.1", port) as home:
                await home.subscribe("edgeserve/names/#")
                await home.subscribe("homeassistant/#")
                await asyncio.wait_for(ready.wait(), 30)
                for name in NAMES:
                    await home.publish(f"edgeserve/names/ask/{topic_part(name)}", name, qos=1)
                async for message in home.messages:
                    kind, _, rest = str(message.topic).partition("/names/")[2].partition("/")
                    if kind == "answer":
                        answers[rest] = json.loads(message.payload)["text"]
                    elif kind == "apps":
                        states.add(rest)
                    elif str(message.topic).startswith("homeassistant/"):
                        keys.append(json.loads(message.payload)["unique_id"])
                    if len(answers) == len(NAMES):
                        break
            stopped.set()
            await serving
        return answers, states, keys

    with broker() as port:
        answers, states, keys = asyncio.run(asyncio.wait_for(asked(port), 60))
    assert answers == {topic_part(name): (name + "!")[:255] for name in NAMES}
    assert states == set(answers)
    assert len(set(keys)) == len(keys) >= 5 * len(NAMES)


def test_wyoming(server):
    pytest.importorskip("wyoming", reason="the front needs wyoming: pip install '.[wyoming]'")
    from wyoming.asr import Transcript
    from wyoming.client import AsyncTcpClient
    from wyoming.handle import Handled
    from wyoming.info import Describe, Info

    from edgeserve.fronts.wyoming import Voice, WyomingFront

    async def asked(name, client):
        stopped, place = asyncio.Event(), asyncio.get_running_loop().create_future()
        front = WyomingFront(client, Voice(apps={"intent": name}, listen="127.0.0.1:0"))
        await front.look()
        serving = asyncio.ensure_future(front.serve(stopped, place.set_result))
        async with AsyncTcpClient("127.0.0.1", int((await place).rpartition(":")[2])) as satellite:
            await satellite.write_event(Describe().event())
            info = Info.from_event(await satellite.read_event())
            await satellite.write_event(Transcript("hi").event())
            said = await satellite.read_event()
            while not Handled.is_type(said.type):
                said = await satellite.read_event()
        stopped.set()
        await serving
        return info.handle[0].name, Handled.from_event(said).text

    async def all_of_them():
        async with AsyncClient(server.endpoints[0]) as client:
            return [await asked(name, client) for name in NAMES]

    assert asyncio.run(all_of_them()) == [(name, "hi!") for name in NAMES]


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
        ("stats", "KServe"),
    ],
)
def test_what_a_front_cannot_say_is_refused_by_the_configuration(name, why):
    tables = {"model": {"m": {"engine": "synthetic", "expected": {"1": "1ms"}}}, "app": {name: {"model": "m"}}}
    with pytest.raises(ConfigError, match=why):
        parse_config(tables, directory=LIB)
