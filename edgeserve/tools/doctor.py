"""``edgeserve doctor [edge.toml]``: what is wrong with this machine for serving, and the command that mends it.

Each check is a function of what it looks at (a root directory, versions, a configuration) and returns findings; only
:func:`examine` looks at the machine itself. It changes nothing. What needs a GPU's own libraries is not looked at yet.
"""

from __future__ import annotations

import argparse
import glob
import importlib
import json
import os
import re
import stat
import sys
from dataclasses import asdict, dataclass
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from edgeserve import compiled
from edgeserve.config.files import model_path
from edgeserve.config.loading import load_config
from edgeserve.config.machine import device_slug
from edgeserve.config.profile_match import AT_START, EXPECTED, MEASURED, profile_command, times_from
from edgeserve.config.schema import Config
from edgeserve.engines import lane_info, make_engine
from edgeserve.engines.python import import_function
from edgeserve.engines.versions import ONNXRUNTIME_BUILDS, installed
from edgeserve.errors import ConfigError, EdgeServeError, EngineError
from edgeserve.ipc.endpoints import default_endpoint, prepare_endpoint, read_server_keys, split_endpoint
from edgeserve.live.plugins import import_policies
from edgeserve.live.predictors import load_predictors
from edgeserve.live.profiles import instead, matched_profiles
from edgeserve.live.request import InputRule
from edgeserve.sched.core.build import build_scheduler, model_lanes
from edgeserve.units import NS_PER_MS, counted, format_size

GOOD, NOTE, WRONG = "good", "note", "wrong"

JETPACK_OF_L4T = {32: ("4", (3, 6)), 35: ("5", (3, 8)), 36: ("6", (3, 10)), 38: ("7", (3, 12)), 39: ("7", (3, 12))}
"""Major release of L4T -> JetPack and the Python of its system packages. Unknown releases are taken as they come."""

PYTHON_MIN, PYTHON_MAX = (3, 8), (3, 13)

PACKAGES = {"numpy": "numpy", "zmq": "pyzmq", "msgpack": "msgpack", "psutil": "psutil", "rich": "rich"}
"""Module -> package that the run time needs."""

