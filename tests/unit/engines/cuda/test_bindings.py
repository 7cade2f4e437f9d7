"""NVIDIA's real binding, and none, over a driver written in C: that it is called as the library wants it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LIBRARY = Path(__file__).resolve().parents[3] / "lib"
VERSIONS = (11040,) if sys.version_info < (3, 10) else (12060, 13000)  # the drivers of JetPack 5, of 6 and of 7
COMPILER = shutil.which("cc") or shutil.which("gcc")

SCENE = """
import ctypes, sys, numpy as np
if sys.argv[2] == "plain":  # as where no binding is installed
    sys.modules["cuda"] = None
from edgeserve.engines.cuda.device import CudaDevice
from edgeserve.engines.cuda.driver import open_driver
from edgeserve.engines.cuda.staging import Staged
from edgeserve.errors import DeviceLost, OutOfMemory

double = ctypes.CDLL("libcuda.so.1")
driver, version = open_driver("cuda-bindings"), int(sys.argv[1])
assert driver.version() == (version // 1000, version % 1000 // 10) and driver.device_count() == 1
device = CudaDevice(driver)
info = device.info
assert (info.name, info.compute_capability, info.integrated, info.multiprocessors) == ("C double", (8, 7), True, 16)
assert device.memory() == (1 << 19, 1 << 20)
with device.current():
    stream, second = device.stream(), device.stream(priority=7)
    source, back, buffer, other = device.pinned(64), device.pinned(64), device.buffer(64), device.buffer(64)
    source.array((16,), np.float32)[:] = range(16)
    stream.to_device(buffer, source)
    stream.on_device(other, buffer)
    stream.to_host(back, other)
    stream.synchronize()
    assert stream.done() and back.array((16,), np.float32).tolist() == list(range(16))
    stream.fill(buffer, 7, 8)
    assert not device.is_foreign(buffer.pointer)
    shared = Staged(device, 16)
    assert shared.mapped and shared.pointer == shared.host.host_pointer
    start, end = device.event(), device.event(timing=False)
    start.record(stream)
    end.record(stream)
    second.wait(end)
    end.synchronize()
    # The driver of CUDA 12.6 has no cuEventElapsedTime_v2, which bindings of CUDA 13 ask for (2.5 here).
    assert end.done() and end.elapsed_ms(start) in ((1.5,) if version < 12080 or sys.argv[2] == "plain" else (1.5, 2.5))
    with stream.captured() as captured:
        stream.to_device(buffer, source)
    captured.graph.launch(stream)
    try:
        device.buffer(1 << 21)
    except OutOfMemory as error:
        assert (error.asked_bytes, error.free_bytes) == (1 << 21, 1 << 19), error
    double.cuDoubleFail(700)
    try:
        stream.synchronize()
    except DeviceLost as error:
        name = "CUDA_ERROR_DOUBLE" if sys.argv[2] == "plain" else "CUDA_ERROR_ILLEGAL_ADDRESS"
        assert f"{name} (700)" in str(error), error
    else:
        raise AssertionError("the sticky error was not seen")
    double.cuDoubleFail(600)
    assert not end.done()
device.close()
assert double.cuDoubleAlive() == 0, double.cuDoubleAlive()
print("all calls made")
"""


pytestmark = pytest.mark.skipif(
    COMPILER is None or not sys.platform.startswith("linux"), reason="needs a C compiler on Linux"
)


def beside_the_double(folder, version, *words):
    """A Python of its own where the driver's library is the double."""
    source, flags = str(LIBRARY / "libcuda_double.c"), ["-shared", "-fPIC", "-Wall", "-ldl", f"-DVERSION={version}"]
    subprocess.run([str(COMPILER), *flags, "-o", str(folder / "libcuda.so.1"), source], check=True, timeout=60)
    root = str(LIBRARY.parents[1])
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=root,
        env={**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": os.pathsep.join([root, *sys.path])},
    )


@pytest.mark.parametrize(
    ("binding", "version"), [*[("nvidia", version) for version in VERSIONS], ("plain", 11040), ("plain", 13000)]
)
def test_the_library_is_called_as_it_wants(tmp_path, binding, version):
    if binding == "nvidia":
        pytest.importorskip("cuda", reason="pip install 'edgeserve-runtime[gpu]'")
    done = beside_the_double(tmp_path, version, "-c", SCENE, str(version), binding)
    assert "all calls made" in done.stdout, done.stdout + done.stderr


COLLECT = """
import sys, pytest
sys.modules["cuda"] = None
sys.exit(pytest.main(["tests/gpu", "--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]))
"""


def test_tests_for_a_gpu_are_collected_where_the_drivers_library_is_alone(tmp_path):
    """As on a board without NVIDIA's binding: a file that fails would end the whole report."""
    done = beside_the_double(tmp_path, 13000, "-c", COLLECT)
    assert done.returncode == 0, done.stdout + done.stderr
