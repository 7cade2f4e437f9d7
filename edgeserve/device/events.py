"""From the state of a device to events for the scheduler: which quantity stands for what, per device of the
configuration. Pure; quantised and with hysteresis by :class:`~edgeserve.device.filter.DeviceFilter`.
"""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

from edgeserve.config.profile_record import Clocks, Profile
from edgeserve.config.schema import Config, DeviceConfig
from edgeserve.device.filter import DeviceFilter, DeviceLimits, Readings
from edgeserve.device.gpu_clock import HELD
from edgeserve.device.rails import ALARM
from edgeserve.device.state import DeviceState
from edgeserve.device.throttling import CAPPED, OVER_CURRENT, UNDER_VOLTAGE
from edgeserve.sched.protocol.events import Event

HZ_PER_MHZ = 1e6
THERMAL, POWER, OVER_CURRENT_ALONE = "thermal", "power", "over_current"

CAUSES = (
    (UNDER_VOLTAGE, POWER),
    (ALARM, POWER),
    ("hw_power_brake", POWER),
    ("thermal", THERMAL),
    ("cooling", THERMAL),
    ("hw_slowdown", THERMAL),
    (OVER_CURRENT, OVER_CURRENT_ALONE),
)
"""Parts of throttle flags and what they mean, the sharpest first. Flags without any of these only say that a clock is
lower (``gpu_clock:capped``, a desktop GPU at its ``power_cap``, as it always is when busy): the clock itself tells the
speed. Over-current events may come several times a second while no clock falls (27,390 in an hour on an Orin Nano in
MAXN_SUPER), so they count as power only beside a clock that did (:data:`LOWERED`)."""

LOWERED = (CAPPED, HELD)
"""Flags that say that the GPU's clock fell."""


class DeviceEvents:
    """The devices of a configuration that one monitor reads. The power is told of the first of them alone, since it is
    the whole module's: its energy must not count twice."""

    def __init__(
        self, config: Config, devices: Sequence[DeviceConfig], on_card: bool, profiles: Sequence[Profile] = ()
    ) -> None:
        ordered = sorted(devices, key=lambda device: device.kind != "cuda")
        self._filters: List[Tuple[DeviceConfig, bool, bool, bool, DeviceFilter]] = []
        for index, device in enumerate(ordered):
            lanes = [lane.name for lane in config.lanes.values() if lane.device == device.name]
            profiled = profiled_clocks(profiles, lanes)
            clock_mhz = max([clocks.compute_mhz for clocks in profiled], default=0.0)
            limits = DeviceLimits(clock_mhz, device.power_cap_w, profiled)
            self._filters.append(
                (
                    device,
                    on_card and device.kind == "cuda",
                    index == 0,
                    has_choice(config, device.name),
                    DeviceFilter(device.name, lanes, limits),
                )
            )

    def events(self, state: DeviceState) -> List[Event]:
        """The news in a state, at its own time."""
        found: List[Event] = []
        for device, on_card, has_power, has_load, known in self._filters:
            found += known.events(state.at_ns, readings_of(state, device, on_card, has_power, has_load))
        return found


def profiled_clocks(profiles: Sequence[Profile], lanes: Sequence[str]) -> Tuple[Clocks, ...]:
    """The clocks at which models were measured on these lanes, each once."""
    known = {profile.lanes[lane].clocks: None for profile in profiles for lane in lanes if lane in profile.lanes}
    return tuple([clocks for clocks in known if clocks.compute_mhz])


def has_choice(config: Config, name: str) -> bool:
    """True if the load of the processor can matter to a choice of lanes: the device is of kind ``cpu``, and a model may
    run on a lane of it and on another lane."""
    if config.devices[name].kind != "cpu":
        return False
    choices = [model.lanes or tuple(config.lanes) for model in config.models.values()]
    return any(len(lanes) > 1 and any(config.lanes[lane].device == name for lane in lanes) for lanes in choices)


def readings_of(
    state: DeviceState, device: DeviceConfig, on_card: bool, has_power: bool = True, has_load: bool = False
) -> Readings:
    """The quantities of one device in a state. A discrete GPU's memory is its card's, an integrated one's the host's;
    the host's clock is not told: that of one busy core of several, at its turbo, is no measure."""
    if device.kind == "cuda":
        clock, allowed, load = state.gpu_clock_hz, state.gpu_clock_max_hz, state.gpu_load
        locked = state.clocks_locked
        memory = [hz for hz in (state.emc_clock_max_hz, state.power_mode_emc_clock_hz) if hz]
        memory_clock, memory_allowed = state.emc_clock_hz, min(memory, default=None)
    else:
        clock, allowed, load, locked = None, None, state.cpu_load, None
        memory_clock = memory_allowed = None
    return Readings(
        clock_mhz=_mhz(clock),
        clock_max_mhz=_mhz(allowed),
        load=load,
        heat_c=state.temperature_c,
        heat_soft_c=state.temperature_soft_c,
        heat_hard_c=state.temperature_hard_c,
        power_w=state.power_w if has_power else None,
        memory_free_bytes=state.gpu_memory_free_bytes if on_card else state.memory_available_bytes,
        memory_block_bytes=None if on_card else state.largest_free_block_bytes,
        throttled=_cause(state.throttles),
        locked=locked,
        cpu_load=state.cpu_load if has_load else None,
        cpu_cores=state.cpu_cores_online or state.cpu_cores if has_load else None,
        memory_clock_mhz=_mhz(memory_clock),
        memory_clock_max_mhz=_mhz(memory_allowed),
    )


def _mhz(clock_hz: Optional[int]) -> Optional[float]:
    return None if clock_hz is None else clock_hz / HZ_PER_MHZ


def _cause(throttles: Optional[Tuple[str, ...]]) -> str:
    """The causes of throttling, in the scheduler's words."""
    flags = throttles or ()
    if any(OVER_CURRENT in flag for flag in flags) and any(flag in flags for flag in LOWERED):
        return POWER
    return next((cause for part, cause in CAUSES if any(part in flag for flag in flags)), "")
