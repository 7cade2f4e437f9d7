"""The role of each input of a model (given by requests, constant, or recurrent state), by what its file declares.

Pure: names, types and shapes in, a :class:`Roles` out. What is guessed is named in ``notes``, so that the written file
can say so.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from edgeserve.config.limits import NAME_CHARS_MAX
from edgeserve.engines.describe import FileDescription
from edgeserve.engines.options import of_name
from edgeserve.engines.port import Port
from edgeserve.errors import EngineError
from edgeserve.units import counted_axes

Shape = Tuple[int, ...]

SAMPLE_RATE = 16_000
"""The rate that speech models of today are trained for (silero-vad, Whisper, wav2vec2)."""

IMAGE_LENGTHS = (640, 224, 320, 512, 256, 32)
OTHER_LENGTHS = (128, 512, 16_000, 64, 16, 1)
"""Lengths that are tried, in this order, for open axes of images and of anything else."""

GUESS_BYTES_MAX = 64 << 20
"""The most bytes of an input of guessed lengths: 16,000 along each of two axes would be a gigabyte."""

NAME_LENGTH = 64
"""Characters of a file's name that become the app's: it is typed, and a name of the bus has at most 128."""

_STATE_WORDS = re.compile(
    r"(state|hidden|cell|cache|memory|mems|past|prev|\b[hc]_?(\d*|x|t|n|in|last)\b|h_in|c_in)", re.IGNORECASE
)
_BATCH_WITHIN = re.compile(r"batch|^bs?$", re.IGNORECASE)
"""The axis of a batch behind another one, as time is: of one request it has a length of 1."""

_SIDES = frozenset(
    ("in", "out", "input", "output", "new", "next", "prev", "previous", "past", "present", "old", "updated")
    + ("init", "initial", "final", "last", "cur", "current", "n")
)
"""Words of a state's name that say whether it is the one before or the one after."""

WITHOUT_BATCH_AXIS = ("onnx", "torch")
"""Engines that have ``options.batch_axis``."""

_RATE_NAMES = ("sr", "rate", "sample_rate", "sampling_rate", "fs")


@dataclass
class Roles:
    """The roles of a model's inputs. ``given`` are the ones that a request brings, and ``settings`` ones of them
    that have no batch axis beside others with one; ``fixed_batch`` is the size of a batch axis that the file fixes;
    without a ``batch_axis`` the model takes one item as it is. Ports of settings, and without a batch axis all, are
    described here with an axis of 1 in front. ``state_axis`` is one for all states, or one by name. ``candidates`` are
    the shapes of one item to try where axes are open, the likeliest first."""

    description: FileDescription
    given: List[Port] = field(default_factory=list)
    settings: List[str] = field(default_factory=list)
    constants: Dict[str, Any] = field(default_factory=dict)
    state: Dict[str, str] = field(default_factory=dict)
    state_axis: Union[int, Dict[str, int]] = 0
    fixed_batch: Optional[int] = None
    batch_axis: bool = True
    candidates: List[Dict[str, Shape]] = field(default_factory=list)
    shapes_given: bool = False
    notes: List[str] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """True if an axis besides the batch has no length, by the file and by the user."""
        return not self.shapes_given and any(None in port.dims[1:] for port in self.given)

    def item_dims(self, port: Port) -> Tuple[Optional[int], ...]:
        """The axes of one item: without the batch's."""
        axis = self._batch_axis_of(port)
        return (*port.dims[:axis], *port.dims[axis + 1 :])

    def item_axes(self, port: Port) -> Tuple[str, ...]:
        """The names of the axes of one item, ``""`` for those without."""
        axis, names = self._batch_axis_of(port), port.axes or ("",) * len(port.dims)
        return (*names[:axis], *names[axis + 1 :])

    def _batch_axis_of(self, port: Port) -> int:
        return of_name(self.state_axis, port.name) if port.name in self.state else 0


class NoBatchAxis(EngineError):
    """The inputs that a file declares have no batch axis in front."""


