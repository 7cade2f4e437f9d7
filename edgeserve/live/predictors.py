"""What an app's functions say of a request before it is accepted: facts predicted from its inputs.

``[app.NAME.predict]`` names a function per fact. A prediction is a help, never a condition: where a function raises or
returns no number, the request goes on without that fact, and people are told once. Which facts mean something is
``edgeserve/config/hints.py``'s; what a policy makes of them is the policy's.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple

from edgeserve.config.schema import AppConfig
from edgeserve.engines.python import import_function
from edgeserve.live.hints import A_NUMBER, LeftOut, number_of, show


class Predictor(NamedTuple):
    """One line of the table: which fact, the function as it is written there, and the function."""

    fact: str
    spec: str
    function: Callable[[Mapping[str, Any]], Any]


class Predictors:
    """The predictors of one app. Asked from any thread: the callers' when embedded, the loop's over the bus. Knows no
    clock and bounds no time; whoever writes a predictor keeps it short."""

    __slots__ = ("_app", "_predictors", "_left_out")

    def __init__(self, app: AppConfig, directory: str) -> None:
        self._app = app.name
        self._predictors = load_predictors(app, directory)
        self._left_out = LeftOut()

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
        return self._left_out.counts()

    def _fail(self, predictor: Predictor, reason: str, error: BaseException | None) -> None:
        self._left_out.add(predictor.fact, error, "[app.%s.predict] %r = %r failed: %s; the request goes on without "
                           "this fact, and stats() counts it under 'unpredicted'", self._app, predictor.fact,
                           predictor.spec, reason)


def load_predictors(app: AppConfig, directory: str) -> List[Predictor]:
    """The functions of ``[app.NAME.predict]``, imported. What cannot be raises an error that names the key."""
    return [Predictor(fact, spec, import_function(spec, directory, f"[app.{app.name}.predict] {fact!r}"))
            for fact, spec in app.predict.items()]
