"""Inputs and outputs of a session of ONNX Runtime, and the description of a file for commands."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from edgeserve.engines.describe import FileDescription
from edgeserve.engines.image import ImageForm, prepared_model
from edgeserve.engines.onnx_failures import not_loaded
from edgeserve.engines.onnx_providers import GPU_PROVIDERS, PROVIDER_NAMES
from edgeserve.engines.onnx_settings import LOG_FATAL_ONLY
from edgeserve.engines.port import Port
from edgeserve.errors import EngineError


def describe(path: str) -> FileDescription:
    """The description of an ONNX file. Raises :class:`EngineError` when ONNX Runtime cannot read it."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = LOG_FATAL_ONLY
    try:
        session = onnxruntime.InferenceSession(path, settings, providers=[PROVIDER_NAMES["cpu"]])
    except Exception as error:  # ONNX Runtime raises types of its own, one per status code
        raise EngineError(f"{path} cannot be read as an ONNX model: {not_loaded(path, error)}") from error
    inputs, outputs = ports_of(session, "input", path), ports_of(session, "output", path)
    left_out = [node.name for node in session.get_outputs() if node.name not in {port.name for port in outputs}]
    notes = [
        f"output {name} is no tensor and is not served; scikit-learn's classifiers give it as one when they are "
        "converted with options={'zipmap': False}"
        for name in left_out
    ]
    return FileDescription("onnx", tuple(inputs), tuple(outputs), usual_shapes(session, inputs), notes=tuple(notes))


def prepared_frame(path: str, form: ImageForm, frame: NDArray[Any]) -> NDArray[Any]:
    """The input that the network of ``path`` would get for one frame, by a form that says its input, size and layout;
    the network itself runs once, behind its preparation. Raises :class:`EngineError` where it does not."""
    data, _ = prepared_model(path, form, path, on_cpu=True)
    from edgeserve.engines.image_graph import alone  # the onnx package is there

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = LOG_FATAL_ONLY
    try:
        for model in (data, alone(form, on_cpu=True)):
            session = onnxruntime.InferenceSession(model, settings, providers=[PROVIDER_NAMES["cpu"]])
            batch = session.get_inputs()[0].shape[0] if model is data else 1
            frames = np.stack([frame] * (batch if isinstance(batch, int) else 1))
            prepared: NDArray[Any] = session.run(None, {form.input: frames})[0][0]
    except Exception as error:  # ONNX Runtime raises types of its own, one per status code
        raise EngineError(f"{path}: does not run behind the preparation of frames: {error}") from error
    return prepared


def can_use_gpu() -> bool:
    """True if this build of ONNX Runtime has a provider for NVIDIA's GPUs."""
    return any(provider in onnxruntime.get_available_providers() for provider in GPU_PROVIDERS)


def usual_shapes(session: Any, inputs: Sequence[Port]) -> Dict[str, Tuple[int, ...]]:
    """Lengths per item of image inputs with open axes, where the file's metadata tells the size of an image: exporters
    of the YOLO family write ``imgsz = [height, width]``."""
    try:
        said: Mapping[str, str] = session.get_modelmeta().custom_metadata_map
    except UnicodeDecodeError:
        return {}  # metadata is for people, and another key of it may be the one
    size = re.fullmatch(r"[\[(]\s*(\d{1,5})\s*,\s*(\d{1,5})\s*[\])]", said.get("imgsz", ""))
    if size is None:
        return {}
    height, width = int(size[1]), int(size[2])
    found = {}
    for port in inputs:
        dims = port.dims[1:]
        if len(dims) == 3 and None in dims and min(height, width) > 0:
            found[port.name] = tuple(
                length if dim is None else dim for dim, length in zip(dims, (dims[0] or 3, height, width))
            )
    return found


_DTYPES = {
    "float": np.float32,
    "double": np.float64,
    "float16": np.float16,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint64,
    "bool": np.bool_,
    "string": np.object_,
}


def lengths_that_differ(inputs: Sequence[Any], feeds: Mapping[str, Any]) -> str:
    """The two inputs that disagree about an axis of the same name, as text, or ``""``. Asked where a run failed: not
    every exporter means that lengths are equal where names are."""
    first: Dict[str, Tuple[str, int]] = {}
    for node in inputs:
        for axis, length in zip(list(node.shape)[1:], feeds[node.name].shape[1:]):
            name, other = first.setdefault(axis, (node.name, length)) if isinstance(axis, str) else (node.name, length)
            if other != length:
                return (
                    f"inputs {name!r} and {node.name!r} have lengths {other} and {length} on the axis {axis!r} that "
                    "they share; expected the same length"
                )
    return ""


def ports_of(session: Any, side: str, model: str) -> List[Port]:
    """The inputs or outputs (``side``) that can be used. Raises :class:`EngineError` for an input that is no tensor."""
    nodes = session.get_inputs() if side == "input" else session.get_outputs()
    ports = []
    try:
        for node in nodes:
            node.name  # noqa: B018 decoded when it is read
    except UnicodeDecodeError as error:
        raise EngineError(
            f"model {model!r}: the name of an {side} is no UTF-8 ({error}); export it with another name"
        ) from None
    for node in nodes:
        kind = node.type[len("tensor(") : -1] if node.type.startswith("tensor(") else ""
        if kind not in _DTYPES and side == "output" and not node.type.startswith("tensor("):
            continue  # a sequence or a map, beside tensors: the default of scikit-learn's converter
        if kind not in _DTYPES:
            raise EngineError(
                f"model {model!r}: {side} {node.name!r} is {node.type}; only tensors of "
                f"{', '.join(sorted(_DTYPES))} can be used. Export the model without it"
            )
        dims = tuple(dim if isinstance(dim, int) and dim >= 0 else None for dim in node.shape or ())
        axes = tuple(dim if isinstance(dim, str) else "" for dim in node.shape or ())
        ports.append(Port(node.name, np.dtype(_DTYPES[kind]), dims, axes if any(axes) else ()))
    if nodes and not ports:
        raise EngineError(
            f"model {model!r}: none of its {side}s ({', '.join(f'{node.name} {node.type}' for node in nodes)}) is a "
            "tensor; of scikit-learn's models export with options={'zipmap': False}"
        )
    return ports
