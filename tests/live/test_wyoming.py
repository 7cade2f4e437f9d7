"""Home Assistant's voice protocol, spoken by the ``wyoming`` package's own client, against served apps."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from serving import command, served

from edgeserve import cli
from edgeserve.answers import Answer
from edgeserve.client import AsyncClient

pytest.importorskip("wyoming", reason="the front needs wyoming: pip install '.[wyoming]'")

from wyoming.asr import Transcribe, Transcript, TranscriptChunk, TranscriptStart, TranscriptStop
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.event import Event, async_read_event, async_write_event
from wyoming.handle import Handled, HandledChunk, HandledStart, HandledStop, NotHandled
from wyoming.info import Describe, Info
from wyoming.intent import Intent, NotRecognized, Recognize
from wyoming.ping import Ping, Pong
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeStopped
from wyoming.vad import VoiceStarted, VoiceStopped
from wyoming.wake import Detect, Detection, NotDetected

from edgeserve.fronts.wyoming import (
    BYTES_MAX,
    CONNECTIONS_OF_ONE_MAX,
    Voice,
    WyomingConnection,
    WyomingFront,
)
from edgeserve.fronts.wyoming_events import PART_BYTES_MAX

FUNCTIONS = """
import json, time
import numpy as np
WAKE = 31840
def wake(inputs):
    sound = inputs["sound"]
    assert sound.dtype == np.float32
    return {"word": {1000: "house", 2000: "mouse"}.get(round(float(np.abs(sound).max())), "")}
def voice(inputs):
    return {"score": np.float32(np.abs(inputs["chunk"]).max() > 0.01)}
def hear(inputs):
    loud = float(np.abs(inputs["audio"]).max()) if len(inputs["audio"]) else 0.0
    return {"text": f"{len(inputs['audio'])} {loud:.2f} {inputs.get('language', '-')}"}
def intent(inputs):
    words = inputs["said"].split()
    if words[0] != "turn": return {"intent": "", "text": "what?", "entities": ""}
    return {"intent": f"HassTurn{words[1].title()}", "text": "", "entities": json.dumps({"name": " ".join(words[2:])})}
def answer(inputs):
    return {"text": inputs["prompt"].upper()}
def speak(inputs):
    return {"audio": np.full(100 * len(inputs["text"]), 0.5, np.float32), "rate": 8000}
def slow(inputs):
    time.sleep(inputs["seconds"])
    return {"done": 1}
