"""Parts for tests of a lane: a clock that the test moves, and a mailbox that it waits for."""

from __future__ import annotations

import threading
from typing import Any, List

from edgeserve.offload.lane_thread import LaneThread

ANY_TIME = 2**62


class Clock:
    def __init__(self) -> None:
        self.now_ns = 1000

    def __call__(self) -> int:
        return self.now_ns


class Post:
    """Collects what a lane posts; ``take`` waits for it, with a bound, so that a hang is a failure."""

    def __init__(self) -> None:
        self.items: List[Any] = []
        self.came = threading.Condition()

    def __call__(self, item: Any) -> None:
        with self.came:
            self.items.append(item)
            self.came.notify()

    def take(self, count: int) -> List[Any]:
        with self.came:
            assert self.came.wait_for(lambda: len(self.items) >= count, 5), self.items
            return self.items[:count]


def end(lane: LaneThread) -> None:
    lane.stop()
    assert lane.join(5)
