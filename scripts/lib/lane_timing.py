"""Parts of benches on a GPU: where they run, lanes of their own, and the times of batches."""

from __future__ import annotations

import time
from typing import Any, Callable, List, NamedTuple, Sequence

from edgeserve.engines.base import LaneInfo, Pending


class Setting(NamedTuple):
    """The place and time of the benches. ``side`` is the pictures' height and width."""

    kind: str
    index: int
    side: int
    runs: int

    def lane(self, depth: int = 1, number: int = 0, priority: int = 0, sms: int = 0) -> LaneInfo:
        """A lane of its own."""
        lane = LaneInfo(self.kind, self.index, name=f"{self.kind}{number}", depth=depth, clock_ns=time.monotonic_ns)
        return lane._replace(common={}, priority=priority, sms=sms)


def close(lanes: Sequence[LaneInfo]) -> None:
    """The lanes end."""
    for lane in lanes:
        for shared in (lane.common or {}).values():
            shared.close()


def timed_ms(call: Callable[[], Any], runs: int) -> List[float]:
    """Wall time of each call, after three that are not counted."""
    for _ in range(3):
        call()
    took = []
    for _ in range(runs):
        begun_ns = time.monotonic_ns()
        call()
        took.append((time.monotonic_ns() - begun_ns) / 1e6)
    return took


def ended(pending: Pending) -> Any:
    """Wait for a batch and take its results: when the device ran it."""
    while not pending.wait(0.05):
        pass
    pending.result()
    times = pending.times()
    return times if times is not None else (time.monotonic_ns(),) * 2
