"""The scheduler as a whole: every event, every outcome, and what follows from each. Lanes do what the test says."""

from __future__ import annotations

import pytest
from hand_world import MS, Driver, ended, ids, like, ran

from edgeserve.errors import PolicyError
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.protocol.actions import (
    DropState,
    EvictModel,
    FinishRequest,
    LatencyBreakdown,
    LoadModel,
    Outcome,
    RunBatch,
)
from edgeserve.sched.protocol.events import DeviceChanged, JobId, JobResult, LaneChanged, WorkFinished, WorkRefused
from edgeserve.sched.published.baselines.fifo import Fifo
from edgeserve.sched.requests.critical import MEMORY_NS
from edgeserve.sched.resources.model_cache import LOAD_RETRY_NS

ONE = {"m": {1: 10, 4: 20}}
PIPE = [{"name": "a"}, {"name": "b"}]
PIPE_MODELS = {"a": {1: 10}, "b": {1: 20}}
FAN = [{"name": "cut", "fan_out": True}, {"name": "read"}, {"name": "join", "gather": True}]
FAN_MODELS = {"cut": {1: 10}, "read": {1: 10}, "join": {1: 10}}
TWO_LANES = {"l0": {}, "l1": {}}


def one(**keys):
    """One model (10 ms alone, 20 ms for four), one app, one lane."""
    app = {"model": "m", **keys.pop("app", {})}
    return Driver(ONE, {"a": app}, **keys)


# --- the way of a request ---------------------------------------------------------------------------------------------


def test_a_request_runs_and_is_completed_with_where_its_time_went():
    world = one()
    assert world.arrive("a", at=5) == [
        like(
            RunBatch,
            lane="cpu0",
            model="m",
            jobs=(JobId(1, "m", ()),),
            size=1,
            expected_ns=10 * MS,
            steps_max=None,
            probe=False,
        )
    ]
    assert world.finish(at=17, took=11) == [
        FinishRequest(1, Outcome.COMPLETED, "", LatencyBreakdown(0, 0, 1 * MS, 11 * MS))
    ]
    world.over()
    assert world.wake_ms is None


def test_the_parts_of_a_batch_end_each_in_its_own_way():
    world = one()
    world.arrive("a", count=3)
    event = world.finished(at=20, each={1: {"status": "failed", "reason": "bad crop"}, 2: {"status": "unfinished"}})
    assert world.step(event) == [ended(1, "completed"), ended(2, "failed", "bad crop"), ran("m", 3)]


def test_a_request_that_is_expired_at_arrival_is_rejected():
    world = one()
    assert world.arrive("a", slo=0) == [ended(1, "rejected", "expired")]
    assert world.arrive("a", slo=0, on_late="answer") == [ran("m", 2)]


def test_stories_are_kept_for_a_while_after_the_end():
    world = one()
    world.arrive("a")
    world.finish(at=10)
    assert [line.strip() for line in world.scheduler.story(1)] == [
        "request 1 of app a: completed, class normal, deadline 100ms after it was asked",
        "+0ns: arrived",
        "+0ns: launched m in work 1 on cpu0 with 0 others",
        "+10ms: completed",
    ]
    assert world.scheduler.story(99) == []


def test_a_story_says_which_part_did_what():
    world = Driver({"cut": {1: 1}, "work": {1: 1}}, {"a": [{"name": "cut", "fan_out": True}, {"name": "work"}]})
    world.arrive("a")
    world.finish(at=1, parts=2, hints={"x": 1.0})
    world.finish(at=2, hints={"y": 2.0})
    story = "\n".join(world.scheduler.story(1))
    assert not [line for line in world.scheduler.story(1) if "  " in line.strip()]
    assert "+1ms: node cut done (2 parts)" in story and "+1ms: node cut said {'x': 1.0}" in story
    assert "+2ms: node work [0] done" in story and "+2ms: node work [0] said {'y': 2.0}" in story


# --- deadlines --------------------------------------------------------------------------------------------------------


def test_what_waits_past_its_deadline_is_dropped_by_the_timer():
    world = one(policy="fifo")
    world.arrive("a", slo=200)
    world.arrive("a", at=5, slo=30)
    assert world.wake_ms == 35
    assert world.step(at=35) == [ended(2, "dropped", "expired")]
    assert world.finish(at=40) == [ended(1, "completed")]


def test_what_runs_past_its_deadline_is_answered_late():
    world = one(policy="fifo")
    world.arrive("a", slo=20)
    assert world.pass_time(60) == []
    assert world.finish(at=60) == [ended(1, "completed")]


