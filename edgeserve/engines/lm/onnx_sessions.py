"""Sessions of ONNX Runtime for a graph of a language model: lanes with equal threads and cores share one."""

from __future__ import annotations

from contextlib import nullcontext
from threading import Lock
from typing import Any, ContextManager, Dict, NamedTuple, Tuple

import onnxruntime

from edgeserve.engines.base import LaneInfo
from edgeserve.engines.onnx_failures import not_loaded
from edgeserve.engines.onnx_settings import OnnxThreads, making, session_options, threads_of
from edgeserve.errors import EngineError

SHARED_SINCE = (1, 20)
"""The first version in which several threads may run one session at a time. With 1.19.2 two of them got about one wrong
answer in a thousand, with 1.20.1 and 1.32 none."""


def is_since(version: Tuple[int, int]) -> bool:
    """True if ONNX Runtime is that new."""
    return tuple(int(part) for part in onnxruntime.__version__.split(".")[:2]) >= version


class SharedSession(NamedTuple):
    """A session of ONNX Runtime, and what a thread holds while it runs it."""

    session: Any
    turn: ContextManager[Any]


class SharedSessions:
    """The sessions of one graph. Before :data:`SHARED_SINCE` each lane has its own, and callers without a lane run one
    after the other. ``threads``: of one run; 0: the lane's."""

    def __init__(self, model: str, path: str, threads: int) -> None:
        self._model = model
        self._path = path
        self._threads = threads
        self._sessions: Dict[Tuple[OnnxThreads, str], SharedSession] = {}
        self._opening = Lock()

    def __len__(self) -> int:
        return len(self._sessions)

    def of(self, lane: LaneInfo) -> SharedSession:
        """The session that runs on a lane; made at first use. Raises :class:`~edgeserve.errors.EngineError`."""
        is_shared = is_since(SHARED_SINCE)
        threads = threads_of(lane, self._threads)
        key = (threads, "" if is_shared else lane.name)
        with self._opening:
            if key not in self._sessions:
                self._sessions[key] = SharedSession(self._create(threads), nullcontext() if is_shared else Lock())
            return self._sessions[key]

    def _create(self, threads: OnnxThreads) -> Any:
        try:
            return making(
                threads,
                lambda: onnxruntime.InferenceSession(
                    self._path, session_options(threads), providers=["CPUExecutionProvider"]
                ),
            )
        except Exception as error:  # ONNX Runtime raises types of its own, one per status code
            raise EngineError(
                f"model {self._model!r}: {self._path} cannot be loaded: {not_loaded(self._path, error)}"
            ) from error
