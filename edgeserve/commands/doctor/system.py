"""The machine: board and release, power mode, processor, memory, wall clock, container."""

from __future__ import annotations

import os
from functools import partial
from typing import Dict, List, Tuple

from edgeserve.commands.doctor.finding import Finding, dotted, good, note, number, wrong
from edgeserve.commands.doctor.interpreter import PYTHON_MIN
from edgeserve.control_groups import ControlGroups
from edgeserve.device.boards import JETPACK_OF_L4T, Machine, detect_board
from edgeserve.device.cpu import CPUS, count_cores
from edgeserve.device.files import listing, read_text
from edgeserve.device.gpu_clock import gpu_folder
from edgeserve.device.memory import BUDDYINFO, largest_block, meminfo_bytes
from edgeserve.device.power_mode import STATUS, read_conf, status_number
from edgeserve.device.throttling import cooling_devices
from edgeserve.units import counted, format_size

MEMORY_BYTES_LITTLE = 1 << 30  # a small vision model with its working memory, and the server
MEMORY_BYTES_NONE = 256 << 20  # the server alone needs about a third of this
BLOCK_BYTES_LITTLE = 1 << 20  # the largest blocks that the kernel keeps are 4 MiB: below one, memory is in pieces

WALL_CLOCK_S_MIN = 1_700_000_000  # November 2023: a board without a battery starts in 1970


def check_board(root: str, python: Tuple[int, int]) -> List[Finding]:
    """Is it a Jetson, of which release, in which power mode."""
    board = detect_board(root)
    if board.l4t_major is None:
        return good("board", board.model or ("Jetson" if board.is_jetson else "no Jetson"))
    name = f"{board.model or 'Jetson'}, L4T {board.l4t}"
    if board.l4t_major not in JETPACK_OF_L4T:
        return note(
            "board",
            f"{name}: a release that this version does not know",
            "update edgeserve-runtime, or go on: releases are not told apart at run time",
        )
    name += f" (JetPack {board.jetpack})"
    system_python = board.system_python or python
    if system_python < PYTHON_MIN:
        found = wrong(
            "board",
            f"{name}: its Python {dotted(system_python)} is too old for TensorRT here",
            "flash JetPack 5 or later, or serve ONNX models with a Python of 3.8 or later",
        )
    elif python != system_python:
        found = note(
            "board",
            f"{name}, Python {dotted(python)}: JetPack's own packages (TensorRT) can only "
            f"be imported by Python {dotted(system_python)}",
            f"python{dotted(system_python)} -m venv --system-site-packages .venv",
        )
    else:
        found = good("board", name)
    return found + check_power_mode(root)


def check_dla(board: Machine) -> List[Finding]:
    """Deep-learning accelerators beside the GPU."""
    if not board.dla_cores:
        return []
    cores = counted(board.dla_cores, "DLA core")
    return good("dla", f"{cores} on this {board.kind.name}; TensorRT says how many it can use")


def check_power_mode(root: str) -> List[Finding]:
    """Modes are distinguished by name: the numbers mean different things on different boards."""
    current, modes = status_number(read_text(root, STATUS)), read_conf(root)
    if current is None or not modes.modes:
        return []
    mode, full = modes.by_number(current), modes.full
    name = mode.name if mode is not None else f"number {current}"
    if full is None or (mode is not None and mode.is_full):
        return good("power mode", name)
    return note(
        "power mode",
        f"{name}: clocks and cores are capped; profiles hold for one mode only",
        f"sudo nvpmodel -m {full.number}",
    )


def check_gpu_clock(root: str) -> List[Finding]:
    """The integrated GPU's clock: what it may be now, what the hardware could do, and whether it varies."""
    folder = gpu_folder(root)
    now, low, high = (number(root, f"{folder}/{name}_freq") for name in ("cur", "min", "max")) if folder else (0, 0, 0)
    if not high:
        return []
    clocks = [int(word) for word in read_text(root, f"{folder}/available_frequencies").split() if word.isdecimal()]
    top = max(clocks, default=high)
    text = f"GPU at {now / 1e6:.0f} MHz, between {low / 1e6:.0f} and {high / 1e6:.0f} MHz, hardware {top / 1e6:.0f} MHz"
    if low >= high:
        return good("gpu clock", f"{text}: locked")
    return note(
        "gpu clock",
        f"{text}: the first work after a pause runs on a low clock, and measured times vary",
        "sudo jetson_clocks (undo: sudo jetson_clocks --restore)",
    )


def check_processor(root: str, cores: int) -> List[Finding]:
    """Usable cores, clock governors, clock caps, throttling."""
    folders = [os.path.join(root, path) for path in listing(root, f"{CPUS}/cpu[0-9]*/cpufreq")]
    governors: Dict[str, int] = {}
    capped = 0
    for folder in folders:
        governor = read_text(folder, "scaling_governor").strip()
        governors[governor] = governors.get(governor, 0) + bool(governor)
        allowed, possible = number(folder, "scaling_max_freq"), number(folder, "cpuinfo_max_freq")
        capped += bool(allowed and possible and allowed < possible)
    if cores > 1:
        found = good("processor", f"{cores} usable cores")
    else:
        found = note(
            "processor",
            "1 usable core: the bus and every lane share it",
            "give the container or virtual machine a second core",
        )
    found += _governors(governors, bool(read_text(root, "etc/nv_tegra_release")))
    if capped:
        found += note(
            "clocks",
            f"{counted(capped, 'core')} capped below the highest clock",
            "raise scaling_max_freq to cpuinfo_max_freq, or choose a stronger power mode",
        )
    return found + _throttling(root)


