"""A running server on a real MQTT broker: discovery, state, questions, cameras, commands; a broker that goes."""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
import subprocess
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from mqtt_broker import broker, free_port
from serving import command, served, status_of

from edgeserve.client import AsyncClient

aiomqtt = pytest.importorskip("aiomqtt", reason="the front needs aiomqtt: pip install '.[mqtt]'")

from edgeserve.fronts import mqtt, mqtt_settings  # noqa: E402
from edgeserve.fronts.home_assistant import device_of  # noqa: E402
from edgeserve.fronts.mqtt import Mqtt, MqttFront  # noqa: E402
from edgeserve.fronts.mqtt_settings import host_name  # noqa: E402

FUNCTIONS = """
import numpy as np
def double(inputs):
    if inputs["x"][0] < 0: raise ValueError("negative input")
    return {"y": inputs["x"] * 2}
def intents(inputs):
    words = inputs["said"].split()
    if words[0] != "turn": return {"text": "what?"}
    payloads = {"half": np.float32(0.5), "many": np.arange(3), "true": np.True_}
    payload = payloads.get(words[1], words[1].upper())
    return {"text": "done", "topic": f"lights/{words[-1]}/set", "payload": payload}
def detect(inputs):
    image = inputs["image"]
    rows = np.zeros((40, 9), np.float32)
    if image[0, 0, 0] > 100:
        rows[0] = [24, 16, 16, 16, 0, 0, 0.9, 0, 0]
    return {"output0": rows.T}
def named(inputs):
    found = int(inputs["image"][0, 0, 0] > 100)
    return {"boxes": np.float64([[16, 8, 32, 24]])[:found], "scores": np.float64([0.9])[:found], "classes": [2][:found]}
def count(inputs, before):
    return {"text": str((before or 0) + 1)}, (before or 0) + 1
def example_count(): return {"said": "x"}
def example_double(): return {"x": np.zeros(2, np.float32)}
def example_intents(): return {"said": "turn on kitchen"}
def example_detect(): return {"image": np.zeros((32, 48, 3), np.uint8)}
example_named = example_detect
"""
INPUTS = {
    "double": {"x": {"dtype": "float32", "shape": [2]}},
    "intents": {"said": {"dtype": "text"}},
    "detect": {"image": {"dtype": "uint8", "shape": [32, 48, 3]}},
    "count": {"said": {"dtype": "text"}},
    "named": {"image": {"dtype": "uint8", "shape": [32, 48, 3]}},
}


@pytest.fixture(scope="module")
def runtime():
    with tempfile.TemporaryDirectory(prefix="es") as folder:
        (Path(folder) / "mqtt_functions.py").write_text(FUNCTIONS)
        tables = {
            "device": {"cpu": {"headroom": "1MB"}},
            "model": {
                name: {
                    "engine": "python",
                    "function": f"mqtt_functions:{name}",
                    "options": {"example": f"mqtt_functions:example_{name}", "stateful": name == "count"},
                }
                for name in INPUTS
            },
            "app": {
                name: {
                    "model": name,
                    "slo": "10s",
                    "inputs": inputs,
                    "stream": "in_order" if name == "count" else "none",
                }
                for name, inputs in INPUTS.items()
            },
        }
        with served(tables, folder) as (runtime, _):
            yield runtime


@pytest.fixture(scope="module")
def port():
    with broker() as port:
        yield port


class Home:
    """Another client of the broker: what it heard, by topic, the newest last."""

    def __init__(self, client):
        self.client, self.heard, self.news = client, {}, asyncio.Event()

    async def listen(self):
        async for message in self.client.messages:
            self.heard.setdefault(str(message.topic), []).append(message.payload.decode("utf-8", "replace"))
            self.news.set()

    async def until(self, topic, holds=lambda text: True):
        """The newest text of a topic, once it holds."""
        while not (topic in self.heard and holds(self.heard[topic][-1])):
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), 20)
        return self.heard[topic][-1]

    async def ask(self, topic, payload, answer):
        self.heard.pop(answer, None)
        await self.client.publish(topic, payload, qos=1)
        return json.loads(await self.until(answer))


@asynccontextmanager
async def home_of(port):
    async with aiomqtt.Client("127.0.0.1", port) as client:
        await client.subscribe("#", qos=1)
        home = Home(client)
        listening = asyncio.ensure_future(home.listen())
        try:
            yield home
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


