"""Places that a front has for its clients: of requests and bytes (:class:`Places`), which a newcomer may be refused,
and of what lasts (:class:`Seats`), which a newcomer always gets.

Knows no protocol. For the event loop's thread.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import AsyncIterator, Callable, Dict, List

from edgeserve.errors import Rejected


class Places:
    """The places that the gateway keeps for its clients, counted by origin: requests without an answer, or ``what``.
    The last quarter of the places is for origins that have less than an equal part of them: one of several clients
    cannot keep the others out. ``lasting``: clients keep their places as long as they like, so that one that is alone
    has three quarters at most. ``key``: the bound's section and
    name."""

    def __init__(
        self,
        count_max: int,
        what: str = "requests without an answer",
        key: str = "",
        *,
        lasting: bool = False,
    ) -> None:
        self.count_max = count_max
        self.count = 0
        self._what = what
        self._mend = f", or raise {key}" if key else ""
        self._parts_min = 2 if lasting else 1
        self._of: Dict[str, int] = {}

    def enter(self, origin: str, count: int = 1) -> None:
        """Take places. Raises :class:`Rejected`, and takes none, where they are too many."""
        if not count:
            return  # an empty body makes its origin none that has places
        held = self._of.get(origin, 0)
        if self.count + count > self.count_max:
            raise self._full(f"this front has {self.count} {self._what}, of {self.count_max} at most", count)
        if self.count + count > self.count_max - self.count_max // 4:
            parts = max(self._parts_min, len(self._of) + (0 if held else 1))
            if held + count > max(1, self.count_max // parts):
                raise self._full(
                    f"{origin} has {held} {self._what} at this front, of {self.count_max} that all its "
                    "clients may have",
                    count,
                )
        self._of[origin] = held + count
        self.count += count

    def leave(self, origin: str, count: int = 1) -> None:
        """Give them back."""
        if not count:
            return
        self.count -= count
        left = self._of[origin] - count
        if left:
            self._of[origin] = left
        else:
            del self._of[origin]

    def _full(self, text: str, count: int) -> Rejected:
        return Rejected(
            f"{text}: no room for {count} more; send fewer at a time{self._mend}",
            "too many in flight",
        )


class Held:
    """The places that one call holds among all calls'; :meth:`close` gives everything back."""

    def __init__(self, places: Places, origin: str) -> None:
        self.count = 0
        self._places = places
        self._origin = origin

    def set(self, count: int) -> None:
        """Have so many places. Raises :class:`~edgeserve.errors.Rejected`, and changes nothing, where they are too
        many."""
        if count > self.count:
            self._places.enter(self._origin, count - self.count)
        elif count < self.count:
            self._places.leave(self._origin, self.count - count)
        self.count = count

    def change(self, before: int, after: int) -> int:
        """Have ``after`` places in place of ``before``, which is returned: a part of what the call holds."""
        self.set(self.count - before + after)
        return after

    def close(self) -> None:
        """Have none."""
        self.set(0)


class Seats:
    """Places of what lasts: viewers, satellites. They are few, apart from those of requests, and a newcomer always gets
    one: that of its own origin's oldest where that has ``of_one_max``, else of the oldest of the origin with the
    most."""

    def __init__(self, count_max: int, of_one_max: int) -> None:
        self._count_max = count_max
        self._of_one_max = of_one_max
        self._of: Dict[str, Dict[object, Callable[[], None]]] = {}  # in the order in which they came

    @property
    def count(self) -> int:
        """The number of places taken."""
        return sum(map(len, self._of.values()))

    def take(self, origin: str, end: Callable[[], None]) -> object:
        """Take a place until :meth:`leave`, or until ``end`` is called. Returns the place's key."""
        own = self._of.get(origin, {})
        if len(own) >= self._of_one_max:
            self._end_oldest(origin)
        elif self.count >= self._count_max:
            self._end_oldest(max(self._of, key=lambda each: len(self._of[each])))
        seat = object()
        self._of.setdefault(origin, {})[seat] = end
        return seat

    def leave(self, origin: str, seat: object) -> None:
        """Give the seat back. Does nothing for one that was ended meanwhile."""
        own = self._of.get(origin, {})
        own.pop(seat, None)
        if not own:
            self._of.pop(origin, None)

    def end(self) -> None:
        """End what lasts, all of it."""
        while self._of:
            self._end_oldest(next(iter(self._of)))

    def _end_oldest(self, origin: str) -> None:
        seat, end = next(iter(self._of[origin].items()))
        self.leave(origin, seat)
        end()


@asynccontextmanager
async def seated(seats: Seats, origin: str) -> AsyncIterator[None]:
    """Have a place while the block lasts. Another who takes it ends the block early, without an error."""
    task = asyncio.current_task()
    assert task is not None, "called by a handler"
    ended: List[bool] = []

    def end() -> None:
        ended.append(True)
        task.cancel()

    seat = seats.take(origin, end)
    try:
        yield
    except asyncio.CancelledError:
        if not ended:
            raise
    finally:
        seats.leave(origin, seat)
