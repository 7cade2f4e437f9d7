"""ONNX Runtime on a GPU that is not there: its sessions compute on the CPU, when the CUDA double's stream gets to them.

A session takes the stream of ``user_compute_stream``, reads its bound inputs from the double's device memory and writes
its outputs there when the operation runs, not when it is enqueued. Memory of an output whose OrtValue is gone is
overwritten at once, as ONNX Runtime's arena may. TensorRT's provider keeps engines as the real one does. Everything
else is the real onnxruntime.
"""

from __future__ import annotations

import hashlib
import os
import types
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import onnx
import onnxruntime
from cuda_double import POISON, CudaDouble, Use

PROVIDERS = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]


class Value:
    """An OrtValue: an output of a run."""

    def __init__(self, driver: CudaDouble, shape: Sequence[int], dtype: Any) -> None:
        self._driver = driver
        self._shape = list(shape)
        self._size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        self._pointer = driver.alloc_device(max(self._size, 1))

    def __del__(self) -> None:
        self._driver.memory_at(self._pointer, self._size).fill(POISON)

    def device_name(self) -> str:
        return "cuda"

    def shape(self) -> List[int]:
        return self._shape

    def data_ptr(self) -> int:
        return self._pointer


def kept_engine(network: Any, settings: Dict[str, str]) -> bytes:
    """The engine that TensorRT's provider runs: the one that lies in the folder under this name, else the network,
    which is kept there. A name is made of names alone, as ``TRTGenerateId`` of ONNX Runtime makes it."""
    model = onnx.load(network) if isinstance(network, str) else onnx.load_from_string(network)
    names = [os.path.basename(network)] if isinstance(network, str) else []
    names += [item.name for item in model.graph.input] + [name for node in model.graph.node for name in node.output]
    name = hashlib.sha256("/".join(names).encode()).hexdigest()[:20]
    path = os.path.join(settings["trt_engine_cache_path"], f"TRTKernel_graph_{model.graph.name}_{name}_0_sm87.engine")
    if not os.path.isfile(path):
        with open(path, "wb") as file:
            file.write(model.SerializeToString())
    with open(path, "rb") as file:
        return file.read()


class Binding:
    """An IOBinding."""

    def __init__(self) -> None:
        self.inputs: Dict[str, Any] = {}
        self.outputs: List[str] = []
        self.values: List[Value] = []

    def bind_input(self, name: str, device: str, index: int, dtype: Any, shape: Sequence[int], pointer: int) -> None:
        assert device == "cuda"
        self.inputs[name] = (np.dtype(dtype), tuple(shape), pointer)

    def bind_output(self, name: str, device: str = "cpu", index: int = 0) -> None:
        assert device == "cuda"
        self.outputs.append(name)

    def get_outputs(self) -> List[Value]:
        return list(self.values)


class Session:
    """An InferenceSession on a GPU."""

    def __init__(self, runtime: OnnxDouble, path: str, options: Any, providers: Sequence[Any]) -> None:
        self._runtime = runtime
        if runtime.load_error:
            raise RuntimeError(runtime.load_error)
        tensorrt = dict(providers).get("TensorrtExecutionProvider", {})
        network = kept_engine(path, tensorrt) if tensorrt.get("trt_engine_cache_enable") == "True" else path
        self._real = onnxruntime.InferenceSession(network, options, providers=["CPUExecutionProvider"])
        self.asked = [name for name, _ in providers]
        self.settings = dict(providers)
        runtime.sessions.append(self)

    def get_providers(self) -> List[str]:
        lost = self._runtime.falls_back
        return ["CPUExecutionProvider"] if lost else [*self.asked, "CPUExecutionProvider"]

    def get_provider_options(self) -> Dict[str, Dict[str, str]]:
        return {
            name: {**settings, "has_user_compute_stream": "0" if self._runtime.ignores_the_stream else "1"}
            for name, settings in self.settings.items()
        }

    def get_inputs(self) -> Any:
        return self._real.get_inputs()

    def get_modelmeta(self) -> Any:
        return self._real.get_modelmeta()

    def get_outputs(self) -> Any:
        return self._real.get_outputs()

    def disable_fallback(self) -> None:
        pass

    def run(self, names: Any, feeds: Any) -> Any:
        return self._real.run(names, feeds)

    def io_binding(self) -> Binding:
        return Binding()

    def run_with_iobinding(self, binding: Binding, run_options: Any) -> None:
        assert run_options.entries == {"disable_synchronize_execution_providers": "1"}
        if self._runtime.error:
            error, self._runtime.error = self._runtime.error, ""
            raise RuntimeError(error)
        driver = self._runtime.driver
        symbols = {
            symbol: length
            for node in self.get_inputs()
            for symbol, length in zip(node.shape, binding.inputs[node.name][1])
        }
        outputs = [node for node in self.get_outputs() if node.name in binding.outputs]
        shapes = [tuple(symbols.get(dim, dim) for dim in node.shape) for node in outputs]
        binding.values = [Value(driver, shape, _dtype(node.type)) for node, shape in zip(outputs, shapes)]
        sizes = {
            name: int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            for name, (dtype, shape, _) in binding.inputs.items()
        }
        places = [(value.data_ptr(), value._size) for value in binding.values]

        def compute() -> None:
            feeds = {
                name: driver.memory_at(pointer, sizes[name]).view(dtype).reshape(shape).copy()
                for name, (dtype, shape, pointer) in binding.inputs.items()
            }
            for (pointer, size), array in zip(places, self._real.run([node.name for node in outputs], feeds)):
                driver.memory_at(pointer, size)[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

        uses = [Use(pointer, sizes[name]) for name, (_, _, pointer) in binding.inputs.items()]
        stream = int(self.settings[self.asked[0]]["user_compute_stream"])
        driver.enqueue(stream, "network", compute, [*uses, *(Use(*place) for place in places)])


def _dtype(kind: str) -> str:
    """``float32`` of ``tensor(float)``."""
    name = kind[len("tensor(") : -1]
    return {"float": "float32", "double": "float64"}.get(name, name)


class RunOptions:
    """The options of a run."""

    def __init__(self) -> None:
        self.entries: Dict[str, str] = {}

    def add_run_config_entry(self, key: str, value: str) -> None:
        self.entries[key] = value


class OnnxDouble:
    """Stands for the module ``onnxruntime`` in the engine. ``error``: what the next run raises; ``load_error``: what
    each session does when it is made."""

    def __init__(self, driver: Optional[CudaDouble] = None) -> None:
        self.driver = driver or CudaDouble()
        self.sessions: List[Session] = []
        self.falls_back = False
        self.ignores_the_stream = False
        self.error = ""
        self.load_error = ""

    def module(self) -> Any:
        """The stand-in."""
        return types.SimpleNamespace(
            __version__=onnxruntime.__version__,
            SessionOptions=onnxruntime.SessionOptions,
            ExecutionMode=onnxruntime.ExecutionMode,
            RunOptions=RunOptions,
            get_available_providers=lambda: list(PROVIDERS),
            InferenceSession=lambda path, options, providers: Session(self, path, options, providers),
        )

    def installed(self, monkeypatch: Any) -> OnnxDouble:
        """Put it and the CUDA double in the place of the libraries."""
        from edgeserve.engines import onnx, onnx_providers
        from edgeserve.engines.cuda import lane_stream

        double = self.module()
        for module in (onnx, onnx_providers):
            monkeypatch.setattr(module, "onnxruntime", double)
        for module in (onnx, lane_stream):
            monkeypatch.setattr(module, "open_driver", lambda choice="auto": self.driver)
        return self
