"""Files of profiles: measured times of one model on one device, as JSON that people can read and compare.

``edgeserve profile`` writes them, the scheduler's latency models are seeded from them. The record is
``profile_record.py``, measuring is ``commands/profile.py``, and ``profile_match.py`` tells whether one still holds.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from typing import Container, Dict, List, Optional, Sequence, Tuple

from edgeserve.config.machine import device_slug, slug
from edgeserve.config.profile_record import FORMAT
from edgeserve.config.profile_record import QUANTILES as QUANTILES
from edgeserve.config.profile_record import LaneProfile as LaneProfile
from edgeserve.config.profile_record import Profile as Profile
from edgeserve.config.profile_record import Timing as Timing
from edgeserve.config.readers import read_table
from edgeserve.config.text_files import read_json, write_whole
from edgeserve.errors import ConfigError, ProfileError

MODE_FOLDER = "mode-"
"""Below a device's directory: profiles of one of its power modes lie in ``mode-<name>/``, others beside them."""

SCHEMA_ENDING = ".schema.json"
"""The ending of the JSON Schema file: it lies in the profiles folder and is not a profile."""


def profile_path(directory: str, device: str, model: str, mode: str = "") -> str:
    """The path of the profile of a model on a device below a profiles directory; ``mode`` is the power mode in which it
    was measured, of a device that has some."""
    return os.path.join(directory, device, *([mode_folder(mode)] if mode else []), f"{model}.json")


def mode_folder(mode: str) -> str:
    """The directory of a power mode below the device's."""
    return f"{MODE_FOLDER}{slug(mode)}"


def write_profile(path: str, profile: Profile) -> None:
    """Write atomically (a reader never sees half a file); makes the directories. Raises :class:`ProfileError`."""
    write_measured(path, profile_text(profile) + "\n")


def write_measured(path: str, text: str) -> None:
    """Write a file below a directory of profiles, whole; makes the directories. Raises :class:`ProfileError`."""
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        raise ProfileError(
            f"{path}: cannot be written ({error.strerror}); expected a file or nothing there, in a folder with room "
            "that this user may write to"
        ) from None


SPARSE = ("prompt_token_ns", "clock_mhz", "memory_clock_mhz", "memory_share", "rested_ns")
"""Facts of a lane that a file leaves out where they are not known."""


def profile_text(profile: Profile) -> str:
    """A profile as JSON."""
    table = {"format": FORMAT, **asdict(profile)}
    if not profile.shared_bytes:
        del table["shared_bytes"]
    for lane in table["lanes"].values():
        for key in SPARSE:
            if not lane[key]:
                del lane[key]
    return json.dumps(table, indent=1, sort_keys=True)


def read_profile(path: str) -> Profile:
    """Read one file. Raises :class:`ProfileError` naming the file, the key and its fault."""
    try:
        table = read_json(path)
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read ({error.strerror}); measure it with 'edgeserve profile'") from None
    except ValueError as error:  # no JSON, or no text
        raise ProfileError(f"{path}: is not a profile ({error}); measure it again with 'edgeserve profile'") from None
    format_ = table.pop("format", None) if isinstance(table, dict) else FORMAT
    if format_ != FORMAT:
        raise ProfileError(f"{path}: format {format_!r}, expected {FORMAT}; measure it again with 'edgeserve profile'")
    try:
        return read_table(Profile, table, "profile")
    except ConfigError as error:
        raise ProfileError(f"{path}: {error}; measure it again with 'edgeserve profile'") from None


def read_profiles(directory: str) -> List[Profile]:
    """Every profile below a directory, in path order; an absent directory holds none."""
    return [read_profile(path) for path in _paths_below(directory)]


def read_profiles_here(directory: str, mode: str = "") -> Tuple[List[Profile], List[ProfileError]]:
    """The profiles of this machine below a directory of profiles, and the errors of the files that cannot be read:
    a server starts without those. Of each model the one of the present power ``mode`` counts, else one that was
    measured without any."""
    profiles, errors = [], []
    for path in paths_of_mode(os.path.join(directory, device_slug()), mode):
        try:
            profiles.append(read_profile(path))
        except ProfileError as error:
            errors.append(error)
    return profiles, errors