@pytest.mark.parametrize("ending", ["refuse", "unfinished", "next node"])
def test_what_comes_back_from_a_lane_after_its_deadline_ends_there(ending):
    world = Driver(PIPE_MODELS, {"a": PIPE if ending == "next node" else "a"}, policy="fifo")
    world.arrive("a", slo=40)
    world.pass_time(60)
    if ending == "refuse":
        assert world.refuse(at=60) == [ended(1, "dropped", "expired")]
    else:
        assert world.finish(at=60, status="done" if ending == "next node" else ending) == [
            ended(1, "dropped", "expired")
        ]
    world.over()


def test_a_request_that_is_answered_late_waits_as_long_as_it_takes():
    world = one(app={"on_late": "answer"}, policy="fifo")
    world.arrive("a", slo=30)
    world.arrive("a", slo=30)
    assert world.pass_time(500) == []
    assert world.finish(at=500) == [ended(1, "completed"), ran("m", 2)] or world.outcome(2) == "completed"


def test_partial_settles_for_what_there_is_when_the_rest_would_be_late():
    world = Driver(FAN_MODELS, {"a": {"node": FAN, "on_late": "partial", "slo": "60ms"}}, policy="fifo")
    world.arrive("a")
    world.finish(at=10, parts=3)
    world.finish(at=20)
    assert world.wake_ms == 50  # the join takes 10 ms
    assert world.step(at=50) == []
    assert world.finish(at=52) == [ran("join", 1)]  # the third part is not worth running any more
    assert world.finish(at=60) == [ended(1, "completed", "did not wait for read")]


def test_partial_is_answered_with_what_there_is_also_by_a_loop_that_wakes_late():
    world = Driver(FAN_MODELS, {"a": {"node": FAN, "on_late": "partial", "slo": "60ms"}}, policy="fifo")
    for start, wakes, settles in ((0, 50, 53), (200, 246, 262)):  # 4 ms late: the next is 4 ms earlier
        world.arrive("a", at=start)
        world.finish(at=start + 10, parts=3)
        world.finish(at=start + 20)
        assert world.wake_ms == wakes
        assert world.step(at=settles) == []  # the second time past its deadline
        (join,) = world.finish(at=settles + 1)
        assert join.model == "join"
        world.finish(at=settles + 11)
    assert [world.outcome(number) for number in (1, 2)] == ["completed", "completed"]
    world.over()


def test_partial_waits_for_half_of_what_is_left_where_what_follows_needs_more():
    models = {"cut": {1: 10}, "read": {1: 10}, "join": {1: 30}}
    world = Driver(models, {"a": {"node": FAN, "on_late": "partial", "slo": "50ms"}}, policy="fifo")
    world.arrive("a", at=4)
    assert world.finish(at=14, parts=3) == [ran("read", 1)]
    assert world.wake_ms == 4 + 50 / 2  # its deadline is 54, and the join would have to start at 24
    assert world.finish(at=26) == [ran("read", 1)]
    assert world.finish(at=36) == [ran("join", 1)]


def test_partial_is_not_dropped_by_edf_for_a_part_that_would_be_late():
    world = Driver(FAN_MODELS, {"a": {"node": FAN, "on_late": "partial", "slo": "60ms"}})
    world.arrive("a")
    world.finish(at=10, parts=3)
    world.finish(at=25)
    assert world.finish(at=45) == [ran("join", 1)]  # two parts are there, the third could not end by 50
    assert world.finish(at=55) == [ended(1, "completed", "without read[2]: cannot_make_deadline")]


# --- cancellation -----------------------------------------------------------------------------------------------------


def test_cancelling_what_waits_ends_it_and_frees_its_place():
    world = one()
    world.arrive("a", count=5)
    assert world.cancel(5) == [ended(5, "cancelled", "cancelled by its client")]
    assert world.finish(at=20) == [ended(number, "completed") for number in (1, 2, 3, 4)]
    world.over()


def test_cancelling_takes_every_part_and_descendant():
    world = Driver(FAN_MODELS, {"a": FAN}, lane=TWO_LANES)
    world.arrive("a")
    world.finish("l0", at=10, parts=3)
    assert world.cancel(1, at=11) == [ended(1, "cancelled")]
    assert world.finish("l0", at=20) == []
    assert world.finish("l1", at=20) == []
    world.over()


@pytest.mark.parametrize("request_id", [1, 99])
def test_cancelling_what_has_ended_or_never_was_does_nothing(request_id):
    world = one()
    world.arrive("a")
    world.finish(at=10)
    assert world.cancel(request_id) == []


# --- refused, failed and unfinished work ------------------------------------------------------------------------------


def test_refused_work_is_ready_again():
    world = one()
    world.arrive("a", count=4)
    assert world.refuse(at=3) == [ran("m", 1, 2, 3, 4)]
    assert "refused work 1" in "".join(world.scheduler.story(1))
    world.finish(at=30)
    world.over()