def example_slow(): return {"seconds": 0.0}
def example_wake(): return {"sound": np.zeros(WAKE, np.float32)}
def example_voice(): return {"chunk": np.zeros(512, np.float32)}
def example_hear(): return {"audio": np.zeros(16000, np.float32)}
def example_intent(): return {"said": "turn on the light"}
def example_answer(): return {"prompt": "hello"}
def example_speak(): return {"text": "hello"}
"""

TEXT = {"dtype": "text"}
SOUND = {"dtype": "float32", "shape": [-1]}
INPUTS = {
    "wake": {"sound": {"dtype": "float32", "shape": [31840]}},
    "voice": {"chunk": {"dtype": "float32", "shape": [512]}},
    "hear": {"audio": SOUND, "language": {**TEXT, "optional": True}},
    "intent": {"said": TEXT},
    "answer": {"prompt": {**TEXT, "optional": True}, "messages": {"dtype": "any", "optional": True}},
    "speak": {"text": TEXT},
    "slow": {"seconds": {"dtype": "any"}},
}
LANES = {"slow": ["hear", "intent", "speak"]}
SLO = {"hear": "300ms", "intent": "300ms"}


@pytest.fixture(scope="module")
def runtime():
    with tempfile.TemporaryDirectory(prefix="es") as folder:
        (Path(folder) / "voice_functions.py").write_text(FUNCTIONS)
        tables = {
            "lane": {name: {} for name in INPUTS if name not in LANES},
            "model": {
                name: {
                    "engine": "python",
                    "function": f"voice_functions:{name}",
                    "lanes": LANES.get(name, [name]),
                    "options": {"example": f"voice_functions:example_{name}"},
                }
                for name in INPUTS
            },
            "app": {
                name: {
                    "model": name,
                    "slo": SLO.get(name, "10s"),
                    "inputs": inputs,
                    "stream": "in_order" if name == "voice" else "none",
                }
                for name, inputs in INPUTS.items()
            },
        }
        with served(tables, folder) as (runtime, _):
            yield runtime


ALL = {"wake": "wake", "asr": "hear", "intent": "intent", "tts": "speak"}


@asynccontextmanager
async def fronted(runtime, apps, **how):
    """A front on this loop, and where it listens."""
    place, stopped = asyncio.get_running_loop().create_future(), asyncio.Event()
    async with AsyncClient(runtime.endpoints[0]) as client:
        front = WyomingFront(client, Voice(apps=apps, listen="127.0.0.1:0", **how))
        await front.look()
        serving = asyncio.ensure_future(front.serve(stopped, place.set_result))
        await asyncio.wait({serving, place}, return_when=asyncio.FIRST_COMPLETED)
        port = int(place.result().rpartition(":")[2])
        try:
            yield front, port
        finally:
            stopped.set()
            await asyncio.wait_for(serving, 10)


def talk(runtime, apps, conversation, **how):
    """Run ``conversation(say, hear)`` with a client of a front: ``say`` sends events, ``hear`` waits for the next of
    some kinds."""

    async def run():
        async with fronted(runtime, apps, **how) as (front, port), AsyncTcpClient("127.0.0.1", port) as client:

            async def say(*events):
                for event in events:
                    await client.write_event(event.event())

            async def hear(*kinds):
                event = await asyncio.wait_for(client.read_event(), 20)
                assert event is not None, "the connection ended"
                (kind,) = [kind for kind in kinds if kind.is_type(event.type)] or pytest.fail(f"heard {event}")
                return kind.from_event(event)

            await conversation(say, hear)
            return front.counts

    return asyncio.run(run())


def chunk(sound, rate=16_000, **more):
    return AudioChunk(rate, 2, 1, np.asarray(sound, np.int16).tobytes(), **more)


def start(rate=16_000):
    return AudioStart(rate, 2, 1)


def test_home_assistant_is_told_which_services_there_are(runtime):
    async def conversation(say, hear):
        await say(Ping("x"), Describe())
        assert (await hear(Pong)).text == "x"
        info = await hear(Info)
        assert [model.name for model in info.wake[0].models] == ["house", "mouse"]
        assert info.asr[0].models[0].languages == ["en", "de"] and info.asr[0].requires_external_vad
        assert info.intent[0].name == "intent" and not info.handle
        assert info.tts[0].voices[0].installed

    talk(runtime, ALL, conversation, wake_words=("house", "mouse"), languages=("en", "de"))


def test_a_wake_word_is_heard_once_and_the_next_one_too(runtime):
    async def conversation(say, hear):
        await say(Detect(["mouse"]), start())
        for level in (0, 1000, 0, 2000, 0):  # the house is not requested
            await say(chunk(np.full(4000, level), timestamp=level))
            await asyncio.sleep(0.15)
        heard = await hear(Detection)
        assert heard.name == "mouse" and heard.timestamp == 2000
        await say(*[chunk(np.zeros(4000))] * 3, AudioStop(), Ping())
        await hear(Pong)  # no second detection, and no "not detected" after one
        await say(Detect(), chunk(np.full(4000, 1000)))  # as a satellite does it: without a start
        assert (await hear(Detection)).name == "house"
        await say(Detect(), start(), chunk(np.zeros(4000)), AudioStop())
        await hear(NotDetected)

    assert talk(runtime, ALL, conversation, wake_words=("house", "mouse"))["wake words"] == 2


def test_speech_of_any_rate_becomes_text(runtime):
    async def conversation(say, hear):
        await say(Transcribe(language="de"), start(), *[chunk(np.full(800, 8192))] * 4, AudioStop())
        assert (await hear(TranscriptStart)).language == "de"
        assert (await hear(TranscriptChunk)).text == "3200 0.25 de"
        assert (await hear(Transcript)).text == "3200 0.25 de"
        await hear(TranscriptStop)
        await say(Transcribe(), start(48_000), chunk(np.full(4800, 8192), 48_000), AudioStop())
        await hear(TranscriptStart)
        await hear(TranscriptChunk)
        count, loud, language = (await hear(Transcript)).text.split()
        assert abs(int(count) - 1600) < 10 and loud == "0.25" and language == "-"
        await hear(TranscriptStop)
        await say(Transcribe(), start(), AudioStop())
        await hear(TranscriptStart)
        assert (await hear(Transcript)).text == ""
        await hear(TranscriptStop)
        for sound in (np.full(3, 8192, np.int16).tobytes()[:-1], np.full(800, 8192, np.int16).tobytes()):
            await say(
                Transcribe(), start(), AudioChunk(16_000, 2, 1, sound), AudioStop()
            )  # the first ends half a sample
            await hear(TranscriptStart)
            await hear(TranscriptChunk)
            last = (await hear(Transcript)).text
            await hear(TranscriptStop)
        assert last == "800 0.25 -"

    talk(runtime, ALL, conversation)


def test_what_is_refused_or_not_served_is_an_error_and_the_empty_answer(runtime):
    busy = [runtime.submit("slow", {"seconds": 1.0}) for _ in LANES["slow"]]

    async def conversation(say, hear):
        await say(Transcribe(), start(), chunk(np.ones(8)), AudioStop())
        await hear(TranscriptStart)
        assert (await hear(Error)).code in ("dropped", "rejected", "deadline_expired")
        assert (await hear(Transcript)).text == ""
        await hear(TranscriptStop)
        await say(Transcript("hm"), Recognize("hm"))
        assert (await hear(NotHandled)).text == "Not now."
        assert (await hear(NotRecognized)).text == "Not now."
        await say(Synthesize("x"))
        assert "the role tts" in (await hear(Error)).text
        await hear(AudioStart)
        await hear(AudioStop)

    apps = {"asr": "hear", "intent": "intent"}
    counts = talk(runtime, apps, conversation, sorry="Not now.")
    assert sum(count for what, count in counts.items() if what.startswith("intent: ")) == 2
    for each in busy:
        each.result(20)


def test_a_sentence_is_an_intent_or_an_answer(runtime):
    async def intents(say, hear):
        for ask in (Recognize, Transcript):
            await say(ask("turn on the kitchen light"))
            intent = await hear(Intent)
            assert intent.name == "HassTurnOn"
            assert [(each.name, each.value) for each in intent.entities] == [("name", "the kitchen light")]
        await say(Transcript("hm"))
        assert (await hear(NotRecognized)).text == "what?"

    async def answers(say, hear):
        await say(Transcript("hello"))
        assert (await hear(Handled)).text == "HELLO"

    talk(runtime, ALL, intents)
    talk(runtime, {"intent": "answer"}, answers)


def test_what_a_language_model_writes_comes_in_pieces(tmp_path):
    pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")
    lm_models = pytest.importorskip("lm_models", reason="the onnx package makes the test model")
    functions = "import numpy as np\ndef frame(inputs): return {'prompt': f'{len(inputs[\"audio\"])} samples'}\n"
    (tmp_path / "frame_functions.py").write_text(
        functions + "def example(): return {'audio': np.zeros(9, np.float32)}\n"
    )
    tables = {
        "lane": {"cpu0": {}, "host": {}},
        "model": {
            "tiny": {"engine": "lm", "file": lm_models.tiny(str(tmp_path)), "lanes": ["cpu0"]},
            "frame": {
                "engine": "python",
                "function": "frame_functions:frame",
                "lanes": ["host"],
                "options": {"example": "frame_functions:example"},
            },
        },
        "app": {
            "write": {"model": "tiny", "slo": "60s", "inputs": {"prompt": {**TEXT, "optional": True}}},
            "dictate": {
                "slo": "60s",
                "inputs": {"audio": SOUND},
                "node": [
                    {"name": "frame", "inputs": {"audio": "request.audio"}},
                    {"name": "tiny", "inputs": {"prompt": "frame.prompt"}},
                ],
            },
        },
    }

    async def conversation(say, hear):
        await say(Describe())
        assert (await hear(Info)).handle[0].supports_handled_streaming
        await say(Transcript("abc"))
        await hear(HandledStart)
        chunks = [await hear(HandledChunk)]
        while not isinstance(chunks[-1], Handled):
            chunks.append(await hear(HandledChunk, Handled))
        assert len(chunks) > 3 and "".join([each.text for each in chunks[:-1]]).strip() == chunks[-1].text
        await hear(HandledStop)
        await say(Transcribe(), start(), chunk(np.zeros(800)), AudioStop())
        await hear(TranscriptStart)
        pieces = [await hear(TranscriptChunk)]
        while not isinstance(pieces[-1], Transcript):
            pieces.append(await hear(TranscriptChunk, Transcript))
        assert len(pieces) > 3 and "".join([each.text for each in pieces[:-1]]).strip() == pieces[-1].text
        await hear(TranscriptStop)

    with served(tables, str(tmp_path)) as (runtime, _):
        talk(runtime, {"intent": "write", "asr": "dictate"}, conversation)


class Cut:
    """A stream whose answer ends early, at its deadline."""

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        return None

    async def __aiter__(self):
        yield {"text": "turn off"}

    async def answer(self):
        return Answer({"text": "turn off"}, late=True, reason="ended early, after 2 tokens")


def test_a_text_that_ends_early_says_so(runtime):
    async def run():
        async with fronted(runtime, ALL) as (front, port), AsyncTcpClient("127.0.0.1", port) as client:
            front.client.stream = lambda *args, **options: Cut()
            for event in (Transcribe(), start(), chunk(np.zeros(800)), AudioStop(), Transcript("abc")):
                await client.write_event(event.event())
            kinds = []
            while "handled-stop" not in kinds:
                event = await asyncio.wait_for(client.read_event(), 20)
                kinds.append(event.type)
                if Error.is_type(event.type):
                    assert "ends early" in Error.from_event(event).text
            return kinds

    kinds = asyncio.run(run())
    for last in ("transcript", "handled"):
        assert "error" in kinds[: kinds.index(last)], kinds
        kinds = kinds[kinds.index(last) :]


def test_text_is_spoken_whole_or_sentence_by_sentence(runtime):
    async def spoken(hear):
        assert (await hear(AudioStart)).rate == 8000
        sound = []
        while True:
            event = await hear(AudioChunk, AudioStop)
            if isinstance(event, AudioStop):
                return np.concatenate(sound)
            sound.append(np.frombuffer(event.audio, np.int16))

    async def conversation(say, hear):
        await say(Synthesize("x" * 50))
        sound = await spoken(hear)
        assert len(sound) == 5000 and set(sound) == {16383}
        await say(SynthesizeStart(), SynthesizeChunk("One. T"), SynthesizeChunk("wo. Thr"))
        assert [len(await spoken(hear)) for _ in range(2)] == [400, 400]
        await say(SynthesizeChunk("ee"), Synthesize("One. Two. Three"), SynthesizeStop())
        assert len(await spoken(hear)) == 500
        await hear(SynthesizeStopped)

    talk(runtime, ALL, conversation)


def test_a_voice_detector_says_who_speaks_ends_a_command_and_spares_the_wake_app(runtime):
    async def conversation(say, hear):
        await say(*[chunk(np.zeros(2048))] * 3, *[chunk(np.full(2048, 5000))] * 2, *[chunk(np.zeros(2048))] * 8)
        started, stopped = await hear(VoiceStarted), await hear(VoiceStopped)
        assert started.timestamp == 416 and 500 < stopped.timestamp - started.timestamp < 1000
        await say(Transcribe(), start(), chunk(np.full(2048, 5000)), *[chunk(np.zeros(2048))] * 8)
        await hear(VoiceStarted)
        await hear(VoiceStopped)
        await hear(TranscriptStart)
        await hear(TranscriptChunk)
        assert int((await hear(Transcript)).text.split()[0]) >= 2048  # without an end of the sound
        await hear(TranscriptStop)
        before = runtime.stats()["apps"]["wake"]["received"]
        await say(Detect(), *[chunk(np.zeros(2048))] * 16, AudioStop())
        await hear(NotDetected)
        assert runtime.stats()["apps"]["wake"]["received"] == before

    talk(runtime, {**ALL, "vad": "voice"}, conversation)


def test_a_satellite_and_home_assistant_go_through_one_round_and_another(runtime):
    """The order of docs/guide/wyoming.md: a satellite keeps its connection, Home Assistant opens one for each service
    and leaves when it has what it wants."""

    async def asked(port, wanted, *events):
        async with AsyncTcpClient("127.0.0.1", port) as service:
            for event in events:
                await service.write_event(event.event())
            while True:
                event = await asyncio.wait_for(service.read_event(), 20)
                if wanted.is_type(event.type):
                    return wanted.from_event(event)

    async def run():
        async with fronted(runtime, ALL, wake_words=("house", "mouse")) as (_, port):
            async with AsyncTcpClient("127.0.0.1", port) as satellite:
                assert (await asked(port, Info, Describe())).tts
                for said in ("turn on the light", "turn off the light"):
                    for event in (Detect(names=["mouse"]), AudioStart(16_000, 2, 1, timestamp=5)):
                        await satellite.write_event(event.event())
                    for level in (0, 2000):
                        await satellite.write_event(chunk(np.full(4000, level), timestamp=level).event())
                    heard = await asyncio.wait_for(satellite.read_event(), 20)
                    assert Detection.from_event(heard).name == "mouse"
                    sound = [chunk(np.full(512, 8192), timestamp=number) for number in range(4)]
                    text = await asked(port, Transcript, Transcribe(language="en"), start(), *sound, AudioStop())
                    assert text.text == "2048 0.25 en"
                    conversation = Transcript(said, language="en", context={"conversation_id": "1"})
                    intent = await asked(port, Intent, conversation)
                    assert intent.name == f"HassTurn{said.split()[1].title()}"
                    assert (await asked(port, AudioChunk, Synthesize("Done."))).rate == 8000
                    await asked(port, AudioStop, Synthesize("Done."))

    asyncio.run(run())


def test_two_satellites_at_once_are_heard_apart_and_one_that_goes_leaves_nothing(runtime):
    async def satellite(port, address, level):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
        await async_write_event(Detect().event(), writer)
        for _ in range(8):
            await async_write_event(chunk(np.full(2000, level)).event(), writer)
            await asyncio.sleep(0.03)
        event = await asyncio.wait_for(async_read_event(reader), 10)
        writer.close()
        return Detection.from_event(event).name

    async def run():
        async with fronted(runtime, ALL, wake_words=("house", "mouse")) as (front, port):
            asked = []
            infer = front.client.infer
            front.client.infer = lambda *args, **more: asked.append(more["origin"]) or infer(*args, **more)
            words = await asyncio.gather(satellite(port, "127.0.0.2", 1000), satellite(port, "127.0.0.3", 2000))
            while len(front.connections):
                await asyncio.sleep(0.01)
            return words, set(asked)

    assert asyncio.run(run()) == (["house", "mouse"], {f"uid:{os.getuid()}"})


def chunk_of(form, count):
    """An event of sound, as it is on the wire."""
    return b'{"type": "audio-chunk", "data": {%s}, "payload_length": %d}\n' % (form.encode(), count) + bytes(count)


@pytest.mark.parametrize(
    "raw",
    [
        b"{\n",
        b"x" * 100_000,
        b'{"type": "describe", "payload_length": 99999999999}\n',
        b'{"type": "transcript", "data_length": -5}\n',
        b'{"type": "transcript", "data_length": "5"}\n',
        b"[" * 50_000 + b"\n",
    ],
)
def test_what_has_no_known_end_ends_its_connection_alone(runtime, raw):
    async def run():
        async with fronted(runtime, ALL) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(raw)
            async with AsyncTcpClient("127.0.0.1", port) as client:  # others are answered meanwhile
                await client.write_event(Describe().event())
                assert Info.is_type((await asyncio.wait_for(client.read_event(), 3)).type)
            with contextlib.suppress(ConnectionResetError):
                while await asyncio.wait_for(reader.read(1000), 10):
                    pass
            writer.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "raw",
    [
        b"[]\n",
        b"7\n",
        b"{}\n",
        b'{"type": null}\n',
        b'{"type": 5, "payload_length": 2}\nxx',
        b'{"type": "detect", "data": [1]}\n',
        b'{"type": "detect", "data_length": 2}\n[]',
        b'{"type": "detect", "data_length": 3}\n{x}',
        b'{"type": "transcript"}\n',
        b'{"type": "transcript", "data": {"text": null}}\n',
        b'{"type": "transcribe", "data": {"language": 5}}\n',
        b'{"type": "detect", "data": {"names": "wakeword"}}\n',
        b'{"type": "detect", "data": {"names": 5}}\n',
        b'{"type": "detect", "data": {"names": "\\ud800"}}\n',  # half of a character, which no answer can repeat
        b'{"type": "transcribe", "data": {"language": "\\ud800"}}\n',
        b'{"type": "ping", "data_length": 18}\n{"text": "\\udc00"}',
        b'{"type": "detect", "data": {"names": ["house", null]}}\n',
        b'{"type": "recognize", "data": {"text": 5}}\n',
        b'{"type": "synthesize", "data": {"text": null}}\n',
        b'{"type": "synthesize", "data": {"text": ["hello"]}}\n',
        b'{"type": "audio-chunk"}\n',
        b'{"type": "audio-chunk", "data": {"rate": 0, "width": 2, "channels": 1}, "payload_length": 2}\nxx',
        chunk_of('"rate": 1, "width": 2, "channels": 1', 40_000),  # 40 kB that become 640 MB
        chunk_of('"rate": 3999, "width": 2, "channels": 1', 4000),
        chunk_of('"rate": 384001, "width": 2, "channels": 1', 4000),
        chunk_of('"rate": 16000, "width": 1073741824, "channels": 1', 4000),
        chunk_of('"rate": 16000, "width": 2, "channels": 1000000000', 4000),
        chunk_of('"rate": 4000, "width": 1, "channels": 1', 1 << 20),  # four minutes in one event
        chunk_of('"rate": 16000, "width": 2, "channels": 1, "timestamp": 1e999', 4000),
        chunk_of('"rate": 16000, "width": 2, "channels": 1, "timestamp": "soon"', 4000),
    ],
)
def test_an_odd_event_is_answered_by_an_error_and_the_next_is_read(runtime, raw, caplog):
    async def run():
        async with fronted(runtime, ALL) as (front, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(2):
                writer.write(raw)
                writer.write(b'{"type": "describe"}\n')
                told = await asyncio.wait_for(async_read_event(reader), 10)
                assert Error.is_type(told.type) and Error.from_event(told).code
                assert Info.is_type((await asyncio.wait_for(async_read_event(reader), 10)).type)
            writer.close()
            assert sum(front.counts[each] for each in front.counts) == 2
            assert len([record for record in caplog.records if "told once" in record.message]) == 1

    asyncio.run(run())


def test_what_other_programs_say_is_passed_over(runtime):
    async def run():
        async with fronted(runtime, ALL) as (_, port), AsyncTcpClient("127.0.0.1", port) as client:
            for kind in ("run-satellite", "streaming-started", "pause-satellite", "unknown-event"):
                await client.write_event(Event(kind))
            await client.write_event(Describe().event())
            assert Info.is_type((await asyncio.wait_for(client.read_event(), 10)).type)

    asyncio.run(run())


def test_a_new_connection_takes_the_place_of_the_oldest(runtime):
    async def run():
        async with fronted(runtime, ALL) as (_, port):
            open_now = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_OF_ONE_MAX)]
            for reader, writer in open_now:
                writer.write(b'{"type": "ping"}\n')
                assert Pong.is_type((await asyncio.wait_for(async_read_event(reader), 10)).type)
            async with AsyncTcpClient("127.0.0.1", port) as client:
                await client.write_event(Describe().event())
                assert Info.is_type((await asyncio.wait_for(client.read_event(), 10)).type)
            assert await asyncio.wait_for(open_now[0][0].read(1), 10) == b""
            for _, writer in open_now:
                writer.close()

    asyncio.run(run())


def test_text_in_many_pieces_costs_others_no_time(runtime):
    async def run():
        async with fronted(runtime, ALL) as (_, port):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b'{"type": "synthesize-start"}\n')
            writer.write(b'{"type": "synthesize-chunk", "data": {"text": "x"}}\n' * 30_000)
            async with AsyncTcpClient("127.0.0.1", port) as client:
                for _ in range(5):
                    begun_s = asyncio.get_running_loop().time()
                    await client.write_event(Describe().event())
                    await asyncio.wait_for(client.read_event(), 10)
                    assert asyncio.get_running_loop().time() - begun_s < 2.0
                    await asyncio.sleep(0.3)
            writer.close()

    asyncio.run(run())


def test_a_command_without_end_is_refused(runtime):
    async def conversation(say, hear):
        await say(Transcribe(), start(), *[chunk(np.zeros(16_000 * 10))] * 7)
        assert "60 s" in (await hear(Error)).text
        assert (await hear(Transcript)).text == ""

    talk(runtime, ALL, conversation)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "set --apps"),
        (["--apps", "asr=her"], "did you mean 'hear'"),
        (["--apps", "intent=hear"], "brings text"),
        (["--apps", "wake=hear"], "a known number of samples"),
        (["--apps", "asr=hear", "--listen", "x"], "expected HOST:PORT"),
        (["--apps", "asr=hear", "--listen", "192.0.2.1:80"], "expected such as 127.0.0.1:10300"),
    ],
)
def test_what_cannot_be_a_service_is_said_at_once(runtime, capsys, arguments, says):
    assert cli.main(["front", "wyoming", "--endpoint", runtime.endpoints[0], *arguments]) == 2
    assert says in capsys.readouterr().err


def test_the_command_is_found_serves_and_ends_on_a_signal(runtime):
    zeroconf = pytest.importorskip("zeroconf", reason="discovery needs zeroconf: pip install '.[wyoming]'")
    found, seen, own = [], threading.Event(), f"cellar{os.getpid()}"

    class Listener(zeroconf.ServiceListener):
        def add_service(self, zc, kind, name):
            info = zc.get_service_info(kind, name)
            if name.startswith(f"{own}.") and info:
                found.append((info.parsed_addresses(), info.port))
                seen.set()

        def update_service(self, zc, kind, name):
            pass

        remove_service = update_service

    words = f"front wyoming --endpoint {runtime.endpoints[0]} --apps asr=hear --listen 127.0.0.1:0 --zeroconf {own}"
    process = subprocess.Popen(command(words), stderr=subprocess.PIPE, text=True)
    port = int(re.search(r"ready on tcp://127.0.0.1:(\d+)", process.stderr.readline()).group(1))
    network = zeroconf.Zeroconf(interfaces=["127.0.0.1"])
    zeroconf.ServiceBrowser(network, "_wyoming._tcp.local.", Listener())
    try:
        assert seen.wait(10)
    finally:
        network.close()
        process.send_signal(signal.SIGTERM)
    assert "wyoming: ended" in process.communicate(timeout=20)[1]
    assert process.returncode == 0 and found == [(["127.0.0.1"], port)]


def test_a_client_that_never_stops_sending_gives_others_their_turn():
    """Bytes that have come are read without a wait: without a turn for others a client that sends small events keeps
    the event loop."""
    events = 2000

    async def run():
        reader, turns = asyncio.StreamReader(), 0
        reader.feed_data(b'{"type": "synthesize-chunk", "data": {"text": "x"}}\n' * events)
        reader.feed_eof()
        front = WyomingFront(None, Voice(apps={"tts": "speak"}))
        reading = asyncio.ensure_future(WyomingConnection(front, reader, None, "a", "s").run())
        while not reading.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(run()) >= events


def test_the_bytes_of_events_are_charged_to_their_sender_before_they_are_read(runtime):
    async def run():
        announced = b'{"type": "audio-chunk", "payload_length": %d}\n' % PART_BYTES_MAX

        async with fronted(runtime, ALL) as (front, port):
            held = []
            for _ in range(BYTES_MAX * 3 // 4 // PART_BYTES_MAX + 1):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                held.append(writer)
                writer.write(announced)
            event = await asyncio.wait_for(async_read_event(reader), 10)
            assert Error.is_type(event.type) and event.data["code"] == "rejected"
            assert "bytes of events" in event.data["text"]
            for writer in held:
                writer.close()
            async with AsyncTcpClient("127.0.0.1", port) as client:
                await client.write_event(Describe().event())
                assert Info.is_type((await asyncio.wait_for(client.read_event(), 10)).type)
                while front.places.count:
                    await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), 30))
