"""pard by hand: Eq. 3 and its tie, forming batches, both ends of the queue, graphs, the rules it is compared with."""

from __future__ import annotations

import pytest
from hand_world import Driver, ended, ids, ran

from edgeserve.sched.policy_api.expected_end import ExpectedEnd
from edgeserve.sched.protocol.actions import RunBatch
from edgeserve.sched.protocol.events import RequestArrived
from edgeserve.sched.published.pard.pard import PROACTIVE

NS = 1e-6  # of a millisecond


def chain(times=None, slo=100, policy="pard", nodes=None, lanes=1, app=None, **options):
    """Modules a > b > c with lanes of their own (a0, a1, ..., b0, ...); every batch takes 10 ms unless said."""
    times = times or {name: {1: 10} for name in "abc"}
    models = {name: {**sizes, "lanes": [f"{name}{index}" for index in range(lanes)]} for name, sizes in times.items()}
    names = {f"{name}{index}": {} for name in times for index in range(lanes)}
    table = {"slo": f"{slo}ms", "node": nodes or [{"name": name} for name in times], **(app or {})}
    return Driver(models, {"app": table}, policy={policy: {"lam": 0.0, **options}}, lane=names)


def burst(world, *deadlines, at=None, **fields):
    """Requests with these deadlines (ms from now) arrive in one step."""
    world.now_ms = world.now_ms if at is None else at
    return world.step(*[RequestArrived(world.request("app", slo, **fields)) for slo in deadlines])


def pard(world):
    return world.scheduler.policies[0]


# --- the test: Eq. 3 --------------------------------------------------------------------------------------------------


def test_a_request_whose_estimate_is_exactly_its_deadline_is_kept():
    world = chain()
    assert burst(world, 30) == [ran("a", 1)]


def test_a_nanosecond_later_it_is_dropped_before_the_first_module_and_the_story_says_where():
    world = chain()
    assert burst(world, 30 - NS) == [ended(1, "dropped", PROACTIVE)]
    assert any("before a - late by 1ns" in line for line in world.scheduler.story(1))
    assert pard(world).dropped == {"a": 1, "b": 0, "c": 0}


def test_the_start_of_the_forming_batch_counts_not_now():
    world = chain()
    burst(world, 100)
    # At 4 ms: it waits for the batch that ends at 10, runs until 20, then two more modules: 40 - 4 = 36 ms of its own.
    assert burst(world, 36, at=4) == []
    assert burst(world, 36 - NS, at=4) == []  # the forming batch is full, so it is not judged yet
    world.finish("a0", at=10)
    assert world.outcome(3) == "dropped" and world.outcome(2) == ""


BATCHED = {name: {1: 10, 4: 40} for name in "abc"}


def test_batches_may_count_as_those_that_run_instead_of_as_full():
    assert burst(chain(BATCHED, plan=0), 100) == [ended(1, "dropped", PROACTIVE)]  # full ones would take 120
    world = chain(BATCHED, plan=0, batch_times="measured")
    assert burst(world, 30) == [ran("a", 1)]
    # Two would be a batch of 4: 10 + 40 + 20 > 49. When one is given up, the other is in time alone.
    assert burst(world, 48, 48, at=1) == [ended(2, "dropped", PROACTIVE)]


def test_batches_count_as_those_that_run_where_modules_share_a_lane_unless_told_otherwise():
    def shared(**options):
        return Driver(
            BATCHED,
            {"app": {"slo": "100ms", "node": [{"name": name} for name in BATCHED]}},
            policy={"pard": {"lam": 0.0, "plan": 0, **options}},
            lane={"l": {}},
        )

    assert burst(shared(), 100) == [ran("a", 1)]
    assert burst(shared(batch_times="full"), 100) == [ended(1, "dropped", PROACTIVE)]


def test_what_ran_in_the_window_counts_for_the_modules_behind():
    world = chain(BATCHED, plan=0, batch_times="measured", sync_ms=100, window_ms=1000)
    burst(world, *[200] * 4)
    for lane, at in (("a0", 40), ("b0", 80), ("c0", 120)):
        world.finish(lane, at=at)
    world.step(at=130)
    assert burst(world, 89) == [ended(5, "dropped", PROACTIVE)]  # 10 + 40 + 40
    assert burst(world, 90) == [ran("a", 6)]
    for lane, at in (("a0", 140), ("b0", 150), ("c0", 160)):
        world.finish(lane, at=at)
    assert burst(world, 1, at=2000) == [ended(7, "dropped", PROACTIVE)]  # what ran is too long ago
    assert burst(world, 30, at=2100) == [ran("a", 8)]


