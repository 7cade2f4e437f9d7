"""A lane: one thread that runs one work at a time, within the window that the scheduler gave it.

It knows no model, request or policy: a work is a callable with its argument. It never decides; what it did or would
not do is posted to one mailbox, which belongs to the loop.
"""

from __future__ import annotations

import queue
import threading
from typing import Any, Callable, Optional, Union

from edgeserve.units import NS_PER_S


class Work:
    """What a lane is given. ``call(argument)`` runs on the lane's thread; ``tag`` is the poster's own."""

    __slots__ = ("work_id", "start_after_ns", "start_before_ns", "call", "argument", "tag")

    def __init__(self, work_id: int, start_after_ns: int, start_before_ns: int, call: Callable[[Any], Any],
                 argument: Any, tag: Any = None) -> None:
        self.work_id = work_id
        self.start_after_ns = start_after_ns
        self.start_before_ns = start_before_ns
        self.call = call
        self.argument = argument
        self.tag = tag


class WorkDone:
    """A work ran from ``started_ns`` to ``finished_ns`` and returned ``value``, or raised ``error``."""

    __slots__ = ("work", "started_ns", "finished_ns", "value", "error")

    def __init__(self, work: Work, started_ns: int, finished_ns: int, value: Any,
                 error: Optional[BaseException]) -> None:
        self.work = work
        self.started_ns = started_ns
        self.finished_ns = finished_ns
        self.value = value
        self.error = error


class WorkNotStarted:
    """A lane did not start a work, and why."""

    __slots__ = ("work", "reason")

    def __init__(self, work: Work, reason: str) -> None:
        self.work = work
        self.reason = reason


class LaneDown:
    """A lane will run nothing more, and why. Its works are refused from now on."""

    __slots__ = ("lane", "reason")

    def __init__(self, lane: str, reason: str) -> None:
        self.lane = lane
        self.reason = reason


LaneMail = Union[WorkDone, WorkNotStarted, LaneDown]


class Lane:
    """One daemon thread with an inbox. ``give`` and ``stop`` may be called from any thread.

    Every work given is answered by exactly one :class:`WorkDone` or :class:`WorkNotStarted`, in order, as long as the
    work itself returns: a hanging work keeps the thread, and whoever waits decides by its own clock. The inbox is as
    short as the scheduler keeps it (one running, few ahead); the lane itself does not bound it.
    """

    def __init__(self, name: str, post: Callable[[LaneMail], None], clock_ns: Callable[[], int],
                 prepare: Callable[[], None] | None = None) -> None:
        self.name = name
        self._post = post
        self._clock_ns = clock_ns
        self._prepare = prepare
        self._inbox: queue.SimpleQueue[Optional[Work]] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._down_reason = ""
        # A daemon: a work that hangs for ever must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=f"edgeserve-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def give(self, work: Work) -> None:
        """Queue a work behind those given before."""
        self._inbox.put(work)

    def stop(self) -> None:
        """Refuse what has not started and end the thread after the work that runs now."""
        self._stopping.set()
        self._inbox.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; ``False`` when it is still busy after ``timeout_s``."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        if self._prepare is not None:
            try:
                self._prepare()
            except Exception as error:  # noqa: BLE001 a lane without its cores or device context must say so, not vanish
                self._go_down(f"could not be prepared: {error}")
        while True:
            work = self._inbox.get()
            if work is None:
                return
            self._take(work)

    def _take(self, work: Work) -> None:
        """Start ``work`` inside its window, or refuse it."""
        now_ns = self._clock_ns()
        if now_ns < work.start_after_ns and not self._stopping.is_set():
            self._stopping.wait((work.start_after_ns - now_ns) / NS_PER_S)
            now_ns = self._clock_ns()
        if self._down_reason:
            self._post(WorkNotStarted(work, f"lane {self.name} is down: {self._down_reason}"))
        elif self._stopping.is_set():
            self._post(WorkNotStarted(work, f"lane {self.name} is shutting down"))
        elif now_ns > work.start_before_ns:
            late_us = (now_ns - work.start_before_ns) // 1000
            self._post(WorkNotStarted(work, f"start window passed {late_us} us ago on lane {self.name}"))
        else:
            self._execute(work, now_ns)

    def _execute(self, work: Work, started_ns: int) -> None:
        value: Any = None
        raised: Optional[BaseException] = None
        try:
            value = work.call(work.argument)
        except BaseException as error:  # noqa: BLE001 the lane's boundary: whatever an engine raises becomes mail
            raised = error
        self._post(WorkDone(work, started_ns, self._clock_ns(), value, raised))
        if raised is not None and not isinstance(raised, Exception):
            # SystemExit and its like ask for the end of the thread. Ending it ignored_hints would leave works
            # unanswered.
            self._go_down(f"an engine raised {type(raised).__name__}: {raised}")

    def _go_down(self, reason: str) -> None:
        self._down_reason = reason
        self._post(LaneDown(self.name, reason))
