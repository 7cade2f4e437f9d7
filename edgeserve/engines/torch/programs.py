"""Three ways to get a network of torch, brought to one form: a :class:`Program`.

* ``function = "module:name"``: a subclass of ``torch.nn.Module`` or a function that makes one, called with
  ``options.arguments``; ``file`` then holds its weights, a ``state_dict`` that ``torch.save`` wrote.
* ``file = "net.pt2"``: a program of ``torch.export.save``. It says itself what it takes.
* ``file = "net.pt"``: TorchScript.

A module and TorchScript know the names of their inputs and not what those hold: ``options.inputs = {x = {dtype =
"float32", shape = [3, -1, -1]}}`` tells, as ``[app.NAME.inputs]`` does (per item, ``-1`` is any length). An input that
is left out there is float32 of the length in ``shapes``.
"""

from __future__ import annotations

import inspect
import os
import re
import warnings
from dataclasses import replace
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np
import torch
from numpy.typing import NDArray

from edgeserve.config.model_files import model_path
from edgeserve.config.schema import ModelConfig
from edgeserve.engines.describe import FileDescription
from edgeserve.engines.options import Options, of_name
from edgeserve.engines.ports import Port
from edgeserve.engines.python import import_function
from edgeserve.errors import ConfigError, EngineError, nearest

EXPORTED = ".pt2"
NUMPY_OF = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.float16: np.float16,
    torch.int8: np.int8,
    torch.int16: np.int16,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
    torch.bfloat16: np.float32,
}
"""bfloat16 has no numpy type: it goes in and comes out as float32."""

TORCH_OF = {np.dtype(value): key for key, value in NUMPY_OF.items() if key is not torch.bfloat16}

NO_BOUND = 1 << 40
"""torch writes a dimension without an upper bound as a larger number, or an infinity of its own."""

NUMBERS = {"int": int, "float": float, "bool": bool}
"""Types of arguments that are no tensors: constants of the configuration can be given to them."""

CHANCE = re.compile(r"aten(?:::|\.)(?:rand|normal|bernoulli|multinomial|poisson|exponential|native_dropout)")
"""Operators that draw numbers, as graphs write them. A module that is not training drops nothing out."""

IMAGE_AXES = 4
"""Batch, channels, height, width: what torch can lay channels last."""

Dims = Tuple[Optional[int], ...]


class Program:
    """A network, ready to be called. ``inputs`` are in the order of :meth:`call`'s arrays, ``outputs`` name its
    results. ``numbers`` are inputs that take a Python number: give them as tensors on the host. ``sizes`` bounds the
    batch, where the program does. ``holders``: the owners of the weights, where these have no other owner.
    ``by_chance``: whether it draws random numbers, ``None`` where its graph is not known."""

    def __init__(
        self,
        function: Any,
        inputs: Sequence[Port],
        outputs: Sequence[str],
        keywords: Sequence[str] = (),
        numbers: Sequence[str] = (),
        sizes: Tuple[int, Optional[int]] = (1, None),
        tensors: Sequence[torch.Tensor] = (),
        holders: Sequence[Any] = (),
        by_chance: Optional[bool] = None,
    ) -> None:
        self._holders = holders
        self.by_chance = by_chance
        self.function = function
        self.inputs = list(inputs)
        self.outputs = list(outputs)
        self.sizes = sizes
        self.tensors = list(tensors)  # weights and buffers
        self._keywords = frozenset(keywords)
        self._channels_last = False
        self.numbers = frozenset(numbers)

    def call(self, feeds: Mapping[str, torch.Tensor]) -> List[torch.Tensor]:
        """The network's results, in the order of ``outputs``. Raises :class:`EngineError` when they differ from the
        declared ones."""
        arguments: List[Any] = []
        named: Dict[str, Any] = {}
        for port in self.inputs:
            value: Any = feeds[port.name]
            if self._channels_last and value.dim() == IMAGE_AXES:
                value = value.contiguous(memory_format=torch.channels_last)
            if port.name in self.numbers:
                value = value.item()
            if port.name in self._keywords:
                named[port.name] = value
            else:
                arguments.append(value)
        return self._in_order(self.function(*arguments, **named))

    def lay_channels_last(self) -> None:
        """Keep images and kernels with their channels as the last axis in memory."""
        self.function.to(memory_format=torch.channels_last)
        self._channels_last = True

    def compile(self) -> None:
        """Have torch compile the network, at its first calls."""
        self.function = torch.compile(self.function)

    def weights_bytes(self) -> int:
        """Bytes of the weights and buffers; what two of them share counts once."""
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in self.tensors}
        return int(sum(storages.values()))

    def release(self) -> None:
        """Let go of the weights; it is not called again. An exported program and its graph refer to each other, so that
        only a collection of garbage frees them, which stops every thread: their tensors are taken out of them."""
        self.tensors.clear()
        for holder in self._holders:
            take_out(holder)

    def _in_order(self, returned: Any) -> List[torch.Tensor]:
        if isinstance(returned, Mapping):
            missing = [name for name in self.outputs if name not in returned]
            if missing:
                raise EngineError(
                    f"it returned a dict of {', '.join(map(str, returned))} without {missing[0]!r}; name "
                    f"its outputs: options.outputs = {[str(name) for name in returned]}"
                )
            values = [returned[name] for name in self.outputs]
        else:
            values = list(returned) if isinstance(returned, (tuple, list)) else [returned]
        if len(values) != len(self.outputs):
            raise EngineError(
                f"it returned {len(values)} outputs and {len(self.outputs)} are named; name them in "
                f"their order: options.outputs = {[f'y{index}' for index in range(len(values))]}"
            )
        for name, value in zip(self.outputs, values):
            if not isinstance(value, torch.Tensor):
                raise EngineError(f"its output {name!r} is a {type(value).__name__}; expected a tensor")
        return values


