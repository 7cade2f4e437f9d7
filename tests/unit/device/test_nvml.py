"""NVML as a source, against a library of this test that answers, refuses and breaks as the real one does. What the
numbers of a real GPU are is not shown here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Dict

import pytest

from edgeserve.device import nvml
from edgeserve.device.nvml import NvmlSource
from edgeserve.device.state import DeviceState


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(f"error {value}")
        self.value = value


class Library:
    """pynvml's functions and constants, as far as they are used. ``answers[function]`` is an answer, or an error's
    number to raise."""

    NVMLError = NVMLError
    NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_GPU_IS_LOST = 3, 15
    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN, NVML_TEMPERATURE_GPU = 1, 0
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

    def __init__(self, **answers):
        self.answers: Dict[str, Any] = {
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=37, memory=12),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=2 << 30, free=14 << 30, total=16 << 30),
            "nvmlDeviceGetPowerUsage": 151_500,
            "nvmlDeviceGetEnforcedPowerLimit": 300_000,
            "nvmlDeviceGetTemperature": 61,
            "nvmlDeviceGetTemperatureThreshold": 90,
            "nvmlDeviceGetClockInfo": {1: 1410, 2: 9501},
            "nvmlDeviceGetMaxClockInfo": {1: 1980, 2: 9501},
            "nvmlDeviceGetFanSpeed": 45,
            "nvmlDeviceGetCurrentClocksEventReasons": 0x1,
            "nvmlDeviceGetName": b"A GPU",
            **answers,
        }
        self.calls = []

    def __getattr__(self, name):
        if name not in self.__dict__["answers"]:
            raise AttributeError(name)

        def call(handle, *arguments):
            self.calls.append(name)
            answer = self.answers[name]
            if isinstance(answer, NVMLError):
                raise answer
            return answer[arguments[0]] if isinstance(answer, dict) else answer

        return call

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802 the library's name
        if index > 0:
            raise NVMLError(2)
        return "handle"

    def nvmlDeviceGetHandleByPciBusId(self, bus_id):  # noqa: N802 the library's name
        if bus_id != b"0000:65:00.0":
            raise NVMLError(6)
        self.calls.append(f"at {bus_id.decode()}")
        return "handle"

    def nvmlShutdown(self):  # noqa: N802 the library's name
        self.calls.append("nvmlShutdown")


def test_everything_that_a_gpu_tells():
    source = NvmlSource(0, Library())
    assert source.read(0) == DeviceState(
        gpu_load=0.37,
        gpu_clock_hz=1_410_000_000,
        gpu_clock_max_hz=1_980_000_000,
        gpu_clock_top_hz=1_980_000_000,
        emc_clock_hz=9_501_000_000,
        emc_clock_max_hz=9_501_000_000,
        emc_load=0.12,
        gpu_memory_used_bytes=2 << 30,
        gpu_memory_free_bytes=14 << 30,
        gpu_memory_total_bytes=16 << 30,
        temperatures_c={"gpu": 61.0},
        temperature_c=61.0,
        temperature_zone="gpu",
        temperature_soft_c=83.0,
        temperature_hard_c=88.0,
        power_w=151.5,
        power_gpu_w=151.5,
        power_cap_w=300.0,
        throttles=(),
        fan=0.45,
    )


def test_of_an_integrated_gpu_load_and_clocks_alone():
    state = NvmlSource(0, Library(), integrated=True).read(0)
    assert (state.gpu_load, state.gpu_clock_hz) == (0.37, 1_410_000_000)
    assert state.power_w is state.gpu_memory_free_bytes is state.temperature_c is None


@pytest.mark.parametrize(
    ("bits", "throttles"),
    [(0x1, ()), (0x4, ("nvml:power_cap",)), (0x28, ("nvml:hw_slowdown", "nvml:thermal_slowdown"))],
)
def test_reasons_of_low_clocks(bits, throttles):
    assert NvmlSource(0, Library(nvmlDeviceGetCurrentClocksEventReasons=bits)).read(0).throttles == throttles


def test_an_older_library_has_the_reasons_under_their_old_name():
    library = Library(nvmlDeviceGetCurrentClocksThrottleReasons=0x40)
    del library.answers["nvmlDeviceGetCurrentClocksEventReasons"]
    assert NvmlSource(0, library).read(0).throttles == ("nvml:hw_thermal_slowdown",)


def test_what_is_not_supported_is_none_and_asked_once():
    library = Library()
    library.answers = {name: NVMLError(3) for name in library.answers}
    source = NvmlSource(0, library)
    assert source.read(0) == DeviceState()
    asked = len(library.calls)
    assert source.read(1) == DeviceState()
    assert len(library.calls) == asked


def test_a_lost_gpu_is_none_and_asked_again():
    library = Library()
    source = NvmlSource(0, library)
    assert source.read(0).power_w == 151.5
    whole = dict(library.answers)
    library.answers = {name: NVMLError(15) for name in whole}
    assert source.read(1).power_w is None
    library.answers = whole
    assert source.read(2).power_w == 151.5


def test_a_gpu_that_is_not_there(monkeypatch):
    source = NvmlSource(3, Library())
    assert source.read(0) == DeviceState()
    assert "no GPU 3" in source.trouble
    monkeypatch.setattr(nvml, "load_library", lambda: (None, "nvidia-ml-py is not installed"))
    source = NvmlSource(0)
    assert source.read(0) == DeviceState()
    assert source.trouble == "nvidia-ml-py is not installed"
    source.close()


def test_closing_gives_the_library_back_once():
    library = Library()
    source = NvmlSource(0, library)
    source.close()
    source.close()
    assert library.calls.count("nvmlShutdown") == 1
    assert source.read(0) == DeviceState()


def test_the_names_that_are_used_are_the_librarys():
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed (the extra gpu)")
    earlier = {"nvmlDeviceGetCurrentClocksEventReasons": "nvmlDeviceGetCurrentClocksThrottleReasons"}  # before 12.535
    for name in [*Library().answers, "nvmlDeviceGetHandleByIndex", "nvmlInit", "nvmlShutdown"]:
        assert callable(getattr(pynvml, name, None) or getattr(pynvml, earlier.get(name, name))), name
    for name in (
        "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN",
        "NVML_TEMPERATURE_GPU",
        "NVML_CLOCK_SM",
        "NVML_CLOCK_MEM",
        "NVML_ERROR_NOT_SUPPORTED",
    ):
        assert getattr(pynvml, name) == getattr(Library, name), name


def test_a_gpu_is_found_by_its_place_on_the_bus_under_any_number_in_cuda():
    library = Library()
    source = NvmlSource(1, library, bus_id="0000:65:00.0")  # NVML's GPU 1 is another one
    assert source.read(0).gpu_load == 0.37 and "at 0000:65:00.0" in library.calls
    assert "no GPU 0000:01:00.0" in NvmlSource(0, Library(), bus_id="0000:01:00.0").trouble
