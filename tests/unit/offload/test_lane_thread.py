"""The lane alone: windows, refusals, failures, its end. The clock is a number that the test moves."""

from __future__ import annotations

import threading
from typing import Callable, List

from hand_lane import ANY_TIME, Clock, Post, end

from edgeserve.offload.lane_thread import LaneDown, LaneThread, LaneWork, WorkDone, WorkNotStarted


def lane_with(clock: Clock, post: Post, prepare: Callable[[], None] | None = None) -> LaneThread:
    lane = LaneThread("cpu0", post, clock, prepare)
    lane.start()
    return lane


def test_a_work_runs_on_the_lanes_own_thread_and_its_value_comes_back() -> None:
    clock, post = Clock(), Post()
    lane = lane_with(clock, post)
    work = LaneWork(7, 0, ANY_TIME, lambda argument: (argument, threading.current_thread().name), "x")
    lane.give(work)
    (done,) = post.take(1)
    assert isinstance(done, WorkDone) and done.work is work
    assert (done.value, done.error) == (("x", "edgeserve-cpu0"), None)
    assert (done.started_ns, done.finished_ns) == (1000, 1000)
    end(lane)


def test_a_work_whose_start_window_has_passed_is_refused_and_does_not_run() -> None:
    clock, post = Clock(), Post()
    lane = lane_with(clock, post)
    ran: List[int] = []
    lane.give(LaneWork(1, 0, 999, ran.append, 1))
    (refused,) = post.take(1)
    assert isinstance(refused, WorkNotStarted) and "start window passed" in refused.reason
    assert ran == []
    lane.give(LaneWork(2, 0, 1000, ran.append, 2))  # the last moment counts as in time
    assert isinstance(post.take(2)[1], WorkDone)
    assert ran == [2]
    end(lane)


def test_a_lane_waits_until_start_after() -> None:
    clock, post = Clock(), Post()
    lane = lane_with(clock, post)
    reads: List[int] = []

    def now_ns() -> int:  # what the lane reads: too early once, then, after its wait, in time
        reads.append(clock.now_ns)
        clock.now_ns += 1_000_000
        return reads[-1]

    lane._clock_ns = now_ns  # type: ignore[assignment]
    lane.give(LaneWork(1, 500_000, ANY_TIME, lambda _: None, None))
    (done,) = post.take(1)
    assert reads[0] == 1000
    assert done.started_ns == 1_001_000
    end(lane)


def test_stop_does_not_wait_for_a_start_that_is_far_away() -> None:
    clock, post = Clock(), Post()
    lane = lane_with(clock, post)
    lane.give(LaneWork(1, 3600 * 10**9, ANY_TIME, lambda _: None, None))
    lane.give(LaneWork(2, 0, ANY_TIME, lambda _: None, None))
    lane.stop()
    refused = post.take(2)
    assert [item.reason for item in refused] == ["lane cpu0 is shutting down"] * 2
    assert lane.join(5)


def test_a_lane_that_cannot_be_prepared_says_so_and_refuses() -> None:
    clock, post = Clock(), Post()

    def prepare() -> None:
        raise OSError("no such core")

    lane = lane_with(clock, post, prepare)
    lane.give(LaneWork(1, 0, ANY_TIME, lambda _: None, None))
    down, refused = post.take(2)
    assert isinstance(down, LaneDown) and "no such core" in down.reason
    assert isinstance(refused, WorkNotStarted)
    end(lane)
