"""A client's I/O thread, and the mail between it and the callers: requests go in with futures, replies settle them.

What the frames mean is ``wire``'s, whether the server lives is ``link``'s.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, Mapping, Optional, Tuple

import zmq

from edgeserve.answers import BREAKDOWN_KEYS, UNREAD, Answer, PendingAnswer
from edgeserve.errors import Cancelled, ConfigError, RequestError, ServerGone
from edgeserve.interpreter import check_may_wait, forked, gives_answers, stays_with_parent
from edgeserve.ipc import wire
from edgeserve.ipc.link import Link
from edgeserve.ipc.slab import Lease, Slab, large_bytes
from edgeserve.ipc.tensors import LARGE_BYTES
from edgeserve.ipc.wire import Reply
from edgeserve.units import NS_PER_MS, ns_to_ms

APPS_MAX = 1024  # whose answers' sizes a client remembers
MEMORY_S = 2.5  # a buffer waits so long at most for the connection and its shared memory
STAND_S = 0.25  # the first request waits so long at most for the connection, before its time begins


class PendingReply(PendingAnswer):
    """The reply to come. ``cancel()`` also cancels on the server. ``id`` is the server's number of the request, 0 until
    the reply is there. ``lease``: what it has of shared memory."""

    def __init__(self, courier: Courier, key: int, app: str) -> None:
        super().__init__()
        self.id = 0
        self.courier = courier
        self.key = key
        self.app = app
        self.lease: Optional[Lease] = None

    def cancel(self) -> bool:
        if not super().cancel():
            return False
        if self.courier.forget(self):
            self.set_running_or_notify_cancel()  # a wait for several futures learns it only this way
        return True

    def end_early(self) -> None:
        self.courier.post((wire.encode_plain("cancel", self.key, keeps=True),), None)


class Courier:
    """The I/O thread, and the mail between it and the callers. Started by the first request.

    Everything below ``run`` belongs to that thread. ``waiting`` is shared: the thread that
    pops a key ends that request.
    """

    def __init__(
        self, make_link: Callable[[zmq.Context[Any]], Link], endpoint: str, context: zmq.Context[Any] | None
    ) -> None:
        self.endpoint = endpoint
        self.process = os.getpid()
        self.waiting: Dict[int, PendingReply] = {}
        self.closed = False
        self.slab: Optional[Slab] = None  # the link's memory, for the callers
        self._wants_memory = False
        self._knows_memory = threading.Event()  # it is there, or none will come
        self._answer_bytes: Dict[str, int] = {}  # by app, what its last answer needed of shared memory
        self._make_link = make_link
        self._context = context
        self._mail: Deque[Tuple[Any, Optional[PendingReply]]] = deque()
        self._asleep = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        self.stands = threading.Event()  # the server has said something on this connection, or was waited for in vain
        stays_with_parent(self)

    def left_behind(self) -> None:
        """See :class:`~edgeserve.interpreter.LeftBehind`."""
        error = forked("Client", self.process)
        for pending in list(self.waiting.values()):
            pending.give_up_in_child(error)
        self.waiting.clear()

    def connect(self) -> None:
        """Connect before a request's time begins. When the server says nothing yet, the request waits no longer."""
        self.post((), None)
        self.stands.wait(STAND_S)
        self.stands.set()

    def memory(self) -> Optional[Slab]:
        """The memory shared with the server; waits for it the first time. ``None`` without any."""
        if self.slab is None and not self.closed:
            check_may_wait("the first buffer()")
            self._wants_memory = True
            self.post((), None)
            self._knows_memory.wait(MEMORY_S)
            self._knows_memory.set()  # later buffers wait no more
        return self.slab

    def post(self, frames: Any, pending: Optional[PendingReply]) -> None:
        """Send from any thread; ``pending`` gets the reply."""
        self._mail.append((frames, pending))
        if self._asleep:
            self._asleep = False
            self._ring()
        elif self._thread is None:
            self._start()

    def lease(self, app: str, inputs: Mapping[str, Any], stays: bool) -> Optional[Lease]:
        """Shared memory for a request to an app, with room for an answer like its last one. ``stays``: the inputs do
        not change until the reply."""
        slab = self.slab
        if slab is None:
            return None
        lease = Lease(slab)
        lease.borrow(inputs, self._answer_bytes.get(app, 0), stays)
        return lease

    def forget(self, pending: PendingReply) -> bool:
        """The caller no longer wants this reply: tell the server. ``False`` when the reply was already being given."""
        if self.waiting.pop(pending.key, None) is None:
            return False
        self.post((wire.encode_plain("cancel", pending.key),), None)
        return True

    def stop(self) -> None:
        """Say goodbye and end the thread; requests that still wait are refused. Idempotent; does not wait for the
        thread."""
        self.closed = True
        if self._thread is None:
            return
        self._ring()

    def join(self) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _start(self) -> None:
        with self._start_lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="edgeserve-client", daemon=True)
                thread.start()
                self._thread = thread

    def _ring(self) -> None:
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            pass  # the pipe is full of wake-ups already

    def __del__(self) -> None:
        # Not when it stops: a caller could be about to ring, and the number might be another file's by then.
        os.close(self._wake_read)
        os.close(self._wake_write)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        gives_answers()
        own_context = self._context is None
        context: zmq.Context[Any] = zmq.Context() if self._context is None else self._context
        link: Link | None = None
        try:
            while not self.closed:
                if self._mail and link is None:
                    link = self._make_link(context)
                self._serve(link)
                if link is not None and link.lost:
                    self.slab = None
                    self.stands.clear()
                    self._knows_memory.clear()
                    self._fail_all(ServerGone(f"the server at {self.endpoint} is gone: {link.lost}"))
                    link.close()
                    link = None
        except (zmq.ZMQError, OSError, ConfigError) as error:
            self._fail_all(ServerGone(f"the connection to {self.endpoint} failed: {error}"))
        finally:
            self.closed = True  # before the waiting requests are refused: later callers read it
            self._knows_memory.set()
            self._fail_all(Cancelled("the client was closed"))
            if link is not None:
                link.close(goodbye=True)
            if own_context:
                context.term()

    def _serve(self, link: Link | None) -> None:
        """Serve until the link is lost, the first mail makes one necessary, or the client is closed."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if link is not None:
            for file in link.filenos():
                poll.register(file, select.POLLIN)
        look = True
        while not self.closed and (link is not None or not self._mail):
            timeout_ms: Optional[float] = None
            if link is not None:
                self._send_mail(link)
                has_read = self._read(link)
                now_ns = time.monotonic_ns()
                if look or now_ns >= link.due_ns:
                    link.look_after(bool(self.waiting))
                if link.lost:
                    return
                if has_read or self._mail:
                    look = False
                    continue  # libzmq's file is edge-triggered: wait only after a look found nothing
                timeout_ms = max(0, link.due_ns - now_ns) // NS_PER_MS + 1
            look = self._sleep(poll, timeout_ms, link)

    def _read(self, link: Link) -> bool:
        """Take what has come; whether something had. Nothing of it is held on to afterwards."""
        replies = link.receive()
        for reply in replies:
            self._settle(reply, link)
        self.slab = link.memory
        if link.connected and not self.stands.is_set():
            self.stands.set()
        if self._wants_memory and link.connected:
            self._look_for_memory(link)
        return bool(replies)

    def _look_for_memory(self, link: Link) -> None:
        """Ask for shared memory, for which a caller waits; wake the caller where it is there, or will not come."""
        link.wish_for_memory()
        if link.memory is not None or not link.waits_for_memory:
            self._wants_memory = False
            self._knows_memory.set()

    def _sleep(self, poll: Any, timeout_ms: Optional[float], link: Link | None) -> bool:
        """Wait; ``True`` when something other than mail or a message may have happened."""
        self._asleep = True
        if self._mail or self.closed:
            self._asleep = False
            return False
        ready = poll.poll(timeout_ms)
        self._asleep = False
        for file, _ in ready:
            if file == self._wake_read:
                os.read(self._wake_read, 4096)
            elif link is not None and file == link.monitor_fileno:
                return True
        return False

    def _send_mail(self, link: Link) -> None:
        mail = self._mail
        while mail:
            frames, pending = mail.popleft()
            if pending is not None and not self._may_send(link, frames, pending):
                if pending.lease is not None:
                    pending.lease.slab.lent.pop(pending.key, None)
                    pending.lease.end()
                continue
            link.send(frames)

    def _may_send(self, link: Link, frames: Any, pending: PendingReply) -> bool:
        if pending.key not in self.waiting:
            return False  # cancelled before it was sent
        if pending.lease is not None and pending.lease.slab is not link.memory:
            self.end(
                pending.key,
                ServerGone(
                    f"the server at {self.endpoint} is gone, with what lay in the memory that was shared with it"
                ),
                None,
            )
            return False
        try:
            if link.check_size(frames) >= LARGE_BYTES:
                link.wish_for_memory()
        except RequestError as error:
            self.end(pending.key, error, None)
            return False
        return True

    def _learn(self, reply: Reply, link: Link) -> None:
        """Note an answer's size for the next request of its app, and give back the memory that its request borrowed."""
        lease = None if link.memory is None else link.memory.lent.pop(reply.key, None)
        if lease is not None:
            lease.end()
        pending = self.waiting.get(reply.key) if type(reply.key) is int else None
        if pending is None or reply.kind != "answer":
            return
        nbytes = large_bytes(reply.outputs)
        if nbytes:
            link.wish_for_memory()
        if nbytes != self._answer_bytes.get(pending.app, 0):
            if len(self._answer_bytes) >= APPS_MAX:
                self._answer_bytes.clear()
            self._answer_bytes[pending.app] = nbytes

    def _settle(self, reply: Reply, link: Link) -> None:
        if reply.kind == "answer" or reply.kind == "error":
            self._learn(reply, link)
        if reply.key is None:
            # The server could not read a message far enough to say which: with this client that is another version.
            self._fail_all(reply.error or ServerGone(f"the server at {self.endpoint} sent a reply without an id"))
        elif reply.error is not None:
            self.end(reply.key, reply.error, None)
        elif reply.kind == "piece":
            self._take_piece(reply)
        elif reply.kind == "info":
            self.end(reply.key, None, reply.info)
        else:
            self.end(reply.key, None, reply)

    def _take_piece(self, reply: Reply) -> None:
        pending = self.waiting.get(reply.key) if type(reply.key) is int else None
        if pending is None or pending.stream is None or pending.stream.put(reply.outputs):
            return
        self.end(pending.key, Cancelled(UNREAD), None)
        self.post((wire.encode_plain("cancel", pending.key),), None)

    def end(self, key: Any, error: Optional[BaseException], value: Any) -> None:
        """Give a request its one end, unless it has it already."""
        pending = self.waiting.pop(key, None)
        if pending is None or not pending.set_running_or_notify_cancel():
            return
        if error is not None:
            pending.id = error.id if isinstance(error, RequestError) else 0
            pending.set_exception(error)
        elif type(value) is Reply:
            pending.id = value.request_id
            pending.set_result(
                Answer(
                    value.outputs,
                    value.outcome,
                    value.late,
                    {name: ns_to_ms(part) for name, part in zip(BREAKDOWN_KEYS, value.breakdown)},
                    ns_to_ms(value.total_ns),
                    value.reason,
                    value.request_id,
                    value.quality,
                    value.branches,
                    value.variant,
                )
            )
        else:
            pending.set_result(value)

    def _fail_all(self, error: BaseException) -> None:
        for key in list(self.waiting):
            self.end(key, error, None)
