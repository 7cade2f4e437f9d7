"""Lanes with multiprocessors of their own, on the double, and what is said where there cannot be any."""

from __future__ import annotations

import types

import pytest
from cuda_double import CudaDouble

from edgeserve.config.loading import parse_config
from edgeserve.engines import lane_info
from edgeserve.engines.base import LaneInfo
from edgeserve.engines.cuda import driver as driver_module
from edgeserve.engines.cuda.device import CudaDevice
from edgeserve.engines.cuda.driver import Driver
from edgeserve.engines.cuda.lane_stream import lane_stream
from edgeserve.errors import ConfigError, EngineError


@pytest.fixture
def double(monkeypatch):
    double = CudaDouble(green_bytes=1000)  # 16 multiprocessors in groups of 4
    monkeypatch.setitem(driver_module._open, "cuda-bindings", double)
    return double


def opened(name, sms, common=None):
    lane = LaneInfo("cuda", name=name, sms=sms, clock_ns=lambda: 0, common={} if common is None else common)
    return lane_stream(lane)


def groups_of(double, stream):
    return set(double.greens[double.stream_greens[stream.handle]])


def test_lanes_have_multiprocessors_that_no_other_lane_has(double):
    one, other, whole = opened("a", 4), opened("b", 5), opened("c", 0)
    streams = [one.stream, *one.copies]
    assert len({frozenset(groups_of(double, stream)) for stream in streams}) == 1
    mine, its = groups_of(double, one.stream), groups_of(double, other.stream)
    assert (len(mine), len(its)) == (1, 2)  # as many groups as the number needs
    assert not mine & its and whole.stream.handle not in double.stream_greens
    assert double.free_bytes() == double.memory_bytes - 2000
    second = CudaDevice(double, 0, "a", 4)  # another library's streams of the same lane
    with second.current():
        assert groups_of(double, second.stream()) == mine
    for each in (one, second, other, whole):
        each.close()
    assert double.leaks() == []
    again = opened("d", 16)
    assert len(groups_of(double, again.stream)) == 4
    again.close()
    assert double.leaks() == []


def test_more_than_the_gpu_has_is_refused_with_who_has_what(double):
    one = opened("a", 8)
    with pytest.raises(
        EngineError, match=r"lane 'b': sms = 9: 8 multiprocessors are left \(a has 8\), in groups of 4; lower"
    ):
        opened("b", 9)
    one.close()
    assert double.leaks() == []


def test_a_gpu_that_cannot_be_parted_says_so(double):
    double.group = 0
    with pytest.raises(EngineError, match=r"lane 'a': sms = 4: .*NOT_SUPPORTED.*") as caught:
        opened("a", 4)
    assert double.leaks() == []
    assert caught.value


def sms(count):
    """A resource of the binding."""
    return types.SimpleNamespace(sm=types.SimpleNamespace(smCount=count))


@pytest.mark.parametrize("has", ["nothing", "no driver for it"])
def test_a_binding_or_a_driver_without_green_contexts_says_what_is_needed(has):
    binding = types.SimpleNamespace(
        cuInit=lambda flags: (0,), CUstreamCaptureMode=types.SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)
    )
    if has == "no driver for it":

        def missing(*arguments):
            raise RuntimeError('Function "cuGreenCtxStreamCreate" not found')

        binding.cuGreenCtxStreamCreate = missing
        binding.cuDriverGetVersion = lambda: (0, 12040)
        binding.cuDeviceGet = lambda index: (0, index)
        binding.cuDeviceGetDevResource = lambda device, kind: (0, sms(8))
        binding.cuDevSmResourceSplitByCount = lambda groups, whole, flags, least: (0, [sms(4)] * 2, 2, sms(0))
        binding.CUdevResourceType = types.SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM=1)
    with pytest.raises(EngineError, match=r"needs a driver of CUDA 12.5 or later .*leave \[lane.NAME\] sms out"):
        Driver(binding).split_multiprocessors(0)


def test_the_binding_is_called_as_it_is_documented():
    """cuda-bindings 12.5 to 13: a call gives its status and what it returns, in order."""
    called = []

    def split(groups, whole, flags, least):
        called.append(("split", groups, flags, least))
        return 0, [sms(8)] * 16 + [sms(0)] * (groups - 16), 16, sms(4)

    names = types.SimpleNamespace
    binding = names(
        cuInit=lambda flags: (0,),
        cuDriverGetVersion=lambda: (0, 12050),
        cuDeviceGet=lambda index: (0, index),
        cuDeviceGetDevResource=lambda device, kind: (0, sms(132)),
        cuDevSmResourceSplitByCount=split,
        cuDevResourceGenerateDesc=lambda resources, count: called.append(("describe", len(resources), count))
        or (0, "d"),
        cuGreenCtxCreate=lambda described, device, flag: called.append(("create", described, device, flag)) or (0, 77),
        cuGreenCtxStreamCreate=lambda green, flags, priority: called.append((green, flags, priority)) or (0, 78),
        cuGreenCtxDestroy=lambda green: called.append(("destroy", green)) or (0,),
        CUstreamCaptureMode=names(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1),
        CUdevResourceType=names(CU_DEV_RESOURCE_TYPE_SM=1),
        CUgreenCtxCreate_flags=names(CU_GREEN_CTX_DEFAULT_STREAM=1),
        CUstream_flags=names(CU_STREAM_NON_BLOCKING=1),
    )
    driver = Driver(binding)
    groups = driver.split_multiprocessors(0)
    assert [group.size for group in groups] == [8] * 16
    green = driver.create_green(0, groups[:2])
    assert driver.create_stream(-2, green) == 78
    driver.destroy_green(green)
    assert called == [
        ("split", 132, 0, 1),
        ("describe", 2, 2),
        ("create", "d", 0, 1),
        (77, 1, -2),
        ("destroy", 77),
    ]


def test_the_key_belongs_to_a_lane_of_a_gpu():
    table = {
        "device": {"gpu": {"kind": "cuda"}, "cpu": {}},
        "lane": {"gpu0": {"device": "gpu", "sms": 4}},
        "model": {"m": {"engine": "synthetic", "expected": {"1": "1ms"}}},
        "app": {"a": {"model": "m", "slo": "1s"}},
    }
    assert lane_info(parse_config(table), "gpu0").sms == 4
    table["lane"]["gpu0"]["device"] = "cpu"
    with pytest.raises(ConfigError, match=r"\[lane.gpu0\] sms = 4 are multiprocessors of a GPU, and device 'cpu'"):
        parse_config(table)
