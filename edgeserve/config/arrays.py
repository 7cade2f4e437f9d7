"""Arrays in numpy's files: a size that a head claims is compared with the bytes that there are before it is believed.

``numpy.load`` makes room for what a head says before it reads, and unpacks what an archive holds without a bound.
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from tokenize import TokenError
from typing import IO, Any, Dict, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.config.text_files import regular_file

NPY = b"\x93NUMPY"

ARCHIVE_BYTES_MAX = 1024**3
"""The most bytes of all arrays of an archive together: a history of a million requests to five models of fifty
classes."""

MEMBERS_MAX = 4096

COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def npy_head(file: IO[bytes]) -> Tuple[Tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns come first, and dtype, of a ``.npy`` file without objects. Raises :class:`ValueError`."""
    forms: Any = np.lib.format
    try:
        version = forms.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"it is of version {version}")
        head: Any = forms.read_array_header_1_0(file) if version == (1, 0) else forms.read_array_header_2_0(file)
        shape, is_fortran, dtype = head
        if dtype.hasobject or any(size < 0 for size in shape):
            raise ValueError(f"its head says {dtype} {list(shape)}")
    except (OverflowError, EOFError, TokenError, MemoryError, RecursionError, TypeError) as error:  # parsed as Python
        raise ValueError(f"its head cannot be read: {error}") from None
    return shape, is_fortran, dtype


def array_of_npy(data: bytes) -> NDArray[Any]:
    """The array over a ``.npy`` file's bytes. Raises :class:`ValueError`."""
    file = io.BytesIO(data)
    shape, is_fortran, dtype = npy_head(file)
    left = len(data) - file.tell()
    if math.prod(shape) * dtype.itemsize != left:
        raise ValueError(f"it has {left} bytes behind a head that says {dtype} {list(shape)}")
    return np.frombuffer(data, dtype, offset=file.tell()).reshape(shape, order="F" if is_fortran else "C")


def read_npz(path: str, bytes_max: int = ARCHIVE_BYTES_MAX) -> Dict[str, NDArray[Any]]:
    """The arrays of a ``.npz`` file by name. Raises :class:`OSError` where it cannot be read and :class:`ValueError`
    where it is none, or has more than ``bytes_max``."""
    try:
        with open(path, "rb", opener=regular_file) as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if len(members) > MEMBERS_MAX or sum(member.file_size for member in members) > bytes_max:
                raise ValueError(f"it says that it holds more than {bytes_max} bytes, or {MEMBERS_MAX} arrays")
            if any(member.compress_type not in COMPRESSIONS for member in members):
                raise ValueError("it is compressed in a way that numpy does not use")
            return {_name_of(member.filename): _read(archive, member) for member in members}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:  # damaged, encrypted
        raise ValueError(str(error)) from None


def _name_of(file: str) -> str:
    return file[: -len(".npy")] if file.endswith(".npy") else file


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as file:
        shape, is_fortran, dtype = npy_head(file)
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes > member.file_size:
            raise ValueError(f"{member.filename}: its head says {dtype} {list(shape)}, it has {member.file_size} bytes")
        data = bytearray(file.read(nbytes))
    if len(data) != nbytes:
        raise ValueError(f"{member.filename}: its head says {dtype} {list(shape)}, {len(data)} bytes follow")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if is_fortran else "C")