@pytest.mark.parametrize(
    ("rule", "least"), [("pard", 30), ("lower", 30), ("upper", 50), ("sf", 30), ("back", 10), ("oc", 10)]
)
def test_what_each_rule_counts_behind_the_module(rule, least):
    world = chain(rule=rule)
    assert burst(world, least) == [ran("a", 1)]
    world = chain(rule=rule)
    assert burst(world, least - NS) == [ended(1, "dropped", PROACTIVE)]


def test_a_late_request_that_is_answered_all_the_same_takes_a_place_that_nobody_needs():
    world = chain(app={"on_late": "answer"})
    burst(world, 100, 5, 90)
    order = [ids(world.work("a0").jobs)[0]]
    for at in (10, 20):
        world.finish("a0", at=at)
        order.append(ids(world.work("a0").jobs)[0])
    assert order == [3, 1, 2]  # the least budget first, and the late one last
    assert world.ends == {}


# --- forming batches --------------------------------------------------------------------------------------------------


def test_ahead_the_batch_forms_when_the_one_before_it_starts():
    world = chain({"a": {1: 10, 2: 12}})
    burst(world, 100)
    burst(world, 30, at=1)  # judged now, with a start at 10 and 12 ms for a full batch: 22 of 31
    assert world.wake_ms == 31  # nothing but its deadline is left to watch
    burst(world, 21 - NS, at=1)  # it would end at 22
    assert world.outcome(3) == "dropped"
    world.finish("a0", at=10)
    assert ids(world.work("a0").jobs) == [2]


def test_just_in_time_the_batch_forms_when_the_lead_is_left():
    world = chain({"a": {1: 10, 2: 12}}, policy="pard+", lead_ms=3.0)
    burst(world, 100)
    burst(world, 20, at=1)  # hopeless (it would end at 22), but not judged before 7
    assert world.outcome(2) == "" and world.wake_ms == 7
    assert world.step(at=7) == [ended(2, "dropped", PROACTIVE)]


def test_a_second_look_at_the_start_drops_what_noise_made_late():
    for recheck, outcome in ((True, "dropped"), (False, "")):
        world = chain({"a": {1: 10}}, recheck=recheck)
        burst(world, 100)
        burst(world, 20, at=1)  # would end at 20 of 21
        world.finish("a0", at=13)
        assert world.outcome(2) == outcome


def test_what_waits_for_a_lane_that_is_gone_goes_to_another():
    world = chain({"a": {1: 10}}, lanes=2, slo=200)
    burst(world, *[200] * 6)
    world.lane("a0", up=False, at=2)
    assert world.outcome(1) == "failed"
    for at in (10, 20, 30, 40, 50):
        world.finish("a1", at=at)
    assert [world.outcome(number) for number in range(2, 7)] == ["completed"] * 5


# --- which request ----------------------------------------------------------------------------------------------------


def test_the_least_budget_first_or_the_most():
    for order, first in (("lbf", 4), ("hbf", 3), ("fcfs", 3), ("adaptive", 4)):
        world = chain({"a": {1: 10}}, order=order)
        burst(world, 100)
        burst(world, 90, at=1)
        world.finish("a0", at=10)
        burst(world, 90, 60, 80, at=11)  # 3, 4 and 5, while 2 runs
        world.finish("a0", at=20)
        assert ids(world.work("a0").jobs) == [first], order


def test_with_the_most_budget_first_the_hopeless_do_not_pile_up_at_the_low_end():
    world = chain({"a": {1: 10}}, order="hbf")
    burst(world, 100, 100, 90, 25)
    assert world.outcome(4) == ""  # the first two hold lane and forming batch; at their start it could still be
    world.finish("a0", at=10)
    assert world.outcome(4) == "dropped"  # the forming batch now starts at 20


# --- graphs -----------------------------------------------------------------------------------------------------------

DIAMOND = [
    {"name": "a", "after": []},
    {"name": "b", "after": ["a"]},
    {"name": "c", "after": ["a"]},
    {"name": "d", "after": ["b", "c"]},
]