@asynccontextmanager
async def fronted(runtime, port, **options):
    """A front on this loop."""
    ready, stopped = asyncio.Event(), asyncio.Event()
    async with AsyncClient(runtime.endpoints[0]) as client:
        front = MqttFront(client, Mqtt(port=port, name="cellar", **options))
        await front.look()
        serving = asyncio.ensure_future(front.serve(stopped, lambda place: ready.set()))
        try:
            await asyncio.wait_for(ready.wait(), 20)
            yield front
        finally:
            stopped.set()
            await asyncio.wait_for(serving, 20)


def live(runtime, port, story, **options):
    """Run ``story(home, front)``."""

    async def run():
        async with home_of(port) as home, fronted(runtime, port, **options) as front:
            await story(home, front)

    asyncio.run(run())


def jpeg(level):
    image = pytest.importorskip("PIL.Image", reason="pictures need pillow")
    file = io.BytesIO()
    image.new("RGB", (96, 64), (level, level, level)).save(file, "JPEG")
    return file.getvalue()


ASK = {"ask": ("double", "intents"), "publish": ("lights/+/set",)}


def test_home_assistant_finds_the_server_and_its_state(runtime, port):
    async def story(home, front):
        prefix = "homeassistant/binary_sensor/edgeserve_cellar/ready/config"
        ready = json.loads(await home.until(prefix))
        assert await home.until(ready["state_topic"]) == "ON"
        assert await home.until(ready["availability_topic"]) == "online"
        assert ready["device"]["identifiers"] == ["edgeserve_cellar"] and ready["unique_id"] == "edgeserve_cellar_ready"
        device = await home.until("edgeserve/cellar/device", lambda text: "memory_available_bytes" in text)
        assert "cpu0" in json.loads(device)["lanes"] and json.loads(device)["memory_available_bytes"] > 1
        memory = "homeassistant/sensor/edgeserve_cellar/memory_available_bytes/config"
        memory = json.loads(await home.until(memory))
        assert (memory["unit_of_measurement"], memory["device_class"]) == ("MiB", "data_size")
        for topic, (text, *_) in list(home.heard.items()):
            if topic.endswith("/config"):
                assert json.loads(text)["availability_topic"] == "edgeserve/cellar/status", topic
        text = json.loads(await home.until("homeassistant/text/edgeserve_cellar/ask_intents/config"))
        assert text["command_topic"] == "edgeserve/cellar/ask/intents"
        assert "homeassistant/text/edgeserve_cellar/ask_double/config" not in home.heard
        late = json.loads(await home.until("homeassistant/sensor/edgeserve_cellar/app_double_late/config"))
        app = json.loads(await home.until(late["state_topic"]))
        assert {"completed", "refused", "late"} <= set(app)

    live(runtime, port, story, every_s=1.0, **ASK)


def test_readings_that_are_known_are_told_in_home_assistants_units():
    readings = {
        "temperature_c": 61.25,
        "power_w": 12.0,
        "gpu_load": 0.5,
        "memory_available_bytes": 3 << 30,
        "fan": None,
    }
    monitors = {"first": {"readings": None}, "second": {"readings": readings}}
    stats = {"open": 2, "device": {"monitors": monitors}, "lanes": {"gpu0": {"busy": 0.25}}}
    known = {"temperature_c": 61.2, "power_w": 12.0, "gpu_load": 50.0, "memory_available_bytes": 3072.0}
    assert device_of(stats) == {"open": 2, "lanes": {"gpu0": 25.0}, **known}


def test_what_an_earlier_start_announced_and_this_one_does_not_goes(runtime, port):
    old = "homeassistant/text/edgeserve_cellar/ask_intents/config"

    async def first(home, front):
        await home.until(old, lambda text: text)

    async def second(home, front):
        await home.until(old, lambda text: not text)
        assert await home.until("homeassistant/binary_sensor/edgeserve_cellar/ready/config")

    live(runtime, port, first, **ASK)
    live(runtime, port, second)


def test_each_asker_goes_on_from_its_own_questions(runtime, port):
    async def story(home, front):
        said = []
        for who in ("/hall", "/hall", "/kitchen", "", "/hall/7", "/kitchen"):
            told = await home.ask(f"edgeserve/cellar/ask/count{who}", "x", f"edgeserve/cellar/answer/count{who}")
            said.append(told["text"])
        assert said == ["1", "2", "1", "1", "3", "2"]

    live(runtime, port, story, ask=("count",), askers=("kitchen",))


