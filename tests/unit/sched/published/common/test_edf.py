"""edf: earliest deadline first with the batch that saves most; critical first; what cannot make it is given up."""

from __future__ import annotations

from hand_world import MS, Driver, app_of, ended, ids, job, like, ran
from hypothesis import given
from hypothesis import strategies as st

from edgeserve.sched.latency.lane_gaps import DISPATCH_EVERY as LEARNT_MIN
from edgeserve.sched.policies.common.model_queues import ModelQueues
from edgeserve.sched.protocol.actions import RunBatch
from edgeserve.sched.protocol.events import RequestArrived

GAIN = {1: 10, 2: 12, 4: 16}  # larger batches save more per lane time


def edf(times=GAIN, apps=None, **options):
    sections = options.pop("sections", {})
    return Driver({"m": times}, apps or {"a": "m"}, policy={"edf": options}, **sections)


def burst(world, *deadlines, **fields):
    """Requests with these deadlines (ms from now) arrive in one step."""
    return world.step(*[RequestArrived(world.request("a", slo, **fields)) for slo in deadlines])


def test_a_tight_head_does_not_shrink_the_batch():
    # Cut to what the first can bear, the batch would be 1 in 10 ms; four that are in time in 16 ms save more.
    world = edf()
    assert burst(world, 11, 40, 40, 40, 40) == [ran("m", 2, 3, 4, 5, size=4)]
    assert world.step(at=2) == [ended(1, "dropped", "cannot_make_deadline")]


def test_a_batch_runs_in_the_smallest_size_that_holds_it():
    assert burst(edf(), 90, 90, 90) == [ran("m", 1, 2, 3, size=4, expected_ns=16 * MS)]
    assert burst(edf(batch_max=2), 90, 90, 90) == [ran("m", 1, 2, size=2)]


def test_the_smallest_size_is_used_even_when_the_option_is_below_it():
    world = Driver({"m": {2: 10}}, {"a": "m"}, policy={"edf": {"batch_max": 1}})
    assert world.arrive("a") == [ran("m", 1, size=2)]


def test_what_can_no_longer_be_in_time_is_dropped_at_once():
    world = edf({1: 10})
    burst(world, 90, 25)
    assert ids(world.of(RunBatch)[0].jobs) == [2]
    world.arrive("a", at=1, slo=20)  # 10 ms after the lane is free would be enough
    assert world.step(at=1) == []
    world.lane("cpu0", speed=0.5, at=2)
    assert world.actions == [ended(3, "dropped", "cannot_make_deadline")]


def test_admission_can_be_left_to_the_drop():
    world = edf({1: 10}, admit=False)
    assert world.arrive("a", slo=5) == [ended(1, "dropped", "cannot_make_deadline")]


def test_critical_jobs_enter_the_batch_first():
    world = edf()
    normal, critical = world.request("a", 50), world.request("a", 90, priority_class="critical")
    others = [world.request("a", 50) for _ in range(4)]
    assert world.step(*[RequestArrived(item) for item in (normal, critical, *others)]) == [ran("m", 2, 1, 3, 4)]


def test_the_size_that_loses_fewer_critical_jobs_is_preferred():
    # Four in 16 ms save more, but would come too late for the critical one.
    world = edf()
    critical = world.request("a", 11, priority_class="critical")
    normals = [world.request("a", 60) for _ in range(5)]
    assert world.step(*[RequestArrived(item) for item in (critical, *normals)]) == [ran("m", 1)]


def test_critical_jobs_that_would_be_too_late_for_the_batch_after_are_not_left_out():
    # Two critical ones, both due before a second batch could end: size 2 takes both.
    world = edf({1: 10, 2: 19})
    assert burst(world, 19, 19, priority_class="critical") == [ran("m", 1, 2)]
    relaxed = edf({1: 10, 2: 21})
    assert burst(relaxed, 19, 21, priority_class="critical") == [
        ran("m", 1)
    ]  # size 2 would lose the first, size 1 the second


def test_the_batch_after_begins_a_dispatch_gap_later():
    def starts(dispatch_gap_ms, due):
        world = edf({1: 10, 2: 22.9})
        for _ in range(LEARNT_MIN):
            world.scheduler.state.lanes["cpu0"].dispatch_gap.took(dispatch_gap_ms * MS)
        return burst(world, due, due, priority_class="critical")

    assert starts(0, 22.9) == [ran("m", 1)]
    assert starts(3, 22.9) == [ran("m", 1, 2)]
    assert starts(3, 23) == [ran("m", 1)]


