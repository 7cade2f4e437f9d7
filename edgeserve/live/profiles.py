"""The profiles that a server begins with: measured with the present configuration, on this machine.

An unusable profile is reported once per model, and its times are measured at start or taken from ``expected``, as
without a profile.
"""

from __future__ import annotations

import logging
import os
from typing import Iterable, List, Tuple

from edgeserve.config.machine import device_slug
from edgeserve.config.profile_match import (
    EXPECTED,
    MEASURED,
    ProfileMatch,
    match_profile,
    profile_command,
    times_from,
)
from edgeserve.config.profiles import Profile, mode_folder, modes_measured, read_profiles_here
from edgeserve.config.python_names import as_given
from edgeserve.config.schema import Config
from edgeserve.device.circumstances import gpu_clocks, power_mode
from edgeserve.device.host import clocks_mhz
from edgeserve.engines.cuda.card import cards_of
from edgeserve.engines.versions import engine_versions
from edgeserve.errors import ProfileError
from edgeserve.units import counted

log = logging.getLogger("edgeserve")


def matched_profiles(config: Config) -> Tuple[List[ProfileMatch], List[ProfileError]]:
    """This machine's profiles of the configured models in its present power mode, beside the configuration, and what
    is wrong with the files that cannot be read."""
    mode = power_mode()
    profiles, errors = read_profiles_here(config.profiles_path, mode)
    clocks, cards = clocks_mhz(), cards_of(config) if profiles else {}
    if cards:
        clocks["gpu"] = gpu_clocks().compute_mhz
    return [
        match_profile(profile, config, engine_versions(config.models[profile.model]), clocks, mode, cards)
        for profile in profiles
        if profile.model in config.models
    ], errors


def usable_profiles(config: Config) -> List[Profile]:
    """The profiles to begin with, as far as they match. The log reports unused profiles, and estimates that may be
    off."""
    matches, errors = matched_profiles(config)
    for error in errors:
        log.warning("%s. The server starts without this file", error)
    for said, command in faults_of(config, matches):
        log.warning("%s. Run '%s'", said, command)
    usable = [match.usable for match in matches if match.usable.lanes]
    if usable:
        log.info("%s of this machine below %s", counted(len(usable), "profile"), config.profiles_path)
    return usable


def faults_of(config: Config, matches: Iterable[ProfileMatch]) -> List[Tuple[str, str]]:
    """What of these profiles does not hold when a server starts, what may be off, and the other power modes that were
    measured where the present one was not: each as a sentence without its full stop, and the command that mends it."""
    return [fault for match in matches for fault in _faults_of(config, match)] + _modes_missed(config)


def _faults_of(config: Config, match: ProfileMatch) -> List[Tuple[str, str]]:
    name = match.profile.model
    found: List[Tuple[str, str]] = []
    reasons = "; ".join((*match.mismatches, *match.lacking))
    if reasons:
        said = f"the profile of model {name} does not hold: {reasons}; {_instead(config, match)}"
        found.append((said, profile_command(config, name)))
    if match.doubts and match.usable.lanes:
        said = (
            f"the profile of model {name} may be off: {'; '.join(match.doubts)}; it is used. Measure in a quiet moment"
        )
        found.append((said, profile_command(config, name, force=True)))
    return found


def _modes_missed(config: Config) -> List[Tuple[str, str]]:
    mode, folder = power_mode(), os.path.join(config.profiles_path, device_slug())
    modes = modes_measured(folder)
    if not mode or not modes or os.path.isdir(os.path.join(folder, mode_folder(mode))):
        return []
    said = f"the device is in power mode {mode}, and its profiles are of {', '.join(modes)}: they are not used. "
    return [(said + "Set one of those modes, or measure in this one", profile_command(config))]


def _instead(config: Config, match: ProfileMatch) -> str:
    """The source of a model's first estimates where its profile is incomplete, as text."""
    name = match.profile.model
    source = times_from(config, config.models[name], match.usable)
    if source == MEASURED:
        return "the rest of the profile is used"
    what = f"[model.{name}.expected] is used" if source == EXPECTED else "it is measured a few times at start"
    return as_given(config.source, what) + f"{' for the rest' if match.usable.lanes else ' instead'}"