def test_apps_are_asked_by_topic_each_known_asker_with_a_share_of_its_own(runtime, port):
    async def story(home, front):
        origins = []
        infer = front._client.infer
        front._client.infer = lambda *args, **more: origins.append(more["origin"]) or infer(*args, **more)
        ask, answer = "edgeserve/cellar/ask/double", "edgeserve/cellar/answer/double"
        assert (await home.ask(ask, '{"x": [1, 2]}', answer))["outputs"] == {"y": [2.0, 4.0]}
        told = await home.ask(f"{ask}/kitchen", '{"x": [3, 4]}', f"{answer}/kitchen")
        assert told["outputs"] == {"y": [6.0, 8.0]} and not told["late"]
        for wrong, code in (
            ('{"x": [1]}', "bad_input"),
            ('{"x": ["a", "b"]}', "bad_input"),
            ("{", "bad_input"),
            ("[" * 100_000, "bad_input"),
            (b'{"x": [1, 2], "y": "\xff"}', "bad_input"),
            ('{"x": [-1, 2]}', "failed"),
        ):
            told = await home.ask(ask, wrong, answer)
            assert told["code"] == code and told["error"], wrong[:20]
        assert origins[:2] == ["mqtt", "mqtt:kitchen"]
        for name in ("hall", "kitchen2", "a"):  # names of an asker's own choice
            await home.ask(f"{ask}/{name}", '{"x": [3, 4]}', f"{answer}/{name}")
        assert set(origins[2:]) == {"mqtt"}
        for number in (5, 7):  # one asker tells its answers apart
            told = await home.ask(f"{ask}/kitchen/{number}", f'{{"x": [{number}, 0]}}', f"{answer}/kitchen/{number}")
            assert told["outputs"] == {"y": [2.0 * number, 0.0]} and origins[-1] == "mqtt:kitchen"
        told = await home.ask(f"{ask}/kitchen/a/b/c", '{"x": [9, 0]}', f"{answer}/kitchen/a/b/c")  # an id of levels
        assert told["outputs"] == {"y": [18.0, 0.0]}
        told = await home.ask("edgeserve/cellar/ask/detect", "{}", "edgeserve/cellar/answer/detect")
        assert told["code"] == "unknown_app" and "ask names them" in told["error"]  # it may not be asked

    live(runtime, port, story, askers=("kitchen",), **ASK)


def test_a_light_is_switched_by_a_sentence(runtime, port):
    async def story(home, front):
        answer = "edgeserve/cellar/answer/intents"
        told = await home.ask("edgeserve/cellar/ask/intents", "turn on the kitchen", answer)
        assert told["text"] == "done" and await home.until("lights/kitchen/set") == "ON"
        assert (await home.ask("edgeserve/cellar/ask/intents", "hm", answer))["text"] == "what?"
        told = await home.ask("edgeserve/cellar/ask/intents", "turn on #", answer)  # no topic
        assert "none that publish allows" in told["error"]
        told = await home.ask("edgeserve/cellar/ask/intents", b"turn on \xff", answer)  # no text
        assert told["code"] == "bad_input" and "UTF-8" in told["error"]
        for word, payload in (("half", "0.5"), ("many", "[0, 1, 2]"), ("true", "true")):
            home.heard.pop("lights/hall/set", None)
            told = await home.ask("edgeserve/cellar/ask/intents", f"turn {word} hall", answer)
            assert told["text"] == "done", told
            assert await home.until("lights/hall/set") == payload

    live(runtime, port, story, **ASK)


@pytest.mark.parametrize("app", ["detect", "named"])
def test_a_camera_becomes_sensors_and_events(runtime, port, tmp_path, app):
    async def story(home, front):
        sensor = json.loads(await home.until("homeassistant/binary_sensor/edgeserve_cellar/camera_door_person/config"))
        assert sensor["device_class"] == "occupancy"
        event = json.loads(await home.until("homeassistant/event/edgeserve_cellar/camera_door_event/config"))
        assert event["event_types"] == ["person"]
        topic = sensor["state_topic"]
        for level, count in ((0, 0), (200, 1), (200, 1), (0, 0), (200, 1)):
            home.heard.pop(topic, None)
            await home.client.publish("cameras/door", jpeg(level))
            told = json.loads(await home.until(topic))
            assert told["count"] == count
        assert told["labels"] == {"person": 1, "object": 1}
        assert told["detections"] == [{"label": "person", "score": 0.9, "box": [0.25, 0.3333, 0.75, 0.6667]}]
        await home.until(event["state_topic"], lambda _: len(home.heard[event["state_topic"]]) > 1)
        assert [json.loads(text)["event_type"] for text in home.heard[event["state_topic"]]] == ["person"] * 2
        await home.client.publish("cameras/door", b"no picture")
        home.heard.pop(topic, None)
        await home.client.publish("cameras/door", jpeg(0))
        assert json.loads(await home.until(topic))["count"] == 0

    cameras = {"door": "cameras/door"}
    labels = tmp_path / "labels.txt"
    labels.write_text("bicycle\ncar\nperson\n")
    live(runtime, port, story, cameras=cameras, detect=app, labels_file=str(labels), watch=("person",))


