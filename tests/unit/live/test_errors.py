"""What people are told of failures, and that a failed batch's values do not stay in memory."""

from __future__ import annotations

import gc
import logging
import weakref
from pathlib import Path

import numpy as np
import pytest

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo
from edgeserve.errors import EngineError
from edgeserve.live.errors import EngineFailures
from edgeserve.sched.protocol.actions import RunBatch
from edgeserve.sched.protocol.events import JobId


def batch_of(model: str) -> RunBatch:
    return RunBatch(7, "cpu0", model, (JobId(1, model, ()),), 1, 0, 10, 5)


def test_the_client_reads_which_model_it_was_and_the_log_gets_each_models_first(
        caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "edgeserve")
    failures = EngineFailures()
    assert failures.reason(batch_of("m"), EngineError("model 'm': no x")) == "model 'm': no x"
    assert failures.reason(batch_of("m"), ValueError("no y")) == "model 'm' raised ValueError: no y"
    failures.reason(batch_of("n"), ValueError("no z"))
    assert [(record.levelname, record.exc_info is not None) for record in caplog.records] == [
        ("WARNING", True), ("DEBUG", False), ("WARNING", True)]
    assert "lane cpu0, work 7 (failure 2 of this model): model 'm' raised ValueError: no y" in caplog.text


def test_what_failed_is_let_go_of_without_the_collector(tmp_path: Path) -> None:
    (tmp_path / "raising_steps.py").write_text(
        "def f(item):\n    mine = item['x'] + 1\n    item['made'](mine)\n    raise ValueError('bad')")
    engine = make_engine(ModelConfig("m", "python", function="raising_steps:f"), [LaneInfo()], str(tmp_path))
    engine.load()
    kept = []
    failures = EngineFailures()
    failures.reason(batch_of("m"), ValueError("the first goes into the log"))
    gc.disable()
    try:
        x = np.zeros(4)
        kept.append(weakref.ref(x))
        results = engine.run(Batch([{"x": x, "made": lambda array: kept.append(weakref.ref(array))}], 1))
        failures.reason(batch_of("m"), results[0].error)
        del x, results
        assert [reference() is None for reference in kept] == [True, True]
    finally:
        gc.enable()