def test_late_answers_are_worth_something_again_after_another_slo():
    world = edf({1: 10})
    world.arrive("a")
    late = world.request("a", 20, on_late="answer")
    world.step(RequestArrived(late), at=1)
    world.arrive("a", at=2, slo=60)
    assert world.pass_time(35) == []
    # At 40 the late one counts as due at 61, behind the other, which is due at 62: both are in time, it goes first.
    assert world.finish(at=40, took=10) == [ended(1, "completed"), ran("m", 2)]
    assert world.finish(at=50) == [ended(2, "completed"), ran("m", 3)]


def test_begun_iterative_jobs_go_before_fresh_ones_of_their_class():
    world = edf({1: 10})
    world.arrive("a", slo=90, hints={"steps": 2})
    world.arrive("a", at=1, slo=60)
    assert world.finish(at=10, status="unfinished") == [ran("m", 1)]
    assert world.finish(at=20) == [ended(1, "completed"), ran("m", 2)]


def test_an_iterative_job_whose_remaining_steps_do_not_fit_is_given_up():
    world = edf({1: 10})
    world.arrive("a", slo=50, hints={"steps": 4})
    assert world.finish(at=20, took=10, status="unfinished") == [ran("m", 1)]  # three more steps end at 50
    assert world.finish(at=31, took=10, status="unfinished") == [ended(1, "dropped", "cannot_make_deadline")]


@given(
    st.lists(st.integers(10, 40), min_size=1, max_size=6),
    st.sampled_from([GAIN, {1: 10, 2: 15, 4: 30}, {1: 10, 2: 20, 4: 25}, {1: 10, 4: 12}]),
)
def test_the_batch_saves_most_per_lane_time_or_almost_and_then_gives_nobody_up(deadlines, times):
    world = edf(times)
    burst(world, *deadlines)
    batch = world.of(RunBatch)[0]
    chosen = [number - 1 for number in ids(batch.jobs)]
    took = times[batch.size]
    best = max(min(size, sum(due >= time for due in deadlines)) / time for size, time in times.items())
    rest = sorted(due for index, due in enumerate(deadlines) if index not in chosen)
    if len(chosen) / took < best:
        then = took + (times[min(size for size in times if size >= len(rest))] if rest else 0)
        assert all(due >= then for due in rest)
        assert len(deadlines) / then >= 0.95 * best
    # Those of them that are in time at its end, the most urgent first: a prefix of the queue.
    in_time = sorted([index for index, due in enumerate(deadlines) if due >= took], key=lambda i: (deadlines[i], i))
    assert chosen == in_time[: len(chosen)]
    assert batch == like(RunBatch, expected_ns=took * MS)


def test_a_smaller_batch_that_costs_nobody_the_deadline_is_taken_for_a_twentieth_of_the_rate():
    world = edf({1: 10, 2: 15, 3: 22})
    assert burst(world, 20, 60, 60, 60) == [ran("m", 1, 2, size=2)]  # three at once: 3 / 22 ms, but the first is late


def test_of_unequal_values_those_of_most_worth_are_served_where_not_all_can_be():
    world = edf({1: 10})
    worths = [world.request("a", 25, value=value) for value in (1.0, 4.0, 2.0)]
    assert world.step(*[RequestArrived(item) for item in worths]) == [ran("m", 2)]
    assert ran("m", 3) in world.finish(at=10)
    assert world.step(at=11) == [ended(1, "dropped", "cannot_make_deadline")]


def test_what_is_worth_more_waits_where_all_can_be_served():
    world = edf({1: 10})
    worths = [world.request("a", 60, value=4.0), world.request("a", 50)]
    assert world.step(*[RequestArrived(item) for item in worths]) == [ran("m", 2)]


def test_the_values_that_clients_give_make_a_bounded_number_of_queues():
    queues = ModelQueues("m")
    app = app_of("m")
    for number in range(1000):
        item = job(number, app)
        item.request.value = 10.0 ** (number / 10 - 50) if number else 0.0
        queues.add(item)
    assert len(queues.queues) < 60
    assert [len(queue.rows) for queue in queues.queues][-1] > 100


def test_a_batch_leaves_out_jobs_that_its_later_steps_would_make_late():
    """Twenty steps of 4 ms in a batch of two are in time, of 7 ms in one of four they are not."""
    world = edf({1: 3, 2: 4, 4: 7})
    assert burst(world, *[100] * 4, hints={"steps": 20}) == [ran("m", 1, 2, size=2)]
