"""The end and the times of a batch on a stream, and the stream that a lane's sessions share."""

from __future__ import annotations

import itertools

import pytest
from cuda_double import CudaDouble

from edgeserve.engines.base import LaneInfo, Result
from edgeserve.engines.cuda.completion import DevicePending
from edgeserve.engines.cuda.device import CudaDevice
from edgeserve.engines.cuda.lane_stream import NAME, lane_stream
from edgeserve.engines.cuda.staging import Staged
from edgeserve.engines.cuda.status import of_model
from edgeserve.errors import DeviceLost, EngineError


class Clock:
    """A host clock that the test sets, with a little time passing at each look."""

    def __init__(self):
        self.now_ns = 1_000_000_000

    def __call__(self):
        self.now_ns += 1000
        return self.now_ns


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def driver():
    return CudaDouble()


@pytest.fixture
def lane(driver, clock):
    info = LaneInfo("cuda", name="gpu0", clock_ns=clock, common={})
    shared = lane_stream(info, device=CudaDevice(driver))
    yield shared
    driver.lost = 0
    driver.run_all()
    shared.close()
    assert driver.leaks() == []


def launched(lane, driver, takes_ms, finish=lambda: [Result({})]):
    with lane.device.current():
        span = lane.clock.begin(lambda mark: mark.record(lane.stream))
        driver.enqueue(lane.handle, "kernel", lambda: None, takes_ms=takes_ms)
        span.end.record(lane.stream)
    return DevicePending(lane.clock, span, finish, lambda error: of_model("net", error), lane.device.current)


def test_a_lane_has_one_stream(driver, clock):
    info = LaneInfo("cuda", name="gpu0", clock_ns=clock, common={})
    first = lane_stream(info, device=CudaDevice(driver))
    assert lane_stream(info) is first
    info.common[NAME] = object()
    with pytest.raises(EngineError, match="'gpu0' has a stream of another library"):
        lane_stream(info)
    with pytest.raises(EngineError, match="'gpu0' has no clock"):
        lane_stream(info._replace(clock_ns=None))
    first.close()
    assert driver.leaks() == []


def test_a_batch_is_over_when_the_device_passed_its_end(lane, driver):
    pending = launched(lane, driver, 2.0)
    assert not pending.done()
    assert pending.wait(1.0)
    assert pending.done()
    assert pending.result()[0].error is None


def test_a_wait_has_an_end(lane, driver):
    pending = launched(lane, driver, 1.0)
    driver.event_done = lambda event: False
    assert not pending.wait(0.0)
    assert not pending.wait(0.002)
    del driver.event_done


def test_results_may_be_asked_before_the_end(lane, driver):
    assert len(launched(lane, driver, 2.0).result()) == 1


def test_times_begin_at_the_launch_and_last_as_long_as_the_device_says(lane, driver, clock):
    before_ns = clock.now_ns
    pending = launched(lane, driver, 2.0)
    clock.now_ns += 50_000_000  # the host looks late
    pending.wait(1.0)
    started_ns, finished_ns = pending.times()
    assert finished_ns - started_ns == pytest.approx(2_000_000, abs=10)
    assert before_ns <= started_ns <= before_ns + 10_000


def test_batches_behind_another_begin_where_that_ended(lane, driver, clock):
    pendings = [launched(lane, driver, takes_ms) for takes_ms in (2.0, 3.0, 0.5)]
    clock.now_ns += 50_000_000
    times = []
    for pending in pendings:
        pending.wait(1.0)
        times.append(pending.times())
    assert [end - start for start, end in times] == pytest.approx([2_000_000, 3_000_000, 500_000], abs=10)
    assert times[1][0] == pytest.approx(times[0][1], abs=10)
    assert times[2][0] == pytest.approx(times[1][1], abs=10)


def test_marks_are_used_again(lane, driver):
    for _ in range(5):
        launched(lane, driver, 1.0).result()
        both = [launched(lane, driver, 1.0) for _ in range(2)]
        for pending in both:
            pending.result()
    assert sum(1 for call in driver.log if call[0] == "create_event") <= 6


def test_a_lost_device_ends_what_was_launched_and_names_the_model(lane, driver):
    pendings = [launched(lane, driver, 1.0) for _ in range(2)]
    driver.lost = 719
    for pending in pendings:
        assert pending.wait(1.0)
        assert pending.times() is None
        with pytest.raises(DeviceLost, match=r"model 'net': cuEventQuery|model 'net': event_done failed"):
            pending.result()


def test_what_unpacking_raises_is_the_models_error(lane, driver):
    def finish():
        raise EngineError("no output")

    pending = launched(lane, driver, 1.0, finish)
    with pytest.raises(EngineError, match="model 'net': no output"):
        pending.result()


def test_a_batch_after_a_failed_one_has_times(lane, driver):
    first = launched(lane, driver, 1.0)
    driver.fail["event_done"] = 1
    with pytest.raises(EngineError, match="planted status 1"):
        first.result()
    driver.run_all()
    second = launched(lane, driver, 4.0)
    second.result()
    started_ns, finished_ns = second.times()
    assert finished_ns >= started_ns


@pytest.mark.parametrize(("integrated", "copies"), [(0, 2), (1, 0)])
def test_staged_tensors_are_copied_only_where_the_device_has_memory_of_its_own(integrated, copies):
    driver = CudaDouble(attributes={"INTEGRATED": integrated})
    device = CudaDevice(driver)
    with device.current():
        stream, staged = device.stream(), Staged(device, 16)
        staged.array((4,), "f4")[:] = range(4)
        staged.to_device(stream)
        stream.synchronize()
        driver.enqueue(stream.handle, "kernel", lambda: driver.memory_at(staged.pointer, 16).view("f4").__imul__(2))
        staged.to_host(stream)
        stream.synchronize()
        assert staged.array((4,), "f4").tolist() == [0, 2, 4, 6]
        staged.free()
        staged.free()
    assert sum(1 for call in driver.log if call[0].startswith("copy_to")) == copies
    device.close()
    assert driver.leaks() == []


def test_staged_tensors_keep_nothing_where_the_device_has_no_room():
    driver = CudaDouble(memory_bytes=100)
    device = CudaDevice(driver)
    with device.current(), pytest.raises(EngineError, match="200 bytes of device memory"):
        Staged(device, 200)
    device.close()
    assert driver.leaks() == []


def test_a_long_chain_of_batches_stays_in_order(lane, driver, clock):
    ends = []
    flight = [launched(lane, driver, 1.0)]
    for _ in itertools.repeat(None, 50):
        flight.append(launched(lane, driver, 1.0))
        clock.now_ns += 900_000  # the host's clock runs slower than the device's
        oldest = flight.pop(0)
        oldest.wait(1.0)
        ends.append(oldest.times())
    assert all(one[1] <= two[0] for one, two in zip(ends, ends[1:]))
    assert all(end <= clock.now_ns for _, end in ends)
    flight[0].wait(1.0)
