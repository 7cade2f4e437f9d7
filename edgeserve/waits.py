"""Waits that the standard library's own do not do in every process or on every Python.

``select`` takes no file number from 1,024 on, ``poll`` waits whole milliseconds, and ``asyncio.wait_for`` may lose a
cancellation before Python 3.12.
"""

from __future__ import annotations

import select
import time
from typing import Awaitable, Optional, Sequence, TypeVar

from edgeserve.units import NS_PER_MS, NS_PER_S, NS_PER_US

FILE_SELECT_MAX = 1024
"""``select`` takes no file number from this one on (FD_SETSIZE)."""

SLICE_NS = 100 * NS_PER_US
"""The sleep between two looks at files that ``select`` does not take, in the last millisecond of a wait."""

T = TypeVar("T")


def readable_files(files: Sequence[int], timeout_ns: int) -> Sequence[int]:
    """The readable ones of ``files``, as soon as there are some; none after ``timeout_ns``, which is kept to about
    100 us in every process."""
    if max(files) < FILE_SELECT_MAX:
        return select.select(files, (), (), timeout_ns / NS_PER_S)[0]
    due_ns = time.monotonic_ns() + timeout_ns
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    found = poll.poll(timeout_ns // NS_PER_MS)
    while not found:
        left_ns = due_ns - time.monotonic_ns()
        if left_ns <= 0:
            break
        time.sleep(min(left_ns, SLICE_NS) / NS_PER_S)
        found = poll.poll(0)
    return [file for file, _ in found]


async def await_within(awaitable: Awaitable[T], timeout_s: Optional[float]) -> T:
    """The result of ``awaitable``; :class:`asyncio.TimeoutError` after ``timeout_s`` (``None``: no bound). A time-out
    or a cancellation cancels it and waits for its end."""
    import asyncio  # 3 MB that a program of threads does without

    future = asyncio.ensure_future(awaitable)
    is_late = False
    try:
        await asyncio.wait((future,), timeout=timeout_s)
        is_late = not future.done()
    finally:
        if not future.done():
            future.cancel()
            await asyncio.wait((future,))
    if is_late and future.cancelled():
        raise asyncio.TimeoutError
    return future.result()
