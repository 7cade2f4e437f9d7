"""The rights of this user: device nodes, locked memory, open files, and where plans and measurements are kept."""

from __future__ import annotations

import grp
import os
import pwd
import resource
import shutil
from typing import List, Optional

from edgeserve.commands.doctor.finding import Finding, good, note, wrong
from edgeserve.device.boards import Machine
from edgeserve.device.files import listing, read_text
from edgeserve.device.signs import WSL_NODE
from edgeserve.ipc.connections import CLIENTS_MAX, FILES_NEEDED
from edgeserve.units import format_size

NODES = (
    "dev/nvmap",
    "dev/nvhost-*",
    "dev/nvgpu/*/*",
    "dev/nvidia[0-9]*",
    "dev/nvidiactl",
    "dev/nvidia-uvm",
    "dev/dri/renderD*",
    WSL_NODE,
)

CACHE_BYTES_LITTLE = 2 << 30  # plans of a few models with several batch sizes each
MEMLOCK_BYTES_LITTLE = 64 << 20  # pinned buffers of a few models


def check_nodes(root: str, board: Machine) -> List[Finding]:
    """Can this user use the GPU's device nodes; if not, which group could."""
    if board.kind.slug == "cpu":
        return []
    nodes = [path for pattern in NODES for path in listing(root, pattern)]
    nodes = [path for path in nodes if not os.path.isdir(os.path.join(root, path))]
    if not nodes:
        if board.container:
            return []  # check_container says so
        mend = "sudo apt install nvidia-jetpack, then reboot" if board.is_jetson else "install the NVIDIA driver"
        return wrong("device nodes", "there are none of the GPU: its driver is not loaded", mend)
    closed = [path for path in nodes if not os.access(os.path.join(root, path), os.R_OK | os.W_OK)]
    if not closed:
        return good("device nodes", f"{len(nodes)} of the GPU, all usable")
    groups = sorted({name for name in (_group(os.path.join(root, path)) for path in closed) if name})
    return wrong(
        "device nodes",
        f"this user may not use /{closed[0]}" + (f" and {len(closed) - 1} more" if len(closed) > 1 else ""),
        f"sudo usermod -aG {','.join(groups) or 'video,render'} {_user()}, then log in again",
    )


def _group(path: str) -> Optional[str]:
    try:
        return grp.getgrgid(os.stat(path).st_gid).gr_name
    except (OSError, KeyError):
        return None


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def check_locked_memory(board: Machine) -> List[Finding]:
    """The memory that this user may lock: pinned buffers are."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if board.kind.slug == "cpu" or soft == resource.RLIM_INFINITY or soft >= MEMLOCK_BYTES_LITTLE:
        return []
    return note(
        "locked memory",
        f"at most {format_size(soft)} can be locked: pinned buffers may not fit",
        "ulimit -l unlimited, LimitMEMLOCK=infinity in the systemd unit, docker run --ulimit memlock=-1",
    )


def check_open_files() -> List[Finding]:
    """Find whether the limit of open files lets all clients in: the hard limit, since the server raises the soft
    one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY:
        return good("open files", "no limit")
    room = hard - FILES_NEEDED + CLIENTS_MAX
    text = f"at most {hard}: room for {max(0, room)} clients"
    if hard >= FILES_NEEDED:
        return good("open files", text)
    return wrong(
        "open files",
        f"{text} of {CLIENTS_MAX}: the server refuses to start",
        f"ulimit -Hn {FILES_NEEDED}, LimitNOFILE= in the systemd unit, docker run --ulimit nofile=...",
    )


def check_cache(directory: str, root: str = "/") -> List[Finding]:
    """Find whether plans and measurements can be kept in the cache, have room there, and outlive a reboot."""
    place = directory
    while place and not os.path.isdir(place):
        place = os.path.dirname(place)
    if not os.access(place, os.W_OK | os.X_OK):
        return wrong(
            "cache",
            f"{directory} cannot be written",
            f"export EDGESERVE_CACHE=... (a directory of this user), or sudo chown -R {_user()} {place}",
        )
    free = shutil.disk_usage(place).free
    kind = file_system(place, read_text(root, "proc/mounts"))
    text = f"{directory}, {format_size(free)} free{f', {kind}' if kind else ''}"
    if free < CACHE_BYTES_LITTLE:
        return note(
            "cache",
            f"{text}: little room for plans",
            f"remove what is not needed below {place}, or export EDGESERVE_CACHE=... (on a larger drive)",
        )
    if kind in ("tmpfs", "overlay"):
        return note(
            "cache",
            f"{text}: it is gone after a restart, and plans are built again",
            "docker run -v ..., or export EDGESERVE_CACHE=... (on a drive)",
        )
    return good("cache", text)


def file_system(path: str, mounts: str) -> str:
    """The kind of file system that holds a path, by the text of /proc/mounts; ``""`` when that does not tell."""
    best, kind = "", ""
    for line in mounts.splitlines():
        parts = line.split()
        if (
            len(parts) >= 3
            and len(parts[1]) >= len(best)
            and (path == parts[1] or path.startswith(parts[1].rstrip("/") + "/"))
        ):
            best, kind = parts[1], parts[2]
    return kind
