"""An engine, or a language model's backend, in a process of its own, for ``options.process = true``.

A host function that holds the interpreter lock for 50 ms stalls the loop and every other lane for 50 ms; in its own
process it stalls no other lane. Each lane has its own child, which makes the very same engine and answers one call at a
time over a socket pair. A child is started with a fresh interpreter (never a fork: the parent has threads and sockets),
and it ends with its parent. What a child serves is a *host*: named by module and class, made with what the parent
sends, loaded once, and asked.

Values are copied both ways, so this pays for functions that run for milliseconds, not for microseconds. A child gets
pickles; what it answers is plain (``plain.py``): nothing that it sends runs here.

A child that ends or hangs is started again (``remote.py``). Inputs that end their process again and again are refused
(``quarantine.py``).
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import socket
import sys
from typing import Any, Callable, Dict, Iterator, List, Protocol, Sequence, Tuple

from edgeserve.child import end_with, take_lifeline
from edgeserve.config.schema import ModelConfig
from edgeserve.engines.base import (
    Batch,
    Engine,
    Finished,
    Footprint,
    LaneInfo,
    Pending,
    Result,
    RowFacts,
    Session,
    Values,
    check_count,
    run_batch,
    with_failures,
)
from edgeserve.engines.denormals import flush_to_zero
from edgeserve.engines.niceness import yield_to_others
from edgeserve.errors import EdgeServeError, EngineError, ProcessEnded
from edgeserve.interpreter import settle_memory
from edgeserve.offload.channel import Channel
from edgeserve.offload.pin import pin_thread
from edgeserve.offload.plain import KeptState, check_plain
from edgeserve.offload.quarantine import STRIKES_MAX, Quarantine
from edgeserve.offload.remote import LOAD_TIMEOUT_NS, RESTARTS_MAX, TIMEOUT_NS, CannotTravel, Remote

ENGINE_HOST = "edgeserve.offload.process:EngineHost"


def make(model: ModelConfig, lanes: Sequence[LaneInfo], directory: str, timeout_ns: int, restarts_max: int) -> Engine:
    """The registry's entry for ``options.process = true``; ``model`` has its engine's own options only."""
    return ProcessEngine(model, lanes, directory, timeout_ns, restarts_max)


def starter(timeout_ns: int, restarts_max: int) -> Callable[..., Remote]:
    """The function that makes the process of a language model: ``start(host, model, lane, *more)``, whose host is made
    with ``(model, [lane], *more)``. Where other models share the lane, a call does not wait until a process that ended
    is back."""

    def start(host: str, model: ModelConfig, lane: LaneInfo, *more: Any) -> Remote:
        waits = lane.models <= 1
        return Remote(host, model, lane, more, timeout_ns, restarts_max, max(timeout_ns, LOAD_TIMEOUT_NS), waits)

    return start


class ProcessEngine(Engine):
    """The engine of ``model`` in child processes, one per lane."""

    ends_calls = True

    def __init__(
        self,
        model: ModelConfig,
        lanes: Sequence[LaneInfo],
        directory: str,
        timeout_ns: int = TIMEOUT_NS,
        restarts_max: int = RESTARTS_MAX,
    ) -> None:
        self._quarantine = Quarantine()
        where = os.path.abspath(directory)
        self._remotes: Dict[str, _EngineRemote] = {
            lane.name: _EngineRemote(self._quarantine, ENGINE_HOST, model, lane, (where,), timeout_ns, restarts_max)
            for lane in lanes
        }
        self._first = self._remotes[lanes[0].name]
        self._name = model.name

    @property
    def pid(self) -> int | None:
        """The process id of the first lane's child, or ``None`` while there is none."""
        return self._first.pid

    def load(self) -> Footprint:
        """Start the children; together they occupy what the engine does in each."""
        self._quarantine.clear()
        footprints = [remote.load() for remote in self._remotes.values()]
        return Footprint(  # of a process for each lane, which has one model: nothing is shared
            sum([item.weights_bytes for item in footprints]),
            sum([item.work_bytes + item.shared_bytes for item in footprints]),
        )

    def unload(self) -> None:
        """End the children; a call that is running in another thread fails with an :class:`EngineError`."""
        for remote in self._remotes.values():
            remote.unload()

    def trouble(self, lane: str) -> str:
        """See :class:`~edgeserve.engines.base.Engine`."""
        remote = self._remotes.get(lane)
        return remote.trouble() if remote is not None else ""

    def example(self) -> Values:
        values: Values = self._first.call("example", None)
        return values

    def rows(self) -> RowFacts:
        facts: RowFacts = self._first.call("rows", None)
        return facts

    def open(self, lane: LaneInfo) -> Session:
        """A session whose batches run in the lane's own child."""
        remote = self._remotes.get(lane.name)
        if remote is None:
            raise EngineError(
                f"model {self._name!r} was not made for lane {lane.name!r} (made for "
                f"{', '.join(map(repr, self._remotes))})"
            )
        remote.must_be_loaded("open")
        return _RemoteSession(remote)

    def run(self, batch: Batch) -> List[Result]:
        return self._first.run(batch)


class _RemoteSession(Session):
    def __init__(self, remote: _EngineRemote) -> None:
        self._remote = remote

    def launch(self, batch: Batch) -> Pending:
        return Finished(self._remote.run(batch))


