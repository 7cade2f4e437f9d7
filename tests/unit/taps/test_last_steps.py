"""The last steps that a server keeps: bounded, in pages, without a gap or a repetition."""

from __future__ import annotations

from edgeserve.sched.protocol.events import RequestCancelled
from edgeserve.taps import last_steps
from edgeserve.taps.last_steps import LastSteps
from edgeserve.taps.trace import step_of


class Loop:
    """Notify all listeners of a step at each of these times."""

    def __init__(self):
        self.taps = []
        self.steps = LastSteps(self.taps)

    def step(self, now_ns, number):
        for tap in tuple(self.taps):
            tap(now_ns, [RequestCancelled(number)], [])


def filled(count):
    loop = Loop()
    loop.steps.page(0, 0)
    for number in range(1, count + 1):
        loop.step(number * 1000, number)
    return loop.steps


def numbers(page):
    return [step_of(line).events[0].request_id for line in page.lines]


def test_only_the_last_ones_are_kept(monkeypatch):
    monkeypatch.setattr(last_steps, "ASKED_STEPS_MAX", 4)
    page = filled(10).page(0, 0)
    assert (page.first, page.after, numbers(page)) == (7, 10, [7, 8, 9, 10])


def test_what_follows_is_asked_for_by_number():
    steps = filled(6)
    assert numbers(steps.page(4, 0)) == [5, 6]
    empty = steps.page(6, 0)
    assert (empty.first, empty.after, empty.lines) == (7, 6, [])


def test_what_was_forgotten_meanwhile_shows(monkeypatch):
    monkeypatch.setattr(last_steps, "ASKED_STEPS_MAX", 4)
    page = filled(100).page(50, 0)
    assert page.first == 97


def test_pages_join_without_gap_or_repetition(monkeypatch):
    monkeypatch.setattr(last_steps, "PAGE_BYTES_MAX", 300)
    steps, after, found = filled(50), 0, []
    while True:
        page = steps.page(after, 0)
        if not page.lines:
            break
        assert len(page.lines) < 10
        found += numbers(page)
        after = page.after
    assert found == list(range(1, 51))


def test_a_number_from_the_future_brings_nothing():
    page = filled(3).page(99, 0)
    assert page == (4, 3, [])  # what to ask for next: also where a server was started anew


def test_a_number_from_the_future_ends_that_steps_are_kept():
    loop = Loop()
    loop.steps.page(0, 10)
    loop.step(20, 1)
    assert loop.taps
    loop.steps.page(2**62, 30)
    loop.step(40, 2)
    assert loop.taps == []


def test_without_a_number_steps_are_kept_from_the_first_question_and_only_for_some_time():
    loop = Loop()
    loop.step(0, 1)
    assert loop.steps.page(0, 10).lines == []
    loop.step(20, 2)
    page = loop.steps.page(0, 30)
    assert numbers(page) == [2]
    late = 30 + last_steps.ASKED_NS
    loop.step(late - 1, 3)
    assert numbers(loop.steps.page(page.after, late)) == [3]
    loop.step(late + last_steps.ASKED_NS, 4)
    assert loop.taps == []
    assert loop.steps.page(0, late + last_steps.ASKED_NS).lines == []


def test_a_client_that_requests_an_hour_gets_no_more_than_the_last_seconds():
    loop, after, seconds = Loop(), 0, 10**9
    loop.steps.page(0, 0)
    for number in range(1, 3600):
        loop.step(number * seconds, number)
        page = loop.steps.page(after, number * seconds)
        assert numbers(page) == [number], "who asks each second misses none"
        after = page.after
    whole = loop.steps.page(0, 3600 * seconds)
    assert numbers(whole) == list(range(whole.first, 3600)) and len(whole.lines) <= 22
