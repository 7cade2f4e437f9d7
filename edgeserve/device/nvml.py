"""NVML: discrete GPUs, and the load of Thor. The library is optional (``nvidia-ml-py``) and asked only for what it
answers: on Orin it exists and supports next to nothing."""

from __future__ import annotations

import logging
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from edgeserve.device.source import SLOW_NS
from edgeserve.device.state import DeviceState
from edgeserve.device.thermal import HARD_BELOW_TRIP_C, HARD_DEFAULT_C, SOFT_BELOW_TRIP_C, SOFT_DEFAULT_C

log = logging.getLogger("edgeserve")

THROTTLE = "nvml"

REASONS = {
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x20: "thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
}
"""Bits of NVML's clock event reasons that lower clocks because something is over a limit. Idle, application clocks and
sync boost are settings, not limits."""


def load_library() -> Tuple[Optional[Any], str]:
    """The library, started, or why there is none."""
    try:
        import pynvml
    except ImportError:
        return None, "nvidia-ml-py is not installed (pip install 'edgeserve-runtime[gpu]')"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, f"NVML does not start: {error}"
    return pynvml, ""


class NvmlSource:
    """One GPU by its PCI bus id, ``""``: by its index. CUDA counts by speed and after CUDA_VISIBLE_DEVICES, NVML by
    bus, so that an index of CUDA's may be another GPU here. ``library`` is pynvml, started; by default it is loaded
    here. What a GPU does not support is asked once. Of an ``integrated`` GPU load and clocks alone are told:
    its memory is the host's, its power that of the rails."""

    name = "nvml"
    every_ns = SLOW_NS

    def __init__(
        self, index: int = 0, library: Optional[Any] = None, integrated: bool = False, bus_id: str = ""
    ) -> None:
        self.trouble = ""
        if library is None:
            library, self.trouble = load_library()
        self._nvml = library
        self._unsupported: Set[str] = set()
        self._handle: Optional[Any] = None
        self._index = index
        self._bus_id = bus_id
        self._integrated = integrated
        self._limits_c: Optional[Tuple[float, float]] = None
        self._fixed: Dict[str, Any] = {}
        if library is not None:
            self._open()

    def _open(self) -> None:
        nvml = self._nvml
        assert nvml is not None
        try:
            self._handle = (
                nvml.nvmlDeviceGetHandleByPciBusId(self._bus_id.encode())
                if self._bus_id
                else nvml.nvmlDeviceGetHandleByIndex(self._index)
            )
        except nvml.NVMLError as error:
            self.trouble = f"NVML has no GPU {self._bus_id or self._index}: {error}"
            return
        slowdown = self._ask("nvmlDeviceGetTemperatureThreshold", nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
        self._limits_c = (
            (SOFT_DEFAULT_C, HARD_DEFAULT_C)
            if not slowdown
            else (slowdown - SOFT_BELOW_TRIP_C, slowdown - HARD_BELOW_TRIP_C)
        )
        self._fixed = {
            "gpu_clock_top_hz": _hertz(self._ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM)),
            "emc_clock_max_hz": _hertz(self._ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_MEM)),
        }

    def _ask(self, function: str, *arguments: Any) -> Any:
        """The function's answer; None where this GPU does not support it, or the answer is lost this once."""
        nvml, key = self._nvml, f"{function}{arguments}"
        if nvml is None or self._handle is None or key in self._unsupported:
            return None
        call: Optional[Callable[..., Any]] = getattr(nvml, function, None)
        if call is None:
            self._unsupported.add(key)
            return None
        try:
            return call(self._handle, *arguments)
        except nvml.NVMLError as error:
            if getattr(error, "value", None) == nvml.NVML_ERROR_NOT_SUPPORTED:
                self._unsupported.add(key)
            else:
                log.debug("%s: %s", function, error)
            return None

    def read(self, now_ns: int) -> DeviceState:
        """Everything that this GPU tells."""
        nvml = self._nvml
        if nvml is None or self._handle is None:
            return DeviceState()
        load = self._ask("nvmlDeviceGetUtilizationRates")
        values: Dict[str, Any] = {} if self._integrated else self._card()
        return DeviceState(
            gpu_load=None if load is None else load.gpu / 100,
            emc_load=None if load is None else load.memory / 100,
            gpu_clock_hz=_hertz(self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM)),
            emc_clock_hz=_hertz(self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM)),
            gpu_clock_max_hz=self._fixed["gpu_clock_top_hz"],
            throttles=self._throttles(),
            **self._fixed,
            **values,
        )

    def _card(self) -> Dict[str, Any]:
        """Memory, heat, power and fan of a discrete GPU."""
        assert self._nvml is not None
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        milliwatts, cap = self._ask("nvmlDeviceGetPowerUsage"), self._ask("nvmlDeviceGetEnforcedPowerLimit")
        celsius = self._ask("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU)
        fan = self._ask("nvmlDeviceGetFanSpeed")
        found: Dict[str, Any] = {}
        if memory is not None:
            found.update(
                gpu_memory_used_bytes=memory.used,
                gpu_memory_free_bytes=memory.free,
                gpu_memory_total_bytes=memory.total,
            )
        if milliwatts is not None:
            found.update(power_w=milliwatts / 1000, power_gpu_w=milliwatts / 1000)
        if cap is not None:
            found["power_cap_w"] = cap / 1000
        if celsius is not None and self._limits_c is not None:
            soft_c, hard_c = self._limits_c
            found.update(
                temperatures_c={"gpu": float(celsius)},
                temperature_c=float(celsius),
                temperature_zone="gpu",
                temperature_soft_c=soft_c,
                temperature_hard_c=hard_c,
            )
        if fan is not None:
            found["fan"] = min(1.0, fan / 100)
        return found

    def _throttles(self) -> Optional[Tuple[str, ...]]:
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        if bits is None:
            return None
        found: List[str] = [f"{THROTTLE}:{name}" for bit, name in REASONS.items() if bits & bit]
        return tuple(found)

    def close(self) -> None:
        nvml, self._nvml, self._handle = self._nvml, None, None
        if nvml is not None:
            try:
                nvml.nvmlShutdown()
            except nvml.NVMLError as error:
                log.debug("nvmlShutdown: %s", error)


def _hertz(megahertz: Optional[int]) -> Optional[int]:
    return megahertz * 10**6 if megahertz else None