def test_a_failed_batch_fails_its_requests_only_and_teaches_nothing():
    world = one()
    world.arrive("a", count=5)
    failed = world.finish(at=90, status="failed", reason="the engine raised")
    assert failed[:4] == [ended(number, "failed", "the engine raised") for number in (1, 2, 3, 4)]
    assert world.arrive("a", at=91, slo=30) != [ended(6, "rejected")]
    assert world.scheduler.state.latency["m", "cpu0"].estimate_ns[4] == 20 * MS


def test_a_batch_of_which_some_failed_did_run_and_teaches():
    world = one()
    world.arrive("a", count=4)
    world.step(world.finished(at=40, status="failed", each={0: {"status": "done"}}))
    assert [world.outcome(number) for number in (1, 2, 3, 4)] == ["completed"] + ["failed"] * 3
    assert world.scheduler.state.latency["m", "cpu0"].estimate_ns[4] == 40 * MS


def test_unfinished_jobs_stay_on_the_lane_that_holds_their_state():
    world = Driver(ONE, {"a": {"model": "m", "slo": "1s"}}, policy="fifo", lane=TWO_LANES)
    world.arrive("a")
    world.arrive("a")
    assert world.of(RunBatch) == [ran("m", 2, lane="l1")]
    world.lane("l0", speed=1.0)
    world.finish("l1", at=10)
    assert world.finish("l0", at=12, status="unfinished") == [ran("m", 1, lane="l0")]
    world.arrive("a", at=13)  # takes l1
    world.arrive("a", at=13)  # waits
    world.finish("l0", at=20, status="unfinished")
    assert world.actions == [like(RunBatch, lane="l0")]
    assert 1 in ids(world.actions[0].jobs)
    world.finish("l0", at=30)
    assert world.outcome(1) == "completed"


def test_time_is_counted_over_every_step_of_an_unfinished_job():
    world = one()
    world.arrive("a")
    world.finish(at=10, status="unfinished")
    assert world.finish(at=25, took=12) == [FinishRequest(1, "completed", "", LatencyBreakdown(0, 0, 3 * MS, 22 * MS))]


@pytest.mark.parametrize("steps", [(4, 4), (4, 2), (1, 4)])
def test_a_call_of_several_steps_teaches_the_time_of_one_and_counts_all(steps):
    world = Driver({"m": {1: 10, 2: 10}}, {"a": {"model": "m", "slo": "1s"}}, policy="fifo")
    world.arrive("a", count=2)
    each = {index: {"steps": count} for index, count in enumerate(steps)}
    world.finish(at=80, status="unfinished", each=each)
    assert world.scheduler.state.latency["m", "cpu0"].estimate_ns[2] == 20 * MS  # four steps: the longest job's
    requests = world.scheduler.state.requests.values()
    assert [job.steps for request in requests for job in request.jobs.values()] == list(steps)
    world.finish(at=121, took=41, each={0: {"steps": 4, "status": "failed"}})  # it ran all the same
    assert world.scheduler.state.latency["m", "cpu0"].estimate_ns[2] == 20 * MS
    assert world.scheduler.state.latency["m", "cpu0"].typical_ns[2] == 10_250_000  # the lower of two


@pytest.mark.parametrize(
    ("results", "words"),
    [((), "has 1 jobs but 0 results"), ((JobResult(JobId(7, "m", ())),), "where JobId.request_id=1")],
)
def test_answers_that_do_not_fit_the_work_are_bugs(results, words):
    world = one()
    world.arrive("a")
    with pytest.raises(PolicyError, match=words):
        world.scheduler.step(10 * MS, [WorkFinished(1, 0, 10 * MS, results)])


def test_an_answer_for_an_unknown_work_a_second_arrival_and_time_going_back_are_bugs():
    world = one()
    world.arrive("a", at=5)
    with pytest.raises(PolicyError, match="work 9 was answered but is on no lane"):
        world.scheduler.step(5 * MS, [WorkRefused(9, "?")])
    world._last_id = 0
    with pytest.raises(PolicyError, match="request id 1 arrived twice"):
        world.arrive("a")
    with pytest.raises(PolicyError, match="time must not go backwards"):
        world.step(at=4)


# --- graphs -----------------------------------------------------------------------------------------------------------


def test_a_pipeline_is_refused_when_its_rest_does_not_fit():
    world = Driver(PIPE_MODELS, {"a": PIPE})
    assert world.arrive("a", slo=29) == [ended(1, "rejected", "cannot_make_deadline")]
    assert world.arrive("a", slo=30) == [ran("a", 2)]


def test_a_failed_part_fails_the_request_and_its_sibling_becomes_an_orphan():
    world = Driver(FAN_MODELS, {"a": FAN}, lane=TWO_LANES)
    world.arrive("a")
    world.finish("l0", at=10, parts=3)
    assert world.finish("l0", at=20, status="failed", reason="no") == [ended(1, "failed", "no")]
    assert world.finish("l1", at=20) == []
    world.over()


