"""The text of a sequence is never thrown away: how a request ends whose sequence may write no more."""

from __future__ import annotations

import pytest
from hand_world import Driver, ended, like
from scenarios import product_first

from edgeserve.live.why import story_of
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.protocol.actions import DropState, FinishRequest, KeepWritten, RunBatch
from edgeserve.sched.protocol.events import DrainRequested, JobId, RequestCancelled

FACTS = (100, 10, 8)
LM = {1: 10, 2: 10, 4: 10, 8: 10, "state_memory": "1MB"}
CHAT = {"model": "lm", "slo": "200ms", "on_late": "partial"}
SPEAK = {"on_late": "partial", "slo": "200ms", "node": [{"name": "lm"}, {"name": "tts"}]}
KEPT = like(KeepWritten, job=JobId(1, "lm", ()))


def lm(policy="fifo", app=CHAT, models=None, lanes=None, **keys):
    """A model of sequences, 10 ms a step."""
    sections = {} if lanes is None else {"lane": lanes}
    return Driver({"lm": LM, **(models or {})}, {"chat": {**app, **keys}}, policy, sequences={"lm": FACTS}, **sections)


def begun(steps=50, **keys):
    """A request whose sequence runs and has written something."""
    world = lm(**keys)
    world.arrive("chat", hints={"steps": steps, "tokens": 10})
    assert world.begin(1, at=20) == []
    return world


def cut(request_id=1, why="expired", **fields):
    return like(FinishRequest, request_id=request_id, outcome="completed", cut=why, **fields)


# --- the deadline -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", product_first(sorted(POLICIES)))
def test_a_sequence_that_runs_ends_at_its_deadline_with_what_it_has_written(policy):
    world = begun(12, policy=policy)  # of 120 ms: the model turns out slower than every policy believes
    assert world.pass_time(199) == []
    assert world.step(at=200) == [KEPT, cut()]
    assert world.finish(at=210, steps=19) == [like(DropState)]
    world.over()


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"idle"}))
def test_one_that_waits_between_two_batches_does_so_too(policy):
    world = begun(50, policy=policy, slo="1s")
    world.finish(at=900, status="unfinished", steps=80, state_bytes=900)
    assert world.on_lane, "it goes on"
    world.refuse(at=960)
    world.pass_time(1000)
    assert world.outcome(1) == "completed" and world.ends[1].cut
    assert KEPT in world.seen
    if world.on_lane:
        world.finish(at=1010, steps=1)
    world.over()


def test_its_state_is_dropped_after_what_it_has_written_was_kept():
    world = begun(slo="100ms", lanes={"l": {"ahead": "0ms"}})
    world.finish(at=100, status="unfinished", steps=7, state_bytes=170)
    assert [type(action) for action in world.actions] == [KeepWritten, DropState, FinishRequest]
    world.over()


def test_one_that_has_written_nothing_is_dropped_as_any_other_request():
    world = lm()
    world.arrive("chat", hints={"steps": 50, "tokens": 10})
    assert world.pass_time(250) == []
    assert world.finish(at=260, status="unfinished", steps=1) == [like(DropState), ended(1, "dropped", "expired")]
    world.over()


def test_the_first_token_after_the_deadline_is_kept_too():
    world = lm()
    world.arrive("chat", hints={"steps": 50, "tokens": 10})
    world.pass_time(250)
    assert world.begin(1, at=260) == [KEPT, cut()]
    world.finish(at=270, steps=2)
    world.over()


def test_a_whole_answer_in_time_is_not_cut():
    world = begun(10)
    assert world.finish(at=150, steps=10) == [like(DropState), like(FinishRequest, outcome="completed", cut="")]
    world.over()


def test_answer_goes_on_and_drop_drops():
    world = begun(on_late="answer")
    assert world.pass_time(400) == []
    assert world.finish(at=500, steps=50)[-1] == like(FinishRequest, outcome="completed", cut="")
    world.over()
    world = lm(on_late="drop")
    world.arrive("chat", hints={"steps": 50, "tokens": 10})
    world.finish(at=210, status="unfinished", steps=19, state_bytes=100)
    assert world.outcome(1) == "dropped"
    world.over()


def test_the_time_of_an_answer_that_was_cut_counts_as_its_own():
    world = begun()
    world.pass_time(200)
    assert world.ends[1].breakdown.execute_ns == 200_000_000
    world.finish(at=210, steps=19)


