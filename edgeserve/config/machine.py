"""The name of this machine: the board, or GPU and CPU, and its directory of profiles. Reads, decides nothing."""

from __future__ import annotations

import glob
import platform
import re
from typing import Sequence

DEVICE_TREE_MODEL = "/proc/device-tree/model"
CPUINFO = "/proc/cpuinfo"
CARDS = "/proc/driver/nvidia/gpus/*/information"


def slug(name: str) -> str:
    """``name`` in lower-case letters, digits and single dashes: a directory's name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown"


def board_name(device_tree: str, cpuinfo: str, machine: str, cards: Sequence[str] = ()) -> str:
    """The board's name where firmware tells it (Jetson, Raspberry Pi), else the CPU's, behind those of NVIDIA's cards,
    else the architecture. The arguments are the texts of :data:`DEVICE_TREE_MODEL`, :data:`CPUINFO` and :data:`CARDS`
    (empty where absent)."""
    board = device_tree.replace("\0", " ").strip()
    if board:
        return board
    match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    name = match.group(1) if match else machine or "unknown"
    # The marks of trade and the nominal clock say nothing that distinguishes two machines.
    name = re.sub(r"\((R|TM|C)\)|\bCPU\b|\bProcessor\b|@.*$", " ", name, flags=re.IGNORECASE)
    models = [
        found.group(1).strip()
        for found in (re.search(r"^Model:\s*(.+)$", card, re.MULTILINE) for card in cards)
        if found
    ]
    return ", ".join([*sorted(set(models)), " ".join(name.split())])


def device_name() -> str:
    """This machine's board, or GPU and CPU, as people write it."""
    cards = [_text(path) for path in glob.glob(CARDS)]
    return board_name(_text(DEVICE_TREE_MODEL), _text(CPUINFO), platform.processor() or platform.machine(), cards)


def device_slug() -> str:
    """This machine's directory below ``profiles/``, such as ``nvidia-jetson-agx-orin`` or ``intel-xeon-8481c``."""
    return slug(device_name())


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
