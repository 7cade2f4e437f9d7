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

import copy
import inspect
import re
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np
import torch
from numpy.typing import NDArray

from edgeserve.config.model_files import model_path
from edgeserve.config.schema import ModelConfig
from edgeserve.engines.functions import import_function
from edgeserve.engines.options import Options, of_name
from edgeserve.engines.port import Port
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


# --- a module ---------------------------------------------------------------------------------------------------------


def from_module(
    model: ModelConfig, options: Options, directory: str, device: torch.device, precision: Optional[torch.dtype]
) -> Program:
    """The network of ``function``, with its weights."""
    where = f"[model.{model.name}] function"
    made: Any = import_function(model.function, directory, where)
    if isinstance(made, torch.nn.Module):
        made = _own(made, where, bool(model.file))
    else:
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
        tensors_of(made),
    )


def _own(module: torch.nn.Module, where: str, loads: bool) -> torch.nn.Module:
    """A module of this model alone: others may be made of the same one, of other files or in another precision. It
    shares the tensors unless it ``loads`` others into them."""
    memo: Dict[int, Any] = {}
    for tensor in () if loads else [*module.parameters(), *module.buffers()]:
        is_weight = isinstance(tensor, torch.nn.Parameter)
        memo[id(tensor)] = torch.nn.Parameter(tensor.detach(), False) if is_weight else tensor.detach()
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:  # what a user's module holds may raise anything
        raise EngineError(
            f"{where} is a module that cannot be copied ({type(error).__name__}: {error}); name its class, or a "
            "function that makes it"
        ) from error


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


def from_script(
    model: ModelConfig, options: Options, path: str, device: torch.device, precision: Optional[torch.dtype]
) -> Program:
    """The network of a file of TorchScript."""
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
        tensors_of(module),
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


# --- helpers ----------------------------------------------------------------------------------------------------------


def tensors_of(holder: Any) -> List[torch.Tensor]:
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