def test_a_reload_is_asked_for_only_where_it_is_allowed(runtime, port):
    async def story(home, front):
        told = await home.ask("edgeserve/cellar/reload", "no_such_model", "edgeserve/cellar/reloaded")
        assert "no_such_model" in told["error"]

    live(runtime, port, story, may_reload=True)

    async def other(home, front):
        await home.client.publish("edgeserve/cellar/reload", "PRESS", qos=1)
        await home.ask("edgeserve/cellar/ask/double", '{"x": [1, 2]}', "edgeserve/cellar/answer/double")
        assert "edgeserve/cellar/reloaded" not in home.heard

    live(runtime, port, other, **ASK)


def test_a_broker_that_goes_is_tried_again_and_told_everything_anew(runtime, monkeypatch, caplog):
    monkeypatch.setattr(mqtt, "PAUSE_S_MIN", 0.05)
    port = free_port()

    async def run():
        with broker(port) as _:
            running = fronted(runtime, port, **ASK)
            front = await running.__aenter__()
        while front.counts["connections lost"] < 3:
            await asyncio.sleep(0.02)
        with broker(port):
            async with home_of(port) as home:
                assert await home.until("edgeserve/cellar/status", lambda text: text == "online")
                assert await home.until("edgeserve/cellar/ready") == "ON"
                ask = '{"x": [1, 2]}'
                assert await home.ask("edgeserve/cellar/ask/double", ask, "edgeserve/cellar/answer/double")
                assert await home.until("homeassistant/text/edgeserve_cellar/ask_intents/config")
            await running.__aexit__(None, None, None)

    asyncio.run(run())
    pauses = [float(pause) for pause in re.findall(r"trying again in ([\d.]+) s", caplog.text)]
    assert pauses[:3] == [0.05, 0.1, 0.2]


@asynccontextmanager
async def between(port):
    """A way to the broker: its port, an event that lets it fall silent, and what cuts its connections."""
    silent, writers = asyncio.Event(), []

    async def pump(reader, writer):
        while data := await reader.read(65536):
            if not silent.is_set():
                writer.write(data)

    async def accept(reader, writer):
        there, back = await asyncio.open_connection("127.0.0.1", port)
        writers.extend((writer, back))
        await asyncio.gather(pump(reader, back), pump(there, writer), return_exceptions=True)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], silent, lambda: [writer.close() for writer in writers]
    finally:
        server.close()
        for writer in writers:
            writer.close()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_front_ends_within_a_second_whether_or_not_its_broker_answers(runtime, port, is_there):
    async def run():
        async with between(port) as (way, silent, _):
            running = fronted(runtime, way, **ASK)
            await running.__aenter__()
            if not is_there:
                silent.set()
            begun_s = asyncio.get_running_loop().time()
            await running.__aexit__(None, None, None)
            assert asyncio.get_running_loop().time() - begun_s < 1.0

    asyncio.run(run())


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_front_that_takes_anothers_name_is_said(runtime, port, caplog, monkeypatch, is_cut):
    """A broker ends the connection of a front whose name another takes; one that does not still tells of the other."""
    monkeypatch.setattr(mqtt, "PAUSE_S_MIN", 0.5)

    async def run():
        async with between(port) as (way, silent, cut), home_of(port) as home, fronted(runtime, way) as front:
            await home.until("edgeserve/cellar/instance")
            if is_cut:
                cut()
            await home.client.publish("edgeserve/cellar/instance", "otherhost 7 abcd", qos=1, retain=True)
            while not front.counts["takeovers"]:
                await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(run(), 30))
    assert "another front has the name 'cellar'" in caplog.text and "otherhost 7" in caplog.text


