"""``edgeserve doctor --collect FILE``: the files of this machine that the doctor and the monitor look at, as an
archive. Unpacked, it is what ``edgeserve doctor --root DIR`` looks at, on any machine.

Only what is looked at goes in: board, release, clocks, heat, power, memory (docs/guide/device.md lists it). No serial
number, no address, no user, no list of programs.
"""

from __future__ import annotations

import errno
import io
import os
import tarfile
from typing import Any, Callable, Dict, Tuple

from edgeserve.config.text_files import write_whole_bytes
from edgeserve.device.files import looked_at, read_text

BYTES_MAX = 8 << 20
"""The bound on the bytes of all files together, unpacked. A board's are some hundred of a few bytes, and
/proc/buddyinfo: 30 kB."""


def collect(look: Callable[[str], Any], archive: str, root: str = "/") -> Dict[str, int]:
    """Have ``look(root)`` look at a machine, and write what it read, :data:`BYTES_MAX` at most, to a new gzipped tar
    file; each file's name and size in bytes. Raises OSError where it cannot be written or is there already."""
    with looked_at() as seen:
        look(root)
    base = os.path.abspath(root)
    taken: Dict[str, int] = {}
    if os.path.lexists(archive):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), archive)
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for path in sorted(path for path in seen if os.path.exists(path)):
            name, is_folder = os.path.relpath(path, base), os.path.isdir(path)
            text = b"" if is_folder or not os.path.isfile(path) else read_text("", path).encode()  # a node has none
            if sum(taken.values()) + len(text) > BYTES_MAX:
                continue
            tar.addfile(*_entry(name, is_folder, text))
            if not is_folder:
                taken[name] = len(text)
    write_whole_bytes(archive, content.getvalue())
    return taken


def _entry(name: str, is_folder: bool, text: bytes) -> Tuple[tarfile.TarInfo, io.BytesIO]:
    entry = tarfile.TarInfo(name)
    entry.type = tarfile.DIRTYPE if is_folder else tarfile.REGTYPE
    entry.mode = 0o755 if is_folder else 0o644
    entry.size = len(text)
    return entry, io.BytesIO(text)
