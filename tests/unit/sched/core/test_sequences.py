"""Models of sequences: batches of many steps whose jobs end early, are cut, and hold slots and bytes meanwhile."""

from __future__ import annotations

import pytest
from hand_world import MS, Driver, ended, ids, like, ran

from edgeserve.errors import PolicyError
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.protocol.actions import CutBatch, DropState, ReleaseState, RunBatch
from edgeserve.sched.protocol.events import BatchProgress, JobId, JobResult
from edgeserve.sched.published.baselines.fifo import Fifo

LM = {"lm": {1: 10, 2: 10, 4: 10, 8: 10}}
CONTEXT, TOKEN_BYTES, SLOTS = 100, 10, 4
HEARS = {"lm": LM["lm"], "ear": {1: 5}}
APPS = {"chat": {"model": "lm", "slo": "100s"}, "voice": {"model": "ear", "slo": "60ms"}}


def chat(steps=20, tokens=10):
    return {"steps": steps, "tokens": tokens}


def lm(slots=SLOTS, state_memory="1MB", policy="fifo", **keys):
    """One model of sequences (10 ms per step), one app without a near deadline."""
    models = {"lm": {**LM["lm"], "state_memory": state_memory}}
    return Driver(models, {"chat": APPS["chat"]}, policy, sequences={"lm": (CONTEXT, TOKEN_BYTES, slots)}, **keys)


def both(apps=APPS, **keys):
    """The same with an app that has 60 ms, on the same lane."""
    return Driver(HEARS, apps, sequences={"lm": (CONTEXT, TOKEN_BYTES, SLOTS)}, **keys)


def held(world):
    """(slots left, bytes held) of the only lane."""
    sequences, lane = world.scheduler.state.sequences, next(iter(world.scheduler.state.run_lanes))
    return sequences.room("lm", lane).slots, sequences.reserved_bytes("lm", lane.device)


# --- one work of many steps -------------------------------------------------------------------------------------------


def test_a_batch_runs_until_its_longest_sequence_is_expected_to_end():
    world = lm()
    world.arrive("chat", hints=chat(20))
    assert world.work().steps_max == 20 and world.work().expected_ns == 200 * MS
    world.finish(at=200, steps=20)
    world.over()


def test_a_job_that_is_over_before_its_batch_is_answered_at_once_and_only_once():
    world = lm(lane={"l": {}})
    world.arrive("chat", hints=chat(5))
    world.finish(at=50, steps=5)
    world.arrive("chat", count=2, hints=chat(20))
    assert world.progress(2, at=120, steps=7) == [like(DropState, job=JobId(2, "lm", ())), ended(2, "completed")]
    assert held(world) == (SLOTS - 1, 30 * TOKEN_BYTES)
    assert world.finish(at=250, steps=20) == [like(DropState), ended(3, "completed")]
    assert held(world) == (SLOTS, 0)
    world.over()


@pytest.mark.parametrize("result", [JobResult(JobId(9, "lm", ())), JobResult(JobId(1, "lm", ()), "unfinished")])
def test_news_of_a_job_that_is_not_in_the_batch_or_goes_on_is_an_error(result):
    world = lm()
    world.arrive("chat", hints=chat())
    with pytest.raises(PolicyError, match="before its end"):
        world.scheduler.step(MS, [BatchProgress(world.work().work_id, MS, (result,))])


def test_the_time_of_a_step_is_learnt_from_batches_of_many():
    world = lm()
    for number in range(12):
        world.arrive("chat", hints=chat(10))
        world.finish(at=300 * (number + 1), took=300, steps=10)
    assert world.scheduler.state.latency["lm", "cpu0"].likely_ns[1] == pytest.approx(30 * MS, rel=0.1)


@pytest.mark.parametrize(
    ("hints", "steps"),
    [({"steps": 1}, 1), ({"lm.steps": 1}, 1), ({"steps": 2}, 2), ({"steps": 0}, 16), ({"other": 5}, 16), (None, 16)],
)
def test_what_the_model_says_counts_from_one_step_on(hints, steps):
    world = lm()
    world.arrive("chat", hints=chat(20))
    world.finish(at=200, status="unfinished", steps=20, hints=hints, state_bytes=300)
    assert world.work().steps_max == steps


def test_news_of_a_batch_whose_lane_has_gone_down_is_no_news():
    world = lm(lane={"l": {}})
    world.arrive("chat", hints=chat(20))
    world.lane("l", up=False, at=5)
    assert world.step(BatchProgress(1, 6 * MS, (JobResult(JobId(1, "lm", ()), steps=20),)), at=6) == []
    assert world.outcome(1) == ""


def test_without_a_prediction_the_usual_length_is_learnt():
    world = lm()
    for number in range(60):
        world.arrive("chat")
        world.finish(at=100 * (number + 1), steps=5)
    world.arrive("chat")
    assert world.work().steps_max in (5, 6)


