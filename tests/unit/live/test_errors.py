"""Messages for people on failures, and that a failed batch's values do not stay in memory."""

from __future__ import annotations

import gc
import io
import logging
import weakref
from pathlib import Path

import numpy as np
import pytest

from edgeserve.config.plain_text import PlainLog
from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo
from edgeserve.errors import Cancelled, Dropped, EngineError, Failed, Rejected
from edgeserve.live.errors import EngineFailures, refusal
from edgeserve.sched.protocol.actions import RunBatch, Shortfall
from edgeserve.sched.protocol.events import JobId


def batch_of(model: str) -> RunBatch:
    return RunBatch(7, "cpu0", model, (JobId(1, model, ()),), 1, 0, 10, 5)


def test_the_client_reads_which_model_it_was_and_the_log_gets_each_models_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "edgeserve")
    failures = EngineFailures()
    assert failures.reason(batch_of("m"), EngineError("model 'm': no x")) == "model 'm': no x"
    assert failures.reason(batch_of("m"), ValueError("no y")) == "model 'm' raised ValueError: no y"
    failures.reason(batch_of("n"), ValueError("no z"))
    traces = [record.exc_text or "" for record in caplog.records]
    assert [(record.levelname, "ValueError" in trace) for record, trace in zip(caplog.records, traces)] == [
        ("WARNING", False),
        ("DEBUG", False),
        ("WARNING", True),
    ], "the others would fill the log"
    assert "lane cpu0, work 7 (failure 2 of this model): model 'm' raised ValueError: no y" in caplog.text


def test_a_traceback_in_the_log_is_of_the_cause_on_lines_that_look_like_no_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failure = EngineError("model 'm': one item failed")
    failure.__cause__ = ValueError("a\n2026-01-01 W forged \x1b[2J")
    EngineFailures().reason(batch_of("m"), failure)
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(PlainLog("%(levelname).1s %(message)s"))
    handler.emit(caplog.records[0])
    first, *trace = handler.stream.getvalue().splitlines()
    assert first.startswith("W lane cpu0") and first.endswith("one item failed")
    assert trace == ["  ValueError: a", "  2026-01-01 W forged \\x1b[2J"]


def test_what_failed_is_let_go_of_without_the_collector(tmp_path: Path) -> None:
    (tmp_path / "raising_steps.py").write_text(
        "def f(item):\n    mine = item['x'] + 1\n    item['made'](mine)\n    raise ValueError('bad')"
    )
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


def test_a_refusal_for_its_deadline_says_the_numbers_as_fields_and_in_its_text() -> None:
    lacked = Shortfall("cpu0", 53_000_000, 14_000_000, 33_000_000, 70_000_000)
    error = refusal("read", "rejected", "cannot_make_deadline", 7, lacked)
    assert isinstance(error, Rejected)
    assert str(error) == (
        "app 'read': rejected: cannot_make_deadline (expected 53ms on cpu0 and 14ms of waiting, "
        "33ms left: 70ms would do)"
    )
    assert (error.id, error.reason, error.lane) == (7, "cannot_make_deadline", "cpu0")
    assert (error.expected_ms, error.wait_ms, error.left_ms, error.slo_ms_min) == (53.0, 14.0, 33.0, 70.0)
    error = refusal("read", "dropped", "proactive", 8, lacked._replace(slo_ns_min=None))
    assert isinstance(error, Dropped)
    assert (error.id, error.expected_ms, error.slo_ms_min) == (8, 53.0, None)


def test_other_ends_have_an_id_and_no_numbers() -> None:
    for outcome, kind in (("rejected", Rejected), ("dropped", Dropped), ("cancelled", Cancelled), ("failed", Failed)):
        error = refusal("read", outcome, "queue_full", 9)
        assert type(error) is kind
        assert (error.id, getattr(error, "expected_ms", None), getattr(error, "slo_ms_min", None)) == (9, None, None)
    assert "its pending_max" in str(refusal("read", "rejected", "queue_full", 9))
