"""Settings of llama.cpp that decide about memory, on the double."""

from __future__ import annotations

import importlib
import sys

import llama_double
import numpy as np
import pytest

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo, run_whole
from edgeserve.engines.lm.backend import TokenRow
from edgeserve.engines.lm.lm_options import KNOWN_OPTIONS
from edgeserve.engines.options import Options
from edgeserve.errors import ConfigError


@pytest.fixture
def double(monkeypatch):
    made = llama_double.module()
    monkeypatch.setitem(sys.modules, "llama_cpp", made)
    llama_double.forget(monkeypatch)
    package = importlib.import_module("edgeserve.engines.lm")
    monkeypatch.setattr(package, "llama_backend", importlib.import_module(llama_double.BACKEND), raising=False)
    return made


def answer(folder, **options):
    path = llama_double.write_file(folder / "m.gguf")
    model = ModelConfig("m", engine="lm", file=str(path), batch=(1,), options={**options, "context": 64})
    engine = make_engine(model, [LaneInfo()], str(folder))
    footprint = engine.load()
    try:
        item = {"prompt": "a prompt of more than thirty-two bytes", "max_tokens": 4, "ignore_eos": True}
        (result,), _ = run_whole(engine.open(LaneInfo()), Batch([item], 1))
        return footprint, list(result.outputs["tokens"])
    finally:
        engine.unload()


def test_fewer_tokens_in_a_run_take_less_memory_and_change_no_answer(double, tmp_path):
    whole, tokens = answer(tmp_path)
    assert max(map(len, double.calls)) > 32 and double.contexts[-1].settings.n_ubatch == 512
    double.calls.clear()
    parts, same = answer(tmp_path, ubatch=32)
    settings = double.contexts[-1].settings
    assert (settings.n_batch, settings.n_ubatch) == (32, 32) and max(map(len, double.calls)) <= 32
    assert same == tokens and sum(parts) < sum(whole)


@pytest.mark.parametrize("ubatch", [31, 513, 0])
def test_a_run_of_too_few_or_too_many_tokens_is_refused(double, tmp_path, ubatch):
    with pytest.raises(ConfigError, match="ubatch"):
        answer(tmp_path, ubatch=ubatch)


def test_no_scores_are_copied_that_a_choice_does_not_read(double, tmp_path):
    path = llama_double.write_file(tmp_path / "m.gguf")
    model = ModelConfig("m", engine="lm", file=str(path), options={"context": 64})
    options = Options(model, KNOWN_OPTIONS)
    backend = importlib.import_module(llama_double.BACKEND).make(model, str(tmp_path / "m.gguf"), options, [LaneInfo()])
    backend.load()
    session = backend.open(LaneInfo(), 3)
    every = session.prefill([TokenRow(slot, [72, 105], 0) for slot in range(3)])
    some = session.prefill([TokenRow(slot, [72, 105], 0, best) for slot, best in enumerate((0, 1, 5))])
    session.close()
    backend.unload()
    assert np.array_equal(some[0], every[0]) and len(every[0]) == llama_double.VOCABULARY
    for scores, place, best in zip(some[1:], (1, 2), (1, 5)):
        right = sorted(range(len(every[place])), key=lambda token: (-every[place][token], token))[:best]
        assert scores.tokens.tolist() == right and scores.scores.tolist() == every[place][right].tolist()
