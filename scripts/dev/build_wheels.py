"""Build the wheels of a release: the pure one, and a compiled one per Python and architecture.

    python scripts/dev/build_wheels.py [--out dist] [--python 3.8 ...] [--arch x86_64 aarch64] [--level 2]

Zig (``ziglang``, installed by pip into a temporary environment) is the C compiler for both architectures, against glibc
2.17. Each Python from 3.8 to 3.13 in PATH or below ``~/.pyenv`` builds its own wheel. A wheel for another architecture
takes Python's headers from here: they are the same on every 64-bit little-endian Linux. Every wheel is looked into;
those for this machine are installed into an environment of their own and must decide as the golden traces and digests
say. Exit status 1 when a wheel could not be built or did not pass.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Dict, List, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
MINORS = range(8, 14)
MACHINES = {"x86_64": 62, "aarch64": 183}
"""Architecture -> its number in the header of an ELF file (``e_machine``)."""

GLIBC = (2, 17)
BUILD_NEEDS = ("setuptools>=70.1", "ziglang>=0.13")  # beside the extra `compile`; this setuptools makes wheels
TEST_NEEDS = ("pytest>=7", "pytest-timeout>=2.1", "hypothesis>=6.80")
SAY = "from edgeserve import compiled; print(compiled.running())"


def found_pythons(wanted: Sequence[str]) -> Dict[str, str]:
    """Version -> interpreter, of every wanted one that is here."""
    found = {}
    for minor in MINORS:
        version = f"3.{minor}"
        here = [
            shutil.which(f"python{version}"),
            *sorted(glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}.*/bin/python{version}"))),
        ]
        usable = [path for path in here if path and runs(path)]
        if usable and (not wanted or version in wanted):
            found[version] = usable[0]
    return found


def runs(path: str) -> bool:
    """True if an interpreter starts (pyenv's shims may not be set to it) and has the modules of a build."""
    return subprocess.run([path, "-c", "import ensurepip, venv"], capture_output=True).returncode == 0


def call(command: Sequence[str], cwd: str, environment: Mapping[str, str] | None = None) -> str:
    """Run a command; its output, or the end of it in the error."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout


def environment_of(python: str, home: str, needs: Sequence[str], cwd: str) -> str:
    """Make a virtual environment with these packages; its interpreter."""
    call([python, "-m", "venv", home], cwd)
    inside = os.path.join(home, "bin", "python")
    call([inside, "-m", "pip", "install", "--quiet", "--upgrade", "pip", *needs], cwd)
    return inside


def sources_copied(place: str) -> str:
    """The sources, where a build may leave what it likes."""
    left_out = shutil.ignore_patterns(".*", "__pycache__", "*.so", "build", "dist", "*.egg-info", "node_modules")
    return shutil.copytree(ROOT, os.path.join(place, "sources"), ignore=left_out)


def compiler() -> List[str]:
    """The packages of the extra ``compile`` in ``pyproject.toml``."""
    (needs,) = re.findall(r"^compile = (\[.*\])$", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    return [str(need) for need in json.loads(needs)]


def build_compiled(python: str, sources: str, version: str, arch: str, level: str, out: str) -> str:
    """Build one compiled wheel; its path."""
    empty = os.path.join(os.path.dirname(sources), "empty")  # Python 3.8's headers ask for crypt.h, which Zig has not
    os.makedirs(empty, exist_ok=True)
    Path(empty, "crypt.h").touch()
    target = f"{arch}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    zig = f"{python} -m ziglang cc -target {target} -fno-sanitize=undefined -idirafter {empty}"
    made = os.path.join(os.path.dirname(sources), "made")
    shutil.rmtree(made, ignore_errors=True)
    call(
        [
            python,
            "setup.py",
            "--quiet",
            "bdist_wheel",
            "--dist-dir",
            made,
            "--plat-name",
            f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{arch}",
        ],
        sources,
        {
            "EDGESERVE_COMPILE": "1",
            "EDGESERVE_COMPILE_LEVEL": level,
            "CC": zig,
            "LDSHARED": f"{zig} -shared",
            "_PYTHON_HOST_PLATFORM": f"linux-{arch}",
            "SETUPTOOLS_EXT_SUFFIX": f".cpython-{version.replace('.', '')}-{arch}-linux-gnu.so",
        },
    )
    (wheel,) = os.listdir(made)
    return shutil.copy(os.path.join(made, wheel), out)


def look_into(wheel: str, arch: str) -> None:
    """Every source of the core has its extension module, and all are for that architecture."""
    sys.path.insert(0, str(ROOT))
    from edgeserve import compiled

    with zipfile.ZipFile(wheel) as packed:
        libraries = [name for name in packed.namelist() if name.endswith(".so")]
        for source in compiled.sources():
            if not any(name.startswith(f"edgeserve/{source[: -len('.py')]}.cpython-") for name in libraries):
                raise RuntimeError(f"{wheel} has no extension module for edgeserve/{source}")
        for name in libraries:
            (machine,) = struct.unpack_from("<H", packed.read(name), 18)
            if machine != MACHINES[arch]:
                raise RuntimeError(f"{wheel}: {name} is for machine {machine}, expected {MACHINES[arch]} ({arch})")


def try_wheel(python: str, wheel: str, sources: str, place: str) -> str:
    """Install a wheel and hold it to the golden traces and digests; what its core says of itself."""
    inside = environment_of(python, os.path.join(place, "try"), [wheel, *TEST_NEEDS], place)
    tests = shutil.copytree(os.path.join(sources, "tests"), os.path.join(place, "tests"))
    only = {"EDGESERVE_CORE": "compiled", "PYTHONPATH": ""}
    call(
        [inside, "-m", "pytest", "-q", os.path.join(tests, "golden"), os.path.join(tests, "sim", "test_soak.py")],
        place,
        only,
    )
    return call([inside, "-c", SAY], place, only).strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="dist", help="folder for the wheels (default %(default)s)")
    parser.add_argument("--python", nargs="+", default=[], metavar="3.N", help="versions (default: all found)")
    parser.add_argument("--arch", nargs="+", default=list(MACHINES), choices=list(MACHINES), help="default: both")
    parser.add_argument("--level", default="2", help="optimisation of the C compiler (default %(default)s)")
    args = parser.parse_args()
    out = os.path.abspath(args.out)
    os.makedirs(out, exist_ok=True)
    pythons = found_pythons(args.python)
    return 1 if build_all(pythons, args.arch, args.level, out) or not pythons else 0


def build_all(
    pythons: Mapping[str, str], archs: Sequence[str], level: str, out: str, with_pure: bool = True
) -> List[str]:
    """Build, look into and try all of them, and say so; what failed."""
    failures: List[str] = []
    print("found: " + ", ".join(f"{version} {path}" for version, path in pythons.items()), flush=True)
    for number, (version, python) in enumerate(pythons.items()):
        with tempfile.TemporaryDirectory(prefix="edgeserve-wheels-") as place:
            sources = sources_copied(place)
            builder = environment_of(python, os.path.join(place, "build"), (*compiler(), *BUILD_NEEDS), sources)
            if number == 0 and with_pure:
                call([builder, "setup.py", "--quiet", "bdist_wheel", "--dist-dir", out], sources)
            for arch in archs:
                try:
                    shutil.rmtree(os.path.join(sources, "build"), ignore_errors=True)
                    wheel = build_compiled(builder, sources, version, arch, level, out)
                    look_into(wheel, arch)
                    outcome = "not tried: built for another architecture"
                    if arch == platform.machine():
                        outcome = try_wheel(python, wheel, sources, place)
                    print(f"{os.path.basename(wheel)}: {outcome}", flush=True)
                except RuntimeError as error:
                    failures.append(f"Python {version}, {arch}: {error}")
                    print(failures[-1], flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(main())
