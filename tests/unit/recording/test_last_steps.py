"""The last steps that a server keeps: bounded, in pages, without a gap or a repetition."""

from __future__ import annotations

from edgeserve.recording import last_steps
from edgeserve.recording.last_steps import LastSteps
from edgeserve.recording.trace import step_of
from edgeserve.sched.protocol.events import RequestCancelled


def filled(count, steps_max):
    steps = LastSteps(steps_max)
    for number in range(1, count + 1):
        steps.add(number * 1000, [RequestCancelled(number)], [])
    return steps


def numbers(page):
    return [step_of(line).events[0].request_id for line in page.lines]


def test_only_the_last_ones_are_kept():
    page = filled(10, 4).page(0, 0)
    assert (page.first, page.after, numbers(page)) == (7, 10, [7, 8, 9, 10])


def test_what_follows_is_asked_for_by_number():
    steps = filled(6, 10)
    assert numbers(steps.page(4, 0)) == [5, 6]
    empty = steps.page(6, 0)
    assert (empty.first, empty.after, empty.lines) == (7, 6, [])


def test_what_was_forgotten_meanwhile_shows():
    page = filled(100, 4).page(50, 0)
    assert page.first == 97


def test_pages_join_without_gap_or_repetition(monkeypatch):
    monkeypatch.setattr(last_steps, "PAGE_BYTES_MAX", 300)
    steps, after, found = filled(50, 40), 0, []
    while True:
        page = steps.page(after, 0)
        if not page.lines:
            break
        assert len(page.lines) < 10
        found += numbers(page)
        after = page.after
    assert found == list(range(11, 51))


def test_a_number_from_the_future_brings_nothing():
    page = filled(3, 4).page(99, 0)
    assert page.lines == []


def test_without_a_number_steps_are_kept_from_the_first_question_and_only_for_some_time():
    steps = LastSteps()
    steps.add(0, [RequestCancelled(1)], [])
    assert steps.page(0, 10).lines == []
    steps.add(20, [RequestCancelled(2)], [])
    page = steps.page(0, 30)
    assert numbers(page) == [2]
    late = 30 + last_steps.ASKED_NS
    steps.add(late - 1, [RequestCancelled(3)], [])
    assert numbers(steps.page(page.after, late)) == [3]
    steps.add(late + last_steps.ASKED_NS, [RequestCancelled(4)], [])
    assert steps.page(0, late + last_steps.ASKED_NS).lines == []
