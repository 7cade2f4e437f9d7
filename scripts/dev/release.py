"""Build a release and try it as its users will: ``make release``.

    python scripts/dev/release.py [--out dist] [--python 3.8 3.13 ...] [--arch x86_64 aarch64] [--pure]

Builds the source distribution, and the pure wheel out of that; looks into both; has ``twine check`` read the page that
an index would show. Then, for the oldest and the newest Python found (or those named), the wheel alone goes into a new
environment, away from the sources: ``pip check``, ``edgeserve doctor``, a server started from a configuration of ten
lines, a question by ``edgeserve infer`` and one by ``Client``. A compiled wheel follows for each Python from 3.8 to
3.13 that is found and each architecture (``build_wheels.py``; not with ``--pure``), and ``SHA256SUMS``. Publishing is
rehearsed: ``twine`` uploads all to an index of this machine, from which each Python gets its wheel. The container file
is built where a builder runs. Nothing leaves the machine. Exit status 1 when something is wrong.
"""

from __future__ import annotations

import argparse
import email
import fnmatch
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Collection, Dict, List, Mapping, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/
from dev.build_wheels import MACHINES, ROOT, build_all, call, environment_of, found_pythons, sources_copied
from dev.rehearsal import rehearse

NAME = "edgeserve_runtime"
BUILD_NEEDS = ("build>=1.0", "twine>=5")
NEVER_PACKED = ("*/__pycache__/*", "*.pyc", "*.so")
SOURCES_TOO = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "edgeserve/compiled.py")
"""Files that the source distribution needs besides the package's files."""

READY_S_MAX = 60.0

CONFIG = """\
[server]
endpoint = "ipc://{place}/bus"

[model.double]
engine = "python"
function = "model:double"

[app.double]
model = "double"
slo = "10s"
"""
MODEL = 'def double(inputs):\n    return {"y": inputs["x"] * 2}\n'
ASK = """\
import sys
import numpy as np
from edgeserve import Client
np.save("x.npy", np.arange(3))
with Client(sys.argv[1]) as bus:
    answer = bus.infer("double", {"x": np.arange(3)})
    assert answer["y"].tolist() == [0, 2, 4], answer
    print("answered in time" if not answer.late else "answered late")
"""


def package_files(root: Path = ROOT) -> List[str]:
    """Every file that the package consists of, relative to the root."""
    found = sorted(path.relative_to(root).as_posix() for path in (root / "edgeserve").rglob("*") if path.is_file())
    return [name for name in found if not any(fnmatch.fnmatch(name, pattern) for pattern in NEVER_PACKED)]


def version_in(text: str) -> str:
    """The version that ``edgeserve/__init__.py`` states: the one place of it."""
    return re.findall(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)[0]


def wheel_problems(names: Collection[str], expected: Sequence[str], metadata: str, version: str) -> List[str]:
    """The faults of a wheel of these files, for a package of the ``expected`` ones."""
    info = f"{NAME}-{version}.dist-info/"
    problems = [
        f"{name} is missing: [tool.setuptools.package-data] in pyproject.toml says what is packed besides modules"
        for name in expected
        if name not in names
    ]
    problems += [
        f"{name} does not belong into the wheel"
        for name in sorted(names)
        if name not in expected and not name.startswith(info)
    ]
    said = email.message_from_string(metadata)
    for key, value in (
        ("Name", "edgeserve-runtime"),
        ("Version", version),
        ("Requires-Python", ">=3.8"),
        ("Description-Content-Type", "text/markdown"),
    ):
        if said[key] != value:
            problems.append(f"metadata: {key} is {said[key]!r}, expected {value!r}")
    if not any(name.startswith(info) and name.endswith("LICENSE") for name in names):
        problems.append("the licence is missing")
    return problems


def look_into_wheel(path: str, root: Path = ROOT) -> List[str]:
    """The faults of the wheel in a file, beside the sources below ``root``."""
    version = version_in((root / "edgeserve" / "__init__.py").read_text(encoding="utf-8"))
    with zipfile.ZipFile(path) as packed:
        names = packed.namelist()
        metadata = next((name for name in names if name.endswith(".dist-info/METADATA")), "")
        text = packed.read(metadata).decode() if metadata else ""
    return wheel_problems(names, package_files(root), text, version)


