"""Checks of profiles: whether each file is one, and what is wrong with it."""

from __future__ import annotations

from typing import List

from edgeserve.commands.doctor.finding import Finding, good, wrong
from edgeserve.config.profiles import profile_files, read_profile
from edgeserve.errors import ProfileError

MEND = "measure it again: edgeserve profile CONFIG --force"


def check_profiles(path: str) -> List[Finding]:
    """Findings of a profile, or of every profile below a directory."""
    files = profile_files(path)
    if not files:
        return wrong("profiles", f"{path}: there is no profile below this directory")
    return [finding for file in files for finding in _check(file)]


def _check(path: str) -> List[Finding]:
    try:
        profile = read_profile(path)
    except ProfileError as error:
        return wrong("profiles", str(error), MEND)
    lanes = ", ".join(f"{name} {sorted(lane.timings)}" for name, lane in profile.lanes.items())
    return good("profiles", f"{path}: {profile.model} on {profile.device}: {lanes or 'no lane'}")
