"""Settings of a thread are tried on one of their own."""

from __future__ import annotations

import threading


def in_a_thread(call):
    """Return what ``call`` does on a new thread."""
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join(10)
    return found[0]