def diamond(**options):
    return chain({"a": {1: 10}, "b": {1: 10}, "c": {1: 25}, "d": {1: 10}}, nodes=DIAMOND, **options)


def test_of_several_paths_the_longest_counts():
    assert burst(diamond(), 45) == [ran("a", 1)]
    assert burst(diamond(), 45 - NS) == [ended(1, "dropped", PROACTIVE)]


# --- the rules it is compared with ------------------------------------------------------------------------------------


def test_clipper_compares_what_was_waited_with_the_modules_share():
    world = chain(rule="clipper++", slo=30)  # shares of 10 ms; nothing is known of what comes
    burst(world, 30, 30)
    world.finish("a0", at=10)  # the second was admitted at once, with no waiting
    assert world.work("a0").jobs[0].request_id == 2
    world = chain(rule="clipper++", slo=30)
    burst(world, 30, 30, 30)
    world.finish("a0", at=10 + NS)
    assert world.outcome(3) == "dropped"


def test_split_compares_the_latency_in_the_module_with_its_share():
    world = chain(rule="split", slo=45)  # shares of 15 ms
    burst(world, 45)
    assert burst(world, 45, at=5) == []  # ends at 20: 15 ms after it came
    assert burst(world, 45, at=5) == []
    world = chain(rule="split", slo=45)
    burst(world, 45)
    burst(world, 45, at=5 - NS)
    assert world.outcome(2) == "dropped"


def test_nexus_drops_everything_before_the_first_window_in_time():
    world = chain({"a": {2: 10}}, rule="nexus")
    burst(world, 100)  # runs until 10
    burst(world, 100, 100, at=1)  # forming
    burst(world, 50, 22, 50, 60, at=2)  # two late ones in a window of two: 22 + 2 < 30
    world.finish("a0", at=10)
    assert world.outcome(5) == "dropped" and world.outcome(4) == "dropped"
    world.finish("a0", at=20)
    assert ids(world.work("a0").jobs) == [6, 7]


def test_oc_turns_some_away_while_a_module_is_overloaded():
    world = chain({"a": {1: 10}}, rule="oc", threshold_ms=5.0, sync_ms=100.0, slo=2000)
    at = 0
    burst(world, *[2000] * 40)
    while any(isinstance(action, RunBatch) for action in world.on_lane.values()):
        at += 10
        world.finish("a0", at=at)
    turned_away = pard(world).dropped["a"]
    assert 5 <= turned_away <= 25
    assert sorted(world.outcome(number) for number in range(1, 41)).count("completed") == 40 - turned_away


# --- one lane for all -------------------------------------------------------------------------------------------------


def single(across, **options):
    models = {name: {1: 10, 2: 12} for name in "ab"}
    return Driver(
        models,
        {"app": {"slo": "300ms", "node": [{"name": "a"}, {"name": "b"}]}},
        policy={"pard": {"lam": 0.0, "across": across, **options}},
        lane={"l": {}},
    )


@pytest.mark.parametrize(
    ("across", "models"),
    [
        ("round_robin", "abab"),
        ("downstream", "abab"),
        ("fifo", "aabb"),
        ("fullest", "abab"),
        ("edf", "abab"),
        ("least_slack", "aabb"),
    ],
)
def test_which_module_goes_next_on_a_lane_of_several(across, models):
    world = single(across)
    burst(world, 300, 300, 300, 300)
    ran_models = []
    for _ in range(4):
        ran_models.append(world.work("l").model)
        world.finish("l", at=world.now_ms + 12)
    assert "".join(ran_models) == models
    assert world.scheduler.open_count == 0


def test_on_a_lane_of_several_the_batch_forms_when_the_lane_asks():
    world = single("round_robin")
    burst(world, 300)
    burst(world, 30, at=1)  # would be 10 + 12 + 12; no request is judged while the lane runs
    assert world.outcome(2) == ""
    world.finish("l", at=10)
    assert world.work("l").model == "b"
    assert world.finish("l", at=20)[1:] == [ended(2, "dropped", PROACTIVE)]


# --- a request counts once, however many of its branches were given up -----------------------------------------------


