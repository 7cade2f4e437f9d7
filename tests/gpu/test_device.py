"""Readings of a real GPU, compared with ``nvidia-smi``; and the doctor's check of its driver."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from edgeserve.commands.doctor.finding import GOOD
from edgeserve.commands.doctor.probes import CUDA, judge_cuda, probe
from edgeserve.device.boards import detect_board
from edgeserve.device.nvml import NvmlSource
from edgeserve.device.sources import sources_for

BOARD = detect_board()
HERE = NvmlSource()

needs_nvml = pytest.mark.skipif(bool(HERE.trouble), reason=HERE.trouble or "there is a GPU")


def queried(*fields):
    """``nvidia-smi``'s numbers of the first GPU, None where it gives none."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip("nvidia-smi is not installed")
    done = subprocess.run(
        ["nvidia-smi", "--id=0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    words = [word.strip() for word in done.stdout.strip().split(",")]
    return [float(word) if word.replace(".", "", 1).isdigit() else None for word in words]


@needs_nvml
def test_a_reading_agrees_with_nvidia_smi():
    total_mib, clock_max_mhz, cap_w = queried("memory.total", "clocks.max.sm", "power.limit")
    state = HERE.read(0)
    assert state.gpu_memory_total_bytes == pytest.approx(total_mib * 2**20, rel=0.01)
    assert state.gpu_clock_top_hz == clock_max_mhz * 1e6
    assert state.power_cap_w == pytest.approx(cap_w, rel=0.01)
    assert 0 < state.gpu_memory_free_bytes <= state.gpu_memory_total_bytes
    assert 0 < state.gpu_clock_hz <= state.gpu_clock_top_hz
    assert 0 <= state.gpu_load <= 1
    assert 0 < state.power_w < 2 * cap_w
    assert 0 < state.temperature_c < 120
    assert state.throttles is not None


@needs_nvml
def test_the_sources_of_this_machine_begin_with_its_gpu():
    assert BOARD.kind.slug != "cpu"
    sources = sources_for(BOARD)
    try:
        if not BOARD.is_jetson:
            assert sources[0].read(0).power_w is not None
    finally:
        for source in sources:
            source.close()


@pytest.mark.skipif(BOARD.kind.slug == "cpu", reason="this machine has no NVIDIA GPU")
def test_the_driver_copies_there_and_back_in_a_process_of_its_own():
    (finding,) = judge_cuda(probe(CUDA), BOARD)
    assert finding.status == GOOD, finding
