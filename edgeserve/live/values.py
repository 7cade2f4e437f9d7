"""The values of requests: inputs, what each job returned, and the states of streams and of unfinished jobs.

The scheduler decides over ids; this table holds the requests that the ids stand for. It belongs to the loop's thread. A
request's values are freed when it has ended and none of its jobs runs any more.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Set, Tuple
from weakref import WeakValueDictionary

import numpy as np

from edgeserve.engines.base import PREPARED, Result, Values, Written, release_state, written_of
from edgeserve.errors import EngineError, StateLost, WrongInput, did_you_mean
from edgeserve.live.hints import ResultHints, show
from edgeserve.live.request import NO_VALUES, LiveRequest, ValueKey
from edgeserve.live.value_flow import ArgumentSource, NodePlan
from edgeserve.sched.protocol.actions import RunBatch
from edgeserve.sched.protocol.events import JobId, JobResult, Part
from edgeserve.units import counted

if TYPE_CHECKING:
    from edgeserve.live.value_names import NameBook

log = logging.getLogger("edgeserve")

_TEXT: Set[type] = {str}

NO_STREAM = (
    "model {model!r} returned a state for the next request of the stream, and this request names none: name a stream, "
    "or set stream = 'optional' for app {app!r} where requests stand alone"
)


class StreamState:
    """The state that a stream's requests leave for the next ones, by node. A request holds the one that was its
    stream's when it was accepted: where a stream begins anew, the requests before go on with theirs. ``last``: the
    request that each was last given to, and the files of the model that it ran on."""

    __slots__ = ("states", "last", "__weakref__")

    def __init__(self) -> None:
        self.states: Dict[ValueKey, Any] = {}
        self.last: Dict[ValueKey, Tuple[int, Tuple[Any, ...]]] = {}


StreamKey = Tuple[str, str]
"""(app, stream)."""


class RequestValues:
    """``requests``: all that have values, by their id. Besides, all streams that have a state."""

    def __init__(self) -> None:
        self.result_hints = ResultHints()
        self.requests: Dict[int, LiveRequest] = {}
        self._streams: WeakValueDictionary[StreamKey, StreamState] = WeakValueDictionary()  # kept, or of a request
        self._kept: Dict[StreamKey, StreamState] = {}
        self.open_count = 0  # requests that have not ended

    def open_requests(self) -> List[LiveRequest]:
        """The requests that have not ended, oldest first."""
        return [request for request in self.requests.values() if not request.ended]

    def state_count(self) -> int:
        """Streams whose state is kept."""
        return len(self._kept)

    def follow(self, request: LiveRequest) -> None:
        """Give an accepted request the state of its stream, if it names one."""
        if request.stream is None:
            return
        key = (request.app, request.stream)
        if request.reset:
            self.begin_anew(key)
        state = self._streams.get(key)
        if state is None:
            state = self._streams[key] = StreamState()
        request.stream_state = state

    def begin_anew(self, key: StreamKey) -> None:
        """Let later requests of a stream begin without the state of the earlier ones."""
        self._kept.pop(key, None)
        self._streams.pop(key, None)

    def add(self, request: LiveRequest) -> None:
        self.requests[request.id] = request
        self.open_count += 1
        if request.stream is not None and not hasattr(request, "stream_state"):
            self.follow(request)

    def end(self, request: LiveRequest) -> None:
        """Mark a request as ended; its values go as soon as no job of it runs."""
        request.ended = True
        self.open_count -= 1
        if request.running <= 0:
            del self.requests[request.id]

    # --- before and after a job ---------------------------------------------------------------------------------------

    def launch(self, job: JobId, files: Tuple[Any, ...] = ()) -> Tuple[Values, Any]:
        """The inputs of a job, and the state that its last call left behind, or ``None``; it counts as running. The
        state of a stream is gone where these ``files`` of the model differ from the files that it was made with."""
        request = self.requests[job.request_id]
        request.running += 1
        node = request.plan.nodes[job.node]
        values = dict(request.inputs) if node.is_plain_entry else _inputs(request, node, job.part)
        if node.is_join and not job.part:
            _note_branches(request, node)
        if request.prepared and job.node in request.prepared:
            values[PREPARED] = request.prepared[job.node]
        state = None if request.stream is None and not request.states else self._state(request, job, files)
        return values, state

    @staticmethod
    def owner_of(request: LiveRequest) -> str:
        """The owner of a request: a client's user or key, and the one for whom it asks, if any; empty for this
        process."""
        owner: str = "" if request.peer is None else request.peer.credential.owner
        return f"{owner} for {request.origin}" if request.origin else owner

    def inputs(self, job: JobId) -> Values:
        """The inputs of a ready job, for a probe of it."""
        request = self.requests[job.request_id]
        return _inputs(request, request.plan.nodes[job.node], job.part)

    def returned(self, job: JobId, result: Optional[Result], reason: str = "") -> JobResult:
        """Keep what a job returned and say of it what the scheduler may know. ``result`` of ``None``: it failed."""
        request = self.requests[job.request_id]
        request.running -= 1
        if request.running <= 0 and request.ended:
            del self.requests[request.id]
        if result is None or request.refusal:
            _let_go(None if result is None else result.state)
            return JobResult(job, "failed", reason=request.refusal or reason)
        node = request.plan.nodes[job.node]
        if node.needed or node.fan_out or result.parts is not None or result.route is not None:
            reason = _unusable(node, result)
            if reason:
                return JobResult(job, "failed", reason=reason)
        if request.plan.names is not None and result.done:
            _check_names(request, request.plan.names, job, node, result)
            if request.refusal:
                return JobResult(job, "failed", reason=request.refusal)
        if result.state is not None:
            if result.done and request.stream is None and request.plan.config.needs_streams:
                return JobResult(job, "failed", reason=NO_STREAM.format(model=node.model, app=request.app))
            self._keep_state(request, job, result)
            if request.ended and not result.done:
                _let_go(result.state)
        if result.done and not request.ended and (job.node, job.part) not in request.left_out:
            if job.node == request.plan.plain_exit:
                request.outputs = result.outputs
            else:
                _keep_values(request, node, job.part, result)
        parts = len(result.parts) if result.parts is not None else None
        hints = self.result_hints.of(node.model, result.hints) if result.hints is not None else None
        return JobResult(
            job,
            "done" if result.done else "unfinished",
            parts,
            result.route,
            hints,
            "",
            int(result.state_bytes),
            int(result.steps),
            int(result.turns),
            int(result.cached),
        )

    def fault(self, job: JobId, error: Exception) -> Exception:
        """The error of an item. Inputs that another node made are not the client's mistake, also where the engine says
        so. An unusable state is forgotten."""
        request = self.requests.get(job.request_id)
        if isinstance(error, StateLost) and request is not None:
            self._lose_state(request, (job.node, job.part))
        if isinstance(error, WrongInput) and (request is None or request.plan.nodes[job.node].predecessors):
            return EngineError(str(error)).with_traceback(error.__traceback__)
        return error

    def leave_out(self, job: JobId) -> None:
        """Drop the result of this job, should it run on a lane."""
        request = self.requests.get(job.request_id)
        if request is not None:
            request.left_out = (*request.left_out, (job.node, job.part))

    # --- what sequences have written ----------------------------------------------------------------------------------

    def has_written(self, job: JobId, state: Any) -> bool:
        """True if a state can say what its item has written, and there is something."""
        return self._written(job, state) is not None

    def _written(self, job: JobId, state: Any) -> Optional[Written]:
        try:
            found = written_of(state)
            if found is None or (isinstance(found, Written) and are_values(found.outputs)):
                return found
            problem = f"returned {show(found)}; expected Written with a dict of outputs, or None"
        except Exception as error:  # noqa: BLE001 engines are users' code
            problem = f"raised {type(error).__name__}: {error}"
        log.warning("node %s of request %d: written() of its state %s", job.node, job.request_id, problem)
        return None

    def keep_written(self, job: JobId, state: Any) -> None:
        """End a sequence with what it has written, by the ``state`` that it told of last, or by the one that its last
        batch left. Its client gets what no piece has brought; nothing that it still returns is kept."""
        request = self.requests[job.request_id]
        written = self._written(job, request.states.get((job.node, job.part)) if state is None else state)
        if written is None:  # an engine that cannot say any more what it said that it could
            request.written = (*request.written, "")
            self.leave_out(job)
            return
        request.written = (*request.written, written.amount)
        if request.pieces:
            rest = rest_of(written.outputs, request.told.get((job.node, job.part), ()))
            if rest:
                self.send_piece(request, job, rest)  # one that is unread ends nothing: the answer comes with all of it
        if job.node == request.plan.plain_exit:
            request.outputs = written.outputs
        else:
            _keep_values(request, request.plan.nodes[job.node], job.part, Result(written.outputs))
        self.leave_out(job)

    def send_piece(self, request: LiveRequest, job: JobId, outputs: Values) -> str:
        """Send a piece of an answer. Why the request is to be cancelled, or ``""``."""
        if request.told is NO_VALUES:
            request.told = {}
        request.told.setdefault((job.node, job.part), []).append(outputs)
        piece = request.plan.piece(job.node, outputs)
        return request.responder.piece(request, piece) if piece or not outputs else ""

    def not_started(self, job: JobId) -> None:
        """Take back the launch of a job whose batch the lane refused."""
        request = self.requests[job.request_id]
        request.running -= 1
        if request.running <= 0 and request.ended:
            del self.requests[request.id]

    # --- states -------------------------------------------------------------------------------------------------------

    def _state(self, request: LiveRequest, job: JobId, files: Tuple[Any, ...]) -> Any:
        key = (job.node, job.part)
        if key in request.states:
            return request.states[key]
        if request.stream is None:
            return None
        kept = request.stream_state
        if kept.last.get(key, (0, files))[1] != files:
            kept.states.pop(key, None)
        kept.last[key] = request.id, files
        return kept.states.get(key)

    def _keep_state(self, request: LiveRequest, job: JobId, result: Result) -> None:
        key = (job.node, job.part)
        if not result.done:
            if not request.ended:
                if request.states is NO_VALUES:
                    request.states = {}
                request.states[key] = result.state
            return
        if request.states:
            request.states.pop(key, None)
        # A lane that hung may come back when the stream has gone on from an earlier state.
        if request.stream is not None and request.stream_state.last[key][0] == request.id:
            request.stream_state.states[key] = result.state
            place = (request.app, request.stream)
            if self._streams.get(place) is request.stream_state:
                self._kept[place] = request.stream_state

    def _lose_state(self, request: LiveRequest, key: ValueKey) -> None:
        if request.stream is not None:
            request.stream_state.states.pop(key, None)
            if (
                not request.stream_state.states
                and self._kept.get((request.app, request.stream)) is request.stream_state
            ):
                del self._kept[request.app, request.stream]

    def drop_job_state(self, job: JobId) -> None:
        request = self.requests.get(job.request_id)
        if request is not None and request.states:
            _let_go(request.states.pop((job.node, job.part), None))

    def release_job_state(self, job: JobId) -> None:
        """Keep the state of a ready job, without what it occupies on its device."""
        request = self.requests.get(job.request_id)
        if request is not None and request.states:
            _let_go(request.states.get((job.node, job.part)))

    def keep_emitted(self, job: JobId, state: Any) -> None:
        """Let a job whose lane was lost go on from what it emitted last."""
        request = self.requests[job.request_id]
        if not request.ended:
            if request.states is NO_VALUES:
                request.states = {}
            request.states[job.node, job.part] = state

    def drop_stream_state(self, app: str, stream: str) -> None:
        kept = self._kept.pop((app, stream), None)
        if kept is not None:
            kept.states.clear()  # a request that has just come may hold it

    # --- the answer ---------------------------------------------------------------------------------------------------

    @staticmethod
    def branches(request: LiveRequest) -> Tuple[str, ...]:
        """The nodes whose results went into joins, outside of fan-outs, in the order of the graph."""
        if not request.branches:
            return ()
        taken = {name for names in request.branches.values() for name in names}
        return tuple([name for name in request.plan.nodes if name in taken])

    def outputs(self, request: LiveRequest) -> Values:
        """The outputs of a completed request; names of ``outputs`` that nothing brought (a branch not taken) are left
        out."""
        plan = request.plan
        if plan.plain_exit:
            return request.outputs or {}
        everything: Values = {}
        for name in plan.exits:
            everything.update(_everything_of(request, plan.nodes[name], ()))
        if not plan.outputs:
            return everything
        chosen: Values = {}
        for source in plan.outputs:
            value = _find(request, source, ()) if source.node is not None else everything.get(source.name, _ABSENT)
            if value is not _ABSENT:
                chosen[source.argument] = value
        return chosen


def wrong_form(action: RunBatch, value: Any) -> str:
    """The reason why what an engine returned is no list of one result per job, or ``""``. Engines are users' code too:
    what one returns may fail its batch, never the loop."""
    if not isinstance(value, (list, tuple)) or len(value) != len(action.jobs):
        count = len(value) if isinstance(value, (list, tuple)) else type(value).__name__
        return f"model {action.model!r} returned {count} results for a batch of {len(action.jobs)}; expected one each"
    return ""


def item_error(model: str, result: Any) -> Optional[Exception]:
    """The reason why one item of a batch has no result, or ``None``: its engine says so, or what it returned is
    none."""
    if type(result) is not Result and not isinstance(result, Result):
        return EngineError(f"model {model!r} returned a {type(result).__name__} where a Result was expected")
    if isinstance(result.error, Exception):
        return result.error
    outputs = result.outputs
    if (
        type(outputs) is dict
        and set(map(type, outputs)) <= _TEXT
        and result.error is None
        and result.parts is None
        and result.route is None
        and result.done is True
        and type(result.state_bytes) is int
        and result.state_bytes >= 0
        and type(result.steps) is int
        and result.steps >= 1
        and type(result.turns) is int
        and result.turns >= 0
        and type(result.cached) is int
        and result.cached >= 0
    ):
        return None  # most results: only outputs
    wrong = _wrong_field(result)
    return EngineError(f"model {model!r} returned a Result with {wrong}") if wrong else None


def _wrong_field(result: Result) -> str:
    """The wrong field of a result and the expected value, as text, or ``""``. Hints are checked elsewhere: a
    wrong one costs nothing but itself."""
    if result.error is not None:
        return f"error = {show(result.error)}, expected an exception, or None where the item did not fail"
    if not are_values(result.outputs):
        return f"outputs = {show(result.outputs)}, expected a dict whose keys are the outputs' names"
    parts = result.parts
    if parts is not None and not (isinstance(parts, (list, tuple)) and all(map(are_values, parts))):
        return f"parts = {show(parts)}, expected a list of dicts whose keys are the outputs' names"
    if result.route is not None and not isinstance(result.route, str):
        return f"route = {show(result.route)}, expected the name of a node"
    if not isinstance(result.state_bytes, (int, np.integer)) or result.state_bytes < 0:
        return f"state_bytes = {show(result.state_bytes)}, expected a whole number from 0"
    if not isinstance(result.done, (bool, np.bool_)):
        return f"done = {show(result.done)}, expected True or False"
    if result.steps != 1 and (not isinstance(result.steps, (int, np.integer)) or result.steps < int(result.done)):
        return f"steps = {show(result.steps)}, expected a whole number from {int(result.done)}"
    if not isinstance(result.turns, (int, np.integer)) or result.turns < 0:
        return f"turns = {show(result.turns)}, expected a whole number from 0"
    if not isinstance(result.cached, (int, np.integer)) or result.cached < 0:
        return f"cached = {show(result.cached)}, expected a whole number from 0"
    return ""


def are_values(values: Any) -> bool:
    """True if these can be named values."""
    if not isinstance(values, dict):
        return False
    for name in values:  # noqa: SIM110 a third of the time of all()
        if not isinstance(name, str):
            return False
    return True


def rest_of(outputs: Values, told: Sequence[Values]) -> Values:
    """The rest of an answer behind its pieces: the ends of the texts and lists of numbers that its pieces are parts of.
    An answer without pieces so far is one piece."""
    rest: Values = {}
    for name, value in outputs.items():
        before = [piece[name] for piece in told if name in piece]
        if isinstance(value, str):
            begins = "".join([part for part in before if isinstance(part, str)])
            if value.startswith(begins):
                rest[name] = value[len(begins) :]
        elif isinstance(value, np.ndarray) and value.ndim == 1:
            rest[name] = value[sum([np.size(part) for part in before]) :]
    names = told[0].keys() if told else ("text", "tokens")
    rest = {name: value for name, value in rest.items() if name in names}
    return rest if any(len(value) for value in rest.values()) else {}


def _let_go(state: Any) -> None:
    """Have a state free what it occupies. What an engine's code raises then must not end the loop."""
    try:
        release_state(state)
    except Exception as error:  # noqa: BLE001 engines are users' code
        log.warning("a state could not be released (%s: %s); its memory may stay in use", type(error).__name__, error)


