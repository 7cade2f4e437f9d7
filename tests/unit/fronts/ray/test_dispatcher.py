"""Which replica gets a call, and what happens when one refuses or dies: with made-up replicas, without Ray."""

from __future__ import annotations

import asyncio

import pytest

from edgeserve.answers import Answer
from edgeserve.errors import BadInput, Dropped, Rejected, ServerGone
from edgeserve.fronts.ray.calls import Outlook, RayCall, RayReply, Stamp
from edgeserve.fronts.ray.dispatcher import Dispatcher, spare


class Died(Exception):
    """The error of these handles when their replica is gone."""


class FakeHandle:
    """A replica that replies as ``ends`` says (an error, a callable that is awaited, or an answer)."""

    def __init__(self, name, ends=None, expected_ms=10.0, slo_ms_min=10.0, pieces=0):
        self.name, self.ends, self.calls = name, ends, []
        self.pieces, self.dies_after, self.sent, self.closed = pieces, None, 0, False
        self.outlooks = {"a": Outlook(1000.0, expected_ms, slo_ms_min)}
        self.dead = False
        self.asked_for_outlook = 0

    async def infer(self, call):
        self.calls.append(call)
        if self.dead:
            raise Died
        if callable(self.ends):
            await self.ends()
        elif self.ends is not None:
            return RayReply(error=self.ends)
        return RayReply(answer=Answer({"from": self.name}))

    async def stream(self, call):
        try:
            for number in range(self.pieces):
                if self.dies_after == number:
                    raise Died
                self.sent += 1
                yield {"piece": number}
            if self.dies_after is not None:
                raise Died
            yield await self.infer(call)
        finally:
            self.closed = True

    async def stats(self):
        if self.dead:
            raise Died
        return {"name": self.name}

    async def story(self, request_id):
        if self.dead:
            raise Died
        return [f"request {request_id} at {self.name}"]

    async def outlook(self):
        self.asked_for_outlook += 1
        if self.dead:
            raise Died
        return self.outlooks


def dispatched(scenario, *handles):
    """Run ``scenario(dispatcher, retries)`` on a loop of its own, all replicas up."""
    retries = []

    async def whole():
        dispatcher = Dispatcher(
            {handle.name: handle for handle in handles}, (Died,), lambda *said: retries.append(said)
        )
        await dispatcher.start()
        while not all(row["up"] for row in dispatcher.table().values()):
            await asyncio.sleep(0)
        try:
            return await asyncio.wait_for(scenario(dispatcher), 30)
        finally:
            dispatcher.close()

    return asyncio.run(whole()), retries


def one(*handles, **call):
    return dispatched(lambda dispatcher: dispatcher.infer(RayCall("a", {}, **call)), *handles)


REFUSED = Rejected("no", "cannot_make_deadline")


def test_a_call_goes_to_the_replica_that_would_end_it_first():
    reply, retries = one(FakeHandle("slow", expected_ms=30.0), FakeHandle("fast", expected_ms=10.0))
    assert reply.answer["from"] == "fast" and reply.tried == ("fast",) and retries == []


def test_calls_in_flight_count_by_their_expected_time():
    gate = asyncio.Event

    async def scenario(dispatcher):
        waiting = gate()
        for handle in (slow, fast):
            handle.ends = waiting.wait
        calls = [asyncio.ensure_future(dispatcher.infer(RayCall("a", {}))) for _ in range(8)]
        while len(slow.calls) + len(fast.calls) < 8:
            await asyncio.sleep(0)
        waiting.set()
        await asyncio.gather(*calls)

    slow, fast = FakeHandle("slow", expected_ms=30.0), FakeHandle("fast", expected_ms=10.0)
    dispatched(scenario, slow, fast)
    assert (len(fast.calls), len(slow.calls)) == (6, 2)


def test_a_refused_call_is_tried_once_on_the_replica_that_says_it_could_make_it():
    first, other, third = FakeHandle("a", REFUSED, 1.0), FakeHandle("b", slo_ms_min=5000.0), FakeHandle("c")
    reply, retries = one(first, other, third, slo_ms=1000.0)
    assert reply.answer["from"] == "c" and reply.tried == ("a", "c")
    assert retries == [("a", "c", "cannot_make_deadline")] and other.calls == []
    assert third.calls[0] is first.calls[0], "the call keeps its deadline and its stamp"


