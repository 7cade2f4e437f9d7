"""An engine, or a language model's backend, in a process of its own, for ``options.process = true``.

A host function that holds the interpreter lock for 50 ms stalls the loop and every other lane for 50 ms; in its own
process it stalls no other lane. Each lane has its own child, which makes the very same engine and answers one call at a
time over a socket pair. A child is started with a fresh interpreter (never a fork: the parent has threads and sockets),
and it ends with its parent. What a child serves is a *host*: named by module and class, made with what the parent
sends, loaded once, and asked.

Values are copied both ways, so this pays for functions that run for milliseconds, not for microseconds. A child gets
pickles; what it answers is plain (``plain.py``): nothing that it sends runs here.

A child that is killed or does not answer within ``options.process_timeout`` fails that call with an
:class:`EngineError` and is started again: at once ``options.process_restarts_max`` times in a row, then after pauses
that double up to :data:`PAUSE_S_MAX`, for ever. One good answer resets the count, as do ``unload`` and ``load``. In a
pause calls fail at once. Inputs that end their process again and again are refused (``quarantine.py``).
"""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import signal
import socket
import sys
import threading
from typing import Any, Callable, Dict, Iterator, List, Protocol, Sequence, Tuple

from edgeserve.child import Child, end_with, how_it_ended, safe_environment, take_lifeline
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
from edgeserve.errors import EdgeServeError, EngineError, ProcessEnded, said
from edgeserve.interpreter import settle_memory, stays_with_parent
from edgeserve.offload.channel import Channel
from edgeserve.offload.pin import pin_thread
from edgeserve.offload.plain import KeptState, check_plain
from edgeserve.offload.quarantine import STRIKES_MAX, Quarantine
from edgeserve.units import NS_PER_S, format_duration

log = logging.getLogger("edgeserve")

TIMEOUT_NS = 30 * NS_PER_S
"""The longest time of one call: a lane's default ``hang``."""

LOAD_TIMEOUT_NS = 600 * NS_PER_S
"""The longest time to read a language model from a slow disk."""

RESTARTS_MAX = 3
"""A function that kills its process every time must not start a new interpreter per request for ever."""

PAUSE_S = 0.5
PAUSE_S_MAX = 30.0
"""The first pause before another start, and the longest."""

