"""Refusals with numbers, ids and stories: in process and over the bus, of one runtime."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Callable, Iterator, Tuple

import live_functions
import numpy as np
import pytest
from serving import function, served

from edgeserve.answers import TimedOut
from edgeserve.client import AsyncClient, Client
from edgeserve.errors import BadInput, Cancelled, DeadlineExpired, Dropped, Failed, Rejected, RequestError, UnknownApp
from edgeserve.runtime import Runtime

X = {"x": np.ones(4, np.float32)}
NEGATIVE = {"x": -np.ones(4, np.float32)}

Both = Tuple[Runtime, Client]


@pytest.fixture
def both() -> Iterator[Both]:
    """A runtime that serves, and a client of it. App ``slow`` is believed to take 400 ms, ``held`` waits for a gate."""
    live_functions.close_gate()
    tables = {
        "server": {"pending_max": 3},
        "policy": {"edf": {"trials": False}},
        "lane": {"cpu0": {}, "other": {}},
        "model": {
            "slow": {"engine": "synthetic", "expected": {"1": "400ms"}, "lanes": ["cpu0"]},
            "endless": function("double", lanes=["cpu0"], expected={"1": "20h"}),
            "quick": function("double", lanes=["cpu0"]),
            "held": function("request", lanes=["other"]),
        },
        "app": {
            "slow": {"model": "slow", "slo": "300ms"},
            "endless": {"model": "endless", "slo": "300ms"},
            "quick": {"model": "quick", "slo": "20s"},
            "held": {"model": "held", "slo": "20s"},
        },
    }
    with served(tables) as pair:
        yield pair
        live_functions.gate.set()


@pytest.mark.parametrize("way", [0, 1])
def test_a_refusal_says_what_would_have_been_enough(both: Both, way: int) -> None:
    with pytest.raises(Rejected) as caught:
        both[way].infer("slow", X)
    error = caught.value
    assert (error.reason, error.lane, error.expected_ms, error.wait_ms) == ("cannot_make_deadline", "cpu0", 400.0, 0.0)
    assert error.left_ms is not None
    assert error.slo_ms_min is not None
    assert 0 < error.left_ms <= 300
    assert 400 <= error.slo_ms_min < 800
    assert f"expected 400ms on cpu0, {error.left_ms:.3g}" in str(error)
    assert "would do)" in str(error)
    assert both[way].infer("slow", X, slo_ms=error.slo_ms_min * 2).outcome == "completed"


@pytest.mark.parametrize("way", [0, 1])
def test_every_end_has_the_id_by_which_its_story_is_told_both_ways(both: Both, way: int) -> None:
    def failed(kind: type, app: str, inputs: Any, **options: Any) -> RequestError:
        with pytest.raises(kind) as caught:
            both[way].infer(app, inputs, **options)
        error: RequestError = caught.value  # type: ignore[assignment]
        return error

    ids = {
        "completed": both[way].infer("quick", X).id,
        "rejected": failed(Rejected, "slow", X).id,
        "failed": failed(Failed, "quick", NEGATIVE).id,
    }
    assert len(set(ids.values())) == 3
    for outcome, request_id in ids.items():
        story = both[0].story(request_id)
        assert story[0].startswith(f"request {request_id} of app ")
        assert outcome in story[0]
        assert both[1].story(request_id) == story
    assert "400ms on cpu0" in "\n".join(both[1].story(ids["rejected"]))
    early = {
        "bad_input": failed(BadInput, "quick", X, priority_class="odd"),
        "deadline_expired": failed(DeadlineExpired, "quick", X, slo_ms=0),
        "unknown_app": failed(UnknownApp, "quik", X),
    }
    assert early["deadline_expired"].id > early["bad_input"].id > max(ids.values())
    for code, error in early.items():
        story = both[1].story(error.id)
        assert story == [
            f"request {error.id} of app {'quik' if code == 'unknown_app' else 'quick'}: ended before it "
            f"was scheduled: {code}",
            f"  {error}",
        ]
    assert both[way].story(10**9) == []


def test_a_future_of_the_runtime_has_its_id_at_once(both: Both) -> None:
    runtime, client = both
    future = runtime.submit("held", X)
    assert future.id > 0
    assert runtime.story(future.id)[0].startswith(f"request {future.id} of app held: ")  # also while it is arriving
    assert "open" in _until(lambda: runtime.story(future.id), "open")
    over_the_bus: Any = client.submit("quick", X)
    answer = over_the_bus.result(10)
    assert over_the_bus.id == answer.id > future.id


def test_a_time_out_of_any_caller_has_its_id(both: Both) -> None:
    runtime, client = both

    async def awaited() -> None:
        async with AsyncClient(client.endpoint) as twin:
            await twin.infer("held", X, timeout_ms=20)

    for ask in (
        lambda: runtime.infer("held", X, timeout_ms=20),
        lambda: client.infer("held", X, timeout_ms=20),
        lambda: asyncio.run(awaited()),
    ):
        with pytest.raises(TimedOut) as caught:
            ask()
        assert caught.value.id
        assert "cancelled" in _until(lambda: runtime.story(caught.value.id), "cancelled")


def test_what_the_server_itself_turns_away_has_an_id_and_a_second_cancel_does_nothing(both: Both) -> None:
    runtime, _ = both
    for way in both:
        waiting = [way.submit("held", X) for _ in range(3)]
        with pytest.raises(Rejected, match="server_full.*pending_max") as caught:
            way.infer("quick", X)
        assert caught.value.expected_ms is None
        assert runtime.story(caught.value.id)[-1].endswith("rejected: server_full")
        for future in waiting:
            assert future.cancel()
            assert future.cancel()
        _until(lambda: "x" * (runtime.stats()["open"] == 0), "x")
    runtime.check()


def test_another_client_takes_a_place_of_one_that_has_all(both: Both) -> None:
    runtime, client = both
    waiting = [runtime.submit("held", X) for _ in range(3)]
    assert client.infer("quick", X)["y"].tolist() == (2 * X["x"]).tolist()
    with pytest.raises(Dropped, match="over_share"):
        waiting[-1].result(10)


def test_who_still_waits_at_the_end_gets_an_error_of_his_own(both: Both) -> None:
    runtime, _ = both
    futures = [runtime.submit("held", X) for _ in range(2)]
    runtime.ask_to_stop(drain=False)
    errors = [future.exception(10) for future in futures]
    assert [type(error) for error in errors] == [Cancelled, Cancelled] and "shutting down" in str(errors[0])
    assert [error.id for error in errors] == [future.id for future in futures]  # type: ignore[union-attr]


def test_a_deadline_that_no_request_may_ask_for_is_not_named(both: Both) -> None:
    with pytest.raises(Rejected) as caught:
        both[0].infer("endless", X, slo_ms=5000, hints={"steps": 65_536})
    assert caught.value.expected_ms == pytest.approx(65_536 * 20 * 3.6e6)
    assert caught.value.slo_ms_min is None
    assert str(caught.value).endswith("s left)")


def test_an_asyncio_client_tells_ids_and_stories(both: Both) -> None:
    async def ask() -> Tuple[int, Any]:
        async with AsyncClient(both[0].endpoints[0]) as client:
            answer = await client.infer("quick", X)
            return answer.id, await client.story(answer.id)

    request_id, story = asyncio.run(ask())
    assert story == both[0].story(request_id)
    assert "completed" in story[0]


def test_the_wait_behind_another_request_is_told(both: Both) -> None:
    runtime, _ = both
    first = runtime.submit("slow", X, slo_ms=5000)
    _until(lambda: runtime.story(first.id), "launched")
    with pytest.raises(Rejected) as caught:
        runtime.infer("slow", X, slo_ms=450)
    assert caught.value.wait_ms is not None
    assert 0 < caught.value.wait_ms <= 400
    assert "of waiting" in str(caught.value)
    assert first.result(10).outcome == "completed"


def test_apps_and_stats_tell_the_time_alone_beside_the_deadline(both: Both) -> None:
    runtime, client = both
    for table in (client.apps(), client.stats()["apps"], runtime.stats()["apps"]):
        assert table["slow"]["slo_ms"] == 300.0
        assert (table["slow"]["expected_ms"], table["slow"]["expected_on"]) == (400.0, "cpu0")
        assert 0 < table["quick"]["expected_ms"] < 1000


def _until(question: Callable[[], Any], word: str, seconds: float = 10.0) -> str:
    due = time.monotonic() + seconds
    while True:
        text = "\n".join(question())
        if word in text or time.monotonic() > due:
            return text
        time.sleep(0.005)
