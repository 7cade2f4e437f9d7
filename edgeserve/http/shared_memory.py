"""System shared memory of clients on this machine: regions that requests name instead of carrying their tensors.

A region is read and written through its file, never mapped: a client that shrinks it gets a typed error, where a mapped
one would end this process. A key is a plain name in ``/dev/shm``; it is opened without following links, and only when
it belongs to this process's user.
"""

from __future__ import annotations

import os
import re
import stat
from typing import Any, Dict, List, NamedTuple, Optional

from edgeserve.errors import BadInput
from edgeserve.http.failures import NotServed

FOLDER = "/dev/shm"
REGIONS_MAX = 256
_KEY = re.compile(r"/?[A-Za-z0-9_.-]{1,200}")

OFF = (
    "shared memory is off: start the front with --shared-memory (or [http] shared_memory = true), which lets "
    "clients name shared memory of the user that it runs as"
)


class Region(NamedTuple):
    """A registered piece of a file in ``/dev/shm``."""

    name: str
    key: str
    offset: int
    byte_size: int
    file: int


class Regions:
    """The regions that clients registered, by their names. ``folder`` of None: shared memory is off."""

    def __init__(self, folder: Optional[str] = FOLDER) -> None:
        self._folder = folder
        self._regions: Dict[str, Region] = {}

    def register(self, name: str, key: Any, offset: Any, byte_size: Any) -> None:
        """Make a region known. Raises :class:`BadInput` for a name in use, a key that is none, a file that is not this
        user's, or a size beyond the file's."""
        self._check_on()
        if not 0 < len(name) <= 128:
            raise BadInput(f"shared memory region {name[:40]!r}: expected a name of 1 to 128 characters")
        if name in self._regions:
            raise BadInput(f"shared memory region {name!r} is registered already; unregister it first")
        if len(self._regions) >= REGIONS_MAX:
            raise BadInput(f"{REGIONS_MAX} shared memory regions are registered, the most there may be; forget some")
        if not isinstance(key, str) or not _KEY.fullmatch(key) or set(key) <= {"/", "."}:
            raise BadInput(
                f"shared memory key {str(key)[:40]!r}: expected '/' and a name of letters, digits, '_', '-' and '.'"
            )
        if not all(type(number) is int and number >= 0 for number in (offset, byte_size)) or not byte_size:
            raise BadInput(
                f"shared memory region {name!r}: offset {offset!r} and byte_size {byte_size!r}: expected "
                f"whole numbers of bytes, the size above 0"
            )
        self._regions[name] = Region(name, key, offset, byte_size, self._open(name, key, offset + byte_size))

    def _open(self, name: str, key: str, end: int) -> int:
        assert self._folder is not None, "checked by the caller"
        path = os.path.join(self._folder, key.lstrip("/"))
        try:
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise BadInput(
                f"shared memory region {name!r}: key {key!r} cannot be opened ({error.strerror}); create it "
                "first, as this front's user"
            ) from None
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_size < end:
            os.close(file)
            raise BadInput(
                f"shared memory region {name!r}: key {key!r} is not a file of this front's user with at "
                f"least {end} bytes"
            )
        return file

    def unregister(self, name: str = "") -> None:
        """Forget a region, or all of them. One that is not registered is no error, as the protocol has it."""
        for gone in [name] if name else list(self._regions):
            region = self._regions.pop(gone, None)
            if region is not None:
                os.close(region.file)

    def table(self, name: str = "") -> List[Dict[str, Any]]:
        """What is registered: all regions or one."""
        if name:
            self._get(name)
        return [
            {"name": region.name, "key": region.key, "offset": region.offset, "byte_size": region.byte_size}
            for region in self._regions.values()
            if name in ("", region.name)
        ]

    def read(self, name: Any, offset: int, byte_size: int) -> bytes:
        """A copy of a part of a region."""
        region = self._part(name, offset, byte_size)
        data = os.pread(region.file, byte_size, region.offset + offset)
        if len(data) != byte_size:
            raise BadInput(
                f"shared memory region {name!r} was made smaller than {offset + byte_size} bytes since it "
                f"was registered"
            )
        return data

    def write(self, name: Any, offset: int, byte_size: int, data: bytes) -> None:
        """Put an output into a part of a region."""
        if len(data) > byte_size:
            raise BadInput(
                f"shared memory region {name!r}: the output has {len(data)} bytes, its part of the region {byte_size}"
            )
        region = self._part(name, offset, byte_size)
        if os.fstat(region.file).st_size < region.offset + offset + byte_size:
            raise BadInput(f"shared memory region {name!r} was made smaller since it was registered")
        os.pwrite(region.file, data, region.offset + offset)

    def _part(self, name: Any, offset: int, byte_size: int) -> Region:
        region = self._get(name)
        if not all(type(number) is int and number >= 0 for number in (offset, byte_size)):
            raise BadInput(
                f"shared memory region {name!r}: offset {offset!r} and byte size {byte_size!r}, expected "
                f"whole numbers from 0"
            )
        if offset + byte_size > region.byte_size:
            raise BadInput(
                f"shared memory region {name!r} has {region.byte_size} bytes, a tensor names {byte_size} "
                f"from {offset} on"
            )
        return region

    def _get(self, name: Any) -> Region:
        self._check_on()
        region = self._regions.get(name) if isinstance(name, str) else None
        if region is None:
            raise BadInput(f"no shared memory region {str(name)[:40]!r} is registered")
        return region

    def _check_on(self) -> None:
        if self._folder is None:
            raise NotServed(OFF)