def test_what_was_cut_teaches_no_length():
    world = begun(12, policy="plan")
    world.pass_time(200)
    world.finish(at=210, steps=19)
    (lengths,) = world.scheduler.policies[0].figures()["lengths"].values()
    assert lengths["answers"] == 0


def test_the_others_of_the_batch_go_on():
    world = lm(slo="10s")
    world.arrive("chat", slo=200, hints={"steps": 50, "tokens": 10})
    world.finish(at=10, status="unfinished", steps=1, state_bytes=110)
    world.arrive("chat", hints={"steps": 50, "tokens": 10})
    if len(world.work().jobs) == 1:
        world.finish(at=20, status="unfinished", steps=1, state_bytes=110)
    assert len(world.work().jobs) == 2
    world.begin(1, 2, at=50)
    world.pass_time(200)
    assert world.ends[1].cut and 2 not in world.ends
    world.finish(at=600, steps=50)
    assert world.outcome(2) == "completed" and not world.ends[2].cut
    world.over()


# --- what else ends an answer -----------------------------------------------------------------------------------------


def test_a_batch_that_fails_leaves_what_its_sequences_had_written():
    world = begun()
    assert world.finish(at=50, status="failed", reason="the engine raised") == [
        KEPT,
        like(DropState),
        cut(why="the engine raised"),
    ]
    world.over()


def test_a_lane_that_hangs_does_so_too():
    world = begun(5, lanes={"l": {"hang": "50ms"}}, on_late="answer")
    world.pass_time(400)
    assert world.outcome(1) == "completed" and "hangs" in world.ends[1].cut
    world.finish(at=500, steps=5)
    world.over()


def test_a_lost_lane_lets_it_go_on_elsewhere_and_where_there_is_none_it_ends_at_its_deadline():
    two = {"a": {}, "b": {}}
    world = begun(15, lanes=two)
    lane = world.work().lane
    world.lane(lane, up=False, at=30)
    assert world.work().lane != lane
    world.pass_time(200)
    assert world.ends[1].cut == "expired"
    world.finish(at=210, steps=3)
    world.over()
    world = begun(15, lanes={"a": {}})
    world.lane("a", up=False, at=30)
    world.pass_time(200)
    assert world.ends[1].cut == "expired"
    world.over()


def test_where_no_lane_is_left_for_an_answer_that_would_be_late_it_ends_at_once():
    world = begun(15, lanes={"a": {}}, on_late="answer")
    world.lane("a", up=False, at=30)
    assert world.outcome(1) == "completed" and "no lane" in world.ends[1].cut
    world.over()


def test_a_sequence_that_outgrows_its_memory_ends_as_it_is():
    world = begun(8, slo="10s", models={"lm": {**LM, "state_memory": "200B"}})
    world.finish(at=80, status="unfinished", steps=10, state_bytes=200)
    assert world.outcome(1) == "completed" and "state_memory_exhausted" in world.ends[1].cut
    world.over()


def test_what_was_begun_is_not_what_makes_room_for_others():
    world = begun(50, pending_max=1, slo="10s")
    world.finish(at=100, status="unfinished", steps=5, state_bytes=150)
    world.refuse(at=110)
    world.arrive("chat", at=111, client="other", hints={"steps": 1, "tokens": 1})
    assert world.outcome(1) in ("", "completed") and (not world.outcome(1) or world.ends[1].cut)


def test_a_stop_ends_it_with_what_it_has_written_and_its_client_with_nothing():
    world = begun(slo="10s")
    world.step(DrainRequested(), at=50)
    assert world.step(RequestCancelled(1, "the server is shutting down", keeps=True), at=60) == [
        KEPT,
        cut(why="the server is shutting down"),
    ]
    world.finish(at=70, steps=6)
    world.over()
    world = begun(slo="10s")
    assert world.cancel(1, at=60) == [ended(1, "cancelled")]
    world.finish(at=70, steps=6)
    world.over()


def test_a_stop_cancels_what_has_written_nothing():
    world = lm()
    world.arrive("chat", hints={"steps": 50, "tokens": 10})
    assert world.step(RequestCancelled(1, "stop", keeps=True), at=60) == [ended(1, "cancelled", "stop")]
    world.finish(at=70, steps=6)
    world.over()