def read_program(
    model: ModelConfig, options: Options, directory: str, device: torch.device, precision: Optional[torch.dtype]
) -> Program:
    """The network of ``model`` on ``device``. Raises :class:`EngineError` or :class:`ConfigError` with the mend."""
    if model.function:
        return _from_module(model, options, directory, device, precision)
    path = model_path(model, directory)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript's files are read as long as torch can
            if path.endswith(EXPORTED):
                return _from_export(model, options, path, device, precision)
            return _from_script(model, options, path, device, precision)
    except (EngineError, ConfigError):
        raise
    except Exception as error:  # torch raises RuntimeError, zip and pickle errors and others
        expected = (
            "a program of torch.export.save"
            if path.endswith(EXPORTED)
            else "TorchScript (a module's weights alone also need function = 'module:Class')"
        )
        raise EngineError(f"model {model.name!r}: {path} cannot be loaded as {expected}: {error}") from error


# --- a module ---------------------------------------------------------------------------------------------------------


def _from_module(
    model: ModelConfig, options: Options, directory: str, device: torch.device, precision: Optional[torch.dtype]
) -> Program:
    where = f"[model.{model.name}] function"
    made: Any = import_function(model.function, directory, where)
    if not isinstance(made, torch.nn.Module):
        try:
            made = made(**options.table("arguments"))
        except Exception as error:  # a user's constructor may raise anything
            raise EngineError(
                f"{where} = {model.function!r} raised {type(error).__name__}: {error} "
                f"(options.arguments = {options.table('arguments')})"
            ) from error
    if not isinstance(made, torch.nn.Module):
        raise EngineError(f"{where} = {model.function!r} made a {type(made).__name__}; expected a torch.nn.Module")
    if model.file:
        _load_weights(made, model, model_path(model, directory))
    made = made.eval().to(device=device, dtype=precision).requires_grad_(False)
    parameters = [
        parameter
        for parameter in inspect.signature(made.forward).parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    numbers = [
        parameter.name
        for parameter in parameters
        if str(getattr(parameter.annotation, "__name__", parameter.annotation)) in NUMBERS
    ]
    return _declared(
        model,
        options,
        made,
        [parameter.name for parameter in parameters],
        [parameter.name for parameter in parameters if parameter.default is parameter.empty],
        numbers,
        _tensors_of(made),
    )


def _load_weights(module: torch.nn.Module, model: ModelConfig, path: str) -> None:
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
        module.load_state_dict(weights)
    except Exception as error:  # torch raises RuntimeError, pickle's errors and others
        raise EngineError(
            f"model {model.name!r}: {path} does not hold the weights of {model.function!r}: {error}. "
            "Write them with torch.save(module.state_dict(), path)"
        ) from error


# --- TorchScript ------------------------------------------------------------------------------------------------------


def _from_script(
    model: ModelConfig, options: Options, path: str, device: torch.device, precision: Optional[torch.dtype]
) -> Program:
    module = torch.jit.load(path, map_location=device).eval()
    if precision is not None:
        module = module.to(dtype=precision)
    arguments = module.forward.schema.arguments[1:]  # the first is the module
    program = _declared(
        model,
        options,
        module,
        [argument.name for argument in arguments],
        [argument.name for argument in arguments if not argument.has_default_value()],
        [argument.name for argument in arguments if str(argument.type) in NUMBERS],
        _tensors_of(module),
    )
    program.by_chance = CHANCE.search(str(module.inlined_graph)) is not None
    return program


def _declared(
    model: ModelConfig,
    options: Options,
    module: Any,
    names: Sequence[str],
    needed: Sequence[str],
    numbers: Sequence[str],
    tensors: Sequence[torch.Tensor],
) -> Program:
    """A program whose inputs the configuration describes. Those with a default are left to it unless they are named."""
    table = options.table("inputs")
    constants = options.table("constants")
    masked = options.texts_by_name("mask").values()
    said = {*table, *constants, *masked, *model.state, *model.shapes}
    for name in (*table, *model.state):
        if name not in names:
            raise ConfigError(
                f"{options.where('inputs')} or state names {name!r}, which "
                f"{model.function or model.file} does not take{nearest(name, names)}"
            )
    taken = [name for name in names if name in needed or name in said]
    ports = []
    for name in taken:
        if name in constants and name not in table:
            value: NDArray[Any] = np.asarray(constants[name])
            dtype: Any = np.float32 if value.dtype.kind == "f" else value.dtype
            ports.append(Port(name, np.dtype(dtype), value.shape))
        else:
            ports.append(_port(model, options, name, table.get(name, {}), name in masked))
    defaults = [name for name in names if name not in needed]
    return Program(module, ports, options.texts("outputs") or ("output",), defaults, numbers, tensors=tensors)


def _port(model: ModelConfig, options: Options, name: str, entry: Any, is_mask: bool) -> Port:
    where = f"{options.where('inputs')}.{name}"
    if not isinstance(entry, dict) or not set(entry) <= {"dtype", "shape"}:
        raise ConfigError(f'{where} = {entry!r}: expected a table such as {{dtype = "float32", shape = [3, -1, -1]}}')
    try:
        dtype = np.dtype(entry.get("dtype", "float32"))
    except TypeError:
        raise ConfigError(f'{where}.dtype = {entry["dtype"]!r}: expected a type of numpy, such as "int64"') from None
    if dtype.kind not in "fiub":
        raise ConfigError(f"{where}.dtype = {entry['dtype']!r}: torch has no tensors of it")
    shape = entry.get("shape", model.shapes.get(name, (-1,) if is_mask else None))
    if not isinstance(shape, (list, tuple)) or not all(isinstance(dim, int) and dim >= -1 for dim in shape):
        raise ConfigError(
            f"{where}: the lengths of one item are not known; give {where} = {{shape = [3, -1, -1]}} "
            f"(without the batch axis, -1 is any length), or [model.{model.name}] shapes"
        )
    dims: Dims = tuple(None if dim == -1 else dim for dim in shape)
    if not options.boolean("batch_axis", True):
        return Port(name, dtype, dims)
    axis = of_name(options.integers("state_axis", 0, 0, 8), name) if name in model.state else 0
    return Port(name, dtype, (*dims[:axis], None, *dims[axis:]))


# --- torch.export -----------------------------------------------------------------------------------------------------


def _from_export(
    model: ModelConfig, options: Options, path: str, device: torch.device, precision: Optional[torch.dtype]
) -> Program:
    program = torch.export.load(path)
    if precision is not None:
        raise ConfigError(
            f"{options.where('precision')}: an exported program keeps the types it was exported with; "
            "export it in that precision"
        )
    if device.type != "cpu":
        from torch.export.passes import move_to_device_pass

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
        ports.append(_port_of_value(model.name, name, value))
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
        tensors=_tensors_of(program),
        holders=(module, program, program.graph_module),
        by_chance=any(CHANCE.match(str(node.target)) for node in program.graph.nodes),
    )