def test_a_second_refusal_is_the_end():
    handles = [
        FakeHandle("a", REFUSED, 1.0),
        FakeHandle("b", Rejected("full", "queue_full")),
        FakeHandle("c", slo_ms_min=20.0),
    ]
    reply, _ = one(*handles)
    assert reply.error.reason == "queue_full" and reply.tried == ("a", "b") and handles[2].calls == []


def test_a_refusal_stands_where_nobody_could_make_it():
    other = FakeHandle("b", slo_ms_min=200.0)
    reply, retries = one(FakeHandle("a", REFUSED, 1.0), other, slo_ms=100.0)
    assert reply.error is REFUSED and retries == [] and other.calls == []


@pytest.mark.parametrize(
    "error", [BadInput("x is missing"), Dropped("newer", "superseded"), Dropped("late", "expired")]
)
def test_what_would_end_the_same_elsewhere_is_not_tried_there(error):
    other = FakeHandle("b")
    reply, _ = one(FakeHandle("a", error, 1.0), other)
    assert reply.error is error and other.calls == []


def test_the_calls_of_a_replica_that_died_are_answered_by_another():
    async def scenario(dispatcher):
        stuck = asyncio.Event()
        a.ends = stuck.wait
        early = [asyncio.ensure_future(dispatcher.infer(RayCall("a", {}))) for _ in range(5)]
        while len(a.calls) < 5:  # it has five calls when it dies, and only the last one is told
            await asyncio.sleep(0)
        a.dead = True
        late = await dispatcher.infer(RayCall("a", {}))
        table = dispatcher.table()
        replies = await asyncio.gather(*early)
        return [late, *replies], table

    a, b = FakeHandle("a", expected_ms=0.001), FakeHandle("b")
    (replies, table), retries = dispatched(scenario, a, b)
    assert [reply.answer["from"] for reply in replies] == ["b"] * 6
    assert not table["a"]["up"] and table["b"]["up"]
    assert retries == [("a", "b", "lost")] * 6


def test_a_replica_that_comes_back_gets_calls_again(monkeypatch):
    monkeypatch.setattr("edgeserve.fronts.ray.dispatcher.AGAIN_S", 0.0)

    async def scenario(dispatcher):
        a.dead = True
        first = await dispatcher.infer(RayCall("a", {}))
        asked = a.asked_for_outlook
        while a.asked_for_outlook < asked + 3:
            await asyncio.sleep(0)
        assert not dispatcher.table()["a"]["up"]
        a.dead = False
        while not dispatcher.table()["a"]["up"]:
            await asyncio.sleep(0)
        return first, await dispatcher.infer(RayCall("a", {})), dispatcher.table()

    a, b = FakeHandle("a", expected_ms=1.0), FakeHandle("b")
    (first, second, table), _ = dispatched(scenario, a, b)
    assert (first.answer["from"], second.answer["from"]) == ("b", "a") and table["a"]["returns"] == 1


def test_a_replica_that_says_nothing_any_more_counts_as_lost(monkeypatch):
    monkeypatch.setattr("edgeserve.fronts.ray.dispatcher.SILENT_S_MAX", 0.05)
    monkeypatch.setattr("edgeserve.fronts.ray.dispatcher.OUTLOOK_S", 0.0)

    async def scenario(dispatcher):
        a.outlook = a.ends = asyncio.Event().wait  # its process has ended, and calls are held back without an error
        return await dispatcher.infer(RayCall("a", {})), dispatcher.table()

    a, b = FakeHandle("a", expected_ms=1.0), FakeHandle("b")
    (reply, table), retries = dispatched(scenario, a, b)
    assert reply.answer["from"] == "b" and not table["a"]["up"] and retries == [("a", "b", "lost")]


def test_a_lost_call_that_nobody_else_can_make_ends_with_a_typed_error():
    async def scenario(dispatcher):
        a.dead = True
        return await dispatcher.infer(RayCall("a", {})), await dispatcher.infer(RayCall("a", {}))

    a = FakeHandle("a")
    (lost, nobody), _ = dispatched(scenario, a)
    assert isinstance(lost.error, ServerGone) and "'a' was lost" in str(lost.error)
    assert isinstance(nobody.error, ServerGone) and "no replica" in str(nobody.error)