def test_a_vote_does_without_a_failed_part_and_the_part_that_is_not_needed_is_not_run():
    nodes = [{"name": "cut", "fan_out": True}, {"name": "read"}, {"name": "join", "gather": True, "join": 1}]
    world = Driver(FAN_MODELS, {"a": nodes})
    world.arrive("a")
    world.finish(at=10, parts=3)
    assert world.finish(at=20, status="failed") == [like(RunBatch, model="read")]
    assert world.finish(at=30) == [ran("join", 1)]
    assert world.finish(at=40) == [ended(1, "completed")]
    world.over()


# --- lanes ------------------------------------------------------------------------------------------------------------


def test_a_lane_that_goes_down_fails_what_runs_and_gives_its_inbox_back():
    world = Driver({"m": {1: 10}}, {"a": "m"}, policy="fifo", lane={"l0": {"ahead": "50ms"}})
    assert world.arrive("a", count=3) == [ran("m", 1), ran("m", 2), ran("m", 3)]
    assert world.lane("l0", up=False, at=5) == [ended(1, "failed", "lane l0 went down: pulled out")]
    assert world.lane("l0", at=9) == [ran("m", 2), ran("m", 3)]
    world.finish("l0", at=19)
    world.finish("l0", at=29)
    world.over()


def test_answers_for_works_of_a_lane_that_went_down_are_ignored():
    world = one()
    world.arrive("a")
    event = world.finished(at=5)
    world.lane("cpu0", up=False, at=5)
    assert world.step(event, at=6) == []
    world.over()


def test_without_a_lane_nothing_is_accepted_and_what_waits_expires():
    world = one()
    world.arrive("a", count=5)
    world.lane("cpu0", up=False, at=1)
    assert [world.outcome(number) for number in range(1, 6)] == ["failed"] * 4 + [""]
    assert world.arrive("a") == [ended(6, "rejected", "no_lane")]
    assert world.pass_time(200) == [ended(5, "dropped", "expired")]


def test_a_slower_lane_takes_longer_and_refuses_what_no_longer_fits():
    world = one()
    world.lane("cpu0", speed=0.5)
    assert world.arrive("a", slo=19) == [ended(1, "rejected", "cannot_make_deadline")]
    assert world.arrive("a", slo=20) == [ran("m", 2, expected_ns=20 * MS)]
    world.lane("cpu0", speed=1.0, at=1)
    world.finish(at=20)
    assert world.scheduler.state.latency["m", "cpu0"].estimate_ns[1] == 20 * MS


def test_a_lane_that_hangs_is_given_up_its_request_ends_and_others_go_elsewhere():
    world = Driver(
        {"m": {1: 10}},
        {"a": {"model": "m", "slo": "5s"}},
        policy="fifo",
        lane={"l0": {"hang": "100ms", "ahead": "10ms"}, "l1": {"hang": "1s"}},
    )
    world.arrive("a", count=3)
    assert [(work.lane, ids(work.jobs)) for work in world.on_lane.values()] == [("l0", [1]), ("l0", [2]), ("l1", [3])]
    world.finish("l1", at=20)
    assert world.wake_ms == 110
    assert world.step(at=110) == [ended(1, "failed"), ran("m", 2, lane="l1")]
    assert "hangs: work 1 (m) did not return within [lane.l0] hang" in world.reason(1)
    assert world.arrive("a", at=111) == []
    assert world.finish("l1", at=120) == [ended(2, "completed"), ran("m", 4, lane="l1")]


def test_what_a_deep_lane_may_have_launched_ends_with_the_batch_that_hangs():
    world = Driver(
        {"m": {1: 10}},
        {"a": {"model": "m", "slo": "5s"}},
        policy="fifo",
        lane={"l0": {"hang": "100ms", "depth": 2, "ahead": "25ms"}, "l1": {"hang": "1s"}},
    )
    world.arrive("a", count=4)
    assert [(work.lane, ids(work.jobs)) for work in world.on_lane.values()] == [
        ("l0", [1]),
        ("l0", [2]),
        ("l0", [3]),
        ("l1", [4]),
    ]
    world.finish("l1", at=20)
    assert world.step(at=110) == [ended(1, "failed"), ended(2, "failed"), ran("m", 3, lane="l1")]


