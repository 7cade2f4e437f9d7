"""Numbers too small to be normal count as 0 on a thread (flush to zero, denormals are zero), as
on the threads of lanes. Processors compute with such numbers up to a hundred times as slowly, and a recurrent model
whose stream goes silent makes them step after step.

The setting is a register of each thread, and a thread hands it on to the threads that it makes. The C library's
``fenv`` reads and writes that register; Python code of other threads is not touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import platform
from typing import Any, Iterator, NamedTuple, Optional

ROOM_BYTES = 64
"""More than any C library's ``fenv_t`` takes: 32 bytes on x86-64, 8 on aarch64."""


class Register(NamedTuple):
    """The place of the register in ``fenv_t``, and its bits that turn denormal results, and denormal operands, into
    0."""

    offset: int
    bits: int


REGISTERS = {
    "x86_64": Register(28, 0x8040),
    "aarch64": Register(0, 1 << 24),
}
"""The registers by machine: MXCSR's FTZ and DAZ (Intel SDM 1, 10.2.3) behind the 28 bytes of the x87; FPCR's FZ, which
does both (Arm ARM, FPCR). glibc and musl have them in the same place."""


def flush_to_zero(on: bool = True) -> str:
    """Set the calling thread, and the threads that it makes from now on. Returns why that was not done, or ``""``."""
    register = REGISTERS.get(platform.machine())
    library = _library()
    if register is None or library is None:
        return f"denormal numbers cannot be flushed to zero on {platform.machine()}, or without the C library's fenv"
    room = _now(library)
    with_bits(room, register, on)
    if library.fesetenv(room) != 0 or is_flushing(library) != on:
        return "the C library's fesetenv did not set the processor's register"
    return ""


@contextlib.contextmanager
def flushing(on: bool) -> Iterator[None]:
    """Threads that are made within have the setting; the calling one is afterwards as it was before, even where a
    library changed it."""
    library = _library()
    before = _now(library) if library is not None else None
    if on:
        flush_to_zero()
    try:
        yield
    finally:
        if library is not None:
            library.fesetenv(before)


def with_bits(room: Any, register: Register, on: bool) -> None:
    """Set or clear the register's bits in an ``fenv_t``."""
    place = slice(register.offset, register.offset + 4)
    word = int.from_bytes(bytes(room[place]), "little")
    word = word | register.bits if on else word & ~register.bits
    room[place] = list(word.to_bytes(4, "little"))


def is_flushing(library: Any = None) -> bool:
    """True if the calling thread has the setting, wholly."""
    register, library = REGISTERS.get(platform.machine()), library or _library()
    if register is None or library is None:
        return False
    word = int.from_bytes(bytes(_now(library)[register.offset : register.offset + 4]), "little")
    return word & register.bits == register.bits


def _now(library: Any) -> Any:
    room = (ctypes.c_ubyte * ROOM_BYTES)()
    library.fegetenv(room)
    return room


def _library() -> Optional[Any]:
    """The C library with ``fenv``: what the process has loaded, else glibc's ``libm``."""
    for name in (None, "libm.so.6"):
        try:
            library = ctypes.CDLL(name)
            library.fegetenv, library.fesetenv  # noqa: B018 looked up
        except (OSError, AttributeError):
            continue
        return library
    return None