def forked(**options):
    """Request 1 holds b and c for longer than expected; request 2, which is due 40 ms after the start, has run at a and
    stands in both forming batches."""
    world = chain({"a": {1: 10}, "b": {1: 10}, "c": {1: 10}, "d": {1: 10}}, nodes=DIAMOND, **options)
    burst(world, 100)
    burst(world, 39, at=1)
    world.finish("a0", at=10)
    world.finish("a0", at=19)
    assert sorted(job.node.name for job in pard(world).queued()) == ["b", "c"] and not world.ends
    return world


def test_a_drop_in_two_branches_is_one():
    world = forked(rule="back", recheck=True)
    actions = world.step(world.finished("b0", at=35), world.finished("c0"))
    assert actions.count(ended(2, "dropped", PROACTIVE)) == 1
    assert sum(pard(world).dropped.values()) == 1 and sum(pard(world).expired.values()) == 0
    world.finish("d0", at=45)
    world.over()
    assert world.outcome(1) == "completed"


def test_giving_up_branches_of_a_request_that_is_answered_in_part_is_no_drop_while_it_goes_on():
    world = forked(rule="back", recheck=True, app={"on_late": "partial"})
    world.finish("b0", at=35)  # the branch to b is given up, the other may still be in time
    assert world.outcome(2) == "" and sum(pard(world).dropped.values()) == 0
    world.finish("c0", at=36)
    assert world.outcome(2) == "dropped" and sum(pard(world).dropped.values()) == 1
    world.finish("d0", at=46)
    world.over()


def test_a_deadline_that_passes_in_two_queues_is_one():
    world = forked(rule="naive")
    assert world.step(at=40) == [ended(2, "dropped", "expired")]
    assert sum(pard(world).expired.values()) == 1 and sum(pard(world).dropped.values()) == 0


def test_a_cancelled_request_whose_deadline_is_over_has_not_expired():
    world = forked(rule="naive", app={"on_late": "answer"})
    world.cancel(2, at=60)
    assert world.outcome(2) == "cancelled" and sum(pard(world).expired.values()) == 0


# --- jobs do not stay with a lane that cannot run them ---------------------------------------------------------------


def devices(resident, shared=False, resident_1=None, **app):
    """Model m may run on two devices; with ``shared`` both lanes serve a second module of pard, too."""
    models = {"m": {1: 10, "memory": "60MB", "load": "5ms"}, "z": {1: 10, "memory": "60MB", "load": "5ms"}}
    apps = {
        "app": {"model": "m", "policy": "pard", "slo": "100ms", **app},
        "other": {"model": "z", "policy": "pard" if shared else "fifo", "slo": "400ms"},
    }
    return Driver(
        models,
        apps,
        policy={"pard": {"lam": 0.0}, "fifo": {}},
        resident={"d0": resident, "d1": resident if resident_1 is None else resident_1},
        device={"d0": {"memory": "100MB"}, "d1": {"memory": "100MB"}},
        lane={"l0": {"device": "d0"}, "l1": {"device": "d1"}},
    )


@pytest.mark.parametrize("shared", [False, True])
def test_what_waits_for_a_model_that_is_not_loaded_here_runs_where_it_is_in_memory(shared):
    world = devices([], shared, on_late="answer")
    world.arrive("app", count=2)  # one waits for each lane, and both devices load the model
    world.finish("copy:d1", failed="out of memory", at=4)
    assert ran("m", 1) in world.finish("copy:d0", at=5)  # the other load is not tried again: this copy serves
    assert ran("m", 2) in world.finish("l0", at=15)
    world.finish("l0", at=25)
    assert [world.outcome(number) for number in (1, 2)] == ["completed"] * 2


# --- options have bounds, and the page has the defaults ---------------------------------------------------------------


def test_who_waits_is_expected_to_end_as_the_rule_sees_it():
    world = chain()
    burst(world, 100, 100)
    policy, board = pard(world), world.scheduler.state.board
    (job,) = policy.queued()
    assert policy.expected_end(job.request, job, board) == ExpectedEnd("a0", 10_000_000, 30_000_000, 40_000_000)
    world = chain(rule="split", slo=90)
    burst(world, 90, 90)
    policy, board = pard(world), world.scheduler.state.board
    (job,) = policy.queued()  # a third of its time for a: 20 of 30 ms
    assert policy.expected_end(job.request, job, board) == ExpectedEnd("a0", 10_000_000, 30_000_000, 60_000_000)
