"""What a scenario says of a model that answers step by step: how long answers really are, what is predicted of them,
and what steps and the reading of a prompt take on each lane.

This module reads and checks; the draws and the steps are in :mod:`edgeserve.sim.sequences`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional

from edgeserve.config.loading import read_table
from edgeserve.config.readers import boolean, duration, durations_by_size, entry, integer, number, string, table_of

STATIC, EARLY_EXIT, CONTINUOUS = "static", "early_exit", "continuous"
BATCHING = (STATIC, EARLY_EXIT, CONTINUOUS)
"""When the sequences of a batch are answered, and what those that are over still cost."""


@dataclass(frozen=True)
class StepConfig:
    """``step = { full = "25ms", saturates = 11, alone = 0.7 }``: a step of b sequences takes
    ``full * (alone + (1 - alone) * min(b, saturates) / saturates)``, times ``b / saturates`` above ``saturates`` (the
    RT-LM specification, section 9)."""

    full_ns: int = entry(duration, key="full")  # of ``saturates`` sequences
    saturates: int = entry(integer(1, 4096), 1)  # the smallest batch that keeps the device busy
    alone: float = entry(number(0.0, 1.0), 1.0)  # what of ``full`` a step takes that reads the weights and nothing else

    def takes_ns(self, count: int) -> int:
        """A step of so many sequences."""
        filled = self.alone + (1.0 - self.alone) * min(count, self.saturates) / self.saturates
        return max(1, round(self.full_ns * filled * max(1.0, count / self.saturates)))


@dataclass(frozen=True)
class PredictConfig:
    """``[truth.MODEL.predict]``: what requests declare of their steps. The predictor sees a number that correlates with
    the logarithm of the true one by ``rho``; it says the mean of the true numbers that are possible then, times
    ``scale``."""

    rho: float = entry(number(0.0, 1.0), 1.0)
    scale: float = entry(number(1e-3, 1e3), 1.0)  # a predictor that is wrong by this factor
    hint: str = entry(string, "")  # under which name; "" = "steps" of an app of one node, else "NODE.steps"
    sd: bool = entry(boolean, False)  # whether the deviation of the logarithm is declared too, as HINT_sd
    median: float = entry(number(0.0), 0.0)  # of the true numbers; 0 = as the workload draws them
    sigma: float = entry(number(0.0, 10.0), -1.0)  # standard deviation of their logarithm; left out = as the workload


def read_step(value: Any, where: str) -> StepConfig:
    """A formula for the time of a step."""
    return read_table(StepConfig, value, where)


@dataclass(frozen=True)
class LaneTruth:
    """``[truth.MODEL.lane.LANE]``: the same on one lane, where it differs."""

    slower: float = entry(number(1e-3, 1e3), 1.0)  # times what the model's own keys say, where no key here does
    times: Dict[int, int] = entry(durations_by_size, factory=dict)  # batch size -> time of a step
    step: Optional[StepConfig] = entry(read_step, None)
    prefill_ns: int = entry(duration, -1, key="prefill")
    prefill_token_ns: int = entry(duration, -1, key="prefill_token")


def read_predict(value: Any, where: str) -> PredictConfig:
    """What requests declare of their steps."""
    return read_table(PredictConfig, value, where)


def read_lane_truths(value: Any, where: str) -> Dict[str, LaneTruth]:
    """Lane -> what differs there."""

    def read(item: Any, inner: str) -> LaneTruth:
        return read_table(LaneTruth, item, inner)

    return dict(table_of(read)(value, where))