_ABSENT: Any = object()


def _unusable(node: NodePlan, result: Result) -> str:
    """The reason why others could not use a result, or ``""``: it lacks an output that the configuration names, or
    brings what the node is not configured for."""
    if not result.done:
        return ""
    if node.fan_out and result.parts is None:
        return (
            f"node {node.name!r} has fan_out = true but model {node.model!r} returned no parts; a function returns a "
            "list of dicts, one per part"
        )
    if result.parts is not None and not node.fan_out:
        return (
            f"model {node.model!r} returned {counted(len(result.parts), 'part')} and node {node.name!r} has no "
            "fan_out = true: set it, or return a dict of outputs"
        )
    if result.route is not None and not node.routes:
        return (
            f"model {node.model!r} chose the route {result.route!r} and node {node.name!r} has no route = 'one', so "
            "all of its successors would run: set it, or return the outputs alone"
        )
    for name in node.needed:
        if name in result.outputs:
            continue
        if not result.parts and node.fan_out:
            continue  # no part, so no job asks
        if result.parts and all(name in part for part in result.parts):
            continue
        known = sorted(set(result.outputs).union(*(result.parts or ({},))))
        at = "" if node.name == node.model else f" at node {node.name!r}"
        return (
            f"model {node.model!r}{at} returned no {name!r}, which the app's outputs or a node's inputs name"
            f"{did_you_mean(name, known)} It returned {', '.join(map(repr, known)) or 'nothing'}"
        )
    return _uneven(node, result.outputs, result.parts) if result.parts else ""


