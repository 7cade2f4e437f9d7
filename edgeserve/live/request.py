"""What was asked, checked before it becomes a request: app, inputs, deadline, class and the rest of the options.

It looks at one request and the configuration, and asks the app's predictors (``predicted.py``). Raises the typed errors
that a client can read; bounds that depend on what else is pending are the world's and the scheduler's.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from edgeserve.config.schema import AppConfig, Config, TensorConfig
from edgeserve.errors import BadInput, ConfigError, DeadlineExpired, UnknownApp, nearest
from edgeserve.live.hints import A_NUMBER, HINTS_MAX, NAME_LEN_MAX, NUMBER_MAX, number_of, show
from edgeserve.live.predictors import Predictors
from edgeserve.live.value_flow import AppPlan
from edgeserve.sched.protocol.events import CLASSES, ON_LATE
from edgeserve.units import format_duration, ms_to_ns

OBJECT_KINDS: Mapping[str, Tuple[type, ...]] = {
    "text": (str,), "bytes": (bytes, bytearray, memoryview), "any": (object,)}
"""Input dtypes that are no arrays."""

SLO_MS_MAX = 1e9
"""About eleven days: beyond that a deadline is a mistake in the unit."""


class RequestOptions(NamedTuple):
    """How whoever asks wants to be treated; ``None`` means as the app says."""

    klass: Optional[str] = None
    value: Optional[float] = None
    stream: Optional[str] = None
    on_late: Optional[str] = None
    hints: Optional[Mapping[str, float]] = None


NO_OPTIONS = RequestOptions()


class ResolvedOptions(NamedTuple):
    """How a request is treated: the options, with the app's own where there was none."""

    klass: str
    value: float
    stream: Optional[str]
    on_late: str
    hints: Optional[Mapping[str, float]]


class InputRule:
    """What one declared input must be."""

    __slots__ = ("name", "dtype", "kinds", "shape", "exact", "optional")

    def __init__(self, app: str, name: str, config: TensorConfig) -> None:
        self.name = name
        self.kinds = OBJECT_KINDS.get(config.dtype)
        self.shape = config.shape
        self.exact = -1 not in config.shape
        self.optional = config.optional
        try:
            self.dtype: Optional[np.dtype[Any]] = None if self.kinds else np.dtype(config.dtype)
        except TypeError:
            raise ConfigError(f"[app.{app}] inputs.{name} dtype = {config.dtype!r}: expected a numpy dtype such as "
                              f"'float32' or 'uint8', or one of {', '.join(sorted(OBJECT_KINDS))}") from None

    def fits(self, value: Any) -> bool:
        if self.kinds is not None:
            return isinstance(value, self.kinds)
        if not isinstance(value, np.ndarray) or value.dtype != self.dtype:
            return False
        if self.exact:
            return value.shape == self.shape
        return len(value.shape) == len(self.shape) and all(
            want in (-1, have) for want, have in zip(self.shape, value.shape))

    def __str__(self) -> str:
        if self.kinds is not None:
            return {"text": "a string", "bytes": "bytes"}.get(next(
                name for name, kinds in OBJECT_KINDS.items() if kinds is self.kinds), "anything")
        shape = ", ".join("any" if size < 0 else str(size) for size in self.shape)
        return f"a numpy array {self.dtype} [{shape}]"


