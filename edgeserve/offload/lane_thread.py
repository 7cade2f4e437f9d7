"""A lane: one thread that launches works within the windows that the scheduler gave them, in the order given.

It knows no request or policy. A work is a batch for an engine, or a callable. Up to ``depth`` batches are launched and
not finished: the thread packs the next one while the device runs the last. The lane never decides; what it did or would
not do is posted to one mailbox, which belongs to the loop.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, NamedTuple, Optional, Tuple, Union

from edgeserve.engines.base import WAIT_S_MAX, Engine, LaneInfo, Pending, Session
from edgeserve.engines.hold import NAME as TURNS
from edgeserve.engines.hold import Hold
from edgeserve.errors import DeviceLost, EngineError
from edgeserve.units import NS_PER_MS, NS_PER_S, NS_PER_US

if TYPE_CHECKING:
    from edgeserve.engines.turns import Turns

HANG_NS = 30_000 * NS_PER_MS
"""The time beyond the expected one after which a lane aborts a batch, unless the lane sets its own."""

LOOK_NS_MIN = 100 * NS_PER_US
LOOK_NS_MAX = 2 * NS_PER_MS
"""Bounds on how long a lane with room for another batch waits for the oldest before it looks into its inbox: a quarter
of the time that the oldest is expected to need. A look costs about 10 us."""


class LaneWork(NamedTuple):
    """An item of a lane's inbox: a batch (``argument``) for ``engine``, or ``call(argument)`` on the lane's thread,
    which starts when the batches before it are over. ``tag`` is the poster's own."""

    work_id: int
    start_after_ns: int
    start_before_ns: int
    call: Optional[Callable[[Any], Any]]
    argument: Any
    tag: Any = None
    engine: Optional[Engine] = None
    expected_ns: int = 0


class WorkDone(NamedTuple):
    """A work ran from ``started_ns`` to ``finished_ns`` and returned ``value``, or raised ``error``. The times are the
    device's where it can say. Else they are the lane's, and time that two batches share is charged to the first."""

    work: LaneWork
    started_ns: int
    finished_ns: int
    value: Any
    error: Optional[BaseException]


class WorkNotStarted(NamedTuple):
    """A lane did not start a work, and why."""

    work: LaneWork
    reason: str


class LaneDown(NamedTuple):
    """A lane will run nothing more, and why. Its works are refused from now on. ``lost``: its device is lost."""

    lane: str
    reason: str
    lost: bool = False


LaneMail = Union[WorkDone, WorkNotStarted, LaneDown]


class _Launched:
    """A batch that was launched and is not finished. It is expected to be over by ``due_ns``."""

    __slots__ = ("work", "pending", "launched_ns", "due_ns", "abort_tried", "error", "hold")

    def __init__(self, work: LaneWork, pending: Pending, launched_ns: int, due_ns: int, hold: Hold) -> None:
        self.work = work
        self.pending = pending
        self.hold = hold
        self.launched_ns = launched_ns
        self.due_ns = due_ns
        self.abort_tried = False
        self.error: Optional[BaseException] = None  # raised where the contract allows none

    def is_over(self, wait_s: float = 0.0) -> bool:
        """True if it is over, after a wait of so long at most."""
        if self.error is not None:
            return True
        try:
            return self.pending.wait(wait_s) if wait_s else self.pending.done()
        except BaseException as error:  # noqa: BLE001 the lane's boundary: any error of an engine becomes mail
            self.error = error
            return True

    def abort(self) -> str:
        """End it now, where its engine can; the text of what the engine raised instead, or ``""``."""
        try:
            self.pending.abort()
        except BaseException as error:  # noqa: BLE001 a device that is lost may fail in any way, an engine's code too
            return f" (its batch could not be aborted: {error})"
        return ""


def _checked(times: Any) -> Optional[Tuple[int, int]]:
    """The times that an engine's :meth:`Pending.times` returned."""
    if times is None:
        return None
    try:
        started_ns, finished_ns = times
        return int(started_ns), int(finished_ns)
    except (TypeError, ValueError, OverflowError):
        raise EngineError(f"times() returned {times!r}; expected two numbers of nanoseconds, or None") from None


def _to_nobody(mail: LaneMail) -> None:
    """Drop the mail of an abandoned lane."""


def side_of(engine: Optional[Engine]) -> int:
    """The process that runs an engine's batches: this one, or one of its own."""
    return id(engine) if engine is not None and engine.ends_calls else 0


class _LaneEnd:
    """Stands in the inbox behind the last work."""


_END = _LaneEnd()