def test_what_no_deadline_ends_does_not_wait_for_a_lane_that_hangs_or_is_down():
    world = Driver({"m": {1: 10}}, {"a": {"model": "m", "slo": "5s"}}, policy="fifo", lane={"cpu0": {"hang": "100ms"}})
    world.arrive("a")
    world.arrive("a", on_late="answer")  # waits when the lane is given up
    assert world.step(at=110) == [ended(1, "failed"), ended(2, "failed")]
    assert world.reason(2) == "no lane can run model 'm' now"
    assert world.arrive("a", at=120, on_late="answer") == [ended(3, "failed")]
    world.finish("cpu0", at=130)
    world.lane("cpu0", up=False, at=140)
    assert world.arrive("a", at=141, on_late="answer") == [ended(4, "failed")]
    assert world.arrive("a", at=142) == []  # this one may hope for the lane until its deadline
    assert world.lane("cpu0", up=True, at=150) == [ran("m", 5)]


def test_nothing_waits_for_a_lane_that_is_lost_for_good():
    lanes = {"l0": {}, "l1": {}}
    models = {"m": {1: 10, "lanes": ["l0"]}, "n": {1: 10, "lanes": ["l1"]}}
    chain = {"node": [{"name": "m"}, {"name": "n"}], "slo": "5s"}
    world = Driver(models, {"chain": chain, "last": {"model": "n", "slo": "5s"}}, policy="fifo", lane=lanes)
    world.arrive("chain")
    world.arrive("last", count=2)
    assert world.step(LaneChanged("l1", up=False, lost=True), at=1) == [ended(2, "failed"), ended(3, "failed")]
    assert world.reason(3) == "no lane can run model 'n' now"
    assert world.finish("l0", at=10) == [ended(1, "failed")], "its next stage has no lane"
    world.step(LaneChanged("l1", up=True), at=20)
    world.step(LaneChanged("l1", up=False), at=30)
    assert world.arrive("last", at=40) == [], "the lane may come back"
    assert world.step(LaneChanged("l1", up=False, lost=True), at=50) == [ended(4, "failed")], "it does not"


def test_the_state_of_an_unfinished_job_counts_on_its_device_until_the_job_is_over():
    world = Driver({"m": {1: 10}}, {"a": {"model": "m", "slo": "5s"}}, policy="fifo")
    world.arrive("a")
    world.finish(at=10, status="unfinished", state_bytes=100)
    assert world.scheduler.devices["cpu"].state_bytes == 100
    world.finish(at=20, status="unfinished", state_bytes=300)
    assert world.scheduler.devices["cpu"].state_bytes == 300
    actions = world.finish(at=30)
    assert like(DropState, job=JobId(1, "m", ())) in actions
    assert world.scheduler.devices["cpu"].state_bytes == 0
    world.arrive("a", at=31)
    world.finish(at=40, status="unfinished", state_bytes=50)
    world.cancel(2, at=41)  # its work runs on: the state goes when the lane is back
    assert world.scheduler.devices["cpu"].state_bytes == 50
    world.finish(at=50)
    assert world.scheduler.devices["cpu"].state_bytes == 0
    world.over()


def test_a_window_never_outlives_the_bound_of_its_lane():
    world = one(lane={"cpu0": {"hang": "100ms"}})
    assert world.arrive("a", at=3)[0].start_before_ns == 103 * MS


def test_a_lane_that_plans_ahead_is_given_the_next_work_early():
    world = one(lane={"cpu0": {"ahead": "5ms"}})
    world.arrive("a")
    assert world.arrive("a", at=2) == []
    assert world.wake_ms == 5
    assert world.step(at=5) == [ran("m", 2)]
    assert world.finish("cpu0", at=10) == [ended(1, "completed")]
    assert world.finish("cpu0", at=20) == [FinishRequest(2, "completed", "", LatencyBreakdown(3 * MS, 0, 0, 15 * MS))]


# --- admission and draining -------------------------------------------------------------------------------------------


def test_a_full_app_refuses_and_says_whether_the_client_is_over_its_share():
    world = one(app={"pending_max": 4})
    world.arrive("a", count=4, client="x")
    assert world.arrive("a", client="x") == [ended(5, "rejected", "queue_full")]
    assert world.arrive("a", client="y") == [ended(6, "rejected", "queue_full")]  # all of them run


def test_only_a_client_that_has_something_pending_beside_others_is_over_its_share():
    world = one(app={"pending_max": 2, "slo": "5s"})
    world.arrive("a", client="x")
    world.arrive("a", client="y")
    assert world.arrive("a", client="z") == [ended(3, "rejected", "queue_full")]  # two clients, and none of it is z's
    assert world.arrive("a", client="y") == [ended(4, "rejected", "over_share")]


def test_a_full_server_refuses_whoever_has_most_and_takes_others_in_its_place():
    world = Driver(
        {"m": {1: 10}}, {name: {"model": "m", "slo": "5s"} for name in "ab"}, policy="fifo", server={"pending_max": 3}
    )
    assert world.arrive("a", count=2, client="x") == [ran("m", 1)]
    assert world.arrive("b", client="x") == []
    assert world.arrive("b", client="x") == [ended(4, "rejected", "server_full")]
    assert world.arrive("a", client="y") == [ended(3, "dropped", "over_share")]
    assert world.arrive("a", client="y") == [ended(6, "rejected", "server_full")]


