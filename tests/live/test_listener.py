"""The listener and the reader's pages under the plan, with their real networks, in this process.

Skips, saying why, when the networks are neither cached nor to be fetched.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Iterator

import numpy as np
import pytest

import edgeserve
from edgeserve.commands import assets
from edgeserve.config.files import resolve_path
from edgeserve.config.loading import parse_config
from edgeserve.config.toml_files import read_toml
from edgeserve.engines.functions import import_function
from edgeserve.errors import Dropped, Rejected

pytestmark = pytest.mark.nightly
onnxruntime = pytest.importorskip("onnxruntime", reason="the listener needs onnxruntime: pip install '.[onnx]'")

EXAMPLES = os.path.join(os.path.dirname(__file__), os.pardir, os.pardir, "examples")
LISTENER = os.path.join(EXAMPLES, "listener")
SAMPLES = 31840


def fetched(directory: str) -> None:
    try:
        assets.fetch(assets.read_assets(os.path.join(directory, "assets.toml")), assets.cache_directory())
    except assets.AssetError as error:
        pytest.skip(f"the networks are not in the cache and cannot be fetched: {error}")


@pytest.fixture(scope="module")
def listener() -> Any:
    fetched(LISTENER)
    return sys.modules[import_function("listener:act", LISTENER, "test_listener").__module__]


@pytest.fixture(scope="module")
def runtime(listener) -> Iterator[edgeserve.Runtime]:
    with edgeserve.Runtime(os.path.join(LISTENER, "edge.toml")) as started:
        yield started


def speech() -> np.ndarray:
    import wave

    with wave.open(resolve_path("cache:pyannote.audio-3.3.2/speech.wav", "")) as file:
        return np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32)


def by_hand(listener: Any, sound: np.ndarray) -> np.ndarray:
    """The scores without server and scheduler: the networks one after the other."""

    def run(name: str, x: np.ndarray) -> np.ndarray:
        session = onnxruntime.InferenceSession(
            resolve_path(f"cache:openwakeword-0.4.0/{name}.onnx", ""), providers=["CPUExecutionProvider"]
        )
        return np.asarray(session.run(None, {session.get_inputs()[0].name: x})[0])

    parts = listener.windows({"mel": run("mel", sound[np.newaxis])[0]}).items
    embeddings = run("embedding", np.stack([part["window"] for part in parts]))
    features = listener.stack({"embeddings": list(embeddings)})["features"][np.newaxis]
    return listener.act({word: run(word, features)[0] for word in listener.WORDS})["scores"]


def test_served_scores_are_those_of_the_networks_run_by_hand(listener, runtime):
    sound = speech()
    pieces = [sound[at : at + SAMPLES] for at in (8 * 16000, 15 * 16000, 22 * 16000)]
    asked = [runtime.submit("listener", {"sound": piece}, slo_ms=60_000) for piece in pieces]
    for piece, future in zip(pieces, asked):
        answer = future.result(60)
        assert answer["scores"] == pytest.approx(by_hand(listener, piece), abs=2e-3)
        assert answer["word"] == ""  # no wake word is said


def test_a_score_above_one_half_is_a_word(listener):
    scores = {"alexa": 0.1, "hey_jarvis": 0.2, "hey_marvin": 0.9, "hey_mycroft": 0.7}
    assert listener.act(scores)["word"] == "hey_marvin"
    assert listener.act(dict.fromkeys(listener.WORDS, 0.4))["word"] == ""


def test_sound_of_another_length_is_refused(listener):
    with pytest.raises(ValueError, match="send 31840 samples"):
        listener.windows({"mel": np.zeros((1, 100, 32), np.float32)})


def test_an_impossible_deadline_is_refused_at_once(runtime):
    with pytest.raises((Rejected, Dropped)):
        runtime.infer("listener", {"sound": np.zeros(SAMPLES, np.float32)}, slo_ms=1)


def test_the_readers_pages_go_in_cohorts():
    pytest.importorskip("cv2", reason="the reader needs opencv: pip install -r examples/reader/requirements.txt")
    directory = os.path.join(EXAMPLES, "reader")
    fetched(directory)
    import_function("load:main", directory, "test_listener")
    table = read_toml(os.path.join(directory, "edge.toml"))
    del table["app"]["ears"], table["model"]["voice"], table["lane"]["cpu1"]
    table["policy"] = {"pages": {"kind": "plan"}}
    pages = [page for page in sys.modules["load"].pages() if page.name.startswith("a drawn")]
    with edgeserve.Runtime(parse_config(table, directory)) as runtime:
        asked = [runtime.submit("reader", {"image": page.image}, slo_ms=60_000) for page in pages]
        for page, future in zip(pages, asked):
            text = future.result(60)["text"]
            found = "".join(filter(str.isalnum, text.lower()))
            assert all("".join(filter(str.isalnum, words.lower())) in found for words in page.words)
