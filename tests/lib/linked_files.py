"""A copy of a folder that takes no room where the file system allows it: paths of the asset cache may hold no links."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Union


def hard_linked(source: str, target: Union[str, Path]) -> None:
    """``source`` with all its files at ``target``."""
    shutil.copytree(source, target, copy_function=_link)


def _link(source: str, target: str) -> None:
    with contextlib.suppress(OSError):  # another file system, or one without hard links
        os.link(source, target)
        return
    shutil.copy2(source, target)
