"""Plans that were built elsewhere, by ``trtexec`` or an exporter: which batches they take, and what they say of their
inputs and outputs. Such a plan runs on the GPU and with the library version that built it alone.

Asks a deserialized plan; knows no lane, and builds nothing.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from edgeserve.engines.cuda.device import CudaDevice
from edgeserve.engines.cuda.driver import open_driver
from edgeserve.engines.describe import FileDescription
from edgeserve.engines.port import Port
from edgeserve.engines.tensorrt.build_errors import PlanRefused, failed_by_device
from edgeserve.engines.tensorrt.library import Library, open_library
from edgeserve.engines.tensorrt.settings import BuildRequest, is_plan
from edgeserve.engines.tensorrt.shapes import Profile, ProfileShape
from edgeserve.errors import ConfigError, EngineError

BUILD_OPTIONS = (
    "precision",
    "ranges",
    "workspace",
    "optimization_level",
    "build_memory",
    "build_timeout",
    "allow_build",
    "timing_cache",
    "compute_capabilities",
    "aux_streams",
    "image",
)
"""Options of building, which a plan that is built already cannot follow."""

HEADER_BYTES = 4
HEADER_MAX = 1 << 20
"""Ultralytics' exporter writes the length of a JSON text, and that, before the plan."""


class Chosen(NamedTuple):
    """The optimisation profile that runs batches of ``size``: its number in the plan, and the shapes of its inputs."""

    number: int
    size: int
    shapes: Profile


