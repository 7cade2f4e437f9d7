"""What an app's functions say of a request before it is accepted: facts predicted from its inputs.

``[app.NAME.predict]`` names a function per fact. A prediction is a help, never a condition: where a function raises or
returns no number, the request goes on without that fact, and people are told once. Which facts mean something is
``edgeserve/facts.py``'s; what a policy makes of them is the policy's.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

import numpy as np

from edgeserve.config import AppConfig
from edgeserve.engines.python import import_function

log = logging.getLogger("edgeserve")

NUMBER_MAX = 2**63
"""The largest fact. Policies multiply facts with nanoseconds and take the product for a float again: this is far enough
for anything that is counted, and far below what a float cannot hold."""

SHOWN_CHARS_MAX = 200
"""Of a value in a message."""

A_NUMBER = "a number from -2^63 to 2^63"


class Predictor(NamedTuple):
    """One line of the table: which fact, the function as it is written there, and the function."""

    fact: str
    spec: str
    function: Callable[[Mapping[str, Any]], Any]


class Predictors:
    """The predictors of one app. Asked from any thread: the callers' when embedded, the loop's over the bus. Knows no
    clock and bounds no time; whoever writes a predictor keeps it short."""

    __slots__ = ("_app", "_predictors", "_failed", "_lock")

    def __init__(self, app: AppConfig, directory: str) -> None:
        self._app = app.name
        self._predictors = load_predictors(app, directory)
        self._failed: Dict[str, int] = dict.fromkeys(app.predict, 0)
        self._lock = threading.Lock()

    def complete(self, facts: Mapping[str, float], inputs: Mapping[str, Any]) -> Dict[str, float]:
        """``facts`` and what is predicted besides; what the request says of itself stays. Never raises."""
        found = dict(facts)
        for predictor in self._predictors:
            if predictor.fact in found:
                continue
            try:
                returned = predictor.function(inputs)
            except (Exception, SystemExit) as error:  # a user's function; it must not end the loop
                self._fail(predictor, f"it raised {show(error)}", error)
                continue
            number = number_of(returned)
            if number is None:
                self._fail(predictor, f"it returned {show(returned)}, expected {A_NUMBER}", None)
            else:
                found[predictor.fact] = number
        return found

    def failed(self) -> Dict[str, int]:
        """How many requests went without a fact since start, because its predictor failed."""
        with self._lock:
            return {fact: count for fact, count in self._failed.items() if count}

    def _fail(self, predictor: Predictor, reason: str, error: BaseException | None) -> None:
        """Count it. The first of each fact is told, with its traceback; a predictor that fails always would fill the
        log otherwise."""
        with self._lock:
            count = self._failed[predictor.fact] = self._failed[predictor.fact] + 1
        log.log(logging.WARNING if count == 1 else logging.DEBUG,
                "[app.%s.predict] %r = %r failed: %s; the request goes on without this fact, and stats() counts it "
                "under 'unpredicted'", self._app, predictor.fact, predictor.spec, reason,
                exc_info=error if count == 1 else None)


def load_predictors(app: AppConfig, directory: str) -> List[Predictor]:
    """The functions of ``[app.NAME.predict]``, imported. What cannot be raises an error that names the key."""
    return [Predictor(fact, spec, import_function(spec, directory, f"[app.{app.name}.predict] {fact!r}"))
            for fact, spec in app.predict.items()]


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
        text = repr(value)
    except Exception:  # noqa: BLE001 the message is about something else
        return f"a {type(value).__name__}"
    return text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + " ..."
