"""``[hardware.DEVICE]`` of a scenario: how the device really behaves, its clocks, heat, power and memory.

This module reads; :mod:`edgeserve.sim.hardware` simulates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Tuple

from edgeserve.config.loading import read_table
from edgeserve.config.readers import boolean, duration, entry, integer, number, one_of, size, tuple_of
from edgeserve.errors import ConfigError


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
        """Where the hardware speeds up again."""
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
    """``[hardware.DEVICE.memory]``: what is shared with other programs."""

    total_bytes: int = entry(size, key="total")
    others_bytes: int = entry(size, 0, key="others")  # other programs at the start
    changes: Tuple[OthersConfig, ...] = entry(tuple_of(lambda value, where: read_table(OthersConfig, value, where)), ())


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
    changes: Tuple[OtherThreadsConfig, ...] = entry(
        tuple_of(lambda value, where: read_table(OtherThreadsConfig, value, where)), ()
    )


def _optional(kind: Any) -> Any:
    def read(value: Any, where: str) -> Any:
        return read_table(kind, value, where)

    return read


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
    caps: Tuple[CapConfig, ...] = entry(tuple_of(_optional(CapConfig)), ())
    monitor: bool = entry(boolean, True)  # whether the scheduler is told
    every_ns: int = entry(duration, 500 * 10**6, key="every")  # how often the monitor reads
    thermal: Optional[ThermalConfig] = entry(_optional(ThermalConfig), None)
    power: PowerConfig = entry(_optional(PowerConfig), PowerConfig())
    memory: Optional[MemoryConfig] = entry(_optional(MemoryConfig), None)
    processor: Optional[ProcessorConfig] = entry(_optional(ProcessorConfig), None)


def check_hardware(hardware: HardwareConfig) -> None:
    """What one key alone does not show."""
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
