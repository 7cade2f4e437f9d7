"""Has this machine the cores, threads and memory that a configuration names? For :mod:`edgeserve.live.preflight`."""

from __future__ import annotations

import os
from typing import List, Sequence

from edgeserve.config.profile_record import Profile
from edgeserve.config.schema import Config
from edgeserve.control_groups import ControlGroups
from edgeserve.live.problem import Problem
from edgeserve.offload.pin import allowed_cores
from edgeserve.sched.core.build import model_lanes
from edgeserve.units import counted, format_size


def check_cores(config: Config) -> List[Problem]:
    """Are there the cores and threads that the lanes name? A server goes on without, with other times."""
    cores = sorted(allowed_cores())
    found = []
    for lane in config.lanes.values():
        missing = [core for core in lane.cores if core not in cores]
        if missing and cores:
            found.append(
                Problem(
                    "cores",
                    f"[lane.{lane.name}] cores = {list(lane.cores)}: this process may not use "
                    f"{'core' if len(missing) == 1 else 'cores'} {_few(missing)}; it has "
                    f"{counted(len(cores), 'core')}: {_few(cores)}. The lane is not pinned",
                    False,
                )
            )
        if lane.threads > len(cores) > 0 and config.devices[lane.device].kind == "cpu":
            found.append(
                Problem(
                    "threads",
                    f"[lane.{lane.name}] threads = {lane.threads}, on "
                    f"{counted(len(cores), 'core')}: threads wait for each other, and times "
                    f"vary; set threads = {len(cores)} or fewer",
                    False,
                )
            )
    return found


def check_memory(config: Config, profiles: Sequence[Profile] = ()) -> List[Problem]:
    """Has the host the memory that the file and the profiles say? A model that can never be loaded beside its device's
    headroom stops the server: all its requests would expire. A GPU's own memory is not looked at."""
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    bound_bytes = ControlGroups().memory_bound_bytes()
    measured = {profile.model: sum(profile.footprint) for profile in profiles}
    found = []
    for device in config.devices.values():
        if device.kind == "cuda" and not _shares_memory():
            continue
        # What the driver of an integrated GPU takes counts in no control group.
        host_bytes, host = machine_bytes, f"the {format_size(machine_bytes)} of this machine"
        if bound_bytes is not None and bound_bytes < machine_bytes and device.kind != "cuda":
            host_bytes = bound_bytes
            host = f"the {format_size(bound_bytes)} that the control group (a container, MemoryMax) gives this process"
        headroom = max(0, device.headroom_bytes)
        if device.memory_bytes > host_bytes:
            text = f"[device.{device.name}] memory = {format_size(device.memory_bytes)} is more than {host}; lower it"
            found.append(Problem("memory", text, False))
        for model in config.models.values():
            needs = model.memory_bytes or measured.get(model.name, 0)
            lanes = model_lanes(config, model)
            if needs + headroom > host_bytes and device.name in {config.lanes[lane].device for lane in lanes}:
                size = f" with {format_size(needs)}" if needs else ""
                beside = f" beside [device.{device.name}] headroom = {format_size(headroom)}" if headroom else ""
                mend = f"correct {'headroom, or ' if headroom else ''}[model.{model.name}] memory"
                text = f"model {model.name!r}{size} does not fit into {host}{beside}; {mend}"
                found.append(Problem("memory", text, bool(headroom)))
    return found


def _shares_memory() -> bool:
    from edgeserve.device.boards import detect_board  # for configurations with a GPU

    return detect_board().is_jetson


def _few(cores: Sequence[int]) -> str:
    return ", ".join(map(str, cores[:16])) + (" ..." if len(cores) > 16 else "")
