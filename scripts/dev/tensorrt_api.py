"""Reads the public Python names of TensorRT's versions into ``tests/lib/tensorrt_api.json``.

    python scripts/dev/tensorrt_api.py --sources CLONE --wheel 11.4=FILE.whl=PYTHON --rtx PYTHON

``--sources`` is a clone of github.com/NVIDIA/TensorRT: the bindings' C++ at each release's tag names what Python sees.
``--wheel`` is a package of bindings (``tensorrt-cu13-bindings`` and its like), imported by the interpreter it was built
for. The library that it needs cannot be installed from a package index, so empty stand-ins take its place: enough to
read names, not to call anything. ``--rtx`` is an interpreter that has ``tensorrt_rtx``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from typing import Dict, List, Set

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OUTPUT = os.path.join(ROOT, "tests", "lib", "tensorrt_api.json")

TAGS = {
    "8.5": "8.5.3",
    "8.6": "release/8.6",
    "10.0": "v10.0.1",
    "10.1": "v10.1.0",
    "10.3": "v10.3.0",
    "10.7": "v10.7.0",
    "10.13": "v10.13.3",
    "10.16": "v10.16",
    "11.0": "release/11.0",
    "11.1": "release/11.1",
}
"""Version -> tag (or branch, where a release has no tag)."""

FILES = (
    "python/src/infer/pyCore.cpp",
    "python/src/infer/pyGraph.cpp",
    "python/src/infer/pyFoundationalTypes.cpp",
    "python/src/parsers/pyOnnx.cpp",
)

CLASSES = (
    "Builder",
    "BuilderFlag",
    "DataType",
    "DeviceType",
    "ExecutionContextAllocationStrategy",
    "ICudaEngine",
    "IBuilderConfig",
    "IExecutionContext",
    "IHostMemory",
    "ILayer",
    "INetworkDefinition",
    "IOptimizationProfile",
    "IProgressMonitor",
    "ITensor",
    "ITimingCache",
    "LayerType",
    "MemoryPoolType",
    "NetworkDefinitionCreationFlag",
    "OnnxParser",
    "ParserError",
    "PreviewFeature",
    "Runtime",
    "TensorIOMode",
    "TensorLocation",
    "ComputeCapability",
    "CudaGraphStrategy",
    "RuntimeConfig",
    "IRuntimeConfig",
    "IRuntimeCache",
)
"""The classes and enumerations that the engine meets."""

CLASS = re.compile(r"py::(?:class_|enum_)<[^;]*?>\s*(?:\w+)?[({]\s*\w+,\s*\"(\w+)\"", re.DOTALL)
MEMBER = re.compile(
    r"\.(?:def|def_property|def_property_readonly|def_readwrite|def_readonly|value|def_static)"
    r"\s*\(\s*\"(?!__)(\w+)\""
)

DUMP = """
import json, os, sys
sys.setdlopenflags(os.RTLD_LAZY)
sys.path[:0] = sys.argv[2:]
trt = __import__(sys.argv[1])
names = {}
for name in dir(trt):
    if isinstance(getattr(trt, name), type):
        names[name] = [item for item in dir(getattr(trt, name)) if not item.startswith("_") and item not in dir(int)
                       and item not in ("name", "value") or item == "name" and not hasattr(getattr(trt, name), "value")]
print(json.dumps(names))
"""


def of_sources(clone: str, tag: str) -> Dict[str, Set[str]]:
    """Class -> members, from the bindings' sources at a tag."""
    found: Dict[str, Set[str]] = {}
    for path in FILES:
        text = subprocess.run(
            ["git", "-C", clone, "show", f"{tag}:{path}"], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        text = re.sub(r"//[^\n]*", "", text)
        starts = list(CLASS.finditer(text))
        for start, end in zip(starts, [*starts[1:], None]):
            body = text[start.end() : end.start() if end else len(text)]
            found.setdefault(start.group(1), set()).update(MEMBER.findall(body))
    return found


def of_python(python: str, module: str, folders: List[str], libraries: str = "") -> Dict[str, Set[str]]:
    """Class -> members, as an interpreter that imports the module sees them."""
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries} if libraries else None
    done = subprocess.run(
        [python, "-c", DUMP, module, *folders], capture_output=True, text=True, timeout=120, env=environment
    )
    if done.returncode:
        raise SystemExit(f"{python} cannot import {module}: {done.stderr}")
    return {name: set(members) for name, members in json.loads(done.stdout).items()}


def of_wheel(wheel: str, python: str) -> Dict[str, Set[str]]:
    """Class -> members of the bindings in a wheel, with empty functions in place of TensorRT's libraries."""
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        library = os.path.join(folder, "tensorrt_bindings", "tensorrt.so")
        needed = re.findall(r"\[(libnv[^\]]*|libcud[^\]]*)\]", _run("readelf", "-d", library))
        listed = _run("nm", "-D", "--undefined-only", library).splitlines()
        undefined = [line.split()[-1].split("@")[0] for line in listed if line]
        wanted = [name for name in undefined if re.match(r"(get(?!text)|create|init|_ZN\d+nv)", name)]
        for index, name in enumerate(needed):
            code = "".join(f"long {symbol}(void) {{ return 0; }}\n" for symbol in wanted) if index == 0 else "\n"
            subprocess.run(
                [
                    "cc",
                    "-w",
                    "-shared",
                    "-fno-builtin",
                    "-x",
                    "c",
                    f"-Wl,-soname,{name}",
                    "-o",
                    os.path.join(folder, name),
                    "-",
                ],
                input=code,
                text=True,
                check=True,
                timeout=60,
            )
        return of_python(python, "tensorrt", [os.path.dirname(library)], folder)


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", required=True)
    parser.add_argument("--wheel", action="append", default=[], metavar="VERSION=FILE=PYTHON")
    parser.add_argument("--rtx", default="", metavar="PYTHON")
    arguments = parser.parse_args()
    read = {version: of_sources(arguments.sources, tag) for version, tag in TAGS.items()}
    for entry in arguments.wheel:
        version, wheel, python = entry.split("=")
        seen = of_wheel(wheel, python)
        for name in CLASSES if version in read else ():
            odd = read[version].get(name, set()) ^ seen.get(name, set())
            if odd:
                print(f"{version} {name}: sources and wheel differ in {sorted(odd)}", file=sys.stderr)
        read[version] = seen
    if arguments.rtx:
        read["rtx"] = of_python(arguments.rtx, "tensorrt_rtx", [])
    classes: Dict[str, Dict[str, str]] = {}
    for name in CLASSES:
        members = sorted(set().union(*(found.get(name, set()) for found in read.values())))
        classes[name] = {
            member: " ".join(version for version, found in read.items() if member in found.get(name, ()))
            for member in members
        }
    with open(OUTPUT, "w", encoding="utf-8") as file:
        json.dump({"versions": list(read), "classes": classes}, file, indent=0)
        file.write("\n")


if __name__ == "__main__":
    main()