def roles_of(description: FileDescription, shapes: Mapping[str, Shape], path: str, batch_axis: bool = True) -> Roles:
    """The role of each input, the first axis being a batch or not. :class:`NoBatchAxis` where it cannot be one,
    :class:`EngineError` where lengths must be given."""
    if not batch_axis:
        description = _with_batch_of_one(description, path)
    roles = Roles(description, batch_axis=batch_axis, notes=list(description.notes))
    if description.engine == "lm":
        return roles
    _check_names(description, path)
    inputs = list(description.inputs)
    if description.opaque:
        inputs = _declared(inputs, shapes, path)
    for port in inputs:
        if _is_rate(port) or (not port.dims and description.engine != "onnx"):
            roles.constants[port.name] = _constant(port, roles.notes)
    inputs = [port for port in inputs if port.name not in roles.constants]
    roles.state = _states([port for port in inputs if port.dims], description.outputs)
    given = [port for port in inputs if port.name not in roles.state]
    roles.settings = _settings(given, description)
    odd = [port for port in given if port.name in roles.settings and None in port.dims]
    if odd and batch_axis:
        raise NoBatchAxis(f"{path}: {odd[0].name} {_dims(odd[0].dims)} has no batch axis, and a length of each request")
    batched = [port for port in given if port.name not in roles.settings]
    if not batched:
        shown = ", ".join(f"{port.name} {_dims(port.dims)}" for port in description.inputs)
        raise NoBatchAxis(
            f"{path}: none of its inputs ({shown or 'there is none'}) "
            "can be brought by a request; it needs one with a batch axis that is no recurrent state"
        )
    roles.given = [port.batch_of_one() if port.name in roles.settings else port for port in given]
    roles.fixed_batch = _fixed_batch(batched, description, path)
    states = [port for port in inputs if port.name in roles.state]
    axes = {port.name: _state_axis(port, batched, roles.fixed_batch, path) for port in states}
    several = len({*axes.values()}) > 1
    roles.state_axis = axes if several else max([0, *axes.values()])
    if roles.settings:
        if (roles.fixed_batch or 1) > 1:
            raise NoBatchAxis(f"{path}: {', '.join(roles.settings)} beside a fixed batch of {roles.fixed_batch}")
        roles.fixed_batch = 1
        roles.notes.append(_about_settings([port for port in given if port.name in roles.settings]))
    elif any(None not in port.dims for port in states):
        roles.fixed_batch = roles.fixed_batch or 1
    _find_lengths(roles, states, shapes, path)
    return roles


def _settings(given: Sequence[Port], description: FileDescription) -> List[str]:
    """Inputs without a batch axis beside others that have one: single numbers, and those with a fixed length above 1 in
    front where others are open there, or have a 1."""
    if description.engine != "onnx":
        return []
    firsts = {port.dims[0] for port in given if port.dims}
    outputs = {port.dims[0] for port in description.outputs if port.dims}
    is_batch = None in firsts or (1 in firsts and outputs <= {1, None})
    return [port.name for port in given if not port.dims or (is_batch and (port.dims[0] or 0) > 1)]


def _about_settings(ports: Sequence[Port]) -> str:
    shown = ", ".join(f"{port.name} {_dims(port.dims)}" for port in ports)
    return (
        f"{shown}: no batch axis, so each request brings {'them' if len(ports) > 1 else 'it'} and runs alone; what is "
        "the same for all requests is better a constant (options.constants), and larger batches are possible then"
    )


def _check_names(description: FileDescription, path: str) -> None:
    """Every name must be one that a request may bring, or an answer."""
    for port in (*description.inputs, *description.outputs):
        if not 0 < len(port.name) <= NAME_CHARS_MAX:
            raise EngineError(
                f"{path}: the name {port.name[:40]!r}... has {len(port.name)} characters, expected 1 to "
                f"{NAME_CHARS_MAX}; export the model with a shorter name for it"
            )


def _with_batch_of_one(description: FileDescription, path: str) -> FileDescription:
    """The same with a batch axis of 1 in front, which the engine takes off again; a sample rate stays a constant."""
    if description.engine not in WITHOUT_BATCH_AXIS or description.opaque:
        raise EngineError(
            f"{path}: only ONNX files and programs of torch.export are served without a batch axis; export it with "
            "one, of length 1"
        )
    return description._replace(
        inputs=tuple(port if _is_rate(port) else port.batch_of_one() for port in description.inputs),
        outputs=tuple(port.batch_of_one() if port.dims else port for port in description.outputs),
    )


