"""Speech to text: what is heard in windows, and what is said of it, on a double of ctranslate2."""

from __future__ import annotations

import importlib
import json
import sys

import ctranslate2_double as double
import numpy as np
import pytest

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import load_engine, make_engine
from edgeserve.engines.base import Batch, LaneInfo
from edgeserve.engines.speech.heard import HeardWindow, SpokenSegment, window_of
from edgeserve.engines.speech.mel import log_mel
from edgeserve.errors import DeviceLost, DeviceMissing, EngineError, OutOfMemory

ENGINE = "edgeserve.engines.speech.whisper"


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", double.module())
    monkeypatch.setitem(sys.modules, ENGINE, sys)  # imported anew now, and again after the test
    del sys.modules[ENGINE]

    def made(english=False, **options):
        importlib.import_module(ENGINE)
        file = double.write_files(str(tmp_path), english)
        config = ModelConfig(name="ear", engine="whisper", file=file, batch=(1, 2), options=options)
        engine = make_engine(config, [LaneInfo()], str(tmp_path))
        load_engine(engine, config, str(tmp_path))
        return engine

    return made


def run(session, *audio, states=(), language=None, **settings):
    items = [{"audio": each, **({"language": language} if language else {})} for each in audio]
    return session.launch(Batch(items, len(items), states, **settings)).result()


def segments(result):
    return [tuple(segment.values()) for segment in json.loads(result.outputs["segments"])]


T = 1000  # the token of time 0


@pytest.mark.parametrize(
    ("tokens", "is_last", "said", "heard_s"),
    [
        ([], False, [], 30.0),
        ([T, 1, 2, T + 100], False, [(0.0, 2.0, (1, 2))], 30.0),
        ([T, 1, T + 100, T + 100, 2, T + 250, T + 250], False, [(0.0, 2.0, (1,)), (2.0, 5.0, (2,))], 5.0),
        ([T, 1, T + 100, T + 150, 2], False, [(0.0, 2.0, (1,))], 2.0),
        ([T, 1, T + 100, T + 150, 2], True, [(0.0, 2.0, (1,)), (3.0, 30.0, (2,))], 30.0),
        ([T + 50, 1, 2], False, [(1.0, 30.0, (1, 2))], 30.0),
        ([1, 2], False, [(0.0, 30.0, (1, 2))], 30.0),
        ([T, 1, T, T], False, [(0.0, 0.0, (1,))], 30.0),
    ],
)
def test_a_window_goes_as_far_as_sentences_were_heard_to_the_end(tokens, is_last, said, heard_s):
    assert window_of(tokens, T, 30.0, is_last) == HeardWindow(tuple(SpokenSegment(*each) for each in said), heard_s)


def test_the_spectrum_of_a_tone_is_where_its_frequency_is():
    found = log_mel(0.5 * np.sin(2 * np.pi * 1000 * np.arange(16_000) / 16_000), 80)
    assert found.shape == (80, 3000) and found.dtype == np.float32
    band = int(found[:, 50].argmax())  # 15 mels of the 45.2 that 80 bands share
    assert abs(band - 15 / 45.2456 * 81) < 1.5
    assert found[band, 50] == found.max() and found[band, 500] == found.min() == pytest.approx(found.max() - 2)


def test_what_is_said_comes_with_its_times_and_goes_on_over_windows(make):
    session = make().open(LaneInfo(name="cpu0"))
    short = run(session, double.sound(1, 2, 5, seconds=8), language="en")[0]
    assert short.outputs["text"] == "la la la" and short.outputs["duration"] == 8.0
    assert segments(short) == [(1.0, 3.0, "la la"), (5.0, 6.0, "la")]
    long = run(session, double.sound(3, 28, 29, 30, 31, 61, seconds=62), language="en")[0]
    assert segments(long) == [(3.0, 4.0, "la"), (28.0, 32.0, "la la la la"), (61.0, 62.0, "la")]
    assert (long.outputs["text"], long.steps) == ("la la la la la la", 3)
    assert run(session, double.sound(seconds=4))[0].outputs["text"] == "", "a silent window says nothing"


def test_batches_cuts_and_other_lanes_change_no_word(make):
    engine = make()
    session, other = engine.open(LaneInfo(name="cpu0")), engine.open(LaneInfo(name="cpu1"))
    sounds = [double.sound(1, 31, 70, seconds=80), double.sound(2, 3, seconds=4, dtype=np.int16)]
    alone = [run(session, sound)[0].outputs for sound in sounds]
    assert [result.outputs for result in run(session, *sounds)] == alone
    first = run(session, *sounds, steps_max=1)
    assert first[1].outputs == alone[1] and not first[0].done and first[0].hints == {"steps": 2}
    assert run(other, sounds[0], states=[first[0].state])[0].outputs == alone[0]


