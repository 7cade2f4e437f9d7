"""The record of a profile: measured times of one model on one device. ``profiles.py`` reads and writes its files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, NamedTuple, Tuple

from edgeserve.config.schema import Config

FORMAT = 2
"""Version of the file format; a file of another version is refused with that reason. Format 1 did not tell the options
and the load that the model was measured with."""

QUANTILES = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
"""The stored quantiles of the execution time: dense where deadlines are decided."""


class Clocks(NamedTuple):
    """Clocks in MHz of what computes and of its memory; 0.0: not known."""

    compute_mhz: float = 0.0
    memory_mhz: float = 0.0


@dataclass(frozen=True)
class Timing:
    """Execution time of one batch size on one lane, in nanoseconds. ``quantiles_ns`` follows :data:`QUANTILES`."""

    count: int
    median_ns: int
    p99_ns: int
    mean_ns: int
    sd_ns: int
    quantiles_ns: Tuple[int, ...] = ()
    drift: float = 0.0  # last fifth's median over first fifth's, minus 1: above 0.05 the device was throttling
    p99_error: float = 1.0  # half the width of the p99's 95 % interval over the p99; 1.0 = too few runs to say


@dataclass(frozen=True)
class LaneProfile:
    """All batch sizes of one model on one lane, and the affine fit ``c0 + c1 * k`` of the medians."""

    timings: Dict[int, Timing]
    fixed_ns: int = 0  # c0
    per_item_ns: int = 0  # c1
    fit_error_max: float = 0.0  # largest relative error of the fit over the measured sizes
    load_ns: int = 0  # median time to load
    alone: Dict[str, Tuple[int, ...]] = field(default_factory=dict)  # app -> times alone of its inputs in ns, rising
    prompt_token_ns: int = 0  # of a language model: reading one token of a prompt; 0 = not measured
    clock_mhz: float = 0.0  # of the GPU while it was measured; 0 = not known
    memory_clock_mhz: float = 0.0  # of its memory
    memory_share: float = 0.0  # of a batch's time, what follows the memory's clock; by two power modes
    rested_ns: int = 0  # a batch of the smallest size after a second of rest; 0 = not measured

    @property
    def clocks(self) -> Clocks:
        """The clocks while it was measured."""
        return Clocks(self.clock_mhz, self.memory_clock_mhz)


@dataclass(frozen=True)
class Profile:
    """One model on one device: a lane profile per lane, memory in bytes, and the circumstances. ``shared_bytes``,
    besides: of each lane, what all its models use in turn."""

    model: str
    device: str
    lanes: Dict[str, LaneProfile]
    weights_bytes: int = 0
    work_bytes: int = 0
    circumstances: Dict[str, Any] = field(default_factory=dict)  # identity, lanes' settings and load, date, host
    shared_bytes: int = 0

    @property
    def footprint(self) -> Tuple[int, int, int]:
        """The bytes of weights, of work, and of what a lane's models share."""
        return self.weights_bytes, self.work_bytes, self.shared_bytes


def profile_command(config: Config, model: str, force: bool = False) -> str:
    """The command that measures a model again."""
    source = "CONFIG" if config.source.startswith("(") else config.source
    return f"edgeserve profile {source} --model {model}{' --force' if force else ''}"