def _port_of_value(model: str, name: str, value: torch.Tensor) -> Port:
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


# --- for commands -----------------------------------------------------------------------------------------------------


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
        ports.append(_port_of_value(name, name, value) if known else Port(name, np.dtype(np.float32), ()))
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
    """Whether torch sees a CUDA device."""
    return bool(torch.cuda.is_available())


# --- helpers ----------------------------------------------------------------------------------------------------------


def _tensors_of(holder: Any) -> List[torch.Tensor]:
    """Weights, buffers and constants."""
    found: Dict[int, torch.Tensor] = {}
    constants = getattr(holder, "constants", None)
    groups: List[Iterable[Any]] = [holder.parameters(), holder.buffers()]
    if isinstance(constants, dict):
        groups.append(constants.values())
    for group in groups:
        for tensor in group:
            if isinstance(tensor, torch.Tensor):
                found[id(tensor)] = tensor
    return list(found.values())


def storages(tensors: Iterable[torch.Tensor]) -> Set[int]:
    """The addresses of the tensors' storages."""
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def take_out(holder: Any) -> None:
    """Take the tensors out of a module, with its parts, or out of another object; it is not used again."""
    for part in holder.modules() if isinstance(holder, torch.nn.Module) else (holder,):
        tables = [value for value in vars(part).values() if isinstance(value, dict)]
        for table in [vars(part), *tables]:
            for name in [name for name, value in table.items() if isinstance(value, torch.Tensor)]:
                del table[name]
