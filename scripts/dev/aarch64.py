"""Run the tests on aarch64 without such a machine: an arm64 Python and the aarch64 wheels under QEMU's user mode.

    python scripts/dev/aarch64.py [--python 3.11 3.8] [--part bus device ...] [--write research/results/aarch64.md]
    python scripts/dev/aarch64.py --every scheduler=4 simulator=8     # each fourth, each eighth test of these parts
    python scripts/dev/aarch64.py --stored --write research/results/aarch64.md    # runs nothing

Python 3.11 comes as Debian's arm64 packages. Python 3.8, the oldest that a Jetson has (JetPack 5), is compiled by Zig
(``ziglang`` from the package index) from the sources that Ubuntu 20.04 took, and runs on a C library of the same
version as that release's. Nothing is installed on this machine and nothing needs root: packages are fetched with an
``apt-get`` whose directories lie in the cache, and unpacked there. It needs Debian 12 or newer, ``apt-get``,
``dpkg-deb``, ``pip``, and for Python 3.8 a Python 3.8 of this machine, which CPython's cross build runs.

Every part of the suite has a process of its own, so that a library that ends the emulated process costs that part
alone. Results are kept per commit: interrupted, it goes on with the next part; ``--again`` runs all. A part that takes
hours can be tried in a slice: each n-th of its tests in pytest's order, and the page says so. Wall-clock times
under emulation say nothing about a board. Exit status 1 when a test failed or a part ended.
"""

from __future__ import annotations

import argparse
import datetime
import glob
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edgeserve-aarch64"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
TRIPLE = "aarch64-linux-gnu"

LIBRARIES = ("libc6", "libstdc++6", "libgcc-s1", "zlib1g", "libbz2-1.0", "liblzma5", "libexpat1", "libuuid1")
RELEASES = {
    "3.11": ("bookworm", ("python3.11", "libpython3.11-stdlib", *LIBRARIES)),
    # The C library of bullseye is 2.31, as Ubuntu 20.04's.
    "3.8": ("bullseye", ("libffi7", "libffi-dev", "zlib1g-dev", "libc6-dev", *LIBRARIES)),
}
"""Python -> Debian's release, and the packages that it needs of it (their dependencies come along)."""

SOURCE = "http://archive.ubuntu.com/ubuntu/pool/main/p/python3.8/python3.8_3.8.10.orig.tar.xz"
SOURCE_SHA256 = "6af24a66093dd840bcccf371d4044a3027e655cf24591ce26e48022bc79219d9"

WHEELS = {
    "3.11": (
        "numpy==1.26.4",
        "pyzmq==27.1.0",
        "msgpack==1.1.1",
        "msgspec==0.18.6",
        "psutil==7.2.2",
        "rich",
        "pytest==8.3.5",
        "pytest-timeout",
        "pytest-rerunfailures==14.0",
        "hypothesis==6.113.0",
        "sortedcontainers",
        "attrs",
    ),
    "3.8": (
        "numpy==1.24.4",
        "pyzmq==27.1.0",
        "msgpack==1.1.1",
        "msgspec==0.18.6",
        "psutil==7.2.2",
        "rich==14.0.0",
        "tomli==2.2.1",
        "pytest==8.3.5",
        "pluggy==1.5.0",
        "iniconfig==2.1.0",
        "packaging==25.0",
        "exceptiongroup==1.3.0",
        "typing-extensions==4.13.2",
        "pytest-timeout==2.4.0",
        "pytest-rerunfailures==14.0",
        "hypothesis==6.113.0",
        "sortedcontainers==2.4.0",
        "attrs==25.3.0",
        "pygments==2.19.2",
        "markdown-it-py==3.0.0",
    ),
}
"""pip evaluates markers for the Python that runs it, so what an older Python needs is named, in the last version that
supports it."""

NO_HOST_PATHS = 'for word; do shift; case $word in -[IL]/usr/*|-L/lib*) ;; *) set -- "$@" "$word" ;; esac; done\n'
"""CPython's setup.py adds this machine's own headers and libraries when it compiles for another."""

NEEDED = "import _bisect, _ctypes, _datetime, _json, _multiprocessing, _posixshmem, _socket, math, mmap, select, zlib"
"""Modules that CPython leaves out without a word where they do not compile."""

