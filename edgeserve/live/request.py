"""One request on the live side, and the only place where it is checked what a request may say.

The bus checks the form of a message (``ipc/wire.py``) and a caller in this process hands over a call's arguments; both
fill the same record, and :class:`RequestValidator` checks its meaning: app, inputs, deadline, class and the other
options. It raises the typed errors that a client can read. Bounds that depend on what else is pending are the world's
and the scheduler's; hints are predicted by a plug-in (``plug_ins.py``).
"""

from __future__ import annotations

import difflib
import itertools
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Collection,
    Dict,
    Iterator,
    List,
    Mapping,
    NoReturn,
    Optional,
    Set,
    Tuple,
)

import numpy as np

from edgeserve.config.hints import hint_bounds, read_hints
from edgeserve.config.limits import HINTS_MAX, INPUTS_MAX, NAME_CHARS_MAX, NUMBER_MAX, SLO_MS_MAX
from edgeserve.config.schema import AppConfig, Config, ModelConfig
from edgeserve.engines.base import Values
from edgeserve.errors import (
    BadInput,
    ConfigError,
    DeadlineExpired,
    RequestError,
    UnknownApp,
    sent_instead,
    told,
    with_nearest,
)
from edgeserve.live.hints import A_NUMBER, is_name, number_of, show
from edgeserve.live.plug_ins import HintSource, plug_in
from edgeserve.live.responders import Responder
from edgeserve.live.value_flow import AppPlan, name_clashes
from edgeserve.priority_class import CLASSES
from edgeserve.request import Ask
from edgeserve.request_options import TRACEPARENT
from edgeserve.sched.protocol.events import ON_LATE, Part
from edgeserve.units import NS_PER_S, format_duration, ms_to_ns

if TYPE_CHECKING:
    from edgeserve.live.input_rules import InputRule

STAMP_BEHIND_NS_MAX = NS_PER_S
"""A request that says it was sent longer ago has its deadline counted from then, but statistics and policies learn
nothing from a client's word: to them it arrived when it was read."""

ValueKey = Tuple[str, Part]
"""(node, part): where a value stands."""


class LiveRequest(Ask):
    """One request from its message or call to its answer: what was asked (the slots of :class:`Ask`, options resolved
    by :meth:`RequestValidator.check`), its values, and the receiver of its answer.

    ``id`` is 0 until the request was checked. ``asked_ns`` is when it was sent, as far as is known: its deadline and
    the total time that its asker reads count from there. ``arrival_ns`` is what the scheduler and the statistics count
    from (:data:`STAMP_BEHIND_NS_MAX`). ``predictors``: the ones still to be asked. ``predicted_ns`` is
    how long that took, waiting included. ``running`` counts its jobs on lanes; ``outputs`` is what the last node of a
    plain app returned, ``values`` what the other nodes did.
    """

    __slots__ = (
        "plan",
        "responder",
        "asked_ns",
        "arrival_ns",
        "deadline_ns",
        "predictors",
        "predicted_ns",
        "running",
        "ended",
        "outputs",
        "values",
        "parts",
        "states",
        "left_out",
        "stream_state",
        "begun",
        "told",
        "written",
        "branches",
        "refusal",
        "prepared",
        "charged_ns",
        "trusted",
    )

    plan: AppPlan
    responder: Responder
    asked_ns: int
    arrival_ns: int
    deadline_ns: int
    predictors: Optional[HintSource]
    predicted_ns: int
    running: int
    ended: bool
    outputs: Optional[Values]
    values: Dict[ValueKey, Values]
    parts: Dict[ValueKey, int]  # fan-out node and its own part -> number of parts
    states: Dict[ValueKey, Any]  # of unfinished jobs
    left_out: Tuple[ValueKey, ...]  # jobs whose results are not used
    stream_state: Any  # what its stream keeps, from when it was accepted; unset where it names none
    begun: Tuple[ValueKey, ...]  # sequences that have written something, as the scheduler knows
    told: Dict[ValueKey, List[Values]]  # the pieces of each that were sent
    prepared: Optional[Mapping[str, Any]]  # node -> what its engine made of the request; None: it was not asked yet
    charged_ns: int  # the processor time of that
    trusted: bool  # its class and value count beside other owners' requests, too
    written: Tuple[str, ...]  # how much each had written that ended early; "": its engine could not say what
    branches: Dict[str, List[str]]  # join -> the predecessors whose values it was given
    refusal: str  # why nothing that its jobs return can be used any more


