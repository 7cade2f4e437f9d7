"""Everything that needs a GPU, on this machine: the tests of ``tests/gpu``, the GPU benches, and a report.

    make gpu-check [GPU_PYTHON=PYTHON] [ARGS=...]
    python scripts/gpu_check.py [--look] [--quick] [--out DIR] [--only overhead,profile] [--rehearse]

It needs a Python that sees the GPU's libraries: ``make`` makes an environment of that kind (``dev/gpu_env.py``).

The bench ``tensorrt`` needs TensorRT, cuda-bindings and the ``onnx`` package, the others torch with CUDA; those whose
libraries are missing are left out, with the reason. What else is there (ONNX Runtime with CUDA) is tested too. Writes
``gpu_check_DEVICE.json`` and ``.md`` to ``research/results``, or to ``--out``.

Where no GPU can be used it says where it looked, what it would run, and ends with exit status 3. ``--look`` says that,
or what it found, and runs nothing. A test that failed
or a check that falls short: 1. ``--rehearse`` runs the benches on the CPU, small, to show that they work: it writes
nothing unless ``--out`` is given and says nothing about a GPU.
"""

from __future__ import annotations

import argparse
import glob
import importlib
import importlib.util
import json
import os
import platform
import re
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, not an installed one
sys.path.insert(0, str(Path(__file__).resolve().parents[0]))  # scripts/

from lib.checks import Checks
from lib.gpu_bounds import check
from lib.gpu_tests import run_tests

from edgeserve.config.machine import slug
from edgeserve.device.boards import detect_board
from edgeserve.device.monitor import Monitor
from edgeserve.device.sources import sources_for
from edgeserve.engines.cuda.device_info import device_info
from edgeserve.engines.cuda.driver import open_driver
from edgeserve.engines.tensorrt.library import open_library
from edgeserve.errors import EngineError

ROOT = Path(__file__).resolve().parents[1]
NO_GPU = 3
BENCHES = {
    "overhead": "the torch engine beside the bare call, by batch size",
    "overlap": "batches with large inputs and outputs, one or two launched at a time",
    "profile": "the device's time of a batch by its size",
    "predictability": "one batch at a time against 2 to 16 at once (Clockwork, Figure 2)",
    "lanes": "pictures every 33 ms beside large batches: on one lane, two, with priority, with a share of the GPU each",
    "sizes": "what a change of the batch size costs: torch, and ONNX Runtime where it is for CUDA",
    "serve": "a runtime with deadlines beside a thread that batches what waits: closed loops, loads up to 150 %",
    "tensorrt": "the tensorrt engine beside a bare loop of execute_async_v3 and trtexec, on one plan",
    "sanitize": "NVIDIA's compute-sanitizer around kernels in TensorRT's place: wrong addresses, and races",
}


def libraries() -> Dict[str, str]:
    """Library -> version, or why it cannot be used."""
    found = {}
    for name in ("cuda.bindings", "cuda.cuda", "torch", "onnxruntime", "tensorrt"):
        try:
            module = importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 a native library may fail in any way
            found[name] = f"not usable: {type(error).__name__}: {error}"
        else:
            found[name] = str(getattr(module, "__version__", getattr(module, "VERSION_TEXT", "installed")))
    if "not usable" not in found["onnxruntime"]:
        import onnxruntime

        found["onnxruntime"] += f" ({', '.join(onnxruntime.get_available_providers())})"
    if "not usable" not in found["torch"]:
        import torch

        found["torch"] += (
            f" (for CUDA {torch.version.cuda}, {'with' if torch.cuda.is_available() else 'without'} a device)"
        )
    return found


def device_of_torch() -> Optional[Dict[str, Any]]:
    """The report of torch on its first CUDA device; ``None`` without one."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    about = torch.cuda.get_device_properties(0)
    return {
        "name": about.name,
        "compute_capability": f"{about.major}.{about.minor}",
        "multiprocessors": about.multi_processor_count,
        "memory_bytes": about.total_memory,
        "integrated": bool(getattr(about, "is_integrated", False)),
        "cuda": torch.version.cuda,
    }


def device_of_driver() -> Any:
    """The report of EdgeServe's CUDA module on the first device, or why there is none."""
    try:
        return device_info(open_driver(), 0)._asdict()
    except EngineError as error:
        return str(error)


def device_here() -> Optional[Dict[str, Any]]:
    """The first GPU, as torch knows it, else as the driver does; ``None`` without one."""
    found = device_of_torch()
    if found is None:
        driver = device_of_driver()
        found = None if isinstance(driver, str) else {**driver, "memory_bytes": driver["total_bytes"]}
    return found


