"""The GPU check where there is no GPU, and what it makes of tests and numbers."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import gpu_check
import pytest
from dev import gpu_env
from lib.checks import Checks


def test_without_a_gpu_it_says_what_it_would_run_and_ends_with_a_status_of_its_own(monkeypatch, capsys):
    monkeypatch.setattr(gpu_check, "device_here", lambda: None)
    assert gpu_check.main([]) == gpu_check.NO_GPU == 3
    said = capsys.readouterr().out
    for text in (
        "No GPU can be used here",
        "tests/gpu",
        *gpu_check.BENCHES,
        "research/results/gpu_check_DEVICE.json",
    ):
        assert text in said


def test_a_bench_that_does_not_exist_is_refused(capsys):
    with pytest.raises(SystemExit):
        gpu_check.main(["--only", "overhed"])
    assert "--only overhed: expected of overhead" in capsys.readouterr().err


def test_a_runtime_that_falls_behind_the_greedy_thread_or_answers_wrongly_is_told():
    rows = [
        {"load": "64 in turn", "ratio": 0.9, "urgent_in_time": None, "promises_kept": None},
        {"load": "90% of its peak", "ratio": 0.97, "urgent_in_time": 0.99, "promises_kept": 0.8},
    ]
    checks = Checks("scripts/gpu_check.py")
    gpu_check.check({"serve": {"rows": rows, "wrong_answers": 1}}, checks)
    assert [row.holds for row in checks.rows] == [False] * 5


@pytest.mark.parametrize(
    ("found", "passed", "faults", "holds"), [(0, 1, 0, True), (3, 1, 3, False), (0, 0, None, False)]
)
def test_what_the_sanitizer_found_is_told_and_tests_that_did_not_run_prove_nothing(
    tmp_path, monkeypatch, found, passed, faults, holds
):
    from lib import sanitize_bench

    program = tmp_path / "compute-sanitizer"
    said = f"{passed} passed\\n========= ERROR SUMMARY: {found} errors\\n" if passed else "1 skipped\\nERROR SUMMARY: 0"
    program.write_text(f"#!/bin/sh\nprintf '{said}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    rows = sanitize_bench.sanitize(None)["rows"]
    assert rows == [{"tool": tool, "faults": faults} for tool in ("memcheck", "racecheck")]
    checks = Checks("scripts/gpu_check.py")
    gpu_check.check({"sanitize": {"rows": rows}}, checks)
    assert [row.holds for row in checks.rows] == [holds] * 2


def test_clocks_are_those_that_the_server_reads(tmp_path):
    from board_trees import AGX_ORIN

    seen = gpu_check.power_and_clocks(AGX_ORIN.plant(tmp_path / "root"))
    assert seen["gpu_clock_hz"] == AGX_ORIN.state["gpu_clock_hz"]
    assert seen["throttles"] and seen["power_w"] > 0 and seen["power_mode"] == "MAXN"


SAID = """[I] === Performance summary ===
[I] Throughput: 745.2 qps
[I] Latency: min = 1.29 ms, max = 1.51 ms, mean = 1.34 ms, median = 1.33 ms, percentile(90%) = 1.36 ms
[I] GPU Compute Time: min = 1.2 ms, max = 1.4 ms, mean = 1.23 ms, median = 1.22 ms
"""


@pytest.mark.parametrize("version", ["8.5", "10.3", "11.4"])
def test_the_tensorrt_bench_runs_every_way_beside_the_bare_loop_and_trtexec(version, monkeypatch, tmp_path):
    pytest.importorskip("onnx", reason="the onnx package makes the network; pip install -e '.[test]'")
    pytest.importorskip("onnxruntime", reason="the double computes with onnxruntime; pip install -e '.[onnx]'")
    import trt_worlds
    from lib import trt_bench
    from lib.lane_timing import Setting

    program = tmp_path / "trtexec"
    program.write_text(f"#!/bin/sh\ncat << 'EOF'\n{SAID}EOF\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(trt_bench, "ROUNDS", 1)
    with trt_worlds.world(monkeypatch, version) as cuda:
        rows = trt_bench.tensorrt(Setting("cuda", 0, 16, 4), (4, 4))["rows"]
        assert cuda.leaks() == []
    precisions = 1 if version == "11.4" else 2
    assert len(rows) == precisions * len(trt_bench.WAYS)
    assert {row["lanes"] for row in rows} == {row["depth"] for row in rows} == {1.0, 2.0}
    assert all(row["ms"] > 0 and row["bare_ms"] > 0 and row["trtexec_ms"] == 1.33 for row in rows)


BINDING = """
import types
CUstreamCaptureMode = types.SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)
FACTS = {"COMPUTE_CAPABILITY_MAJOR": 8, "COMPUTE_CAPABILITY_MINOR": 7, "MULTIPROCESSOR_COUNT": 16}
class CUdevice_attribute:
    pass