def test_a_stream_stays_where_its_state_is_and_moves_when_that_is_lost():
    async def scenario(dispatcher):
        stream = [await dispatcher.infer(call()) for _ in range(3)]
        fast.outlooks = {"a": Outlook(1000.0, 0.001, 0.001)}  # another would be quicker now
        stream.append(await dispatcher.infer(call()))
        refused = slow.ends = REFUSED
        stream.append(await dispatcher.infer(call()))
        assert stream[-1].error is refused and not fast.calls
        slow.dead = True
        return [*stream[:4], await dispatcher.infer(call()), await dispatcher.infer(call())]

    def call():
        return RayCall("a", {}, options={"stream": "s"})

    slow, fast = FakeHandle("first", expected_ms=1.0), FakeHandle("second", expected_ms=10.0)
    replies, _ = dispatched(scenario, slow, fast)
    assert [reply.answer["from"] for reply in replies] == ["first"] * 4 + ["second"] * 2


def test_an_app_that_nobody_knows_is_any_replicas_to_refuse():
    wrong = BadInput("unknown app")
    handle = FakeHandle("a", wrong)
    reply, _ = dispatched(lambda dispatcher: dispatcher.infer(RayCall("nobody", {})), handle)
    assert reply.error is wrong


def test_faults_are_not_taken_for_lost_replicas():
    async def fault():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        one(FakeHandle("a", fault), FakeHandle("b"))


def test_cancelling_the_asker_cancels_the_call_at_the_replica():
    cancelled = []

    async def stuck():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def scenario(dispatcher):
        asked = asyncio.ensure_future(dispatcher.infer(RayCall("a", {})))
        while not handle.calls:
            await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        while not cancelled:
            await asyncio.sleep(0)
        return dispatcher.table()["a"]["in_flight"]

    handle = FakeHandle("a", stuck)
    assert dispatched(scenario, handle)[0] == 0


def test_spare_time_counts_what_the_way_has_cost_already():
    sent = Stamp.now()
    old = Stamp(sent.boot, sent.monotonic_ns - 500_000_000, sent.wall_ns - 500_000_000)
    outlook = Outlook(1000.0, 10.0, 20.0)
    assert 400 < spare(outlook, RayCall("a", {}, sent=old)) <= 480
    assert 300 < spare(outlook, RayCall("a", {}, 1000.0, sent=old)) <= 480
    assert spare(outlook, RayCall("a", {}, 10.0, {"on_late": "answer"}, old)) == 0.0
    assert spare(None, RayCall("a", {})) is None and spare(Outlook(1000.0), RayCall("a", {})) is None


# --- faults of the question -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["raises", "says nothing readable"])
def test_a_fault_of_the_question_ends_no_watch_and_the_replica_comes_back(monkeypatch, caplog, fault):
    monkeypatch.setattr("edgeserve.fronts.ray.dispatcher.OUTLOOK_S", 0.0)
    monkeypatch.setattr("edgeserve.fronts.ray.dispatcher.AGAIN_S", 0.0)
    arrived = False

    async def broken():
        a.asked_for_outlook += 1
        if fault == "raises":
            raise ZeroDivisionError("a fault of the handle")
        return 7

    async def stuck():
        nonlocal arrived
        arrived = True
        await asyncio.Event().wait()

    async def scenario(dispatcher):
        a.ends = stuck
        asked = asyncio.ensure_future(dispatcher.infer(RayCall("a", {})))
        while not arrived:
            await asyncio.sleep(0)
        whole, a.outlook = a.outlook, broken
        moved = await asked  # what it had is tried elsewhere
        before = a.asked_for_outlook
        while a.asked_for_outlook < before + 3:
            await asyncio.sleep(0)
        assert not dispatcher.table()["a"]["up"]
        a.outlook, a.ends = whole, None
        while not dispatcher.table()["a"]["up"]:
            await asyncio.sleep(0)
        return moved, await dispatcher.infer(RayCall("a", {}))

    a, b = FakeHandle("a", expected_ms=1.0), FakeHandle("b")
    (moved, again), retries = dispatched(scenario, a, b)
    assert (moved.answer["from"], again.answer["from"]) == ("b", "a") and retries == [("a", "b", "lost")]
    told = [record for record in caplog.records if "what it expects failed" in record.message]
    assert len(told) == 1 and told[0].exc_info, "once in a row, with its traceback"


