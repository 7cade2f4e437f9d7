"""The lanes that fit this machine: how many threads a model may use, and whether there is a GPU to use."""

from __future__ import annotations

import os
from typing import List, NamedTuple, Sequence

from edgeserve.offload.pin import allowed_cores

CPU, GPU = "cpu", "cuda"


class LaneText(NamedTuple):
    """A lane of the configuration, with its comment."""

    name: str
    device: str
    threads: int
    comment: str


def compute_threads(cores: int) -> int:
    """Threads for models: all cores, less one for the server's loop where there are more than two."""
    return cores - 1 if cores > 2 else max(1, cores)


def machine_lanes(devices: Sequence[str]) -> List[LaneText]:
    """One lane per kind of device that a model runs on."""
    cores = len(allowed_cores()) or os.cpu_count() or 1
    lanes = []
    if GPU in devices:
        lanes.append(LaneText("gpu0", "gpu", 1, "the GPU: one batch at a time"))
    if CPU in devices or not lanes:
        threads = compute_threads(cores)
        spare = "" if threads == cores else ", one is left for the server itself"
        lanes.append(
            LaneText(
                "cpu0", "cpu", threads, f"one batch at a time, on {threads} of this machine's {cores} cores{spare}"
            )
        )
    return lanes
