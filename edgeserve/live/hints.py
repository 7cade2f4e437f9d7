"""Hints from clients or from users' code: their check, and the handling of unusable ones.

A request's own hints are checked when it is asked (``request.py``), predicted ones when a function returned them
(``predict/serving/``), and those of results here. A hint is a help, never a condition: where a prediction or a sent
value cannot be used, the request goes on without it, a warning is logged once, and it is counted. Which hints mean
something is ``edgeserve/config/hints.py``'s; what a policy makes of them is the policy's.
"""

from __future__ import annotations

import logging
import reprlib
import threading
from typing import Any, Dict, Mapping, Optional

import numpy as np

from edgeserve.config.limits import HINTS_MAX, NAME_CHARS_MAX, NUMBER_MAX

log = logging.getLogger("edgeserve")

A_NUMBER = "a number from -2^63 to 2^63"

COUNTED_MAX = 256
"""Names that are counted: a function that makes one up for every request must not make the table grow without end."""

OTHER_HINTS = "(other hints)"
ALL_HINTS = "(all)"
NAMELESS = "(no name)"

SHOWN_CHARS_MAX = 200
"""The most characters of a value in a message."""

_brief = reprlib.Repr()  # a list of a million numbers is not written out first and cut then: the loop would wait
_brief.maxstring = _brief.maxother = SHOWN_CHARS_MAX


class IgnoredHints:
    """Hints that requests went without, by name. The first of each is told with its traceback, if it has one; what
    fails always would fill the log otherwise. May be asked from any thread."""

    def __init__(self) -> None:
        self._counts: Dict[str, int] = {}
        self._lock = threading.Lock()

    def add(self, hint: str, error: Optional[BaseException], message: str, *arguments: Any) -> None:
        """Count one more of a hint, and log the first. ``message`` and ``arguments`` are the log's."""
        with self._lock:
            if hint not in self._counts and len(self._counts) >= COUNTED_MAX:
                hint = OTHER_HINTS
            count = self._counts[hint] = self._counts.get(hint, 0) + 1
        log.log(
            logging.WARNING if count == 1 else logging.DEBUG,
            message,
            *arguments,
            exc_info=error if count == 1 else None,
        )

    def counts(self) -> Dict[str, int]:
        """Hint -> how often it was left out since start."""
        with self._lock:
            return dict(self._counts)


class ResultHints:
    """Reads the hints of results. Belongs to the loop's thread."""

    def __init__(self) -> None:
        self._ignored: Dict[str, IgnoredHints] = {}  # by model, where one gave a wrong hint

    def of(self, model: str, said: Any) -> Optional[Dict[str, float]]:
        """The usable ``hints`` of a result, in a table of its own: the function that returned them may
        change its own later. ``None`` when nothing can be used. Never raises."""
        found: Dict[str, float] = {}
        try:
            if not isinstance(said, Mapping) or len(said) > HINTS_MAX:
                self._ignore(model, ALL_HINTS, f"{show(said)}, expected at most {HINTS_MAX} names with a number each")
                return None
            for name, value in said.items():
                number = number_of(value)
                if not is_name(name):
                    self._ignore(
                        model,
                        NAMELESS,
                        f"{show(name)}: {show(value)}, expected a name of 1 to {NAME_CHARS_MAX} printable characters",
                    )
                elif number is None:
                    self._ignore(model, str(name), f"{show(name)}: {show(value)}, expected {A_NUMBER}")
                else:
                    found[str(name)] = number
        except (Exception, SystemExit) as error:  # a user's own kind of mapping or number; it must not end the loop
            self._ignore(model, ALL_HINTS, f"what raised {show(error)} when it was read", error)
            return None
        return found or None

    def ignored_hints(self, model: str) -> Dict[str, int]:
        """Hint -> how many results of a model went without it since start, because it could not be used."""
        left_out = self._ignored.get(model)
        return left_out.counts() if left_out is not None else {}

    def _ignore(self, model: str, hint: str, what: str, error: Optional[BaseException] = None) -> None:
        self._ignored.setdefault(model, IgnoredHints()).add(
            hint,
            error,
            "model %r returned hints that cannot be used: %s; the request goes on without, and stats() "
            "counts it under 'ignored_hints'",
            model,
            what,
        )


def is_name(name: Any) -> bool:
    """True if it can be a name of a hint or an input: text that can be sent, shown and kept in a table."""
    return isinstance(name, str) and 0 < len(name) <= NAME_CHARS_MAX and name.isprintable()


def number_of(value: Any) -> Optional[float]:
    """A hint's number as Python's own (numpy's could not be recorded), or ``None`` for any other value: no number, a
    truth value, not finite, beyond ``NUMBER_MAX``."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        number: int | float = int(value)
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
