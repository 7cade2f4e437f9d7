"""A running tegrastats as a source: a child process whose lines are read without waiting for them."""

from __future__ import annotations

import logging
import os
import subprocess
from typing import Callable, Optional, Sequence

from edgeserve.device.parse import LINE_CHARS_MAX, Line, parse_line
from edgeserve.device.readings import state_of_line
from edgeserve.device.source import FAST_NS
from edgeserve.device.state import DeviceState
from edgeserve.units import NS_PER_MS, NS_PER_S, ns_to_s

log = logging.getLogger("edgeserve")

COMMAND = "tegrastats"
INTERVAL_MS = 1000  # tegrastats' own default; it wakes the memory controller's counters at each line
STALE_INTERVALS = 3  # a line older than this many intervals tells nothing of now
SILENT_INTERVALS = 10  # a child that wrote nothing for so many hangs
RETRY_NS_MIN, RETRY_NS_MAX = NS_PER_S, 60 * NS_PER_S
READ_BYTES = 1 << 16
READS_MAX = 16  # in a turn: a child that writes without end must not hold the monitor
END_S = 1.0  # how long closing waits for the child to end before it is killed

Start = Callable[[Sequence[str]], "subprocess.Popen[bytes]"]


def start_process(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start the command with its output in a pipe. Raises OSError where there is no such program."""
    return subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        close_fds=True,
    )


class TegrastatsSource:
    """The newest whole line of a tegrastats of our own.

    A missing program, one that ends and one that falls silent all read as None, never as zero. It is started again
    after a pause that doubles from 1 s to 60 s and begins anew after a line. Only our own child is ended:
    ``tegrastats --stop`` would end all users'.
    """

    name = "tegrastats"
    every_ns = FAST_NS

    def __init__(self, command: str = COMMAND, interval_ms: int = INTERVAL_MS, start: Start = start_process) -> None:
        self._command = [command, "--interval", str(interval_ms)]
        self._stale_ns = STALE_INTERVALS * interval_ms * NS_PER_MS
        self._silent_ns = SILENT_INTERVALS * interval_ms * NS_PER_MS
        self._start = start
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._partial = b""
        self._retry_ns = RETRY_NS_MIN
        self._retry_at_ns: Optional[int] = None
        self._line_ns = 0
        self._begun_ns = 0
        self.line: Optional[Line] = None
        self.trouble = ""  # why there is no line now; "" while lines come
        self.starts = 0

    def read(self, now_ns: int) -> DeviceState:
        """The readings of the newest line, if it is new enough; nothing else."""
        if self._process is None and (self._retry_at_ns is None or now_ns >= self._retry_at_ns):
            self._begin(now_ns)
        if self._process is not None:
            self._take(now_ns)
        if self._process is not None and now_ns - max(self._line_ns, self._begun_ns) > self._silent_ns:
            self._abandon()
            self._fail(now_ns, f"{self._command[0]} was silent for {ns_to_s(self._silent_ns):.0f} s")
        if self.line is None or now_ns - self._line_ns > self._stale_ns:
            return DeviceState()
        return state_of_line(self.line, self._line_ns)

    def _begin(self, now_ns: int) -> None:
        self._partial = b""
        self._begun_ns = now_ns
        self.starts += 1
        try:
            self._process = self._start(self._command)
            assert self._process.stdout is not None, "started with a pipe"
            os.set_blocking(self._process.stdout.fileno(), False)
        except OSError as error:
            self._process = None
            self._fail(now_ns, f"{self._command[0]} cannot be started: {error.strerror or error}")

    def _fail(self, now_ns: int, why: str) -> None:
        if why != self.trouble:
            log.info("%s; next try in %.0f s", why, ns_to_s(self._retry_ns))
        self.trouble = why
        self._retry_at_ns = now_ns + self._retry_ns
        self._retry_ns = min(2 * self._retry_ns, RETRY_NS_MAX)

    def _take(self, now_ns: int) -> None:
        """Everything that the child has written; only the last whole line counts."""
        process = self._process
        assert process is not None and process.stdout is not None
        ended = False
        for _ in range(READS_MAX):
            try:
                got = os.read(process.stdout.fileno(), READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                ended = True
                break
            if not got:
                ended = True
                break
            self._partial += got
            *lines, self._partial = self._partial.split(b"\n")
            self._partial = self._partial[-LINE_CHARS_MAX:]
            whole = [line for line in lines if line.strip()]
            if whole:
                self._see(whole[-1], now_ns)
        if ended:
            status = self._end()
            self._fail(now_ns, f"{self._command[0]} ended with status {status}")

    def _see(self, text: bytes, now_ns: int) -> None:
        line = parse_line(text.decode("utf-8", "replace"))
        if line.tokens:  # an error message has none
            self.line, self._line_ns = line, now_ns
            self.trouble, self._retry_ns = "", RETRY_NS_MIN

    def _abandon(self) -> None:
        """Kill the child and do not wait: one that hangs in a driver ends when that lets it."""
        process, self._process = self._process, None
        assert process is not None and process.stdout is not None
        process.kill()
        process.stdout.close()

    def _end(self) -> Optional[int]:
        """End the child; its exit status."""
        process, self._process = self._process, None
        if process is None:
            return None
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout is not None:
            process.stdout.close()
        return process.returncode

    def close(self) -> None:
        self._end()
        self.line = None
