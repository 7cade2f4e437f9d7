"""The same model measured in two power modes: how much of its time follows the memory's clock."""

from __future__ import annotations

import os
import statistics
from dataclasses import replace
from typing import List, Optional

from edgeserve.config.profile_record import LaneProfile
from edgeserve.config.profiles import MODE_FOLDER, Profile, read_profile, write_profile
from edgeserve.errors import ProfileError
from edgeserve.sched.latency.clock_speed import Setting, memory_share


def share_modes(path: str, lane: str) -> None:
    """Write the memory's share of a lane's times into the profile at ``path`` and into those of the other power modes,
    as far as two of them with the same model tell it."""
    profile = read_profile(path)
    for other_path in _other_modes(path):
        try:
            other = read_profile(other_path)
        except ProfileError:
            continue
        if other.circumstances.get("same") != profile.circumstances.get("same") or lane not in other.lanes:
            continue
        for place, one, beside in ((path, profile, other), (other_path, other, profile)):
            share = share_of(one.lanes[lane], beside.lanes[lane])
            if share is not None:
                write_profile(place, _with_share(one, lane, share))


def share_of(one: LaneProfile, other: LaneProfile) -> Optional[float]:
    """The part of a model's time at the clocks of ``one`` that follows the memory's clock, by the sizes that both
    measured; None where they cannot tell."""
    ratios = [
        other.timings[size].median_ns / timing.median_ns
        for size, timing in one.timings.items()
        if size in other.timings and timing.median_ns
    ]
    if not (ratios and one.clock_mhz and other.clock_mhz):
        return None
    memory = one.memory_clock_mhz / other.memory_clock_mhz if one.memory_clock_mhz and other.memory_clock_mhz else 1.0
    there = Setting(one.clock_mhz / other.clock_mhz, memory, statistics.median(ratios))
    share = memory_share(Setting(1.0, 1.0, 1.0), there)
    return None if share is None else round(share, 3)


def _with_share(profile: Profile, lane: str, share: float) -> Profile:
    return replace(profile, lanes={**profile.lanes, lane: replace(profile.lanes[lane], memory_share=share)})


def _other_modes(path: str) -> List[str]:
    """The files of the same model in other power modes."""
    own, name = os.path.split(path)
    folder = os.path.dirname(own)
    if not os.path.basename(own).startswith(MODE_FOLDER):
        return []
    modes = [item for item in sorted(os.listdir(folder)) if item.startswith(MODE_FOLDER)]
    paths = [os.path.join(folder, mode, name) for mode in modes if mode != os.path.basename(own)]
    return [item for item in paths if os.path.isfile(item)]
