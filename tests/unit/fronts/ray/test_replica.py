"""A replica embeds a runtime: deadlines count from sending, and every error travels as a value."""

from __future__ import annotations

import asyncio
import importlib
import pickle
import sys
import threading
import time
import types

import numpy as np
import pytest

from edgeserve.answers import PIECES_UNREAD_MAX, Answer
from edgeserve.config.loading import parse_config
from edgeserve.errors import (
    BadInput,
    Cancelled,
    DeadlineExpired,
    EdgeServeError,
    Rejected,
    ServerGone,
    TimedOut,
    UnknownApp,
)
from edgeserve.fronts.ray.calls import RayCall, RayReply, Stamp, boot_id
from edgeserve.fronts.ray.client import ClusterClient, answer_of, call_of
from edgeserve.fronts.ray.replica import Replica, outcome_of

SEQUENCE = {"slots": 4, "context_tokens": 100_000, "bytes_per_token": 10}
CONFIG = {
    "model": {
        "m": {"engine": "synthetic", "expected": {"1": "50ms"}},
        "lm": {
            "engine": "synthetic",
            "batch": [1, 2],
            "expected": {"1": "1ms", "2": "1ms"},
            "options": {"sequence": SEQUENCE},
        },
    },
    "app": {
        "chat": {"model": "lm", "slo": "20s"},
        "a": {"model": "m", "slo": "20s"},
        "late": {"model": "m", "slo": "10s", "on_late": "answer"},
    },
}


class Meters:
    def __init__(self):
        self.ends, self.opened = [], []

    def ended(self, *end):
        self.ends.append(end)

    def open(self, count):
        self.opened.append(count)


@pytest.fixture(scope="module")
def replica():
    made = Replica(parse_config(CONFIG), Meters())
    yield made
    made.close()
    with pytest.raises(EdgeServeError, match="has ended"):
        made.check_health()


def sent_ago(seconds):
    now = Stamp.now()
    return Stamp(now.boot, now.monotonic_ns - int(seconds * 1e9), now.wall_ns - int(seconds * 1e9))


def asked(replica, *call, **more):
    return asyncio.run(replica.infer(RayCall(*call, **more)))


def test_a_call_is_answered_and_counted(replica):
    reply = asked(replica, "a", {"x": np.zeros(2)})
    assert reply.answer.outcome == "completed" and reply.slo_ms == 20_000
    app, outcome, reason, late, total_ms = replica._meters.ends[-1]
    assert (app, outcome, reason, late) == ("a", "completed", "", False) and total_ms >= reply.answer.total_ms
    assert replica._meters.opened[-2:] == [1, 0]
    replica.check_health()


def test_the_way_has_cost_a_part_of_the_deadline(replica):
    reply = asked(replica, "a", {}, sent=sent_ago(19.99))  # of the app's 20 s: 50 ms do not fit in what is left
    assert reply.error is None or reply.error.code in ("rejected", "dropped", "deadline_expired")
    assert reply.answer is None or reply.answer.late
    gone = asked(replica, "a", {}, 30.0, sent=sent_ago(5))
    assert isinstance(gone.error, DeadlineExpired) and "reached a replica" in str(gone.error)
    assert "deadline_expired" in asyncio.run(replica.story(gone.error.id))[0]
    assert asked(replica, "late", {}, sent=sent_ago(60)).answer is not None, "its app wants late answers"


def test_what_is_wrong_with_a_request_comes_back_typed(replica):
    assert isinstance(asked(replica, "nobody", {}).error, UnknownApp)
    assert isinstance(asked(replica, "a", {}, options={"priority_class": "royal"}).error, BadInput)
    assert isinstance(asked(replica, "a", {}, "soon").error, BadInput)
    assert replica._meters.ends[-3][:3] == ("", "unknown_app", ""), "a client's word becomes no label"


def test_pieces_come_before_the_reply_and_who_stops_reading_cancels(replica):
    async def read(count):
        call = RayCall("chat", {"steps": np.int64(count)}, options={"hints": {"steps": float(count)}})
        items = replica.stream(call)
        got = []
        async for item in items:
            got.append(item)
            if count > 100:
                break
        await items.aclose()
        return got

    items = asyncio.run(read(9))
    assert len(items) > 2 and all(isinstance(item, dict) for item in items[:-1])
    assert items[-1].answer.outcome == "completed" and replica._meters.opened[-1] == 0
    asyncio.run(read(5000))
    due = time.monotonic() + 10
    while asyncio.run(replica.stats())["apps"]["chat"]["outcomes"]["cancelled"] != 1:
        assert time.monotonic() < due, "what nobody reads goes on"
    assert replica._meters.opened[-1] == 0
    refused = asyncio.run(_all(replica.stream(RayCall("chat", {}, -1.0))))
    assert isinstance(refused[0].error, DeadlineExpired)


async def _all(items):
    return [item async for item in items]