def _uneven(node: NodePlan, shared: Values, parts: Sequence[Values]) -> str:
    """The reason why parts cannot be told apart by name, or ``""``: each has the same names, and none that all parts
    share."""
    names = parts[0].keys()
    for index, part in enumerate(parts):
        if part.keys() != names:
            name = sorted(part.keys() ^ names)[0]
            has, lacks = (index, 0) if name in part else (0, index)
            return (
                f"model {node.model!r} returned {name!r} in part {has} and not in part {lacks}; return the same names "
                f"in each part, such as {name!r}: None where there is nothing"
            )
    if not names.isdisjoint(shared):
        name = sorted(names & shared.keys())[0]
        return (
            f"model {node.model!r} returned {name!r} in each part and for all parts together, and one would replace "
            "the other; name them apart"
        )
    return ""


def _check_names(request: LiveRequest, names: NameBook, job: JobId, node: NodePlan, result: Result) -> None:
    """Note why a result cannot be used: a value of the same name, of another node or of the request, meets it. The
    request then fails, and the results of its other jobs are dropped."""
    returned = result.outputs.keys() if not result.parts else result.outputs.keys() | result.parts[0].keys()
    if not names.knows(node.name, returned):
        names.learn(node.name, returned)
    if request.ended or (node.name, job.part) in request.left_out:
        return
    clashes = names.clashes.get(node.name)
    if clashes is not None:
        for name in returned:
            if name in clashes:
                request.refusal = clashes[name]
                return
    if names.input_clashes:
        for name in request.inputs:
            if name in names.input_clashes:
                request.refusal = names.input_clashes[name]
                return
    replaced = names.replaced.get(node.name)
    if replaced and not replaced <= returned and (result.parts or not node.fan_out):
        for name in sorted(replaced.difference(returned).intersection(request.inputs)):
            request.refusal = (
                f"node {node.name!r} returned no {name!r}, as it did before, and the request's {name!r} would be taken "
                f"for it; return it always, or name what is read behind it: inputs = {{ {name} = ... }}"
            )
            return


