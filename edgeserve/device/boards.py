"""Which board this is, and what a board's power rails add up to.

Boards are told apart by the device tree first: it is visible in containers and cannot be out of date. Releases of L4T
are data, not a condition: an unknown one is mapped by its major number or not at all, and never an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Mapping, NamedTuple, Optional, Tuple

from edgeserve.device.files import listing, read_text
from edgeserve.device.signs import DRIVER_GPUS, GPU_NODES, L4T_RELEASE, TREE_MODEL, WSL_NODE

PLAIN_CPU, DESKTOP_GPU = "cpu", "desktop-gpu"

JETPACK_OF_L4T = {
    32: ("4", (3, 6)),
    34: ("5", (3, 8)),
    35: ("5", (3, 8)),
    36: ("6", (3, 10)),
    38: ("7", (3, 12)),
    39: ("7", (3, 12)),
}
"""Major release of L4T -> JetPack and the Python of its system packages. Unknown releases are taken as they come."""

JETPACK_RELEASES = {
    "32.6.1": "4.6",
    "32.7.1": "4.6.1",
    "32.7.2": "4.6.2",
    "32.7.3": "4.6.3",
    "32.7.4": "4.6.4",
    "32.7.5": "4.6.5",
    "32.7.6": "4.6.6",
    "35.1.0": "5.0.2",
    "35.2.1": "5.1",
    "35.3.1": "5.1.1",
    "35.4.1": "5.1.2",
    "35.5.0": "5.1.3",
    "35.6.0": "5.1.4",
    "35.6.1": "5.1.5",
    "35.6.2": "5.1.5",
    "35.6.3": "5.1.5",
    "35.6.4": "5.1.6",
    "36.2.0": "6.0",
    "36.3.0": "6.0",
    "36.4.0": "6.1",
    "36.4.3": "6.2",
    "36.4.4": "6.2.1",
    "36.4.7": "6.2.1",
    "36.5.0": "6.2.2",
    "38.2.0": "7.0",
    "38.2.1": "7.0",
    "38.4.0": "7.1",
    "39.0.0": "7.2",
    "39.2.0": "7.2",
}
"""Release of L4T -> JetPack, where the two are published together; others are told by their major number."""


class BoardKind(NamedTuple):
    """A kind of board: the SoC, its compute capability, and DLA cores (but for ``ONE_DLA_CORE``)."""

    slug: str
    name: str
    soc: str
    capability: str
    dla_cores: int


KINDS = {
    kind.slug: kind
    for kind in (
        BoardKind("nano", "Jetson Nano", "tegra210", "5.3", 0),
        BoardKind("tx1", "Jetson TX1", "tegra210", "5.3", 0),
        BoardKind("tx2", "Jetson TX2", "tegra186", "6.2", 0),
        BoardKind("xavier-nx", "Jetson Xavier NX", "tegra194", "7.2", 2),
        BoardKind("agx-xavier", "Jetson AGX Xavier", "tegra194", "7.2", 2),
        BoardKind("orin-nano", "Jetson Orin Nano", "tegra234", "8.7", 0),
        BoardKind("orin-nx", "Jetson Orin NX", "tegra234", "8.7", 2),
        BoardKind("agx-orin", "Jetson AGX Orin", "tegra234", "8.7", 2),
        BoardKind("thor", "Jetson Thor", "tegra264", "11.0", 0),
        BoardKind("jetson", "Jetson", "", "", 0),
        BoardKind(DESKTOP_GPU, "discrete NVIDIA GPU", "", "", 0),
        BoardKind(PLAIN_CPU, "no NVIDIA GPU", "", "", 0),
    )
}
"""Every kind of board by its short name."""

_MODULES = (  # of ``compatible``: the module's number, which the board's name may not tell
    ("p3701", "agx-orin"),
    ("p3767-0003", "orin-nano"),
    ("p3767-0004", "orin-nano"),
    ("p3767-0005", "orin-nano"),
    ("p3767", "orin-nx"),
    ("p2888", "agx-xavier"),
    ("p3668", "xavier-nx"),
    ("p3834", "thor"),
    ("p3310", "tx2"),
    ("p3489", "tx2"),
    ("p3636", "tx2"),
    ("p2180", "tx1"),
    ("p3448", "nano"),
)

ONE_DLA_CORE = "p3767-0001"
"""Boards by ``compatible``: Orin NX of 8 GB, half as many as that of 16 GB."""

_NAMES = (  # of ``model``, the more special first
    (r"thor", "thor"),
    (r"orin nano", "orin-nano"),
    (r"orin nx", "orin-nx"),
    (r"orin", "agx-orin"),
    (r"xavier nx", "xavier-nx"),
    (r"xavier", "agx-xavier"),
    (r"jetson-agx", "agx-xavier"),
    (r"tx2|quill", "tx2"),
    (r"tx1", "tx1"),
    (r"nano", "nano"),
)

_SOCS = (
    ("tegra264", "thor"),
    ("tegra234", "agx-orin"),
    ("tegra194", "agx-xavier"),
    ("tegra186", "tx2"),
    ("tegra210", "nano"),
)


@dataclass(frozen=True)
class Machine:
    """A machine as detected. ``model`` is its own name for itself; ``l4t`` and ``jetpack`` are ``""`` where nothing
    tells them; ``container`` says that the files may be those of another system than the kernel's."""

    kind: BoardKind
    model: str = ""
    l4t: str = ""
    jetpack: str = ""
    container: bool = False
    dla_cores: int = 0

    @property
    def is_jetson(self) -> bool:
        """True if its GPU and its CPU share one memory."""
        return self.kind.slug not in (PLAIN_CPU, DESKTOP_GPU)

    @property
    def l4t_major(self) -> Optional[int]:
        """The major release of L4T."""
        return int(self.l4t.split(".")[0]) if self.l4t else None

    @property
    def system_python(self) -> Optional[Tuple[int, int]]:
        """The Python that JetPack's own packages are built for; None where the release is not known."""
        return JETPACK_OF_L4T.get(self.l4t_major or 0, ("", None))[1]


