"""File systems of boards that are not here, with commands that act on them instead of on this machine.

A board is a directory with what ``jetson/setup.sh`` and ``jetson/power.sh`` read: device tree, release, packages,
users, power modes, fan profiles. :func:`lay_commands` makes a directory for ``PATH`` whose ``chroot`` performs the few
commands of the scripts on that directory, and writes each of them down. Models, compatible strings, releases and power
modes are those of the boards; what the scripts do not read is left out.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence

from fake_chroot import package

ROOT = Path(__file__).resolve().parents[2]
CHROOT = shlex.quote(str(Path(__file__).with_name("fake_chroot.py")))


class Board(NamedTuple):
    """A board: its model, memory, programs and files."""

    name: str
    model: str
    compatible: str
    release: str
    python: str
    jetpack: str
    modes: Sequence[str]
    mode: int
    groups: Sequence[str]
    jtop: bool = False


BOARDS = (
    Board(
        "agx-xavier",
        "Jetson-AGX",
        "nvidia,p2972-0000 nvidia,tegra194",
        "# R35 (release), REVISION: 4.1, GCID: 33958178, BOARD: t186ref, EABI: aarch64",
        "3.8",
        "5.1.2",
        (
            "MAXN",
            "MODE_10W",
            "MODE_15W",
            "MODE_30W_ALL",
            "MODE_30W_6CORE",
            "MODE_30W_4CORE",
            "MODE_30W_2CORE",
            "MODE_15W_DESKTOP",
        ),
        7,
        ("video", "gpio", "i2c"),
    ),
    Board(
        "agx-orin",
        "NVIDIA Jetson AGX Orin Developer Kit",
        "nvidia,p3737-0000+p3701-0005 nvidia,tegra234",
        "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64",
        "3.10",
        "6.2",
        ("MAXN", "MODE_15W", "MODE_30W", "MODE_50W"),
        2,
        ("video", "render", "gpio", "i2c"),
        jtop=True,
    ),
    Board(
        "orin-nano",
        "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super",
        "nvidia,p3768-0000+p3767-0005-super nvidia,tegra234",
        "# R36 (release), REVISION: 4.7, GCID: 42132812, BOARD: generic, EABI: aarch64",
        "3.10",
        "6.2.1",
        ("15W", "25W", "MAXN_SUPER", "7W"),
        1,
        ("video", "render", "gpio"),
    ),
    Board(
        "agx-thor",
        "NVIDIA Jetson AGX Thor Developer Kit",
        "nvidia,p3971-0089+p3834-0008 nvidia,tegra264",
        "# R38 (release), REVISION: 2.1, GCID: 42061081, BOARD: generic, EABI: aarch64",
        "3.12",
        "7.0",
        ("MAXN", "120W"),
        1,
        ("video", "render"),
    ),
)

FAN_CONF = """POLLING_INTERVAL 2
<FAN 1>
\tTMARGIN ENABLED
\tFAN_PROFILE quiet {
\t\t0 0 0 0
\t\t105 0 255 6000
\t}
\tFAN_PROFILE cool {
\t\t0 0 60 1500
\t\t105 0 255 6000
\t}
\tFAN_DEFAULT_CONTROL close_loop
\tFAN_DEFAULT_PROFILE quiet
\tFAN_DEFAULT_GOVERNOR pid
"""


def lay_board(board: Board, root: Path) -> Path:
    """Make the file system of a board at ``root``."""

    def put(path: str, text: str) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")

    put("proc/device-tree/model", f"{board.model}\0")
    put("proc/device-tree/compatible", "\0".join(board.compatible.split()) + "\0")
    put("etc/nv_tegra_release", f"{board.release}\n")
    put("etc/passwd", "root:x:0:0:root:/root:/bin/bash\nrobot:x:1000:1000::/home/robot:/bin/bash\n")
    put(
        "etc/group",
        "root:x:0:\nrobot:x:1000:\n"
        + "".join(f"{name}:x:{40 + number}:\n" for number, name in enumerate(board.groups)),
    )
    put(
        "etc/nvpmodel.conf",
        "# nvpmodel\n< PARAM TYPE=FILE NAME=CPU_ONLINE >\n"
        + "".join(
            f"< POWER_MODEL ID={number} NAME={name} >\nCPU_ONLINE CORE_0 1\n" for number, name in enumerate(board.modes)
        )
        + f"< PM_CONFIG DEFAULT={board.mode} >\n",
    )
    put("etc/nvfancontrol.conf", FAN_CONF)
    put("var/lib/nvpmodel/status", f"pmode:{board.mode:04d}\nfmode:quiet\n")
    put("var/lib/nvfancontrol/status", "FAN1:FAN_PROFILE:quiet\n")
    put("var/lib/dpkg/status", "".join(package(name) for name in ("nvidia-l4t-core", "nvidia-l4t-init", "python3-pip")))
    put("etc/systemd/system/multi-user.target.wants/.keep", "")
    put("tmp/.keep", "")
    if board.jtop:
        put("etc/systemd/system/jtop.service", "[Service]\n")
    python = root / "usr" / "bin" / f"python{board.python}"
    put(f"usr/bin/python{board.python}", "not run: the fake chroot stands for it\n")
    python.chmod(0o755)
    return root


def lay_commands(place: Path) -> Path:
    """A directory for the front of ``PATH``: a ``chroot`` that acts on the board, and ``id`` of the superuser."""
    place.mkdir(parents=True)
    for name, text in (("chroot", f'exec {shlex.quote(sys.executable)} -I -S {CHROOT} "$@"\n'), ("id", "echo 0\n")):
        (place / name).write_text(f"#!/bin/sh\n{text}", encoding="utf-8")
        (place / name).chmod(0o755)
    return place


def run_script(name: str, *words: str, root: Path, commands: Path) -> subprocess.CompletedProcess[str]:
    """Run a script of ``jetson/`` on a board."""
    environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "LC_ALL": "C"}
    return subprocess.run(
        [str(ROOT / "jetson" / name), "--root", str(root), *words],
        env=environment,
        text=True,
        capture_output=True,
        timeout=100,
        check=False,
    )


def performed(root: Path) -> List[str]:
    """The commands that were performed on a board so far."""
    log = root.parent / "performed"
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


def listing(root: Path) -> Dict[str, str]:
    """Every path of a board: what it is, its mode and its content's digest."""
    found = {}
    for path in sorted(root.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if path.is_symlink():
            found[str(path.relative_to(root))] = f"link to {os.readlink(path)}"
        elif path.is_dir():
            found[str(path.relative_to(root))] = f"directory {mode:o}"
        else:
            found[str(path.relative_to(root))] = f"file {mode:o} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    return found
