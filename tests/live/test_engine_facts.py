"""Engines are users' code: what one raises, or returns, where a start asks it for facts is told in a sentence."""

from __future__ import annotations

import pytest
from live_engines import Echo

from edgeserve import App, Model, Runtime
from edgeserve.engine import Footprint
from edgeserve.errors import EngineError

QUESTIONS = ("load", "outputs", "rows", "output_names", "sequence", "progress", "check")


def engine_with(question, answer):
    return type("Own", (Echo,), {question: answer})()


def refused(question, answer):
    with pytest.raises(EngineError) as caught:
        Runtime(models={"m": Model(engine_with(question, answer))}, apps={"a": App("m")}).start()
    return str(caught.value)


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_that_raises(question, kind):
    def raises(*_):
        raise kind("no answer")

    told = refused(question, raises)
    assert "model 'm'" in told
    assert f"{kind.__name__}: no answer" in told
    assert question in told


@pytest.mark.parametrize("question", [each for each in QUESTIONS if each != "check"])
def test_a_question_that_is_answered_with_another_thing(question):
    told = refused(question, lambda *_: 5)
    assert told.startswith(f"model 'm': {question}() of its engine returned 5; expected ")


@pytest.mark.parametrize("size", [-1, 1.5, float("nan"), "1"])
def test_a_footprint_is_counted_in_bytes(size):
    assert "load() of its engine returned Footprint(" in refused("load", lambda _: Footprint(size))
