"""Devices, streams, events, memory and graphs, on a driver that runs late and notices misuse."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from cuda_double import POISON, CudaDouble, Misuse

from edgeserve.engines.base import LaneInfo
from edgeserve.engines.cuda.device import CudaDevice
from edgeserve.engines.cuda.lane_stream import lane_stream
from edgeserve.engines.cuda.status import CudaError
from edgeserve.errors import DeviceLost, DeviceMissing, OutOfMemory


@pytest.fixture
def driver():
    return CudaDouble()


@pytest.fixture
def device(driver):
    device = CudaDevice(driver)
    yield device
    driver.run_all()
    device.close()
    assert driver.leaks() == []


def test_a_device_says_what_it_is(driver):
    device = CudaDevice(driver)
    assert device.info.name == "double 0"
    assert device.info.compute_capability == (8, 7)
    assert (device.info.integrated, device.info.can_map_host_memory, device.info.copy_engines) == (False, True, 2)
    assert device.memory() == (1 << 30, 1 << 30)
    device.close()
    device.close()
    assert driver.leaks() == []


def test_a_device_that_does_not_exist_is_missing(driver):
    with pytest.raises(DeviceMissing, match=r"device 1 does not exist: CUDA shows 1 device"):
        CudaDevice(driver, 1)


def test_bytes_go_to_the_device_and_come_back(device):
    with device.current():
        stream, there, back = device.stream(), device.pinned(32), device.pinned(32)
        first, second = device.buffer(32), device.buffer(32)
        there.array((8,), np.float32)[:] = np.arange(8)
        stream.to_device(first, there)
        stream.on_device(second, first)
        stream.to_host(back, second)
        assert (back.array((32,), np.uint8) == POISON).all(), "nothing has run yet"
        stream.synchronize()
    np.testing.assert_array_equal(back.array((8,), np.float32), np.arange(8))


def test_a_part_of_a_buffer_is_copied_and_filled(device):
    with device.current():
        stream, host, buffer = device.stream(), device.pinned(8), device.buffer(8)
        stream.fill(buffer, 1)
        stream.fill(buffer, 7, 4)
        stream.to_host(host, buffer, 6)
        stream.synchronize()
    assert host.array((8,), np.uint8)[:6].tolist() == [7, 7, 7, 7, 1, 1]


def test_mapped_memory_needs_no_copies(device):
    with device.current():
        shared, stream = device.mapped(16), device.stream()
        stream.fill(shared, 3)  # a mapped buffer is memory of the device too
        stream.synchronize()
    assert shared.array((16,), np.uint8).tolist() == [3] * 16


def test_a_device_that_cannot_map_says_so():
    device = CudaDevice(CudaDouble(attributes={"CAN_MAP_HOST_MEMORY": 0}))
    with device.current(), pytest.raises(CudaError, match=r"cannot map host memory; use pinned"):
        device.mapped(16)
    device.close()


def test_no_room_names_what_was_asked_and_what_is_free():
    device = CudaDevice(CudaDouble(memory_bytes=1000))
    with device.current():
        device.buffer(600)
        with pytest.raises(OutOfMemory, match="500 bytes of device memory cannot be had; 400 of 1,000") as caught:
            device.buffer(500)
    assert (caught.value.asked_bytes, caught.value.free_bytes) == (500, 400)
    device.close()


def test_events_tell_order_and_time(device, driver):
    with device.current():
        stream, start, end, buffer = device.stream(), device.event(), device.event(), device.buffer(8)
        start.record(stream)
        driver.enqueue(stream.handle, "kernel", lambda: None, takes_ms=2.5)
        end.record(stream)
        assert not end.done()
        end.synchronize()
        assert end.done()
        assert end.elapsed_ms(start) == pytest.approx(2.5)
        stream.fill(buffer)
        assert not stream.done()
        stream.synchronize()
        assert stream.done()


def test_a_stream_waits_for_the_event_of_another(device, driver):
    with device.current():
        copying, running = device.stream(), device.stream()
        copied = device.event(timing=False)
        driver.enqueue(copying.handle, "copy", lambda: None)
        copied.record(copying)
        running.wait(copied)
        driver.enqueue(running.handle, "kernel", lambda: None)
        running.synchronize()
    assert [name for name in driver.ran if name in ("copy", "kernel")] == ["copy", "kernel"]


def test_a_graph_runs_with_what_its_buffers_hold_then(device):
    with device.current():
        stream, source, back, buffer = device.stream(), device.pinned(4), device.pinned(4), device.buffer(4)
        source.array((4,), np.uint8)[:] = 1
        with stream.captured() as captured:
            stream.to_device(buffer, source)
            stream.to_host(back, buffer)
        assert captured.graph is not None
        for value in (2, 3):
            source.array((4,), np.uint8)[:] = value
            captured.graph.launch(stream)
            stream.synchronize()
            assert back.array((4,), np.uint8).tolist() == [value] * 4
        captured.graph.free()


def test_a_capture_that_fails_ends_and_leaves_the_stream_usable(device, driver):
    with device.current():
        stream, buffer = device.stream(), device.buffer(4)
        with pytest.raises(CudaError, match="capturing"):
            with stream.captured():
                device.buffer(4)
        stream.fill(buffer)
        assert driver.waiting(stream.handle) == ["fill"]


@pytest.mark.parametrize(("asked", "given"), [(0, 0), (2, -2), (9, -5)])
def test_a_lane_of_priority_has_streams_that_begin_first(driver, asked, given):
    common = {}
    lane = LaneInfo("cuda", name="gpu0", clock_ns=time.monotonic_ns, common=common, priority=asked)
    stream = lane_stream(lane, device=CudaDevice(driver))
    assert len(stream.copies) == 2
    assert set(driver.priorities.values()) == {given}
    stream.close()


def test_a_capture_that_anything_invalidated_holds_no_graph_and_leaves_a_stream_that_works(device, driver):
    with device.current():
        stream, buffer = device.stream(), device.buffer(4)
        with pytest.raises(CudaError, match=r"cuStreamEndCapture failed: .*\(901\)"):
            with stream.captured():
                driver.invalidate(stream.handle)
        stream.fill(buffer)
        stream.synchronize()


def test_a_library_on_the_default_stream_leaves_our_streams_and_captures_alone(device, driver):
    with device.current():
        stream, buffer = device.stream(), device.buffer(4)
        with stream.captured() as captured:
            stream.fill(buffer)
            assert driver.use_default_stream("cublasCreate") == []
        captured.graph.launch(stream)
        assert driver.use_default_stream("cudaMemset") == [], "it waited for a stream of ours"
        stream.synchronize()
        theirs = driver.library_stream()
        driver.enqueue(theirs, "kernel", lambda: None)
        assert driver.use_default_stream("cudaMemset") == ["kernel"]
        driver.destroy_stream(theirs)


def test_what_another_thread_asks_while_a_stream_is_captured_is_not_refused(device, driver):
    with device.current():
        stream, buffer = device.stream(), device.buffer(4)

        def beside():
            with device.current():
                device.buffer(4).free()

        with stream.captured() as captured:
            stream.fill(buffer)
            thread = threading.Thread(target=beside)
            thread.start()
            thread.join()
        captured.graph.launch(stream)
        stream.synchronize()


def test_after_a_sticky_error_the_device_is_lost_and_freeing_does_not_raise(driver):
    device = CudaDevice(driver)
    with device.current():
        stream, buffer = device.stream(), device.buffer(8)
        driver.lost = 700
        with pytest.raises(DeviceLost, match=r"\(700\).*restart the server"):
            stream.synchronize()
    buffer.free()
    device.close()


def test_what_is_freed_cannot_be_used(device):
    with device.current():
        stream, host, buffer = device.stream(), device.pinned(8), device.buffer(8)
        host.free()
        host.free()
        with pytest.raises(CudaError, match="freed"):
            stream.to_device(buffer, host)
        with pytest.raises(CudaError, match="freed"):
            host.array((8,), np.uint8)
        buffer.free()
        with pytest.raises(CudaError, match="freed"):
            stream.fill(buffer)


def test_views_and_copies_stay_within_their_buffers(device):
    with device.current():
        stream, host, buffer = device.stream(), device.pinned(8), device.buffer(4)
        with pytest.raises(CudaError, match=r"float32\[3\] at byte 0 does not fit a host buffer of 8"):
            host.array((3,), np.float32)
        with pytest.raises(CudaError, match="5 bytes were asked of a buffer of 4"):
            stream.to_device(buffer, host, 5)
        with pytest.raises(CudaError, match="9 bytes were asked of"):
            stream.to_host(host, device.buffer(16), 9)


def test_a_closed_device_cannot_be_used(driver):
    device = CudaDevice(driver)
    device.close()
    with pytest.raises(CudaError, match="after it was closed"):
        with device.current():
            pass


def test_another_thread_may_free(device, driver):
    with device.current():
        buffer = device.buffer(8)
    thread = threading.Thread(target=buffer.free)
    thread.start()
    thread.join()
    assert buffer.freed
    assert not any("device memory" in leak for leak in driver.leaks())


# --- the double notices ---


def test_the_double_notices_misuse(driver):
    plain = CudaDevice(driver)
    with pytest.raises(Misuse, match="without a current context"):
        plain.buffer(8)
    with plain.current():
        stream, host, buffer, event = plain.stream(), plain.pinned(8), plain.buffer(8), plain.event()
        stream.to_device(buffer, host)
        with pytest.raises(Misuse, match="was freed while 'copy_to_device' waits"):
            driver.free_device(buffer.pointer)
        host.array((8,), np.uint8)[:] = 2
        with pytest.raises(Misuse, match="changed before its copy"):
            stream.synchronize()
        event.record(stream)
        with pytest.raises(Misuse, match="recorded again before"):
            event.record(stream)
        with pytest.raises(Misuse, match="destroyed while a stream was still to pass it"):
            driver.destroy_event(event.handle)
        stream.synchronize()
        pointer = buffer.pointer
        buffer.free()
        with pytest.raises(Misuse, match="used after it was freed"):
            driver.memory_at(pointer, 8)
        with pytest.raises(Misuse, match="reach beyond"):
            driver.memory_at(plain.buffer(8).pointer, 9)
        with pytest.raises(Misuse, match="points to no memory"):
            driver.copy_to_device(12345, plain.pinned(8).host_pointer, 8, stream.handle)
    plain.close()