def test_a_fault_while_choosing_elsewhere_ends_no_call():
    async def broken():
        raise ZeroDivisionError

    async def scenario(dispatcher):
        b.outlook = broken
        return await dispatcher.infer(RayCall("a", {}))

    a, b = FakeHandle("a", REFUSED, expected_ms=1.0), FakeHandle("b")
    reply, retries = dispatched(scenario, a, b)
    assert reply.error is REFUSED and not retries


def test_the_first_requests_all_wait_for_the_first_replica():
    async def whole():
        handle = FakeHandle("a")
        dispatcher = Dispatcher({"a": handle}, (Died,))

        async def ask():
            await dispatcher.start()
            return await dispatcher.infer(RayCall("a", {}))

        try:
            replies = await asyncio.gather(ask(), ask())
            return [reply.answer for reply in replies], len(dispatcher._watchers)
        finally:
            dispatcher.close()

    answers, watchers = asyncio.run(whole())
    assert all(answers) and watchers == 1


# --- answers in pieces ------------------------------------------------------------------------------------------------


def pieces(*handles, **call):
    async def scenario(dispatcher):
        return [item async for item in dispatcher.stream(RayCall("a", {}, **call))]

    return dispatched(scenario, *handles)


def test_pieces_come_through_and_the_reply_is_last():
    a = FakeHandle("a", pieces=3)
    items, _ = pieces(a)
    assert items[:3] == [{"piece": 0}, {"piece": 1}, {"piece": 2}]
    assert items[3].answer["from"] == "a" and items[3].tried == ("a",)


@pytest.mark.parametrize("how", ["refused", "lost"])
def test_before_the_first_piece_another_replica_is_tried(how):
    a, b = FakeHandle("a", REFUSED if how == "refused" else None, expected_ms=1.0), FakeHandle("b", pieces=1)
    a.dies_after = 0 if how == "lost" else None
    items, retries = pieces(a, b)
    assert items[0] == {"piece": 0} and items[1].tried == ("a", "b")
    assert retries == [("a", "b", "lost" if how == "lost" else "cannot_make_deadline")]


def test_after_the_first_piece_a_lost_replica_ends_the_answer():
    a, b = FakeHandle("a", expected_ms=1.0, pieces=3), FakeHandle("b", pieces=3)
    a.dies_after = 2
    items, retries = pieces(a, b)
    assert items[:-1] == [{"piece": 0}, {"piece": 1}] and isinstance(items[-1].error, ServerGone) and not retries


def test_who_stops_reading_ends_the_work():
    async def scenario(dispatcher):
        items = dispatcher.stream(RayCall("a", {}))
        first = await items.__anext__()
        await items.aclose()
        return first, dispatcher.table()["a"]["in_flight"]

    a = FakeHandle("a", pieces=10**6)
    (first, in_flight), _ = dispatched(scenario, a)
    assert first == {"piece": 0} and in_flight == 0 and a.closed and a.sent < 10


def test_pieces_of_nobody_end_with_a_typed_error():
    async def scenario(dispatcher):
        a.dead = True
        await dispatcher.infer(RayCall("a", {}))
        return [item async for item in dispatcher.stream(RayCall("a", {}))]

    a = FakeHandle("a")
    (only,), _ = dispatched(scenario, a)
    assert isinstance(only.error, ServerGone)


def test_statistics_and_stories_go_on_without_a_replica_that_is_gone():
    async def scenario(dispatcher):
        assert await dispatcher.story("a", 7) == ["request 7 at a"]
        first.dead = True
        stats = await dispatcher.stats()
        assert stats["replicas"] == {"b": {"name": "b"}} and not stats["dispatcher"]["a"]["up"]
        assert await dispatcher.story("b", 8) == ["request 8 at b"]
        return [await dispatcher.story(name, 7) for name in ("a", "nobody", None)]

    first = FakeHandle("a")
    gone, unknown, none = dispatched(scenario, first, FakeHandle("b"))[0]
    assert isinstance(gone, ServerGone) and "replica 'a'" in str(gone)
    assert isinstance(unknown, BadInput) and str(unknown).endswith("no replica 'nobody' (known: a, b)")
    assert isinstance(none, BadInput)
