"""Predictions off the loop's thread: who waits, in which order requests go on, and when they go on without."""

from __future__ import annotations

import queue
from typing import Any, Iterator, List, Optional

import pytest

from edgeserve.config.loading import parse_config
from edgeserve.engines.lm.lm_engine import LmEngine
from edgeserve.errors import EngineError
from edgeserve.live.prediction_worker import WAIT_NS_MAX, WAIT_SHARE, WAITING_MAX, PredictionWorker
from edgeserve.live.request import LiveRequest, RequestValidator, request_of_call, request_validators
from edgeserve.live.responders import RequestFuture
from edgeserve.predict.serving.predictors import prompt_counter

MS = 1_000_000
PATIENCE_S = 10

HELD = """
import threading
entered, gate = threading.Event(), threading.Event()

def f(inputs):
    if inputs["x"] == "hold":
        entered.set()
        gate.wait(10)
    return len(inputs["x"])
"""


class World:
    """A worker whose clock and mail the test holds."""

    def __init__(self, validator: RequestValidator, held: Any) -> None:
        self.now_ns = 0
        self.validator = validator
        self.held = held
        self.mail: queue.Queue[Any] = queue.Queue()
        self.worker = PredictionWorker(self.mail.put, lambda: self.now_ns)

    def request(self, x: str, slo_ms: float = 400, stream: Optional[str] = None, hints: Any = None) -> LiveRequest:
        request = request_of_call("a", {"x": x}, slo_ms=slo_ms, stream=stream, hints=hints)
        self.validator.check(request, RequestFuture(lambda future: None), self.now_ns)
        return request

    def take(self, *requests: LiveRequest) -> List[LiveRequest]:
        return [ready for request in requests for ready in self.worker.take(request, self.now_ns)]

    def finished(self) -> Any:
        """The next prediction, as the loop gets it; its request if one waits for it."""
        prediction = self.mail.get(timeout=PATIENCE_S)
        return prediction.request if self.worker.finish(prediction, self.now_ns) else None

    def without(self) -> int:
        assert self.validator.predictors is not None
        count: int = self.validator.predictors.table()["went_without"]
        return count


@pytest.fixture
def world(tmp_path: Any) -> Iterator[World]:
    (tmp_path / "held_guess.py").write_text(HELD)
    config = parse_config(
        {
            "model": {"m": {"engine": "synthetic"}},
            "app": {"a": {"model": "m", "stream": "in_order", "predict": {"length": "held_guess:f"}}},
        },
        directory=str(tmp_path),
    )
    validator = request_validators(config)["a"]
    import held_guess  # type: ignore[import-not-found]

    held_guess.gate.clear()
    held_guess.entered.clear()
    one = World(validator, held_guess)
    yield one
    held_guess.gate.set()
    one.worker.close()


def hold(world: World) -> LiveRequest:
    """A request whose prediction does not come before the gate is opened."""
    request = world.request("hold")
    assert world.take(request) == []
    assert world.held.entered.wait(PATIENCE_S)
    return request


def test_a_request_that_says_everything_itself_waits_for_nobody(world: World) -> None:
    first = hold(world)
    request = world.request("x", hints={"length": 7})
    assert world.take(request) == [request]
    assert world.worker.requests() == [first] and request.predicted_ns == 0


def test_it_keeps_its_place_behind_an_earlier_one_of_its_stream(world: World) -> None:
    hold(world)
    first, other, second = (
        world.request("four", stream="s"),
        world.request("x", stream="t", hints={"length": 1}),
        world.request("x", stream="s", hints={"length": 7}),
    )
    assert world.take(first, other, second) == [other]
    world.held.gate.set()
    assert [world.finished() for _ in range(3)][1:] == [first, second]
    assert (first.hints, second.hints) == ({"length": 4}, {"length": 7})


def test_after_a_share_of_its_time_a_request_goes_on_without(world: World) -> None:
    held = hold(world)
    long, late = world.request("x", slo_ms=60_000), world.request("x", slo_ms=40)
    assert world.take(long, late) == []
    assert world.worker.due_ns() == 40 * MS // WAIT_SHARE
    assert world.worker.expire(40 * MS // WAIT_SHARE - 1) == []
    assert world.worker.expire(40 * MS // WAIT_SHARE) == [late]
    assert late.hints is None and late.predicted_ns == 40 * MS // WAIT_SHARE
    assert world.worker.expire(400 * MS // WAIT_SHARE) == [held]
    assert world.worker.expire(WAIT_NS_MAX) == [long]
    assert world.without() == 3
    world.held.gate.set()
    assert world.finished() is None  # the one that was held: too late


def test_who_goes_on_without_takes_the_earlier_ones_of_the_stream_along(world: World) -> None:
    hold(world)
    first, alone, second, third = (
        world.request("1", 60_000, "s"),
        world.request("2", 60_000),
        world.request("3", 40, "s"),
        world.request("4", 60_000, "s"),
    )
    assert world.take(first, alone, second, third) == []
    assert world.worker.expire(10 * MS) == [first, second]
    assert third in world.worker.requests() and alone in world.worker.requests()


def test_more_than_may_wait_go_on_at_once_and_their_stream_before_them(world: World) -> None:
    hold(world)
    rest = [world.request("x", stream="s" if index == 0 else None) for index in range(WAITING_MAX - 1)]
    assert world.take(*rest) == []
    more = world.request("x", stream="s")
    assert world.take(more) == [rest[0], more]
    assert world.take(world.request("x")) == []  # one has left
    assert world.without() == 2


def test_nobody_waits_behind_a_predictor_that_is_stuck(world: World) -> None:
    world.now_ns = 1
    hold(world)
    world.now_ns += WAIT_NS_MAX + 1
    request = world.request("x")
    assert world.take(request) == [request]
    world.held.gate.set()
    assert world.finished() is not None
    again = world.request("x")
    assert world.take(again) == [] and world.finished() is again


def language_model():
    return parse_config(
        {
            "lane": {"cpu0": {}},
            "model": {"chat": {"engine": "lm", "file": "missing.onnx"}},
            "app": {"chat": {"model": "chat", "slo": "1s"}},
        }
    )


def test_the_tokenizer_of_a_language_model_is_opened_before_the_first_request(monkeypatch):
    counted = []
    monkeypatch.setattr(LmEngine, "count_tokens", lambda engine, item: counted.append(item) or 1)
    config = language_model()
    prompt_counter(config.models["chat"], config.apps["chat"], config)
    assert len(counted) == 1


def test_a_tokenizer_that_cannot_be_opened_is_told_of_when_somebody_asks():
    config = language_model()
    predictor = prompt_counter(config.models["chat"], config.apps["chat"], config)
    with pytest.raises(EngineError, match="missing"):
        predictor.function({"prompt": "Hello"})
