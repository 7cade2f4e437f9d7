"""``--interval`` of the commands that look again and again."""

from __future__ import annotations

from edgeserve.errors import ConfigError
from edgeserve.units import format_duration, parse_duration_ns


def read_interval_ns(text: str, least_ns: int) -> int:
    """Nanoseconds of ``--interval TEXT``. Raises :class:`~edgeserve.errors.ConfigError`, also below ``least_ns``."""
    try:
        interval_ns = parse_duration_ns(text)
    except ValueError as error:
        raise ConfigError(f"--interval {error}") from None
    if interval_ns < least_ns:
        raise ConfigError(f"--interval {text}: expected at least {format_duration(least_ns)}")
    return interval_ns