def request_of_call(
    app: str,
    inputs: Any,
    *,
    slo_ms: Any = None,
    priority_class: Any = None,
    value: Any = None,
    stream: Any = None,
    reset: Any = None,
    on_late: Any = None,
    hints: Any = None,
    quality_min: Any = None,
    traceparent: Any = None,
    pieces: bool = False,
) -> LiveRequest:
    """The record of a request that a caller in this process makes, still to be checked. The table of inputs is its own;
    the values are not copied."""
    request = LiveRequest()
    request.id, request.peer = 0, None
    request.app = app
    request.inputs = dict(inputs) if isinstance(inputs, Mapping) else inputs
    for name, given in request.inputs.items() if isinstance(inputs, Mapping) else ():
        if type(given) not in HOST_TYPES:
            from edgeserve.engines.device_arrays import on_device  # once some caller has such a value

            try:
                request.inputs[name] = on_device(given) or given
            except RequestError:
                raise
            except Exception as error:  # the value's own code
                raise BadInput(
                    f"app {show(app)}: input {show(name)}: its {type(given).__name__} does not say where it lies "
                    f"({told(error)}), expected an array, a text or a number"
                ) from error
    request.slo_ms, request.sent_ns, request.priority_class, request.value = slo_ms, None, priority_class, value
    request.stream, request.on_late, request.hints, request.client = stream, on_late, hints, ""
    request.origin = ""
    request.trusted = True
    request.reset = False if reset is None else reset
    request.quality_min = quality_min
    request.traceparent = traceparent
    request.pieces = pieces
    return request


HOST_TYPES = (np.ndarray, str, bytes, int, float, list)
"""The types of most inputs: they need no further check."""

NUMBERS = (np.generic, bool, int, float)
"""The types of values that have no axes where an array is declared."""

HINT_LIKENESS = 0.8
"""The least similarity (``difflib``'s ratio) to a known hint at which an unknown one counts as misspelt."""

STRANGE_HINTS_MAX = 64
"""Names per app that need not be compared again."""

SPELLINGS_MAX = 4
"""Hints of one request that are compared: each costs as much as the rest of the request's check."""

NO_VALUES: Mapping[Any, Any] = {}
"""The tables of a request before anything stands in them: most requests never need one."""


