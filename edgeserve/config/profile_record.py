"""The record of a profile: measured times of one model on one device. ``profiles.py`` reads and writes its files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, NamedTuple, Tuple

from edgeserve.config.readers import (
    Reader,
    anything,
    entry,
    integer,
    number,
    read_table,
    schema_of,
    string,
    table_of,
    takes,
    tuple_of,
)
from edgeserve.config.schema import Config
from edgeserve.errors import ConfigError

FORMAT = 2
"""Version of the file format; a file of another version is refused with that reason. Format 1 did not tell the options
and the load that the model was measured with."""

QUANTILES = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
"""The stored quantiles of the execution time: dense where deadlines are decided."""


TIME_NS_MAX = 86_400 * 10**9
"""A day: a longer batch or load is a mistake of the unit."""

BYTES_MAX = 2**50
"""A pebibyte: no device has as much memory."""

BATCH_MAX = 65_536
"""No engine takes larger batches on one device."""


def _whole(high: int) -> Reader:
    """A reader of whole numbers to ``high``, also of ones that a program wrote as 5000.0."""
    whole = integer(0, high)

    @takes(**schema_of(whole))
    def read(value: Any, where: str) -> int:
        return int(whole(int(value) if isinstance(value, float) and value.is_integer() else value, where))

    return read


_time, _bytes, _share = _whole(TIME_NS_MAX), _whole(BYTES_MAX), number(0.0, 1e6)


@takes(type="string", minLength=1, maxLength=128)
def _name(value: Any, where: str) -> str:
    if not 0 < len(string(value, where)) <= 128:
        raise ConfigError(f"{where} = {value!r}: expected 1 to 128 characters")
    return str(value)


@takes(type="array", items=schema_of(_time), maxItems=len(QUANTILES))
def _quantiles(value: Any, where: str) -> Tuple[int, ...]:
    found: Tuple[int, ...] = tuple_of(_time)(value, where)
    if found and (len(found) != len(QUANTILES) or list(found) != sorted(found)):
        raise ConfigError(f"{where} = {value!r}: expected none, or {len(QUANTILES)} values that rise")
    return found


def _timings(value: Any, where: str) -> Dict[int, Timing]:
    """Batch size -> its times, in rising order; times that cannot be true together are refused."""
    found = {}
    for size, table in table_of(anything)(value, where).items():
        if not re.fullmatch("[1-9][0-9]{0,4}", size) or int(size) > BATCH_MAX:
            raise ConfigError(f"{where}.{size}: expected batch sizes from 1 to {BATCH_MAX} as keys")
        timing = found[int(size)] = read_table(Timing, table, f"{where}.{size}")
        bounds = timing.quantiles_ns or (0, TIME_NS_MAX)
        least, most = bounds[0], bounds[-1]
        for name in ("median_ns", "mean_ns", "p99_ns"):
            if not least <= getattr(timing, name) <= most:
                raise ConfigError(
                    f"{where}.{size} {name} = {getattr(timing, name)}: expected a time from {least} to {most}, as "
                    "quantiles_ns say"
                )
        if timing.p99_ns < timing.median_ns:
            raise ConfigError(
                f"{where}.{size} p99_ns = {timing.p99_ns}: expected at least median_ns, {timing.median_ns}"
            )
        if timing.median_ns == 0 and timing.count > 0:
            raise ConfigError(f"{where}.{size} median_ns = 0: expected a time above 0, since something ran")
    return dict(sorted(found.items()))


_times_by_app = table_of(tuple_of(_time))


@takes(**schema_of(_times_by_app))
def _alone(value: Any, where: str) -> Dict[str, Tuple[int, ...]]:
    found: Dict[str, Tuple[int, ...]] = _times_by_app(value, where)
    for app, times in found.items():
        if list(times) != sorted(times):
            raise ConfigError(f"{where}.{app} = {list(times)!r}: expected times that rise")
    return found


def _lanes(value: Any, where: str) -> Dict[str, LaneProfile]:
    tables = table_of(anything)(value, where)
    if "" in tables:
        raise ConfigError(f"{where}: expected keys that are not empty")
    return {name: read_table(LaneProfile, table, f"{where}.{name}") for name, table in tables.items()}


class Clocks(NamedTuple):
    """Clocks in MHz of what computes and of its memory; 0.0: not known."""

    compute_mhz: float = 0.0
    memory_mhz: float = 0.0


@dataclass(frozen=True)
class Timing:
    """Execution time of one batch size on one lane, in nanoseconds. ``quantiles_ns`` follows :data:`QUANTILES`."""

    count: int = entry(_whole(10**9))  # runs that were measured
    median_ns: int = entry(_time)  # of all runs
    p99_ns: int = entry(_time)  # exceeded by one run in a hundred
    mean_ns: int = entry(_time)  # of all runs
    sd_ns: int = entry(_time)  # their standard deviation
    quantiles_ns: Tuple[int, ...] = entry(_quantiles, ())  # none, or the times at the fifteen quantiles, rising
    drift: float = entry(number(-1.0, 1e6), 0.0)  # last fifth's median over the first's, minus 1: 0.05 is throttling
    p99_error: float = entry(_share, 1.0)  # half the width of the p99's 95 % interval over the p99; 1 = not known


@dataclass(frozen=True)
class LaneProfile:
    """All batch sizes of one model on one lane, and the affine fit ``c0 + c1 * k`` of the medians."""

    timings: Dict[int, Timing] = entry(_timings)  # batch size -> execution times
    fixed_ns: int = entry(_time, 0)  # c0
    per_item_ns: int = entry(_time, 0)  # c1
    fit_error_max: float = entry(_share, 0.0)  # largest relative error of the fit over the measured sizes
    load_ns: int = entry(_time, 0)  # median time to load
    alone: Dict[str, Tuple[int, ...]] = entry(_alone, factory=dict)  # app -> times of its requests alone, rising
    prompt_token_ns: int = entry(_time, 0)  # of a language model: reading one token of a prompt; 0 = not measured
    clock_mhz: float = entry(_share, 0.0)  # of the GPU while it was measured; 0 = not known
    memory_clock_mhz: float = entry(_share, 0.0)  # of its memory
    memory_share: float = entry(number(0.0, 1.0), 0.0)  # of a batch's time, what follows the memory's clock
    rested_ns: int = entry(_time, 0)  # a batch of the smallest size after a second of rest; 0 = not measured

    @property
    def clocks(self) -> Clocks:
        """The clocks while it was measured."""
        return Clocks(self.clock_mhz, self.memory_clock_mhz)


@dataclass(frozen=True)
class Profile:
    """One model on one device: a lane profile per lane, memory in bytes, and the circumstances. ``shared_bytes``,
    besides: of each lane, what all its models use in turn."""

    model: str = entry(_name)  # its name
    device: str = entry(_name)  # where it was measured
    lanes: Dict[str, LaneProfile] = entry(_lanes)  # lane -> its times
    weights_bytes: int = entry(_bytes, 0)  # of the loaded model
    work_bytes: int = entry(_bytes, 0)  # that it takes besides
    circumstances: Dict[str, Any] = entry(table_of(anything), factory=dict)  # how it was measured, or where published
    shared_bytes: int = entry(_bytes, 0)  # besides, of each lane: what all its models use in turn

    @property
    def footprint(self) -> Tuple[int, int, int]:
        """The bytes of weights, of work, and of what a lane's models share."""
        return self.weights_bytes, self.work_bytes, self.shared_bytes


def profile_command(config: Config, model: str = "", force: bool = False) -> str:
    """The command that measures a model, or all, as a shell takes it; ``force``: again."""
    import shlex  # for messages

    words = ["edgeserve", "profile", "CONFIG" if config.source.startswith("(") else config.source]
    words += [*(["--model", model] if model else []), *(["--force"] if force else [])]
    return " ".join(map(shlex.quote, words))