LINES_KEPT = 5
"""The number of last lines kept of a child's standard error during a call: they say why it ended."""

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
        return Footprint(
            sum([item.weights_bytes for item in footprints]), sum([item.work_bytes for item in footprints])
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


class Remote:
    """A host in one child process. Calls from several threads wait for each other. ``starts`` counts the processes."""

    def __init__(
        self,
        host: str,
        model: ModelConfig,
        lane: LaneInfo,
        more: Tuple[Any, ...],
        timeout_ns: int,
        restarts_max: int,
        load_timeout_ns: int = 0,
        waits: bool = True,
    ) -> None:
        self._name = model.name
        self._timeout_ns = timeout_ns
        self._load_timeout_ns = load_timeout_ns or timeout_ns
        self._restarts_max = restarts_max
        self._waits = waits
        lane = lane._replace(depth=1, clock_ns=None, common=None, apps=0)
        self._setup = (host, (model, [lane], *more))
        self._lock = threading.Lock()  # one call at a time
        self._child: _Asked | None = None
        self._loaded = False
        self._ends = 0  # in a row
        self._why = ""  # of the last end
        self._pause_s = 0.0  # before the next start, 0: at once
        self._restarting = False
        self._unloaded = threading.Event()
        self._said: Any = None  # by the host, when it was loaded
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """The child's process id, or ``None`` while there is none."""
        child = self._child
        return child.pid if child is not None else None

    def load(self) -> Any:
        """Start the process; what its host says when it is loaded."""
        with self._lock:
            if not self._loaded:
                self._ends, self._pause_s, self._restarting = 0, 0.0, False
                self._unloaded = threading.Event()
                self._start()
                self._loaded = True
            return self._said

    def trouble(self) -> str:
        """Why a call would fail now, or ``""``."""
        return f"its process ended {self._ends} times in a row ({self._why})" if self._pause_s else ""

    def unload(self) -> None:
        """End the child."""
        self._loaded = False
        self._unloaded.set()
        child = self._child
        if child is not None:
            child.end()
        with self._lock:  # after the call that was running, so that no call reads from a channel closed here
            self._forget()

    def must_be_loaded(self, verb: str) -> None:
        if not self._loaded:
            raise EngineError(f"model {self._name!r} is not loaded; call load() before {verb}()")

    def call(self, verb: str, argument: Any, starts: int = 0) -> Any:
        """Ask the child, which is started again if it has ended. ``starts``: only if it is still that one, since what
        is asked builds on what it holds."""
        self._must_not_wait()
        with self._lock:
            self._be_there(verb)
            if starts and starts != self.starts:
                raise ProcessEnded(f"model {self._name!r}: its process ended before {verb}(), and so did what it held")
            value = self._ask(verb, argument)
            self._ends = 0
            return value

    def present(self) -> int:
        """See that there is a child: which one, by number. Raises where it cannot be started, or not now."""
        self._must_not_wait()
        with self._lock:
            self._be_there("call")
            return self.starts

    def _must_not_wait(self) -> None:
        if self._restarting and not self._waits:
            raise EngineError(
                f"model {self._name!r}: {self._why}; another is being started, and requests of other models on its "
                "lane do not wait for that. Ask again in a moment"
            )

    def _be_there(self, verb: str) -> None:
        """A child that is alive, the lock held."""
        self.must_be_loaded(verb)
        if self._child is not None and self._child.has_ended:  # between two calls: no input caused it
            self._forget()
            if not self._waits:
                self._ended("its process ended between two calls")
                self._must_not_wait()
        if self._child is None:
            self._start_for_a_call()

    def _start_for_a_call(self) -> None:
        if self._pause_s:
            raise EngineError(
                f"model {self._name!r}: {self.trouble()} and is started again within "
                f"{self._pause_s:g} s; mend what ends it (the first {self._restarts_max} starts in a row "
                f"are at once: [model.{self._name}] options.process_restarts_max)"
            )
        try:
            self._start()
        except EngineError as error:
            self._ended(str(error))
            raise EngineError(str(error)) from None  # the call did not end it

    def _start(self) -> None:
        self._child = _Asked()
        self._said = self._ask("load", self._setup)
        self.starts += 1
        self._pause_s, self._restarting = 0.0, False

    def _ended(self, why: str) -> None:
        """The child is gone: have it started again. The lock is held."""
        self._why, self._restarting = why, True
        self._ends += 1
        over = self._ends - self._restarts_max
        self._pause_s = min(PAUSE_S * 2.0 ** min(over - 1, 16), PAUSE_S_MAX) if over > 0 else 0.0
        if self._pause_s:
            log.warning(
                "model %s: its process ended %d times in a row (%s); it is started again in %g s",
                self._name,
                self._ends,
                why,
                self._pause_s,
            )
        threading.Thread(
            target=self._come_back,
            args=(self._pause_s, self._ends, self._unloaded),
            name=f"edgeserve-{self._name}-restart",
            daemon=True,
        ).start()

    def _come_back(self, pause_s: float, ends: int, unloaded: threading.Event) -> None:
        """Start the child again, on a thread of its own: calls need not wait for it, nor must one come first."""
        if unloaded.wait(pause_s):
            return
        with self._lock:
            if unloaded.is_set() or self._child is not None or self._ends != ends:
                return
            try:
                self._start()
            except EngineError as error:
                self._ended(str(error))

    def _forget(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def _ask(self, verb: str, argument: Any) -> Any:
        """Ask the child one question. Any failure of the process itself ends it."""
        child = self._child
        assert child is not None, "the callers start it"
        timeout_ns = self._load_timeout_ns if verb == "load" else self._timeout_ns
        try:
            fine, value = child.ask(verb, argument, timeout_ns / NS_PER_S)
        except (EOFError, OSError):
            status = child.end()
            self._forget()
            if not self._loaded and verb != "load":
                raise EngineError(f"model {self._name!r} was unloaded during {verb}()") from None
            raise self._gone(
                verb, f"its process ended during {verb}() ({how_it_ended(status)}){child.last_lines()}"
            ) from None
        except _TookTooLong:
            child.kill()
            self._forget()
            raise self._gone(
                verb,
                f"{verb}() did not answer within {format_duration(timeout_ns)} and its "
                f"process was killed (bound: [model.{self._name}] options.process_timeout)",
            ) from None
        except pickle.UnpicklingError as error:
            child.kill()
            self._forget()
            raise self._gone(verb, f"its process answered {verb}() with {error}, which is no plain value") from None
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # pickle raises many kinds: the items cannot travel, and nothing was sent
            raise self._unsendable(error) from error
        if not fine:
            if verb == "load":
                self._forget()
            raise value
        return value

    def _gone(self, verb: str, what: str) -> EngineError:
        """The error of a call whose process went away; another is started, unless this one was to be the first."""
        if verb == "load":
            return ProcessEnded(f"model {self._name!r}: {what}")
        self._ended(what)
        return ProcessEnded(f"model {self._name!r}: {what}; it is started again")

    def _unsendable(self, error: BaseException) -> _CannotTravel:
        return _CannotTravel(
            f"model {self._name!r}: its items cannot be sent to its process ({said(error)}); "
            "let them be arrays, numbers, strings and containers of them"
        )


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
        except _CannotTravel:
            failed = {index: error for index, error in enumerate(self._travels(batch)) if error is not None}
            if not failed:  # each travels alone, but not all together
                raise
        rest = batch.without(failed)
        return with_failures(self.call("run", rest) if rest.items else (), failed)

    def _travels(self, batch: Batch) -> Iterator[EngineError | None]:
        """Why an item, with its state, cannot be sent, for each of them."""
        for index, item in enumerate(batch.items):
            try:
                pickle.dumps((item, batch.states[index] if batch.states else None), protocol=5)
                yield None
            except (KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException as error:  # noqa: BLE001 pickle raises many kinds
                yield self._unsendable(error)


class _CannotTravel(EngineError):
    """Some item cannot be sent; nothing was."""


class _TookTooLong(Exception):
    """No answer within the bound."""


_START = (
    "-c",
    "import sys; sys.path[:1] = [path for path in sys.path[:1] if path]; "
    "from edgeserve.offload.process import serve_child; serve_child()",
)
"""The first arguments of a child: ``-c`` and ``-m`` put the working directory first on the path of imports, and the
first thing that the child does is take it off (``-P`` does the same, from Python 3.11 on)."""


class _Asked:
    """A child that answers questions over a socket pair."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            self._child = Child(
                [*_START, str(theirs.fileno())],
                safe_environment(),
                pass_fds=(theirs.fileno(),),
                lines=LINES_KEPT,
                passes_on=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._channel = Channel(ours)
        self.pid = self._child.pid
        self.kill, self.end = self._child.kill, self._child.end
        stays_with_parent(self)

    def left_behind(self) -> None:
        """See :class:`~edgeserve.interpreter.LeftBehind`."""
        self._channel.close()

    @property
    def has_ended(self) -> bool:
        return self._child.has_ended

    def ask(self, verb: str, argument: Any, timeout_s: float) -> Tuple[bool, Any]:
        """Whether it went well, and the answer or the :class:`EngineError`."""
        self._child.forget_lines()
        try:
            self._channel.send((verb, argument), timeout_s)
            answer: Tuple[bool, Any] = self._channel.receive(timeout_s)
        except socket.timeout:  # an OSError too, but the child is alive
            raise _TookTooLong from None
        return answer

    def last_lines(self) -> str:
        """The last lines of an ended child's standard error since it was asked, for the end of a message."""
        lines = self._child.last_lines()
        return f". It wrote: {'; '.join(lines)}" if lines else ""

    def close(self) -> None:
        """End the child and close the channel, which no thread may be using."""
        self.end()
        self._channel.close()


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