def _declared(inputs: Sequence[Port], shapes: Mapping[str, Shape], path: str) -> List[Port]:
    """The inputs of a file that does not say their shapes (TorchScript), by what the user says."""
    lacking = [port.name for port in inputs if port.name not in shapes]
    if lacking:
        raise EngineError(
            f"{path}: TorchScript does not say the shapes of its inputs; give those of one item, without "
            f"the batch axis, such as: {' '.join(f'--shape {name}=3,224,224' for name in lacking)}; or "
            "export the module with torch.export.save to a .pt2 file, which says them"
        )
    return [Port(port.name, port.dtype, (None, *shapes[port.name])) for port in inputs]


def _is_rate(port: Port) -> bool:
    return port.name.lower() in _RATE_NAMES and all(dim == 1 for dim in port.dims)


def _constant(port: Port, notes: List[str]) -> Any:
    kind = np.dtype(port.dtype).kind
    if _is_rate(port):
        notes.append(
            f"{port.name} is taken for the sample rate: {SAMPLE_RATE} Hz is written, correct it where the "
            "model expects another"
        )
        return float(SAMPLE_RATE) if kind == "f" else SAMPLE_RATE
    value: Any = {"f": 0.0, "b": False}.get(kind, 0)
    notes.append(
        f"{port.name} is a single {np.dtype(port.dtype)}, the same for every request: {value} is written; correct it"
    )
    return value


def _states(inputs: Sequence[Port], outputs: Sequence[Port]) -> Dict[str, str]:
    """Recurrent states: inputs that an output of the same type, shape and name replaces. An input that is the only one
    brings the request."""
    found: Dict[str, str] = {}
    for port in inputs:
        if not _STATE_WORDS.search(port.name) or _is_one_of_two(port, inputs):
            continue
        fitting = [
            output
            for output in outputs
            if output.name not in found.values()
            and output.dtype == port.dtype
            and _may_be_equal(output.dims, port.dims)
            and _are_alike(port.name, output.name)
        ]
        best = max(
            fitting,
            key=lambda output, name=port.name: _likeness(name, output.name),  # type: ignore[misc]
            default=None,
        )
        if best is not None:
            found[port.name] = best.name
    for port in inputs if found else ():  # beside states a position or a count is known by its name alone
        if port.name not in found and np.dtype(port.dtype).kind in "iu":
            after = {f"{side}{mark}{port.name}" for side in ("new", "next", "updated") for mark in ("_", ".", "")}
            for output in outputs:
                if output.name in after and output.dtype == port.dtype and _may_be_equal(output.dims, port.dims):
                    found[port.name] = output.name
    return found if len(found) < len(inputs) else {}


def _is_one_of_two(port: Port, inputs: Sequence[Port]) -> bool:
    """True if another input has the same words, as the frames before and after one that is made."""
    return any(other is not port and _words(other.name) == _words(port.name) for other in inputs)


def _are_alike(name: str, output: str) -> bool:
    """True if two names are of one state before and after: one begins with the other, or they have the same words,
    those aside that say which of the two it is."""
    bare, other = _bare(name), _bare(output)
    one, two = _words(name), _words(output)
    return bool(bare and other and (bare.startswith(other) or other.startswith(bare))) or bool(one and one == two)


def _words(name: str) -> List[str]:
    words = re.findall(r"[a-z]+|\d+", re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name).lower())
    return [word for word in words if word not in _SIDES]


def _may_be_equal(one: Sequence[Optional[int]], other: Sequence[Optional[int]]) -> bool:
    return len(one) == len(other) and all(None in (a, b) or a == b for a, b in zip(one, other))


def _likeness(name: str, output: str) -> Tuple[int, int]:
    """The number of characters that two names begin with, stripped of in, out, new and next; the rest decides ties."""
    return len(os.path.commonprefix([_bare(name), _bare(output)])), -abs(len(name) - len(output))


def _bare(name: str) -> str:
    return re.sub(r"(in|out|new|next|prev|past|present|_|\.|n$)", "", name.lower())


def _fixed_batch(given: Sequence[Port], description: FileDescription, path: str) -> Optional[int]:
    sizes = {port.dims[0] for port in given}
    fixed = sizes - {None}
    if not fixed:
        return None
    outputs = {port.dims[0] for port in description.outputs if port.dims} - {None}
    size = min(length for length in fixed if length is not None)
    if len(fixed) > 1 or (size > 1 and outputs and outputs != {size}):
        shown = "; ".join(f"{port.name} {_dims(port.dims)}" for port in given)
        raise NoBatchAxis(
            f"{path}: its inputs have no batch axis in front ({shown}), and it cannot be served without one. "
            "Export it with a leading axis for the batch, even of length 1"
        )
    return size


