"""WAV files as sound, and answers in the forms of OpenAI's transcriptions."""

from __future__ import annotations

import asyncio
import io
import json
import struct
import tracemalloc
import wave

import numpy as np
import pytest

pytest.importorskip("starlette", reason="starlette is not installed: there is no HTTP front")

from edgeserve.answers import Answer
from edgeserve.errors import BadInput, Failed
from edgeserve.front.sound import Converter
from edgeserve.fronts.http.audio_routes import answer_body, bytes_to_read, can_transcribe, read_fields, sound_of

DECLARED = {"audio": {"dtype": "float32", "shape": [-1]}, "language": {"dtype": "text", "shape": []}}


def wav(values, rate=16_000, channels=1):
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(values.dtype.itemsize)
        out.setframerate(rate)
        out.writeframes(values.tobytes())
    return file.getvalue()


def tone(rate, hz=440.0, seconds=0.5):
    return 0.5 * np.sin(2 * np.pi * hz * np.arange(round(rate * seconds)) / rate)


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_100, 48_000])
@pytest.mark.parametrize("dtype", ["u1", "<i2", "<i4"])
def test_a_tone_is_the_same_tone_at_16_khz(rate, dtype):
    scale = {"u1": 127.0, "<i2": 32767.0, "<i4": 2147483647.0}[dtype]
    given = np.round(tone(rate) * scale + (128 if dtype == "u1" else 0)).astype(dtype)
    sound, expected = sound_of(wav(given, rate)), tone(16_000)
    assert sound.dtype == np.float32 and len(sound) == len(expected)
    np.testing.assert_allclose(sound[400:-400], expected[400:-400], atol=0.03)


def test_channels_are_mixed_and_what_16_khz_cannot_hold_is_left_out():
    left, right = np.round(tone(16_000) * 32767).astype("<i2"), np.zeros(8_000, "<i2")
    np.testing.assert_allclose(sound_of(wav(np.stack([left, right], 1), channels=2)), tone(16_000) / 2, atol=1e-3)
    assert np.abs(sound_of(wav(np.round(tone(48_000, 12_000) * 32767).astype("<i2"), 48_000))[400:-400]).max() < 0.01


@pytest.mark.parametrize(("rate", "count"), [(4_000, 4000), (384_000, 42)])
def test_the_slowest_and_the_fastest_sound_that_is_taken(rate, count):
    assert len(sound_of(wav(np.zeros(1000, "<i2"), rate))) == count


@pytest.mark.parametrize("rate", [1, 3_999, 384_001, 2**31 - 1])
@pytest.mark.parametrize("read", [sound_of, bytes_to_read])
def test_a_rate_that_is_none_is_refused_before_anything_is_made_of_it(rate, read):
    with pytest.raises(BadInput, match=f"{rate} samples a second, expected 4000 to 384000"):
        read(wav(np.zeros(1000, "<i2"), rate))


def test_what_resampling_takes_is_known_beforehand():
    fast, slow = (bytes_to_read(wav(np.zeros(1000, "u1"), rate)) for rate in (16_000, 4_000))
    assert slow > 2 * fast


