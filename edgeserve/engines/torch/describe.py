"""The description of a file of torch, for commands."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import List, Sequence, Tuple

import numpy as np
import torch

from edgeserve.config.schema import ModelConfig
from edgeserve.engines.describe import FileDescription
from edgeserve.engines.options import Options
from edgeserve.engines.port import Port
from edgeserve.engines.torch.exported import port_of_value
from edgeserve.engines.torch.programs import EXPORTED, NO_BOUND, NUMPY_OF
from edgeserve.engines.torch.reading import read_program
from edgeserve.errors import EngineError


def describe(path: str) -> FileDescription:
    """The description of a file of torch. TorchScript knows the names of its inputs and not what those hold."""
    model = ModelConfig(name=os.path.basename(path), engine="torch", file=os.path.abspath(path))
    device = torch.device("cpu")
    if path.endswith(EXPORTED):
        named = _names_for_outputs(path)
        model = replace(model, options={"outputs": named} if named else {})
        program = read_program(model, Options(model, ("outputs",)), "/", device, None)
        return FileDescription(
            "torch",
            tuple(program.inputs),
            _output_ports(path, program.outputs),
            facts={"outputs": named} if named else {},
            batches=() if program.sizes == (1, None) else ((program.sizes[0], program.sizes[1] or NO_BOUND),),
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            module = torch.jit.load(path, map_location=device)
    except Exception as error:  # noqa: BLE001 torch raises RuntimeError, zip and pickle errors and others
        raise EngineError(
            f"{path}: is no TorchScript ({str(error).splitlines()[0]}). Weights and pickled modules "
            "cannot be served without their code: export the model with torch.export.save (a .pt2 file) "
            "or to ONNX"
        ) from None
    names = [argument.name for argument in module.forward.schema.arguments[1:] if not argument.has_default_value()]
    return FileDescription(
        "torch",
        tuple(Port(name, np.dtype(np.float32), ()) for name in names),
        (Port("output", np.dtype(np.float32), ()),),
        opaque=True,
    )


def _output_ports(path: str, names: Sequence[str]) -> Tuple[Port, ...]:
    """The outputs of an exported program, batch axis included: a state is an input that one of these replaces."""
    program = torch.export.load(path)
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    ports = []
    for name, node in zip(names, program.graph_signature.user_outputs):
        value = values.get(str(node))
        known = isinstance(value, torch.Tensor) and value.dtype in NUMPY_OF
        ports.append(port_of_value(name, name, value) if known else Port(name, np.dtype(np.float32), ()))
    return tuple(ports)


def _names_for_outputs(path: str) -> List[str]:
    """Names for the outputs of an exported program that returns several without names; else none are needed."""
    try:
        program = torch.export.load(path)
    except Exception:  # noqa: BLE001 read_program reports the fault of the file
        return []
    spec = program.call_spec.out_spec
    if spec.type is dict or (isinstance(spec.type, type) and issubclass(spec.type, dict)):
        return []
    count = len(program.graph_signature.user_outputs)
    return [f"y{index}" for index in range(count)] if count != 1 else []


def can_use_gpu() -> bool:
    """True if torch sees a CUDA device."""
    return bool(torch.cuda.is_available())
