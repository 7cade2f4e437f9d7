"""The loop's wait for mail from other threads and messages from clients, in one sleep.

Any thread posts to the mailbox, the loop takes. It has no lock and wakes a sleeping loop only; the wake-up is a byte in
a pipe, so that the loop can wait for it and for sockets in one call. :class:`LoopIO` decides when to sleep and when to
read; what mail and messages mean is the world's and the gateway's.
"""

from __future__ import annotations

import collections
import os
import time
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Protocol, Tuple

from edgeserve.loop.coalescing import AGAIN_PAUSE_NS, ReceiveCoalescing
from edgeserve.sched.protocol.events import Event
from edgeserve.units import NS_PER_S
from edgeserve.waits import readable_files

clock_ns: Callable[[], int] = time.monotonic_ns
"""The one clock of the live side; everything else is handed it."""

SLEEP_NS_MAX = 3600 * NS_PER_S
"""A bound on one wait, so that a deadline far away never overflows what the operating system takes."""

MailHandler = Callable[[Any, List[Event]], None]
"""Turns one item of mail into events."""


class Mailbox:
    """Items in order of posting. ``post`` is for any thread, everything else for the loop's.

    Between :meth:`going_to_sleep` and :meth:`awake` the first post writes one byte; a busy loop costs no system call.
    The order of the two steps on each side makes it safe: a poster appends and then looks whether the loop sleeps,
    the loop says that it sleeps and then looks for items. At least one of them sees the other.
    """

    def __init__(self) -> None:
        self.items: Deque[Any] = collections.deque()
        self.asleep = False
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)

    def fileno(self) -> int:
        """Readable when something was posted while the loop slept."""
        return self._read_fd

    def post(self, item: Any) -> None:
        self.items.append(item)
        if self.asleep:
            self.asleep = False
            self._ring()

    def _ring(self) -> None:
        try:
            os.write(self._write_fd, b"\0")
        except BlockingIOError:
            pass  # the pipe is full of wake-ups already

    def take(self) -> List[Any]:
        """Everything posted so far."""
        items = self.items
        taken = []
        while items:
            taken.append(items.popleft())
        return taken

    def __len__(self) -> int:
        return len(self.items)

    def going_to_sleep(self) -> bool:
        """Ask for a wake-up byte. ``False`` when something is here already: do not sleep."""
        self.asleep = True
        if self.items:
            self.asleep = False
            return False
        return True

    def awake(self) -> None:
        """Ask for no more wake-up bytes, and read the ones that are there: the loop is awake."""
        self.asleep = False
        try:
            os.read(self._read_fd, 4096)
        except BlockingIOError:
            pass  # something else woke the loop

    def __del__(self) -> None:
        # Not in a close(): a poster could be about to write, and the number might be another file's by then. A
        # thread that can still post keeps the mailbox alive.
        os.close(self._read_fd)
        os.close(self._write_fd)


class MessageSource(Protocol):
    """The source of clients' messages: the gateway, as the loop sees it."""

    def receive(self, events: List[Event]) -> None:
        """Take what has come, a burst at most."""

    def wait(self, file: int, now_ns: int, until_ns: int) -> Tuple[bool, bool]:
        """Sleep until ``file`` can be read, :meth:`receive` wants to be called, or ``until_ns``. Returns whether
        ``file`` can be read, and whether :meth:`receive` wants a call."""

    def has_more(self) -> bool:
        """True if something waits for :meth:`receive`."""

    @property
    def endpoints(self) -> List[str]:
        """The endpoints on which it listens."""

    def close(self) -> None:
        """Close the source to all clients."""


class IdleLanes(Protocol):
    """``idle``: how many lanes could start what comes."""

    idle: int


class LoopIO:
    """Mail and messages of one loop. While no lane of ``lanes`` is idle, nothing that comes can start, and reading
    waits as ``coalescing`` says. ``looks_ahead``: works are given to lanes before those are free, so due events are not
    put off."""

    def __init__(
        self,
        mailbox: Mailbox,
        handlers: Mapping[type, MailHandler],
        coalescing: ReceiveCoalescing,
        lanes: IdleLanes,
        looks_ahead: bool,
    ) -> None:
        self.mailbox = mailbox
        self.source: Optional[MessageSource] = None
        self.coalescing = coalescing
        self._lanes = lanes
        self._handlers: Dict[type, MailHandler] = dict(handlers)
        self._looks_ahead = looks_ahead
        self._bell = mailbox.fileno()

    def gather(self, due_ns: Optional[int], events: List[Event]) -> int:
        """Add what has happened to ``events``; if nothing has, wait for it or until ``due_ns``, to the microsecond and
        without spinning. Returns the time. It may return without events before ``due_ns``, after mail or a message that
        became none."""
        source, coalescing, mailbox, lanes = self.source, self.coalescing, self.mailbox, self._lanes
        mail, now_ns, look = mailbox.items, clock_ns(), False
        if mail:  # there was no sleep that says whether a message is here, so the source gets its turn
            self._open_mail(events)
            look = source is not None and bool(lanes.idle or clock_ns() >= coalescing.look_at_ns)
            due_ns = now_ns
        while due_ns is None or now_ns < due_ns:
            held_until_ns = None
            wake_ns = latest_ns = now_ns + SLEEP_NS_MAX
            if due_ns is not None and due_ns < latest_ns:
                wake_ns = due_ns
            if source is not None and not lanes.idle and now_ns < coalescing.look_at_ns:
                held_until_ns = coalescing.look_at_ns
                if not self._looks_ahead or held_until_ns < wake_ns:
                    # A due event waits as messages do (a deadline that passed is told a little later), unless works are
                    # given to lanes before they are free.
                    wake_ns = min(held_until_ns, latest_ns)
            mailbox.asleep = True  # now a post rings; what was posted before is looked for after that
            if mail:
                mailbox.asleep, look = False, True
                break
            came = False
            if source is None or held_until_ns is not None:
                rang = bool(readable_files((self._bell,), wake_ns - now_ns))
            else:
                rang, came = source.wait(self._bell, now_ns, wake_ns)
            mailbox.asleep = False
            if rang:
                mailbox.awake()
                look = came or held_until_ns is not None
                break
            now_ns = clock_ns()
            if source is None or (due_ns is not None and now_ns >= due_ns):
                look = True
            elif held_until_ns is not None:
                look = source.has_more()
            elif came:
                look = not coalescing.hold_ns or lanes.idle > 0
                if not look:
                    coalescing.hold_from(
                        now_ns
                    )  # nothing that just came can start: let more come, and read it together
            if look:
                break
        if mail:
            self._open_mail(events)
        if look and source is not None:
            before = len(events)
            source.receive(events)
            if len(events) > before and (not lanes.idle or coalescing.answers > 1):
                self._let_come(source, events, before)
        return clock_ns()

    def _open_mail(self, events: List[Event]) -> None:
        """Everything posted so far."""
        handlers, mail = self._handlers, self.mailbox.items
        for _ in range(len(mail)):
            item = mail.popleft()
            handlers[type(item)](item, events)

    def _let_come(self, source: MessageSource, events: List[Event], before: int) -> None:
        """Wait, after some messages were read, for the others that are expected."""
        coalescing = self.coalescing
        if not self._lanes.idle:
            coalescing.received(clock_ns(), len(events) - before)
            return
        while coalescing.expects_more(clock_ns(), len(events)):
            before = len(events)
            time.sleep(AGAIN_PAUSE_NS / NS_PER_S)
            self._open_mail(events)
            source.receive(events)
            if len(events) == before:
                return