class RequestValidator:
    """All that is checked of a request to one app, prepared once."""

    __slots__ = ("plan", "config", "inputs", "_usual", "_length", "_predictors")

    def __init__(self, plan: AppPlan, directory: str = ".") -> None:
        self.plan = plan
        self.config: AppConfig = plan.config
        self.inputs = {name: InputRule(self.config.name, name, tensor) for name, tensor in self.config.inputs.items()}
        self._usual = ResolvedOptions(self.config.klass, self.config.value, None, self.config.on_late, None)
        self._length = self.config.length
        self._predictors = Predictors(self.config, directory) if self.config.predict else None

    def check_inputs(self, inputs: Any) -> None:
        """Raises :class:`BadInput` for what is missing, unknown or of the wrong form."""
        app = self.config.name
        if not isinstance(inputs, dict):
            raise BadInput(f"app {app!r}: inputs are {type(inputs).__name__}, expected a dict of named values")
        if not self.inputs:
            return
        for name, rule in self.inputs.items():
            if name not in inputs:
                if rule.optional:
                    continue
                raise BadInput(f"app {app!r}: input {name!r} is missing; it needs {rule}")
            if not rule.fits(inputs[name]):
                raise BadInput(f"app {app!r}: input {name!r} is {describe(inputs[name])}, expected {rule}")
        if len(inputs) > len(self.inputs) or any(name not in self.inputs for name in inputs):
            unknown = next(name for name in inputs if name not in self.inputs)
            raise BadInput(f"app {app!r}: has no input {unknown!r}{nearest(str(unknown), self.inputs)}")

    def resolve_options(self, options: RequestOptions, inputs: Mapping[str, Any]) -> ResolvedOptions:
        """RequestOptions to options; raises :class:`BadInput`. ``inputs`` are checked ones: hints may be read off
        them."""
        if options == NO_OPTIONS:
            hints = self._hints_of(None, inputs)
            return self._usual if hints is None else ResolvedOptions(*self._usual[:-1], hints)
        config = self.config
        klass = config.klass if options.klass is None else options.klass
        on_late = config.on_late if options.on_late is None else options.on_late
        value = 1.0 if options.value is None else options.value
        if klass not in CLASSES:
            raise BadInput(f"app {config.name!r}: class {klass!r}, expected one of {', '.join(CLASSES)}")
        if on_late not in ON_LATE:
            raise BadInput(f"app {config.name!r}: on_late {on_late!r}, expected one of {', '.join(ON_LATE)}")
        worth = number_of(value)
        if worth is None or worth < 0:
            raise BadInput(f"app {config.name!r}: value {value!r}, expected a number from 0 to {NUMBER_MAX}")
        if options.stream is not None:
            self._check_stream(options.stream)
        declared = self._declared(options.hints) if options.hints else None
        hints = self._hints_of(declared, inputs)
        return ResolvedOptions(klass, float(worth) * config.value, options.stream, on_late, hints)

    def _hints_of(self, hints: Optional[Mapping[str, float]],
                  inputs: Mapping[str, Any]) -> Optional[Mapping[str, float]]:
        """What the request says of itself, and besides what the app reads off its inputs: a shape, or a prediction."""
        if self._length is not None and self._length[0] in inputs:
            hints = {"length": inputs[self._length[0]].shape[self._length[1]], **(hints or {})}
        if self._predictors is not None:
            hints = self._predictors.complete(hints or {}, inputs)
        return hints or None

    def failed_predictions(self) -> Dict[str, int]:
        """Hint -> how many requests went without it since start, because its predictor failed."""
        return self._predictors.failed() if self._predictors is not None else {}

    def _check_stream(self, stream: Any) -> None:
        app = self.config.name
        if self.config.stream == "none":
            raise BadInput(f"app {app!r} keeps no streams but the request names stream {stream!r}; "
                           f"set [app.{app}] stream = 'in_order' or 'newest_wins', or leave the stream out")
        if not isinstance(stream, str) or not 0 < len(stream) <= NAME_LEN_MAX:
            raise BadInput(f"app {app!r}: stream {stream!r}, expected a string of 1 to {NAME_LEN_MAX} characters")

    def _declared(self, hints: Any) -> Dict[str, float]:
        """The hints that a request brings, checked, as plain numbers."""
        app = self.config.name
        if not isinstance(hints, Mapping) or len(hints) > HINTS_MAX:
            raise BadInput(f"app {app!r}: hints are {describe(hints)}, expected at most {HINTS_MAX} named numbers")
        declared = {}
        for name, value in hints.items():
            number = number_of(value)
            if not isinstance(name, str) or len(name) > NAME_LEN_MAX or number is None:
                raise BadInput(f"app {app!r}: hint {name!r} = {show(value)}, expected a name and {A_NUMBER}")
            declared[name] = number
        return declared

    def deadline_ns(self, slo_ns: Optional[int], sent_ns: int, now_ns: int, on_late: Optional[str]) -> int:
        """The absolute deadline; raises :class:`DeadlineExpired` when it has passed (unless late answers count)."""
        if slo_ns is None:
            slo_ns = self.config.slo_ns
        deadline_ns = sent_ns + slo_ns
        if deadline_ns <= now_ns and on_late != "answer":
            raise DeadlineExpired(f"app {self.config.name!r}: the deadline ({format_duration(slo_ns)} after sending) "
                                  f"had passed {format_duration(now_ns - deadline_ns)} before the request was received")
        return deadline_ns


def slo_ns_of(slo_ms: Optional[float]) -> Optional[int]:
    """A deadline in milliseconds from the caller, checked; ``None`` stays ``None`` (as the app says)."""
    if slo_ms is None:
        return None
    number = number_of(slo_ms)
    if number is None or number > SLO_MS_MAX:
        raise BadInput(f"slo_ms = {slo_ms!r}: expected a number of milliseconds up to {SLO_MS_MAX:.0f}")
    return ms_to_ns(number)


def request_validators(config: Config) -> Dict[str, RequestValidator]:
    """The validator of every app, their predictors imported; raises :class:`ConfigError` or :class:`EngineError` for
    what cannot work."""
    return {name: RequestValidator(AppPlan(app), config.directory) for name, app in config.apps.items()}


def validator_of(validators: Mapping[str, RequestValidator], app: str) -> RequestValidator:
    """The validator of ``app``, or :class:`UnknownApp`."""
    found = validators.get(app)
    if found is None:
        raise UnknownApp(f"no app {app!r} is served here{nearest(str(app), validators)}")
    return found


def describe(value: Any) -> str:
    """A value in an error message: an array by dtype and shape, anything else by its type."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} [{', '.join(map(str, value.shape))}]"
    return type(value).__name__