def plan_bytes(path: str) -> Union[memoryview, bytes]:
    """The plan itself, without what Ultralytics' exporter writes before it: mapped, so that a plan of gigabytes is not
    held a second time while it loads. Pages of a file are given back when memory is short; of a copy none are."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return b""
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    if not is_plan(path):
        return data
    length = int.from_bytes(data[:HEADER_BYTES], "little")
    if bytes(data[HEADER_BYTES : HEADER_BYTES + 1]) == b"{" and length < min(HEADER_MAX, len(data)):
        return data[HEADER_BYTES + length :]
    return data


def deserialized(library: Library, path: str, where: str, request: Optional[BuildRequest] = None) -> Tuple[Any, Any]:
    """The objects that must outlive the plan (the library's runtime, and the file), and the plan as an engine. Raises
    :class:`PlanRefused`."""
    runtime, data = library.trt.Runtime(library.log), plan_bytes(path)
    if request is not None and request.dla_core >= 0:
        runtime.DLA_core = request.dla_core
    if request is not None and request.version_compatible and library.api.has("Runtime", "engine_host_code_allowed"):
        runtime.engine_host_code_allowed = True  # such a plan brings the runtime of its version
    engine = runtime.deserialize_cuda_engine(data)
    if engine is None:
        said = library.why("it did not say why")
        of_device = failed_by_device(f"{where}: loading its plan", said)
        if of_device is not None:
            raise of_device
        which = "" if where == path else f" {path}"
        built = " A plan runs on the GPU and the library version that built it alone." if is_plan(path) else ""
        raise PlanRefused(
            f"{where}: {library.name} {library.version} refuses the plan{which}: "
            f"{said}.{built} Check that the GPU, the driver and the library "
            "fit together (edgeserve doctor)"
        )
    return (runtime, data), engine


def check_options(options: Any, path: str) -> None:
    """Raises :class:`ConfigError` for an option that only a build could follow."""
    for key in BUILD_OPTIONS:
        if key in options:
            raise ConfigError(
                f"{options.where(key)} is for building a plan, and {os.path.basename(path)} is built "
                "already; leave it out, or name the ONNX file"
            )


def profiles_in(library: Library, engine: Any) -> List[Profile]:
    """The shapes that each optimisation profile of the plan takes: input -> its shapes, batch axis included."""
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    inputs = [name for name in names if engine.get_tensor_mode(name) == library.trt.TensorIOMode.INPUT]
    return [
        {name: _shapes_of(engine, name, index) for name in inputs} for index in range(engine.num_optimization_profiles)
    ]


def _shapes_of(engine: Any, name: str, index: int) -> ProfileShape:
    own = tuple(int(dim) for dim in engine.get_tensor_shape(name))
    if min(own, default=0) >= 0:
        return ProfileShape(own, own, own)
    return ProfileShape(*(tuple(int(dim) for dim in row) for row in engine.get_tensor_profile_shape(name, index)))


def batches_of(profile: Profile, axes: Dict[str, Optional[int]]) -> Tuple[int, int]:
    """Smallest and largest batch that a profile takes. ``axes``: input -> its batch axis, ``None`` without one; an
    input that is not named has it in front."""
    found = [
        (shape.low[axis], shape.high[axis])
        for name, shape in profile.items()
        for axis in [axes.get(name, 0)]
        if axis is not None and axis < len(shape.low)
    ]
    return max((low for low, _ in found), default=1), min((high for _, high in found), default=1)


def choose(
    profiles: Sequence[Profile], sizes: Sequence[int], axes: Dict[str, Optional[int]], where: str
) -> List[Chosen]:
    """A profile for each batch size, the narrowest that takes it. A batch axis of one length runs smaller batches too:
    they are filled up. Raises :class:`EngineError` for a size that no profile takes."""
    ranges = [batches_of(profile, axes) for profile in profiles]
    wanted = sorted(set(sizes))
    if len(set(ranges)) == 1 and ranges[0][0] == ranges[0][1] >= max(wanted):
        wanted = [ranges[0][0]]
    chosen = []
    for size in wanted:
        fits = [(high - low, index) for index, (low, high) in enumerate(ranges) if low <= size <= high]
        if not fits:
            takes = " and ".join(str(low) if low == high else f"{low} to {high}" for low, high in sorted(set(ranges)))
            raise EngineError(
                f"{where}: batch = {wanted}, but the plan takes batches of {takes}; correct batch, or "
                "build the plan with another optimisation profile"
            )
        index = min(fits)[1]
        chosen.append(
            Chosen(
                index,
                size,
                {name: _with_batch(shape, axes.get(name, 0), size) for name, shape in profiles[index].items()},
            )
        )
    return chosen


def _with_batch(shape: ProfileShape, axis: Optional[int], size: int) -> ProfileShape:
    if axis is None or axis >= len(shape.low):
        return ProfileShape(shape.usual, shape.usual, shape.usual)
    return ProfileShape(*((*row[:axis], size, *row[axis + 1 :]) for row in shape))


def item_ranges_of(chosen: Sequence[Chosen], axes: Dict[str, Optional[int]]) -> Dict[str, ProfileShape]:
    """Input -> the shapes of an item that every chosen profile takes, of inputs with open axes besides the batch."""
    found: Dict[str, ProfileShape] = {}
    for name in chosen[0].shapes:
        if axes.get(name, 0) != 0:
            continue
        rows = [item.shapes[name] for item in chosen]
        low = tuple(max(lengths) for lengths in zip(*(row.low[1:] for row in rows)))
        high = tuple(min(lengths) for lengths in zip(*(row.high[1:] for row in rows)))
        if low != high:
            found[name] = ProfileShape(low, rows[0].usual[1:], high)
    return found


def describe(path: str, choice: str = "auto") -> FileDescription:
    """The description of a plan by the library of ``choice``. It must be asked on the GPU that it was built for."""
    try:
        library = open_library(choice)
        device = CudaDevice(open_driver("auto"), 0)
    except EngineError as error:
        raise type(error)(
            f"{path}: a plan of TensorRT is read where it runs, on its GPU; elsewhere give the ONNX file "
            f"that it was built from. {error}"
        ) from None
    try:
        with device.current():
            runtime, engine = deserialized(library, path, path)
            profiles = profiles_in(library, engine)
            names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
            ports = {name: _port(library, engine, name, path) for name in names}
            del engine, runtime  # in this order, and before the device is closed
    finally:
        device.close()
    inputs = [name for name in names if name in profiles[0]]
    usual = {name: profiles[0][name].usual[1:] for name in inputs if None in ports[name].dims[1:]}
    return FileDescription(
        "tensorrt",
        tuple(ports[name] for name in inputs),
        tuple(ports[name] for name in names if name not in inputs),
        usual,
        batches=tuple(batches_of(profile, {}) for profile in profiles),
    )


def _port(library: Library, engine: Any, name: str, path: str) -> Port:
    dtype = library.api.dtype_of(engine.get_tensor_dtype(name))
    if dtype is None:
        raise EngineError(
            f"{path}: tensor {name!r} is {engine.get_tensor_dtype(name)}, which numpy has no type for; "
            "export the model with float32 or float16 inputs and outputs"
        )
    return Port(name, dtype, tuple(None if dim < 0 else int(dim) for dim in engine.get_tensor_shape(name)))


def can_use_gpu() -> bool:
    """A plan runs nowhere else."""
    return True
