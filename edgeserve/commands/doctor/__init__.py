"""``edgeserve doctor [FILE]``: what is wrong with this machine for serving, with a configuration or with profiles, and
the command that mends it.

Each check is a function of what it looks at (a root directory, versions, a configuration) and returns findings; only
:func:`examine` looks at the machine itself. It changes nothing. Checks lie by subject: ``machine``, ``telemetry``,
``access``, ``interpreter``, ``probes`` (GPU libraries), ``engines``, ``bus``, ``configuration``.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, replace
from typing import List, Optional, Sequence

from edgeserve import compiled
from edgeserve.commands.doctor.access import check_cache, check_locked_memory, check_nodes, check_open_files
from edgeserve.commands.doctor.bus import check_bus
from edgeserve.commands.doctor.configuration import check_config_file, check_configuration
from edgeserve.commands.doctor.engines import check_engines
from edgeserve.commands.doctor.finding import NOTE, WRONG, Finding
from edgeserve.commands.doctor.interpreter import (
    PACKAGES,
    check_core,
    check_known_bad,
    check_onnxruntime,
    check_python,
    check_system_packages,
    module_version,
    onnxruntime_providers,
)
from edgeserve.commands.doctor.probes import check_libraries
from edgeserve.commands.doctor.profile_files import check_profiles
from edgeserve.commands.doctor.recording import collect
from edgeserve.commands.doctor.system import (
    check_board,
    check_container,
    check_dla,
    check_gpu_clock,
    check_memory,
    check_processor,
    check_swap,
    check_wall_clock,
    usable_cores,
)
from edgeserve.commands.doctor.telemetry import check_heat, check_over_current, check_tegrastats, check_telemetry
from edgeserve.commands.wrapping import wrapped
from edgeserve.config.files import cache_directory
from edgeserve.config.schema import Config
from edgeserve.device.boards import Machine, detect_board, has_nvidia_gpu
from edgeserve.engines.versions import ONNXRUNTIME_BUILDS, installed
from edgeserve.errors import ConfigError
from edgeserve.ipc.endpoints import default_endpoint
from edgeserve.python_file import config_at
from edgeserve.units import counted, format_size

SUBJECT_COLUMNS = 13


def examine(config_path: str = "", root: str = "/", quick: bool = False) -> List[Finding]:
    """Look at this machine, and at a configuration if one is given. ``quick`` leaves out what takes seconds: GPU
    libraries in child processes, tegrastats, and over-current counters, which are looked at twice."""
    config = _config(config_path)
    board = detect_board(root, l4t_package_version() if root == "/" else "")
    cores = usable_cores(root)
    found = [*_machine(root, board, cores), *_python(root, board)]
    gpu = [*check_container(root, board), *check_dla(board), *_device(root, board, quick)]
    if not quick:
        gpu += [*check_libraries(board), *check_engines(config)]
    if config is not None and all(device.kind == "cpu" for device in config.devices.values()):
        gpu = [replace(finding, status=NOTE) if finding.status == WRONG else finding for finding in gpu]
    found += gpu  # what is wrong with a GPU does not hinder a configuration that uses none
    endpoint = (config.server.endpoint if config is not None else "") or default_endpoint()
    found += check_bus(
        endpoint,
        os.getuid(),
        config.curve_secret_key_path if config is not None else "",
        config.apps if config is not None else (),
    )
    found += check_open_files()
    if config is not None:
        found += check_configuration(config, cores)
    elif config_path:
        found += check_config_file(config_path, cores)
    return list({(finding.status, finding.text): finding for finding in reversed(found)}.values())[::-1]


def examine_tree(root: str) -> List[Finding]:
    """A machine by the files below ``root``, this one or a recorded one: board, clocks, heat, power, memory.
    Of a recorded one no program and no library is asked, which would tell of this machine."""
    board = detect_board(root)
    python = board.system_python or (sys.version_info[0], sys.version_info[1])
    return [
        *check_board(root, python),
        *check_processor(root, usable_cores(root)),
        *check_memory(root),
        *check_swap(root, board),
        *check_container(root, board),
        *check_dla(board),
        *check_gpu_clock(root),
        *check_telemetry(root, board),
        *check_heat(root, board),
        *check_over_current(root, 0.0),
    ]


def _config(path: str) -> Optional[Config]:
    try:
        return config_at(path) if path else None
    except ConfigError:
        return None  # check_config_file tells what is wrong


def _machine(root: str, board: Machine, cores: int) -> List[Finding]:
    python = (sys.version_info[0], sys.version_info[1])
    return [
        *check_board(root, python),
        *check_processor(root, cores),
        *check_memory(root),
        *check_swap(root, board),
        *check_wall_clock(time.time()),
        *check_cache(cache_directory(), root),
    ]


def _python(root: str, board: Machine) -> List[Finding]:
    python = (sys.version_info[0], sys.version_info[1])
    return [
        *check_python(python, {module: module_version(module) for module in PACKAGES}),
        *check_core(compiled.running(), compiled.is_stale()),
        *check_system_packages(board, python, sys.path, root),
        *check_known_bad(board, installed(("numpy", "tensorrt", "torch"))),
        *check_onnxruntime(installed(ONNXRUNTIME_BUILDS), onnxruntime_providers(), has_nvidia_gpu(root)),
    ]


def _device(root: str, board: Machine, quick: bool) -> List[Finding]:
    found = [
        *check_nodes(root, board),
        *check_locked_memory(board),
        *check_gpu_clock(root),
        *check_telemetry(root, board),
        *check_heat(root, board),
    ]
    return found if quick else [*found, *check_over_current(root), *check_tegrastats(board)]


def l4t_package_version() -> str:
    """The version of the package nvidia-l4t-core, for containers that lack /etc/nv_tegra_release; ``""`` where there is
    none."""
    try:
        done = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Version}", "nvidia-l4t-core"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's arguments."""
    parser.add_argument(
        "config",
        nargs="?",
        metavar="FILE",
        help="also look at this configuration; of a profile (.json) or a folder of profiles: look at these alone",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--root", default="", metavar="DIR", help="look at the machine whose files were recorded there")
    parser.add_argument(
        "--collect",
        default="",
        metavar="FILE.tar.gz",
        help="record the files that tell board, clocks, heat, power and memory (unpacked: --root)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="leave out what takes seconds: GPU libraries, tegrastats, over-current counters",
    )


def main(args: argparse.Namespace) -> int:
    """Print the findings; 1 when something is wrong."""
    if args.config == "":
        raise ConfigError("the name of the configuration is empty; leave it out to look at the machine alone")
    if (args.root or args.collect) and args.config:
        raise ConfigError(f"{args.config}: --root and --collect look at a machine alone; leave the configuration out")
    if args.root and not os.path.isdir(args.root):
        raise ConfigError(f"--root {args.root}: there is no such directory; unpack what --collect wrote, and name that")
    if args.collect:
        return _collect(args.collect, args.root or "/")
    config = args.config or ""
    if os.path.isdir(config) or config.endswith(".json"):
        found = check_profiles(config)
    else:
        found = examine_tree(args.root) if args.root else examine(config, quick=args.quick)
    if args.json:
        print(json.dumps([asdict(finding) for finding in found], indent=1))
    else:
        print(report(found, shutil.get_terminal_size().columns if sys.stdout.isatty() else 0))
    return 1 if any(finding.status == WRONG for finding in found) else 0


def _collect(archive: str, root: str) -> int:
    try:
        taken = collect(examine_tree, archive, root)
    except OSError as error:
        raise ConfigError(f"--collect {archive}: it cannot be written ({error.strerror}); give another path") from None
    print(*taken, sep="\n")
    total = format_size(sum(taken.values()))
    print(f"{archive}: these {counted(len(taken), 'file')}, {total}. To look at it, here or elsewhere:")
    print(f"  mkdir board && tar xf {shlex.quote(archive)} -C board && edgeserve doctor --root board")
    return 0


def report(found: Sequence[Finding], columns: int = 0) -> str:
    """The findings as text, each mend below what it mends."""
    lines: List[str] = []
    for finding in found:
        lines += wrapped(finding.text, f"{finding.status:5}  {finding.subject:{SUBJECT_COLUMNS}}  ", columns)
        if finding.mend:
            lines += wrapped(f"-> {finding.mend}", " " * (9 + SUBJECT_COLUMNS), columns)
    count = {status: sum(finding.status == status for finding in found) for status in (WRONG, NOTE)}
    lines.append(f"{count[WRONG]} wrong, {count[NOTE]} to improve")
    return "\n".join(lines)
