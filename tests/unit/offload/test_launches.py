"""A lane that holds several batches launched: depth, order, times, windows, hangs, a lost device, its end. The engine's
batches end when the test says so; the clock is a number that the test moves."""

from __future__ import annotations

import threading
from typing import Any, Callable, List, Optional, Tuple

import pytest
from hand_lane import ANY_TIME, Clock, Post, end

from edgeserve.engines.base import Batch, Engine, LaneInfo, Pending, Session
from edgeserve.engines.turns import Turns
from edgeserve.errors import DeviceLost, EngineError
from edgeserve.offload.lane_thread import LaneDown, LaneThread, LaneWork, WorkDone, WorkNotStarted


class Kernel(Pending):
    """A batch that is over when the test ends it."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.over = threading.Event()
        self.span: Optional[Tuple[int, int]] = None
        self.error: Optional[BaseException] = None
        self.wait_error: Optional[BaseException] = None
        self.aborts = 0
        self.can_abort = False

    def done(self) -> bool:
        return self.over.is_set()

    def wait(self, timeout_s: float) -> bool:
        if self.wait_error is not None:
            raise self.wait_error
        return self.over.wait(timeout_s)

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.batch.items

    def times(self) -> Optional[Tuple[int, int]]:
        return self.span

    def abort(self) -> bool:
        self.aborts += 1
        if self.can_abort:
            self.error = EngineError("aborted")
            self.over.set()
        return self.can_abort

    def end(self, error: Optional[BaseException] = None, span: Optional[Tuple[int, int]] = None) -> None:
        self.error, self.span = error, span
        self.over.set()


class Device(Engine):
    """Collects what is launched."""

    def __init__(self) -> None:
        self.kernels: List[Kernel] = []
        self.opened: List[Tuple[LaneInfo, str]] = []
        self.came = threading.Condition()
        self.launch_error: Optional[Exception] = None

    def open(self, lane: LaneInfo) -> Session:
        self.opened.append((lane, threading.current_thread().name))
        return Stream(self)

    def came_within(self, wait_s: float) -> bool:
        """True if anything is launched within the time."""
        with self.came:
            return self.came.wait_for(lambda: bool(self.kernels), wait_s)

    def launched(self, count: int) -> List[Kernel]:
        with self.came:
            assert self.came.wait_for(lambda: len(self.kernels) >= count, 5), self.kernels
            return self.kernels


class Stream(Session):
    def __init__(self, device: Device) -> None:
        self.device = device

    def launch(self, batch: Batch) -> Pending:
        error, self.device.launch_error = self.device.launch_error, None
        if error is not None:
            raise error
        with self.device.came:
            self.device.kernels.append(Kernel(batch))
            self.device.came.notify()
            return self.device.kernels[-1]


class Rig:
    """A lane, its clock, its mail, and one engine."""

    def __init__(self, depth: int = 2, hang_ns: int = 10**18) -> None:
        self.clock, self.post, self.device = Clock(), Post(), Device()
        self.lane = LaneThread("gpu0", self.post, self.clock, None, LaneInfo("cuda", 1, depth=depth), hang_ns)
        self.lane.start()

    def give(
        self, work_id: int, start_before_ns: int = ANY_TIME, expected_ns: int = 100, start_after_ns: int = 0
    ) -> None:
        self.lane.give(
            LaneWork(
                work_id, start_after_ns, start_before_ns, None, Batch([work_id], 1), None, self.device, expected_ns
            )
        )

    def call(self, call: Callable[[Any], Any]) -> None:
        self.lane.give(LaneWork(99, 0, ANY_TIME, call, None))

    def settled(self) -> None:
        """Long enough for the lane's thread to do what it would do wrongly."""
        threading.Event().wait(0.03)


@pytest.fixture
def rig() -> Any:
    made: List[Rig] = []

    def make(*arguments: Any, **named: Any) -> Rig:
        made.append(Rig(*arguments, **named))
        return made[-1]

    yield make
    for rig in made:
        for kernel in rig.device.kernels:
            kernel.over.set()
        end(rig.lane)


def ended(item: Any) -> Tuple[int, int, int]:
    assert isinstance(item, WorkDone) and item.error is None, getattr(item, "error", item)
    return item.work.work_id, item.started_ns, item.finished_ns


