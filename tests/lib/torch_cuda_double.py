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
from torch.utils._python_dispatch import TorchDispatchMode

from edgeserve.errors import DeviceMissing

CPU = torch.device("cpu")


class Stream:
    """A stream; ``waits`` are the streams that it waited for."""

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


class Recorder(TorchDispatchMode):
    """Keeps the operators that run within, with what they read and wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: List[Tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = {each.data_ptr() for call in self.calls for each in _tensors(call[3])}
        looks = str(func).startswith(("aten._local_scalar_dense", "aten.item"))
        if looks and args[0].data_ptr() in made:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out


class CUDAGraph:
    """Runs the captured operators again, on the same memory."""

    def __init__(self) -> None:
        self.calls: List[Tuple[Any, Any, Any, Any]] = []
        self.owner = object()

    def pool(self) -> Any:
        return self.owner

    def replay(self) -> None:
        for func, args, kwargs, out in self.calls:
            again = func(*args, **kwargs)
            for old, new in zip(_tensors(out), _tensors(again)):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def _tensors(value: Any) -> List[Any]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [each for each in values if isinstance(each, torch.Tensor)]


@contextlib.contextmanager
def captured(graph: CUDAGraph, pool: Any, stream: Any, capture_error_mode: str) -> Iterator[None]:
    """``torch.cuda.graph``. Another mode than thread-local makes every other thread's call fail meanwhile."""
    assert capture_error_mode == "thread_local"
    with Recorder() as recorder:
        yield
    graph.calls = recorder.calls


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
            CUDAGraph=CUDAGraph,
            graph=captured,
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
    from edgeserve.engines.torch import graphs, streams
    from edgeserve.engines.torch import torch_engine as engine

    def missing(choice: str = "auto") -> Any:
        raise DeviceMissing("no library for CUDA")

    double = Torch()
    for module in (engine, streams, graphs, *map(importlib.import_module, more)):
        monkeypatch.setattr(module, "torch", double)
    monkeypatch.setattr(streams, "open_driver", missing)
    monkeypatch.setattr(Stream, "waits", [])
    return double