def test_a_sequence_longer_than_predicted_goes_on_in_short_batches():
    world = lm()
    world.arrive("chat", hints=chat(4))
    world.finish(at=40, status="unfinished", steps=4, state_bytes=140)
    assert world.work().steps_max == 16


# --- slots and bytes --------------------------------------------------------------------------------------------------


def test_no_more_sequences_than_slots_are_on_a_lane():
    world = lm(slots=3)
    world.arrive("chat", count=5, hints=chat())
    assert ids(world.work().jobs) == [1, 2, 3] and world.work().size == 4
    assert held(world)[0] == 0
    world.finish(at=200, steps=20)
    assert ids(world.work().jobs) == [4, 5]


def test_a_batch_takes_only_the_jobs_whose_whole_sequences_fit():
    world = lm(state_memory="650B")  # of 30 tokens each: two
    world.arrive("chat", count=3, hints=chat())
    assert ids(world.work().jobs) == [1, 2] and held(world)[1] == 600


def test_what_sequences_could_grow_to_never_exceeds_the_bound():
    world = lm(state_memory="650B")
    world.arrive("chat", count=2, hints=chat(20))
    world.finish(at=200, status="unfinished", steps=20, state_bytes=300)
    # Both hold 30 tokens and 5 more fit: not even the fewest steps for both, so the younger one gives way.
    assert [ids(action.jobs) for action in world.of(RunBatch)] == [[1]]
    assert world.of(ReleaseState) == [ReleaseState(JobId(2, "lm", ()))]
    assert world.work().steps_max == 16 and held(world)[1] <= 650


def test_a_released_sequence_goes_on_when_there_is_room_with_the_steps_it_has_made():
    world = lm(state_memory="650B")
    world.arrive("chat", count=2, hints=chat(20))
    world.finish(at=200, status="unfinished", steps=20, state_bytes=300)
    assert world.finish(at=300, steps=10) == [like(DropState), ended(1, "completed"), ran("lm", 2)]
    assert world.finish(at=400, steps=10) == [like(DropState), ended(2, "completed")]
    world.over()


def test_a_sequence_alone_may_hold_all_there_is_and_fails_when_that_is_too_little():
    world = lm(state_memory="200B")
    world.arrive("chat", hints=chat(50, tokens=10))
    assert world.work().steps_max == 10
    world.finish(at=100, status="unfinished", steps=10, state_bytes=200)
    assert world.outcome(1) == "failed" and world.reason(1).startswith("state_memory_exhausted")
    world.over()


def test_a_sequence_that_outgrew_the_memory_fails_though_others_wait_before_it():
    world = lm(state_memory="200B")  # ``fifo`` puts a sequence that comes back behind the waiting ones
    world.arrive("chat", count=2, hints=chat(5, tokens=10))
    assert world.finish(at=50, status="unfinished", steps=5, state_bytes=150) == [ran("lm", 1, steps_max=5)]
    world.finish(at=100, status="unfinished", steps=5, state_bytes=200)
    assert world.outcome(1) == "failed" and world.reason(1).startswith("state_memory_exhausted")
    world.finish(at=150, steps=5)
    world.over()


@pytest.mark.parametrize(("tokens", "memory"), [(100, "1MB"), (20, "200B")])
def test_an_input_that_can_never_fit_fails_at_once(tokens, memory):
    world = lm(state_memory=memory)
    world.arrive("chat", hints=chat(1, tokens))
    assert world.outcome(1) == "failed" and world.reason(1).startswith("sequence_too_long: its ")
    world.over()


def test_a_refused_batch_gives_its_places_back():
    world = lm()
    world.arrive("chat", hints=chat())
    world.lane("cpu0", speed=0.5)
    world.refuse()
    world.finish(at=400, steps=20)
    assert held(world) == (SLOTS, 0)
    world.over()


def test_a_cancelled_sequence_frees_its_place_within_the_batch():
    world = lm()
    world.arrive("chat", count=1, hints=chat())
    world.cancel(1, at=35)
    assert held(world)[0] == SLOTS - 1
    world.progress(1, at=40)
    assert held(world) == (SLOTS, 0)
    world.finish(at=40)
    world.over()


# --- cuts -------------------------------------------------------------------------------------------------------------


def test_a_batch_is_cut_for_a_job_of_another_app_that_would_be_late_behind_it():
    world = both()
    world.arrive("chat", hints=chat(50))
    assert world.arrive("voice", at=30) == [CutBatch(1, "cpu0")]
    assert world.finish(at=40, status="unfinished", steps=4, state_bytes=140) == [ran("ear", 2)]
    assert world.finish(at=45) == [ended(2, "completed"), ran("lm", 1)]


