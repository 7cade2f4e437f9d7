"""The wait of the bus, on pipes: which file woke it, and when the socket is asked first."""

from __future__ import annotations

import os
import time
from typing import Iterator, List, Tuple

import pytest

from edgeserve.ipc.waiter import POLL_NS_MIN, PROBE_MESSAGES_MAX, Waiter

SHORT_NS, LONG_NS = POLL_NS_MIN // 2, 20 * POLL_NS_MIN


@pytest.fixture
def pipes() -> Iterator[List[Tuple[int, int]]]:
    """For messages, for connections, and the caller's."""
    made = [os.pipe() for _ in range(3)]
    yield made
    for one in made:
        for file in one:
            os.close(file)


def waiter_of(pipes: List[Tuple[int, int]], answers: List[bool]) -> Waiter:
    return Waiter(lambda: answers.pop(0), pipes[0][0], pipes[1][0])


@pytest.mark.parametrize("timeout_ns", [SHORT_NS, LONG_NS])
@pytest.mark.parametrize("rings", [(), (0,), (2,), (0, 2)])
def test_it_tells_what_woke_it(pipes: List[Tuple[int, int]], timeout_ns: int, rings: Tuple[int, ...]) -> None:
    waiter = waiter_of(pipes, [False])
    for which in rings:
        os.write(pipes[which][1], b"x")
    began = time.monotonic_ns()
    rang, came, stirred = waiter.wait(pipes[2][0], timeout_ns)
    assert (rang, came) == (2 in rings, 0 in rings)
    assert stirred is (None if timeout_ns < POLL_NS_MIN else False)
    assert bool(rings) or time.monotonic_ns() - began >= timeout_ns // 2


def test_long_sleeps_hear_of_connections(pipes: List[Tuple[int, int]]) -> None:
    os.write(pipes[1][1], b"x")
    assert waiter_of(pipes, [False]).wait(pipes[2][0], LONG_NS) == (False, False, True)


def test_the_file_is_trusted_only_while_nothing_was_done_since_the_socket_was_empty(
    pipes: List[Tuple[int, int]],
) -> None:
    answers = [True, False]
    waiter = waiter_of(pipes, answers)
    assert waiter.wait(pipes[2][0], LONG_NS) == (False, True, None), "a message that the file does not tell of"
    waiter.wait(pipes[2][0], SHORT_NS)
    waiter.wait(pipes[2][0], SHORT_NS)
    assert answers == [], "asked once, and not again after it was empty"
    waiter.used()
    answers.append(True)
    assert waiter.wait(pipes[2][0], LONG_NS)[1]
    waiter.end(0, True)
    waiter.wait(pipes[2][0], SHORT_NS)
    assert answers == []


def test_a_message_that_woke_it_is_not_asked_for_and_bursts_are_read_to_their_end(
    pipes: List[Tuple[int, int]],
) -> None:
    waiter = waiter_of(pipes, [False])
    assert waiter.begin() == (0, PROBE_MESSAGES_MAX, False)
    os.write(pipes[0][1], b"x")
    waiter.wait(pipes[2][0], LONG_NS)
    assert waiter.begin() == (1, PROBE_MESSAGES_MAX, True)
    waiter.end(PROBE_MESSAGES_MAX + 1, True)
    assert waiter.begin() == (0, 1, False)
