"""The session of a tensor engine that computes on the CPU: pack, run, unpack, on the lane's thread or a worker's."""

from __future__ import annotations

from typing import Any, Optional, Protocol, Sequence

from edgeserve.engines.base import Batch, Finished, Pending, Session
from edgeserve.engines.ports import PackedBatch, Ports
from edgeserve.engines.worker import Worker


class HostEngine(Protocol):
    """What such a session needs of its engine. ``threads`` is the engine's own word for a lane's threads."""

    def loaded_ports(self) -> Ports:
        """The ports of the model; raises ``EngineError`` where it is not loaded."""

    def arrays_of(self, packed: PackedBatch, threads: Any) -> Sequence[Any]:
        """The model's output arrays for a packed batch."""


class HostSession(Session):
    """One lane's use of a model. Where the lane holds several batches, the model runs on a worker's thread while the
    lane packs the next batch and unpacks the last."""

    def __init__(self, engine: HostEngine, threads: Any, worker: Optional[Worker]) -> None:
        self._engine = engine
        self._threads = threads
        self._worker = worker

    def launch(self, batch: Batch) -> Pending:
        engine, threads = self._engine, self._threads
        ports = engine.loaded_ports()
        packed = ports.pack(batch)
        if self._worker is None:
            return Finished(ports.unpack(engine.arrays_of(packed, threads), packed))
        return self._worker.launch(
            lambda: engine.arrays_of(packed, threads), lambda arrays: ports.unpack(arrays, packed)
        )
