"""The example of speech, with its real network."""

from __future__ import annotations

import importlib.util
import os
import re

import numpy as np
import pytest

import edgeserve
from edgeserve.commands import assets
from edgeserve.config.loading import parse_config
from edgeserve.config.toml_files import read_toml

EXAMPLES = os.path.join(os.path.dirname(__file__), os.pardir, os.pardir, "examples")


def fetched(example):
    try:
        assets.fetch(assets.read_assets(os.path.join(EXAMPLES, example, "assets.toml")), assets.cache_directory())
    except assets.AssetError as error:
        pytest.skip(f"the network is not in the cache and cannot be fetched: {error}")
    return os.path.join(EXAMPLES, example, "edge.toml")


def words(text):
    return re.findall(r"[a-z']+", text.lower())


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_example_writes_down_a_real_conversation():
    pytest.importorskip("ctranslate2", reason="pip install -e '.[speech]'")
    path = fetched("speech")
    table = read_toml(path)
    table["model"]["whisper"]["batch"] = [1]  # fewer runs to warm up
    config = parse_config(table, directory=os.path.dirname(path))
    spec = importlib.util.spec_from_file_location("transcribe", os.path.join(EXAMPLES, "speech", "transcribe.py"))
    transcribe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(transcribe)
    sound = transcribe.sound(transcribe.SPEECH)
    with edgeserve.Runtime(config) as runtime:
        whole = runtime.infer("transcribe", {"audio": sound}, slo_ms=300_000)
        twice = runtime.infer("transcribe", {"audio": np.concatenate([sound, sound])}, slo_ms=300_000)
    said = words(whole["text"])
    for phrase in ("i didn't know you were there", "this is diane in new jersey", "originally from chicago"):
        assert phrase in " ".join(said)
    assert len(words(twice["text"])) > 1.8 * len(said) and twice["duration"] == 60.0
