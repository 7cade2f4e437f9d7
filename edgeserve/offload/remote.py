"""A host in a process of its own, as its parent sees it: the life of the process, and questions to it.

A process that is killed or does not answer within its bound fails that call with an :class:`EngineError` and is started
again: at once ``restarts_max`` times in a row, then after pauses that double up to :data:`PAUSE_S_MAX`, for ever. One
good answer resets the count, as do ``unload`` and ``load``. In a pause calls fail at once.

It is ``absent`` until it is loaded, ``starting`` while its host loads for the first time, then ``up``, and ``asked``
while a call runs. Where it ends it is ``ended``, which a thread or the next call mends, or ``paused``, which a thread
mends after the pause. ``unload`` does not wait for what runs: what comes of that afterwards changes nothing.
"""

from __future__ import annotations

import logging
import pickle
import socket
import threading
from typing import Any, Mapping, Tuple

from edgeserve.child import Child, how_it_ended, safe_environment
from edgeserve.config.schema import ModelConfig
from edgeserve.engines.base import LaneInfo
from edgeserve.errors import EngineError, ProcessEnded, said
from edgeserve.interpreter import stays_with_parent
from edgeserve.offload.channel import Channel
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

ABSENT, STARTING, UP, ASKED, ENDED, PAUSED = "absent", "starting", "up", "asked", "ended", "paused"

TABLE: Mapping[Tuple[str, str], str] = {
    (ABSENT, "load"): STARTING,
    (STARTING, "ready"): UP,
    (STARTING, "end"): ABSENT,
    (UP, "ask"): ASKED,
    (UP, "end"): ENDED,
    (UP, "pause"): PAUSED,
    (ASKED, "answer"): UP,
    (ASKED, "end"): ENDED,
    (ASKED, "pause"): PAUSED,
    (ENDED, "ready"): UP,
    (ENDED, "end"): ENDED,
    (ENDED, "pause"): PAUSED,
    (PAUSED, "ready"): UP,
    (PAUSED, "pause"): PAUSED,
    **{(state, "unload"): ABSENT for state in (ABSENT, STARTING, UP, ASKED, ENDED, PAUSED)},
    **{(ABSENT, what): ABSENT for what in ("ready", "ask", "answer", "end", "pause")},
}
"""(state, what happens) -> next state of a process."""

_START = (
    "-c",
    "import sys; sys.path[:1] = [path for path in sys.path[:1] if path]; "
    "from edgeserve.offload.process import serve_child; serve_child()",
)
"""The first arguments of a child: ``-c`` and ``-m`` put the working directory first on the path of imports, and the
first thing that the child does is take it off (``-P`` does the same, from Python 3.11 on)."""


class CannotTravel(EngineError):
    """Some item cannot be sent; nothing was."""


class TookTooLong(Exception):
    """No answer within the bound."""


class AskedChild:
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
        """Ask the child, and return whether it went well, and the answer or the :class:`EngineError`."""
        self._child.forget_lines()
        try:
            self._channel.send((verb, argument), timeout_s)
            answer: Tuple[bool, Any] = self._channel.receive(timeout_s)
        except socket.timeout:  # an OSError too, but the child is alive
            raise TookTooLong from None
        return answer

    def last_lines(self) -> str:
        """The last lines of an ended child's standard error since it was asked, for the end of a message."""
        lines = self._child.last_lines()
        return f". It wrote: {'; '.join(lines)}" if lines else ""

    def close(self) -> None:
        """End the child and close the channel, which no thread may be using."""
        self.end()
        self._channel.close()


