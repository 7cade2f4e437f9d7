"""Effects of the interpreter on a program that answers requests: forks, waits on the answering thread, garbage
collections.

A fork copies memory and no thread. A wait in the child for a thread of the parent would never end, so it fails at once.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from typing import Any, Protocol, Set

from edgeserve.errors import RequestError


class LeftBehind(Protocol):
    """An object whose threads, sockets or child processes are the parent's."""

    def left_behind(self) -> None:
        """This process is a forked child, and this object a copy. Called before the fork returns there, with no other
        thread in the process and any lock perhaps held for ever; raises nothing."""


_threads_elsewhere: weakref.WeakSet[Any] = weakref.WeakSet()
_of_thread = threading.local()


def stays_with_parent(item: LeftBehind) -> None:
    """Call ``item.left_behind()`` in each child that is forked from now on, for as long as ``item`` exists."""
    _threads_elsewhere.add(item)


def _tell_child() -> None:
    for item in list(_threads_elsewhere):
        item.left_behind()
    _threads_elsewhere.clear()


os.register_at_fork(after_in_child=_tell_child)


def forked(what: str, process: int) -> RequestError:
    """The error of ``what`` that was made in another process than this one."""
    return RequestError(
        f"this {what} was made in process {process} and cannot be used in {os.getpid()}, a fork of it: its threads did "
        f"not come along. Make a new {what} after the fork"
    )


def check_process(what: str, process: int) -> None:
    """Raise :class:`RequestError` in any other process than the one that ``what`` was made in."""
    if os.getpid() != process:
        raise forked(what, process)


def gives_answers() -> None:
    """The calling thread gives answers from now on, so it may not wait for one."""
    _of_thread.gives_answers = True


def may_wait() -> bool:
    """True if the calling thread gives no answers."""
    return not getattr(_of_thread, "gives_answers", False)


def check_may_wait(call: str) -> None:
    """Raise :class:`RequestError` where ``call`` would keep a thread from giving the answers of this process."""
    if not may_wait():
        raise RequestError(
            f"{call} would wait on thread {threading.current_thread().name!r}, which gives the answers of this "
            "process: none would come meanwhile. In a callback use submit() with another callback, or hand over to a "
            "thread of your own"
        )


_settled_for: Set[int] = set()
_freeze_lock = threading.Lock()
_frozen_before = 0


def settle_memory(owner: object = None) -> None:
    """Exclude the objects alive now from every later collection, until :func:`unsettle_memory` is called with each
    owner.

    A full collection looks at each object, and no thread runs meanwhile: 15 to 30 ms for the 28,000 objects of
    onnxruntime, 140 to 290 ms with torch.
    """
    global _frozen_before
    with _freeze_lock:
        if not _settled_for:
            _frozen_before = gc.get_freeze_count()
        _settled_for.add(id(owner))
        gc.collect()
        gc.freeze()


def unsettle_memory(owner: object) -> None:
    """``owner`` has ended: what it left is garbage. Objects that the program itself had frozen before stay frozen."""
    with _freeze_lock:
        if id(owner) in _settled_for:
            _settled_for.remove(id(owner))
            if not _settled_for and not _frozen_before:
                gc.unfreeze()
