"""What an app's functions say of a request before it is accepted: hints predicted from its inputs.

``[app.NAME.predict]`` names a function per hint. A prediction is a help, never a condition: where a function raises or
returns no number, the request goes on without that hint, and people are told once. Which hints mean something is
``edgeserve/config/hints.py``'s; what a policy makes of them is the policy's.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple

from edgeserve.config.schema import AppConfig
from edgeserve.engines.python import import_function
from edgeserve.live.hints import A_NUMBER, IgnoredHints, number_of, show


class Predictor(NamedTuple):
    """One line of the table: which hint, the function as it is written there, and the function."""

    hint: str
    spec: str
    function: Callable[[Mapping[str, Any]], Any]


class Predictors:
    """The predictors of one app. Asked from any thread: the callers' when embedded, the loop's over the bus. Knows no
    clock and bounds no time; whoever writes a predictor keeps it short."""

    __slots__ = ("_app", "_predictors", "_ignored")

    def __init__(self, app: AppConfig, directory: str) -> None:
        self._app = app.name
        self._predictors = load_predictors(app, directory)
        self._ignored = IgnoredHints()

    def complete(self, hints: Mapping[str, float], inputs: Mapping[str, Any]) -> Dict[str, float]:
        """``hints`` and what is predicted besides; what the request says of itself stays. Never raises."""
        found = dict(hints)
        for predictor in self._predictors:
            if predictor.hint in found:
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
                found[predictor.hint] = number
        return found

    def failed(self) -> Dict[str, int]:
        """How many requests went without a hint since start, because its predictor failed."""
        return self._ignored.counts()

    def _fail(self, predictor: Predictor, reason: str, error: BaseException | None) -> None:
        self._ignored.add(predictor.hint, error, "[app.%s.predict] %r = %r failed: %s; the request goes on without "
                           "this hint, and stats() counts it under 'failed_predictions'", self._app, predictor.hint,
                           predictor.spec, reason)


def load_predictors(app: AppConfig, directory: str) -> List[Predictor]:
    """The functions of ``[app.NAME.predict]``, imported. What cannot be raises an error that names the key."""
    return [Predictor(hint, spec, import_function(spec, directory, f"[app.{app.name}.predict] {hint!r}"))
            for hint, spec in app.predict.items()]
