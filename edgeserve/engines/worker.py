"""Batches of a blocking library on a thread of their own, so that a lane packs the next one meanwhile.

For sessions of lanes with ``depth`` above 1: the lane's thread packs and unpacks, the worker's thread runs, one batch
after the other in the order given. A lane's sessions share one worker (:func:`worker_of`), as they would share a
stream. The clock is the lane's.
"""

from __future__ import annotations

import queue
import threading
from typing import Any, Callable, List, Optional, Tuple

from edgeserve.engines.base import LaneInfo, Pending, Result

NAME = "worker"
"""The key of the lane's worker in ``LaneInfo.common``."""


class WorkerThread:
    """One daemon thread; it inherits the cores of the thread that makes it. ``close`` ends it after what was given."""

    def __init__(self, name: str, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._inbox: queue.SimpleQueue[Optional[WorkerPending]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"edgeserve-{name}-worker", daemon=True)
        self._thread.start()

    def launch(self, call: Callable[[], Any], unpack: Callable[[Any], List[Result]]) -> Pending:
        """Run ``call`` behind what was given before; ``unpack`` turns what it returned into results, on the thread that
        asks for them."""
        pending = WorkerPending(call, unpack)
        self._inbox.put(pending)
        return pending

    def close(self) -> None:
        self._inbox.put(None)

    def _run(self) -> None:
        while True:
            pending = self._inbox.get()
            if pending is None:
                return
            pending.run(self._clock_ns)
            del pending  # its batch must not live until the next one comes


class WorkerPending(Pending):
    """A batch that a worker runs or will run."""

    def __init__(self, call: Callable[[], Any], unpack: Callable[[Any], List[Result]]) -> None:
        self._call: Optional[Callable[[], Any]] = call
        self._unpack = unpack
        self._value: Any = None
        self._error: Optional[BaseException] = None
        self._times: Optional[Tuple[int, int]] = None
        self._over = threading.Event()

    def run(self, clock_ns: Callable[[], int]) -> None:
        """The worker's side."""
        call, self._call = self._call, None
        assert call is not None, "a batch is given to one worker, once"
        started_ns = clock_ns()
        try:
            self._value = call()
        except BaseException as error:  # noqa: BLE001 raised again on the thread that asks for the result
            self._error = error
        self._times = (started_ns, clock_ns())
        self._over.set()

    def done(self) -> bool:
        return self._over.is_set()

    def wait(self, timeout_s: float) -> bool:
        return self._over.wait(timeout_s)

    def result(self) -> List[Result]:
        error, self._error = self._error, None
        if error is not None:
            raise error
        value, self._value = self._value, None
        return self._unpack(value)

    def times(self) -> Optional[Tuple[int, int]]:
        return self._times


def worker_of(lane: LaneInfo) -> Optional[WorkerThread]:
    """The worker of a lane, made at first use; ``None`` where the lane holds one batch at a time, which needs none."""
    if lane.depth < 2 or lane.common is None or lane.clock_ns is None:
        return None
    worker = lane.common.get(NAME)
    if worker is None:
        worker = lane.common[NAME] = WorkerThread(lane.name, lane.clock_ns)
    assert isinstance(worker, WorkerThread)
    return worker
