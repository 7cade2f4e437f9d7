"""Hints that an app's functions predict from a request's inputs before it is accepted.

``[app.NAME.predict]`` names a function per hint. A prediction is a help, never a condition: where a function raises,
returns no number or takes too long, the request goes on without that hint, and people are told once. Which hints mean
something is ``edgeserve/config/hints.py``'s; what a policy makes of them is the policy's.

Callers in this process predict on their own thread (:meth:`Predictors.on_arrival`); requests of the bus, on that of
``live/prediction_worker.py``.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from edgeserve.config.schema import AppConfig, Config, ModelConfig
from edgeserve.engines import lane_info, make_engine
from edgeserve.engines.functions import import_function
from edgeserve.errors import EdgeServeError
from edgeserve.live.hints import A_NUMBER, IgnoredHints, number_of, show
from edgeserve.units import ns_to_ms

log = logging.getLogger("edgeserve")


class Predictor(NamedTuple):
    """One line of the table: which hint, the function as it is written there, and the function."""

    hint: str
    spec: str
    function: Callable[[Mapping[str, Any]], Any]


class Predictors:
    """The predictors of one app, and how long they took: the hook of :class:`~edgeserve.live.plug_ins.HintSource`.
    ``lengths``: of ``answer_lengths.py``. Asked from any thread; knows no clock but the one that it is handed."""

    def __init__(
        self,
        app: AppConfig,
        directory: str,
        counters: Sequence[Predictor] = (),
        lengths: Any = None,
    ) -> None:
        self._app = app.name
        self.usual: Mapping[str, float] = {}
        own = load_predictors(app, directory)
        named = {predictor.hint for predictor in own}
        if lengths is not None:
            counters = [*counters, *lengths.predictors]
            self.usual = {"steps": lengths.steps({}), "steps_sd": lengths.steps_sd({})}
        self._predictors = own + [counter for counter in counters if counter.hint not in named]
        self._ignored = IgnoredHints()
        self._lock = threading.Lock()
        self._count = 0
        self._took_ns = 0
        self._without = 0

    def missing(self, hints: Optional[Mapping[str, float]]) -> bool:
        """True if a request with these hints leaves anything to predict."""
        return not hints or any(predictor.hint not in hints for predictor in self._predictors)

    def on_arrival(
        self, hints: Optional[Mapping[str, float]], inputs: Mapping[str, Any], clock_ns: Callable[[], int]
    ) -> Optional[Dict[str, float]]:
        """``hints`` with the predicted ones (``None`` without any); the request's own hints take precedence.
        Never raises."""
        began_ns = clock_ns()
        found = dict(hints or {})
        for predictor in self._predictors:
            if predictor.hint in found:
                continue
            try:
                returned = predictor.function(inputs)
            except (Exception, SystemExit) as error:  # a user's function; it must not end the thread that asks it
                self._fail(predictor, f"it raised {show(error)}", error)
                continue
            number = number_of(returned)
            if number is None:
                self._fail(predictor, f"it returned {show(returned)}, expected {A_NUMBER}", None)
            else:
                found[predictor.hint] = number
        with self._lock:
            self._count += 1
            self._took_ns += clock_ns() - began_ns
        return found or None

    def went_without(self, why: str) -> None:
        """A request did not wait for its prediction any longer."""
        with self._lock:
            self._without += 1
            first = self._without == 1
        log.log(
            logging.WARNING if first else logging.DEBUG,
            "[app.%s.predict]: a request goes on without its "
            "prediction: %s; stats() counts these requests under 'predictions'",
            self._app,
            why,
        )

    def failed(self) -> Dict[str, int]:
        """The number of requests since start that lack a hint because its predictor failed, by hint."""
        return self._ignored.counts()

    def table(self) -> Dict[str, Any]:
        """The number of predicted requests, the average time of a prediction, and the number of requests that did
        not wait."""
        with self._lock:
            return {
                "count": self._count,
                "mean_ms": ns_to_ms(self._took_ns) / max(1, self._count),
                "went_without": self._without,
            }

    def _fail(self, predictor: Predictor, reason: str, error: BaseException | None) -> None:
        self._ignored.add(
            predictor.hint,
            error,
            "[app.%s.predict] %r = %r failed: %s; the request goes on without "
            "this hint, and stats() counts it under 'failed_predictions'",
            self._app,
            predictor.hint,
            predictor.spec,
            reason,
        )


def prompt_counter(model: ModelConfig, app: AppConfig, config: Config) -> Predictor:
    """The predictor of hint ``tokens``: it counts a prompt's tokens with the tokenizer of the app's language model. An
    engine is made for that, and never loaded."""
    lanes = [lane_info(config, name) for name in model.lanes or config.lanes]
    engine: Any = make_engine(model, lanes[:1], config.directory)
    try:
        engine.count_tokens({"prompt": "Hello"})  # opens the tokenizer: the first request could not wait for it
    except EdgeServeError as error:
        log.debug("[app.%s]: the tokenizer of model %r was not opened at start: %s", app.name, model.name, error)
    return Predictor("tokens", f"the tokenizer of model {model.name!r}", engine.count_tokens)


def load_predictors(app: AppConfig, directory: str) -> List[Predictor]:
    """The functions of ``[app.NAME.predict]``, imported. What cannot be raises an error that names the key."""
    return [
        Predictor(hint, spec, import_function(spec, directory, f"[app.{app.name}.predict] {hint!r}"))
        for hint, spec in app.functions.items()
    ]
