"""A lane's own multiprocessors: ``[lane.NAME] sms``, by CUDA's green contexts (driver of CUDA 12.5 and later).

A device's multiprocessors come in groups of its smallest size (2 to 8, by generation). They are split once for the
process, since CUDA does not split a part again; a lane takes as many groups as its number needs. Kernels of its streams
run there alone. Memory bandwidth and the second-level cache stay shared.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import Dict, List, NamedTuple, Sequence

from edgeserve.engines.cuda.driver import Driver, Group
from edgeserve.errors import EngineError


class Share(NamedTuple):
    """The multiprocessors of one lane: ``context`` is the green context's handle, ``size`` how many it has."""

    lane: str
    context: int
    size: int


@dataclass
class _Taken:
    """A lane's share, its groups, and how many hold it."""

    share: Share
    groups: Sequence[Group]
    holders: int = 1


class Shares:
    """The shares of one device in this process. Any thread may take one, with the device's context current."""

    def __init__(self, driver: Driver, index: int) -> None:
        self._driver = weakref.proxy(driver)
        self._index = index
        self._lock = threading.Lock()
        self._free: List[Group] = []
        self._taken: Dict[str, _Taken] = {}

    def take(self, lane: str, wanted: int) -> Share:
        """The share of a lane, made at first use. Raises :class:`EngineError` where the driver, its binding or the
        device has no green contexts, and where too few multiprocessors are left."""
        with self._lock:
            known = self._taken.get(lane)
            if known is not None:
                known.holders += 1
                return known.share
            try:
                if not self._taken:
                    self._free = self._driver.split_multiprocessors(self._index)
                groups = self._groups(lane, wanted)
                share = Share(lane, self._driver.create_green(self._index, groups), sum(each.size for each in groups))
            except EngineError as error:
                raise type(error)(f"lane {lane!r}: sms = {wanted}: {error}") from error
            self._free = self._free[len(groups) :]
            self._taken[lane] = _Taken(share, groups)
            return share

    def leave(self, share: Share) -> None:
        """A holder has no stream there any more."""
        with self._lock:
            taken = self._taken[share.lane]
            taken.holders -= 1
            if not taken.holders:
                del self._taken[share.lane]
                self._free = [*taken.groups, *self._free]
                self._driver.destroy_green(share.context)

    def _groups(self, lane: str, wanted: int) -> List[Group]:
        groups: List[Group] = []
        for group in self._free:
            if sum(each.size for each in groups) < wanted:
                groups.append(group)
        if sum(each.size for each in groups) < wanted:
            others = ", ".join(f"{name} has {each.share.size}" for name, each in sorted(self._taken.items()))
            left = sum(each.size for each in self._free)
            raise EngineError(
                f"{left} multiprocessors are left ({others or 'none is taken'}), in groups of "
                f"{self._free[0].size if self._free else 0}; lower [lane.NAME] sms, so that their sum fits the GPU"
            )
        return groups


_shares: weakref.WeakKeyDictionary[Driver, Dict[int, Shares]] = weakref.WeakKeyDictionary()


def shares_of(driver: Driver, index: int) -> Shares:
    """The shares of a device."""
    of_driver = _shares.setdefault(driver, {})
    return of_driver.setdefault(index, Shares(driver, index))