class LaneThread:
    """One daemon thread with an inbox, and a session per engine. ``give``, ``stop``, ``give_up`` and ``forget`` may be
    called from any thread.

    Every work given is answered by exactly one :class:`WorkDone` or :class:`WorkNotStarted`, as long as the engine
    returns: batches that ran in the order in which they were given. A batch that takes longer than expected by
    ``hang_ns`` is aborted where the engine can; else it keeps the thread, and the scheduler decides by its own clock.
    ``turns``: of the processes on its GPU; a batch is launched when its process has the turn.
    The inbox is as short as the scheduler keeps it; the lane itself does not bound it.
    """

    def __init__(
        self,
        name: str,
        post: Callable[[LaneMail], None],
        clock_ns: Callable[[], int],
        prepare: Callable[[], None] | None = None,
        info: LaneInfo | None = None,
        hang_ns: int = HANG_NS,
        turns: Optional[Turns] = None,
    ) -> None:
        self.name = name
        common = {} if turns is None else {TURNS: turns}
        self.info = (info or LaneInfo())._replace(name=name, clock_ns=clock_ns, common=common)
        self._turns = turns
        self._post = post
        self._clock_ns = clock_ns
        self._prepare = prepare
        self._depth = self.info.depth
        self._hang_ns = hang_ns
        self._inbox: queue.SimpleQueue[Union[LaneWork, _LaneEnd]] = queue.SimpleQueue()
        self._next: Union[LaneWork, _LaneEnd, None] = None  # taken out of the inbox
        self._flight: Deque[_Launched] = deque()
        self._free_ns = 0  # when the last finished batch was over
        self._sessions: Dict[int, Tuple[Engine, Session]] = {}
        self._stopping = threading.Event()
        self._given_up = threading.Event()
        self._down_reason = ""
        # A daemon: a work that hangs for ever must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=f"edgeserve-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_down(self) -> bool:
        """True if it takes no more work."""
        return bool(self._down_reason)

    def give(self, work: LaneWork) -> None:
        """Queue a work behind those given before."""
        self._inbox.put(work)

    def stop(self) -> None:
        """Refuse what has not started and end the thread after the batches that were launched."""
        self._stopping.set()
        self._inbox.put(_END)

    def give_up(self) -> None:
        """Abort launched batches, after ``stop``, instead of waiting for them, where the engine can."""
        self._given_up.set()

    def abandon(self) -> None:
        """Drop all later mail of a lane that hangs: another takes its place."""
        self._post = _to_nobody
        self.stop()
        self.give_up()
        if self._turns is not None:
            self._turns.forget(self.name)

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; ``False`` when it is still busy after ``timeout_s``."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def open(self, engine: Engine) -> Session:
        """The lane's session of a loaded engine, opened where there is none: each may reserve memory. Belongs to the
        lane's thread."""
        known = self._sessions.get(id(engine))
        if known is None:
            known = self._sessions[id(engine)] = (engine, engine.open(self.info))
        return known[1]

    def forget(self, engine: Engine) -> None:
        """The engine is about to be unloaded: its session is over. It has no batch here."""
        self._sessions.pop(id(engine), None)

    # --- the lane's thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if self._prepare is not None:
            try:
                self._prepare()
            except Exception as error:  # noqa: BLE001 a lane without its cores or context must say so, not vanish
                self._go_down(f"could not be prepared: {error}")
        while self._turn():
            pass
        for shared in (self.info.common or {}).values():
            close = getattr(shared, "close", None)
            if close is not None:
                close()

    def _turn(self) -> bool:
        """Finish the oldest batch if it is over, else start the next work if it may, else wait. False at the end."""
        flight = self._flight
        if flight and flight[0].is_over():
            self._complete(flight.popleft())
            return True
        if self._next is None and not (flight and self._inbox.empty()):
            self._next = self._inbox.get()
        work = self._next
        if isinstance(work, _LaneEnd):
            if not flight:
                return False
            self._await_oldest(int(WAIT_S_MAX * NS_PER_S))
            return True
        now_ns = self._clock_ns()
        wait_ns = self._starts_in_ns(work, now_ns) if work is not None else None
        if work is not None and wait_ns == 0:
            hold = self._hold_for(work)
            if hold is not None:
                self._next = None
                self._start(work, now_ns if self._turns is None else self._clock_ns(), hold)
            elif flight:
                self._await_oldest(int(WAIT_S_MAX * NS_PER_S))
        elif not flight:
            self._stopping.wait((wait_ns or 0) / NS_PER_S)
        elif work is None and len(flight) < self._depth:
            self._await_oldest(min(max(abs(flight[0].due_ns - now_ns) // 4, LOOK_NS_MIN), LOOK_NS_MAX))
        else:
            self._await_oldest(min(wait_ns or NS_PER_S, int(WAIT_S_MAX * NS_PER_S)))
        return True

    def _starts_in_ns(self, work: LaneWork, now_ns: int) -> Optional[int]:
        """The time until a batch is started or refused; ``None``: not before another is over."""
        flight = self._flight
        if self._down_reason or self._stopping.is_set():
            return 0
        if not flight:
            return max(0, work.start_after_ns - now_ns)
        if work.engine is None or len(flight) >= self._depth:
            return None
        if self._turns is not None and flight[-1].hold.side != side_of(work.engine):
            return None
        if now_ns > work.start_before_ns:
            return 0
        if now_ns < work.start_after_ns:
            return work.start_after_ns - now_ns
        # Behind the others it would begin too late, as far as is known now: it may be launched when one is over.
        return 0 if flight[-1].due_ns <= work.start_before_ns else None

    def _hold_for(self, work: LaneWork) -> Optional[Hold]:
        """The work's share of its process's turn on the GPU; ``None`` where it has to wait."""
        side = side_of(work.engine)
        gated = self._turns is not None and work.engine is not None and not work.engine.takes_turns
        if not gated or self._turns is None or self._why_not(work, self._clock_ns()):
            return Hold(side)  # it needs no turn
        return self._turns.enter(side, self.name, 0.0 if self._flight else WAIT_S_MAX)

    def _await_oldest(self, wait_ns: int) -> None:
        """Wait for the oldest batch, so long at most, and abort it when it hangs."""
        flight = self._flight
        oldest = flight[0]
        if oldest.is_over(wait_ns / NS_PER_S):
            return
        if self._given_up.is_set():
            for launched in flight:
                launched.abort()
            while flight:
                launched = flight.popleft()
                launched.hold.leave()
                self._answer(
                    launched.work,
                    launched.launched_ns,
                    self._clock_ns(),
                    None,
                    EngineError(f"lane {self.name} was given up while its batch ran"),
                )
        elif not oldest.abort_tried and self._clock_ns() > oldest.due_ns + self._hang_ns:
            oldest.abort_tried = True
            oldest.abort()

    def _start(self, work: LaneWork, now_ns: int, hold: Hold) -> None:
        """Start a work whose turn it is, or refuse it."""
        why = self._why_not(work, now_ns)
        if why:
            hold.leave()
            self._post(WorkNotStarted(work, why))
        elif work.engine is not None:
            self._launch(work, work.engine, now_ns, hold)
        else:
            self._call(work, now_ns)

    def _why_not(self, work: LaneWork, now_ns: int) -> str:
        """The reason why a work does not start now, ``""`` without one."""
        if self._down_reason:
            return f"lane {self.name} is down: {self._down_reason}"
        if self._stopping.is_set():
            return f"lane {self.name} is shutting down"
        if now_ns > work.start_before_ns:
            late_us = (now_ns - work.start_before_ns) // 1000
            return f"start window passed {late_us} us ago on lane {self.name}"
        return ""

    def _call(self, work: LaneWork, started_ns: int) -> None:
        value: Any = None
        raised: Optional[BaseException] = None
        try:
            if work.call is not None:
                value = work.call(work.argument)
        except BaseException as error:  # noqa: BLE001 the lane's boundary: any error becomes mail
            raised = error
        self._answer(work, started_ns, self._clock_ns(), value, raised)

    def _launch(self, work: LaneWork, engine: Engine, now_ns: int, hold: Hold) -> None:
        try:
            pending = self.open(engine).launch(work.argument)
        except BaseException as error:  # noqa: BLE001 the lane's boundary: any error of an engine becomes mail
            hold.leave()
            self._answer(work, now_ns, self._clock_ns(), None, error)
            return
        flight = self._flight
        begins_ns = max(now_ns, flight[-1].due_ns) if flight else now_ns
        launched = _Launched(work, pending, now_ns, begins_ns + work.expected_ns, hold)
        if flight or not launched.is_over():
            flight.append(launched)
        else:
            self._complete(launched)

    def _complete(self, launched: _Launched) -> None:
        """Unpack a batch that is over and tell of it."""
        launched.hold.leave()
        value: Any = None
        raised: Optional[BaseException] = launched.error
        times: Optional[Tuple[int, int]] = None
        try:
            if raised is None:
                times = _checked(launched.pending.times())
                value = launched.pending.result()
        except BaseException as error:  # noqa: BLE001 the lane's boundary: any error of an engine becomes mail
            raised = error
        now_ns = self._clock_ns()
        if times is None:
            times = (max(launched.launched_ns, self._free_ns), now_ns)
        finished_ns = min(times[1], now_ns)
        self._free_ns = finished_ns
        self._answer(launched.work, min(max(times[0], launched.launched_ns), finished_ns), finished_ns, value, raised)

    def _answer(
        self, work: LaneWork, started_ns: int, finished_ns: int, value: Any, raised: Optional[BaseException]
    ) -> None:
        """Post the outcome of a batch that was started. The news that the lane is lost goes first, so that the loop
        gives it no other batch. SystemExit and its like are a failure as any other: an engine's code, or an input that
        makes it call ``sys.exit``, has no say in whether the lane goes on."""
        lost = isinstance(raised, DeviceLost)
        if lost and not self._down_reason:
            self._go_down(str(raised), lost=True)
        self._post(WorkDone(work, started_ns, finished_ns, value, raised))
        if lost:
            self._abandon()

    def _abandon(self) -> None:
        """The lane is down: what else was launched will bring nothing."""
        while self._flight:
            launched = self._flight.popleft()
            launched.hold.leave()
            reason = f"lane {self.name} is down: {self._down_reason}{launched.abort()}"
            self._post(WorkNotStarted(launched.work, reason))

    def _go_down(self, reason: str, lost: bool = False) -> None:
        self._down_reason = reason
        self._post(LaneDown(self.name, reason, lost))
