"""clockwork: worked examples by hand, and the walk over the strategy queue, literally, as an oracle."""

from __future__ import annotations

from hand_world import MS, Driver, ended, ids, like, ran
from hypothesis import given
from hypothesis import strategies as st

from edgeserve.sched.protocol.actions import FinishRequest, RunBatch
from edgeserve.sched.protocol.events import RequestArrived

RESNET = {1: 3, 2: 5, 4: 8, 8: 14}


def clockwork(models=None, apps=None, **options):
    sections = options.pop("sections", {})
    return Driver(models or {"m": RESNET}, apps or {"a": "m"}, policy={"clockwork": options}, **sections)


def burst(world, *deadlines, app="a", **fields):
    return world.step(*[RequestArrived(world.request(app, slo, **fields)) for slo in deadlines])


def test_requests_that_answer_late_are_not_dropped_when_overtaken_and_run_when_nothing_else_can():
    world = clockwork()
    assert burst(world, 4, 9, 10, 11, 12, on_late="answer") == [ran("m", 2, 3, 4, 5, size=4)]
    assert world.finish(at=8)[4:] == [ran("m", 1)]


def test_a_request_none_of_whose_strategies_can_complete_is_refused_at_once():
    world = clockwork()
    assert world.arrive("a", slo=2) == [ended(1, "rejected", "cannot_make_deadline")]
    burst(world, 50, 50)
    assert world.arrive("a", at=1, slo=6) == [ended(4, "rejected", "cannot_make_deadline")]  # busy until 5
    assert world.arrive("a", at=1, slo=7) == []
    assert world.lane("cpu0", speed=0.5, at=2) == [ended(5, "dropped", "cannot_make_deadline")]


def test_an_action_carries_a_window_and_one_that_misses_it_fails_without_a_retry():
    world = clockwork()
    assert burst(world, 90, 90) == [like(RunBatch, start_before_ns=10 * MS)]
    assert world.refuse(at=11) == [ended(1, "dropped", "window_missed"), ended(2, "dropped", "window_missed")]
    assert clockwork(window_ms=2).arrive("a", at=5) == [like(RunBatch, start_before_ns=7 * MS)]


def test_the_window_of_an_action_sent_ahead_begins_when_the_lane_is_free():
    world = clockwork(sections={"lane": {"cpu0": {"ahead": "5ms"}}})
    burst(world, *[90] * 4)
    world.arrive("a", at=1)
    assert world.wake_ms == 3
    assert world.step(at=3) == [ran("m", 5, start_before_ns=18 * MS)]


def test_a_refused_request_that_is_answered_late_anyway_is_tried_again():
    world = clockwork()
    world.arrive("a", on_late="answer")
    assert world.refuse(at=11) == [ran("m", 1)]


def test_the_margin_plans_for_an_earlier_deadline():
    assert burst(clockwork(), *[10] * 4) == [ran("m", 1, 2, 3, 4)]
    assert burst(clockwork(margin_ms=5), *[10] * 4) == [ran("m", 1, 2)]


def test_estimates_are_the_maximum_of_the_last_ten():
    world = clockwork({"m": {1: 3}})
    world.arrive("a")
    world.finish(at=20)
    for step in range(9):
        world.arrive("a", at=100 + 10 * step)
        world.finish(at=103 + 10 * step)
        assert world.scheduler.state.latency["m", "cpu0"].estimate_ns[1] == 20 * MS
    world.arrive("a", at=200)
    world.finish(at=203)
    assert world.scheduler.state.latency["m", "cpu0"].estimate_ns[1] == 3 * MS


# --- the oracle -------------------------------------------------------------------------------------------------------


def walk(requests, models, available):
    """Appendix B, literally: one strategy per request and batch size in one queue by required start; the first that is
    not too big, not too small and not too late. ``requests``: (id, model, deadline). Returns (model, ids) or None."""
    strategies = sorted(
        (deadline - took, model, size, deadline, number)
        for number, model, deadline in requests
        for size, took in models[model].items()
    )

    def eligible(model, size):
        return [
            (deadline, number)
            for number, of, deadline in requests
            if of == model and available + models[model][size] <= deadline
        ]

    for _, model, size, deadline, _ in strategies:
        if available + models[model][size] > deadline:
            continue  # cannot complete
        if len(eligible(model, size)) < size:
            continue  # too big
        if any(other > size and len(eligible(model, other)) >= other for other in models[model]):
            continue  # too small
        return model, [number for _, number in sorted(eligible(model, size))[:size]]
    return None


TABLES = [
    {"m": {1: 3, 2: 5, 4: 8}, "n": {1: 10, 2: 11}, "o": {1: 2, 4: 5}},
    {"m": {1: 4, 2: 7, 4: 13}, "n": {1: 4, 4: 6}, "o": {2: 9, 4: 10}},
]


@given(st.lists(st.tuples(st.sampled_from("mno"), st.integers(1, 30)), min_size=1, max_size=9), st.sampled_from(TABLES))
def test_one_candidate_per_model_takes_the_same_step_as_the_walk(asked, models):
    world = clockwork(models, {name: name for name in models})
    events = [RequestArrived(world.request(name, slo)) for name, slo in asked]
    world.step(*events)
    refused = {action.request_id for action in world.of(FinishRequest) if action.outcome == "rejected"}
    for number, (name, slo) in enumerate(asked, 1):  # refused: no strategy can complete on the idle lane
        assert (number in refused) == (min(models[name].values()) > slo)
    expected = walk(
        [(number, name, slo) for number, (name, slo) in enumerate(asked, 1) if number not in refused], models, 0
    )
    ran_now = [(batch.model, ids(batch.jobs)) for batch in world.of(RunBatch)]
    assert ran_now == ([] if expected is None else [expected])
    overtaken = {action.request_id for action in world.of(FinishRequest)} - refused
    if expected is not None:
        model, members = expected
        first = min((asked[number - 1][1], number) for number in members)
        assert overtaken == {
            number
            for number, (name, slo) in enumerate(asked, 1)
            if name == model and number not in refused and number not in members and (slo, number) < first
        }