class Named(type(CUdevice_attribute)):
    def __getattr__(self, name):
        return name
CUdevice_attribute = Named("CUdevice_attribute", (), {})
def cuInit(flags): return (0,)
def cuDriverGetVersion(): return 0, 12060
def cuDeviceGetCount(): return 0, 1
def cuDeviceGet(index): return 0, index
def cuDeviceGetName(size, device): return 0, b"Orin of a test"
def cuDeviceGetAttribute(key, device): return 0, FACTS.get(key.replace("CU_DEVICE_ATTRIBUTE_", ""), 1)
def cuDeviceTotalMem(device): return 0, 32 << 30
"""
"""CUDA's binding as far as a look at the device goes."""

ROOT = Path(gpu_check.__file__).resolve().parents[1]


def looked(folder, python):
    """The libraries that ``make gpu-check`` finds with this Python."""
    command = ["make", "gpu-check", f"GPU_PYTHON={python}", f"GPU_VENV={folder}", "ARGS=--look"]
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "MAKEFLAGS", "MFLAGS")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def system(tmp_path):
    """An environment such as ``jetson/setup.sh`` makes: a Python whose packages no other sees. It has those of this
    one, so that nothing is installed."""
    folder = tmp_path / "system"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    own = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "tests.pth").write_text("\n".join(own), encoding="utf-8")
    return folder / "bin" / "python", packages


@pytest.mark.nightly
def test_the_libraries_of_the_python_that_is_named_are_seen(system, tmp_path):
    python, packages = system
    status, said, wrong = looked(tmp_path / "venv", python)
    assert status != 0 and "Error 3" in wrong
    assert "cuda.bindings: not usable: ModuleNotFoundError" in said and "device files" in said
    assert f"libraries of {tmp_path}/venv/bin/python (GPU_PYTHON chooses another Python" in said
    (packages / "cuda" / "bindings").mkdir(parents=True)
    for name, text in (("__init__", ""), ("bindings/__init__", ""), ("bindings/driver", BINDING)):
        (packages / "cuda" / f"{name}.py").write_text(text, encoding="utf-8")
    status, said, wrong = looked(tmp_path / "venv", python)
    assert status == 0, said + wrong
    assert "Orin of a test: cuda.bindings" in said
    assert "overhead is left out: torch has no CUDA device here" in said


@pytest.mark.nightly
def test_the_checkout_is_checked_and_not_what_is_installed(system, tmp_path):
    python, packages = system
    (packages / "edgeserve").mkdir()
    (packages / "edgeserve" / "__init__.py").write_text("raise ImportError('the installed one')", encoding="utf-8")
    status, said, wrong = looked(tmp_path / "venv", python)
    assert "Looked for" in said and "the installed one" not in said + wrong


@pytest.mark.parametrize(
    ("file", "text", "version", "brought"),
    [
        ("none", "", (3, 12), []),
        (
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun",
            (3, 12),
            ["cuda-bindings>=12.6"],
        ),
        (
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.10  Sun",
            (3, 12),
            ["cuda-bindings>=12.6,<13"],
        ),
        (
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.1.2  Release",
            (3, 11),
            ["cuda-bindings>=12.6"],
        ),
        ("dev/nvhost-gpu", "", (3, 10), ["cuda-bindings>=12.6,<13"]),
        ("dev/nvhost-gpu", "", (3, 8), ["cuda-python==11.8.2"]),
        ("dev/dxg", "", (3, 12), ["cuda-bindings>=12.6,<13"]),
    ],
)
def test_the_binding_that_belongs_to_the_driver(tmp_path, file, text, version, brought):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    assert gpu_env.binding_for(str(tmp_path), version) == brought