def why_not(name: str) -> str:
    """The part that a bench lacks here, ``""`` when nothing."""
    if name == "sanitize":
        from lib.sanitize_bench import sanitizer

        without_driver = device_of_driver()
        if isinstance(without_driver, str):
            return without_driver
        return "" if sanitizer() else "compute-sanitizer is not here; it comes with CUDA's toolkit"
    if name != "tensorrt":
        return "" if device_of_torch() is not None else "torch has no CUDA device here"
    if isinstance(device_of_driver(), str):
        return f"no driver for TensorRT: {device_of_driver()}"
    missing = [module for module in ("onnx",) if importlib.util.find_spec(module) is None]
    try:
        open_library("auto")
    except EngineError as error:
        missing.append(str(error))
    return "; ".join(missing)


QUANTITIES = (
    "gpu_clock_hz",
    "gpu_clock_min_hz",
    "gpu_clock_max_hz",
    "gpu_clock_top_hz",
    "emc_clock_hz",
    "temperature_c",
    "temperature_soft_c",
    "power_w",
    "power_cap_w",
    "power_mode",
    "throttles",
)


def power_and_clocks(root: str = "/") -> Dict[str, Any]:
    """The readings of the server's own sensors of clocks, heat and power."""
    sources = sources_for(detect_board(root), root)
    monitor = Monitor("here", sources, lambda state: None, time.monotonic_ns, lambda: 0)
    try:
        state = monitor.turn()
    finally:
        monitor.stop()
    return {name: getattr(state, name) for name in QUANTITIES if getattr(state, name) is not None}


def page(report: Mapping[str, Any], checks: Checks) -> str:
    """The report for people."""
    lines = [
        f"# GPU check: {report['device']['name']}",
        "",
        f"`{report['command']}`, {report['day']}. Written by `scripts/gpu_check.py`; the numbers are in the JSON "
        "file beside it.",
        "",
        "| | |",
        "| --- | --- |",
    ]
    lines += [f"| {key} | {value} |" for key, value in {**report["device"], **report["libraries"]}.items()]
    for moment, seen in report.get("clocks", {}).items():
        told = ", ".join(f"{name} {value}" for name, value in seen.items()) or "nothing is told"
        lines.append(f"| clocks {moment} | {told} |")
    tests = report["tests"]
    if tests is not None:
        lines += [
            "",
            "## Tests",
            "",
            f"{tests['passed']} passed, {len(tests['failed'])} failed, {sum(tests['skipped'].values())} skipped.",
            "",
        ]
        lines += [f"* failed: {text}" for text in tests["failed"]]
        lines += [f"* skipped ({count}): {why}" for why, count in tests["skipped"].items()]
    for name, result in report["results"].items():
        rows = result["rows"]
        lines += [
            "",
            f"## {name.capitalize()}: {BENCHES[name]}",
            "",
            "| " + " | ".join(rows[0]) + " |",
            "| ---: " * len(rows[0]) + "|",
        ]
        lines += ["| " + " | ".join(map(shown, row.values())) + " |" for row in rows]
    lines += [f"\nNot run: {name} ({why})." for name, why in report.get("left_out", {}).items()]
    lines += ["", "## Checks", "", "| check | value | must be | |", "| --- | ---: | ---: | --- |"]
    lines += [
        f"| {row.name} | {row.value:.3g} | {row.bound} | {'holds' if row.holds else '**falls short**'} |"
        for row in checks.rows
    ]
    return "\n".join(lines) + "\n"


def shown(value: Any) -> str:
    """A cell of a table; what could not be measured is a dash."""
    return "-" if value is None else value if isinstance(value, str) else f"{value:.4g}"


NODES = ("/dev/nvidia*", "/dev/nvhost-gpu", "/dev/nvgpu", "/dev/dxg", "/proc/driver/nvidia/version")
"""Files by which a driver of NVIDIA shows: a card's, a Jetson's, Windows'."""


def say_what_would_run(names: Sequence[str], found: Mapping[str, str]) -> int:
    """No GPU: what is missing, and what it would have done."""
    print("No GPU can be used here. Looked for:")
    print(f"  libraries of {sys.executable} (GPU_PYTHON chooses another Python, whose libraries are seen, too)")
    for name, version in found.items():
        print(f"  {name}: {version}")
    print(f"  CUDA by the driver: {device_of_driver()}")
    nodes = [path for pattern in NODES for path in sorted(glob.glob(pattern))]
    print(f"  device files ({', '.join(NODES)}): {', '.join(nodes) or 'none'}")
    print("\nOn a machine with one, this script runs:")
    print("  tests/gpu: the contract of torch, onnx on CUDA and TensorRT, and tensorrt (or kernels); CUDA itself")
    for name in names:
        print(f"  {name}: {BENCHES[name]}")
    print(
        "and writes research/results/gpu_check_DEVICE.json and .md. It needs torch with CUDA, or TensorRT; "
        "--rehearse runs torch's benches on the CPU."
    )
    return NO_GPU