class RequestValidator:
    """All that is checked of a request to one app, prepared once. ``predictors`` of ``None``: the app predicts
    nothing. ``hints`` are the ones that its policy reads: a name that is nearly one of them is refused as misspelt, any
    other is let through (none given: the policy is the user's own). ``ids`` numbers the requests that were found
    good; all apps of a server share one (asked from any thread: counting is one step of the interpreter).
    ``stateful``: the model of which each request must say what stream it continues."""

    def __init__(
        self,
        plan: AppPlan,
        directory: str = ".",
        ids: Iterator[int] | None = None,
        hints: Collection[str] = (),
        predictors: Optional[HintSource] = None,
        stateful: str = "",
    ) -> None:
        self.plan = plan
        self.stateful = stateful
        self._hints = frozenset(hints)
        self._strange: Set[str] = set()  # unknown hints that resemble no known one
        self.ids = itertools.count(1) if ids is None else ids  # numbers the requests
        self.config: AppConfig = plan.config
        self.inputs: Dict[str, InputRule] = {}
        if self.config.inputs:
            from edgeserve.live.input_rules import InputRule

            self.inputs = {name: InputRule(plan.config.name, name, item) for name, item in plan.config.inputs.items()}
        self.predictors = predictors
        self._length = self.config.length
        self._hint_bounds = hint_bounds(self.config)

    def adopt(self, request: LiveRequest) -> None:
        """Take over a request that was checked by an earlier configuration of the app: its options stay as they were
        resolved. Raises :class:`BadInput` where its inputs do not fit any more."""
        if request.plan is self.plan:
            return
        self._check_inputs(request.inputs)
        if request.stream is None and self.stateful:
            self._ask_for_stream()
        if self.plan.names is not None:
            self._check_names(request.inputs, self.plan.names.input_clashes)
        request.plan = self.plan
        if request.predictors is not None:
            request.predictors = self.predictors

    def check(self, request: LiveRequest, responder: Responder, now_ns: int) -> None:
        """Check what ``request`` asks for, and make it ready to be accepted: options resolved, deadline absolute.

        Raises :class:`BadInput`, or :class:`DeadlineExpired` where late answers do not count. ``now_ns`` is when it
        was received: a request arrives when it was sent, where that is known, since it may be read much later.
        """
        config = self.config
        self._check_inputs(request.inputs)
        names = self.plan.names
        if names is not None and names.input_clashes:
            self._check_names(request.inputs, names.input_clashes)
        if request.priority_class is None:
            request.priority_class = config.priority_class
        elif not isinstance(request.priority_class, str) or request.priority_class not in CLASSES:
            self._refuse("priority_class", request.priority_class, f"one of {', '.join(CLASSES)}")
        if request.on_late is None:
            request.on_late = config.on_late
        elif not isinstance(request.on_late, str) or request.on_late not in ON_LATE:
            self._refuse("on_late", request.on_late, f"one of {', '.join(ON_LATE)}")
        request.value = config.value if request.value is None else self._value(request.value)
        if request.quality_min is not None:
            request.quality_min = self._quality(request.quality_min)
        if request.stream is not None:
            self._check_stream(request.stream)
        elif self.stateful:
            self._ask_for_stream()
        if request.reset is not False:
            self._check_reset(request)
        if request.traceparent is not None and not TRACEPARENT.match(str(request.traceparent)):
            self._refuse("traceparent", request.traceparent, "W3C's form: 00-TRACE-SPAN-01 with 32 and 16 digits")
        hints = self._declared(request.hints) if request.hints is not None else {}
        length = self._length
        if length is not None and length[0] in request.inputs and "length" not in hints:
            hints["length"] = request.inputs[length[0]].shape[length[1]]
        request.hints = hints or None
        sent_ns = request.sent_ns
        asked_ns = request.asked_ns = now_ns if sent_ns is None or sent_ns > now_ns else sent_ns
        request.arrival_ns = asked_ns if now_ns - asked_ns <= STAMP_BEHIND_NS_MAX else now_ns
        slo_ns = config.slo_ns if request.slo_ms is None else self._slo_ns(request.slo_ms)
        deadline_ns = request.deadline_ns = asked_ns + slo_ns
        if deadline_ns <= now_ns and request.on_late != "answer":
            raise DeadlineExpired(
                f"app {config.name!r}: the deadline ({format_duration(slo_ns)} after sending) had "
                f"passed {format_duration(now_ns - deadline_ns)} before the request was received"
            )
        request.plan = self.plan
        request.responder = responder
        request.predictors = self.predictors
        request.predicted_ns = request.running = 0
        request.prepared, request.charged_ns = None, 0
        request.id = next(self.ids)
        request.ended = False
        request.outputs = None
        request.left_out = request.begun = request.written = ()
        request.refusal = ""
        tables: Any = NO_VALUES  # replaced when needed
        request.values = request.parts = request.states = request.told = request.branches = tables

    def _check_inputs(self, inputs: Any) -> None:
        """Raise :class:`BadInput` for an input that is missing, unknown or of the wrong form."""
        app = self.config.name
        if not isinstance(inputs, dict):
            raise BadInput(f"app {app!r}: inputs are {type(inputs).__name__}, expected a dict of named values")
        if len(inputs) > INPUTS_MAX:
            raise BadInput(f"app {app!r}: {len(inputs)} inputs, expected at most {INPUTS_MAX}")
        rules = self.inputs
        if not rules:
            for name in inputs:
                if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARS_MAX:
                    raise BadInput(
                        f"app {app!r}: input {show(name)}, expected a name of 1 to {NAME_CHARS_MAX} characters"
                    )
            return
        for name, rule in rules.items():
            if name not in inputs:
                if rule.optional:
                    continue
                error = BadInput(f"app {app!r}: input {name!r} is missing, expected {rule}")
                error.ending = partial(sent_instead, name, tuple(inputs), tuple(rules))
                raise error
            if not rule.fits(inputs[name]):
                inputs[name] = rule.as_declared(self._as_array(rule, inputs[name]))
                if not rule.fits(inputs[name]):
                    raise BadInput(f"app {app!r}: input {name!r} is {rule.mismatch(inputs[name])}")
        for name in inputs:
            if name not in rules:
                error = BadInput(f"app {app!r}: has no input {show(name)}")
                raise with_nearest(error, str(name)[:NAME_CHARS_MAX], rules)

    def _check_names(self, inputs: Values, clashes: Mapping[str, str]) -> None:
        """Raises :class:`BadInput` for an input whose name a node has given to another value."""
        for name in inputs:
            if name in clashes:
                raise BadInput(f"app {self.config.name!r}: input {show(name)}: {clashes[name]}")

    def _as_array(self, rule: InputRule, given: Any) -> Any:
        """A number as an array without axes, as on the bus; a tensor of another library (``__dlpack__``) as one over
        the same memory; any other value as it is."""
        if rule.kinds is not None or isinstance(given, np.ndarray):
            return given
        if isinstance(given, NUMBERS):
            return np.asarray(given)
        if not hasattr(given, "__dlpack__"):
            return given
        try:
            return np.from_dlpack(given)
        except Exception as error:  # each library raises types of its own
            raise BadInput(
                f"app {self.config.name!r}: input {rule.name!r} is a {type(given).__name__} that numpy cannot read in "
                f"place ({error}), expected a tensor in the host's memory, without a gradient, such as x.detach().cpu()"
            ) from error

    def _refuse(self, what: str, value: Any, expected: str) -> NoReturn:
        raise BadInput(f"app {self.config.name!r}: {what} = {show(value)}, expected {expected}")

    def _value(self, value: Any) -> float:
        number = number_of(value)
        if number is None or number < 0:
            self._refuse("value", value, f"a number from 0 to {NUMBER_MAX}")
        return float(number) * self.config.value

    def _quality(self, value: Any) -> float:
        number = number_of(value)
        if number is None or not 0 <= number <= 1:
            self._refuse("quality_min", value, "a number from 0 to 1")
        return float(number)

    def _check_stream(self, stream: Any) -> None:
        app = self.config.name
        if not self.config.keeps_streams:
            raise BadInput(
                f"app {app!r} keeps no streams but the request names stream {show(stream)}; "
                "set the app's stream = 'in_order' or 'newest_wins', or leave the stream out"
            )
        if not isinstance(stream, str) or not 0 < len(stream) <= NAME_CHARS_MAX:
            self._refuse("stream", stream, f"a name of 1 to {NAME_CHARS_MAX} characters")

    def _ask_for_stream(self) -> NoReturn:
        raise BadInput(
            f"app {self.config.name!r}: model {self.stateful!r} goes on from the request before of the same source, "
            "and this one names no stream: name a stream, such as stream = 'camera-1' (with KServe's clients "
            "sequence_id), another one for each source. Where each stands alone, the app's stream = 'optional' says so"
        )

    def _check_reset(self, request: LiveRequest) -> None:
        if not isinstance(request.reset, (bool, np.bool_)):
            self._refuse("reset", request.reset, "true or false")
        request.reset = bool(request.reset)
        if request.reset and request.stream is None:
            raise BadInput(f"app {self.config.name!r}: reset = true, but the request names no stream to begin anew")

    def _declared(self, hints: Any) -> Dict[str, float]:
        """The hints that a request brings, checked, as plain numbers in a table of their own."""
        if not isinstance(hints, (dict, Mapping)) or len(hints) > HINTS_MAX:
            self._refuse("hints", hints, f"at most {HINTS_MAX} names with a number each")
        declared: Dict[str, float] = {}
        spellings = SPELLINGS_MAX
        for name, value in hints.items():
            number = number_of(value)
            if not is_name(name) or number is None:
                raise BadInput(
                    f"app {self.config.name!r}: hint {show(name)} = {show(value)}, expected a name of 1 to "
                    f"{NAME_CHARS_MAX} printable characters and {A_NUMBER}"
                )
            if spellings and self._hints and name not in self._hints and name not in self._strange:
                spellings -= 1
                self._check_spelling(name)
            most = self._hint_bounds.get(name)
            if most is not None and number > most:
                raise BadInput(
                    f"app {self.config.name!r}: hint {name} = {show(value)}, expected at most {most:g}"
                    f"{self._mend(name)}"
                )
            declared[name] = number
        return declared

    def _check_spelling(self, name: str) -> None:
        """Raises :class:`BadInput` for a hint that is nearly one that is read: it would do nothing, and not say so."""
        alike = sorted(known for known in self._hints if abs(len(known) - len(name)) <= 2)
        for known in difflib.get_close_matches(name, alike, n=1, cutoff=HINT_LIKENESS):
            raise BadInput(
                f"app {self.config.name!r}: hint {show(name)}: its policy reads no such hint; did you "
                f"mean {known!r}? (It reads {', '.join(sorted(self._hints))})"
            )
        if len(self._strange) < STRANGE_HINTS_MAX:
            self._strange.add(name)

    def _mend(self, hint: str) -> str:
        """The key that raises a hint's bound, where the configuration has it."""
        node, _, what = hint.rpartition(".")
        return f"; raise parts_max of node {node!r}" if what == "parts" else ""

    def _slo_ns(self, slo_ms: Any) -> int:
        number = number_of(slo_ms)
        if number is None or number > SLO_MS_MAX:
            self._refuse("slo_ms", slo_ms, f"a number of milliseconds up to {SLO_MS_MAX:.0f}")
        if number <= 0:
            raise DeadlineExpired(
                f"app {self.config.name!r}: slo_ms = {show(slo_ms)}: the deadline had passed when the request was sent"
            )
        return ms_to_ns(number)