def look_into_sources(path: str) -> List[str]:
    """The files that a source distribution lacks."""
    with tarfile.open(path) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    return [
        f"{name} is missing from {os.path.basename(path)}"
        for name in (*package_files(), *SOURCES_TOO)
        if name not in names
    ]


def changelog_problems(changes: str, version: str, node: str, tag: str = "") -> List[str]:
    """The other places where the version stands: the newest heading of CHANGELOG.md, with its date where the
    commit has a tag; the tag; and the package of Node.js."""
    newest, when = (re.findall(r"(?m)^## (\S+?), (.*)$", changes) or [("", "")])[0]
    problems = [] if newest == version else [f"CHANGELOG.md: its newest version is {newest!r}, not {version}"]
    if tag and tag != f"v{version}":
        problems.append(f"this commit is tagged {tag}, expected v{version}")
    if tag and not re.fullmatch(r"\d{4}-\d\d-\d\d", when):
        problems.append(f"CHANGELOG.md: {version} is {when!r}; a release has its date, such as 2026-01-31")
    if json.loads(node)["version"] != version:
        problems.append(f"clients/node/package.json: version {json.loads(node)['version']}, expected {version}")
    return problems


def tag_of_head() -> str:
    """The tag of a version that this commit has; nothing where it has none."""
    done = subprocess.run(["git", "tag", "--points-at", "HEAD", "v*"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def cleared(out: str) -> str:
    """Make the folder for what is built, without what an earlier release left there: all of it will be published."""
    os.makedirs(out, exist_ok=True)
    for old in (*Path(out).glob(f"{NAME}-*"), *Path(out).glob("SHA256SUMS")):
        old.unlink()
    return out


def publish(pythons: Mapping[str, str], version: str, out: str) -> List[str]:
    """Write the digests of what was built, and rehearse its upload; lines to print. Raises ``RuntimeError``."""
    files = sorted(path for path in Path(out).iterdir() if path.name.startswith(f"{NAME}-{version}"))
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in files]
    Path(out, "SHA256SUMS").write_text("\n".join(sums) + "\n", encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="edgeserve-publish-") as place:
        uploader = environment_of(pythons[max(pythons, key=minor)], os.path.join(place, "venv"), BUILD_NEEDS, place)
        got = rehearse(uploader, list(pythons.values()), [str(path) for path in files], version, place)
    return [f"Python {name} gets {file}" for name, file in zip(pythons, got)]


def build_container() -> str:
    """Build the container file for x86-64 where a builder runs; a line to print. Raises ``RuntimeError``."""
    file = "scripts/docker/Dockerfile.x86"
    for builder in ("docker", "podman"):
        if shutil.which(builder) and subprocess.run([builder, "info"], capture_output=True).returncode == 0:
            call([builder, "build", "--file", file, "--tag", f"{NAME}:rehearsal", "."], str(ROOT))
            return f"{file}: built by {builder}"
    return f"{file}: not built, since no builder runs here (docker info, podman info)"


def build(python: str, place: str, out: str) -> Dict[str, str]:
    """Kind (``whl``, ``gz``) -> path of what was built and read by ``twine check``."""
    sources = sources_copied(place)
    builder = environment_of(python, os.path.join(place, "build"), BUILD_NEEDS, place)
    call([builder, "-m", "build", "--outdir", out, sources], place)
    version = version_in((ROOT / "edgeserve" / "__init__.py").read_text(encoding="utf-8"))
    built = {
        "gz": os.path.join(out, f"{NAME}-{version}.tar.gz"),
        "whl": os.path.join(out, f"{NAME}-{version}-py3-none-any.whl"),
    }
    call([builder, "-m", "twine", "check", "--strict", *built.values()], place)
    return built


def try_wheel(python: str, wheel: str, place: str) -> str:
    """Install a wheel into a new environment and use it; what the question's answer was. Raises ``RuntimeError``."""
    inside = environment_of(python, os.path.join(place, "venv"), [wheel], place)
    alone = {"PYTHONPATH": "", "XDG_RUNTIME_DIR": place, "XDG_CACHE_HOME": os.path.join(place, "cache")}
    command = os.path.join(os.path.dirname(inside), "edgeserve")
    for name, text in (("edge.toml", CONFIG.format(place=place)), ("model.py", MODEL), ("ask.py", ASK)):
        Path(place, name).write_text(text, encoding="utf-8")
    call([inside, "-m", "pip", "check"], place, alone)
    call([command, "doctor", "edge.toml"], place, alone)
    server = subprocess.Popen(
        [command, "serve", "edge.toml"],
        cwd=place,
        env={**os.environ, **alone},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        wait_for(server, os.path.join(place, "bus"))
        endpoint = f"ipc://{place}/bus"
        said = call([inside, "ask.py", endpoint], place, alone).strip()
        call([command, "infer", "double", "--in", "x=x.npy", "--endpoint", endpoint], place, alone)
    finally:
        server.send_signal(signal.SIGTERM)
        output = server.communicate(timeout=30)[0]
    if server.returncode != 0:
        raise RuntimeError(f"the server ended with {server.returncode}:\n{output[-3000:]}")
    return said


def wait_for(server: subprocess.Popen[str], path: str) -> None:
    """Until the server listens."""
    end_s = time.monotonic() + READY_S_MAX
    while not os.path.exists(path):
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with {server.returncode} before it was ready")
        if time.monotonic() > end_s:
            raise RuntimeError(f"the server was not ready within {READY_S_MAX:g} s")
        time.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="dist", help="folder for what is built (default %(default)s)")
    parser.add_argument("--python", nargs="+", default=[], metavar="3.N", help="default: all found from 3.8 to 3.13")
    parser.add_argument("--arch", nargs="+", default=list(MACHINES), choices=list(MACHINES), help="default: both")
    parser.add_argument("--pure", action="store_true", help="no compiled wheels")
    args = parser.parse_args()
    found = found_pythons(args.python)
    missing = [version for version in args.python if version not in found] or (["3.8 to 3.13"] if not found else [])
    if missing:
        parser.error(f"no Python {', '.join(missing)} with venv is here; name others with --python")
    out = cleared(os.path.abspath(args.out))
    ends = {min(found, key=minor), max(found, key=minor)}
    pythons = {version: found[version] for version in args.python or ends if version in found}
    version = version_in((ROOT / "edgeserve" / "__init__.py").read_text(encoding="utf-8"))
    problems = changelog_problems(
        (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
        version,
        (ROOT / "clients" / "node" / "package.json").read_text(encoding="utf-8"),
        tag_of_head(),
    )
    with tempfile.TemporaryDirectory(prefix="edgeserve-release-") as place:
        try:
            built = build(pythons[max(pythons, key=minor)], place, out)
            problems += look_into_sources(built["gz"]) + look_into_wheel(built["whl"])
        except RuntimeError as error:
            built = {}
            problems.append(str(error))
    for name, python in sorted(pythons.items(), key=lambda item: minor(item[0])) if built else ():
        with tempfile.TemporaryDirectory(prefix="edgeserve-try-") as place:
            try:
                print(f"Python {name}: installed, doctor content, {try_wheel(python, built['whl'], place)}", flush=True)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                problems.append(f"Python {name}: {error}")
    if built and not args.pure:
        problems += build_all(found, args.arch, "2", out, with_pure=False)
    if built and not problems:
        try:
            print(*publish(found, version, out), sep="\n")
            print(build_container())
        except RuntimeError as error:
            problems.append(str(error))
    print("\n".join(problems) or f"{NAME} {version}: " + ", ".join(map(os.path.basename, sorted(built.values()))))
    return 1 if problems else 0


def minor(version: str) -> int:
    """``3.10`` -> 10."""
    return int(version.partition(".")[2])


if __name__ == "__main__":
    sys.exit(main())
