"""The classes of urgency. A class has its meaning here alone: other code asks for its place, never for its name."""

from __future__ import annotations

from typing import Final, Mapping, Tuple

CLASSES: Final[Tuple[str, ...]] = ("critical", "normal", "background")
"""From most to least urgent: a class goes before all that stand behind it."""

RESERVED: Final[Tuple[str, ...]] = CLASSES[:1]
"""Classes whose requests other work may not make late: lanes keep room for the requests that are expected."""

YIELDING: Final[Tuple[str, ...]] = CLASSES[-1:]
"""Classes that run only where nothing else waits."""

ORDINARY: Final[Tuple[str, ...]] = tuple([name for name in CLASSES if name not in RESERVED and name not in YIELDING])
"""The classes between: weighed against each other by what they bring, and against the reserved ones."""

USUAL: Final = "normal"
"""The class of an app that names none."""

LEAST: Final = CLASSES[-1]
"""The class of work that no request asked for."""

RANKS: Final[Mapping[str, int]] = {name: rank for rank, name in enumerate(CLASSES)}
"""Class -> its place, 0 for the most urgent."""