def test_so_many_are_launched_as_the_lane_is_deep_and_the_next_when_one_is_over(rig: Any) -> None:
    here = rig(depth=2)
    for work_id in (1, 2, 3):
        here.give(work_id)
    kernels = here.device.launched(2)
    here.settled()
    assert len(kernels) == 2
    kernels[1].over.set()  # a device would not: the lane tells of the oldest first all the same
    here.settled()
    assert here.post.items == [] and len(kernels) == 2
    kernels[0].over.set()
    assert [done.value for done in here.post.take(2)] == [[1], [2]]
    here.device.launched(3)


def test_time_that_two_batches_share_is_charged_once(rig: Any) -> None:
    here = rig()
    here.give(1)
    here.give(2)
    first, second = here.device.launched(2)
    here.clock.now_ns = 3000
    first.end()
    assert ended(here.post.take(1)[0]) == (1, 1000, 3000)
    here.clock.now_ns = 5000
    second.end()
    assert ended(here.post.take(2)[1]) == (2, 3000, 5000)


def test_the_times_of_the_device_count_where_it_says_them(rig: Any) -> None:
    here = rig()
    here.give(1)
    (kernel,) = here.device.launched(1)
    here.clock.now_ns = 3000
    kernel.end(span=(1200, 2800))
    assert ended(here.post.take(1)[0]) == (1, 1200, 2800)
    here.give(2)
    here.device.launched(2)[1].end(span=(100, 9000))  # nothing begins before its launch, nor ends later than now
    assert ended(here.post.take(2)[1]) == (2, 3000, 3000)


def test_a_session_is_opened_once_on_the_lanes_thread_and_again_when_it_was_forgotten(rig: Any) -> None:
    here = rig(depth=3)
    for work_id in (1, 2):
        here.give(work_id)
        here.device.launched(work_id)[-1].end()
    here.post.take(2)
    ((info, thread),) = here.device.opened
    assert thread == "edgeserve-gpu0"
    assert (info.device_kind, info.device_index, info.name, info.depth) == ("cuda", 1, "gpu0", 3)
    assert info.clock_ns is here.clock and info.common == {}
    here.lane.forget(here.device)
    here.give(3)
    here.device.launched(3)[-1].end()
    here.post.take(3)
    assert len(here.device.opened) == 2


def test_a_call_waits_for_the_batches_before_it_and_those_behind_wait_for_it(rig: Any) -> None:
    here = rig()
    at_call: List[int] = []
    here.give(1)
    here.call(lambda _: at_call.append(len(here.post.items)))
    here.give(2)
    kernels = here.device.launched(1)
    here.settled()
    assert at_call == [] and len(kernels) == 1
    kernels[0].end()
    here.device.launched(2)
    assert at_call == [1]


def test_nothing_is_launched_that_would_begin_after_its_window(rig: Any) -> None:
    """The batch before is expected to end after the window: if it ends early, there is still time."""
    here = rig()
    here.give(1, expected_ns=500)
    here.give(2, start_before_ns=1400)
    (first,) = here.device.launched(1)
    here.settled()
    assert len(here.device.kernels) == 1
    here.clock.now_ns = 1300
    first.end()
    here.device.launched(2)[1].end()
    assert [item.work.work_id for item in here.post.take(2)] == [1, 2]


def test_a_window_that_passes_behind_a_batch_is_refused_at_once(rig: Any) -> None:
    here = rig()
    here.give(1, expected_ns=500)
    here.give(2, start_before_ns=1400)
    here.device.launched(1)
    here.clock.now_ns = 1401
    (refused,) = here.post.take(1)
    assert isinstance(refused, WorkNotStarted) and refused.work.work_id == 2
    assert "start window passed" in refused.reason


def test_a_start_that_is_due_later_does_not_keep_a_batch_from_being_told_of(rig: Any) -> None:
    here = rig()
    here.give(1)
    here.give(2, start_after_ns=10**15)
    here.device.launched(1)[0].end()
    assert ended(here.post.take(1)[0])[0] == 1


def test_what_raises_at_launch_or_at_the_end_or_while_it_is_waited_for_fails_its_batch_alone(rig: Any) -> None:
    here = rig()
    here.device.launch_error = EngineError("no room")
    here.give(1)
    assert str(here.post.take(1)[0].error) == "no room"
    here.give(2)
    here.device.launched(1)[0].end(ValueError("bad"))
    assert isinstance(here.post.take(2)[1].error, ValueError)
    here.give(3)
    here.device.launched(2)[1].wait_error = RuntimeError("no event")
    assert isinstance(here.post.take(3)[2].error, RuntimeError)
    here.give(4)
    here.device.launched(3)[2].end()
    assert ended(here.post.take(4)[3])[0] == 4


