"""``torch`` with a CUDA device that is not there: tensors stay on the CPU, streams and events only count. It shows that
the engine's path on CUDA is whole and keeps order between its streams' names; nothing about memory, overlap or time."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import itertools
import types
from typing import Any, Iterator, List, Tuple

import numpy as np
import torch

from edgeserve.errors import DeviceMissing

CPU = torch.device("cpu")


class Stream:
    """A stream; ``waits`` are those that it waited for."""

    numbers = itertools.count(100)
    waits: List[Tuple[int, int]] = []

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = CPU
        self.cuda_stream = next(self.numbers)

    def wait_stream(self, other: Any) -> None:
        self.waits.append((self.cuda_stream, other.cuda_stream))

    def synchronize(self) -> None:
        pass


class ExternalStream(Stream):
    """A stream of another library, or of torch, by its handle."""

    def __init__(self, handle: int, device: Any = None) -> None:
        self.device = CPU
        self.cuda_stream = handle


class Event:
    """Passed as soon as it is recorded."""

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.recorded = False

    def record(self, stream: Any) -> None:
        self.recorded = True

    def query(self) -> bool:
        return self.recorded

    def elapsed_time(self, end: Event) -> float:
        assert self.recorded and end.recorded
        return 0.0


class Torch:
    """The module, with a few names replaced. ``current``: the streams entered, the innermost last; ``emptied``: how
    often the allocator's spare memory went back."""

    def __init__(self) -> None:
        self.current: List[int] = []
        self.emptied = 0
        self.cuda = types.SimpleNamespace(
            is_available=lambda: True,
            device_count=lambda: 1,
            synchronize=lambda: None,
            memory_allocated=lambda: 0,
            reset_peak_memory_stats=lambda: None,
            max_memory_allocated=lambda: 4096,
            empty_cache=self._empty,
            Stream=Stream,
            ExternalStream=ExternalStream,
            Event=Event,
            stream=self._within,
            device=lambda device: contextlib.nullcontext(),
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def _empty(self) -> None:
        self.emptied += 1

    @contextlib.contextmanager
    def _within(self, stream: Any) -> Iterator[None]:
        self.current.append(stream.cuda_stream)
        yield
        self.current.pop()

    def device(self, kind: str, index: int = 0) -> torch.device:
        return CPU

    def as_tensor(self, value: Any, device: Any = None) -> torch.Tensor:
        """An array "on the GPU", at an address of the host."""
        memory = (ctypes.c_byte * value.nbytes).from_address(value.pointer)
        return torch.from_numpy(np.frombuffer(memory, value.dtype).reshape(value.shape).copy())

    def empty(self, shape: Any, dtype: Any = None, pin_memory: bool = False) -> torch.Tensor:
        assert pin_memory
        return torch.empty(shape, dtype=dtype)


def installed(monkeypatch: Any, *more: str) -> Torch:
    """Put it in the place of torch in the engine, and in modules named ``more``, without a library for CUDA beside
    it."""
    from edgeserve.engines.torch import streams
    from edgeserve.engines.torch import torch_engine as engine

    def missing(choice: str = "auto") -> Any:
        raise DeviceMissing("no library for CUDA")

    double = Torch()
    for module in (engine, streams, *map(importlib.import_module, more)):
        monkeypatch.setattr(module, "torch", double)
    monkeypatch.setattr(streams, "open_driver", missing)
    monkeypatch.setattr(Stream, "waits", [])
    return double