@pytest.mark.parametrize("chat_policy", ["fifo", "edf", "plan"])
@pytest.mark.parametrize("hints", [chat(50), {}])
def test_who_a_batch_was_cut_for_gets_the_lane_whatever_the_policies(chat_policy, hints):
    apps = {"chat": {**APPS["chat"], "policy": "talks", "value": 100.0}, "voice": {**APPS["voice"], "policy": "hears"}}
    world = Driver(
        HEARS,
        apps,
        {"talks": {"kind": chat_policy}, "hears": {"kind": "edf"}},
        sequences={"lm": (CONTEXT, TOKEN_BYTES, SLOTS)},
    )
    world.arrive("chat", count=3, hints=hints)
    assert CutBatch(1, "cpu0") in world.arrive("voice", at=30)
    assert world.finish(at=40, status="unfinished", steps=4, state_bytes=140) == [ran("ear", 4)]


def test_a_cut_batch_is_not_cut_again():
    world = both()
    world.arrive("chat", hints=chat(50))
    world.arrive("voice", at=30)
    assert world.arrive("voice", at=31) == []


def test_the_step_after_which_a_batch_ends_passes_while_others_are_decided_about():
    """The request that a batch was cut for is in time after its step: also in the middle of that step."""
    world = both()
    world.arrive("chat", hints=chat(50))
    assert world.arrive("voice", at=30, slo=18) == [CutBatch(1, "cpu0")]  # free at 40, and it takes 5 until 48
    assert world.arrive("voice", at=34, slo=200) == []
    assert world.finish(at=40, status="unfinished", steps=4, state_bytes=140) == [ran("ear", 2)]


@pytest.mark.parametrize("slo", [30, 60])
def test_a_pipeline_is_served_beside_a_batch_that_can_be_cut(slo):
    frames = {
        "slo": f"{slo}ms",
        "policy": "pipes",
        "node": [{"name": "find", "model": "ear"}, {"name": "read", "model": "ear"}],
    }
    world = Driver(
        HEARS,
        {"chat": {**APPS["chat"], "policy": "talks"}, "frames": frames},
        {"talks": {"kind": "plan"}, "pipes": {"kind": "plan"}},
        sequences={"lm": (CONTEXT, TOKEN_BYTES, SLOTS)},
    )
    world.arrive("chat", hints=chat(50))
    assert world.arrive("frames", at=30) == [CutBatch(1, "cpu0")]
    assert world.finish(at=40, status="unfinished", steps=4, state_bytes=140) == [ran("ear", 2)]


@pytest.mark.parametrize(("slo", "is_cut"), [(14.9, False), (15, True), (201.9, True), (202, False)])
def test_a_batch_is_cut_for_who_would_be_late_behind_it_and_in_time_after_one_step(slo, is_cut):
    world = both()
    world.arrive("chat", hints=chat(20))  # until 200; a step takes 10, and who waits 5
    world.arrive("voice", at=3, slo=slo)
    assert world.of(CutBatch) == ([CutBatch(1, "cpu0")] if is_cut else [])


@pytest.mark.parametrize(("slo", "is_cut"), [(221.9, True), (222, False)])
def test_it_is_cut_for_a_critical_one_that_would_be_late_if_the_batch_were_as_slow_as_the_slowest_of_late(slo, is_cut):
    world = both(apps={**APPS, "voice": {**APPS["voice"], "class": "critical"}})
    for number in range(10):
        world.scheduler.state.latency["lm", "cpu0"].observe(number, 1, (11 if number == 9 else 10) * MS)
    world.arrive("chat", hints=chat(20))  # until 200, or 220; who waits takes 5
    world.arrive("voice", at=3, slo=slo)
    assert world.of(CutBatch) == ([CutBatch(1, "cpu0")] if is_cut else [])


def test_a_batch_is_not_cut_for_who_would_be_late_even_after_one_step():
    world = both()
    world.arrive("chat", hints=chat(50))
    assert world.arrive("voice", at=30, slo=14, on_late="answer") == []


def test_a_batch_is_not_cut_where_another_lane_is_free():
    world = both(lane={"l0": {}, "l1": {}})
    world.arrive("chat", hints=chat(50))
    assert world.arrive("voice", at=30) == [ran("ear", 2, lane="l1")]


def test_a_batch_is_not_cut_for_its_own_app_unless_its_policy_says_so():
    world = lm()
    world.arrive("chat", hints=chat())
    assert world.arrive("chat", at=5, slo=30, hints=chat(1)) == []


