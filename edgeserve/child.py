"""A child process with a fresh interpreter: start, lifeline, last lines, time limit, end.

Never a fork: the parent has threads and sockets. The lifeline is the child's standard input: a child ends
with it, however its parent ended (:func:`end_with`). What parent and child say to each other is their own.
"""

from __future__ import annotations

import collections
import os
import signal
import subprocess
import sys
import threading
from typing import Deque, Dict, List, Mapping, Optional, Sequence

from edgeserve.interpreter import stays_with_parent

GOODBYE_S = 1.0
"""Seconds that a child may take to end by itself before it is killed."""


class Child:
    """One child process: ``python`` with these arguments. ``lines``: how many of the last lines of its standard error
    are kept; ``passes_on`` writes them to this process's, too. Without ``lines`` both are one. ``own_session``: Ctrl-C
    in a terminal does not reach it."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Optional[Mapping[str, str]] = None,
        *,
        pass_fds: Sequence[int] = (),
        stdout: Optional[int] = None,
        lines: int = 0,
        passes_on: bool = False,
        own_session: bool = False,
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=subprocess.PIPE if lines else None,
            env=environment,
            pass_fds=pass_fds,
            start_new_session=own_session,
        )
        self._ending = threading.Lock()
        self._lines: Deque[bytes] = collections.deque(maxlen=lines)
        self._reader: Optional[threading.Thread] = None
        if lines:
            self._reader = threading.Thread(
                target=self._read_lines, args=(passes_on,), name="edgeserve-process-lines", daemon=True
            )
            self._reader.start()
        stays_with_parent(self)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def has_ended(self) -> bool:
        """True if it has ended, by itself or not."""
        return self.process.poll() is not None

    def left_behind(self) -> None:
        """See :class:`~edgeserve.interpreter.LeftBehind`: with a copy of the lifeline open the child would not see that
        its parent is gone."""
        self.cut()

    def hand(self, data: bytes) -> None:
        """Write this to its standard input and close it: for a child that reads it to its end. Raises
        :class:`BrokenPipeError` where the child has ended."""
        stdin = self.process.stdin
        assert stdin is not None, "it is a pipe"
        view = memoryview(data)
        while view:
            view = view[stdin.write(view) or 0 :]
        stdin.close()

    def cut(self) -> None:
        """Close the lifeline."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    def forget_lines(self) -> None:
        """Keep only lines that it writes from now on."""
        self._lines.clear()

    def last_lines(self) -> List[str]:
        """The last lines that it wrote to its standard error; it has ended."""
        if self._reader is not None:
            self._reader.join(GOODBYE_S)
        lines = [line.decode("utf-8", "replace").strip() for line in list(self._lines)]
        return [line for line in lines if line]

    def _read_lines(self, passes_on: bool) -> None:
        stream = self.process.stderr
        assert stream is not None, "it is a pipe"
        with stream:
            for line in stream:
                self._lines.append(line)
                if passes_on:
                    sys.stderr.write(line.decode("utf-8", "replace"))

    def kill(self) -> int:
        """End it now; its exit status."""
        self.process.kill()
        return self.end()

    def end(self, limit_s: float = GOODBYE_S) -> int:
        """Close the lifeline, wait for the child, kill it where it takes longer, and return its exit status: a negative
        one is the signal that ended it. Idempotent, on any thread."""
        with self._ending:
            self.cut()
            try:
                return self.process.wait(limit_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                return self.process.wait()


def how_it_ended(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def safe_environment() -> Dict[str, str]:
    """The environment with which a child finds what this process finds, except by its working directory: a program that
    writes there must not change which modules are imported. ``PYTHONPATH`` counts where it was set, the directory
    included."""
    named = {os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path}
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    here = os.getcwd()
    paths = [path for path in sys.path if path and (path != here or path in named or path == home)]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths if home in paths else [*paths, home]),
        "PYTHONSAFEPATH": "1",
    }


def take_lifeline() -> int:
    """The lifeline's file descriptor, in a child; the standard input is empty from then on."""
    lifeline = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return lifeline


def end_with(lifeline: int) -> None:
    """Let the system end this child process as soon as its parent closes the lifeline or dies, even while a
    function holds the interpreter lock: a signal with its default action needs no interpreter."""
    import fcntl

    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
