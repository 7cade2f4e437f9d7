"""The models in a device's memory: the jobs that wait for them, demand, budget, and least recent use.

Clockwork (section 5) loads the model of the highest unfulfilled demand, the estimated execution time of its outstanding
jobs less what resident copies on other devices can serve, and evicts the least recently used. Ours counts in worth, by
class, and counts what comes beside what waits (``sched/resources/model_worth.py``): a model takes the place of others
only where its jobs and those to come are worth more than what is lost while the others are away. So a pipeline that is
asked for all the time stays whole. A request that is answered however late waits for that until its deadline, and then
for what waits alone. A model that jobs are bound to is spared where their states would leave it no room to return; one
with work in flight is never evicted, nor one that was loaded for jobs that have not run yet. Emits no action.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import AbstractSet, Dict, Iterable, List, Sequence, Tuple

from edgeserve.errors import ConfigError
from edgeserve.sched.protocol.events import LEVELS
from edgeserve.sched.resources.model_worth import NOTHING, ModelWorth, Worth, added
from edgeserve.sched.resources.placement import ABSENT, EVICTING, LOADING, RESIDENT, Placement
from edgeserve.units import FOREVER_NS, NS_PER_MS, format_size

LOAD_AHEAD_NS = 5 * NS_PER_MS
"""Outstanding loads per device (Clockwork, section 5)."""

CAPACITY_NS = 100 * NS_PER_MS
"""Lane time that a device offers over the horizon of the allocation rule (Clockwork's default SLO)."""

LOAD_FAILURES_MAX = 3
"""Loads of a model that may fail in a row before its jobs are failed rather than kept waiting."""

LOAD_RETRY_NS = 500 * NS_PER_MS
"""Pause after a failed load: memory may come back."""

PRESSURE_SHARE = 16
"""A device whose free memory falls below 1/16 of its budget gives up models that no request waits for."""

EMERGENCY_SHARE = 4
"""The share of the headroom: with less than a quarter left, a model at work goes too: better one reload than a killed
process."""

BLOCK_BYTES_MIN = 1024**2
"""While no larger block of memory than this is free, it is so fragmented that large allocations fail: loads wait, and
models that are not at work go."""

FALLING_NS = 2_000 * NS_PER_MS
"""The time for which memory that other programs took between two reports counts as about to be taken again: a monitor
that has no news for longer says that it was not."""

REPORT_STALE_NS = 20_000 * NS_PER_MS
"""Free memory that was reported so long ago says nothing of what may be taken without need."""

FRAGMENTED_BELOW = 4
"""Fragmented memory counts only where less than so many times the headroom is free: with more, much of it is a cache
that the system gives back in one piece."""

SURELY = 2.0
"""The factor on the expected worth of requests for a resident model, compared with a newcomer's: a rate is
that of 32 arrivals, whose noise is a fifth of it, and each load keeps the memory from serving any request."""


@dataclass(eq=False)
class Device:
    """One device's memory: its placements in order of last use (least recent first), and the bytes they take.

    ``headroom_bytes`` of what the monitor reports as free stay free: loads wait, and models that are not at work go (0:
    only what :data:`PRESSURE_SHARE` says).
    """

    name: str
    budget_bytes: int = 0  # 0: no budget
    headroom_bytes: int = 0
    placements: Dict[str, Placement] = field(default_factory=dict)
    used_bytes: int = 0  # of resident and loading models
    state_bytes: int = 0  # of the states of jobs and streams
    free_bytes: int | None = None  # as the monitor last reported
    reported_ns: int = -FOREVER_NS  # when that was, whether it had changed or not
    heat: float | None = None
    power_w: float | None = None
    falling_bytes: int = 0  # what other programs took between the last two reports,
    falling_until_ns: int = 0  # and until when they are expected to take as much again
    block_bytes: int | None = None  # the largest free block, as the monitor last reported
    pressure: int = 0  # how near it is to a limit of heat or power: 0, 1 (soft: save) or 2 (hard)
    thermal: str = LEVELS[0]
    power: str = LEVELS[0]
    worth: ModelWorth = field(default_factory=lambda: ModelWorth((), {}))

    def limited(self, thermal: str | None, power: str | None) -> None:
        """It is so near to a limit of heat, and to one of power (None: as near as before)."""
        self.thermal, self.power = thermal or self.thermal, power or self.power
        self.pressure = max(LEVELS.index(self.thermal), LEVELS.index(self.power))

    def add(self, placement: Placement, resident: bool) -> None:
        """Announce a model that may live here; ``ConfigError`` when it never fits."""
        if self.budget_bytes and placement.bytes > self.budget_bytes:
            raise ConfigError(
                f"model {placement.model!r} needs {format_size(placement.bytes)} on device "
                f"{self.name!r}, more than [device.{self.name}] memory = "
                f"{format_size(self.budget_bytes)}"
            )
        self.placements[placement.model] = placement
        if resident:
            placement.state = RESIDENT
            self.used_bytes += placement.bytes
            if self.budget_bytes and self.used_bytes > self.budget_bytes:
                raise ConfigError(
                    f"the models resident at start take {format_size(self.used_bytes)} on device "
                    f"{self.name!r}, more than its memory = {format_size(self.budget_bytes)}"
                )

    def is_resident(self, model: str) -> bool:
        """True if ``model`` can run here now."""
        return self.placements[model].state == RESIDENT

    def free_now_bytes(self) -> int:
        """The bytes that may still be loaded, by the budget and by the monitor's reports."""
        room = self._budget_room_bytes()
        if self.free_bytes is None:
            return room
        return min(room, self.free_bytes - self.falling_bytes - self.headroom_bytes)

    def has_room(self, bytes: int, now_ns: int) -> bool:
        """True if so many bytes could be taken without need: the headroom stays free, or without one a share of the
        budget. True where the monitor has reported nothing for :data:`REPORT_STALE_NS`."""
        if self.free_bytes is None or now_ns - self.reported_ns > REPORT_STALE_NS:
            return True
        kept = self.headroom_bytes or self.budget_bytes // PRESSURE_SHARE
        return self.free_bytes - self.falling_bytes - kept >= bytes

    def _is_fragmented(self) -> bool:
        return (
            self.block_bytes is not None
            and self.block_bytes <= BLOCK_BYTES_MIN
            and self.free_bytes is not None
            and self.free_bytes < FRAGMENTED_BELOW * self.headroom_bytes
        )

    def _budget_room_bytes(self) -> int:
        return self.budget_bytes - self.used_bytes - self.state_bytes if self.budget_bytes else 2**62

    def reported(self, free_bytes: int, now_ns: int) -> None:
        """The monitor reports free memory. With a headroom, what a load that runs has not taken yet is no longer free,
        and what an eviction that runs gives is free already; and other programs are expected to take as much again
        until the next report as they took since the one before."""
        before_bytes, self.free_bytes = self.free_bytes, free_bytes
        if self.headroom_bytes:
            for item in self.placements.values():
                if item.state in (LOADING, EVICTING):
                    self.free_bytes += item.bytes if item.state == EVICTING else -item.bytes
            self.falling_bytes = max(0, before_bytes - self.free_bytes) if before_bytes is not None else 0
            self.falling_until_ns = now_ns + FALLING_NS

    def touch(self, placement: Placement, now_ns: int = 0) -> None:
        """It was used: the most recent one now. O(1)."""
        placement.used = True
        placement.gap_ns = max(
            now_ns - placement.used_ns if placement.used_ns >= 0 else 0, placement.gap_ns - placement.gap_ns // 8
        )
        placement.used_ns = now_ns
        del self.placements[placement.model]
        self.placements[placement.model] = placement

    # --- what the scheduler reports -----------------------------------------------------------------------------------

    def load_started(self, placement: Placement, due_ns: int) -> None:
        """A load was sent to the copy lane."""
        placement.state = LOADING
        placement.due_ns = due_ns
        placement.used = False
        self._count(placement.bytes)

    def load_ended(self, placement: Placement, now_ns: int, took_ns: int, failed: bool) -> None:
        """The copy lane answered a load; the estimate is the longest of the last ten."""
        if failed:
            placement.state = ABSENT
            placement.failures += 1
            placement.retry_at_ns = now_ns + LOAD_RETRY_NS
            self._count(-placement.bytes)
        else:
            placement.state = RESIDENT
            placement.since_ns = now_ns
            placement.failures = 0
            placement.loads_ns.append(took_ns)
            placement.load_ns = max(placement.loads_ns)

    def evict_started(self, placement: Placement) -> None:
        """An eviction was sent; its memory counts as given, since the copy lane works in order."""
        placement.state = EVICTING
        self._count(-placement.bytes)

    def evict_ended(self, placement: Placement, refused: bool) -> None:
        """The copy lane answered an eviction."""
        placement.state = RESIDENT if refused else ABSENT
        if refused:
            self._count(placement.bytes)

    def _count(self, bytes: int) -> None:
        self.used_bytes += bytes
        if self.free_bytes is not None:
            self.free_bytes -= bytes  # until the monitor reports again

    # --- questions ----------------------------------------------------------------------------------------------------

    def next_load(self, now_ns: int, others: Iterable[Device]) -> Tuple[Placement, List[Placement]] | None:
        """The model to load next and the models to evict for it, or None. O(models here), and O(models log models)
        where one has to go."""
        if self.headroom_bytes and self._is_fragmented():
            return None
        wanted: List[Tuple[Worth, float, Placement]] = []
        for placement in self.placements.values():
            if placement.state == ABSENT and placement.demand_ns > 0 and placement.retry_at_ns <= now_ns:
                priority_ns = self._priority_ns(placement, others)
                if priority_ns > 0:
                    part = priority_ns / placement.demand_ns
                    wanted.append((tuple([part * worth for worth in placement.waiting]), priority_ns, placement))
        wanted.sort(key=lambda row: ([-each for each in row[0]], -row[1], row[2].model))
        for worth, _, placement in wanted:
            victims = self._victims(placement, worth, now_ns)
            if victims is not None:
                return placement, victims
        return None

    def _coming(self, placement: Placement, away_ns: int, here: AbstractSet[str]) -> Worth:
        """The worth of requests that come for a model while others are away for it, and could be served with it."""
        if placement.model not in self.worth.by_model:
            return NOTHING
        return self.worth.gained_with(placement.model, placement.load_ns, away_ns, here, self._fit)

    def _fit(self, models: Iterable[str]) -> bool:
        """True if these models, of the ones that live here, have room together."""
        bytes = sum([self.placements[model].bytes for model in models if model in self.placements])
        return not self.budget_bytes or bytes <= self.budget_bytes

    def calm(self, now_ns: int) -> None:
        """Time has passed: memory that fell long ago does not fall any more."""
        if self.falling_bytes and now_ns >= self.falling_until_ns:
            self.falling_bytes = 0

    def roomier_at_ns(self, now_ns: int) -> int | None:
        """When there may be room for a load that waits although no report comes: the next model stops to count as at
        work, or memory to be expected to fall; None where no load waits."""
        if not any(item.state == ABSENT and item.demand_ns > 0 for item in self.placements.values()):
            return None
        if self.falling_bytes and self.falling_until_ns > now_ns:
            return self.falling_until_ns
        return min(
            (
                item.idle_at_ns()
                for item in self.placements.values()
                if item.state == RESIDENT and item.idle_at_ns() > now_ns
            ),
            default=None,
        )

    def is_served_elsewhere(self, placement: Placement, others: Iterable[Device]) -> bool:
        """True if resident copies on other devices serve all that waits for a model, so that it is not loaded here."""
        return bool(self._copies(placement, others)) and self._priority_ns(placement, others) <= 0

    def _copies(self, placement: Placement, others: Iterable[Device]) -> List[Device]:
        """The other devices that have the model, and a lane for it."""
        return [
            device
            for device in others
            if device is not self
            and placement.model in device.placements
            and device.placements[placement.model].can_serve()
        ]

    def under_pressure(self, now_ns: int = 0) -> Placement | None:
        """A model to give up because the device runs out of memory although the budget holds, or None: the least
        recently used one that no request waits for. With a headroom, none that is at work, but in an emergency."""
        free_bytes, headroom_bytes = self.free_bytes, self.headroom_bytes
        if free_bytes is None:
            return None
        if not headroom_bytes:
            if not self.budget_bytes or free_bytes >= self.budget_bytes // PRESSURE_SHARE:
                return None
        elif free_bytes - self.falling_bytes >= headroom_bytes and not self._is_fragmented():
            return None
        spares = bool(headroom_bytes) and free_bytes >= headroom_bytes // EMERGENCY_SHARE
        return next(
            (
                placement
                for placement in self.placements.values()
                if _evictable(placement) and placement.demand_ns == 0 and not (spares and placement.is_working(now_ns))
            ),
            None,
        )

    def _victims(self, newcomer: Placement, worth: Worth, now_ns: int) -> List[Placement] | None:
        """The models that make room and are worth less together: [] when there is room, None when there is no way.
        Where other programs took the memory, a load waits rather than take the place of a model that is at work."""
        missing = newcomer.bytes - self.free_now_bytes()
        if missing <= 0:
            return []
        others = self.headroom_bytes > 0 and newcomer.bytes <= self._budget_room_bytes()
        needs_ns = newcomer.load_ns + newcomer.demand_ns
        if newcomer.is_overdue(now_ns):  # who must be answered waits no longer for what may come
            needs_ns = 0
        here = self.worth.models.difference(
            [item.model for item in self.placements.values() if item.state not in (RESIDENT, LOADING)]
        )  # and what lives on other devices
        both = here | {newcomer.model}
        busy_ns = sum([item.demand_ns for item in self.placements.values() if item.state == RESIDENT])
        rows = [
            (self._lost_without((item,), needs_ns and item.load_ns + needs_ns, busy_ns, both), item)
            for item in self.placements.values()
            if _evictable(item)
            and (item.demand_ns == 0 or (item.used and not others and self._could_return(item)))
            and not (others and item.is_working(now_ns))
        ]
        rows.sort(key=lambda row: row[0])  # of equal ones the least recently used stays first
        victims: List[Placement] = []
        for _, item in rows:
            victims.append(item)
            missing -= item.bytes
            if missing <= 0:
                for other in victims[:-1]:  # a small one that the last made needless
                    if other.bytes <= -missing:
                        victims.remove(other)
                        missing += other.bytes
                away_ns = needs_ns and needs_ns + sum([item.load_ns for item in victims])
                gained = added(worth, self._coming(newcomer, away_ns, here))
                lost = self._lost_without(victims, away_ns, busy_ns, both)
                return victims if _outweighs(gained, lost) else None
        return None

    def _lost_without(self, victims: Sequence[Placement], away_ns: int, busy_ns: int, here: AbstractSet[str]) -> Worth:
        """The worth lost if these models are away for ``away_ns``: waiting requests, and coming ones that cannot wait
        for that, behind ``busy_ns`` of work."""
        lost = self.worth.lost_without({item.model for item in victims}, away_ns, busy_ns, here)
        lost = tuple([SURELY * each for each in lost])
        for item in victims:
            if item.demand_ns:
                lost = added(lost, tuple(item.waiting))
        return lost

    def _could_return(self, placement: Placement) -> bool:
        """True if a model that was given up would find room again for the jobs that are bound to it: their states stay,
        and nothing else may free that memory."""
        if not placement.bound_ns or not self.budget_bytes:
            return True
        pinned = sum(item.bytes for item in self.placements.values() if item.pinned)
        return placement.bytes + pinned + self.state_bytes <= self.budget_bytes

    def _priority_ns(self, placement: Placement, others: Iterable[Device]) -> float:
        """Unfulfilled work: demand less what resident copies elsewhere serve, each device sharing its capacity over
        its load (Clockwork, section 5)."""
        copies = self._copies(placement, others)
        if not copies:
            return placement.demand_ns
        loads = [
            max(1, sum(item.demand_ns for item in device.placements.values() if item.state == RESIDENT))
            for device in copies
        ]
        weights = [1 / load for load in loads]
        free_ns = placement.demand_ns - placement.bound_ns
        served = sum(
            free_ns * (weight / sum(weights)) * min(1.0, CAPACITY_NS / load) for weight, load in zip(weights, loads)
        )
        return placement.demand_ns - served


def _outweighs(worth: Worth, lost: Worth) -> bool:
    """True if a newcomer is worth more than the loss for it: in the most urgent class in which anything is."""
    for gained, given in zip(worth, lost):
        if gained > given:
            return True
        if given > 0:
            return False
    return not any(lost)


def _evictable(placement: Placement) -> bool:
    return (
        placement.state == RESIDENT
        and not placement.pinned
        and placement.in_flight == 0
        and (placement.used or placement.demand_ns == 0)
    )