def detect_board(root: str = "/", package_version: str = "") -> Machine:
    """The board below ``root``. ``package_version`` is that of the package nvidia-l4t-core (``36.4.3-2025...``), for
    containers without /etc/nv_tegra_release."""
    model = _text(root, TREE_MODEL)
    compatible = _text(root, "proc/device-tree/compatible").replace("\0", " ").lower()
    l4t = l4t_of(read_text(root, L4T_RELEASE)) or l4t_of(package_version)
    kernel = read_text(root, "proc/sys/kernel/osrelease")
    tegra = bool(l4t or "tegra" in compatible or "tegra" in kernel or "jetson" in model.lower())
    kind = KINDS[
        _kind_of(model.lower(), compatible)
        if tegra
        else DESKTOP_GPU
        if listing(root, DRIVER_GPUS) or has_nvidia_gpu(root)
        else PLAIN_CPU
    ]
    dla_cores = min(1, kind.dla_cores) if ONE_DLA_CORE in compatible else kind.dla_cores
    return Machine(kind, model, l4t, jetpack_of(l4t), is_container(root), dla_cores)


def has_nvidia_gpu(root: str = "/") -> bool:
    """True if the system offers an NVIDIA GPU, by its device nodes. In WSL2 the node is the same for every maker; there
    Windows' driver brings its libraries."""
    if any(listing(root, node) for node in GPU_NODES):
        return True
    return bool(listing(root, WSL_NODE) and listing(root, "usr/lib/wsl/lib/libcuda.so*"))


def _text(root: str, path: str) -> str:
    return read_text(root, path).strip("\0\n ")


def _kind_of(model: str, compatible: str) -> str:
    for number, slug in _MODULES:
        if number in compatible:
            return slug
    for pattern, slug in _NAMES:
        if re.search(pattern, model):
            return slug
    return next((slug for soc, slug in _SOCS if soc in compatible), "jetson")


def l4t_of(text: str) -> str:
    """``36.4.3`` of /etc/nv_tegra_release's first line, of a package's version, or ``""``."""
    release = re.search(r"R([0-9]{1,3}) \(release\), REVISION: ([0-9]{1,3}(?:\.[0-9]{1,3})?)", text)
    if release:
        minor = release.group(2) if "." in release.group(2) else f"{release.group(2)}.0"
        return f"{release.group(1)}.{minor}"
    package = re.match(r"([0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3})-", text)
    return package.group(1) if package else ""


def jetpack_of(l4t: str) -> str:
    """JetPack's number for a release of L4T: exact where published, else the major number; ``""`` when unknown."""
    if l4t in JETPACK_RELEASES:
        return JETPACK_RELEASES[l4t]
    return JETPACK_OF_L4T.get(int(l4t.split(".")[0]), ("",))[0] if l4t else ""


def is_container(root: str) -> bool:
    """True if the files below ``root`` are a container's."""
    if listing(root, ".dockerenv") or listing(root, "run/.containerenv"):
        return True
    return bool(re.search(r"docker|containerd|kubepods|lxc", read_text(root, "proc/1/cgroup")))


# --- power ------------------------------------------------------------------------------------------------------------

TOTALS = (
    ("POM_5V_IN",),  # Nano
    ("VDD_IN",),  # TX1, TX2, Xavier NX, Orin NX and Nano: the module's own input
    ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"),  # AGX Orin; VDDQ_VDD2_1V8AO is fed by these
    ("VDD_GPU", "VDD_CPU_SOC_MSS", "VIN_SYS_5V0"),  # AGX Thor; VIN feeds the carrier board as well
    ("GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"),  # AGX Xavier: no rail feeds the others
)
"""Rails that add up to a module's power. A board has the rails of one entry only, so the rails tell the entry."""

GPU_RAILS = ("POM_5V_GPU", "VDD_SYS_GPU", "VDD_GPU", "VDD_GPU_SOC", "GPU")
"""The GPU's own rail, or the one that it shares with the SoC (AGX Orin). Xavier NX, Orin NX and Nano have none."""

NOT_CONNECTED = "NC"
"""The label of a sensor that measures nothing."""


def total_power_w(rails_w: Mapping[str, float]) -> Optional[float]:
    """The module's power in watts; None for rails that are not known, and where one of the sum is missing: part of a
    sum is no total."""
    for names in TOTALS:
        if all(name in rails_w for name in names):
            total_w = round(sum(rails_w[name] for name in names), 6)
            return total_w if total_w >= 0 else None  # a sensor of a rail that is off may read a little below 0
    return None


def gpu_power_w(rails_w: Mapping[str, float]) -> Optional[float]:
    """The power of the GPU's rail in watts; None where the GPU shares its rail with the CPU, and below 0."""
    gpu_w = next((rails_w[name] for name in GPU_RAILS if name in rails_w), None)
    return gpu_w if gpu_w is None or gpu_w >= 0 else None
