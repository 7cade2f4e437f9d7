"""Sequences, whole: pieces reach callers and clients as they come, items are answered before their batch, batches are
cut, and sequences without a reader stop."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Dict, Iterator

import live_engines
import numpy as np
import pytest
from serving import wait_until

from edgeserve import App, Model
from edgeserve.answers import PIECES_UNREAD_MAX, Answer
from edgeserve.client import AsyncClient, Client
from edgeserve.config.loading import parse_config
from edgeserve.engine import Engine, Footprint, Result, SequenceInfo
from edgeserve.errors import BadInput, Cancelled, Failed
from edgeserve.runtime import Runtime
from edgeserve.sched.protocol.actions import CutBatch


def config_of(endpoint: str = "", engine: str = "synthetic", step: str = "4ms", **sections: Any) -> Any:
    return parse_config(
        {
            "server": {"endpoint": endpoint} if endpoint else {},
            "lane": {"cpu": {}},
            **sections,
            "model": {
                "lm": {
                    "engine": engine,
                    "batch": [1, 2, 4, 8],
                    "expected": {str(size): step for size in (1, 2, 4, 8)},
                    "options": {"sequence": {"slots": 8, "context_tokens": 100_000, "bytes_per_token": 10}},
                },
                "ear": {"engine": "synthetic", "expected": {"1": "1ms"}},
            },
            "app": {"chat": {"model": "lm", "slo": "100s"}, "voice": {"model": "ear", "slo": "400ms"}},
            "policy": {"fifo": {}},
        },
        directory=str(Path(live_engines.__file__).parent),
    )


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with Runtime(config_of()) as runtime:
        yield runtime


@pytest.fixture
def server(tmp_path: Any) -> Iterator[Runtime]:
    with Runtime(config_of(f"ipc://{tmp_path}/bus"), serve=True) as runtime:
        yield runtime


def steps(count: int) -> Dict[str, Any]:
    return {"steps": np.int64(count)}


def hints(count: int) -> Dict[str, float]:
    return {"steps": float(count)}


def nothing_held(runtime: Runtime) -> bool:
    runtime.check()
    return all(device["state_bytes"] == 0 for device in runtime.stats()["devices"].values())


def numbers(stream: Any) -> Any:
    return [int(piece["step"]) for piece in stream]


# --- in this process --------------------------------------------------------------------------------------------------


def test_pieces_come_before_the_answer_in_order_and_once(runtime: Runtime) -> None:
    with runtime.stream("chat", steps(12), hints=hints(12)) as stream:
        first = next(stream)
        assert first["step"] == 1 and runtime.stats()["open"] == 1
        assert numbers(stream) == list(range(2, 13))
        assert isinstance(stream.answer(), Answer) and stream.answer()["steps"] == 12


def test_pieces_go_on_where_a_batch_was_too_short(runtime: Runtime) -> None:
    with runtime.stream("chat", steps(30), hints=hints(7)) as stream:
        assert numbers(stream) == list(range(1, 31))
    wait_until(lambda: runtime.stats()["lanes"]["cpu"]["works"] >= 2)  # answered before its last batch has ended


def test_who_asked_for_no_pieces_gets_the_answer_alone(runtime: Runtime) -> None:
    assert runtime.infer("chat", steps(5))["steps"] == 5


def test_a_short_answer_is_not_kept_by_a_long_one_in_its_batch(runtime: Runtime) -> None:
    gate = runtime.submit("chat", steps(40), hints=hints(40))  # the others come while it runs: one batch
    long, short = (runtime.submit("chat", steps(count), hints=hints(count)) for count in (2000, 3))
    gate.result(20)
    short.result(20)
    assert not long.done()
    long.cancel()
    wait_until(lambda: nothing_held(runtime))


def test_an_app_without_pieces_brings_only_its_answer(runtime: Runtime) -> None:
    with runtime.stream("voice", {"x": np.zeros(2, np.float32)}) as stream:
        assert list(stream) == [] and "x" in stream.answer()


def test_a_cancelled_stream_stops_its_sequence(runtime: Runtime) -> None:
    with runtime.stream("chat", steps(100_000), hints=hints(50_000)) as stream:
        next(stream)
    wait_until(lambda: nothing_held(runtime) and runtime.stats()["open"] == 0)
    with pytest.raises(Cancelled):
        stream.answer()
    assert runtime.infer("chat", steps(2))["steps"] == 2  # the lane is free again


def test_a_reader_that_stops_reading_has_its_request_cancelled() -> None:
    with Runtime(config_of(step="50us")) as runtime:
        stream = runtime.stream("chat", steps(90_000), hints=hints(60_000))
        wait_until(lambda: stream._future.done(), 30)
        with pytest.raises(Cancelled, match=f"left {PIECES_UNREAD_MAX} pieces"):
            numbers(stream)
        wait_until(lambda: nothing_held(runtime))


def test_a_batch_is_cut_for_another_app(runtime: Runtime) -> None:
    cut = []
    runtime.on_loop(
        lambda core: cut.append(
            core.world._perform.__setitem__(
                CutBatch, lambda action, real=core.world._perform[CutBatch]: (cut.append(action), real(action))
            )
        )
    )
    stream = runtime.stream("chat", steps(3000), hints=hints(3000))
    next(stream)
    began = time.monotonic()
    runtime.infer("voice", {"x": np.zeros(2, np.float32)})
    assert time.monotonic() - began < 6, "12 s of steps were in front"
    assert [type(action) for action in cut if action is not None] == [CutBatch]
    assert [next(stream)["step"] for _ in range(3)]
    stream.cancel()
    wait_until(lambda: nothing_held(runtime))


def test_an_input_that_never_fits_is_bad_input(runtime: Runtime) -> None:
    with pytest.raises(BadInput, match="leave no room in the context of 100000"):
        runtime.infer("chat", steps(2), hints={"tokens": 100_000})


def test_a_sequence_of_a_lost_lane_goes_on_where_its_last_piece_stood() -> None:
    live_engines.lose.clear()
    with Runtime(config_of(engine="live_engines:LosesLane", lane={"a": {}, "b": {}})) as runtime, runtime.stream(
        "chat", steps(30), hints=hints(30), timeout_ms=20_000
    ) as stream:
        next(stream)
        live_engines.lose.set()
        assert numbers(stream) == list(range(2, 31)) and stream.answer()["steps"] == 30
        assert sorted(lane["state"] for name, lane in runtime.stats()["lanes"].items() if name in "ab") == [
            "down",
            "up",
        ]


@pytest.mark.parametrize("on_late", ["drop", "partial", "answer"])
@pytest.mark.parametrize("in_pieces", [False, True])
def test_an_answer_that_has_not_begun_ends_with_its_last_lane(on_late: str, in_pieces: bool) -> None:
    live_engines.lose.clear()
    with Runtime(config_of(engine="live_engines:LosesLane")) as runtime:
        live_engines.lose.set()
        began = time.monotonic()
        with pytest.raises(Failed, match="no lane can run model 'lm' now"):
            if in_pieces:
                list(runtime.stream("chat", steps(30), hints=hints(30), on_late=on_late, timeout_ms=90_000))
            else:
                runtime.infer("chat", steps(30), hints=hints(30), on_late=on_late, timeout_ms=90_000)
        assert time.monotonic() - began < 45, "the app's deadline is 100 s"


# --- over the bus -----------------------------------------------------------------------------------------------------


def test_a_client_reads_pieces_while_others_ask(server: Runtime) -> None:
    with Client(server.endpoints[0]) as client:
        with client.stream("chat", steps(25), hints=hints(25)) as stream:
            assert int(next(stream)["step"]) == 1
            other = client.submit("chat", steps(2), hints=hints(2))
            assert numbers(stream) == list(range(2, 26))
            answer = stream.answer()
            assert answer["steps"] == 25 and answer.breakdown_ms["execute"] > 0
        assert other.result(20)["steps"] == 2


@pytest.mark.parametrize("goes", [True, False])
def test_a_client_that_goes_or_cancels_a_stream_stops_its_sequence(server: Runtime, goes: bool) -> None:
    with Client(server.endpoints[0]) as client:
        with client.stream("chat", steps(100_000), hints=hints(50_000)) as stream:
            next(stream)
            if goes:
                client.close()
        wait_until(lambda: nothing_held(server) and server.stats()["open"] == 0)


def test_a_request_that_fails_ends_its_stream_with_the_error(server: Runtime) -> None:
    with Client(server.endpoints[0]) as client, client.stream(
        "chat", steps(2), hints={"tokens": 10**6}
    ) as stream, pytest.raises(BadInput):
        list(stream)


def test_pieces_for_asyncio(server: Runtime) -> None:
    async def read() -> Any:
        async with AsyncClient(server.endpoints[0]) as client, client.stream(
            "chat", steps(9), hints=hints(9)
        ) as stream:
            seen = [int(piece["step"]) async for piece in stream]
            return seen, await stream.answer()

    seen, answer = asyncio.run(read())
    assert seen == list(range(1, 10)) and answer["steps"] == 9


class Telling(Engine):
    """A model of sequences that tells ``emits`` of each item, with the batch's control, before it returns."""

    makes_sequences = True

    def __init__(self, emits):
        self._emits = emits

    def load(self):
        return Footprint(1)

    def unload(self):
        pass

    def example(self):
        return {"x": 0}

    def sequence(self):
        return SequenceInfo(100, 10, 4)

    def run(self, batch):
        for index in range(len(batch.items)) if batch.control is not None else ():
            self._emits(batch.control, index)
        return [Result({"y": item["x"]}) for item in batch.items]


def served_by(emits):
    return Runtime(models={"m": Model(Telling(emits), batch=[1, 2])}, apps={"a": App("m", slo="20s")})


@pytest.mark.parametrize("index", [99, -1, "0", None, 1.0])
@pytest.mark.parametrize("done", [False, True])
def test_an_engine_that_tells_of_no_item_fails_its_batch_alone(index: Any, done: bool) -> None:
    with served_by(lambda control, _: control.emit(index, Result({"y": -1}, done=done))) as runtime:
        for _ in range(2):
            with pytest.raises(Failed, match="model 'm' speaks of item .* expected its place, from 0 to 0"):
                runtime.stream("a", {"x": 1}).answer()
        runtime.check()


def test_what_an_engine_tells_of_a_batch_that_is_over_changes_nothing() -> None:
    kept = []
    with served_by(lambda control, index: kept.append((control, index))) as runtime:
        for number in range(5):
            assert runtime.stream("a", {"x": number}).answer()["y"] == number
            for control, index in kept:
                control.emit(index, Result({"y": -1}, done=False))
                control.emit(index, Result({"y": -1}))
        assert runtime.stats()["open"] == 0
        runtime.check()