class _EngineRemote(Remote):
    """A whole engine in a child process, with the known facts of its inputs."""

    def __init__(self, quarantine: Quarantine, *settings: Any) -> None:
        super().__init__(*settings)
        self._quarantine = quarantine

    def run(self, batch: Batch) -> List[Result]:
        if self._quarantine.is_empty:
            return self._run_together(batch)
        strikes = [self._quarantine.strikes(item) for item in batch.items]
        suspects = {index for index, count in enumerate(strikes) if count}
        if not suspects:
            return self._run_together(batch)
        found: Dict[int, Result] = {}
        rest = batch.without(suspects)
        if rest.items:
            found = dict(
                zip([index for index in range(len(strikes)) if index not in suspects], self._run_together(rest))
            )
        for index in sorted(suspects):
            found[index] = self._run_alone(batch, index, strikes[index])
        return [found[index] for index in range(len(strikes))]

    def _run_alone(self, batch: Batch, index: int, strikes: int) -> Result:
        """An input with which a process ended before."""
        item = batch.items[index]
        if strikes >= STRIKES_MAX:
            return Result({}, error=self._quarantine.refusal(self._name, item))
        try:
            (result,) = self._run_together(batch.without(set(range(len(batch.items))) - {index}))
        except EngineError as error:
            return Result({}, error=error)
        self._quarantine.absolve(item)
        return result

    def _run_together(self, batch: Batch) -> List[Result]:
        try:
            results: List[Result] = self.call("run", batch)
            check_count(results, len(batch.items), f"model {self._name!r}: its process")
            return results
        except ProcessEnded:
            self._quarantine.blame(list(batch.items))
            raise
        except CannotTravel:
            failed = {index: error for index, error in enumerate(self._travels(batch)) if error is not None}
            if not failed:  # each travels alone, but not all together
                raise
        rest = batch.without(failed)
        return with_failures(self.call("run", rest) if rest.items else (), failed)

    def _travels(self, batch: Batch) -> Iterator[EngineError | None]:
        """The reason why an item, with its state, cannot be sent, for each of them."""
        for index, item in enumerate(batch.items):
            try:
                pickle.dumps((item, batch.states[index]), protocol=5)
                yield None
            except (KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException as error:  # noqa: BLE001 pickle raises many kinds
                yield self.unsendable(error)


# --- the child's side -------------------------------------------------------------------------------------------------


class Host(Protocol):
    """The object that a child serves. Raises :class:`EngineError` where it cannot be made."""

    def load(self) -> Any:
        """Make it ready; what the parent is told of it."""

    def ask(self, verb: str, argument: Any) -> Any:
        """Answer one question."""


class EngineHost:
    """A whole engine, and its session."""

    def __init__(self, model: ModelConfig, lanes: Sequence[LaneInfo], directory: str) -> None:
        from edgeserve.engines import make_engine  # here, since that registry is what names this module

        self._name = model.name
        self._lane = lanes[0]
        self._engine = make_engine(model, lanes, directory)

    def load(self) -> Footprint:
        footprint = self._engine.load()
        if self._engine.sequence() is not None:
            raise EngineError(
                f"model {self._name!r} makes sequences, whose pieces do not cross processes; take "
                f"[model.{self._name}] options.process away"
            )
        self._session = self._engine.open(self._lane)
        return footprint

    def ask(self, verb: str, argument: Any) -> Any:
        if verb == "example":
            return self._engine.example()
        if verb == "rows":
            return self._engine.rows()
        states = [None if state is None else state.state() for state in argument.states]
        results = run_batch(self._session, argument._replace(states=states))[0]
        return [_with_kept_state(result, self._name) for result in results]


def _with_kept_state(result: Result, name: str) -> Result:
    try:
        result.state = KeptState.of(result.state)
    except Exception as error:  # noqa: BLE001 pickle raises many kinds
        return Result({}, error=_not_returned(name, error))
    return result


def _serve(channel: Channel) -> None:
    """Answer questions until the parent is gone."""
    end_with(take_lifeline())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent says when to end
    host: Host | None = None
    name = ""
    answer: Tuple[bool, Any]
    while True:
        try:
            verb, argument = channel.receive()
        except (EOFError, OSError):
            return
        try:
            if verb == "load":
                name = argument[1][0].name
                host = _made(*argument)
                answer = (True, host.load())
                settle_memory()
            elif host is None:
                answer = (False, EngineError(f"model {name!r} was asked to {verb} before it was loaded"))
            else:
                answer = (True, host.ask(verb, argument))
        except EdgeServeError as error:
            answer = (False, error if isinstance(error, EngineError) else EngineError(str(error)))
        except Exception as error:  # noqa: BLE001 the process's boundary: all becomes a typed error on the other side
            answer = (False, EngineError(f"model {name!r} raised {type(error).__name__}: {error}"))
        try:
            channel.send(answer)
        except (EOFError, OSError):
            return
        except Exception as error:  # noqa: BLE001 pickle raises many kinds: what was returned cannot travel
            if verb == "run" and isinstance(answer[1], list):
                channel.send((True, [_sendable(result, name) for result in answer[1]]))
            else:
                channel.send((False, _not_returned(name, error)))


def _sendable(result: Result, name: str) -> Result:
    """A result, or its failure where it cannot travel."""
    try:
        check_plain(result)
        return result
    except Exception as error:  # noqa: BLE001 pickle raises many kinds
        return Result({}, error=_not_returned(name, error))


def _not_returned(name: str, error: Exception) -> EngineError:
    return EngineError(
        f"model {name!r}: what it returned cannot be sent between processes ({error}); "
        "return arrays, numbers, strings and containers of them"
    )


def _made(path: str, setup: Tuple[Any, ...]) -> Host:
    lane = setup[1][0]
    pin_thread(lane.cores)
    yield_to_others(lane.nice)
    if lane.flush:
        flush_to_zero()
    module, _, name = path.partition(":")
    host: Host = getattr(importlib.import_module(module), name)(*setup)
    return host


def serve_child() -> None:
    """The child's whole life; its argument is the number of its channel."""
    _serve(Channel(socket.socket(fileno=int(sys.argv[1])), is_child=True))