def test_an_answer_goes_on_with_the_file_that_began_it_alone(make):
    sound = double.sound(1, 31, seconds=60)
    begun = [run(each.open(LaneInfo()), sound, steps_max=1)[0] for each in (make(), make())]
    session = make().open(LaneInfo())  # the files are written anew each time
    for found, written in zip(run(session, sound, sound, states=[each.state for each in begun]), begun):
        assert "replaced" in str(found.error) and written.state.written().outputs["text"] == "la"


def test_the_language_is_told_or_heard(make, tmp_path):
    engine = make()
    session = engine.open(LaneInfo())
    assert run(session, double.sound(1, seconds=2))[0].outputs["language"] == "ar"
    assert run(session, double.sound(1, seconds=2), language=np.array("en"))[0].outputs["language"] == "en"
    assert "'language' is 'xx'" in str(run(session, double.sound(1, seconds=2), language="xx")[0].error)
    session = make(language="en", translate=True).open(LaneInfo())
    assert run(session, double.sound(1, seconds=2))[0].outputs["language"] == "en"
    (prompt,), _ = session._network.calls[0]
    texts = json.loads((tmp_path / "vocabulary.json").read_text(encoding="utf-8"))
    assert [texts[token] for token in prompt] == ["<|startoftranscript|>", "<|en|>", "<|translate|>"]
    session = make(english=True).open(LaneInfo())
    assert run(session, double.sound(1, seconds=2))[0].outputs == {
        "text": "la",
        "language": "en",
        "segments": '[{"start": 1.0, "end": 2.0, "text": "la"}]',
        "duration": 2.0,
    }
    assert "'ar'" in str(run(session, double.sound(1, seconds=2), language="ar")[0].error)
    with pytest.raises(EngineError, match="English alone"):
        make(english=True, translate=True)


@pytest.mark.parametrize(
    ("audio", "why"),
    [
        (None, "no input 'audio'"),
        (np.zeros((2, 100), np.float32), r"\[2, 100\]"),
        (np.zeros(0, np.float32), "expected float32"),
        (np.ma.masked_array(np.zeros(100, np.float32), np.arange(100) == 7), "is a masked array"),
        (np.zeros(100, np.int32), "int32"),
        (np.full(100, 20000.0, np.float32), "divide 16 bit samples by 32768"),
        (np.full(100, np.nan, np.float32), "nan"),
        (np.zeros(16_000 * 60 * 60 * 7, np.int16), "are heard"),
    ],
)
def test_what_is_no_sound_is_refused_and_the_others_run(make, audio, why):
    wrong, right = run(make().open(LaneInfo()), audio, double.sound(1, seconds=2))
    assert right.outputs["text"] == "la"
    with pytest.raises(EngineError, match=why):
        raise wrong.error


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CUDA failed with error out of memory", OutOfMemory),
        ("cuBLAS failed with status CUBLAS_STATUS_ALLOC_FAILED", OutOfMemory),
        ("CUDA failed with error an illegal memory access was encountered", DeviceLost),
        ("CUDA failed with error CUDA driver version is insufficient for CUDA runtime version", DeviceMissing),
        ("no kernel", EngineError),
    ],
)
def test_what_the_library_cannot_do_is_said(make, monkeypatch, text, kind):
    engine = make()
    session = engine.open(LaneInfo())

    def fail(*given, **named):
        raise RuntimeError(text)

    monkeypatch.setattr(session._network, "generate", fail)
    monkeypatch.setattr(double.Whisper, "__init__", fail)
    for call in (lambda: run(session, double.sound(1, seconds=2)), lambda: engine.open(LaneInfo(name="other"))):
        with pytest.raises(EngineError) as caught:
            call()
        assert type(caught.value) is kind and "'ear'" in str(caught.value) and text in str(caught.value)


def test_files_that_are_no_whisper_network_are_refused(make, tmp_path):
    make()
    for name, data, why in [("model.bin", b"none", "no Whisper network"), ("vocabulary.json", b"[]", "no vocabulary")]:
        double.write_files(str(tmp_path))
        (tmp_path / name).write_bytes(data)
        config = ModelConfig(name="ear", engine="whisper", file="model.bin", batch=(1,))
        with pytest.raises(EngineError, match=why):
            make_engine(config, [LaneInfo()], str(tmp_path)).load()
