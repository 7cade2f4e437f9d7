"""Programs of ``torch.export``, which say themselves what they take."""

from __future__ import annotations

from typing import Any, Iterable, Optional, Sequence, Tuple

import numpy as np
import torch

from edgeserve.config.schema import ModelConfig
from edgeserve.engines.options import Options
from edgeserve.engines.port import Port
from edgeserve.engines.torch.programs import CHANCE, NO_BOUND, NUMPY_OF, Program, tensors_of
from edgeserve.errors import ConfigError, EngineError

EXPORTS_SINCE = 2, 4
"""torch's release whose programs say names and batch sizes as later ones do: 2.2 calls inputs otherwise, 2.1 has other
ranges."""


def from_export(
    model: ModelConfig, options: Options, path: str, device: torch.device, precision: Optional[torch.dtype]
) -> Program:
    """The network of a file of ``torch.export.save``. Raises :class:`EngineError` where torch is too old for it."""
    old = f"model {model.name!r}: {path} is an exported program, and torch is {torch.__version__}; expected"
    if tuple(map(int, torch.__version__.split(".")[:2])) < EXPORTS_SINCE:
        raise EngineError(f"{old} {EXPORTS_SINCE[0]}.{EXPORTS_SINCE[1]} or later; install it, or serve TorchScript")
    program = torch.export.load(path)
    if precision is not None:
        raise ConfigError(
            f"{options.where('precision')}: an exported program keeps the types it was exported with; "
            "export it in that precision"
        )
    if device.type != "cpu":
        try:
            from torch.export.passes import move_to_device_pass
        except ModuleNotFoundError:
            raise EngineError(
                f"{old} one with torch.export.passes, which moves it to {device.type}; install a newer one, or serve "
                "it on a CPU lane or as TorchScript"
            ) from None
        program = move_to_device_pass(program, device)
    if "inputs" in options:
        raise ConfigError(f"{options.where('inputs')}: an exported program says itself what it takes; leave it out")
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    names = list(program.graph_signature.user_inputs)
    ports = []
    for name in names:
        value = values.get(name)
        if not isinstance(value, torch.Tensor):
            raise EngineError(
                f"model {model.name!r}: input {name!r} of {path} is {type(value).__name__} and no "
                "tensor; export the model with tensors alone"
            )
        ports.append(port_of_value(model.name, name, value))
    sizes = _sizes(
        program, [values[name] for name in names if name not in options.table("constants") and name not in model.state]
    )
    module = program.module()
    return Program(
        module,
        ports,
        options.texts("outputs") or _outputs_of(program, model.name, path),
        _keywords_of(program, names),
        sizes=sizes,
        tensors=tensors_of(program),
        holders=(module, program, program.graph_module),
        by_chance=any(CHANCE.match(str(node.target)) for node in program.graph.nodes),
    )


def port_of_value(model: str, name: str, value: torch.Tensor) -> Port:
    """The port of a tensor in the exported graph; lengths that are symbols are open."""
    if value.dtype not in NUMPY_OF:
        raise EngineError(
            f"model {model!r}: input {name!r} is {value.dtype}; expected one of {', '.join(sorted(map(str, NUMPY_OF)))}"
        )
    return Port(
        name, np.dtype(NUMPY_OF[value.dtype]), tuple(dim if isinstance(dim, int) else None for dim in value.shape)
    )


def _sizes(program: Any, values: Iterable[torch.Tensor]) -> Tuple[int, Optional[int]]:
    """The batch sizes that the program was exported for: the range of the first axis of its inputs."""
    low, high = 1, NO_BOUND
    for value in values:
        dim: Any = value.shape[0] if value.dim() else 1
        known = None if isinstance(dim, int) else program.range_constraints.get(dim.node.expr)
        if known is not None:
            low = max(low, int(known.lower))
            if known.upper < NO_BOUND:
                high = min(high, int(known.upper))
    return low, high if high < NO_BOUND else None


def _outputs_of(program: Any, model: str, path: str) -> Sequence[str]:
    """The keys of the dict that the program returns; a single tensor is ``output``."""
    spec = program.call_spec.out_spec
    if spec.type is dict or (isinstance(spec.type, type) and issubclass(spec.type, dict)):
        return [str(key) for key in spec.context]
    count = len(program.graph_signature.user_outputs)
    if count != 1:
        raise EngineError(
            f"model {model!r}: {path} returns {count} outputs without names; name them in their order: "
            f"[model.{model}] options.outputs = {[f'y{index}' for index in range(count)]}"
        )
    return ("output",)


def _keywords_of(program: Any, names: Sequence[str]) -> Sequence[str]:
    """Inputs that the program was exported with as keyword arguments."""
    spec = program.call_spec.in_spec
    keywords = (spec.children() if hasattr(spec, "children") else spec.children_specs)[1].context or ()
    return names[len(names) - len(keywords) :]
