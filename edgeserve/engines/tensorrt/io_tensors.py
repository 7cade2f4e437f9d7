"""The inputs and outputs of a deserialized plan: names, types, the largest shapes, and what the plan's profiles take.

Asks the plan once, after it was deserialized; knows no lane and no batch.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from edgeserve.engines.cuda.device import CudaStream
from edgeserve.engines.port import Port
from edgeserve.engines.tensorrt.build_errors import PlanRefused
from edgeserve.engines.tensorrt.library import Library
from edgeserve.engines.tensorrt.shapes import Profile
from edgeserve.errors import EngineError


class Tensor(NamedTuple):
    """An input or output. ``dims`` has -1 for open axes; ``size_bytes`` is that of the largest profile. ``narrowed``:
    an int32 input that may stand for the model's int64, so both are accepted. ``varies``: an output whose shape depends
    on values; ``size_bytes`` is TensorRT's upper bound then."""

    name: str
    is_input: bool
    dtype: np.dtype[Any]
    dims: Tuple[int, ...]
    size_bytes: int
    narrowed: bool = False
    varies: bool = False

    def port(self) -> Port:
        """The port against which items are checked."""
        dtype = np.dtype(np.int64) if self.narrowed else self.dtype
        return Port(self.name, dtype, tuple(None if dim < 0 else dim for dim in self.dims))


def check_profiles(engine: Any, profiles: Sequence[Tuple[int, Profile]], where: str) -> None:
    """Compare the plan's profiles with the requested ones. Raises :class:`PlanRefused` where they differ."""
    if engine.num_optimization_profiles != len(profiles):
        raise PlanRefused(
            f"{where}: the plan has {engine.num_optimization_profiles} optimisation profiles, expected {len(profiles)}"
        )
    names = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}  # unused inputs are left out
    for index, (size, shapes) in enumerate(profiles):
        for name, shape in shapes.items():
            if name not in names:
                continue
            rows = tuple(tuple(int(dim) for dim in row) for row in engine.get_tensor_profile_shape(name, index))
            if rows != tuple(shape):
                raise PlanRefused(
                    f"{where}: optimisation profile {index} (batch size {size}) takes input {name!r} of "
                    f"{rows}, expected {tuple(shape)}"
                )


def tensors_of(
    library: Library,
    engine: Any,
    profiles: Sequence[Tuple[int, Profile]],
    stream: CudaStream,
    where: str,
    runtime: Any = None,
) -> List[Tensor]:
    """The plan's tensors, inputs first. ``profiles``: numbers of optimisation profiles, with the request for each.
    Output shapes are asked of a context at each profile's largest shapes. Raises :class:`EngineError` for types that
    numpy lacks and for outputs that TensorRT cannot bound. ``runtime``: the runtime's configuration (TensorRT-RTX)."""
    trt, api = library.trt, library.api
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    inputs = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
    for name in names:
        _check_place(library, engine, name, where)
    largest, bounds = _largest(library, engine, profiles, stream, where, runtime)
    found = []
    for name in [*inputs, *(name for name in names if name not in inputs)]:
        dtype = api.dtype_of(engine.get_tensor_dtype(name))
        if dtype is None:
            raise EngineError(
                f"{where}: tensor {name!r} is {engine.get_tensor_dtype(name)}, which numpy has no type "
                "for; export the model with float32 or float16 inputs and outputs"
            )
        count = int(np.prod(largest.get(name, (0,)), dtype=np.int64))
        found.append(
            Tensor(
                name,
                name in inputs,
                dtype,
                tuple(int(dim) for dim in engine.get_tensor_shape(name)),
                max(1, count * dtype.itemsize, bounds.get(name, 0)),
                api.narrows_int64 and name in inputs and dtype == np.int32,
                name in bounds,
            )
        )
    return found


def _check_place(library: Library, engine: Any, name: str, where: str) -> None:
    """Every tensor is bound to device memory in numpy's order; plans that were built elsewhere may want others."""
    if engine.get_tensor_location(name) == library.trt.TensorLocation.HOST:
        raise EngineError(
            f"{where}: tensor {name!r} is read on the host, since its values decide the sizes of other "
            "tensors; this engine needs sizes that follow from the inputs' shapes. Export the model "
            "with fixed sizes, or run it with engine = 'onnx'"
        )
    layout = engine.get_tensor_format(name)
    if layout.name != "LINEAR":
        raise EngineError(
            f"{where}: tensor {name!r} has the layout {layout.name}, expected LINEAR; build the plan "
            "without that option (trtexec --inputIOFormats, --outputIOFormats), or name the ONNX file"
        )


def _largest(
    library: Library, engine: Any, profiles: Sequence[Tuple[int, Profile]], stream: CudaStream, where: str, runtime: Any
) -> Tuple[Dict[str, Tuple[int, ...]], Dict[str, int]]:
    """The largest shape, by number of elements, that each tensor has in any profile; and the bytes that outputs have at
    most whose shape depends on values."""
    context = library.new_context(engine, runtime)
    if context is None:
        raise EngineError(f"{where}: no execution context can be made: {library.why('TensorRT did not say why')}")
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    largest: Dict[str, Tuple[int, ...]] = {}
    bounds: Dict[str, int] = {}
    selected = -1
    for index, shapes in profiles:
        if index != selected:
            select_profile(library, context, index, stream, where)
            selected = index
        for name in (name for name in names if name in shapes):
            set_shape(library, context, name, shapes[name].high, where)
        for name in names:
            dims = tuple(int(dim) for dim in context.get_tensor_shape(name))
            if min(dims, default=0) < 0:
                bound = int(context.get_max_output_size(name))
                if bound <= 0:
                    raise EngineError(
                        f"{where}: the shape of output {name!r} depends on the input's values ({list(dims)}), and "
                        f"{library.name} {library.version} knows no bound of it. Leave such steps (NonZero) out of the "
                        "model, or run it with engine = 'onnx'"
                    )
                bounds[name] = max(bounds.get(name, 0), bound)
            elif name not in largest or math.prod(dims) > math.prod(largest[name]):
                largest[name] = dims
    return largest, bounds


def select_profile(library: Library, context: Any, index: int, stream: CudaStream, where: str) -> None:
    """Bind a context to an optimisation profile, and wait until it is: the next enqueue may be on another stream."""
    if not context.set_optimization_profile_async(index, stream.handle):
        raise EngineError(
            f"{where}: optimisation profile {index} cannot be used: {library.why('TensorRT did not say why')}"
        )
    stream.synchronize()


def set_shape(library: Library, context: Any, name: str, shape: Sequence[int], where: str) -> None:
    """Give an input's shape. Raises :class:`EngineError` when the profile does not take it."""
    if not context.set_input_shape(name, tuple(shape)):
        raise EngineError(
            f"{where}: input {name!r} of shape {list(shape)} is refused: "
            f"{library.why('it lies outside the optimisation profile')}"
        )
