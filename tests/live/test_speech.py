"""Speech to text in a running server and over HTTP: on a double of ctranslate2, asked by OpenAI's own client."""

from __future__ import annotations

import io
import os
import sys
import wave

import ctranslate2_double as double
import numpy as np
import pytest
from serving import served

from edgeserve.fronts.http.settings import HttpConfig

ENGINE = "edgeserve.engines.speech.whisper"
SOUND = double.sound(1, 28, 29, 30, 31, 61, seconds=62)
SAID = "la la la la la la"


def wav(audio, rate=16_000):
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(np.round(audio * 32767).astype("<i2").tobytes())
    return file.getvalue()


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("whisper"))
    file = os.path.join(directory, double.write_files(directory))
    inputs = {"audio": {"dtype": "float32", "shape": [-1]}, "language": {"dtype": "text", "optional": True}}
    tables = {
        "model": {"ear": {"engine": "whisper", "file": file, "batch": [1, 2]}},
        "app": {"hear": {"model": "ear", "slo": "20s", "inputs": inputs}},
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "ctranslate2", double.module())
        patched.setitem(sys.modules, ENGINE, sys)  # imported anew now, and again after the tests
        del sys.modules[ENGINE]
        with served(tables) as (runtime, _):
            yield runtime


def test_pieces_of_a_recording_come_window_by_window(runtime):
    with runtime.stream("hear", {"audio": SOUND}) as stream:
        pieces = [piece["text"] for piece in stream]
        answer = stream.answer()
    assert answer["text"] == "".join(pieces) == SAID and len(pieces) == 3
    asked = [runtime.submit("hear", {"audio": SOUND}), runtime.submit("hear", {"audio": double.sound(2, seconds=3)})]
    assert [each.result(20)["text"] for each in asked] == [SAID, "la"]


def test_openais_client_transcribes(runtime):
    openai = pytest.importorskip("openai", reason="openai is not installed")
    pytest.importorskip("multipart", reason="python-multipart is not installed: forms are not read")
    from http_front import FrontThread

    with FrontThread(runtime.endpoints[0], HttpConfig(listen="127.0.0.1:0")) as front:
        with openai.OpenAI(base_url=f"http://{front.http}/v1", api_key="none", max_retries=0) as client:
            create = client.audio.transcriptions.create
            file = ("speech.wav", wav(SOUND))
            assert create(model="hear", file=file).text == SAID
            assert create(model="hear", file=file, response_format="text", language="en").strip() == SAID
            whole = create(model="hear", file=file, response_format="verbose_json")
            assert (whole.language, whole.duration, whole.segments[1].end) == ("ar", 62.0, 32.0)
            assert create(model="hear", file=file, response_format="vtt").startswith("WEBVTT\n\n00:00:01.000 --> ")
            events = list(create(model="hear", file=file, stream=True))
            assert "".join(event.delta for event in events[:-1]) == events[-1].text == SAID and len(events) == 4
            with pytest.raises(openai.NotFoundError, match="nobody"):
                create(model="nobody", file=file)
            with pytest.raises(openai.BadRequestError, match="temperature"):
                create(model="hear", file=file, temperature=0.7)
            with pytest.raises(openai.BadRequestError, match="WAV"):
                create(model="hear", file=("speech.mp3", b"ID3"))
            with pytest.raises(openai.BadRequestError, match="language"):
                create(model="hear", file=file, language="xx")
