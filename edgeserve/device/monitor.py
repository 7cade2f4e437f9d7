"""A thread that reads the sources of a device in turns and hands on what they say. It decides nothing, not even what
is news.

It costs under 1 % of a core (``research/bench/monitor.py`` measures that): files stay open, and slow sensors are read
once a second.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence

from edgeserve.device.source import DeviceSource
from edgeserve.device.state import DeviceState, merged
from edgeserve.device.throttling import capped_clock
from edgeserve.units import NS_PER_S, ns_to_ms, ns_to_s

log = logging.getLogger("edgeserve")

INTERVAL_NS = NS_PER_S
STALE_TURNS = 3  # a source that was not read for this many of its pauses tells nothing any more
STOP_S = 2.0  # how long stopping waits for the thread: a sensor on a slow bus takes milliseconds


@dataclass
class _Turns:
    """One source, its newest reading and what reading it has cost."""

    source: DeviceSource
    state: Optional[DeviceState] = None
    read_ns: int = 0
    reads: int = 0
    cpu_ns: int = 0
    failed: str = ""


class Monitor:
    """Reads ``sources`` every ``interval_ns`` and hands each :class:`DeviceState` to ``tell``, on its own thread.

    ``clock_ns`` is the clock of all times; ``cpu_ns`` counts the processor time of the calling thread. :meth:`turn` is
    one turn without a thread. :attr:`state` and :meth:`costs` are for any thread.
    """

    def __init__(
        self,
        device: str,
        sources: Sequence[DeviceSource],
        tell: Callable[[DeviceState], None],
        clock_ns: Callable[[], int],
        cpu_ns: Callable[[], int],
        interval_ns: int = INTERVAL_NS,
    ) -> None:
        self.device = device
        self.interval_ns = interval_ns
        self.state: Optional[DeviceState] = None
        self._tell = tell
        self._clock_ns = clock_ns
        self._cpu_ns = cpu_ns
        self._turns = [_Turns(source) for source in sources]
        self._began_ns = clock_ns()
        self._spent_ns = 0
        self._stop = threading.Event()
        self._thread: Optional[threading.Thread] = None

    def start(self) -> Monitor:
        """Begin to read. The thread is a daemon: a program that forgets :meth:`stop` still ends."""
        self._thread = threading.Thread(target=self._live, name=f"edgeserve-monitor-{self.device}", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """No further reading; the sources are closed by the thread that reads them. May be called again."""
        self._stop.set()
        if self._thread is None:
            self._close()
        elif self._thread is not threading.current_thread():
            self._thread.join(STOP_S)
            if self._thread.is_alive():
                log.warning("the monitor of %s did not end within %.0f s; its thread is abandoned", self.device, STOP_S)

    def _live(self) -> None:
        due_ns = self._clock_ns()
        try:
            while not self._stop.is_set():
                self.turn()
                due_ns = max(due_ns + self.interval_ns, self._clock_ns())
                self._stop.wait(ns_to_s(max(0, due_ns - self._clock_ns())))
        finally:
            self._close()

    def _close(self) -> None:
        for turns in self._turns:
            turns.source.close()

    def turn(self) -> DeviceState:
        """Read what is due, keep the state and hand it on."""
        began_ns, now_ns = self._cpu_ns(), self._clock_ns()
        for turns in self._turns:
            self._read(turns, now_ns)
        state = merged(self._fresh(now_ns), now_ns)
        capped = capped_clock(state)
        if capped is not None:
            state = merged([DeviceState(throttles=(capped,)), state], now_ns)
        self.state = state
        self._tell(state)
        self._spent_ns += self._cpu_ns() - began_ns
        return state

    def _read(self, turns: _Turns, now_ns: int) -> None:
        pause_ns = turns.source.every_ns - self.interval_ns // 2  # a turn that comes a little early counts
        if turns.failed or (turns.reads and now_ns - turns.read_ns < pause_ns):
            return
        began_ns = self._cpu_ns()
        try:
            turns.state = turns.source.read(now_ns)
        except Exception as error:  # a source that is broken must not blind the others
            turns.failed = f"{type(error).__name__}: {error}"
            turns.state = None
            log.error("source %s failed and is asked no more", turns.source.name, exc_info=True)
        turns.read_ns = now_ns
        turns.reads += 1
        turns.cpu_ns += self._cpu_ns() - began_ns

    def _fresh(self, now_ns: int) -> List[DeviceState]:
        return [
            turns.state
            for turns in self._turns
            if turns.state is not None
            and now_ns - turns.read_ns <= STALE_TURNS * max(turns.source.every_ns, self.interval_ns)
        ]

    def costs(self) -> Dict[str, Any]:
        """Processor time: the share of one core since start, and milliseconds per reading of each source."""
        lived_ns = max(1, self._clock_ns() - self._began_ns)
        return {
            "core_share": round(self._spent_ns / lived_ns, 5),
            "sources": {
                turns.source.name: {
                    "reads": turns.reads,
                    "ms": round(ns_to_ms(turns.cpu_ns) / max(1, turns.reads), 4),
                    **({"failed": turns.failed} if turns.failed else {}),
                }
                for turns in self._turns
            },
        }