class Remote:
    """A host in one child process. Calls from several threads wait for each other. ``starts`` counts the processes that
    became ready. ``waits``: a call waits while a process that ended is started again."""

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
        self._read: Any = ()  # the files of its first start
        self._lock = threading.Lock()  # one call at a time
        self._child: AskedChild | None = None
        self._moving = threading.Lock()  # unload does not wait for a call
        self._state = ABSENT
        self._ends = 0  # in a row
        self._why = ""  # of the last end
        self._pause_s = 0.0  # of the last pause
        self._unloaded = threading.Event()
        self._said: Any = None  # by the host, when it was loaded
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """The child's process id, or ``None`` while there is none."""
        child = self._child
        return child.pid if child is not None else None

    def _move(self, what: str) -> str:
        """The only way by which the state changes; the new one."""
        with self._moving:
            after = TABLE.get((self._state, what))
            if after is None:
                raise EngineError(f"model {self._name!r}: its process is {self._state}, it cannot {what}")
            self._state = after
            return after

    def load(self) -> Any:
        """Start the process; what its host says when it is loaded."""
        with self._lock:
            if self._state is ABSENT:
                self._ends = 0
                self._unloaded = threading.Event()
                self._move("load")
                try:
                    self._start()
                except BaseException:
                    self._move("end")
                    raise
            return self._said

    def trouble(self) -> str:
        """The reason why a call would fail now, or ``""``."""
        return f"its process ended {self._ends} times in a row ({self._why})" if self._state is PAUSED else ""

    def unload(self) -> None:
        """End the child."""
        self._move("unload")
        self._unloaded.set()
        child = self._child
        if child is not None:
            child.end()
        with self._lock:  # after the call that was running, so that no call reads from a channel closed here
            self._forget()

    def must_be_loaded(self, verb: str) -> None:
        if self._state in (ABSENT, STARTING):
            raise EngineError(f"model {self._name!r} is not loaded; call load() before {verb}()")

    def call(self, verb: str, argument: Any, starts: int = 0) -> Any:
        """Ask the child, which is started again if it has ended. ``starts``: only if it is still that one, since what
        is asked builds on what it holds."""
        self._must_not_wait()
        with self._lock:
            self._be_there(verb)
            if starts and starts != self.starts:
                raise ProcessEnded(f"model {self._name!r}: its process ended before {verb}(), and so did what it held")
            self._move("ask")
            try:
                value = self._ask(verb, argument)
            finally:
                if self._state is ASKED:
                    self._move("answer")
            self._ends = 0
            return value

    def present(self) -> int:
        """See that there is a child: which one, by number. Raises where it cannot be started, or not now."""
        self._must_not_wait()
        with self._lock:
            self._be_there("call")
            return self.starts

    def _must_not_wait(self) -> None:
        if self._state in (ENDED, PAUSED) and not self._waits:
            raise EngineError(
                f"model {self._name!r}: {self._why}; another is being started, and requests of other models on its "
                "lane do not wait for that. Ask again in a moment"
            )

    def _be_there(self, verb: str) -> None:
        """A child that is alive, the lock held."""
        self.must_be_loaded(verb)
        if self._child is not None and self._child.has_ended:  # between two calls: no input caused it
            self._forget()
            if self._waits:
                self._move("end")
            else:
                self._ended("its process ended between two calls")
                self._must_not_wait()
        if self._child is None:
            self._start_for_a_call()

    def _start_for_a_call(self) -> None:
        if self._state is PAUSED:
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
        files = self._files()
        if self._state is STARTING:
            self._read = files
        elif files != self._read:  # states, the batches that are known to be right, and other lanes are of those before
            raise EngineError(
                f"model {self._name!r}: its process ended, and its files are others than it was loaded from; reload "
                f"it (edgeserve reload {self._name})"
            )
        self._child = AskedChild()
        self._said = self._ask("load", self._setup)
        self.starts += 1
        self._move("ready")

    def _files(self) -> Any:
        """The model's files as they are now."""
        model, _, *more = self._setup[1]
        if not model.file:
            return ()
        from edgeserve.config.model_files import parts_of, stamps  # most functions have none

        return stamps(parts_of(model, more[0]))

    def _ended(self, why: str) -> None:
        """The child is gone: have it started again. The lock is held."""
        self._why = why
        self._ends += 1
        over = self._ends - self._restarts_max
        self._pause_s = min(PAUSE_S * 2.0 ** min(over - 1, 16), PAUSE_S_MAX) if over > 0 else 0.0
        if self._move("pause" if self._pause_s else "end") is ABSENT:
            return
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
            if self._state is ABSENT and verb != "load":
                raise EngineError(f"model {self._name!r} was unloaded during {verb}()") from None
            raise self._gone(
                verb, f"its process ended during {verb}() ({how_it_ended(status)}){child.last_lines()}"
            ) from None
        except TookTooLong:
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
        except (KeyboardInterrupt, GeneratorExit):  # its answer may still come, and would be the next call's
            child.kill()
            self._forget()
            if verb != "load":
                self._ended("a call was interrupted")
            raise
        except BaseException as error:  # pickle raises many kinds: the items cannot travel, and nothing was sent
            raise self.unsendable(error) from error
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

    def unsendable(self, error: BaseException) -> CannotTravel:
        return CannotTravel(
            f"model {self._name!r}: its items cannot be sent to its process ({said(error)}); "
            "let them be arrays, numbers, strings and containers of them"
        )