TRIED = {"3.11": ("onnxruntime==1.19.2", "onnx==1.17.0"), "3.8": ("onnxruntime==1.19.2", "onnx==1.17.0")}
"""Packages whose compiled code may end an emulated process: installed only where importing them does not."""

PARTS: Dict[str, Tuple[str, ...]] = {
    "units and configuration": ("tests/unit/test_units.py", "tests/unit/test_errors.py", "tests/unit/config"),
    "scheduler": ("tests/unit/sched",),
    "golden traces": ("tests/golden",),
    "simulator": (
        "tests/sim/test_world.py",
        "tests/sim/test_faults.py",
        "tests/sim/test_lanes.py",
        "tests/sim/test_workload.py",
        "tests/sim/test_returns.py",
        "tests/sim/test_refusals.py",
    ),
    "bus": ("tests/unit/ipc",),
    "engines": ("tests/unit/engines",),
    "live side": ("tests/unit/live", "tests/unit/taps"),
    "device": ("tests/unit/device",),
    "runtime and bus, live": ("tests/live/test_runtime.py", "tests/live/test_bus.py"),
    "conformance of policies": ("tests/conformance/test_policies.py",),
}
"""One part of the run: the name of a part and its tests. Not run: what fetches models, measures times, is marked
``worlds`` or gives a child process seconds to answer (``tests/unit/offload/``: 2 s), since an emulated Python starts
slowly."""

PART_S_MAX = 5400.0
TEST_S_MAX = 1200

EACH_NTH = """\
import os

def pytest_collection_modifyitems(config, items):
    left_out = [item for place, item in enumerate(items) if place % int(os.environ["EDGESERVE_EACH_NTH"])]
    items[:] = items[:: int(os.environ["EDGESERVE_EACH_NTH"])]
    config.hook.pytest_deselected(items=left_out)
"""
"""A plugin of pytest that keeps the first of each n tests. The order is pytest's own: that of files and of lines."""


class Tried(NamedTuple):
    """The result of one part. ``skips`` are (test, reason); of each ``every`` tests one was run."""

    part: str
    passed: int
    failed: List[str]
    skips: List[Tuple[str, str]]
    seconds: float
    ended: str = ""  # why there is no result, or no complete one
    every: int = 1


class Emulated(NamedTuple):
    """An emulated Python: the command that starts it, and what it says of itself."""

    python: str
    command: str
    about: str
    left_out: List[str]


# --- what is fetched --------------------------------------------------------------------------------------------------


def run(command: Sequence[object], **more: object) -> str:
    """The output of a command; a failure ends the script with both outputs."""
    words = [str(word) for word in command]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)  # type: ignore
    if done.returncode != 0:
        raise SystemExit(f"{shlex.join(words)}: exit status {done.returncode}\n{str(done.stdout)[-4000:]}")
    return str(done.stdout)


def mirror() -> str:
    """The Debian mirror that this machine uses."""
    files = glob.glob("/etc/apt/sources.list.d/*") + ["/etc/apt/sources.list"]
    text = "\n".join(Path(path).read_text(encoding="utf-8") for path in files if os.path.isfile(path))
    found = re.search(r"^(?:URIs:|deb)\s.*?(https?://\S+/debian)/?(?:\s|$)", text, re.MULTILINE)
    return found.group(1) if found else "http://deb.debian.org/debian"


def apt_options(place: Path, architecture: str) -> List[str]:
    """``apt-get`` with directories of its own: it reads and writes nothing of this machine's packages."""
    for name in ("state/lists/partial", "cache/archives/partial", "etc/preferences.d", "log"):
        (place / name).mkdir(parents=True, exist_ok=True)
    (place / "status").touch()
    options = {
        "Dir::State": place / "state",
        "Dir::State::status": place / "status",
        "Dir::Cache": place / "cache",
        "Dir::Etc::sourcelist": place / "etc/sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": place / "etc/preferences.d",
        "Dir::Log": place / "log",
        "Dir::Etc::trustedparts": "/etc/apt/trusted.gpg.d",
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "",
        "Debug::NoLocking": "true",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
    }
    return [word for key, value in options.items() for word in ("-o", f"{key}={value}")]