def paths_of_mode(folder: str, mode: str) -> List[str]:
    """The profile files of one device for one power mode (``""``: none), a file per model, in order of their names."""
    found = {os.path.relpath(path, folder): path for path in _paths_below(folder)}
    chosen = {name: path for name, path in found.items() if not _is_of_mode(name)}
    ours = f"{mode_folder(mode)}{os.sep}" if mode else None
    for name, path in found.items():
        if ours is not None and name.startswith(ours):
            chosen[name[len(ours) :]] = path
    return [chosen[name] for name in sorted(chosen)]


def _only_mode(folder: str) -> str:
    """The power mode that a device's profiles are of, where none is named; ``""`` without modes."""
    modes = modes_measured(folder)
    if len(modes) > 1 and not paths_of_mode(folder, ""):
        raise ProfileError(
            f"{folder} has profiles of several power modes ({', '.join(modes)}): name the directory of "
            f"one, such as --profiles {os.path.join(folder, mode_folder(modes[0]))}"
        )
    return modes[0] if len(modes) == 1 else ""


def modes_measured(folder: str) -> List[str]:
    """The power modes of which a device's directory has profiles, as their directories are called."""
    return sorted(
        {
            name.split(os.sep)[0][len(MODE_FOLDER) :]
            for name in [os.path.relpath(path, folder) for path in _paths_below(folder)]
            if _is_of_mode(name)
        }
    )


def _is_of_mode(name: str) -> bool:
    """True if a path below a device's directory lies in the folder of a power mode; a model may be called so, too."""
    return name.startswith(MODE_FOLDER) and os.sep in name


Parts = Dict[Tuple[str, str], Tuple[str, ...]]
"""Parts of profiles: (model, lane) -> the apps whose requests were measured alone there."""


def parts_of(profiles: Sequence[Profile]) -> Parts:
    """The parts that the profiles have times of."""
    return {(profile.model, name): tuple(lane.alone) for profile in profiles for name, lane in profile.lanes.items()}


def restricted(profiles: Sequence[Profile], parts: Parts) -> List[Profile]:
    """The profiles with these parts only; a profile of which nothing is left is left out."""
    found = []
    for profile in profiles:
        lanes = {
            name: replace(
                lane, alone={app: times for app, times in lane.alone.items() if app in parts[profile.model, name]}
            )
            for name, lane in profile.lanes.items()
            if (profile.model, name) in parts
        }
        if lanes:
            found.append(replace(profile, lanes=lanes))
    return found


def _paths_below(directory: str) -> List[str]:
    return sorted(
        os.path.join(folder, name)
        for folder, _, names in os.walk(directory)
        for name in names
        if name.endswith(".json") and not name.endswith(SCHEMA_ENDING)
    )


def profile_files(path: str) -> List[str]:
    """The profile files below a directory, or the file itself; the schema that lies beside them is none."""
    if os.path.isdir(path):
        return _paths_below(path)
    return [path]


def find_profiles(
    directory: str, elsewhere: bool = False, mode: str = "", models: Optional[Container[str]] = None
) -> List[Profile]:
    """The profiles of this machine below a directory of profiles, ``Config.profiles_path``; none where it is absent.
    ``mode`` is its power mode, as for :func:`read_profiles_here`; without one, the only mode that was measured.
    ``models``: those of other models are left out.

    With ``elsewhere``, for simulations: where this machine has none, those of the only device that has some. Raises
    :class:`ProfileError` when several devices have some and none is named.
    """
    if not os.path.isdir(directory):
        return []
    here = _of_models(_of_device(directory, device_slug(), mode), models)
    if here or not elsewhere:
        return here
    profiles = _of_models(read_profiles(directory), models)
    devices = sorted({profile.device for profile in profiles})
    if len(devices) > 1:
        raise ProfileError(
            f"{directory} has profiles of {', '.join(devices)}, and none of this machine "
            f"({device_slug()}): name the directory of one device, such as --profiles "
            f"{os.path.join(directory, devices[0])}, or simulate(profiles=read_profiles(...)) in Python"
        )
    if devices and os.path.isdir(os.path.join(directory, devices[0])):
        return _of_models(_of_device(directory, devices[0], mode), models)
    return profiles


def _of_device(directory: str, device: str, mode: str) -> List[Profile]:
    folder = os.path.join(directory, device)
    return [read_profile(path) for path in paths_of_mode(folder, mode or _only_mode(folder))]


def _of_models(profiles: Sequence[Profile], models: Optional[Container[str]]) -> List[Profile]:
    return [profile for profile in profiles if models is None or profile.model in models]