def run_benches(names: Sequence[str], kind: str, quick: bool) -> Dict[str, Any]:
    """The results of the benches by name."""
    from lib.lane_timing import Setting

    calls: Dict[str, Callable[[Setting], Dict[str, Any]]] = {}
    if "tensorrt" in names:
        from lib.trt_bench import tensorrt

        calls["tensorrt"] = tensorrt
    if "serve" in names:
        from lib.serve_bench import serve

        calls["serve"] = serve
    if "sizes" in names:
        from lib.size_bench import sizes

        calls["sizes"] = sizes
    if "sanitize" in names:
        from lib.sanitize_bench import sanitize

        calls["sanitize"] = sanitize
    if set(names) - set(calls):
        from lib.gpu_benches import BENCHES as OF_TORCH

        calls.update(OF_TORCH)
    small = kind == "cpu"
    setting = Setting(kind, 0, 32 if small else 224, 20 if small else (100 if quick else 1000))
    results = {}
    for name in names:
        print(f"{name}: {BENCHES[name]}", flush=True)
        results[name] = calls[name](setting)
        for row in results[name]["rows"]:
            print("  " + ", ".join(f"{key} {shown(value)}" for key, value in row.items()), flush=True)
    return results


def main(words: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--look", action="store_true", help="say what is found, run nothing")
    parser.add_argument("--quick", action="store_true", help="a tenth of the runs")
    parser.add_argument("--out", metavar="DIR", help="where the report goes (default: research/results)")
    parser.add_argument("--only", default="", metavar="B[,B]", help=f"of the benches: {', '.join(BENCHES)}; no tests")
    parser.add_argument("--rehearse", action="store_true", help="the benches on the CPU, small")
    arguments = parser.parse_args(words)
    beside = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *beside])  # of the tests, and of processes of engines
    names = [name for name in arguments.only.split(",") if name] or list(BENCHES)
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        parser.error(f"--only {unknown[0]}: expected of {', '.join(BENCHES)}")
    found, device = libraries(), device_here()
    left_out = dict.fromkeys(("tensorrt", "sanitize"), "a rehearsal has no GPU") if arguments.rehearse else {}
    if device is not None and not arguments.rehearse:
        left_out = {name: why for name in names for why in [why_not(name)] if why}
    if arguments.rehearse:
        device = {"name": f"rehearsal on the CPU ({platform.machine()}): says nothing about a GPU"}
    if device is None:
        return say_what_would_run(names, found)
    print(f"{device['name']}: {', '.join(f'{name} {version}' for name, version in found.items())}", flush=True)
    for name in [name for name in names if name in left_out]:
        print(f"{name} is left out: {left_out[name]}", flush=True)
    if arguments.look:
        return 0
    names = [name for name in names if name not in left_out]
    tests = None if arguments.only or arguments.rehearse else run_tests(arguments.quick)
    if tests is not None:
        print(
            f"tests/gpu: {tests['passed']} passed, {len(tests['failed'])} failed, "
            f"{sum(tests['skipped'].values())} skipped",
            *tests["failed"],
            sep="\n  ",
            flush=True,
        )
    before = power_and_clocks()
    results = run_benches(names, "cpu" if arguments.rehearse else "cuda", arguments.quick)
    report: Dict[str, Any] = {
        "device": device,
        "cuda_module": device_of_driver(),
        "libraries": found,
        "day": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python scripts/gpu_check.py", *(words if words is not None else sys.argv[1:])]),
        "clocks": {"before": before, "after": power_and_clocks()},
        "tests": tests,
        "left_out": left_out,
        "results": results,
    }
    checks = Checks("scripts/gpu_check.py")
    if tests is not None:
        checks.at_most("tests of tests/gpu that failed", len(tests["failed"]), 0)
    if not arguments.rehearse:
        check(report["results"], checks)
    return write(report, checks, arguments)


def write(report: Mapping[str, Any], checks: Checks, arguments: argparse.Namespace) -> int:
    """The two files, and the table of checks."""
    if arguments.rehearse and not arguments.out:
        return checks.finish(None, {"device": report["device"]["name"]})
    folder = Path(arguments.out) if arguments.out else ROOT / "research" / "results"
    name = "rehearsal" if arguments.rehearse else re.sub("-", "_", slug(report["device"]["name"]))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"gpu_check_{name}.json"
    path.with_suffix(".md").write_text(page(report, checks), encoding="utf-8")
    status = checks.finish(
        str(path),
        {"device": report["device"]["name"]},
        **{key: value for key, value in json.loads(json.dumps(report)).items() if key != "command"},
    )
    print(f"wrote {path} and {path.with_suffix('.md').name}")
    return status


if __name__ == "__main__":
    sys.exit(main())
