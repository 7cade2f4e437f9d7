"""CUDA itself, through NVIDIA's binding: memory, order, times, overlap, a full device."""

from __future__ import annotations

import time

import numpy as np
import pytest
from gpu import why_no_driver

from edgeserve.engines.base import LaneInfo, Result
from edgeserve.engines.cuda.completion import DevicePending
from edgeserve.engines.cuda.device import CudaDevice
from edgeserve.engines.cuda.driver import open_driver
from edgeserve.engines.cuda.lane_stream import lane_stream
from edgeserve.engines.cuda.staging import Staged
from edgeserve.errors import OutOfMemory

pytestmark = pytest.mark.skipif(bool(why_no_driver()), reason=why_no_driver() or "there is a device")

MEGABYTE = 1 << 20


@pytest.fixture
def device():
    device = CudaDevice(open_driver())
    yield device
    device.close()


def test_the_device_describes_itself(device):
    assert device.info.name
    assert device.info.compute_capability >= (5, 0)
    assert device.info.multiprocessors > 0
    free, total = device.memory()
    assert 0 < free <= total


@pytest.mark.parametrize("mapped", [False, None, True])
def test_tensors_go_there_and_come_back(device, mapped):
    if mapped and not device.info.can_map_host_memory:
        pytest.skip("this device cannot map host memory")
    random = np.random.default_rng(1)
    values = random.random(1000).astype(np.float32)
    with device.current():
        stream, there, back = device.stream(), Staged(device, 4000, mapped), Staged(device, 4000, mapped)
        there.array((1000,), np.float32)[:] = values
        there.to_device(stream)
        device.driver.copy_on_device(back.pointer, there.pointer, 4000, stream.handle)
        back.to_host(stream)
        stream.synchronize()
        np.testing.assert_array_equal(back.array((1000,), np.float32), values)


def test_fill_and_order_between_streams(device):
    with device.current():
        first, second, done = device.stream(), device.stream(), device.event(timing=False)
        large, host = device.buffer(64 * MEGABYTE), device.pinned(64 * MEGABYTE)
        first.fill(large, 1)
        first.fill(large, 2)
        done.record(first)
        second.wait(done)
        second.to_host(host, large)
        second.synchronize()
    assert (host.array((64 * MEGABYTE,), np.uint8) == 2).all()


def test_a_full_device_says_what_was_asked_and_what_is_free_and_goes_on(device):
    total = device.memory().total
    with device.current():
        with pytest.raises(OutOfMemory) as caught:
            device.buffer(2 * total)
        assert caught.value.asked_bytes == 2 * total
        assert caught.value.free_bytes is not None and 0 <= caught.value.free_bytes <= total
        device.buffer(MEGABYTE).free()


def test_a_graph_repeats_what_was_captured(device):
    with device.current():
        stream, source, back, buffer = device.stream(), device.pinned(64), device.pinned(64), device.buffer(64)
        with stream.captured() as captured:
            stream.to_device(buffer, source)
            stream.to_host(back, buffer)
        for value in (1, 2, 3):
            source.array((64,), np.uint8)[:] = value
            captured.graph.launch(stream)
            stream.synchronize()
            assert (back.array((64,), np.uint8) == value).all()


def test_device_times_agree_with_the_hosts(device):
    lane = LaneInfo("cuda", name="gpu0", clock_ns=time.monotonic_ns, common={})
    shared = lane_stream(lane)
    buffer = shared.device.buffer
    with shared.current():
        memory = buffer(256 * MEGABYTE)

    def launch():
        with shared.current():
            span = shared.clock.begin(shared.record)
            for byte in range(20):
                shared.stream.fill(memory, byte)
            shared.record(span.end)
        return DevicePending(shared.clock, span, lambda: [Result({})], lambda error: error, shared.current)

    try:
        launch().result()
        begun_ns = time.monotonic_ns()
        flight = [launch() for _ in range(4)]
        for pending in flight:
            pending.result()
        took_ns = time.monotonic_ns() - begun_ns
        times = [pending.times() for pending in flight]
        lengths = [end - start for start, end in times]
        assert all(one[1] <= two[0] for one, two in zip(times, times[1:]))
        assert 0.5 * took_ns <= sum(lengths) <= took_ns
    finally:
        shared.close()


def test_copies_of_two_directions_overlap_where_the_device_has_two_engines(device):
    if device.info.copy_engines < 2:
        pytest.skip(f"{device.info.name} has {device.info.copy_engines} copy engine(s)")
    size = 256 * MEGABYTE
    with device.current():
        inward, outward = device.stream(), device.stream()
        there, back = device.pinned(size), device.pinned(size)
        one, two = device.buffer(size), device.buffer(size)

        def took_s(both):
            begun_s = time.monotonic()
            inward.to_device(one, there)
            (outward if both else inward).to_host(back, two)
            inward.synchronize()
            outward.synchronize()
            return time.monotonic() - begun_s

        took_s(True)
        apart, together = min(took_s(False) for _ in range(5)), min(took_s(True) for _ in range(5))
    assert together < 0.9 * apart, f"{together:.4f} s beside each other, {apart:.4f} s one after the other"
