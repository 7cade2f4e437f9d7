"""Units at the edge: inside EdgeServe time is integer nanoseconds and memory is integer bytes.

Everything a person writes or reads (``"50ms"``, ``"2GiB"``) is converted here and nowhere else.
"""

from __future__ import annotations

import re
from typing import Final

NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000
FOREVER_NS: Final = 2**62  # longer than anything lasts, later than any deadline
PPM: Final = 1_000_000

_DURATION_NS: Final = {
    "ns": 1,
    "us": NS_PER_US,
    "µs": NS_PER_US,
    "ms": NS_PER_MS,
    "s": NS_PER_S,
    "min": 60 * NS_PER_S,
    "h": 3600 * NS_PER_S,
}
_READ_AS: Final = (
    ("h", _DURATION_NS["h"], 2 * _DURATION_NS["h"]),
    ("min", _DURATION_NS["min"], 2 * _DURATION_NS["min"]),
    ("s", NS_PER_S, NS_PER_S),
    ("ms", NS_PER_MS, NS_PER_MS),
    ("us", NS_PER_US, NS_PER_US),
)
"""Unit, its length, and from which duration on it is read: "90s" says more than "1.5min"."""

_SIZE_BYTES: Final = {"b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "kib": 1024, "mib": 1024**2, "gib": 1024**3}
QUANTITY_MAX: Final = 2**63
"""Nanoseconds or bytes that no quantity has: 292 years, 8 EiB."""
_QUANTITY: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zµ]+)\s*\Z", re.IGNORECASE)


def ms_to_ns(value_ms: float) -> int:
    """Milliseconds to nanoseconds, rounded to the nearest."""
    return round(value_ms * NS_PER_MS)


def ns_to_ms(value_ns: float) -> float:
    """Nanoseconds to milliseconds."""
    return value_ns / NS_PER_MS


def s_to_ns(value_s: float) -> int:
    """Seconds to nanoseconds, rounded to the nearest."""
    return round(value_s * NS_PER_S)


def ns_to_s(value_ns: float) -> float:
    """Nanoseconds to seconds."""
    return value_ns / NS_PER_S


def parse_duration_ns(text: str) -> int:
    """``"50ms"``, ``"1.5s"``, ``"2min"`` to nanoseconds; ``ValueError`` names what was expected."""
    return _quantity(text, _DURATION_NS, "a duration with a unit, such as '50ms', '1.5s' or '2min'")


def parse_size_bytes(text: str) -> int:
    """``"64MiB"``, ``"2GB"`` to bytes; ``ValueError`` names what was expected."""
    return _quantity(text, _SIZE_BYTES, "a size with a unit, such as '64MiB' or '2GB'")


def format_duration(value_ns: int, round_up: bool = False) -> str:
    """The shortest reading with three significant digits: ``"12.3ms"``, ``"850us"``, ``"2s"``. ``round_up``: the result
    is never less than the value (from 0 on), as a recommended bound must be."""
    size_ns = abs(value_ns)
    for unit, unit_ns, least_ns in _READ_AS:
        if size_ns >= least_ns:
            if not round_up:
                return f"{value_ns / unit_ns:.3g}{unit}"
            scale = 10 ** max(0, 3 - len(str(value_ns // unit_ns)))
            return f"{-(-value_ns * scale // unit_ns) / scale:g}{unit}"
    return f"{value_ns}ns"


def format_size(value_bytes: int) -> str:
    """The shortest reading with three significant digits: ``"1.5GiB"``, ``"64MiB"``."""
    for unit, name in ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB")):
        if abs(value_bytes) >= unit:
            return f"{value_bytes / unit:.4g}{name}"
    return f"{value_bytes}B"


def counted(count: int, what: str) -> str:
    """``"1 model"``, ``"2 models"``: a number of things whose plural ends in s."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def counted_axes(count: int) -> str:
    """``"1 axis"``, ``"3 axes"``: of an array."""
    return f"{count} {'axis' if count == 1 else 'axes'}"


def _quantity(text: str, units: dict[str, int], expected: str) -> int:
    match = _QUANTITY.match(text) if isinstance(text, str) else None
    if match is None or match.group(2).lower() not in units:
        raise ValueError(f"{text!r}: expected {expected}")
    found = float(match.group(1)) * units[match.group(2).lower()]
    if found >= QUANTITY_MAX:
        raise ValueError(
            f"{text if len(text) < 40 else text[:37] + '...'!r}: expected {expected}, of a size that exists"
        )
    return round(found)