def test_a_front_that_starts_again_is_no_takeover(runtime, port, caplog):
    async def run():
        for _ in range(2):
            async with fronted(runtime, port, every_s=1.0) as front, home_of(port) as home:
                await home.until("edgeserve/cellar/instance")
                await asyncio.sleep(0.2)
                assert not front.counts["takeovers"]

    asyncio.run(run())
    assert "another front" not in caplog.text


@pytest.mark.parametrize(("lasted_s", "pause_s"), [(59.0, 0.2), (60.0, 0.05)])
def test_the_pause_is_short_again_after_a_minute_of_connection(runtime, monkeypatch, caplog, lasted_s, pause_s):
    monkeypatch.setattr(mqtt, "PAUSE_S_MIN", 0.05)

    async def run():
        loop, tries = asyncio.get_running_loop(), []
        clock = loop.time
        monkeypatch.setattr(loop, "time", lambda: clock() + sum(tries))

        @asynccontextmanager
        async def connection(front):
            tries.append(0.0 if len(tries) < 2 else lasted_s)
            raise aiomqtt.MqttError("gone")
            yield

        monkeypatch.setattr(MqttFront, "_connection", connection)
        stopped = asyncio.Event()
        async with AsyncClient(runtime.endpoints[0]) as client:
            front = MqttFront(client, Mqtt(name="cellar"))
            serving = asyncio.ensure_future(front.serve(stopped, lambda place: None))
            while len(tries) < 3:
                await asyncio.sleep(0.01)
            stopped.set()
            await serving

    asyncio.run(run())
    pauses = [float(pause) for pause in re.findall(r"trying again in ([\d.]+) s", caplog.text)]
    assert pauses[:3] == [0.05, 0.1, pause_s]


def test_the_name_of_a_front_is_its_hosts(monkeypatch):
    for host, name in (("pi.local", "pi"), ("Küche 1", "K-che-1"), ("", "edgeserve")):
        monkeypatch.setattr(mqtt_settings.socket, "gethostname", lambda host=host: host)
        assert Mqtt().name == name


def test_a_front_that_dies_is_offline(runtime, port):
    async def run():
        words = f"front mqtt --endpoint {runtime.endpoints[0]} --name attic --port {port}"
        process = await asyncio.create_subprocess_exec(*command(words), stderr=asyncio.subprocess.PIPE)
        try:
            assert b"ready on 127.0.0.1" in await asyncio.wait_for(process.stderr.readline(), 60)
            async with home_of(port) as home:
                await home.until("edgeserve/attic/status", lambda text: text == "online")
                process.kill()
                await home.until("edgeserve/attic/status", lambda text: text == "offline")
        finally:
            await process.communicate()

    asyncio.run(run())


def test_the_command_ends_on_a_signal(runtime, port):
    words = f"front mqtt --endpoint {runtime.endpoints[0]} --ask double --port {port}"
    process = subprocess.Popen(command(words), stderr=subprocess.PIPE, text=True)
    assert f"as edgeserve/{host_name()}" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    assert "mqtt: ended" in process.communicate(timeout=20)[1] and process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--ask", "doubel"], "did you mean 'double'"),
        (["--port", "0"], "--port = 0: expected a whole number"),
        (["--cameras", "door"], "expected NAME=VALUE"),
        (["--cameras", "door=x"], "set --detect"),
        (["--cameras", "door=x", "--detect", "intents"], "brings pictures"),
        (["--cameras", "door=edgeserve/+/#", "--detect", "intents"], "own topics"),
        (["--name", "a b"], "letters, digits"),
        (["--form", "yolov9"], "--form = 'yolov9'"),
        (["--labels-file", "no_such_file"], "cannot be read"),
    ],
)
def test_what_cannot_work_is_said_at_once(runtime, capsys, arguments, says):
    assert status_of(["front", "mqtt", "--endpoint", runtime.endpoints[0], *arguments]) == 2
    assert says in capsys.readouterr().err


def test_values_that_json_does_not_have_are_told_all_the_same():
    from edgeserve.front.served_apps import as_json

    assert as_json({"a": np.array([1.5, np.nan]), "b": np.int64(3), "c": b"abc", "d": ["x", None]}) == {
        "a": [1.5, None],
        "b": 3,
        "c": 3,
        "d": ["x", None],
    }
    assert as_json(np.zeros((100, 100), np.uint8)) == {"dtype": "uint8", "shape": [100, 100]}