def unpacked(cache: Path, suite: str, architecture: str, packages: Sequence[str], from_mirror: str) -> Path:
    """A directory with the packages and their dependencies, unpacked. Made once."""
    root, place = cache / f"{suite}-{architecture}", cache / f"apt-{suite}-{architecture}"
    stamp = root / ".packages"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == " ".join(packages):
        return root
    options = apt_options(place, architecture)
    (place / "etc/sources.list").write_text(f"deb [signed-by={KEYRING}] {from_mirror} {suite} main\n", encoding="utf-8")
    run(["apt-get", *options, "-q", "update"])
    run(["apt-get", *options, "-q", "-y", "--no-install-recommends", "--download-only", "install", *packages])
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for package in sorted((place / "cache/archives").glob("*.deb")):
        run(["dpkg-deb", "-x", package, root])
    stamp.write_text(" ".join(packages), encoding="utf-8")
    return root


def emulator(cache: Path, from_mirror: str) -> str:
    """The path of QEMU's user mode for aarch64: this machine's, else Debian's package, unpacked."""
    for name in ("qemu-aarch64-static", "qemu-aarch64"):
        found = shutil.which(name)
        if found:
            return found
    architecture = run(["dpkg", "--print-architecture"]).strip()
    root = unpacked(cache, "bookworm", architecture, ("qemu-user-static",), from_mirror)
    return str(root / "usr/bin/qemu-aarch64-static")


def source_of(cache: Path, where: str) -> Path:
    """CPython's sources, of the pinned content."""
    path = cache / "python3.8.tar.xz"
    if not path.exists():
        part = path.with_suffix(".part")
        if os.path.exists(where):
            shutil.copy(where, part)
        else:
            with urllib.request.urlopen(where, timeout=120) as answer, open(part, "wb") as file:
                shutil.copyfileobj(answer, file)
        part.rename(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != SOURCE_SHA256:
        raise SystemExit(f"{path}: sha256 {digest}, expected {SOURCE_SHA256}: remove the file, or give --source")
    return path


def host_python(version: str) -> str:
    """A Python of this version for this machine: the cross build runs it."""
    home = os.environ.get("PYENV_ROOT") or str(Path.home() / ".pyenv")
    for path in (shutil.which(f"python{version}"), *glob.glob(f"{home}/versions/{version}.*/bin/python{version}")):
        if path and subprocess.run([path, "-c", ""], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            return path
    raise SystemExit(
        f"Python {version} of this machine is needed to compile one for aarch64, and none was found in "
        f"PATH or below {home}/versions"
    )


def compiled_python(cache: Path, root: Path, where: str, jobs: int) -> Path:
    """CPython 3.8 for aarch64 below ``root``, compiled with Zig against the root's C library."""
    home = root / "opt/python3.8"
    if (home / "bin/python3.8").exists():
        return home
    source, build = source_of(cache, where), cache / "python3.8-build"
    shutil.rmtree(build, ignore_errors=True)
    build.mkdir()
    run(["tar", "-xf", source, "-C", build, "--strip-components=1"])
    zig = cache / "zig"
    if not (zig / "ziglang/zig").exists():
        run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", zig, "ziglang==0.13.0"])
    include, lib = root / "usr/include", root / "usr/lib" / TRIPLE
    for name, verb in (("cc", "cc"), ("ar", "ar"), ("ranlib", "ranlib")):
        target = f" -target {TRIPLE}.2.31" if verb == "cc" else ""
        script = build / f"zig-{name}"
        program = shlex.quote(str(zig / "ziglang/zig"))
        script.write_text(f'#!/bin/sh\n{NO_HOST_PATHS}exec {program} {verb}{target} "$@"\n')
        script.chmod(0o755)
    # Headers and libraries beside those of C itself, which Zig brings: copied, so that no other header is found.
    extra = build / "extra"
    extra.mkdir()
    for name in ("zlib.h", "zconf.h", "ffi.h", "ffitarget.h"):
        found = next(iter(glob.glob(str(include / name)) + glob.glob(str(include / TRIPLE / name))))
        shutil.copy(found, extra)
    for name in ("libz.so", "libffi.so"):
        versions = sorted(glob.glob(str(lib / f"{name}.*")) + glob.glob(str(root / "lib" / TRIPLE / f"{name}.*")))
        shutil.copy(os.path.realpath(versions[-1]), extra / name)
    environment = {
        **os.environ,
        "CC": f"{build}/zig-cc",
        "AR": f"{build}/zig-ar",
        "RANLIB": f"{build}/zig-ranlib",
        "CPPFLAGS": f"-I{extra}",
        "LDFLAGS": f"-L{extra}",
        "READELF": shutil.which("readelf") or "readelf",
        "LIBFFI_INCLUDEDIR": str(extra),
        "CONFIG_SITE": "config.site",
        "PATH": f"{os.path.dirname(host_python('3.8'))}:{os.environ['PATH']}",
    }
    (build / "config.site").write_text("ac_cv_file__dev_ptmx=yes\nac_cv_file__dev_ptc=no\nac_cv_buggy_getaddrinfo=no\n")
    run(
        [
            "./configure",
            f"--host={TRIPLE}",
            f"--build={platform.machine()}-linux-gnu",
            "--disable-ipv6",
            "--without-ensurepip",
            "--with-system-ffi",
            f"--prefix={home}",
        ],
        cwd=build,
        env=environment,
    )
    run(["make", f"-j{jobs}"], cwd=build, env=environment)
    run(["make", "install"], cwd=build, env=environment)
    return home


def wheels(cache: Path, version: str, requirements: Sequence[str], folder: str) -> Path:
    """A directory with aarch64 wheels of the packages, unpacked by this machine's pip."""
    site = cache / folder
    stamp = site / ".requirements"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == " ".join(requirements):
        return site
    shutil.rmtree(site, ignore_errors=True)
    minor = version.replace(".", "")
    platforms = [
        word for number in (31, 28, 27, 26, 24, 17) for word in ("--platform", f"manylinux_2_{number}_aarch64")
    ]
    run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--target",
            site,
            "--only-binary=:all:",
            *platforms,
            "--platform",
            "manylinux2014_aarch64",
            "--implementation",
            "cp",
            "--abi",
            f"cp{minor}",
            "--abi",
            "abi3",
            "--abi",
            "none",
            "--python-version",
            version,
            *requirements,
        ]
    )
    stamp.write_text(" ".join(requirements), encoding="utf-8")
    return site