def test_a_client_that_would_be_late_displaces_the_newest_that_wait_of_one_above_its_part_of_the_lane_time():
    world = Driver({"m": {1: 10}}, {"a": {"model": "m", "slo": "100ms"}}, policy="fifo")
    for _ in range(10):
        world.arrive("a", client="pid:1 #1")
    assert world.arrive("a", client="pid:2 #1") == [ended(10, "dropped", "over_share")]
    assert world.arrive("a", client="pid:2 #1") == [ended(9, "dropped", "over_share")]
    assert world.arrive("a", client="pid:2 #1", slo=120) == []


def test_the_place_of_a_request_that_ended_is_free_again():
    world = one(app={"pending_max": 2, "slo": "5s"})
    world.arrive("a", count=2, client="x")
    assert world.arrive("a", client="x") == [ended(3, "rejected", "queue_full")]
    world.finish(at=10)
    world.arrive("a", client="x")
    assert world.outcome(4) == ""


def test_nobody_is_displaced_for_a_request_that_is_refused_all_the_same():
    world = one(app={"pending_max": 6})
    world.arrive("a", count=6, client="x")
    assert world.arrive("a", client="y", slo=5) == [ended(7, "rejected", "cannot_make_deadline")]


def test_draining_refuses_what_comes_and_finishes_what_was_accepted():
    world = one()
    world.arrive("a")
    world.drain()
    assert world.arrive("a") == [ended(2, "rejected", "draining")]
    assert world.finish(at=10) == [ended(1, "completed")]
    world.over()


# --- streams ----------------------------------------------------------------------------------------------------------


def stream(kind="in_order", models=ONE, **keys):
    return Driver(models, {"a": {"model": "m", "stream": kind, **keys}})


@pytest.mark.parametrize(("stream", "begins_ms"), [("newest_wins", 10), ("in_order", 90)])
def test_the_auction_lets_a_frame_go_before_the_next_one_comes(stream, begins_ms):
    models = {"m": {1: 10, 8: 24}, "n": {1: 10}}  # a frame, worth 3 of its 10 ms, waits for the others while it can
    world = Driver(
        models, {"camera": {"model": "m", "stream": stream, "slo": "900ms"}, "other": {"model": "n", "slo": "900ms"}}
    )
    for at in range(0, 64 * 5, 64):
        world.arrive("camera", at=at, stream="s")
        world.finish(at=at + 10)
    world.arrive("other", at=319, count=9)
    world.arrive("camera", at=320, stream="s")
    starts = {world.work().model: 319}
    for at in range(330, 430, 10):
        for work in world.finish(at=at):
            if isinstance(work, RunBatch):
                starts.setdefault(work.model, at)
    assert starts["m"] == 320 + begins_ms
    world.over()


def test_a_cancelled_request_holds_its_stream_until_its_lane_is_back():
    world = Driver(ONE, {"a": {"model": "m", "stream": "in_order"}}, lane=TWO_LANES)
    world.arrive("a", count=2, stream="s")
    assert world.cancel(1) == [ended(1, "cancelled")]  # the other lane is idle, but the state may still change
    assert world.finish("l0", at=10) == [ran("m", 2)]


def test_what_waits_in_a_stream_can_be_cancelled_and_expires():
    world = stream()
    world.arrive("a", count=2, stream="s")
    world.arrive("a", stream="s", slo=50)
    assert world.cancel(2, at=1) == [ended(2, "cancelled")]
    assert world.pass_time(60) == [ended(3, "dropped", "expired")]
    world.finish(at=70)
    world.over()


# --- memory -----------------------------------------------------------------------------------------------------------

MODELS = {name: {1: 10, "memory": "60MB", "load": "5ms"} for name in ("m", "n", "o")}
APPS = {"am": "m", "an": "n", "ao": "o"}


def small(resident=("m",), budget="100MB", models=MODELS, policy="edf"):
    """Three models of 60 MB, one of which fits."""
    return Driver(models, APPS, policy, {"cpu": resident}, device={"cpu": {"memory": budget}})


def test_a_model_that_was_loaded_serves_before_it_goes_again():
    world = small()
    world.arrive("an")
    world.finish("copy:cpu", at=1)
    world.arrive("ao", at=2, count=3)  # wanted more, but n was loaded for another request
    assert world.finish("copy:cpu", at=6) == [ran("n", 1)]
    assert world.finish("cpu0", at=16)[1:] == [like(EvictModel, model="n"), like(LoadModel, model="o")]