def _note_branches(request: LiveRequest, join: NodePlan) -> None:
    """Note the predecessors whose values a join is given now."""
    if request.branches is NO_VALUES:
        request.branches = {}
    if join.takes_first:
        request.branches[join.name] = _first(request, join, ())
    else:
        read = None if join.sources is None else {source.node for source in join.sources}
        request.branches[join.name] = [
            name
            for name in join.predecessors
            if (read is None or name in read) and _has_values(request, request.plan.nodes[name])
        ]


def _has_values(request: LiveRequest, node: NodePlan) -> bool:
    """True if a node has brought something to a reader outside of fan-outs."""
    return ((node.name, ()) in request.values) if not node.value_openers else bool(_everything_of(request, node, ()))


def _first(request: LiveRequest, join: NodePlan, part: Part) -> List[str]:
    """The predecessor of a join of one that was done first: values are kept in the order in which they come."""
    return [name for name, at in request.values if at == part and name in join.predecessors][:1]


def _keep_values(request: LiveRequest, node: NodePlan, part: Part, result: Result) -> None:
    if request.values is NO_VALUES:
        request.values = {}
    if not node.fan_out:
        request.values[node.name, part] = result.outputs
        return
    if request.parts is NO_VALUES:
        request.parts = {}
    parts = result.parts or []
    request.parts[node.name, part] = len(parts)
    for index, values in enumerate(parts):
        request.values[node.name, part + (index,)] = {**result.outputs, **values} if result.outputs else values