@pytest.mark.parametrize("at_launch", [False, True])
def test_a_lost_device_takes_the_lane_down_before_anything_else_is_said(rig: Any, at_launch: bool) -> None:
    here = rig(depth=3)
    here.give(1)
    here.give(2)
    first, second = here.device.launched(2)
    if at_launch:
        here.device.launch_error = DeviceLost("it fell off the bus")
        here.give(3)
        lost, others = 3, [1, 2]
    else:
        first.end(DeviceLost("it fell off the bus"))
        lost, others = 1, [2]
    down, failed, *refused = here.post.take(2 + len(others))
    assert isinstance(down, LaneDown) and down.reason == "it fell off the bus"
    assert isinstance(failed, WorkDone) and failed.work.work_id == lost and isinstance(failed.error, DeviceLost)
    assert [item.work.work_id for item in refused] == others
    assert all(isinstance(item, WorkNotStarted) and "is down: it fell" in item.reason for item in refused)
    assert second.aborts == 1
    here.give(9)
    assert isinstance(here.post.take(3 + len(others))[-1], WorkNotStarted)
    assert len(here.device.kernels) == 2


def test_a_hanging_batch_is_aborted_where_the_engine_can_and_the_lane_goes_on(rig: Any) -> None:
    here = rig(hang_ns=1000)
    here.give(1, expected_ns=500)
    (kernel,) = here.device.launched(1)
    kernel.can_abort = True
    here.clock.now_ns = 2500  # started at 1000, expected to take 500, and 1000 more are allowed
    here.settled()
    assert kernel.aborts == 0
    here.clock.now_ns = 2501
    (done,) = here.post.take(1)
    assert str(done.error) == "aborted" and kernel.aborts == 1
    here.give(2)
    here.device.launched(2)[1].end()
    assert ended(here.post.take(2)[1])[0] == 2


@pytest.mark.parametrize("times", ["later", 7, (1,), (1, 2, 3), ("a", "b"), (float("nan"), 1.0), (0.0, float("inf"))])
def test_times_that_are_none_fail_their_batch_and_the_lane_goes_on(rig: Any, times: Any) -> None:
    lane = rig()
    lane.give(1)
    (first,) = lane.device.launched(1)
    first.end(span=times)
    (told,) = lane.post.take(1)
    assert isinstance(told.error, EngineError) and "times() returned" in str(told.error)
    lane.give(2)
    lane.device.launched(2)[1].end()
    assert ended(lane.post.take(2)[1])[0] == 2


def _raises(self: Kernel) -> bool:
    self.aborts += 1
    raise SystemExit("no abort")