def _governors(governors: Dict[str, int], jetson: bool) -> List[Finding]:
    slow = sorted(name for name in governors if name and name != "performance")
    if slow:
        return note(
            "clocks",
            f"governor {', '.join(slow)} on {counted(sum(governors[name] for name in slow), 'core')}: "
            "the first work after a pause runs on a low clock",
            "sudo jetson_clocks"
            if jetson
            else "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
        )
    if governors:
        return good("clocks", "governor performance")
    return good("clocks", "not visible from here (virtual machine or container)")


def _throttling(root: str) -> List[Finding]:
    hot = {kind for kind, path in cooling_devices(root) if number(root, path) > 0}
    if not hot:
        return []
    return note(
        "heat",
        f"cooling is active on {', '.join(sorted(hot))}: clocks are lowered now",
        "improve the cooling or choose a weaker power mode, then measure profiles again",
    )


def check_memory(root: str) -> List[Finding]:
    """Memory that can still be had, and whether it lies in pieces."""
    fields = meminfo_bytes(read_text(root, "proc/meminfo"))
    available = fields.get("MemAvailable")
    if available is None:
        return note(
            "memory",
            "/proc/meminfo does not say what is available",
            "mount /proc, or look at the memory by yourself (free -m)",
        )
    group = ControlGroups(root, partial(read_text, root)).memory_free_bytes()
    text = f"{format_size(available)} available"
    if group is not None and group < available:
        available, text = group, f"{format_size(group)} left in the control group (a container, MemoryMax)"
    if available < MEMORY_BYTES_NONE:
        return wrong("memory", text, "end other programs (ps aux --sort=-rss | head), or add memory")
    if available < MEMORY_BYTES_LITTLE:
        return note(
            "memory",
            f"{text}: enough for small models only",
            "sudo systemctl set-default multi-user.target (no desktop), or end other programs",
        )
    block, count = largest_block(read_text(root, BUDDYINFO), os.sysconf("SC_PAGE_SIZE"))
    if block is not None and count is not None:
        text += f", largest free blocks {count} x {format_size(block)}"
        if block < BLOCK_BYTES_LITTLE and detect_board(root).is_jetson:
            return note(
                "memory",
                f"{text}: large allocations of GPU memory will fail",
                "echo 3 | sudo tee /proc/sys/vm/drop_caches; echo 1 | sudo tee /proc/sys/vm/compact_memory; or reboot",
            )
    return good("memory", text)


def check_swap(root: str, board: Machine) -> List[Finding]:
    """Swap in compressed memory takes from what an integrated GPU needs, and a desktop does so, too."""
    kinds = [line.split()[0] for line in read_text(root, "proc/swaps").splitlines()[1:] if line.split()]
    compressed = [kind for kind in kinds if "zram" in kind]
    found = []
    if board.is_jetson and compressed:
        found += note(
            "swap",
            f"{counted(len(compressed), 'device')} of compressed memory (zram): the GPU "
            "cannot use what is swapped there, and building engines runs out of memory sooner",
            "sudo systemctl disable --now nvzramconfig, and a swap file on the NVMe drive",
        )
    elif kinds:
        found += good("swap", ", ".join(kinds))
    target = os.path.join(root, "etc/systemd/system/default.target")
    if board.is_jetson and os.path.islink(target) and "graphical" in os.readlink(target):
        found += note(
            "desktop",
            "the graphical desktop starts with the board: 250 to 800 MB of memory",
            "sudo systemctl set-default multi-user.target, then reboot",
        )
    return found


def check_wall_clock(now_s: float) -> List[Finding]:
    """Deadlines use the monotonic clock; logs, certificates and caches do not."""
    if now_s >= WALL_CLOCK_S_MIN:
        return []
    return note(
        "wall clock",
        "the date is long past: logs and file times of this run will mislead (deadlines do not depend on it)",
        "sudo timedatectl set-ntp true, or set the date and give the board a battery",
    )


def check_container(root: str, board: Machine) -> List[Finding]:
    """A container on a machine with a GPU must be given that."""
    if not board.container:
        return []
    if board.kind.slug == "cpu":
        return good("container", "yes")
    nodes = listing(root, "dev/nvhost-*") + listing(root, "dev/nvmap") + listing(root, "dev/nvidia[0-9]*")
    if nodes:
        return good("container", f"yes, with {counted(len(nodes), 'GPU device node')}")
    return wrong(
        "container",
        f"this container on {board.kind.name} has no GPU device nodes",
        "docker run --runtime nvidia --ipc=host --ulimit memlock=-1 ...",
    )


def usable_cores(root: str = "/") -> int:
    """Cores this process may run on, within the quota of its control groups; of a recorded tree the ones that were
    online."""
    cores = len(os.sched_getaffinity(0))
    if root != "/":
        cores = count_cores(read_text(root, f"{CPUS}/online")) or cores
    quota = ControlGroups(root, partial(read_text, root)).cores()
    return cores if quota is None else min(cores, max(1, int(quota)))
