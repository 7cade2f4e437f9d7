"""The places where a system shows a board or an NVIDIA GPU: paths below the root."""

from __future__ import annotations

import glob
import os

TREE_MODEL = "proc/device-tree/model"
L4T_RELEASE = "etc/nv_tegra_release"
DRIVER_GPUS = "proc/driver/nvidia/gpus/*"
GPU_NODES = ("dev/nvidia[0-9]*", "dev/nvhost-gpu", "dev/nvgpu", "dev/nvmap")
WSL_NODE = "dev/dxg"


def has_none() -> bool:
    """True if nothing here is a sign of a board or a GPU: there is nothing to detect (``boards.py``) or to read."""
    signs = (TREE_MODEL, L4T_RELEASE, DRIVER_GPUS, *GPU_NODES, WSL_NODE)
    return "tegra" not in os.uname().release and not any(glob.glob("/" + sign) for sign in signs)