# --- what is run ------------------------------------------------------------------------------------------------------


def emulated(cache: Path, version: str, arguments: argparse.Namespace) -> Emulated:
    """Everything that one Python needs, and the command that starts it. The command is a script, so that the tests'
    own child processes (``sys.executable``) are emulated too."""
    suite, packages = RELEASES[version]
    qemu = emulator(cache, arguments.mirror)
    root = unpacked(cache, suite, "arm64", packages, arguments.mirror)
    home = root / "usr" if version != "3.8" else compiled_python(cache, root, arguments.source, arguments.jobs)
    paths = [str(wheels(cache, version, WHEELS[version], f"site-{version}"))]
    command = cache / f"python{version}-aarch64"
    libraries = ":".join(str(root / part / TRIPLE) for part in ("lib", "usr/lib"))

    def write() -> None:
        command.write_text(
            "#!/bin/sh\n"
            f'export PYTHONHOME={shlex.quote(str(home))} PYTHONPATH="{":".join(paths)}${{PYTHONPATH:+:$PYTHONPATH}}"\n'
            f"exec {shlex.quote(qemu)} -L {shlex.quote(str(root))} -E LD_LIBRARY_PATH={shlex.quote(libraries)} "
            f'-0 "$0" {shlex.quote(str(home / "bin" / f"python{version}"))} "$@"\n',
            encoding="utf-8",
        )
        command.chmod(0o755)

    write()
    run([command, "-c", NEEDED])
    left_out = []
    for requirement in TRIED[version]:
        name = requirement.split("==")[0]
        site = wheels(cache, version, (requirement,), f"tried-{version}-{name}")
        done = subprocess.run(
            [str(command), "-c", f"import sys; sys.path.append({str(site)!r}); import {name}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode == 0:
            paths.append(str(site))
        else:
            left_out.append(f"{requirement}: importing it ends with status {done.returncode}{_last_line(done.stderr)}")
    write()
    about = run(
        [
            command,
            "-c",
            "import numpy, platform, sys; print(platform.python_version(), platform.machine(), "
            "platform.libc_ver()[1] or '-', numpy.__version__)",
        ]
    ).split()
    return Emulated(
        version,
        str(command),
        f"Python {about[0]}, {about[1]}, C library {about[2]}, numpy {about[3]}; "
        f"{run([qemu, '--version']).splitlines()[0]}",
        left_out,
    )


def commit() -> str:
    """The tested version: the checkout's commit, with a ``+`` where files differ from it."""
    head = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    ).stdout.strip()
    changed = subprocess.run(
        ["git", "status", "--porcelain", "edgeserve", "tests", "scripts", "research"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    ).stdout.strip()
    return f"{head or 'unknown'}{'+' if changed else ''}"


def stored(path: Path, of: str) -> Optional[Tried]:
    """The stored result of a part, if it is of this commit, complete or not."""
    if of.endswith("+") or not path.exists():
        return None
    table = json.loads(path.read_text(encoding="utf-8"))
    if table.pop("commit") != of:
        return None
    return Tried(**{**table, "skips": [(name, reason) for name, reason in table["skips"]]})


def kept(path: Path, of: str, every: int) -> Optional[Tried]:
    """The stored result of a part, if it is complete, of this commit, and of at least as many tests."""
    found = stored(path, of)
    return found if found is not None and not found.ended and found.every <= every else None


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return f" ({lines[-1][:160]})" if lines else ""


def tried(python: Emulated, part: str, cache: Path, seconds_max: float, every: int = 1) -> Tried:
    """Run one part, or each n-th of its tests; how it ended, also where the process did not survive."""
    here = [test for test in PARTS[part] if (ROOT / test).exists()]
    if not here:
        return Tried(part, 0, [], [], 0.0, "no such tests in this checkout", every)
    result = cache / f"result-{python.python}.xml"
    if result.exists():
        result.unlink()
    plugins = cache / "plugins"
    plugins.mkdir(exist_ok=True)
    (plugins / "each_nth.py").write_text(EACH_NTH, encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{plugins}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "EDGESERVE_CORE": "interpreted",
        "OPENBLAS_NUM_THREADS": "1",
        "EDGESERVE_EACH_NTH": str(every),
    }
    command = [
        python.command,
        "-m",
        "pytest",
        *here,
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "each_nth",
        "-m",
        "not worlds",
        f"--timeout={TEST_S_MAX}",
        f"--junitxml={result}",
        "-rN",
        "--tb=short",
        "-vv",
    ]
    begun_s, ended, last = time.monotonic(), "", ""
    log = cache / f"{python.python}-{part.replace(' ', '-')}.log"
    with open(log, "w", encoding="utf-8") as file:
        try:
            status = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=seconds_max,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            status, ended = 1, f"stopped after {seconds_max:.0f} s"
    if not result.exists():
        said = log.read_text(encoding="utf-8", errors="replace")
        begun = re.findall(r"^(tests/\S+?::.*?)(?: (PASSED|FAILED|SKIPPED|ERROR)\b.*)?\s*$", said, re.MULTILINE)
        last = f" in {begun[-1][0]}" if begun else _last_line(said)
        failed = [name for name, outcome in begun if outcome in ("FAILED", "ERROR")]
        skips = [(name, "see the log") for name, outcome in begun if outcome == "SKIPPED"]
        return Tried(
            part,
            sum(outcome == "PASSED" for _, outcome in begun),
            failed,
            skips,
            time.monotonic() - begun_s,
            (ended or f"the process ended with status {status}") + last,
            every,
        )
    passed, failed, skips = counted(result)
    return Tried(part, passed, failed, skips, time.monotonic() - begun_s, ended, every)


def counted(result: Path) -> Tuple[int, List[str], List[Tuple[str, str]]]:
    """Read pytest's XML: the number of tests that passed, the failed ones, the skipped ones with reasons."""
    passed, failed, skips = 0, [], []
    for case in ElementTree.parse(result).getroot().iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif skip is not None:
            skips.append((name, " ".join((skip.get("message") or "no reason").split())))
        else:
            passed += 1
    return passed, failed, skips


# --- what is said -----------------------------------------------------------------------------------------------------


def report(runs: Sequence[Tuple[Emulated, Sequence[Tried]]], command: str) -> str:
    """The results as a page."""
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    lines = [
        "# aarch64 by emulation",
        "",
        f"Drawn by `{command}` on {today}, on {platform.machine()}, of commit {commit()}. The tests ran under "
        "QEMU's user mode: the instructions, the wheels and the C library are a board's, the kernel and the times "
        "are not. No GPU, no TensorRT and no device file of a Jetson takes part. Whole simulated "
        "worlds (the marker `worlds`) are left out.",
        "",
    ]
    for python, parts in runs:
        lines += [
            f"## Python {python.python}",
            "",
            f"{python.about}.",
            "",
            "| part | passed | failed | skipped | seconds |",
            "| --- | ---: | ---: | ---: | ---: |",
        ]
        for part in parts:
            share = f", 1 of {part.every} tests" if part.every > 1 else ""
            lines.append(
                f"| {part.part}{share} | {part.passed} | {len(part.failed)} | {len(part.skips)} | {part.seconds:.0f} |"
            )
        lines += [
            "",
            f"Together {sum(part.passed for part in parts)} passed, "
            f"{sum(len(part.failed) for part in parts)} failed, "
            f"{sum(len(part.skips) for part in parts)} skipped.",
            "",
        ]
        lines += [f"* Not complete: {part.part}: {part.ended}." for part in parts if part.ended]
        run_here = {part.part for part in parts}
        lines += [f"* Not run: {name}." for name in PARTS if name not in run_here]
        lines += [f"* Failed: `{name}`." for part in parts for name in part.failed]
        lines += [f"* Left out: {text}." for text in python.left_out]
        reasons: Dict[str, List[str]] = {}
        for part in parts:
            for name, reason in part.skips:
                reasons.setdefault(reason, []).append(name)
        lines += [
            f"* Skipped: {reason} ({len(names)}: `{names[0]}`{', ...' if len(names) > 1 else ''})."
            for reason, names in sorted(reasons.items())
        ] + [""]
    return "\n".join(lines).rstrip() + "\n"


def slice_of(text: str) -> Tuple[str, int]:
    """``PART=N`` of the command line."""
    part, _, number = text.partition("=")
    if part not in PARTS or not number.isdigit() or int(number) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected PART=N with N from 1, and PART of {', '.join(PARTS)}")
    return part, int(number)


def parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", nargs="+", choices=sorted(RELEASES), default=["3.11", "3.8"])
    parser.add_argument(
        "--part",
        nargs="+",
        choices=list(PARTS),
        default=list(PARTS),
        metavar="PART",
        help=f"parts of the suite: {', '.join(PARTS)}",
    )
    parser.add_argument(
        "--every", nargs="+", type=slice_of, default=[], metavar="PART=N", help="of these parts, run each N-th test"
    )
    parser.add_argument("--stored", action="store_true", help="run nothing: the page of what this commit has stored")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"where everything is kept (default: {CACHE})")
    parser.add_argument("--mirror", default=mirror(), help="Debian mirror (default: this machine's)")
    parser.add_argument("--source", default=SOURCE, help="CPython 3.8's sources: a URL or a file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time")
    parser.add_argument("--seconds", type=float, default=PART_S_MAX, help="longest time of one part")
    parser.add_argument("--write", default="", metavar="FILE", help="write the page there too")
    parser.add_argument("--again", action="store_true", help="run also what has a result of this commit")
    parser.add_argument("--prepare", action="store_true", help="fetch and build, run no test")
    return parser.parse_args(argv)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Fetch, run, report; 1 when a test failed or a part has no result."""
    arguments = parse(argv)
    cache = arguments.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    every, runs = dict(arguments.every), []
    for version in arguments.python:
        python = emulated(cache, version, arguments)
        print(python.about, *python.left_out, sep="\n", flush=True)
        parts: List[Tried] = []
        for part in () if arguments.prepare else arguments.part:
            store = cache / f"{version}-{part.replace(' ', '-')}.json"
            if arguments.stored:
                parts += [found for found in (stored(store, commit()),) if found is not None]
                continue
            number = every.get(part, 1)
            found = None if arguments.again else kept(store, commit(), number)
            parts.append(found or tried(python, part, cache, arguments.seconds, number))
            store.write_text(json.dumps({"commit": commit(), **parts[-1]._asdict()}), encoding="utf-8")
            print(
                f"{part}: {parts[-1].passed} passed, {len(parts[-1].failed)} failed, {len(parts[-1].skips)} skipped, "
                f"{parts[-1].seconds:.0f} s {parts[-1].ended}",
                *parts[-1].failed,
                sep="\n  ",
                flush=True,
            )
        runs.append((python, parts))
    if not arguments.prepare:
        page = report(runs, shlex.join(["python", "scripts/dev/aarch64.py", *(argv or sys.argv[1:])]))
        print(f"\n{page}")
        if arguments.write:
            Path(arguments.write).write_text(page, encoding="utf-8")
    return 1 if any(part.failed or part.ended for _, parts in runs for part in parts) else 0


if __name__ == "__main__":
    sys.exit(main())
