"""The embedded runtime: apps of a configuration served inside this process, without any socket.

Wiring only: it starts the lanes, the engines and the loop's thread, and turns calls into mail for the loop.
``edgeserve serve`` is the same object with the bus as a second front.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union

from edgeserve.answers import Answer, TakesPieces, answer_within
from edgeserve.config.loading import config_of
from edgeserve.config.schema import Config
from edgeserve.errors import ConfigError, DeadlineExpired, EdgeServeError, Failed, Rejected, RequestError
from edgeserve.interpreter import check_may_wait, check_process, gives_answers, may_wait, settle_memory, unsettle_memory
from edgeserve.live.loop_io import clock_ns
from edgeserve.live.request import LiveRequest, request_of_call, request_validators, unknown_app
from edgeserve.live.responders import RequestFuture
from edgeserve.live.runtime_core import RuntimeCore, learn_to_answer
from edgeserve.live.startup import naming_file
from edgeserve.live.world import CallAsked, CancelAsked, LostDevice, StopAsked
from edgeserve.request_options import RequestOptions, given
from edgeserve.units import ns_to_s

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from edgeserve.answer_streams import AnswerStream
    from edgeserve.app import Sections
    from edgeserve.tap import Tap

log = logging.getLogger("edgeserve")

_Reply = TypeVar("_Reply")

ConfigSource = Union[str, "os.PathLike[str]", Config]
"""A configuration, or the path of its file."""

CALL_S_MAX = 10.0
"""The longest wait, in seconds, of ``stats`` for the loop, which answers within a step."""

STOP_GRACE_S = 5.0
"""Beyond the drain: for the last answers, the lanes' threads and the engines' memory."""


def _configured(source: Optional[ConfigSource], sections: Sections) -> Config:
    """The configuration of a file, an object, or models and apps in Python."""
    if not sections:
        if source is None:
            raise ConfigError("a Runtime needs a configuration: the path of its file, or models={...} and apps={...}")
        return config_of(source)
    if source is not None:
        raise ConfigError(f"a Runtime takes a configuration ({source!r}) or {', '.join(sections)}=..., not both")
    from edgeserve.app import configuration

    return configuration(**sections)


class Runtime:
    """Many models on this machine, called as functions. Use it as a context manager, or ``start`` and ``stop`` it.

    ``config``: the path of a configuration file, or a :class:`~edgeserve.config.schema.Config`. Or, in Python,
    ``models`` and ``apps`` by name, and the other arguments of :func:`edgeserve.app.configuration`. Raises
    :class:`~edgeserve.errors.ConfigError` naming the mend.

    ``infer`` and ``submit`` may be called from any thread, except that ``infer`` and everything else that waits raises
    :class:`~edgeserve.errors.RequestError` on the thread that gives the answers, where callbacks of futures run. A
    started runtime does not survive ``fork``: in the child all but ``stop`` raises it. With ``serve=True`` it also
    answers on the bus (``[server] endpoint``); without, no socket is opened.

    ``on_device_lost``: set before ``start``, it is told when a device is lost for this process, once per device; on the
    loop's thread, so it must return at once. Apps that can run elsewhere go on, others are refused; what brings the
    device back is another process.

    ``tracer_provider``: of OpenTelemetry, your program's; it gets a span of each request (docs/guide/tracing.md).

    ``taps``: objects that hear of each step of the scheduler (docs/guide/write-a-tap.md).

    ``freeze``: from its start to its end, take every Python object that is alive at the start or at a reload out of
    garbage collections (``gc.freeze``), since a full collection stops all threads: 140 to 290 ms with torch. Cycles
    among these objects are not freed meanwhile.
    """

    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        serve: bool = False,
        tracer_provider: Any = None,
        taps: Sequence[Tap] = (),
        freeze: bool = True,
        **sections: Unpack[Sections],
    ) -> None:
        config = self._config = _configured(config, sections)
        self.tracer_provider = tracer_provider
        self.taps: Sequence[Tap] = ()
        if taps:
            from edgeserve.tap import checked

            self.taps = checked(taps)
        with naming_file(config.source):
            self._validators = request_validators(config)
        self._serve = serve
        self.freeze = freeze
        self._process = 0  # that started it
        self.on_device_lost: Optional[Callable[[LostDevice], None]] = None
        self._core: Optional[RuntimeCore] = None
        self._thread: Optional[threading.Thread] = None
        self._ready = threading.Event()
        self._stopping = False
        self._reloading = threading.Lock()
        self._called_off = False
        self._closed = False
        self._error: Optional[BaseException] = None
        self._is_logged = False  # the log has it

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self, progress: Callable[[str], None] | None = None) -> Runtime:
        """Load and warm the models and begin to serve. Returns when ready; raises what made that impossible.
        ``progress`` is told of each step, and how far a long one is, in words; on another thread."""
        self.check_process()
        check_may_wait("start()")
        if self.was_started:
            raise EdgeServeError("this Runtime was started already; make a new one")
        self._process = os.getpid()
        self._core = RuntimeCore(
            self._config,
            self._validators,
            self._serve,
            lambda: self._called_off,
            progress,
            self.tracer_provider,
            self._settle,
            self.taps,
        )
        self._core.reload_file = self.reload
        self._core.on_device_lost = self.on_device_lost
        # A daemon: a program that forgets stop() still ends.
        self._thread = threading.Thread(target=self._live, name="edgeserve-loop", daemon=True)
        self._thread.start()
        try:
            self._ready.wait()
        except BaseException:  # Ctrl-C: without a caller it would load, and serve, for ever
            self.ask_to_stop(drain=False)
            raise
        if self._error is not None and not self._is_logged:
            self._thread.join()
            self._raise_error()
        return self

    def stop(self, drain: bool = True) -> None:
        """Accept nothing more, let accepted requests end within ``[server] drain`` (or cancel them at once), and
        give everything back. Calling it again does nothing, nor does calling it in a forked child. Raises the bug that
        ended the loop, if one did. On a thread that gives answers it is :meth:`ask_to_stop`."""
        if self._is_copy():
            return
        self.ask_to_stop(drain)
        if self._thread is not None and may_wait():
            patience_s = ns_to_s(self._config.server.drain_ns if drain else 0) + STOP_GRACE_S
            self._thread.join(patience_s)
            if self._thread.is_alive():
                log.warning("the loop did not end within %.1f s; its thread is abandoned", patience_s)
        if self._error is not None:
            self._raise_error()

    def ask_to_stop(self, drain: bool = True) -> None:
        """Like :meth:`stop`, without waiting; may be called from a signal handler, and again to hurry."""
        if self._is_copy():
            return
        self._stopping = True
        if not self._ready.is_set():
            self._called_off = True
        if self._core is not None:
            self._core.mailbox.post(StopAsked(self._config.server.drain_ns if drain else 0))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until the loop has ended; ``False`` when it still runs after ``timeout_s``."""
        self.check_process()
        check_may_wait("wait()")
        if self._thread is None:
            raise EdgeServeError("the runtime is not started; call start() first")
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def was_started(self) -> bool:
        """True if :meth:`start` was called: a runtime starts once."""
        return self._thread is not None

    @property
    def is_alive(self) -> bool:
        """True if the loop's thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def check_process(self) -> None:
        """Raise :class:`~edgeserve.errors.RequestError` in a child that was forked after the start."""
        if self._process:
            check_process("Runtime", self._process)

    def _is_copy(self) -> bool:
        return self._process not in (0, os.getpid())

    def __enter__(self) -> Runtime:
        self.check_process()
        return self if self._thread is not None else self.start()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.stop(drain=kind is None)

    @property
    def endpoints(self) -> List[str]:
        """The address of the bus; empty when embedded."""
        self.check_process()
        return (
            self._core.endpoints() if self._core is not None and self._ready.is_set() and self._core.has_served else []
        )

    def on_loop(self, call: Callable[[RuntimeCore], None]) -> None:
        """Have the loop's thread call ``call`` when it gets to it, without waiting; never once the loop has ended."""
        self.check_process()
        core = self._core
        if core is not None and self._ready.is_set() and not self._closed:
            core.mailbox.post(CallAsked(lambda: call(core)))

    # --- requests -----------------------------------------------------------------------------------------------------

    def infer(
        self, app: str, inputs: Mapping[str, Any], *, timeout_ms: float | None = None, **options: Unpack[RequestOptions]
    ) -> Answer:
        """Ask ``app`` and wait for its :class:`~edgeserve.answers.Answer`. Raises a
        :class:`~edgeserve.errors.RequestError` when there is none. After ``timeout_ms`` (no bound by default: the
        deadline is one) the request is cancelled; what a language model has written by then is the answer."""
        check_may_wait("infer()")
        future = self.submit(app, inputs, **options)
        answer: Answer = answer_within(future, timeout_ms, f"app {app!r}")
        return answer

    def submit(self, app: str, inputs: Mapping[str, Any], **options: Unpack[RequestOptions]) -> RequestFuture:
        """Ask ``app`` without waiting: a future whose ``cancel()`` takes the request out of the queue, and whose ``id``
        is the request's number, for :meth:`story`.

        ``None`` means as the app's configuration says. Arrays are neither copied nor changed; do not change them
        before the answer is there. Raises at once what can be said at once (unknown app, bad input, expired).
        """
        return self.submit_pieces(None, app, inputs, **options)

    def stream(
        self, app: str, inputs: Mapping[str, Any], *, timeout_ms: float | None = None, **options: Unpack[RequestOptions]
    ) -> AnswerStream:
        """Ask ``app`` for an answer in pieces, as its model works them out (a language model's words): an
        :class:`~edgeserve.answer_streams.AnswerStream`. An app without such a model brings none, only the answer.
        ``timeout_ms`` bounds the wait for each piece."""
        from edgeserve.answer_streams import AnswerStream

        pieces = AnswerStream(timeout_ms)
        return pieces.follow(self.submit_pieces(pieces, app, inputs, **options))

    def submit_pieces(
        self, pieces: TakesPieces | None, app: str, inputs: Mapping[str, Any], **options: Unpack[RequestOptions]
    ) -> RequestFuture:
        """Like :meth:`submit`; ``pieces`` takes what comes ahead of the answer, on the loop's thread."""
        self.check_process()
        now_ns = clock_ns()
        validator = self._validators.get(app) if isinstance(app, str) else None
        if validator is None:
            raise self._numbered(app, unknown_app(app, self._validators))
        future = RequestFuture(self._cancel)
        future.stream = pieces
        try:
            request = future.request = request_of_call(app, inputs, pieces=pieces is not None, **options)
        except TypeError:
            given(options)  # says which option there is none of
            raise
        try:
            validator.check(request, future, now_ns)
        except RequestError as error:
            if request.reset and isinstance(error, DeadlineExpired):  # what follows is a beginning all the same
                self.on_loop(lambda core: core.world.values.begin_anew((app, request.stream or "")))
            self._numbered(app, error)
            raise
        if request.predictors is not None:
            if request.predictors.missing(request.hints):  # on this thread: the loop has others to serve
                request.hints = request.predictors.on_arrival(request.hints, request.inputs, clock_ns)
                request.predicted_ns = clock_ns() - now_ns
            request.predictors = None
        self._post_request(request, future)
        return future

    def _numbered(self, app: Any, error: RequestError) -> RequestError:
        """The error with a number, under which :meth:`story` finds it."""
        if self._core is not None:
            self._core.early.add(app, error)
        return error

    def _post_request(self, request: LiveRequest, future: RequestFuture) -> None:
        if self._core is None or not self._ready.is_set():
            raise Rejected("the runtime is not started; use it in a 'with' block, or call start() first", "not_started")
        future.unanswered = self._core.unanswered
        future.unanswered.add(future)
        self._core.mailbox.post(request)
        if self._closed:  # the loop may have ended before it saw this
            self._core.sweep(self._why_closed())

    def _cancel(self, future: RequestFuture, keeps: bool) -> None:
        if self._core is not None:
            self._core.mailbox.post(CancelAsked(future.request, keeps))

    def reload(self, source: ConfigSource = "") -> None:
        """Serve another configuration from now on: a file (``""``: the one it was made from, read again) or a
        :class:`Config`. Apps, policies and models may differ; accepted requests end as they began, and what arrives
        meanwhile waits for them, at most ``[server] drain``. Raises what is wrong with it, or
        :class:`~edgeserve.errors.EdgeServeError` where accepted requests did not end in time: then nothing has changed.
        States of streams begin anew."""
        self.check_process()
        check_may_wait("reload()")
        core = self._core
        if core is None or not self._ready.is_set() or self._closed:
            raise EdgeServeError("the runtime is not started, or has stopped; there is nothing to reload")
        if not self._reloading.acquire(blocking=False):
            raise EdgeServeError("another reload is going on; wait for its end")
        try:
            if source == "" and self._config.source.startswith("("):
                raise EdgeServeError(
                    "this runtime was made from no file: start it again, or give reload() a file or a Config"
                )
            config = config_of(self._config.source if source == "" else source)
            with naming_file(config.source):
                self._change(core, core.prepare(config))
        finally:
            self._reloading.release()

    def _change(self, core: RuntimeCore, prepared: Any) -> None:
        done: queue.Queue[Optional[BaseException]] = queue.Queue()

        def told(error: Optional[BaseException]) -> None:
            if error is None:
                self._validators, self._config = dict(core.validators), core.config
            done.put(error)

        drain_s = ns_to_s(self._config.server.drain_ns)
        try:
            core.mailbox.post(CallAsked(lambda: core.hold(prepared, told)))
            error = done.get(timeout=drain_s)
        except BaseException as waited:  # Ctrl-C, too
            if self._ask(lambda core: core.call_off()):
                core.discard(prepared.started)
                if isinstance(waited, queue.Empty):
                    raise EdgeServeError(
                        f"the configuration has not changed: accepted requests had not ended after "
                        f"{drain_s:g} s, [server] drain; try again when fewer are open"
                    ) from None
                raise
            error = done.get(timeout=CALL_S_MAX)  # it took over at the last moment
        if error is not None:
            core.discard(prepared.started)
            raise error

    # --- questions ----------------------------------------------------------------------------------------------------

    @property
    def configuration(self) -> Config:
        """The configuration that is served."""
        return self._config

    def config(self) -> str:
        """The text of a configuration file that means the same. Functions are written as ``module:function``; raises
        :class:`~edgeserve.errors.ConfigError` for one that no file can name."""
        from edgeserve.config.toml_text import toml_of

        with naming_file(self._config.source):
            return toml_of(self._config)

    def stats(self) -> Dict[str, Any]:
        """Per app: outcomes, reasons, late, latency percentiles, where time went; per lane: busy share, works; and
        what is resident and queued. Plain numbers and strings."""
        return self._ask(lambda core: core.stats())

    def expected(self) -> Dict[str, Dict[str, Any]]:
        """Per app, what a request could expect that arrived now: ``slo_ms``, the app's own; ``expected_ms``, what it
        would take alone, after ``wait_ms`` of waiting for its lane and its model; ``slo_ms_min``, the smallest deadline
        for which its policy would not give it up. What waits already is not counted, since a request may pass it. None
        where no lane could run it."""
        return self._ask(lambda core: core.expected())

    def story(self, request_id: int) -> List[str]:
        """The story of a request, a line for each event: by the ``id`` of a future, an answer or an error. No line when
        it is not remembered: it was refused before the scheduler saw it, or is none of the last that ended."""
        return self._ask(lambda core: core.story(request_id))

    def check(self) -> None:
        """Assert the scheduler's invariants, on its own thread."""
        from edgeserve.testing.invariants import check_invariants  # for tests alone

        self._ask(lambda core: check_invariants(core.scheduler.state))

    def measured_at_start(self) -> Mapping[Tuple[str, str], Mapping[int, Sequence[int]]]:
        """Times of models without a profile at the start: (model, lane) -> batch size -> durations in nanoseconds;
        none where the model could not be tried."""
        return self._ask(lambda core: core.measured())

    def _ask(self, question: Callable[[RuntimeCore], _Reply]) -> _Reply:
        """Run ``question`` on the loop's thread, which owns the tables."""
        self.check_process()
        core = self._core
        if core is None or not self._ready.is_set():
            raise EdgeServeError("the runtime is not started; call start() first")
        if not core.has_served:
            raise EdgeServeError("the runtime could not start, as start() said; make a new one")
        if self._closed or self._thread is threading.current_thread():
            return question(core)
        learn_to_answer()
        check_may_wait("a question to another runtime")
        asked = CallAsked(lambda: question(core))
        core.mailbox.post(asked)
        if self._closed:  # the loop may have ended before it saw this
            return question(core)
        reply: _Reply = asked.result(CALL_S_MAX)
        return reply

    # --- the loop's thread --------------------------------------------------------------------------------------------

    def _live(self) -> None:
        core = self._core
        assert core is not None, "start() makes the core before the thread"
        gives_answers()
        try:
            with naming_file(self._config.source):
                core.open()
            self._settle()
            self._ready.set()
            core.live()
        except BaseException as error:  # noqa: BLE001 kept, sent to every caller that waits, and raised by start or stop
            self._is_logged = self._ready.is_set() and self._serve  # before, start() raises it; in process, stop() does
            self._error = error
            if self._is_logged:
                log.error(
                    "the loop ended because of a fault: %s: %s",
                    type(error).__name__,
                    error,
                    exc_info=not isinstance(error, EdgeServeError),
                )
        finally:
            core.close(self._why_closed())
            unsettle_memory(self)
            self._closed = True
            core.sweep(self._why_closed())
            self._ready.set()

    def _settle(self) -> None:
        if self.freeze:
            settle_memory(self)

    def _why_closed(self) -> RequestError:
        if self._error is not None:
            return Failed(f"the runtime ended because of a fault: {type(self._error).__name__}: {self._error}")
        return Rejected("the runtime has stopped and accepts nothing more", "stopped")

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        assert error is not None, "called only when there is one"
        raise error
