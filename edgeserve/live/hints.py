"""Facts that come from outside or from users' code: what counts as one, and what happens where it does not.

A request's own facts are checked when it is asked (``asked.py``), predicted ones when a function returned them
(``predicted.py``), and those of results here. A fact is a help, never a condition: where what is predicted or said
cannot be used, the request goes on without it, people are told once, and it is counted. Which facts mean something is
``edgeserve/config/hints.py``'s; what a policy makes of them is the policy's.
"""

from __future__ import annotations

import logging
import reprlib
import threading
from typing import Any, Dict, Mapping, Optional

import numpy as np

log = logging.getLogger("edgeserve")

NUMBER_MAX = 2**63
"""The largest fact. Policies multiply facts with nanoseconds and take the product for a float again: this is far enough
for anything that is counted, and far below what a float cannot hold."""

A_NUMBER = "a number from -2^63 to 2^63"

FACTS_MAX = 32
"""Numbers that a request brings, or that a result says: a policy reads a handful, and each costs memory until the
request ends."""

NAME_LEN_MAX = 256
"""Characters of a stream's id and of a fact's name, which are kept in tables."""

COUNTED_MAX = 256
"""Names that are counted: a function that makes one up for every request must not make the table grow without end."""

OTHER_FACTS = "(other facts)"
ALL_FACTS = "(all)"
NAMELESS = "(no name)"

SHOWN_CHARS_MAX = 200
"""Of a value in a message."""

_brief = reprlib.Repr()  # a list of a million numbers is not written out first and cut then: the loop would wait
_brief.maxstring = _brief.maxother = SHOWN_CHARS_MAX


class LeftOut:
    """Facts that requests went without, by name. The first of each is told with its traceback, if it has one; what
    fails always would fill the log otherwise. May be asked from any thread."""

    __slots__ = ("_counts", "_lock")

    def __init__(self) -> None:
        self._counts: Dict[str, int] = {}
        self._lock = threading.Lock()

    def add(self, fact: str, error: Optional[BaseException], message: str, *arguments: Any) -> None:
        """One more. ``message`` and ``arguments`` are the log's."""
        with self._lock:
            if fact not in self._counts and len(self._counts) >= COUNTED_MAX:
                fact = OTHER_FACTS
            count = self._counts[fact] = self._counts.get(fact, 0) + 1
        log.log(logging.WARNING if count == 1 else logging.DEBUG, message, *arguments,
                exc_info=error if count == 1 else None)

    def counts(self) -> Dict[str, int]:
        """Fact -> how often it was left out since start."""
        with self._lock:
            return dict(self._counts)


class Said:
    """Reads the facts of results. Belongs to the loop's thread."""

    __slots__ = ("_left_out",)

    def __init__(self) -> None:
        self._left_out: Dict[str, LeftOut] = {}  # by model, of those that said something wrong

    def of(self, model: str, said: Any) -> Optional[Dict[str, float]]:
        """What can be used of the ``facts`` of a result, in a table of its own: the function that returned them may
        change its own later. ``None`` when nothing can be used. Never raises."""
        found: Dict[str, float] = {}
        try:
            if not isinstance(said, Mapping) or len(said) > FACTS_MAX:
                self._leave_out(model, ALL_FACTS, f"{show(said)}, expected at most {FACTS_MAX} names with a number "
                                                  "each")
                return None
            for name, value in said.items():
                number = number_of(value)
                if not is_name(name):
                    self._leave_out(model, NAMELESS, f"{show(name)}: {show(value)}, expected a name of 1 to "
                                                     f"{NAME_LEN_MAX} printable characters")
                elif number is None:
                    self._leave_out(model, str(name), f"{show(name)}: {show(value)}, expected {A_NUMBER}")
                else:
                    found[str(name)] = number
        except (Exception, SystemExit) as error:  # a user's own kind of mapping or number; it must not end the loop
            self._leave_out(model, ALL_FACTS, f"what raised {show(error)} when it was read", error)
            return None
        return found or None

    def unsaid(self, model: str) -> Dict[str, int]:
        """Fact -> how many results of a model went without it since start, because it could not be used."""
        left_out = self._left_out.get(model)
        return left_out.counts() if left_out is not None else {}

    def _leave_out(self, model: str, fact: str, what: str, error: Optional[BaseException] = None) -> None:
        self._left_out.setdefault(model, LeftOut()).add(
            fact, error, "model %r returned facts that cannot be used: %s; the request goes on without, and stats() "
                         "counts it under 'unsaid'", model, what)


def is_name(name: Any) -> bool:
    """Whether it can be a fact's name: text that can be sent, shown and kept in a table."""
    return isinstance(name, str) and 0 < len(name) <= NAME_LEN_MAX and name.isprintable()


def number_of(value: Any) -> Optional[float]:
    """A fact's number as Python's own (numpy's could not be recorded), or ``None`` for what is none: no number, a
    truth value, not finite, beyond :data:`NUMBER_MAX`."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        number: float = int(value)
    elif isinstance(value, (float, np.floating)):
        number = float(value)
    else:
        return None
    return number if abs(number) <= NUMBER_MAX else None  # nan is not below it either


def show(value: Any) -> str:
    """A value in a message, cut to a bound. Writing it out may fail: Python refuses whole numbers of thousands of
    digits, and a user's class may raise anything."""
    try:
        text = _brief.repr(value)
    except Exception:  # noqa: BLE001 the message is about something else
        return f"a {type(value).__name__}"
    return text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + " ..."
