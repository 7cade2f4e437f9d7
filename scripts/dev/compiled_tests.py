"""Run tests with the compiled core, in a copy of this checkout: ``make test-compiled``.

    python scripts/dev/compiled_tests.py [arguments of pytest]
    python scripts/dev/compiled_tests.py --build      compile only
    python scripts/dev/compiled_tests.py --ignore     print pytest's options that leave out this script's tests

The copy lies in ``.compiled/``, so that no extension module ever lies beside the checkout's own sources. It is compiled
again only when a source of the core has changed. ``EDGESERVE_CORE=compiled`` makes every process of the tests refuse to
run without the compiled core. Without named tests it runs the ones that compare the decisions of both cores.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
import time
from typing import Sequence

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COPY = os.path.join(ROOT, ".compiled")
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.so", "build", "dist", "*.egg-info", "node_modules")
TESTS = (
    "tests/unit/test_compiled.py",
    "tests/golden",
    "tests/unit/sched",
    "tests/sim",
    "tests/conformance/test_policies.py",
)
"""CI runs these with the compiled core alone; only the golden traces are also interpreted, on the oldest Python."""


def lay_copy() -> None:
    """Lay the checkout's files over the copy; what the copy was compiled to stays, other files of it go."""
    for name in os.listdir(COPY) if os.path.isdir(COPY) else ():
        path = os.path.join(COPY, name)
        if name == "edgeserve":
            for folder, _, names in os.walk(path):
                for source in names:
                    if source.endswith((".py", ".pyc")):
                        os.remove(os.path.join(folder, source))
        elif name != "build":
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
    for name in os.listdir(ROOT):
        path = os.path.join(ROOT, name)
        if name in LEFT_OUT(ROOT, [name]):
            continue
        if not os.path.isdir(path):
            shutil.copy2(path, COPY)
        elif name != "edgeserve":
            shutil.copytree(path, os.path.join(COPY, name), ignore=LEFT_OUT)
    for folder, folders, names in os.walk(os.path.join(ROOT, "edgeserve")):
        folders[:] = [name for name in folders if name != "__pycache__"]
        there = os.path.join(COPY, os.path.relpath(folder, ROOT))
        os.makedirs(there, exist_ok=True)
        for name in names:
            if not name.endswith(".so"):
                shutil.copy2(os.path.join(folder, name), there)


def compile_copy() -> None:
    """Build the extension modules in place, unless they are of these sources and this Python already."""
    sys.path.insert(0, COPY)
    from edgeserve import compiled

    suffix = compiled.EXTENSION_SUFFIXES[0]
    if glob.glob(os.path.join(COPY, "edgeserve", f"{compiled.LIBRARY}{compiled.digest()}*{suffix}")):
        return
    for path in glob.glob(os.path.join(COPY, "edgeserve", "**", "*.so"), recursive=True):
        os.remove(path)
    began = time.monotonic()
    environment = {**os.environ, "EDGESERVE_COMPILE": "1", "PYTHONHASHSEED": "0"}  # the order of the modules repeats
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
        cwd=COPY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        raise SystemExit(f"the core does not compile (docs/develop/compiled-sources.md has the rules):\n{done.stdout}")
    print(f"compiled {len(compiled.sources())} modules in {time.monotonic() - began:.0f} s", flush=True)


def main(argv: Sequence[str]) -> int:
    """Copy, compile and, unless only the build is requested, test; returns pytest's exit status."""
    if "--ignore" in argv:
        print(" ".join(f"--ignore={name}" for name in TESTS))
        return 0
    os.makedirs(COPY, exist_ok=True)
    lay_copy()
    compile_copy()
    if "--build" in argv:
        return 0
    environment = {**os.environ, "EDGESERVE_CORE": "compiled", "PYTHONPATH": COPY}
    tests = () if any(os.path.exists(os.path.join(COPY, word.split("::")[0])) for word in argv) else TESTS
    command = [sys.executable, "-m", "pytest", *argv, *tests]
    return subprocess.run(command, cwd=COPY, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