def test_the_outlook_says_what_a_request_could_expect(replica):
    outlook = asyncio.run(replica.outlook())["a"]
    assert outlook.slo_ms == 20_000
    assert 40 < outlook.expected_ms <= outlook.slo_ms_min < 20_000


def test_replies_survive_the_way():
    error = Rejected("app 'a': no", "cannot_make_deadline")
    error.id, error.slo_ms_min, error.lane = 7, 70.0, "gpu0"
    again = pickle.loads(pickle.dumps(RayReply(error=error, tried=("x",)))).error
    assert type(again) is Rejected and str(again) == str(error)
    assert (again.id, again.reason, again.slo_ms_min, again.lane) == (7, "cannot_make_deadline", 70.0, "gpu0")
    answer = pickle.loads(pickle.dumps(RayReply(Answer({"y": np.arange(3)}, total_ms=5.0, id=9)))).answer
    assert answer["y"].tolist() == [0, 1, 2] and answer.id == 9 and sum(answer.breakdown_ms.values()) == 5.0


def test_times_count_from_sending_to_the_client():
    call = RayCall("a", {}, 100.0, sent=sent_ago(0.25))
    answer = answer_of(RayReply(Answer({}, total_ms=5.0, breakdown_ms={"execute": 5.0}), slo_ms=100.0), call)
    assert answer.total_ms >= 250 and answer.late
    assert sum(answer.breakdown_ms.values()) == pytest.approx(answer.total_ms)
    with pytest.raises(Rejected):
        answer_of(RayReply(error=Rejected("no")), call)


def test_ages_are_exact_on_one_machine_and_never_negative_between_two():
    now = Stamp.now()
    if boot_id():
        assert Stamp(now.boot, now.monotonic_ns, now.wall_ns + 10**12).age_ms() < 60_000, "wall clocks do not count"
    assert Stamp("another machine", 0, now.wall_ns + 10**12).age_ms() == 0.0
    assert Stamp("another machine", 0, now.wall_ns - 2 * 10**9).age_ms() >= 2000
    assert boot_id("/no/such/file") == ""


def test_labels_are_bounded():
    assert outcome_of("a", RayReply(error=Rejected("x", "queue_full")), 1.0)[1:3] == ("rejected", "queue_full")
    assert outcome_of("a", RayReply(error=Rejected("x", "a client's words: " * 9)), 1.0)[1:3] == ("rejected", "other")


class FakePending:
    def __init__(self, end):
        self.end, self.cancelled = end, False

    def result(self, timeout_s=None):
        if isinstance(self.end, Exception):
            raise self.end
        return self.end

    def cancel(self):
        self.cancelled = True


class FakeFront:
    """The part of a deployment's handle that the client uses."""

    def __init__(self, end):
        self.pending = FakePending(end)
        self.infer, self.calls = self, []

    def remote(self, call):
        self.calls.append(call)
        return self.pending


def test_the_client_asks_with_the_arguments_of_a_runtime():
    front = FakeFront(RayReply(Answer({"y": 1})))
    assert ClusterClient(front).infer("a", {"x": 1}, slo_ms=50, priority_class="critical", stream="s")["y"] == 1
    (call,) = front.calls
    assert (call.app, call.inputs, call.slo_ms) == ("a", {"x": 1}, 50)
    assert call.options == {"priority_class": "critical", "stream": "s"}
    assert call_of("a", {}, {"value": 2, "hints": None}).options == {"value": 2}
    with pytest.raises(TypeError, match="'slo' is no option of a request; did you mean 'slo_ms'"):
        ClusterClient(front).infer("a", {}, slo=50)


def test_a_client_that_waits_no_longer_cancels():
    front = FakeFront(TimeoutError())
    with pytest.raises(TimedOut, match="timeout_ms = 5"):
        ClusterClient(front).infer("a", {}, timeout_ms=5)
    assert front.pending.cancelled


def test_a_lost_dispatcher_is_a_typed_error_and_a_fault_is_none():
    with pytest.raises(EdgeServeError, match="did not reply: OSError"):
        ClusterClient(FakeFront(OSError("gone")), (OSError,)).infer("a", {})
    with pytest.raises(ZeroDivisionError):
        ClusterClient(FakeFront(ZeroDivisionError()), (OSError,)).infer("a", {})


class LostHandle:
    """A deployment's handle of which each call fails with ``error``: as it is sent, or when its end is awaited."""

    def __init__(self, error, at_once):
        self.error, self.at_once = error, at_once

    def options(self, **_):
        return self

    def __getattr__(self, name):
        return self

    def remote(self, *_):
        if self.at_once:
            raise self.error
        return self

    def result(self, timeout_s=None):
        raise self.error

    __iter__ = __await__ = __aiter__ = result