@pytest.mark.parametrize("last", ["lm", "tts"])
def test_where_other_models_were_before_it_a_stop_ends_it_the_same_way(last):
    first = "tts" if last == "lm" else "lm"
    app = {"node": [{"name": first, "model": first}, {"name": last, "model": last}], "slo": "10s", "on_late": "answer"}
    world = lm(app=app, models={"tts": {1: 40}})
    world.arrive("chat", hints={"lm.steps": 50, "lm.tokens": 10})
    if last == "lm":
        world.finish(at=40)
    world.begin(1, at=60)
    ends = world.step(RequestCancelled(1, "stop", keeps=True), at=70)
    assert ends[-1].outcome == ("completed" if last == "lm" else "cancelled") and bool(ends[-1].cut) is (last == "lm")
    world.finish(at=80, steps=6)
    world.over()


# --- models behind it -------------------------------------------------------------------------------------------------


def test_what_follows_a_sequence_gets_the_rest_of_the_time():
    world = begun(15, app=SPEAK, models={"tts": {1: 40}})
    world.pass_time(199)
    kept_at = [action for action in world.seen if type(action) is KeepWritten]
    assert kept_at == [KEPT] and not world.ends
    (spoken,) = [work for work in world.on_lane.values() if work.model == "tts"] or [None]
    if spoken is None:  # one lane: it comes when the batch has ended
        world.finish(at=165, steps=14)
    work = world.work()
    assert work.model == "tts"
    world.finish(at=max(world.now_ms, 199))
    assert world.ends[1].outcome == "completed" and world.ends[1].cut == "expired"
    world.over()


def test_and_runs_late_where_the_time_is_over():
    world = begun(15, app=SPEAK, models={"tts": {1: 40}})
    world.pass_time(320)
    world.finish(at=321, steps=30)
    assert world.work().model == "tts" and 1 not in world.ends
    world.finish(at=400)
    assert world.ends[1].outcome == "completed" and world.ends[1].cut
    world.over()


def test_a_whole_text_is_not_lost_to_what_follows_it_either():
    world = begun(5, app=SPEAK, models={"tts": {1: 40}})
    world.finish(at=190, steps=5)  # not enough is left of the time for what follows
    world.pass_time(260)
    assert not world.ends and world.work().model == "tts"
    world.finish(at=261)
    assert world.ends[1].outcome == "completed"
    world.over()


def test_two_models_that_write_for_a_join():
    app = {
        "on_late": "partial",
        "slo": "200ms",
        "node": [
            {"name": "one", "model": "lm", "after": []},
            {"name": "two", "model": "lm", "after": []},
            {"name": "join", "model": "tts", "after": ["one", "two"]},
        ],
    }
    world = lm(app=app, models={"tts": {1: 10}}, lanes={"a": {}, "b": {}})
    world.arrive("chat", hints={"one.steps": 15, "two.steps": 15})
    world.begin(1, lane=world.work("a").lane, at=20)
    world.pass_time(400)
    for lane in ("a", "b"):
        if any(work.lane == lane for work in world.on_lane.values()):
            world.finish(lane, at=401, steps=3)
    world.pass_time(500)
    while world.on_lane:
        world.finish(next(iter(world.on_lane.values())).lane, at=world.now_ms + 1)
    assert world.ends[1].outcome == "completed" and world.ends[1].cut == "expired"
    world.over()


def test_a_fan_out_that_writes_has_no_parts_before_it_is_whole():
    node = [{"name": "lm", "fan_out": True}, {"name": "tts"}, {"name": "end", "model": "tts", "gather": True}]
    world = lm(app={**SPEAK, "node": node}, models={"tts": {1: 10}})
    world.arrive("chat", hints={"lm.steps": 15})
    world.begin(1, at=20)
    world.pass_time(400)
    world.finish(at=410, status="unfinished", steps=3)
    assert world.outcome(1) == "dropped"
    world.over()


def test_a_batch_is_not_launched_for_what_has_ended():
    world = begun(slo="100ms")
    world.finish(at=100, status="unfinished", steps=7, state_bytes=170)
    assert not [action for action in world.actions if type(action) is RunBatch]


# --- what its story says ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_late", ["drop", "partial"])
def test_a_story_counts_steps_as_running_time(on_late):
    world = lm(on_late=on_late)
    world.arrive("chat", hints={"steps": 50, "tokens": 10})
    if on_late == "partial":
        world.begin(1, at=20)
    world.finish(at=120, status="unfinished", steps=10, state_bytes=110)
    assert world.on_lane, "it goes on at once"
    world.pass_time(210)
    if world.on_lane:
        world.finish(at=210, status="unfinished", steps=8, state_bytes=190)
    (told,) = [line for line in story_of(world.scheduler, 1) if line.startswith("  time: ")]
    assert "200ms execute" in told or "210ms execute" in told, told
    assert any("has begun to write" in line for line in world.scheduler.story(1)) is (on_late == "partial")