def test_an_abort_that_raises_does_not_end_the_lane(rig: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(Kernel, "abort", _raises)
    lane = rig(hang_ns=1000)
    lane.give(1)
    (hangs,) = lane.device.launched(1)
    lane.clock.now_ns = 10_000
    while not hangs.aborts:
        lane.settled()
    hangs.end()
    assert ended(lane.post.take(1)[0])[0] == 1
    lane.give(2)
    lane.device.launched(2)
    lane.lane.stop()
    lane.lane.give_up()
    given_up = lane.post.take(2)[1]
    assert "was given up" in str(given_up.error)
    assert lane.lane.join(5)


def test_a_batch_that_cannot_be_aborted_is_asked_once_and_awaited(rig: Any) -> None:
    here = rig(hang_ns=1000)
    here.give(1, expected_ns=500)
    (kernel,) = here.device.launched(1)
    here.clock.now_ns = 9000
    while not kernel.aborts:
        here.settled()
    here.settled()
    assert kernel.aborts == 1 and here.post.items == []
    kernel.end()
    assert ended(here.post.take(1)[0])[0] == 1


def test_stop_lets_launched_batches_end_and_refuses_the_others(rig: Any) -> None:
    here = rig(depth=1)
    here.give(1)
    here.give(2)
    (kernel,) = here.device.launched(1)
    here.lane.stop()
    (refused,) = here.post.take(1)
    assert refused.work.work_id == 2 and "is shutting down" in refused.reason
    assert not here.lane.join(0.02)
    kernel.end()
    assert here.lane.join(5)
    assert ended(here.post.take(2)[1])[0] == 1


def test_a_lane_that_is_given_up_aborts_what_it_launched_and_ends(rig: Any) -> None:
    here = rig()
    here.give(1)
    here.give(2)
    kernels = here.device.launched(2)
    here.lane.stop()
    here.lane.give_up()
    assert here.lane.join(5)
    assert [kernel.aborts for kernel in kernels] == [1, 1]
    assert ["was given up" in str(item.error) for item in here.post.take(2)] == [True, True]


def test_what_the_sessions_of_a_lane_share_is_closed_with_it(rig: Any) -> None:
    here = rig()
    closed: List[str] = []

    class Shared:
        def close(self) -> None:
            closed.append(threading.current_thread().name)

    here.give(1)
    here.device.launched(1)[0].end()
    here.post.take(1)
    here.device.opened[0][0].common.update(stream=Shared(), number=7)
    end(here.lane)
    assert closed == ["edgeserve-gpu0"]


# --- turns of processes on one GPU ---


def work(engine: Device, work_id: int, start_before_ns: int = ANY_TIME) -> LaneWork:
    return LaneWork(work_id, 0, start_before_ns, None, Batch([work_id], 1), None, engine, 100)


def two_lanes(clock: Clock, post: Post, turns: Optional[Turns]) -> List[LaneThread]:
    lanes = [LaneThread(name, post, clock, info=LaneInfo(depth=2), turns=turns) for name in ("gpu0", "gpu1")]
    for lane in lanes:
        lane.start()
    return lanes


def test_batches_of_two_processes_on_one_gpu_run_in_turn_and_those_of_one_at_once() -> None:
    clock, post, here, there = Clock(), Post(), Device(), Device()
    there.ends_calls = True
    first, second = two_lanes(clock, post, Turns())
    first.give(work(here, 1))
    first.give(work(here, 2))
    kernels = here.launched(2)
    second.give(work(there, 3))
    second.give(work(here, 4))
    assert not there.came_within(0.1), "it waits for the batches of the other process"
    for kernel in kernels:
        kernel.end()
    (other,) = there.launched(1)
    assert len(here.kernels) == 2, "and these wait for it"
    other.end()
    here.launched(3)[2].end()
    assert sorted(mail.work.work_id for mail in post.take(4)) == [1, 2, 3, 4]
    for lane in (first, second):
        end(lane)


def test_without_turns_a_lane_holds_batches_of_several_processes() -> None:
    clock, post, here, there = Clock(), Post(), Device(), Device()
    there.ends_calls = True
    first, second = two_lanes(clock, post, None)
    first.give(work(here, 1))
    first.give(work(there, 2))
    for kernel in (*here.launched(1), *there.launched(1)):
        kernel.end()
    assert [mail.work.work_id for mail in post.take(2)] == [1, 2]
    for lane in (first, second):
        end(lane)


def test_who_waits_for_the_turn_is_not_overtaken() -> None:
    clock, post, here, there = Clock(), Post(), Device(), Device()
    there.ends_calls = True
    first, second = two_lanes(clock, post, Turns())
    first.give(work(here, 1))
    (kernel,) = here.launched(1)
    second.give(work(there, 2))
    assert not there.came_within(0.1)
    first.give(work(here, 3))
    assert len(here.kernels) == 1, "the lane has room, and another process waits"
    kernel.end()
    there.launched(1)[0].end()
    here.launched(2)[1].end()
    assert sorted(mail.work.work_id for mail in post.take(3)) == [1, 2, 3]
    for lane in (first, second):
        end(lane)


def test_a_work_whose_start_has_passed_is_refused_while_another_process_has_the_turn() -> None:
    clock, post, here, there = Clock(), Post(), Device(), Device()
    there.ends_calls = True
    first, second = two_lanes(clock, post, Turns())
    first.give(work(here, 1))
    (kernel,) = here.launched(1)
    second.give(work(there, 2, start_before_ns=2000))
    assert not there.came_within(0.1)
    clock.now_ns = 3000
    (refused,) = post.take(1)
    assert isinstance(refused, WorkNotStarted) and "start window passed" in refused.reason
    kernel.end()
    for lane in (first, second):
        end(lane)


def test_a_lane_that_hangs_gives_its_turn_to_others_when_it_is_replaced() -> None:
    clock, post, here, there = Clock(), Post(), Device(), Device()
    there.ends_calls = True
    first, second = two_lanes(clock, post, Turns())
    first.give(work(here, 1))
    here.launched(1)
    second.give(work(there, 2))
    assert not there.came_within(0.1)
    first.abandon()
    there.launched(1)[0].end()
    assert [mail.work.work_id for mail in post.take(1)] == [2]
    end(second)
