"""``edgeserve doctor --collect FILE``: the files of this machine that the doctor and the monitor look at, as an
archive. Unpacked, it is what ``edgeserve doctor --root DIR`` looks at, on any machine.

Only what is looked at goes in: board, release, clocks, heat, power, memory. No serial number, no address, no user, no
list of programs.
"""

from __future__ import annotations

import io
import os
import tarfile
from typing import Any, Callable, Tuple

from edgeserve.device.files import looked_at, read_text


def collect(look: Callable[[str], Any], archive: str, root: str = "/") -> int:
    """Have ``look(root)`` look at a machine, and write what it read to a new gzipped tar file; how many files. Raises
    OSError where the file cannot be written or is there already."""
    with looked_at() as seen:
        look(root)
    base, count = os.path.abspath(root), 0
    with open(archive, "xb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as tar:
        for path in sorted(path for path in seen if os.path.exists(path)):
            name, is_folder = os.path.relpath(path, base), os.path.isdir(path)
            text = b"" if is_folder or not os.path.isfile(path) else read_text("", path).encode()  # a node has none
            tar.addfile(*_entry(name, is_folder, text))
            count += not is_folder
    return count


def _entry(name: str, is_folder: bool, text: bytes) -> Tuple[tarfile.TarInfo, io.BytesIO]:
    entry = tarfile.TarInfo(name)
    entry.type = tarfile.DIRTYPE if is_folder else tarfile.REGTYPE
    entry.mode = 0o755 if is_folder else 0o644
    entry.size = len(text)
    return entry, io.BytesIO(text)
