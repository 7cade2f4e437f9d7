"""Host functions in and around a cohort (``pard_local``): what runs ahead, what runs beside, what the home may do."""

from __future__ import annotations

import random

from exact_device import MS, Device, ask, model

from edgeserve.sched.protocol.events import RequestCancelled


def pipeline(*stages, slo_ms=200, **options):
    """A chain of models on ``gpu`` and functions on ``host``: (name, lane, fixed, each, limit)."""
    return {
        "lane": {"gpu": {}, "host": {}},
        "model": {name: model(fixed, each, limit, lanes=[lane]) for name, lane, fixed, each, limit in stages},
        "policy": {"p": {"kind": "pard_local", **options}},
        "app": {"app": {"slo": f"{slo_ms}ms", "node": [{"name": stage[0]} for stage in stages]}},
    }


AT_ENTRY = (("f", "host", 0, 4, 1), ("a", "gpu", 10, 2, 8))


def test_functions_at_the_entry_run_ahead_while_a_cohort_has_the_device():
    device = Device(pipeline(*AT_ENTRY))
    device.ask(ask(1, 200))
    device.advance(4)
    device.now_ns = 5 * MS  # request 1 is on the device from 4 to 16
    device.ask(ask(2, 200), ask(3, 200))
    device.advance()
    assert device.batches == [(0.0, "f", [1]), (4.0, "a", [1]), (5.0, "f", [2]), (9.0, "f", [3]), (16.0, "a", [2, 3])]


def test_urgent_requests_run_ahead_before_tighter_ones():
    device = Device(pipeline(*AT_ENTRY))
    device.ask(ask(1, 200))
    device.now_ns = 1 * MS
    device.ask(ask(2, 100), ask(3, 190, klass="critical"))
    device.advance(12)
    assert [jobs for _, name, jobs in device.batches if name == "f"] == [[1], [3], [2]]


def test_a_function_at_the_end_holds_nobody_up_and_answers_one_by_one():
    device = Device(pipeline(("a", "gpu", 10, 2, 8), ("f", "host", 0, 6, 1)))
    # Four are over on the device at 30 and answered at 36, 42, 48 and 54: in time only one after the other.
    device.ask(ask(1, 200))
    device.now_ns = 1 * MS
    device.ask(ask(2, 37), ask(3, 43), ask(4, 50), ask(5, 300))
    device.advance(12)
    device.now_ns = 13 * MS
    device.ask(ask(6, 300))
    device.advance()
    assert (12.0, "a", [2, 3, 4, 5]) in device.batches
    assert (30.0, "a", [6]) in device.batches  # while the four wait for the function
    assert all(outcome == "completed" for outcome, _ in device.ends.values())


def test_a_stage_behind_functions_begins_as_soon_as_its_first_batch_is_full():
    device = Device(pipeline(("a", "gpu", 10, 2, 8), ("f", "host", 0, 5, 1), ("b", "gpu", 4, 2, 2)))
    device.ask(*[ask(number, 300) for number in range(1, 5)])
    device.advance()
    at = {tuple(jobs): start for start, name, jobs in device.batches if name == "b"}
    first = next(start for start, name, jobs in device.batches if name == "f")
    assert at[1, 2] == first + 10  # and not when the fourth has its function behind it
    assert all(len(jobs) == 2 for jobs in at)


def test_a_request_that_is_cancelled_while_it_runs_ahead_is_forgotten():
    device = Device(pipeline(*AT_ENTRY))
    device.ask(ask(1, 200), ask(2, 200))
    device.now_ns = 2 * MS
    device.step(RequestCancelled(1))
    device.advance()
    assert device.ends == {1: ("cancelled", 2.0), 2: ("completed", 20.0)}
    assert not device.scheduler.policies[0]._members


def test_where_more_come_than_one_cohort_after_the_other_can_serve_two_take_turns():
    """A cohort of eight needs the device for 55 ms, the function for 30 and the device for 25: with more in it there
    is no time for another in between."""
    draw = random.Random(204)
    device = Device(
        pipeline(("a", "gpu", 30.5, 3, 16), ("f", "host", 0, 3.8, 1), ("b", "gpu", 10.5, 1.8, 8), slo_ms=216)
    )
    at_ms, number = 0.0, 0
    while at_ms < 4000:
        at_ms += draw.expovariate(0.14)
        number += 1
        device.advance(round(at_ms))
        device.now_ns = round(at_ms) * MS
        device.ask(ask(number, round(at_ms) + 216, round(at_ms)))
    device.advance()
    in_time = sum(outcome == "completed" for outcome, _ in device.ends.values())
    assert in_time >= 0.66 * number


def test_who_is_in_an_early_batch_is_answered_early_also_behind_functions():
    # Together: a until 24, b until 38 and 52, answers at 39, 40, 53 and 54. In pairs the second would end at 74.
    device = Device(pipeline(("a", "gpu", 20, 1, 8), ("b", "gpu", 10, 2, 2), ("f", "host", 0, 1, 1)))
    device.ask(ask(1, 39), ask(2, 40), ask(3, 53), ask(4, 54))
    device.advance(60)
    assert device.batches == [
        (0.0, "a", [1, 2, 3, 4]),
        (24.0, "b", [1, 2]),
        (38.0, "b", [3, 4]),
        (38.0, "f", [1]),
        (39.0, "f", [2]),
        (52.0, "f", [3]),
        (53.0, "f", [4]),
    ]
    late = Device(pipeline(("a", "gpu", 20, 1, 8), ("b", "gpu", 10, 2, 2), ("f", "host", 0, 1, 1)))
    late.ask(ask(1, 38), ask(2, 39), ask(3, 53), ask(4, 54))  # a millisecond too early for the four
    late.advance(60)
    assert late.batches[0] != (0.0, "a", [1, 2, 3, 4])
