"""Drawn trouble: what goes wrong in a simulated world, and when. All of it ends when the world heals.

This module only draws; the world makes it happen. Each kind has its own generator, so that more of one trouble moves
nothing in another.
"""

from __future__ import annotations

import random
from typing import Any, List, NamedTuple, Sequence, Tuple

from edgeserve.sim.scenario import FaultsConfig
from edgeserve.sim.workload import exponential_ns

LANE_DIES, LANE_GONE, LANE_HANGS, LANE_BACK = "dies", "gone", "hangs", "back"
SPEED, BURST, MEMORY = "speed", "burst", "memory"
RESET, RESET_OVER = "reset", "reset over"
UNFINISHED_MAX = 3  # times that one job comes back unfinished for no reason


class Happening(NamedTuple):
    """Something that befalls ``target`` (a lane, a device, ``""``) at a time; ``amount`` depends on the kind."""

    at_ns: int
    kind: str
    target: str
    amount: float = 0.0


class Trouble:
    """The draws of one run, and the planned faults besides (``also``). After ``heals_ns`` there are no more faults."""

    def __init__(self, config: FaultsConfig, seed: Any, heals_ns: int, also: Sequence[Happening] = ()) -> None:
        self.config = config
        self._also = tuple(also)
        self.heals_ns = heals_ns
        self._seed = seed
        self._works = random.Random(f"{seed}/faults/works")
        self._jobs = random.Random(f"{seed}/faults/jobs")
        self._cancels = random.Random(f"{seed}/faults/cancels")
        self.dice = random.Random(f"{seed}/faults/dice")  # for the world's own either-or choices

    def slowed(self, now_ns: int, duration_ns: int) -> int:
        """The duration of a work that starts now: as given, or longer."""
        if self.config.slow and now_ns < self.heals_ns and self._works.random() < self.config.slow:
            return round(duration_ns * (1.0 + self._works.random() * (self.config.slow_factor - 1.0)))
        return duration_ns

    def refuses(self, now_ns: int) -> bool:
        """True if a lane will not start a work although its window is open."""
        return self._happens(self._works, self.config.refuse, now_ns)

    def load_fails(self, now_ns: int) -> bool:
        """True if a load ends in failure."""
        return self._happens(self._works, self.config.fail_load, now_ns)

    def batch_fails(self, now_ns: int) -> bool:
        """True if every job of a batch fails."""
        return self._happens(self._jobs, self.config.fail_batch, now_ns)

    def job_fails(self, now_ns: int) -> bool:
        """True if one job of a batch fails."""
        return self._happens(self._jobs, self.config.fail_job, now_ns)

    def job_unfinished(self, now_ns: int, times: int) -> bool:
        """True if a job comes back unfinished, which it did ``times`` times before."""
        return times < UNFINISHED_MAX and self._happens(self._jobs, self.config.unfinished, now_ns)

    def cancel_delays_ns(self, now_ns: int, slo_ns: int) -> List[int]:
        """The times from its arrival at which a request is cancelled: mostly none, at times two."""
        if not self._happens(self._cancels, self.config.cancel, now_ns):
            return []
        delays = [self._cancels.randrange(1, 2 * slo_ns + 2)]
        if self._cancels.random() < 0.3:
            delays.append(delays[0] + self._cancels.randrange(slo_ns + 1))
        return delays

    def happenings(self, lanes: Sequence[str], devices: Sequence[Tuple[str, int]]) -> List[Happening]:
        """Every timed trouble of the run in order; ``devices`` are names with their memory budgets."""
        config, found = self.config, list(self._also)
        for lane in lanes:
            found += self._losses(lane)
            found += [
                Happening(at_ns, SPEED, lane, config.speed_min + (1.0 - config.speed_min) * draw.random())
                for at_ns, draw in self._times(f"speed/{lane}", config.speed_every_ns)
            ]
            found.append(Happening(self.heals_ns, SPEED, lane, 1.0))
        found += [
            Happening(at_ns, BURST, "", float(draw.randrange(1, config.burst_max + 1)))
            for at_ns, draw in self._times("burst", config.burst_every_ns)
        ]
        for device, budget in devices:
            found += self._resets(device)
            if budget and config.memory_every_ns:
                found += [
                    Happening(at_ns, MEMORY, device, draw.random())
                    for at_ns, draw in self._times(f"memory/{device}", config.memory_every_ns)
                ]
                found.append(Happening(self.heals_ns, MEMORY, device, 1.0))
        return sorted(found)

    def _losses(self, lane: str) -> List[Happening]:
        found = []
        down_until_ns = 0
        for at_ns, draw in self._times(f"loss/{lane}", self.config.lane_loss_every_ns):
            if at_ns <= down_until_ns:
                continue
            if draw.random() < self.config.hang:
                found.append(Happening(at_ns, LANE_HANGS, lane, draw.random()))
                continue
            if self.config.gone and draw.random() < self.config.gone:
                return [*found, Happening(at_ns, LANE_GONE, lane, draw.random())]
            down_until_ns = min(at_ns + exponential_ns(draw, self.config.lane_loss_ns), self.heals_ns)
            found += [Happening(at_ns, LANE_DIES, lane, draw.random()), Happening(down_until_ns, LANE_BACK, lane)]
        return found

    def _resets(self, device: str) -> List[Happening]:
        """All lanes of a device are gone at once, its copy lane too, and come back together."""
        found = []
        for at_ns, draw in self._times(f"reset/{device}", self.config.reset_every_ns):
            over_ns = min(at_ns + exponential_ns(draw, self.config.lane_loss_ns), self.heals_ns)
            found += [Happening(at_ns, RESET, device, draw.random()), Happening(over_ns, RESET_OVER, device)]
        return found

    def _times(self, name: str, every_ns: int) -> List[Tuple[int, random.Random]]:
        if not every_ns:
            return []
        draw = random.Random(f"{self._seed}/faults/{name}")
        times, at_ns = [], exponential_ns(draw, every_ns)
        while at_ns < self.heals_ns:
            times.append((at_ns, draw))
            at_ns += exponential_ns(draw, every_ns)
        return times

    def _happens(self, draw: random.Random, probability: float, now_ns: int) -> bool:
        return probability > 0 and now_ns < self.heals_ns and draw.random() < probability
