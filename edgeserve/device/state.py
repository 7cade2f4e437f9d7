"""The state of a device at one moment: plain quantities with their units in their names.

Every quantity may be None: no source told it. None never means zero. Sources fill what they know, :func:`merged` puts
their readings together. Nothing here reads anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Dict, Iterable, Mapping, Optional, Tuple

MAPPINGS = ("temperatures_c", "rails_w", "cpu_clocks_hz")
"""Fields that hold one value per name; readings of several sources are joined, the earlier source's values first."""


@dataclass(frozen=True)
class DeviceState:
    """One device (an accelerator and the host that it sits in) at ``at_ns`` of the monitor's clock.

    Loads are shares (0.0 to 1.0), clocks hertz, power watts, temperatures degrees Celsius, memory bytes.
    ``throttles`` is None where nothing that throttles can be seen, ``()`` where it can and nothing does.
    """

    at_ns: int = 0

    gpu_load: Optional[float] = None  # mean of the samples of the last second
    gpu_clock_hz: Optional[int] = None
    gpu_clock_min_hz: Optional[int] = None  # the governor's lower bound; equal to the upper one = locked
    gpu_clock_max_hz: Optional[int] = None  # what the governor may choose now: power mode and throttling lower it
    gpu_clock_top_hz: Optional[int] = None  # the highest clock of the hardware
    emc_clock_hz: Optional[int] = None  # external memory controller
    emc_clock_max_hz: Optional[int] = None
    emc_load: Optional[float] = None
    cpu_load: Optional[float] = None  # over the cores that are online
    cpu_cores_online: Optional[int] = None
    cpu_cores: Optional[int] = None
    cpu_clocks_hz: Mapping[str, int] = field(default_factory=dict)  # "cpu0" -> clock; cores that are off have none

    memory_available_bytes: Optional[int] = None  # MemAvailable: what programs, and an integrated GPU, can still have
    memory_total_bytes: Optional[int] = None
    memory_pressure: Optional[float] = None  # share of the last 10 s in which some program waited for memory (PSI)
    swap_free_bytes: Optional[int] = None
    largest_free_block_bytes: Optional[int] = None  # lfb: little of it although much is free = fragmentation
    free_blocks: Optional[int] = None  # how many blocks of that size are free
    gpu_memory_used_bytes: Optional[int] = None  # by NvMap on an integrated GPU, on the card of a discrete one
    gpu_memory_free_bytes: Optional[int] = None  # discrete GPUs only: an integrated one has the host's memory
    gpu_memory_total_bytes: Optional[int] = None

    temperatures_c: Mapping[str, float] = field(default_factory=dict)  # zone -> degrees; zones that are off have none
    temperature_c: Optional[float] = None  # of the zone that is nearest to its hard limit
    temperature_zone: Optional[str] = None
    temperature_soft_c: Optional[float] = None  # that zone's limits: do less from here on,
    temperature_hard_c: Optional[float] = None  # and expect that clocks fall from here on

    rails_w: Mapping[str, float] = field(default_factory=dict)
    power_w: Optional[float] = None  # of the whole module or card
    power_gpu_w: Optional[float] = None  # of the GPU's rail, where it has one
    power_cap_w: Optional[float] = None  # what it is held to; a power mode's watts are clock caps and are not this
    throttles: Optional[Tuple[str, ...]] = None  # what slows the device now, such as "over_current:oc3"
    fan: Optional[float] = None  # share of full drive
    fan_rpm: Optional[int] = None
    power_mode: Optional[str] = None  # nvpmodel's name of it
    power_mode_gpu_clock_hz: Optional[int] = None  # the highest GPU clock that the power mode allows
    power_mode_emc_clock_hz: Optional[int] = None  # the same of the memory controller, where the mode bounds it

    @property
    def soft_margin_c(self) -> Optional[float]:
        """Degrees left until the soft limit, negative above it."""
        return _less(self.temperature_soft_c, self.temperature_c)

    @property
    def hard_margin_c(self) -> Optional[float]:
        """Degrees left until the hard limit, negative above it."""
        return _less(self.temperature_hard_c, self.temperature_c)

    @property
    def clocks_locked(self) -> Optional[bool]:
        """True if the GPU's clock cannot vary (``jetson_clocks``)."""
        if self.gpu_clock_min_hz is None or self.gpu_clock_max_hz is None:
            return None
        return self.gpu_clock_min_hz >= self.gpu_clock_max_hz

    def table(self) -> Dict[str, Any]:
        """Every quantity by name, None where it is not known: for JSON."""
        found: Dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            found[item.name] = (
                dict(value) if item.name in MAPPINGS else list(value) if isinstance(value, tuple) else value
            )
        found["soft_margin_c"], found["hard_margin_c"] = self.soft_margin_c, self.hard_margin_c
        return found


QUANTITIES = tuple(item.name for item in fields(DeviceState) if item.name != "at_ns")
"""The names of everything that a source may tell."""


LIMITED = ("temperature_c", "temperature_zone", "temperature_soft_c", "temperature_hard_c")
"""Fields that belong together: one source's temperature is never judged by another's limits."""


def merged(readings: Iterable[DeviceState], at_ns: int = 0) -> DeviceState:
    """One state of several partial ones: of each quantity the first value that is not None, of mappings every name.
    Throttles are joined: what one source does not see is no proof that nothing throttles."""
    values: Dict[str, Any] = {"at_ns": at_ns}
    for state in readings:
        with_limits = values.get("temperature_c") is None
        for name in QUANTITIES:
            value = getattr(state, name)
            if value is None or (name in LIMITED and not with_limits):
                continue
            if name in MAPPINGS:
                values[name] = {**value, **values.get(name, {})}
            elif name == "throttles":
                values[name] = tuple(dict.fromkeys((*values.get(name, ()), *value)))
            else:
                values.setdefault(name, value)
    return DeviceState(**values)


def _less(limit: Optional[float], value: Optional[float]) -> Optional[float]:
    return None if limit is None or value is None else limit - value