def request_validators(config: Config, ids: Iterator[int] | None = None) -> Dict[str, RequestValidator]:
    """The validator of every app, their predictors imported; raises :class:`ConfigError` or :class:`EngineError` for
    what cannot work. ``ids``: where the requests were numbered from before."""
    ids = itertools.count(1) if ids is None else ids
    validators = {}
    for name, app in config.apps.items():
        validators[name] = RequestValidator(
            AppPlan(app),
            config.directory,
            ids,
            read_hints(app, config),
            hints_of(app, config),
            stateful_model(app, config),
        )
    return validators


def language_model(app: AppConfig, config: Config) -> Optional[ModelConfig]:
    """The model of an app of one language model, which reads the request's inputs as they are."""
    if len(app.nodes) != 1 or app.nodes[0].inputs:
        return None
    model = config.models.get(app.nodes[0].model or app.nodes[0].name)
    return model if model is not None and model.engine == "lm" else None


def hints_of(app: AppConfig, config: Config) -> Optional[HintSource]:
    """The predictor of an app's hints; ``None`` where nothing does."""
    model = language_model(app, config)
    if model is None and not (app.functions or app.answer_lengths):
        return None
    source: Optional[HintSource] = plug_in("hints")(app, model, config)
    return source


def stateful_model(app: AppConfig, config: Config) -> str:
    """The first model of an app that goes on from what the request before left behind; ``""`` where there is none, or
    where the app says that its requests stand alone."""
    models = [config.models[node.model] for node in app.nodes if node.model in config.models]
    return "" if app.stream == "optional" else next((model.name for model in models if model.keeps_state), "")


def check_names(validators: Mapping[str, RequestValidator], returned: Mapping[str, Collection[str]]) -> None:
    """Raises :class:`ConfigError` where values of one name would meet in an app. ``returned``: the names of the outputs
    of each model, as far as they are known."""
    wrong = [text for validator in validators.values() for text in name_clashes(validator.plan, returned)]
    if wrong:
        raise ConfigError("; ".join(wrong))


def unknown_app(app: Any, validators: Mapping[str, RequestValidator]) -> UnknownApp:
    """The error for a request to an app that is not served."""
    return with_nearest(UnknownApp(f"no app {show(app)} is served here"), str(app)[:NAME_CHARS_MAX], validators)