def _inputs(request: LiveRequest, node: NodePlan, part: Part) -> Values:
    """The inputs of a job of ``node``."""
    if node.is_plain_entry:
        return dict(request.inputs)
    if node.sources is not None:
        return _named_inputs(request, node.sources, part)
    item = dict(request.inputs)  # without ``inputs``: the request's own, then what predecessors returned
    for name in _first(request, node, part) if node.takes_first else node.predecessors:
        item.update(_everything_of(request, request.plan.nodes[name], part))
    return item


def _named_inputs(request: LiveRequest, sources: Tuple[ArgumentSource, ...], part: Part) -> Values:
    """Arguments as ``inputs`` names them. What does not exist (an optional input, a branch not taken) is left out."""
    item: Values = {}
    for source in sources:
        value = request.inputs.get(source.name, _ABSENT) if source.node is None else _find(request, source, part)
        if value is not _ABSENT:
            item[source.argument] = value
    return item


def _find(request: LiveRequest, source: ArgumentSource, part: Part) -> Any:
    """The value a reader at ``part`` sees: the one on its own line of parts, or a list over the parts below it."""
    assert source.node is not None, "inputs of the request are looked up by name"
    openers = request.plan.nodes[source.node].value_openers
    if len(openers) <= len(part):
        values = request.values.get((source.node, part[: len(openers)]))
        return _ABSENT if values is None else values.get(source.name, _ABSENT)
    return _gathered(request, source.node, source.name, openers, part)


def _gathered(request: LiveRequest, node: str, name: str, openers: Tuple[str, ...], part: Part) -> Any:
    """A list over the parts below ``part``, nested once per fan-out between; ``None`` where a part brought nothing."""
    if len(part) == len(openers):
        values = request.values.get((node, part))
        return None if values is None else values.get(name)
    count = request.parts.get((openers[len(part)], part))
    if count is None:
        return _ABSENT if len(part) == 0 else None
    return [_gathered(request, node, name, openers, part + (index,)) for index in range(count)]


def _everything_of(request: LiveRequest, node: NodePlan, part: Part) -> Values:
    """All outputs of a node as a reader at ``part`` sees them."""
    openers = node.value_openers
    if len(openers) <= len(part):
        return request.values.get((node.name, part[: len(openers)])) or {}
    names = dict.fromkeys(
        key
        for (name, inner), values in request.values.items()
        if name == node.name and inner[: len(part)] == part
        for key in values
    )
    return {key: _gathered(request, node.name, key, openers, part) for key in names}