@pytest.mark.parametrize(("coding", "bits"), [(1, 24), (3, 32), (3, 64)])
@pytest.mark.parametrize("channels", [1, 64])
def test_what_reading_takes_is_known_beforehand(coding, bits, channels):
    data = bytes(64 * 2000 * bits // 8)
    frame = channels * bits // 8
    form = struct.pack("<HHIIHH", coding, channels, 16_000, 16_000 * frame, frame, bits)
    chunks = b"WAVE" + b"".join([n + struct.pack("<I", len(c)) + c for n, c in ((b"fmt ", form), (b"data", data))])
    file = b"RIFF" + struct.pack("<I", len(chunks)) + chunks
    tracemalloc.start()
    try:
        sound_of(file)
        assert tracemalloc.get_traced_memory()[1] < bytes_to_read(file)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("rate", [4_000, 8_000, 22_050, 44_100, 48_000, 384_000])
@pytest.mark.parametrize("dtype", ["u1", "<i2", "<i4"])
def test_a_tone_in_chunks_is_the_same_tone_at_16_khz(rate, dtype):
    scale = {"u1": 127.0, "<i2": 32767.0, "<i4": 2147483647.0}[dtype]
    given = np.round(tone(rate, 200.0) * scale + (128 if dtype == "u1" else 0)).astype(dtype)
    converter = Converter(60)
    parts = [
        converter.convert(given[at : at + 333].tobytes(), rate, given.dtype.itemsize, 1)
        for at in range(0, len(given), 333)
    ]
    sound = np.concatenate(parts) / 32768
    assert abs(len(sound) - 8_000) <= 5
    np.testing.assert_allclose(sound, tone(16_000, 200.0, 1.0)[: len(sound)], atol=0.02)


@pytest.mark.parametrize("rate", [32_000, 44_100, 48_000, 96_000])
@pytest.mark.parametrize("cut", [7, 333, 10**6])
def test_what_16_khz_cannot_hold_is_left_out_of_chunks(rate, cut):
    given = np.round(tone(rate, 12_000.0, min(0.5, 0.005 * cut)) * 32767).astype("<i2")
    converter = Converter(60)
    parts = [converter.convert(given[at : at + cut].tobytes(), rate, 2, 1) for at in range(0, len(given), cut)]
    sound = np.concatenate(parts)[8:]  # behind the edge where it begins
    assert len(sound) > 400 and np.abs(sound).max() < 0.02 * 32768


def test_channels_of_chunks_are_mixed():
    both = np.array([[16384, 0], [0, -8192]], "<i2")
    assert Converter(60).convert(both.tobytes(), 16_000, 2, 2).tolist() == [8192, -4096]


def riff(data, coding=1, bits=16, channels=1, rate=16_000, size=None, extensible=False, before=b"", after=b""):
    """A WAV file as other programs write it."""
    width = (bits + 7) // 8
    tag = 0xFFFE if extensible else coding
    form = struct.pack("<HHIIHH", tag, channels, rate, rate * width * channels, width * channels, bits)
    if extensible:
        form += struct.pack("<HHIH", 22, bits, 0, coding) + bytes.fromhex("000000001000800000aa00389b71")
    size = len(data) if size is None else size
    chunks = before + b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", size) + data + after
    return b"RIFF" + struct.pack("<I", 0xFFFFFFFF) + b"WAVE" + chunks


def as_samples(values, coding, bits):
    if coding == 3:
        return values.astype({32: "<f4", 64: "<f8"}[bits]).tobytes()
    whole = np.round(values * (2 ** (bits - 1) - 1)).astype("<i4")
    if bits == 24:
        return whole.view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    return (whole + 128 if bits == 8 else whole).astype({8: "u1", 16: "<i2", 32: "<i4"}[bits]).tobytes()


@pytest.mark.parametrize(("coding", "bits"), [(1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64)])
@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize("size", [None, 0, 0xFFFFFFFF, 0x7FFFFFFF])
def test_files_are_read_by_their_chunks(coding, bits, extensible, size):
    data = as_samples(tone(16_000), coding, bits)
    file = riff(data, coding, bits, size=size, extensible=extensible, before=b"LIST\x03\x00\x00\x00abc\x00")
    np.testing.assert_allclose(sound_of(file), tone(16_000), atol=0.02 if bits == 8 else 1e-4)
    assert bytes_to_read(file) == 32 * 2 * 8_000


def test_what_follows_the_samples_is_no_sound():
    after = b"LIST\x04\x00\x00\x00abcd"
    file = riff(as_samples(tone(16_000), 1, 16), after=after)
    assert len(sound_of(file)) == 8_000
    empty = riff(b"", after=after)
    with pytest.raises(BadInput, match="no samples"):
        sound_of(empty[:4] + struct.pack("<I", len(empty) - 8) + empty[8:])


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (riff(b"\x00" * 8, coding=2, bits=4), "coding 2"),
        (riff(b"\x00" * 8, coding=85), "coding 85"),
        (riff(b"\x00" * 8, coding=3, bits=16), "floats of 32 or 64"),
        (riff(b"\x00" * 8, channels=0), "0 channels"),
        (riff(b"\x00" * 8, bits=0), "0 bytes"),
        (riff(b"\x00" * 8)[:30], "cut off"),
        (b"RIFF\x00\x00\x00\x00WAVE" + b"junk\x00\x00\x00\x00" * 10_000, "no samples"),
        (b"RIFX" + riff(b"")[4:], "no head"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(file, says):
    with pytest.raises(BadInput, match=says):
        sound_of(file)


@pytest.mark.parametrize("cut", [1, 3, 5, 7, 1001])
@pytest.mark.parametrize(("width", "channels"), [(2, 1), (2, 2), (3, 1), (4, 2), (1, 2)])
def test_halves_of_samples_are_kept_for_the_next_chunk(cut, width, channels):
    seconds = min(0.5, 0.02 * cut)  # a call for each cut
    data = as_samples(np.repeat(tone(22_050, 200.0, seconds), channels), 1, 8 * width)
    whole, cutter = Converter(60), Converter(60)
    expected = whole.convert(data, 22_050, width, channels)
    parts = [cutter.convert(data[at : at + cut], 22_050, width, channels) for at in range(0, len(data), cut)]
    assert sum(map(len, parts)) == len(expected)
    np.testing.assert_allclose(np.concatenate(parts), expected, atol=2)


@pytest.mark.parametrize("data", [b"", b"RIFF", b"ID3 an mp3", wav(np.zeros(0, "<i2")), wav(np.zeros(9, "<i2"))[:30]])
def test_what_is_no_sound_is_refused(data):
    with pytest.raises(BadInput, match="file"):
        sound_of(data)


def test_fields_are_served_or_refused_by_name():
    file = wav(np.array([0, 16384, -32768], "<i2"))
    asked = read_fields("hear", {"file": file, "model": "hear", "language": "en", "temperature": "0"}, DECLARED)
    assert asked.inputs["audio"].tolist() == [0.0, 0.5, -1.0] and asked.inputs["language"] == "en"
    assert (asked.form, asked.stream) == ("json", False)
    whole = {**DECLARED, "audio": {"dtype": "int16", "shape": [-1]}}
    assert read_fields("hear", {"file": file}, whole).inputs["audio"].tolist() == [0, 16384, -32768]
    for field, value in {
        "temperature": "0.4",
        "prompt": "EdgeServe",
        "timestamp_granularities[]": "word",
        "response_format": "diarized_json",
        "stream": "perhaps",
        "file": "text",
        "include[]": "logprobs",
        "deadline_ms": "soon",
        "slo_ms": "soon",
    }.items():
        with pytest.raises(BadInput, match=field.replace("[", r"\[")) as caught:
            read_fields("hear", {"file": file, field: value}, DECLARED)
        assert caught.value.param == field
    with pytest.raises(BadInput, match="deadline_ms says again"):
        read_fields("hear", {"file": file, "slo_ms": "500", "deadline_ms": "5"}, DECLARED)
    with pytest.raises(BadInput, match="declares no input 'language'"):
        read_fields("hear", {"file": file, "language": "en"}, {"audio": DECLARED["audio"]})


def test_an_app_that_takes_a_channel_of_sound_can_transcribe():
    assert can_transcribe({"inputs": DECLARED})
    assert not can_transcribe({"inputs": {"sound": DECLARED["audio"]}})
    assert not can_transcribe({"inputs": {"audio": {"dtype": "float32", "shape": [2, -1]}}})


SAID = {
    "text": "Hello. Yes.",
    "language": "en",
    "duration": 3661.5,
    "segments": json.dumps(
        [{"start": 0.0, "end": 1.5, "text": "Hello."}, {"start": 3600, "end": 3661.46, "text": "Yes."}]
    ),
}


def test_answers_have_the_form_that_was_asked_for():
    assert json.loads(answer_body(Answer(SAID), "json")[0]) == {"text": "Hello. Yes."}
    assert answer_body(Answer(SAID), "text") == (b"Hello. Yes.\n", b"text/plain; charset=utf-8")
    whole = json.loads(answer_body(Answer(SAID), "verbose_json")[0])
    assert (whole["language"], whole["duration"], whole["segments"][1]["end"]) == ("en", 3661.5, 3661.46)
    srt = "1\n00:00:00,000 --> 00:00:01,500\nHello.\n\n2\n01:00:00,000 --> 01:01:01,460\nYes.\n\n"
    assert answer_body(Answer(SAID), "srt")[0].decode() == srt
    assert answer_body(Answer(SAID), "vtt")[0].decode().startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello.\n")
    with pytest.raises(BadInput, match="answers no segments"):
        answer_body(Answer({"text": "x"}), "srt")
    lines = json.dumps([{"start": 0, "end": 1, "text": "one\n\n2\r\n00:00 --> 00:01\n"}])
    told = answer_body(Answer({"text": "x", "segments": lines}), "srt")[0].decode()
    assert told == "1\n00:00:00,000 --> 00:00:01,000\none\n2\n00:00 -> 00:01\n\n", "one segment stays one"


@pytest.mark.parametrize("form", ["srt", "vtt"])
@pytest.mark.parametrize("odd", [{"start": None}, {"start": "a"}, {"end": float("inf")}, {"start": -1}, {"text": 5}])
def test_segments_that_are_none_are_the_apps_failure(odd, form):
    segment = {"start": 0.0, "end": 1.0, "text": "x", **odd}
    with pytest.raises(Failed, match="segments"):
        answer_body(Answer({"text": "x", "segments": json.dumps([segment])}), form)


@pytest.mark.parametrize("duration", ["x", np.ones(2)])
def test_a_duration_that_is_none_is_the_apps_failure(duration):
    with pytest.raises(Failed, match="duration"):
        answer_body(Answer({**SAID, "duration": duration}), "verbose_json")


def test_a_transcription_that_is_not_whole_says_so_and_a_text_that_is_none_is_refused():
    cut = Answer({"text": "Hel"}, late=True, reason="ended early")
    assert json.loads(answer_body(cut, "json")[0])["edgeserve"] == {"late": True, "reason": "ended early"}
    with pytest.raises(Failed, match="expected text"):
        answer_body(Answer({"text": np.float32(3)}), "text")


@pytest.mark.parametrize("form", ["text", "json", "srt", "vtt", "verbose_json"])
@pytest.mark.parametrize("reason", ["", "ended early, after 30.0 s of 60.0 s of sound: Lane »1« is lost"])
def test_a_transcript_that_is_not_whole_says_so_in_every_form(form, reason):
    pytest.importorskip("multipart", reason="python-multipart is not installed: forms are not read")
    from edgeserve.front import Places, Tokens
    from edgeserve.fronts.http.asgi import Bounds, Site
    from edgeserve.fronts.http.audio_routes import AudioRoutes
    from edgeserve.fronts.http.settings import HttpConfig

    class Backend:
        async def apps(self):
            return {"hear": {"inputs": {"audio": {"dtype": "float32", "shape": [-1]}}, "outputs": {}}}

        async def infer(self, *asked):
            segments = json.dumps([{"start": 0.0, "end": 30.0, "text": "half"}])
            return Answer({"text": "half", "segments": segments}, late=bool(reason), reason=reason)

    fields = {
        "model": b"hear",
        "response_format": form.encode(),
        'file"; filename="a.wav': wav(np.zeros(1600, np.int16)),
    }
    parts = [
        b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (key.encode(), value)
        for key, value in fields.items()
    ]
    body, sent = [{"type": "http.request", "body": b"".join(parts) + b"--b--\r\n"}], []

    async def send(message):
        sent.append(message)

    async def receive():
        return body.pop() if body else await asyncio.Event().wait()

    (route,) = AudioRoutes(Site(Backend(), Bounds(HttpConfig(), Places(10**9), None), Tokens())).routes()
    headers = [(b"content-type", b"multipart/form-data; boundary=b")]
    scope = {"type": "http", "method": "POST", "path": route.path, "headers": headers, "client": ("::1", 1)}
    asyncio.run(asyncio.wait_for(route.endpoint(scope, receive, send), 30))
    assert sent[0]["status"] == 200, sent[1]
    told = dict(sent[0]["headers"]).get(b"edgeserve-reason", b"").decode()
    assert told == reason.encode("ascii", "backslashreplace").decode()