QUESTIONS = {
    "infer": lambda client: client.infer("a", {}),
    "infer_async": lambda client: asyncio.run(client.infer_async("a", {})),
    "reply": lambda client: client.reply(RayCall("a", {})),
    "stats": lambda client: client.stats(),
    "story": lambda client: client.story("a", 1),
    "stream": lambda client: list(client.stream("a", {})),
    "stream_async": lambda client: asyncio.run(_first(client)),
}


async def _first(client):
    async for piece in client.stream_async("a", {}):
        return piece


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("name", [name for name in dir(ClusterClient) if not name.startswith("_")])
def test_no_method_of_the_client_raises_rays_own_errors(name, at_once):
    with pytest.raises(ServerGone, match="did not reply: OSError: gone"):
        QUESTIONS[name](ClusterClient(LostHandle(OSError("gone"), at_once), (OSError,)))


def test_connecting_to_what_does_not_run_is_a_typed_error(monkeypatch):
    """With a module of Ray's names: Ray itself is not installed everywhere."""

    class RayError(Exception):
        pass

    def get_app_handle(name):
        raise RayError("no such application")

    serve, names = types.ModuleType("ray.serve"), {"ray": {}, "ray.exceptions": {"RayError": RayError}}
    serve.get_app_handle = get_app_handle
    names.update({"ray.serve.metrics": {}, "ray.serve.exceptions": {"RayServeException": RayError}})
    for name, values in {**names, "ray.serve": vars(serve)}.items():
        module = types.ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    for outer, inner in (("ray", "exceptions"), ("ray", "serve"), ("ray.serve", "metrics")):
        setattr(sys.modules[outer], inner, sys.modules[f"{outer}.{inner}"])
    monkeypatch.setitem(sys.modules, "edgeserve.fronts.ray.deployment", None)  # goes with the rest
    del sys.modules["edgeserve.fronts.ray.deployment"]
    deployment = importlib.import_module("edgeserve.fronts.ray.deployment")
    with pytest.raises(ServerGone, match="nothing runs on this cluster as 'robots': no such application"):
        deployment.connect("robots")


class FakeStream:
    """The part of a streaming handle that the client uses: ``items`` come, then it waits when ``stuck``."""

    def __init__(self, *items, stuck=False):
        self.coming, self.stuck, self.cancelled = list(items), stuck, threading.Event()
        self.stream = self

    def options(self, stream):
        assert stream
        return self

    def remote(self, call):
        self.call = call
        return self

    def cancel(self):
        self.cancelled.set()

    def __iter__(self):
        self.cancelled.clear()
        for item in self.coming:
            if isinstance(item, Exception):
                raise item
            yield item
        if self.stuck:
            self.cancelled.wait(20)

    async def __aiter__(self):
        self.cancelled.clear()
        for item in self.coming:
            if isinstance(item, Exception):
                raise item
            yield item
        while self.stuck and not self.cancelled.is_set():
            await asyncio.sleep(0)


def both_ways(stream, lost=(), **options):
    """Pieces and answer, or the error, of the client's two ways to ask; they are the same."""
    client = ClusterClient(stream, lost)

    def plainly():
        with client.stream("a", {}, **options) as pieces:
            return list(pieces), pieces.answer()

    async def awaited():
        async with client.stream_async("a", {}, **options) as pieces:
            return [piece async for piece in pieces], await pieces.answer()

    ends = []
    for way in (plainly, lambda: asyncio.run(awaited())):
        try:
            ends.append(way())
        except Exception as error:  # noqa: BLE001 the tests look at it
            ends.append(error)
    return ends


def test_the_client_reads_pieces_and_then_the_answer():
    for got, answer in both_ways(FakeStream({"t": 1}, {"t": 2}, RayReply(Answer({"y": 3}, total_ms=5.0)))):
        assert got == [{"t": 1}, {"t": 2}] and answer["y"] == 3 and answer.total_ms >= 5.0


def test_the_end_of_an_answer_in_pieces_is_typed_whatever_it_was():
    for error in both_ways(FakeStream({"t": 1}, RayReply(error=Rejected("no", "queue_full")))):
        assert isinstance(error, Rejected) and error.reason == "queue_full"
    for error in both_ways(FakeStream({"t": 1}, KeyError("gone")), lost=(KeyError,)):
        assert isinstance(error, ServerGone) and "did not reply" in str(error)
    for error in both_ways(FakeStream({"t": 1})):
        assert isinstance(error, ServerGone) and "without a reply" in str(error)
    stream = FakeStream({"t": 1}, stuck=True)
    for error in both_ways(stream, timeout_ms=30):
        assert isinstance(error, TimedOut) and stream.cancelled.is_set()


def test_pieces_that_nobody_reads_cancel_the_request():
    stream = FakeStream(*[{"t": 1}] * (PIECES_UNREAD_MAX + 2), stuck=True)
    pieces = ClusterClient(stream).stream("a", {})
    assert stream.cancelled.wait(20)
    with pytest.raises(Cancelled, match="unread"):
        pieces.answer()