MEMORY_BYTES_LITTLE = 1 << 30  # a small vision model with its working memory, and the server
MEMORY_BYTES_NONE = 256 << 20  # the server alone needs about a third of this


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: ``good``, ``note`` (works, could be better) or ``wrong``; ``mend`` is a command
    or, where there is none, what to change."""

    subject: str
    status: str
    text: str
    mend: str = ""


# --- the machine ------------------------------------------------------------------------------------------------------


def check_board(root: str, python: Tuple[int, int]) -> List[Finding]:
    """Is it a Jetson, of which release, in which power mode."""
    board = _read(root, "proc/device-tree/model").strip("\0\n ")
    release = re.search(r"R(\d+) \(release\), REVISION: ([\d.]+)", _read(root, "etc/nv_tegra_release"))
    if not release:
        return [Finding("board", GOOD, board or "no Jetson")]
    major = int(release.group(1))
    jetpack, system_python = JETPACK_OF_L4T.get(major, ("", PYTHON_MAX))
    name = f"{board or 'Jetson'}, L4T {major}.{release.group(2)}"
    if not jetpack:
        return [Finding("board", NOTE, f"{name}: a release that this version does not know",
                        "update edgeserve-runtime, or go on: releases are not told apart at run time")]
    name += f" (JetPack {jetpack})"
    if system_python < PYTHON_MIN:
        found = [Finding("board", WRONG, f"{name}: its Python {_dotted(system_python)} is too old for TensorRT here",
                         "flash JetPack 5 or later, or serve ONNX models with a Python of 3.8 or later")]
    elif python != system_python:
        found = [Finding("board", NOTE, f"{name}, Python {_dotted(python)}: JetPack's own packages (TensorRT) can only "
                         f"be imported by Python {_dotted(system_python)}",
                         f"python{_dotted(system_python)} -m venv --system-site-packages .venv")]
    else:
        found = [Finding("board", GOOD, name)]
    return found + _power_mode(root)


def _power_mode(root: str) -> List[Finding]:
    """Modes are told apart by name: the numbers mean different things on different boards."""
    status = re.search(r"pmode:(\d+)", _read(root, "var/lib/nvpmodel/status"))
    modes = dict(re.findall(r"<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=(\S+)\s*>", _read(root, "etc/nvpmodel.conf")))
    if not status or not modes:
        return []
    name = modes.get(str(int(status.group(1))), f"number {int(status.group(1))}")
    strongest = next((number for number, label in sorted(modes.items()) if label.startswith("MAXN")), None)
    if strongest is None or name.startswith("MAXN"):
        return [Finding("power mode", GOOD, name)]
    return [Finding("power mode", NOTE, f"{name}: clocks and cores are capped; profiles hold for one mode only",
                    f"sudo nvpmodel -m {strongest}")]


def check_processor(root: str, cores: int) -> List[Finding]:
    """Usable cores, clock governors, clock caps, throttling."""
    folders = sorted(glob.glob(os.path.join(root, "sys/devices/system/cpu/cpu[0-9]*/cpufreq")))
    jetson = os.path.exists(os.path.join(root, "etc/nv_tegra_release"))
    governors: Dict[str, int] = {}
    capped = 0
    for folder in folders:
        governor = _read(folder, "scaling_governor").strip()
        governors[governor] = governors.get(governor, 0) + bool(governor)
        allowed, possible = _number(folder, "scaling_max_freq"), _number(folder, "cpuinfo_max_freq")
        capped += bool(allowed and possible and allowed < possible)
    slow = sorted(name for name in governors if name and name != "performance")
    if cores > 1:
        found = [Finding("processor", GOOD, f"{cores} usable cores")]
    else:
        found = [Finding("processor", NOTE, "1 usable core: the bus and every lane share it",
                         "give the container or virtual machine a second core")]
    if slow:
        found.append(Finding(
            "clocks", NOTE, f"governor {', '.join(slow)} on {counted(sum(governors[name] for name in slow), 'core')}: "
            "the first work after a pause runs on a low clock",
            "sudo jetson_clocks" if jetson else
            "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"))
    elif governors:
        found.append(Finding("clocks", GOOD, "governor performance"))
    else:
        found.append(Finding("clocks", GOOD, "not visible from here (virtual machine or container)"))
    if capped:
        found.append(Finding("clocks", NOTE, f"{counted(capped, 'core')} capped below the highest clock",
                             "raise scaling_max_freq to cpuinfo_max_freq, or choose a stronger power mode"))
    return found + _throttling(root)


def _throttling(root: str) -> List[Finding]:
    hot = []
    for folder in sorted(glob.glob(os.path.join(root, "sys/class/thermal/cooling_device*"))):
        kind = _read(folder, "type").strip()
        if "fan" not in kind.lower() and _number(folder, "cur_state") > 0:
            hot.append(kind)
    if not hot:
        return []
    return [Finding("heat", NOTE, f"cooling is active on {', '.join(sorted(set(hot)))}: clocks are lowered now",
                    "improve the cooling or choose a weaker power mode, then measure profiles again")]


def check_memory(root: str) -> List[Finding]:
    """Memory that can still be had."""
    match = re.search(r"MemAvailable:\s+(\d+) kB", _read(root, "proc/meminfo"))
    if not match:
        return [Finding("memory", NOTE, "/proc/meminfo does not say what is available")]
    available = int(match.group(1)) * 1024
    text = f"{format_size(available)} available"
    if available < MEMORY_BYTES_NONE:
        return [Finding("memory", WRONG, text, "end other programs (ps aux --sort=-rss | head), or add memory")]
    if available < MEMORY_BYTES_LITTLE:
        return [Finding("memory", NOTE, f"{text}: enough for small models only",
                        "sudo systemctl set-default multi-user.target (no desktop), or end other programs")]
    return [Finding("memory", GOOD, text)]


# --- Python -----------------------------------------------------------------------------------------------------------


def check_python(python: Tuple[int, int], versions: Mapping[str, Optional[str]]) -> List[Finding]:
    """The interpreter, and the packages the run time needs (module -> version, ``None`` = cannot be imported)."""
    name = f"Python {_dotted(python)}"
    if python < PYTHON_MIN:
        found = [Finding("python", WRONG, f"{name} is older than {_dotted(PYTHON_MIN)}",
                         f"use Python {_dotted(PYTHON_MIN)} to {_dotted(PYTHON_MAX)}")]
    elif python > PYTHON_MAX:
        found = [Finding("python", NOTE, f"{name} is newer than what is tested",
                         f"use Python {_dotted(PYTHON_MIN)} to {_dotted(PYTHON_MAX)}")]
    else:
        found = [Finding("python", GOOD, name)]
    present = [f"{PACKAGES[module]} {version}" for module, version in versions.items() if version is not None]
    absent = [PACKAGES[module] for module, version in versions.items() if version is None]
    if absent:
        found.append(Finding("packages", WRONG, f"cannot be imported: {', '.join(absent)}",
                             f"{sys.executable} -m pip install {' '.join(absent)}"))
    elif present:
        found.append(Finding("packages", GOOD, ", ".join(present)))
    return found


def check_core(core: compiled.Core, is_stale: bool) -> List[Finding]:
    """Whether the scheduler runs compiled, and from these sources."""
    again = f"EDGESERVE_COMPILE=1 {sys.executable} -m pip install ., from the checkout"
    if core.kind == "interpreted":
        return [Finding("core", GOOD, "interpreted (docs/compiled.md: how to compile it)")]
    if is_stale:
        return [Finding("core", WRONG, "compiled from other sources than those that lie beside it", again)]
    if core.kind == "mixed":
        return [Finding("core", NOTE, f"{core.compiled} of {core.of} modules compiled, the others interpreted", again)]
    return [Finding("core", GOOD, f"compiled ({core.of} modules)")]


def check_onnxruntime(builds: Mapping[str, str], providers: Optional[Sequence[str]], has_gpu: bool) -> List[Finding]:
    """``builds``: installed packages that bring the module; ``providers``: what it offers, ``None`` = no import."""
    if len(builds) > 1:
        return [Finding("onnxruntime", WRONG, f"{' and '.join(sorted(builds))} overwrite each other's files",
                        f"{sys.executable} -m pip uninstall -y {' '.join(sorted(builds))}, then install one of them")]
    if providers is None:
        return [Finding("onnxruntime", NOTE, "not installed: models with engine = 'onnx' cannot be served",
                        f"{sys.executable} -m pip install 'edgeserve-runtime[onnx]'")]
    text = f"{' '.join(f'{name} {version}' for name, version in builds.items()) or 'onnxruntime'}: " \
           f"{', '.join(providers)}"
    if has_gpu and not {"CUDAExecutionProvider", "TensorrtExecutionProvider"} & set(providers):
        return [Finding("onnxruntime", NOTE, f"{text}; this machine has an NVIDIA GPU that this build cannot use",
                        "install a build with CUDA (onnxruntime-gpu; on a Jetson, NVIDIA's own build) instead")]
    return [Finding("onnxruntime", GOOD, text)]


# --- the bus ----------------------------------------------------------------------------------------------------------


def check_bus(endpoint: str, user: int, key_file: str = "") -> List[Finding]:
    """What the server will ask of its endpoint: an ``ipc`` path's directory that others cannot get at, keys for ``tcp``
    beyond this machine."""
    try:
        transport, path = split_endpoint(endpoint)
        if transport != "ipc":
            prepare_endpoint(endpoint, bool(key_file))
        if transport == "tcp" and key_file:
            read_server_keys(key_file)
    except ConfigError as error:
        return [Finding("bus", WRONG, str(error), "correct [server] endpoint or curve_secret_key_file")]
    if transport != "ipc":
        return [Finding("bus", GOOD, endpoint)]
    directory = os.path.dirname(path) or "."
    try:
        about = os.stat(directory)
    except FileNotFoundError:
        return [_bus_parent(directory)]
    except OSError as error:
        return [Finding("bus", WRONG, f"{directory}: {error.strerror}", "set another [server] endpoint = 'ipc:///...'")]
    mode = stat.S_IMODE(about.st_mode)
    if not stat.S_ISDIR(about.st_mode):
        return [Finding("bus", WRONG, f"{directory} is no directory", f"rm {directory}")]
    if about.st_uid not in ((user,) if endpoint == default_endpoint() else (user, 0)):
        return [Finding("bus", WRONG, f"{directory} belongs to user {about.st_uid}, this is user {user}",
                        f"sudo chown {user} {directory}")]
    replaceable = mode & 0o022 and not mode & stat.S_ISVTX
    if replaceable or (mode & 0o077 and endpoint == default_endpoint()):
        return [Finding("bus", WRONG, f"{directory} has mode {mode:04o}: others could reach or replace the bus",
                        f"chmod 700 {directory}")]
    if mode & 0o077:
        return [Finding("bus", NOTE, f"{directory} has mode {mode:04o}: other users can see the bus",
                        f"chmod 700 {directory}, or set another [server] endpoint")]
    return [Finding("bus", GOOD, f"{endpoint} (mode {mode:04o})")]


def _bus_parent(directory: str) -> Finding:
    """The directory will be made when serving starts: can it?"""
    parent = directory
    while parent and not os.path.isdir(parent):
        parent = os.path.dirname(parent)
    if os.access(parent or "/", os.W_OK | os.X_OK):
        return Finding("bus", GOOD, f"{directory} will be made with mode 0700")
    return Finding("bus", WRONG, f"{directory} cannot be made: {parent} is not writable",
                   f"mkdir -p -m 700 {directory} (as a user who may), or set [server] endpoint")


# --- a configuration --------------------------------------------------------------------------------------------------


def check_config_file(path: str, cores: int) -> List[Finding]:
    """A configuration on this machine: would the server start with it, and are its models measured."""
    try:
        config = load_config(path)
    except ConfigError as error:
        return [Finding("configuration", WRONG, str(error), f"correct {path}")]
    found = [Finding("configuration", GOOD, f"{path}: {counted(len(config.apps), 'app')}, "
                     f"{counted(len(config.models), 'model')}")]
    threads = sum(lane.threads for lane in config.lanes.values())
    if threads > cores:
        found.append(Finding("lanes", NOTE, f"{counted(len(config.lanes), 'lane')} with {threads} threads on "
                             f"{counted(cores, 'core')}: times will vary", f"lower [lane.*] threads in {path}, or give "
                             "busy lanes a core of their own (cores = [...])"))
    return [*found, *check_models(config), *check_policies(config), *check_inputs(config), *check_predictors(config),
            *check_profiles(config)]


def check_models(config: Config) -> List[Finding]:
    """Can the engine of each model be made, with its options, file and functions? Nothing is loaded."""
    found = []
    for model in config.models.values():
        mend = f"correct [model.{model.name}] in {config.source}"
        try:
            make_engine(model, [lane_info(config, model_lanes(config, model)[0])], config.directory)
            for key, spec in (("function", model.function), ("options.example", model.options.get("example", ""))):
                if spec:
                    import_function(spec, config.directory, f"[model.{model.name}] {key}")
            if model.file or model.engine == "onnx":
                mend = _asset_mend(config.source) if model.file else mend
                model_path(model, config.directory)
        except (ConfigError, EngineError) as error:
            found.append(Finding("models", WRONG, str(error), mend))
    return found


def check_policies(config: Config) -> List[Finding]:
    """Can a scheduler be made: policies with their options, and the graphs of the apps?"""
    assumed = {(model.name, lane): {size: [NS_PER_MS] for size in model.batch}
               for model in config.models.values() for lane in model_lanes(config, model)}
    try:
        import_policies(config)
        build_scheduler(config, measured=assumed)
    except EdgeServeError as error:
        return [Finding("policies", WRONG, str(error), f"correct {config.source}, or a module beside it")]
    return []


def check_inputs(config: Config) -> List[Finding]:
    """Are the declared inputs of apps of a type that can be checked?"""
    found = []
    for app in config.apps.values():
        for name, tensor in app.inputs.items():
            try:
                InputRule(app.name, name, tensor)
            except ConfigError as error:
                found.append(Finding("inputs", WRONG, str(error), f"correct {config.source}"))
    return found


def check_predictors(config: Config) -> List[Finding]:
    """Can the functions that predict hints be imported? The server would not start without."""
    found = []
    for app in config.apps.values():
        try:
            load_predictors(app, config.directory)
        except (ConfigError, EngineError) as error:
            found.append(Finding("predictors", WRONG, str(error), f"correct [app.{app.name}.predict] in "
                                 f"{config.source}, or the module"))
        else:
            if app.predict:
                found.append(Finding("predictors", GOOD, f"{app.name}: {', '.join(app.predict)}"))
    return found


def check_profiles(config: Config) -> List[Finding]:
    """Which profiles of this machine match the configuration, and where the times of the other models come from."""
    directory = os.path.join(config.profiles_path, device_slug())
    matches, errors = matched_profiles(config)
    found = [Finding("profiles", NOTE, f"{error}. The server starts without this file",
                     f"edgeserve profile {config.source}") for error in errors]
    for match in matches:
        name, mend = match.profile.model, profile_command(config, match.profile.model)
        reasons = (*match.mismatches, *match.lacking)
        if reasons:
            found.append(Finding("profiles", NOTE, f"{name} does not match its profile: {'; '.join(reasons)}. "
                                 f"When the server starts, {instead(config, match)}", mend))
        if match.doubts and match.usable.lanes:
            found.append(Finding("profiles", NOTE, f"the profile of {name} may be off: {'; '.join(match.doubts)}",
                                 f"{profile_command(config, name, force=True)} (in a quiet moment)"))
    usable = {match.profile.model: match.usable for match in matches}
    sources: Dict[str, List[str]] = {}
    for model in config.models.values():
        sources.setdefault(times_from(config, model, usable.get(model.name)), []).append(model.name)
    told = "; ".join(f"{source}: {', '.join(sources[source])}" for source in (MEASURED, EXPECTED, AT_START)
                     if source in sources)
    if AT_START in sources:
        return [*found, Finding("profiles", NOTE, f"times of models in {directory}: {told}",
                                f"edgeserve profile {config.source}")]
    return [*found, Finding("profiles", GOOD, f"times of models in {directory}: {told or 'there is no model'}")]


def _asset_mend(path: str) -> str:
    assets = os.path.join(os.path.dirname(path), "assets.toml")
    return f"{sys.executable} -m edgeserve.tools.assets {assets}" if os.path.exists(assets) else f"correct {path}"


# --- all of it --------------------------------------------------------------------------------------------------------


def examine(config_path: str = "", root: str = "/") -> List[Finding]:
    """Look at this machine, and at a configuration if one is given."""
    python = (sys.version_info[0], sys.version_info[1])
    cores = usable_cores(root)
    endpoint, key_file = default_endpoint(), ""
    if config_path:
        try:
            config = load_config(config_path)
            endpoint = config.server.endpoint or endpoint
            key_file = config.curve_secret_key_path
        except ConfigError:
            pass  # reported by check_config_file below
    found = [*check_board(root, python), *check_processor(root, cores), *check_memory(root),
             *check_python(python, {module: _version(module) for module in PACKAGES}),
             *check_core(compiled.running(), compiled.is_stale()),
             *check_onnxruntime(installed(ONNXRUNTIME_BUILDS), _providers(), _has_gpu(root)),
             *check_bus(endpoint, os.getuid(), key_file)]
    return found + (check_config_file(config_path, cores) if config_path else [])


def usable_cores(root: str = "/") -> int:
    """Cores this process may run on, within the container's quota (control groups, version 2)."""
    cores = len(os.sched_getaffinity(0))
    quota = _read(root, "sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit():
        cores = min(cores, max(1, int(quota[0]) // int(quota[1])))
    return cores


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's arguments."""
    parser.add_argument("config", nargs="?", default="", metavar="CONFIG", help="also look at this configuration")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def main(args: argparse.Namespace) -> int:
    """Print the findings; 1 when something is wrong."""
    found = examine(args.config)
    if args.json:
        print(json.dumps([asdict(finding) for finding in found], indent=1))
    else:
        print(report(found))
    return 1 if any(finding.status == WRONG for finding in found) else 0


def report(found: Sequence[Finding]) -> str:
    """The findings as text, each mend below what it mends."""
    lines = []
    for finding in found:
        lines.append(f"{finding.status:5}  {finding.subject:13}  {finding.text}")
        if finding.mend:
            lines.append(f"{'':5}  {'':13}  -> {finding.mend}")
    count = {status: sum(finding.status == status for finding in found) for status in (WRONG, NOTE)}
    lines.append(f"{count[WRONG]} wrong, {count[NOTE]} to improve")
    return "\n".join(lines)


# --- reading ----------------------------------------------------------------------------------------------------------


def _read(root: str, path: str) -> str:
    """A small file's text; ``""`` when it is absent or may not be read: then it says nothing about this machine."""
    try:
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return ""


def _number(root: str, path: str) -> int:
    text = _read(root, path).strip()
    return int(text) if text.isdigit() else 0


def _dotted(version: Tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


def _version(module: str) -> Optional[str]:
    try:
        return str(getattr(importlib.import_module(module), "__version__", "")) or \
            installed([PACKAGES[module]]).get(PACKAGES[module], "of unknown version")
    except ImportError:
        return None


def _providers() -> Optional[List[str]]:
    try:
        return list(importlib.import_module("onnxruntime").get_available_providers())
    except ImportError:
        return None


def _has_gpu(root: str) -> bool:
    return any(os.path.exists(os.path.join(root, path)) for path in ("dev/nvidia0", "dev/nvhost-gpu", "dev/nvgpu"))