def test_a_policy_may_cut_its_own_batch(monkeypatch):
    class Admits(Fifo):
        def cut(self, work, board):
            return len(work.left()) < len(work.jobs)

    monkeypatch.setitem(POLICIES, "admits", Admits)
    world = lm(policy="admits")
    world.arrive("chat", count=2, hints=chat())
    assert world.arrive("chat", at=10, hints=chat()) == []
    assert CutBatch(1, "cpu0") in world.progress(1, at=20, steps=2)
    world.finish(at=30, status="unfinished", steps=3, state_bytes=130)
    assert sorted(ids(world.work().jobs)) == [2, 3]


# --- prompts that are read in turns -----------------------------------------------------------------------------------


def by_turns(**keys):
    """As :func:`both`, but a turn of the language model reads at most 16 tokens of prompts."""
    return Driver(HEARS, APPS, sequences={"lm": (CONTEXT, TOKEN_BYTES, SLOTS, 16)}, **keys)


def test_what_is_learnt_of_a_batch_that_reads_in_turns_is_the_time_of_a_turn():
    world = by_turns()
    world.arrive("chat", hints=chat(2, tokens=64))
    world.finish(at=72, steps=2, turns=6)  # twelve milliseconds a turn
    assert world.scheduler.state.latency["lm", "cpu0"].estimate_ns[1] == 12 * MS


@pytest.mark.parametrize("reads", [True, False])
def test_batches_that_read_prompts_contradict_no_profile_and_those_that_follow_do(reads):
    world = by_turns()
    latency = world.scheduler.state.latency["lm", "cpu0"]
    slow = 3 * latency.typical_ns[1] / MS
    for number in range(10):
        world.arrive("chat", at=20_000 * number, hints=chat(10, tokens=64))
        if not reads:
            world.finish(at=world.now_ms + slow * 3, status="unfinished", steps=1, turns=3, state_bytes=65)
        world.finish(at=world.now_ms + slow * 10, steps=10, turns=10)
    assert (latency.served.contradiction() is None) == reads


def test_a_cut_amid_a_prompt_makes_no_step_and_the_job_goes_on_where_it_was():
    world = by_turns()
    world.arrive("chat", hints=chat(20, tokens=64))
    assert world.arrive("voice", at=3) == [CutBatch(1, "cpu0")]
    world.finish(at=10, status="unfinished", steps=0, turns=1, state_bytes=16 * TOKEN_BYTES)
    job = next(iter(world.scheduler.state.requests[1].jobs.values()))
    assert (job.steps, job.lane) == (0, "cpu0")
    assert world.finish(at=15) == [ended(2, "completed"), ran("lm", 1)]
    assert world.work().steps_max == 20
    world.finish(at=300, steps=20, turns=23)
    world.over()


def test_a_batch_of_one_step_is_cut_where_its_prompt_is_read_in_turns():
    for world, cut in ((both(), []), (by_turns(), [CutBatch(1, "cpu0")])):
        world.arrive("chat", hints=chat(1, tokens=90))
        work = world.scheduler.state.works.running(1)
        work.expected_ns = 100 * MS  # its policy counts the prompt
        assert world.arrive("voice", at=3) == cut


# --- lanes that go down -----------------------------------------------------------------------------------------------


def test_sequences_of_a_lost_lane_go_on_elsewhere():
    world = lm(lane={"l0": {}, "l1": {}}, policy={"fifo": {"batch_max": 1}})
    world.arrive("chat", count=2, hints=chat())
    world.finish("l0", at=100, status="unfinished", steps=10, state_bytes=200)
    assert ids(world.work("l0").jobs) == [1]
    actions = world.lane("l0", up=False, at=150)
    assert ReleaseState(JobId(1, "lm", ())) in actions and world.outcome(1) == ""
    assert world.finish("l1", at=200, steps=20) == [like(DropState), ended(2, "completed"), ran("lm", 1, lane="l1")]
    world.finish("l1", at=300, steps=10)
    world.over()


def test_a_sequence_that_had_no_state_yet_starts_again_elsewhere():
    world = lm(lane={"l0": {}, "l1": {}})
    world.arrive("chat", hints=chat())
    assert world.lane("l0", up=False, at=50) == [ran("lm", 1, lane="l1")]
    world.finish("l1", at=300, steps=20)
    world.over()


def test_what_prompts_of_an_app_usually_have_in_memory_is_not_counted_as_turns():
    """A wrong report does no harm: of each answer, at most the whole prompt counts."""
    for cached, least in ((0, 4), (52, 1), (10**9, 1)):
        world, turns = by_turns(), []
        for number in range(80):
            world.arrive("chat", at=1000 * number, hints=chat(2, tokens=64))
            job = next(iter(world.scheduler.state.requests[number + 1].jobs.values()))
            turns.append(world.scheduler.state.sequences.prefill_turns(job))
            world.finish(at=world.now_ms + 20, steps=2, turns=4, cached=cached)
        assert (turns[0], turns[-1]) == (4, least) and sorted(turns, reverse=True) == turns
        world.over()