def _state_axis(state: Port, given: Sequence[Port], fixed: Optional[int], path: str) -> int:
    """The batch axis of a state: the one with the name of the batch, else the first open one, else the first of the
    batch's length. :class:`NoBatchAxis` where there is none."""
    names = {_first_axis(port) for port in given} - {""}
    named = [axis for axis, name in enumerate(state.axes) if name in names and state.dims[axis] is None]
    lengths = [axis for axis, dim in enumerate(state.dims) if dim == (fixed or 1)]
    opens = [axis for axis, dim in enumerate(state.dims) if dim is None]
    for axes in (named, opens, lengths) if fixed is None else (lengths, named, opens):
        if axes:
            return axes[0]
    raise NoBatchAxis(f"{path}: its recurrent state {state.name} {_dims(state.dims)} has no batch axis")


def _find_lengths(roles: Roles, states: Sequence[Port], shapes: Mapping[str, Shape], path: str) -> None:
    """Find the shapes of one item to try: what was given, what the metadata says, else usual lengths."""
    known: Dict[str, Shape] = {}
    ports = [*roles.given, *states]
    for port in ports:
        lengths = shapes.get(port.name, roles.description.usual.get(port.name))
        if port.name in shapes:
            _check_given(port.name, shapes[port.name], roles.item_dims(port), path)
        if lengths is not None:
            known[port.name] = lengths
    roles.shapes_given = all(port.name in shapes for port in roles.given if None in port.dims[1:])
    open_ports = [port for port in ports if port.name not in known and None in roles.item_dims(port)]
    if not open_ports:
        roles.candidates = [known]
        return
    images = any(is_image(port) for port in open_ports)
    for length in IMAGE_LENGTHS if images else OTHER_LENGTHS:
        guess = dict(known)
        for port in open_ports:
            guess[port.name] = tuple(
                _length(port, index, dim, name, length)
                for index, (dim, name) in enumerate(zip(roles.item_dims(port), roles.item_axes(port)))
            )
        if all(_size_bytes(port, guess[port.name]) <= GUESS_BYTES_MAX for port in open_ports):
            roles.candidates.append(guess)


def _size_bytes(port: Port, shape: Shape) -> int:
    return math.prod(shape) * np.dtype(port.dtype).itemsize


def _length(port: Port, index: int, dim: Optional[int], name: str, length: int) -> int:
    if dim is not None:
        return dim
    if _BATCH_WITHIN.search(name):
        return 1
    return 3 if is_image(port) and index == 0 and port.dims[-1] is None else length


def is_image(port: Port) -> bool:
    """True if an input looks like an image: four axes, with one or three or four channels, or all of them open."""
    dims = port.dims
    return (
        len(dims) == 4
        and np.dtype(port.dtype).kind in "fu"
        and (dims[1] in (1, 3, 4) or dims[3] in (1, 3, 4) or dims[1] is None)
    )


def _check_given(name: str, shape: Shape, dims: Sequence[Optional[int]], path: str) -> None:
    if len(shape) != len(dims):
        raise EngineError(
            f"{path}: --shape {name}={','.join(map(str, shape))} has {counted_axes(len(shape))}; the "
            f"input has {len(dims)} per item, {_dims(dims)} without the batch axis"
        )
    if not _may_be_equal(shape, dims):
        raise EngineError(
            f"{path}: --shape {name}={','.join(map(str, shape))} does not fit the input, which is "
            f"{_dims(dims)} per item"
        )


def _first_axis(port: Port) -> str:
    """The name that the file gives to a port's first axis, ``""`` where there is none."""
    return port.axes[0] if port.axes else ""


def _dims(dims: Sequence[Optional[int]]) -> str:
    return "[" + ", ".join("any" if dim is None else str(dim) for dim in dims) + "]"


def model_names(paths: Sequence[str]) -> List[str]:
    """A name per file, as a bare key of TOML: the file's own, made unique."""
    names: List[str] = []
    for path in paths:
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", os.path.splitext(os.path.basename(path))[0])[:NAME_LENGTH].strip("-")
        name = name or "model"
        unique, number = name, 2
        while unique in names:
            unique, number = f"{name}-{number}", number + 1
        names.append(unique)
    return names
