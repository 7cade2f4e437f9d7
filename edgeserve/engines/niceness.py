"""Threads that take only the processor time that others leave: ``[lane.NAME] nice``. A long answer on a lane of CPU
threads then holds up no host function on the same cores.

On Linux each thread has a niceness of its own, and hands it on to the threads that it makes. Without privileges it can
only rise, so libraries that make threads do so on a thread that ends afterwards (:func:`made_yielding`).
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, TypeVar

Made = TypeVar("Made")


def yield_to_others(nice: int) -> str:
    """Let the calling thread, and the threads that it makes from now on, yield to all that are less nice. Returns why
    that was not done, or ``""``. A thread cannot go back."""
    if not nice:
        return ""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
    except OSError as error:
        return f"[lane.NAME] nice = {nice} is refused ({error.strerror}): this process is nicer already"
    return ""


def made_yielding(nice: int, make: Callable[[], Made]) -> Made:
    """The result of ``make()``, with all threads that it makes at niceness ``nice``. The calling thread stays as it
    is."""
    if not nice:
        return make()
    with ThreadPoolExecutor(1, initializer=lambda: yield_to_others(nice)) as pool:
        return pool.submit(make).result()
