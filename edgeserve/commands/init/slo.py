"""Deadlines: what a request's time should be, by a rate, by a measurement, or as the user says. Pure."""

from __future__ import annotations

from typing import Dict, NamedTuple, Optional, Sequence

from edgeserve.errors import ConfigError, nearest
from edgeserve.units import NS_PER_MS, NS_PER_S, format_duration, parse_duration_ns

ROOM = 3
"""A guessed deadline is so many times the measured time: one request that runs already, its own time, and as much again
for what else the machine does."""

SLO_NS_MIN = 50 * NS_PER_MS
"""No guess is shorter. The first request of a process brings its image to the server in some 20 ms on a busy machine,
and a model of one millisecond takes ten when the runs at start meet another program: a guess of 10 ms was refused at
the very first request. Who needs less says so."""

LM_SLO_NS = 30 * NS_PER_S
"""An answer of a language model: a few hundred tokens on a small device."""


class Slo(NamedTuple):
    """A deadline, and why it was chosen. ``fits`` is false where the model alone takes longer."""

    slo_ns: int
    why: str
    fits: bool = True


def choose_slo(alone_ns: Optional[int], others_ns: int, rate: float, given_ns: int) -> Slo:
    """The deadline of an app whose model takes ``alone_ns`` (``None``: it could not be tried) beside others of which
    the longest takes ``others_ns``. ``rate`` and ``given_ns`` of 0: not given."""
    if given_ns:
        return Slo(given_ns, "as --slo says", alone_ns is None or alone_ns <= given_ns)
    if rate > 0:
        period_ns = int(NS_PER_S / rate)
        fits = alone_ns is None or alone_ns <= period_ns
        if not fits:
            assert alone_ns is not None
            slow_ns = round_up(ROOM * alone_ns)
            return Slo(
                slow_ns,
                f"{rate:g} requests per second leave {format_duration(period_ns)} each, and one takes "
                f"{format_duration(alone_ns)}: this rate cannot be met here",
                False,
            )
        return Slo(
            max(period_ns // NS_PER_MS * NS_PER_MS, NS_PER_MS),
            f"{rate:g} requests per second: each is answered before the next one comes",
        )
    if alone_ns is None:
        return Slo(LM_SLO_NS, "a guess: nothing was measured; correct it")
    others = f" beside another model's {format_duration(others_ns)}" if others_ns else ""
    return Slo(
        round_up(max(SLO_NS_MIN, ROOM * alone_ns + others_ns)),
        f"a guess: one takes {format_duration(alone_ns)} here{others}; set what your users need",
    )


def round_up(value_ns: int) -> int:
    """The next duration that people would write: 10, 15, 20, 25, 30, 40, 50, 60, 80 and 100 of a unit."""
    unit = NS_PER_MS
    while value_ns > 100 * unit:
        unit *= 10
    for step in (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100):
        if value_ns <= step * unit:
            return step * unit
    return value_ns


def read_slo_ns(text: str) -> int:
    """``--slo`` in nanoseconds; 0 where it is left out."""
    if not text:
        return 0
    try:
        slo_ns = parse_duration_ns(text)
    except ValueError as error:
        raise ConfigError(f"--slo: {error}") from None
    if slo_ns <= 0:
        raise ConfigError(f"--slo {text}: expected a time above 0")
    return slo_ns


def read_rates(words: Sequence[str], apps: Sequence[str], optional_app: bool = True) -> Dict[str, float]:
    """``--rate APP=30`` per app; ``--rate 30`` is that of every app, where ``optional_app`` allows it or there is only
    one."""
    rates: Dict[str, float] = {}
    said = [word.rpartition("=")[0] for word in words]
    for word in words:
        app, mark, text = word.rpartition("=")
        try:
            rate = float(text)
        except ValueError:
            rate = 0.0
        if not 0 < rate < 1e6:
            raise ConfigError(
                f"--rate {word!r}: expected requests per second above 0 and below 1e6, such as --rate 30 or --rate "
                f"{apps[0] if apps else 'APP'}=30"
            )
        if not mark and not optional_app and len(apps) > 1:
            raise ConfigError(
                f"--rate {word!r}: say of which app it is, such as --rate {apps[0]}={text} (apps: {', '.join(apps)})"
            )
        if said.count(app) > 1:
            raise ConfigError(f"--rate {word!r}: another --rate says the same of {app or 'all apps'}; leave one out")
        if mark and app not in apps:
            raise ConfigError(f"--rate {word!r}: there is no app {app!r}{nearest(app, apps)}")
        for name in [app] if mark else apps:
            rates[name] = rate
    return rates
