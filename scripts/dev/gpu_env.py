"""An environment for ``make gpu-check`` that sees the libraries of the Python that runs this, and of the system.

    PYTHON scripts/dev/gpu_env.py FOLDER

CUDA's binding, torch, TensorRT and GPU builds of ONNX Runtime come with the system, or lie in an environment that
``jetson/setup.sh`` made: none is installed anew, nor shadowed by another build. Only what the checks need and no Python
here has is installed (pip), and the binding where there is a driver of NVIDIA. Run it again at any time: what is there
stays. Exit status 2 where something is missing and pip cannot bring it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import List, Sequence, Tuple

NEEDS = {
    "numpy": "numpy>=1.21.6",
    "zmq": "pyzmq>=24",
    "msgpack": "msgpack>=1.0",
    "msgspec": "msgspec>=0.18.6",
    "psutil": "psutil>=5.9",
    "rich": "rich>=12",
    "pytest": "pytest>=7.2",
    "pytest_timeout": "pytest-timeout>=2.1",
    "hypothesis": "hypothesis>=6.80",
    "onnx": "onnx>=1.14",
}
"""Module -> what brings it: the package's own needs (pyproject.toml), and those of ``tests/gpu``."""

BINDING = ("cuda.bindings.driver", "cuda.cuda")
"""CUDA's binding for Python: one of them (``edgeserve/engines/cuda/driver.py``)."""

DRIVER_OF_CUDA_13 = 580
"""The first driver of NVIDIA for CUDA 13; an older one takes bindings of CUDA 12."""

PLACES = """
import json, site
print(json.dumps(site.getsitepackages() + [site.getusersitepackages()] * bool(site.ENABLE_USER_SITE)))
"""

LOOK = """
import importlib.util, json, sys
def there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
print(json.dumps([name for name in sys.argv[1:] if not there(name)]))
"""


def driver(root: str = "/") -> Tuple[bool, int]:
    """True if NVIDIA's driver is there, with its major version if known: a Jetson's is not."""
    try:
        with open(os.path.join(root, "proc/driver/nvidia/version"), encoding="utf-8", errors="replace") as file:
            found = re.search(r"^NVRM version:.*?\s(\d{3})\.[\d.]+\s", file.read(), re.MULTILINE)
    except OSError:
        found = None
    nodes = ("dev/nvhost-gpu", "dev/nvgpu", "dev/dxg", "dev/nvidiactl")
    is_there = found is not None or any(os.path.exists(os.path.join(root, node)) for node in nodes)
    return is_there, int(found.group(1)) if found else 0


def binding_for(root: str = "/", version: Tuple[int, int] = sys.version_info[:2]) -> List[str]:
    """The packages of the binding for this machine; none without a driver."""
    is_there, major = driver(root)
    if not is_there:
        return []
    if version < (3, 10):
        return ["cuda-python==11.8.2"]
    return ["cuda-bindings>=12.6" + ("" if major >= DRIVER_OF_CUDA_13 else ",<13")]


def asked(python: str, code: str, words: Sequence[str] = ()) -> List[str]:
    """Run a few lines of Python in another interpreter and read the JSON that they print."""
    done = subprocess.run([python, "-c", code, *words], stdout=subprocess.PIPE, check=True)
    found: List[str] = json.loads(done.stdout)
    return found


def make(folder: str) -> str:
    """The environment, made where it is not there; its Python. A file in it names the places where the Python that runs
    this finds its packages: of an environment these are not the system's alone."""
    python = os.path.join(folder, "bin", "python")
    if not os.path.exists(python):
        command = [sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", folder]
        subprocess.run(command, check=True)
    places = [place for place in asked(sys.executable, PLACES) if os.path.isdir(place)]
    own = asked(python, PLACES)[0]
    with open(os.path.join(own, "seen.pth"), "w", encoding="utf-8") as file:
        for place in places:
            file.write(f"import site; site.addsitedir({place!r})\n")
    return python


def main(words: Sequence[str]) -> int:
    if len(words) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    python = make(words[0])
    missing = [NEEDS[name] for name in asked(python, LOOK, list(NEEDS))]
    if sys.version_info < (3, 11) and asked(python, LOOK, ["tomli"]):
        missing.append("tomli>=2.0")
    if len(asked(python, LOOK, BINDING)) == len(BINDING):
        missing += binding_for()
    if not missing:
        return 0
    print(f"{words[0]}: {', '.join(missing)} are in no Python here and are installed now", flush=True)
    steps: List[List[str]] = []
    if asked(python, LOOK, ["pip"]):
        steps.append([python, "-m", "ensurepip", "--upgrade"])
    steps.append([python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *missing])
    for step in steps:
        if subprocess.run(step, check=False).returncode:
            print(
                f"gpu_env: '{' '.join(step[1:])}' failed. Bring a network, or install {', '.join(missing)} for "
                f"{sys.executable}, and run it again",
                file=sys.stderr,
            )
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