def test_a_request_is_refused_when_its_model_cannot_be_loaded_in_time():
    world = small()
    assert world.arrive("an", slo=14) == [ended(1, "rejected", "cannot_make_deadline")]
    assert world.arrive("an", slo=15) != []


def test_a_load_that_keeps_failing_fails_those_who_wait():
    world = small(resident=())
    world.arrive("an", slo=5000)
    pause = LOAD_RETRY_NS / MS
    assert world.finish("copy:cpu", at=5, failed="out of memory") == []
    assert world.wake_ms == 5 + pause
    assert world.pass_time(5 + pause) == [like(LoadModel, model="n")]
    world.finish("copy:cpu", failed="out of memory")
    world.pass_time(5 + 2 * pause)
    assert world.finish("copy:cpu", failed="out of memory") == [
        ended(1, "failed", "model 'n' could not be loaded: out of memory")
    ]
    world.over()


def test_loads_are_kept_outstanding_for_a_few_milliseconds_only():
    world = small(resident=(), budget="1GB")
    world.arrive("am")
    assert world.arrive("an") == [like(LoadModel, model="n")]  # the first ends within 5 ms
    assert world.arrive("ao") == []
    assert world.wake_ms == 5
    assert world.step(at=5) == [like(LoadModel, model="o")]


def test_a_cancelled_request_wants_no_model_any_more():
    world = small()
    world.arrive("am")
    world.arrive("an", at=1)
    world.cancel(2, at=2)
    assert world.finish("cpu0", at=10) == [ended(1, "completed")]


def test_a_copy_lane_that_goes_down_gives_its_memory_back_and_loads_again():
    world = small(resident=())
    world.arrive("an", slo=5000)
    world.lane("copy:cpu", up=False, at=2)
    assert world.scheduler.devices["cpu"].used_bytes == 0
    assert world.lane("copy:cpu", at=3) == []
    assert world.pass_time(2 + LOAD_RETRY_NS / MS) == [like(LoadModel, model="n")]


# --- classes ----------------------------------------------------------------------------------------------------------


def critical(background_ms=30, **keys):
    apps = {
        "c": {"model": "m", "class": "critical", "slo": "30ms"},
        "bg": {"model": "n", "class": "background", "slo": "5s"},
    }
    return Driver({"m": {1: 10, **keys.pop("m", {})}, "n": {1: background_ms, **keys.pop("n", {})}}, apps, **keys)


def test_background_work_that_would_block_the_next_critical_request_yields_for_a_while():
    world = critical()
    world.arrive("c", at=0)
    world.arrive("bg", at=1)
    assert world.finish(at=10) == [ended(1, "completed")]
    assert world.wake_ms == MEMORY_NS / MS
    assert world.pass_time(1000) == [ran("n", 2)]


def test_background_work_does_not_yield_on_a_lane_that_no_critical_app_uses():
    world = critical(lane={"gpu0": {}, "cpu0": {}}, m={"lanes": ["gpu0"]}, n={"lanes": ["cpu0"]})
    world.arrive("c", at=0)
    assert world.arrive("bg", at=1) == [ran("n", 2, lane="cpu0")]


# --- what is learnt ---------------------------------------------------------------------------------------------------


def test_an_estimate_that_became_too_pessimistic_is_forgotten_although_nothing_runs():
    world = one()
    world.arrive("a")
    world.finish(at=90)  # nine times the profile: for a while nothing with a tighter deadline is accepted
    assert world.arrive("a", at=200, slo=50) == [ended(2, "rejected", "cannot_make_deadline")]
    assert world.arrive("a", at=20_000, slo=50) == [ran("m", 3)]


# --- what a policy is told of lanes and devices -----------------------------------------------------------------------


CHANGED = ("lane", "device", "up", "speed", "memory_free_bytes", "heat", "power_w")


class Listener(Fifo):
    """Writes down what it is told."""

    def __init__(self, name, apps, options):
        super().__init__(name, apps, options)
        self.told = []

    def on_lost(self, work, board):
        self.told.append(("lost", [job.id.request_id for job in work.jobs], [job.state for job in work.jobs]))

    def on_finished(self, work, started_ns, finished_ns, board):
        self.told.append(("finished", [job.id.request_id for job in work.jobs]))

    def on_device(self, change, board):
        self.told.append({name: getattr(change, name) for name in CHANGED if getattr(change, name) not in (None, "")})


@pytest.fixture
def listener(monkeypatch):
    monkeypatch.setitem(POLICIES, "listener", Listener)
    world = Driver(
        {"m": {1: 10}},
        {"a": "m"},
        policy="listener",
        lane={"l0": {"device": "d", "ahead": "50ms", "hang": "100ms"}},
        device={"d": {"memory": "1GB"}},
    )
    world.told = world.scheduler.policies[0].told
    return world


