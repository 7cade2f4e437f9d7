"""A device that gets warm: clock steps, heat, throttling, power, and memory and cores that other programs take.

The power is ``static + dynamic * (clock / highest) ** exponent * load``, the heat that of one capacity behind one
resistance (exact between two changes of the power). A batch takes ``compute * highest / clock + (1 - compute)`` times
as long as at the highest clock. This module only keeps the state and reads it as sensors would; the world makes it
happen. Deterministic by its seed: the only draw is the clock's jitter.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from edgeserve.config.readers import boolean, duration, entry, integer, number, one_of, read_table, size, tuple_of
from edgeserve.config.schema import DeviceConfig, LaneConfig
from edgeserve.device.filter import DeviceFilter, DeviceLimits, Readings
from edgeserve.errors import ConfigError
from edgeserve.sched.protocol.events import LEVELS, DeviceChanged, Event, LaneChanged
from edgeserve.sched.resources.cpu_share import weight_of
from edgeserve.units import NS_PER_MS, NS_PER_S


def record(kind: Any) -> Any:
    """A reader of a table with the entries of a data class."""
    return lambda value, where: read_table(kind, value, where)


@dataclass(frozen=True)
class CapConfig:
    """``caps = [{ at = "30s", for = "30s", clock = 0.6 }]``: the clock is limited for a while, as by a power mode."""

    at_ns: int = entry(duration, key="at")
    for_ns: int = entry(duration, 2**62, key="for")  # left out = to the end
    clock: float = entry(number(0.01, 1.0), 1.0)  # share of the highest clock; the next step below is taken
    why: str = entry(one_of("", "thermal", "power"), "")  # what the sensors say throttles; "" = nothing does


@dataclass(frozen=True)
class OthersConfig:
    """``changes = [{ at = "10s", others = "3GB" }]``: what other programs take from then on."""

    at_ns: int = entry(duration, key="at")
    others_bytes: int = entry(size, key="others")
    over_ns: int = entry(duration, 0, key="over")  # they take it bit by bit over this time


@dataclass(frozen=True)
class ThermalConfig:
    """``[hardware.DEVICE.thermal]``: one heat capacity behind one resistance to the air around."""

    ambient_c: float = entry(number(-40.0, 80.0), 25.0, key="ambient")
    start_c: float = entry(number(-40.0, 150.0), -273.0, key="start")  # left out = ambient
    resistance: float = entry(number(0.01, 100.0), 2.0)  # degrees per watt, at rest
    time_ns: int = entry(duration, 60 * 10**9, key="time")  # time constant: resistance times heat capacity
    trip_c: float = entry(number(0.0, 150.0), 95.0, key="trip")  # the hardware slows down from here on
    release_c: float = entry(number(-273.0, 150.0), -273.0, key="release")  # speeds up below it; left out = trip - 5

    @property
    def released_below_c(self) -> float:
        """The temperature below which the hardware speeds up again."""
        return self.release_c if self.release_c > -273.0 else self.trip_c - 5.0


@dataclass(frozen=True)
class PowerConfig:
    """``[hardware.DEVICE.power]``: static + dynamic * (clock / highest clock) ** exponent * load watts."""

    static_w: float = entry(number(0.0), 5.0, key="static")
    dynamic_w: float = entry(number(0.0), 20.0, key="dynamic")
    exponent: float = entry(number(1.0, 4.0), 2.5)  # 1 for the clock, and up to 2 for the voltage that falls with it
    load_min: float = entry(number(0.0, 1.0), 0.6)  # load of a batch of nearly none; the largest batch has 1
    limit_w: float = entry(number(0.0), 0.0, key="limit")  # the hardware slows down above this; 0 = it does not


@dataclass(frozen=True)
class MemoryConfig:
    """``[hardware.DEVICE.memory]``: the memory shared with other programs."""

    total_bytes: int = entry(size, key="total")
    others_bytes: int = entry(size, 0, key="others")  # other programs at the start
    changes: Tuple[OthersConfig, ...] = entry(tuple_of(record(OthersConfig)), ())


@dataclass(frozen=True)
class OtherThreadsConfig:
    """``changes = [{ at = "10s", others = 3.0 }]``: cores that other programs would keep busy from then on."""

    at_ns: int = entry(duration, key="at")
    others: float = entry(number(0.0, 1024.0))


@dataclass(frozen=True)
class ProcessorConfig:
    """``[hardware.DEVICE.processor]``: the device is a processor that its lanes share with other programs."""

    cores: int = entry(integer(1, 1024))
    others: float = entry(number(0.0, 1024.0), 0.0)  # cores that other programs would keep busy, at the start
    changes: Tuple[OtherThreadsConfig, ...] = entry(tuple_of(record(OtherThreadsConfig)), ())


@dataclass(frozen=True)
class HardwareConfig:
    """``[hardware.DEVICE]``."""

    device: str
    clocks: Tuple[float, ...] = entry(tuple_of(number(1.0)), (1000.0,))  # MHz, rising: the steps that it has
    compute: float = entry(number(0.0, 1.0), 1.0)  # share of a batch's time that the clock changes; the rest is memory
    governor: str = entry(one_of("locked", "ondemand"), "locked")  # ondemand: the lowest clock while nothing runs
    idle_after_ns: int = entry(duration, 100 * 10**6, key="idle_after")  # ondemand: idle for so long lowers the clock
    ramp_ns: int = entry(duration, 50 * 10**6, key="ramp")  # ondemand: busy for so long raises it
    jitter: float = entry(number(0.0, 0.5), 0.0)  # the clock is off by up to this share, drawn anew every second
    caps: Tuple[CapConfig, ...] = entry(tuple_of(record(CapConfig)), ())
    monitor: bool = entry(boolean, True)  # whether the scheduler is told
    every_ns: int = entry(duration, 500 * 10**6, key="every")  # how often the monitor reads
    thermal: Optional[ThermalConfig] = entry(record(ThermalConfig), None)
    power: PowerConfig = entry(record(PowerConfig), PowerConfig())
    memory: Optional[MemoryConfig] = entry(record(MemoryConfig), None)
    processor: Optional[ProcessorConfig] = entry(record(ProcessorConfig), None)


def check_hardware(hardware: HardwareConfig) -> None:
    """Check the rules that concern several keys."""
    where = f"[hardware.{hardware.device}]"
    if list(hardware.clocks) != sorted(set(hardware.clocks)) or not hardware.clocks:
        raise ConfigError(
            f"{where} clocks = {list(hardware.clocks)}: expected MHz in rising order, such as [420.0, 765.0, 1300.0]"
        )
    thermal = hardware.thermal
    if thermal is not None and thermal.released_below_c >= thermal.trip_c:
        raise ConfigError(
            f"{where[:-1]}.thermal] release = {thermal.release_c:g}: expected less than trip = {thermal.trip_c:g}"
        )
    if hardware.every_ns <= 0:
        raise ConfigError(f"{where} every = '0ms': expected how often the monitor reads, such as '500ms'")


POLL_NS = 100 * NS_PER_MS
"""The time between two looks of the hardware at its heat and power, and moves its clock by at most one step because of
them."""

JITTER_NS = NS_PER_S
"""The time between two draws of a clock that jitters."""

SOFT_BELOW_C, HARD_BELOW_C = 7.0, 2.0
"""The limits of heat that the sensors give, below the temperature at which the hardware slows down."""


class LaneThreads(NamedTuple):
    """Threads that would keep so many ``cores`` busy, and how much they weigh beside others where there are too few."""

    cores: float
    weight: float


def shared_cores(wanted: Mapping[str, LaneThreads], cores: float) -> Dict[str, float]:
    """The cores that each gets: all that it wants, or its share by weight where that is less (fair scheduling)."""
    got: Dict[str, float] = {}
    open_, left = dict(wanted), float(cores)
    while open_:
        weight = math.fsum([item.weight for item in open_.values()])
        full = [name for name, item in open_.items() if item.cores <= left * item.weight / weight]
        if not full:
            got.update({name: left * item.weight / weight for name, item in open_.items()})
            break
        for name in full:
            got[name] = open_.pop(name).cores
            left -= got[name]
    return got


class SimHardware:
    """One device. The world tells what runs (:meth:`runs`) and lets time pass (:meth:`poll`); ``pace`` is how many
    times longer than at the highest clock a batch takes now. ``energy_j`` is what it used so far, ``oom_kills`` how
    often programs took more memory than there is."""

    def __init__(self, hardware: HardwareConfig, device: DeviceConfig, lanes: Sequence[LaneConfig], seed: Any) -> None:
        self.config = hardware
        self.lanes = tuple([lane.name for lane in lanes])
        self._threads = {lane.name: LaneThreads(lane.threads, lane.threads * weight_of(lane.nice)) for lane in lanes}
        self._running: Tuple[str, ...] = ()  # lanes that work
        self._used_core_ns = 0.0  # of the processor, since the last reading
        self.top_mhz = hardware.clocks[-1]
        self.filter = DeviceFilter(
            device.name,
            self.lanes,
            DeviceLimits(self.top_mhz, device.power_cap_w),
        )
        self._draw = random.Random(f"{seed}/hardware/{device.name}")
        self._wobble = 1.0
        self._wobbles_ns = 0  # when it is drawn anew
        self._limit = len(hardware.clocks) - 1  # the highest step that heat and power allow
        self._throttled = ""
        self._idles = hardware.governor == "ondemand"  # its clock is the lowest
        self._load = 0.0
        self._busy_ns = 0  # load over time since the last reading
        self._read_ns = 0
        self._now_ns = 0
        thermal = hardware.thermal
        self.heat_c = 0.0 if thermal is None else max(thermal.start_c, thermal.ambient_c)
        self.energy_j = 0.0
        self._read_j = 0.0
        self.heat_c_max = self.heat_c
        self.oom_kills = 0
        self._is_out = False
        self._healed_ns = 0
        self.turns = 0  # how often it turned busy or idle

    # --- what it does -------------------------------------------------------------------------------------------------

    @property
    def pace(self) -> float:
        """The present time of a batch, as a multiple of its time at the highest clock."""
        share = self.config.compute
        return share * self.top_mhz / self.clock_mhz() + 1.0 - share

    def clock_mhz(self) -> float:
        """The clock that it has now."""
        clock_mhz = self.config.clocks[0] if self._idles else self._allowed_mhz()
        return clock_mhz * self._wobble

    def _allowed_mhz(self) -> float:
        clocks, step = self.config.clocks, self._limit
        for cap in self.config.caps:
            if cap.at_ns <= self._now_ns < cap.at_ns + cap.for_ns and not self.healed:
                below = [index for index, clock in enumerate(clocks) if clock <= cap.clock * self.top_mhz * 1.0001]
                step = min(step, below[-1] if below else 0)
        return clocks[step]

    def power_w(self) -> float:
        """The present power, in watts."""
        power = self.config.power
        scale: float = (self.clock_mhz() / self.top_mhz) ** power.exponent
        return power.static_w + power.dynamic_w * scale * self._load

    @property
    def is_busy(self) -> bool:
        """True if anything runs on it."""
        return self._load > 0.0

    def runs(self, now_ns: int, batches: Sequence[Tuple[int, int]], lanes: Sequence[str] = ()) -> None:
        """These batches run on it from now on, as (size, largest size of the model), on these lanes."""
        self._advance(now_ns)
        self._running = tuple(lanes)
        was_busy, least = self.is_busy, self.config.power.load_min
        self._load = min(1.0, sum([least + (1.0 - least) * size / size_max for size, size_max in batches], 0.0))
        self.turns += self.is_busy != was_busy

    def govern(self, now_ns: int) -> None:
        """The governor has seen it busy, or idle, for long enough."""
        self._advance(now_ns)
        self._idles = not self.is_busy

    @property
    def healed(self) -> bool:
        """True if the run is over, and nothing is counted any more."""
        return self._healed_ns > 0

    def poll(self, now_ns: int) -> None:
        """Look at heat and power; move the clock by a step at most."""
        self._advance(now_ns)
        if self.config.jitter and now_ns >= self._wobbles_ns:
            self._wobble = 1.0 + self.config.jitter * (2.0 * self._draw.random() - 1.0)
            self._wobbles_ns = now_ns + JITTER_NS
        thermal, power = self.config.thermal, self.config.power
        hot = thermal is not None and self.heat_c >= thermal.trip_c
        warm = thermal is not None and self.heat_c >= thermal.released_below_c
        over = power.limit_w > 0 and self.power_w() > power.limit_w
        if hot or over:
            self._limit = max(0, self._limit - 1)
            self._throttled = "thermal" if hot else "power"
        elif (
            not warm
            and self._limit < len(self.config.clocks) - 1
            and not (self._throttled == "power" and self._would_draw_w() > power.limit_w)
        ):
            self._limit += 1
            if self._limit == len(self.config.clocks) - 1:
                self._throttled = ""

    def _would_draw_w(self) -> float:
        """The power at the next step up of the clock, in watts."""
        power = self.config.power
        scale: float = (self.config.clocks[self._limit + 1] / self.top_mhz) ** power.exponent
        return power.static_w + power.dynamic_w * scale * self._load

    def _advance(self, now_ns: int) -> None:
        """Let time pass at the present power."""
        passed_ns = now_ns - self._now_ns
        if passed_ns <= 0 or self.healed:
            self._now_ns = max(now_ns, self._now_ns)
            return
        watts = self.power_w()
        self.energy_j += watts * passed_ns / NS_PER_S
        self._busy_ns += passed_ns if self._load > 0 else 0
        if self.config.processor is not None:
            self._used_core_ns += passed_ns * math.fsum(self._cores().values())
        thermal = self.config.thermal
        if thermal is not None:
            settles_c = thermal.ambient_c + watts * thermal.resistance
            self.heat_c = settles_c + (self.heat_c - settles_c) * math.exp(-passed_ns / thermal.time_ns)
            self.heat_c_max = max(self.heat_c_max, self.heat_c)
        self._now_ns = now_ns

    @property
    def mean_w(self) -> float:
        """The mean power so far; afterwards, of the run."""
        counted_ns = self._healed_ns or self._now_ns
        return self.energy_j * NS_PER_S / counted_ns if counted_ns else 0.0

    # --- processor ----------------------------------------------------------------------------------------------------

    def pace_of(self, lane: str) -> float:
        """The present time of a lane's batch as a multiple of its usual time, by the clock and the cores that its
        threads get."""
        got = self._cores().get(lane) if self.config.processor is not None else None
        return self.pace if got is None else self.pace * self._threads[lane].cores / got

    def _cores(self) -> Dict[str, float]:
        """The cores that each lane that works gets, and other programs (``""``)."""
        processor = self.config.processor
        assert processor is not None
        wanted = {lane: self._threads[lane] for lane in self._running}
        others = self.other_cores()
        if others:
            wanted[""] = LaneThreads(others, others)
        return shared_cores(wanted, processor.cores)

    def other_cores(self) -> float:
        """The cores that other programs would keep busy now."""
        processor = self.config.processor
        if processor is None or self.healed:
            return 0.0
        return next(
            (change.others for change in reversed(processor.changes) if change.at_ns <= self._now_ns), processor.others
        )

    # --- memory -------------------------------------------------------------------------------------------------------

    def others_bytes(self) -> int:
        """The bytes that other programs have taken."""
        memory = self.config.memory
        if memory is None or self.healed:
            return 0
        taken = memory.others_bytes
        for change in memory.changes:
            if change.at_ns > self._now_ns:
                break
            part = 1.0 if not change.over_ns else min(1.0, (self._now_ns - change.at_ns) / change.over_ns)
            taken += round((change.others_bytes - taken) * part)
        return taken

    def takes(self, now_ns: int, used_bytes: int) -> None:
        """Our models have taken so much: the system kills a program whenever there is not enough for all."""
        memory = self.config.memory
        if memory is None:
            return
        self._advance(now_ns)
        is_out = used_bytes + self.others_bytes() > memory.total_bytes
        self.oom_kills += is_out and not self._is_out
        self._is_out = is_out

    # --- what the scheduler is told -----------------------------------------------------------------------------------

    def read(self, now_ns: int, used_bytes: int) -> List[Event]:
        """The news since the last reading, as a monitor reports it."""
        self._advance(now_ns)
        return self.filter.events(now_ns, self.readings(used_bytes)) if self.config.monitor else []

    def readings(self, used_bytes: int) -> Readings:
        """The values of the sensors; power and load are means since the last reading."""
        passed_ns = self._now_ns - self._read_ns
        watts = (self.energy_j - self._read_j) * NS_PER_S / passed_ns if passed_ns > 0 else self.power_w()
        load = min(1.0, self._busy_ns / passed_ns) if passed_ns > 0 else 0.0
        thermal, memory, processor = self.config.thermal, self.config.memory, self.config.processor
        core_ns = self._used_core_ns
        self._read_ns, self._read_j, self._busy_ns, self._used_core_ns = self._now_ns, self.energy_j, 0, 0.0
        capped = next(
            (cap.why for cap in self.config.caps if cap.why and cap.at_ns <= self._now_ns < cap.at_ns + cap.for_ns), ""
        )
        return Readings(
            clock_mhz=self.clock_mhz(),
            clock_max_mhz=self._allowed_mhz() * self._wobble,
            load=load,
            heat_c=None if thermal is None else self.heat_c,
            heat_soft_c=None if thermal is None else thermal.trip_c - SOFT_BELOW_C,
            heat_hard_c=None if thermal is None else thermal.trip_c - HARD_BELOW_C,
            power_w=watts,
            memory_free_bytes=None if memory is None else max(0, memory.total_bytes - used_bytes - self.others_bytes()),
            throttled=self._throttled or capped,
            locked=self.config.governor == "locked",
            cpu_load=None if processor is None or passed_ns <= 0 else min(1.0, core_ns / passed_ns / processor.cores),
            cpu_cores=None if processor is None else processor.cores,
        )

    def heal(self, now_ns: int, used_bytes: int) -> List[Event]:
        """The run is over: full clock, cool, all memory. No energy is counted from now on."""
        self._advance(now_ns)
        self._healed_ns = now_ns
        self._limit, self._throttled, self._wobble, self._idles = len(self.config.clocks) - 1, "", 1.0, False
        if not self.config.monitor:
            return []
        memory, calm = self.config.memory, LEVELS[0]
        free = None if memory is None else max(0, memory.total_bytes - used_bytes)
        cores = None if self.config.processor is None else self.config.processor.cores
        return [
            *[LaneChanged(lane, None, 1.0, "as profiled", now_ns) for lane in self.lanes],
            DeviceChanged(
                self.filter.device,
                free,
                thermal=calm,
                power=calm,
                cpu_load=None if cores is None else 0.0,
                cpu_cores=cores,
            ),
        ]
