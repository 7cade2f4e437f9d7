"""The session of a tensor engine that computes on the CPU: pack, run, unpack, on the lane's thread or a worker's."""

from __future__ import annotations

from typing import Any, List, Optional, Protocol, Sequence

from edgeserve.engines.base import Batch, Finished, Pending, Result, Session
from edgeserve.engines.ports import PackedBatch, Ports
from edgeserve.engines.worker import WorkerThread
from edgeserve.errors import DeviceLost, EngineError, OutOfMemory, ProcessEnded

DEVICE_TROUBLE = (DeviceLost, OutOfMemory, ProcessEnded)
"""Errors that no item caused."""


class HostEngine(Protocol):
    """The methods that such a session needs of its engine. ``threads`` is the engine's own word for a lane's
    threads."""

    def loaded_ports(self) -> Ports:
        """The ports of the model; raises ``EngineError`` where it is not loaded."""

    def arrays_of(self, packed: PackedBatch, threads: Any) -> Sequence[Any]:
        """The model's output arrays for a packed batch."""


class HostSession(Session):
    """One lane's use of a model. Where the lane holds several batches, the model runs on a worker's thread while the
    lane packs the next batch and unpacks the last.

    Where a run of several items fails, each runs again alone: a value that the model does not take (a place beyond a
    table) shows in a run only, and the others of the batch belong to other clients."""

    def __init__(self, engine: HostEngine, threads: Any, worker: Optional[WorkerThread]) -> None:
        self._engine = engine
        self._threads = threads
        self._worker = worker

    def launch(self, batch: Batch) -> Pending:
        engine, threads = self._engine, self._threads
        ports = engine.loaded_ports()
        packed = ports.pack(batch)
        alone: List[Result] = []

        def run() -> Sequence[Any]:
            try:
                return engine.arrays_of(packed, threads)
            except DEVICE_TROUBLE:
                raise
            except EngineError:
                if packed.rows < 2:
                    raise
                results = self._alone(ports, batch)
                if all(result.error is None for result in results):
                    raise  # it is the batch that the model does not take
                alone.extend(results)
                return ()

        def unpack(arrays: Sequence[Any]) -> List[Result]:
            return alone or ports.unpack(arrays, packed)

        if self._worker is None:
            return Finished(unpack(run()))
        return self._worker.launch(run, unpack)

    def _alone(self, ports: Ports, batch: Batch) -> List[Result]:
        """The items one by one, in the smallest size that the model runs in."""
        results = []
        for index in range(len(batch.items)):
            one = batch.without({*range(len(batch.items))} - {index})._replace(size=ports.smallest)
            try:
                packed = ports.pack(one)
                results += ports.unpack(self._engine.arrays_of(packed, self._threads), packed)
            except DEVICE_TROUBLE:
                raise
            except EngineError as error:
                results.append(Result({}, error=error))
        return results