def test_a_batch_lost_with_its_lane_tells_its_policy_before_its_jobs_move(listener):
    listener.arrive("a", count=2)
    listener.lane("l0", up=False, at=5)
    assert listener.told == [("lost", [1], ["running"]), ("lost", [2], ["running"]), {"lane": "l0", "up": False}]
    assert (listener.outcome(1), listener.outcome(2)) == ("failed", "")


def test_a_batch_on_a_lane_that_hangs_tells_its_policy_once(listener):
    listener.arrive("a", slo=1000)
    listener.step(at=110)
    assert listener.told == [("lost", [1], ["running"]), {"lane": "l0", "up": False}]
    listener.finish(at=500)  # it comes back after all: nothing was finished
    assert listener.told[2:] == []


def test_what_changed_is_said_and_nothing_else(listener):
    listener.step(LaneChanged("l0", speed=0.5), at=1)
    assert listener.scheduler.state.lanes["l0"].up
    listener.step(LaneChanged("l0", up=False), at=2)
    listener.step(LaneChanged("l0", speed=0.25), at=3)  # another speed does not bring it up
    assert not listener.scheduler.state.lanes["l0"].up
    listener.step(LaneChanged("l0", up=True), at=4)  # and coming up changes no speed
    assert listener.scheduler.state.latency["m", "l0"].typical_ns[1] == 40 * MS
    listener.step(LaneChanged("l0", True, 0.25), DeviceChanged("d", 5 * 10**8, power_w=9.0), at=5)
    listener.step(DeviceChanged("d", 5 * 10**8, heat=0.7, power_w=9.0), at=6)
    assert listener.told == [
        {"lane": "l0", "speed": 0.5},
        {"lane": "l0", "up": False},
        {"lane": "l0", "speed": 0.25},
        {"lane": "l0", "up": True},
        {"device": "d", "memory_free_bytes": 5 * 10**8, "power_w": 9.0},
        {"device": "d", "heat": 0.7},
    ]


def test_a_clock_that_jitters_is_no_news_but_drift_adds_up(listener):
    for at, speed in enumerate((0.99, 1.01, 0.985, 1.015)):
        listener.step(LaneChanged("l0", speed=speed), at=at)
    assert listener.told == [] and listener.scheduler.state.latency["m", "l0"].typical_ns[1] == 10 * MS
    for at, speed in enumerate((0.99, 0.985, 0.97), 10):
        listener.step(LaneChanged("l0", speed=speed), at=at)
    assert listener.told == [{"lane": "l0", "speed": 0.97}]


def test_a_policy_without_open_requests_is_asked_nothing_after_its_last_plan(monkeypatch):
    class Asked(Fifo):
        def __init__(self, name, apps, options):
            super().__init__(name, apps, options)
            self.asked = []

        def plan(self, board):
            self.asked.append("plan")

        def bid(self, lane, board):
            self.asked.append("bid")
            return super().bid(lane, board)

        def next_wakeup_ns(self, board):
            self.asked.append("wake-up")
            return None

        def take(self):
            taken, self.asked = self.asked, []
            return taken

    monkeypatch.setitem(POLICIES, "asked", Asked)
    apps = {name: {"model": "m", "policy": name} for name in ("one", "other")}
    world = Driver({"m": {1: 10}}, apps, policy={"one": {"kind": "asked"}, "other": {"kind": "asked"}})
    one, other = world.scheduler.policies
    world.step(at=0)
    assert one.take() == other.take() == ["plan"]
    world.arrive("one")
    assert one.take() == ["plan", "bid", "wake-up"] and other.take() == []
    world.finish(at=10)
    assert one.take() == ["plan"] and other.take() == []
    world.arrive("other", at=20)
    assert one.take() == [] and other.take() == ["plan", "bid", "wake-up"]
    world.lane("cpu0", at=21, speed=0.5)
    assert one.take() == ["plan"] and other.take() == ["plan", "wake-up"]
    world.step(at=22)
    assert one.take() == [] and other.take() == ["plan", "wake-up"]


def test_a_request_expires_also_where_many_with_later_deadlines_have_ended():
    models = {"m": {1: 1, "lanes": ["x"]}, "slow": {1: 9000, "lanes": ["y"]}}
    apps = {"a": {"model": "m", "slo": "1000s"}, "b": {"model": "slow", "slo": "20s"}}
    world = Driver(models, apps, "fifo", lane={"x": {}, "y": {}})
    world.arrive("b", on_late="answer")
    world.arrive("b", slo=5000)
    for at in range(1100):
        world.arrive("a", at=at)
        world.finish("x", at=at + 1)
    world.pass_time(5000)
    assert world.outcome(2) == "dropped"
