"""Libraries of GPUs, looked at in child processes: a broken driver may end the process or never answer.

Each probe is a small program that prints one JSON object. Engines that bring a ``diagnose`` module speak for themselves
(:mod:`edgeserve.commands.doctor.engines`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Dict, List

from edgeserve.commands.doctor.finding import Finding, good, note, wrong
from edgeserve.device.boards import Machine

PROBE_S = 60.0  # the first import of torch on a cold drive takes half of that

CUDA = r"""
import ctypes, json
found = {}
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    print(json.dumps({"absent": str(error)})); raise SystemExit
def ask(name, *args):
    status = getattr(cuda, name)(*args)
    if status:
        print(json.dumps({**found, "failed": name, "status": status})); raise SystemExit
ask("cuInit", 0)
value = ctypes.c_int()
ask("cuDriverGetVersion", ctypes.byref(value)); found["driver"] = value.value
ask("cuDeviceGetCount", ctypes.byref(value)); found["devices"] = value.value
if value.value:
    name = ctypes.create_string_buffer(256); ask("cuDeviceGetName", name, 256, 0); found["name"] = name.value.decode()
    for key, number in (("major", 75), ("minor", 76), ("integrated", 18), ("mapped", 19), ("register", 99)):
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), number, 0) == 0:
            found[key] = value.value
    context = ctypes.c_void_p(); ask("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    ask("cuCtxSetCurrent", context)
    pointer = ctypes.c_uint64(); ask("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(1 << 16))
    there = bytes(range(256)) * 256; back = ctypes.create_string_buffer(1 << 16)
    ask("cuMemcpyHtoD_v2", pointer, there, ctypes.c_size_t(1 << 16))
    ask("cuMemcpyDtoH_v2", back, pointer, ctypes.c_size_t(1 << 16))
    ask("cuMemFree_v2", pointer); found["round_trip"] = back.raw == there
print(json.dumps(found))
"""

TORCH = r"""
import json
try:
    import torch
except ImportError as error:
    print(json.dumps({"absent": str(error)})); raise SystemExit
found = {"version": torch.__version__, "cuda": torch.version.cuda, "available": torch.cuda.is_available()}
if found["available"]:
    found["capability"] = ".".join(map(str, torch.cuda.get_device_capability(0)))
    found["architectures"] = torch.cuda.get_arch_list()
    try:
        found["kernel"] = float((torch.ones(8, device="cuda") * 2).sum().item()) == 16.0
    except RuntimeError as error:
        found["error"] = str(error).splitlines()[0]
print(json.dumps(found))
"""

ONNXRUNTIME = r"""
import base64, json
try:
    import onnxruntime
except ImportError as error:
    print(json.dumps({"absent": str(error)})); raise SystemExit
import numpy
name = "CUDAExecutionProvider"
found = {"version": onnxruntime.__version__, "offered": name in onnxruntime.get_available_providers()}
if found["offered"]:  # y = MatMul(x, x) of two rows and columns, opset 13
    text = "CAcSADpAChEKAXgKAXgSAXkiBk1hdE11bBIBZ1oTCgF4Eg4KDAgBEggKAggCCgIIAmITCgF5Eg4KDAgBEggKAggCCgIIAkIECgAQDQ=="
    model = base64.b64decode(text)
    try:
        session = onnxruntime.InferenceSession(model, providers=[name])
        found["used"] = session.get_providers()[0] == name
        twos = numpy.full((2, 2), 2, numpy.float32)
        found["kernel"] = bool((session.run(None, {"x": twos})[0] == 8).all())
    except Exception as error:
        found["error"] = str(error).splitlines()[0]
print(json.dumps(found))
"""


LLAMA = r"""
import json
try:
    import llama_cpp
except ImportError as error:
    print(json.dumps({"absent": str(error)})); raise SystemExit
print(json.dumps({"version": llama_cpp.__version__, "gpu": bool(llama_cpp.llama_supports_gpu_offload())}))
"""


def probe(program: str, limit_s: float = PROBE_S) -> Dict[str, Any]:
    """The output of a probe; ``{"crashed": why}`` when it printed no object."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return {"crashed": f"no answer within {limit_s:.0f} s"}
    lines = done.stdout.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        words = done.stderr.strip().splitlines()
        return {"crashed": f"ended with status {done.returncode}{f': {words[-1]}' if words else ''}"}
    return found


def main() -> int:
    """Return 0 if a kernel of ONNX Runtime runs on the GPU here, for ``jetson/setup.sh``."""
    return 0 if probe(ONNXRUNTIME).get("kernel") else 1


def judge_cuda(found: Dict[str, Any], board: Machine) -> List[Finding]:
    """The driver, its device and a copy there and back."""
    mend = (
        "sudo apt install nvidia-jetpack, then reboot"
        if board.is_jetson
        else "install the NVIDIA driver (nvidia-smi must show the GPU), then reboot"
    )
    if "absent" in found:
        if board.kind.slug == "cpu":
            return []
        return wrong("cuda", f"libcuda cannot be loaded: {found['absent']}", mend)
    if "crashed" in found or "failed" in found:
        why = found.get("crashed") or f"{found['failed']} says {found['status']}"
        if board.kind.slug == "cpu":
            return note("cuda", f"a driver without a GPU: {why}", "remove it, or attach the GPU")
        return wrong("cuda", f"the driver does not work: {why}", mend)
    if not found.get("devices"):
        return note("cuda", "the driver knows no GPU", mend)
    driver = found["driver"]
    text = (
        f"{found['name']}, compute capability {found.get('major')}.{found.get('minor')}, driver for CUDA "
        f"{driver // 1000}.{driver % 1000 // 10}, {'integrated' if found.get('integrated') else 'discrete'}"
    )
    if not found.get("round_trip"):
        return wrong("cuda", f"{text}: a copy there and back came back different", mend)
    return good("cuda", text)


def judge_torch(found: Dict[str, Any], board: Machine) -> List[Finding]:
    """Find whether torch's build fits the GPU: ``is_available`` may say yes and the first kernel fail."""
    if "absent" in found:
        return []
    mend = "install the build of torch for this device: on a Jetson NVIDIA's own, else one with CUDA"
    if "crashed" in found:
        return wrong("torch", f"its import fails: {found['crashed']}", mend)
    text = f"torch {found['version']}"
    if not found["available"]:
        if board.kind.slug == "cpu":
            return good("torch", f"{text}, on the CPU")
        return note("torch", f"{text} (CUDA {found['cuda'] or 'left out'}) cannot use this GPU", mend)
    if not found.get("kernel"):
        return wrong(
            "torch",
            f"{text}: a kernel on the GPU fails ({found.get('error', 'wrong result')}); "
            f"built for {', '.join(found['architectures'])}, this is {found['capability']}",
            mend,
        )
    return good("torch", f"{text}, CUDA {found['cuda']}, runs on the GPU")


def judge_onnxruntime(found: Dict[str, Any], board: Machine) -> List[Finding]:
    """Find whether the CUDA provider's build fits the GPU: it is offered wherever it is installed, and ONNX Runtime
    goes to the CPU without a word, or fails at the first kernel."""
    if not found.get("offered") and "crashed" not in found:
        return []  # the finding on what is installed tells
    mend = "install the build of onnxruntime-gpu for this device" + (
        ": jetson/setup.sh --index URL takes it from that index alone, --onnxruntime try (JetPack 7) the general build "
        "where a kernel runs"
        if board.is_jetson
        else " and its CUDA"
    )
    if "crashed" in found:
        return wrong("onnxruntime", f"it fails on the GPU: {found['crashed']}", mend)
    text = f"onnxruntime {found['version']}"
    if found.get("used") and found.get("kernel"):
        return good("onnxruntime", f"{text} runs on the GPU")
    why = found.get("error") or ("wrong result" if found.get("used") else "it went to the CPU instead")
    return wrong("onnxruntime", f"{text}: a kernel on the GPU fails ({why})", mend)


def judge_llama(found: Dict[str, Any], board: Machine) -> List[Finding]:
    """Find whether llama.cpp was built for the GPU: the package index has its source alone, which builds for the
    CPU."""
    if "absent" in found:
        return []
    mend = (
        "jetson/setup.sh --language builds it for this GPU"
        if board.is_jetson
        else "CMAKE_ARGS=-DGGML_CUDA=on pip install --force-reinstall --no-binary :all: --no-deps llama-cpp-python"
    )
    if "crashed" in found:
        return wrong("llama.cpp", f"its import fails: {found['crashed']}", mend)
    text = f"llama-cpp-python {found['version']}"
    if found["gpu"]:
        return good("llama.cpp", f"{text}, built for a GPU")
    if board.kind.slug == "cpu":
        return good("llama.cpp", f"{text}, on the CPU")
    return note("llama.cpp", f"{text} was built without this GPU: language models run on the CPU", mend)


def check_libraries(board: Machine) -> List[Finding]:
    """The GPU's libraries, each in a process of its own."""
    return [
        *judge_cuda(probe(CUDA), board),
        *judge_torch(probe(TORCH), board),
        *judge_onnxruntime(probe(ONNXRUNTIME), board),
        *judge_llama(probe(LLAMA), board),
    ]


if __name__ == "__main__":
    sys.exit(main())
