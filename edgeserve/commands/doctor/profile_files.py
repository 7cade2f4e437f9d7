"""Checks of profiles: whether each file is one, and what is wrong with it."""

from __future__ import annotations

import glob
import os
from typing import List

from edgeserve.commands.doctor.finding import Finding, good, wrong
from edgeserve.config.machine_costs import FILE, read_machine
from edgeserve.config.profiles import profile_files, read_profile
from edgeserve.errors import ProfileError

MEND = "measure it again: edgeserve profile CONFIG --force"


def check_profiles(path: str) -> List[Finding]:
    """Findings of a profile, or of every profile below a directory."""
    files = profile_files(path)
    machines = glob.glob(os.path.join(glob.escape(path), "**", FILE), recursive=True)
    if not files:
        return wrong("profiles", f"{path}: there is no profile below this directory")
    return [finding for file in [*files, *sorted(machines)] for finding in _check(file)]


def _check(path: str) -> List[Finding]:
    try:
        if os.path.basename(path) == FILE:
            read_machine(path)
            return good("profiles", f"{path}: what the machine takes")
        profile = read_profile(path)
    except ProfileError as error:
        return wrong("profiles", str(error), MEND)
    lanes = ", ".join(f"{name} {sorted(lane.timings)}" for name, lane in profile.lanes.items())
    return good("profiles", f"{path}: {profile.model} on {profile.device}: {lanes or 'no lane'}")
