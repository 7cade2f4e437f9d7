"""From what a model's file declares to what each input means: given by requests, constant, or recurrent state.

Pure: names, types and shapes in, a :class:`Roles` out. What is guessed is named in ``notes``, so that the written file
can say so.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from edgeserve.config.limits import NAME_CHARS_MAX
from edgeserve.engines.describe import FileDescription
from edgeserve.engines.ports import Port
from edgeserve.errors import EngineError
from edgeserve.units import counted_axes

Shape = Tuple[int, ...]

SAMPLE_RATE = 16_000
"""What speech models of today are trained for (silero-vad, Whisper, wav2vec2)."""

IMAGE_LENGTHS = (640, 224, 320, 512, 256, 32)
OTHER_LENGTHS = (128, 512, 16_000, 64, 16, 1)
"""Lengths that are tried, in this order, for open axes of images and of anything else."""

NAME_LENGTH = 64
"""Characters of a file's name that become the app's: it is typed, and a name of the bus has at most 128."""

_STATE_WORDS = re.compile(
    r"(state|hidden|cell|cache|memory|mems|past|prev|\bh0?\b|\bc0?\b|\bhx\b|\bcx\b|h_in|c_in)", re.IGNORECASE
)
WITHOUT_BATCH_AXIS = ("onnx", "torch")
"""Engines that have ``options.batch_axis``."""

_RATE_NAMES = ("sr", "rate", "sample_rate", "sampling_rate", "fs")


@dataclass
class Roles:
    """What a model's inputs are. ``given`` are those that a request brings; ``fixed_batch`` is the size of a batch axis
    that the file fixes; without a ``batch_axis`` the model takes one item as it is, and the ports described here have
    an axis of 1 in front; ``candidates`` are the shapes of one item to try where axes are open, the likeliest first."""

    description: FileDescription
    given: List[Port] = field(default_factory=list)
    constants: Dict[str, Any] = field(default_factory=dict)
    state: Dict[str, str] = field(default_factory=dict)
    state_axis: int = 0
    fixed_batch: Optional[int] = None
    batch_axis: bool = True
    candidates: List[Dict[str, Shape]] = field(default_factory=list)
    shapes_given: bool = False
    notes: List[str] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """Whether an axis besides the batch has no length, by the file and by the user."""
        return not self.shapes_given and any(None in port.dims[1:] for port in self.given)


class NoBatchAxis(EngineError):
    """The inputs that a file declares have no batch axis in front."""


def roles_of(description: FileDescription, shapes: Mapping[str, Shape], path: str, batch_axis: bool = True) -> Roles:
    """What each input is, the first axis being a batch or not. :class:`NoBatchAxis` where it cannot be one,
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
        if not port.dims:
            roles.constants[port.name] = _constant(port, roles.notes)
    roles.state = _states([port for port in inputs if port.dims], description.outputs)
    roles.given = [port for port in inputs if port.dims and port.name not in roles.state]
    if not roles.given:
        raise NoBatchAxis(
            f"{path}: none of its inputs ({', '.join(port.name for port in inputs) or 'there is none'}) "
            "can be brought by a request; it needs one with a batch axis that is no recurrent state"
        )
    roles.fixed_batch = _fixed_batch(roles.given, description, path)
    if roles.state:
        states = [port for port in inputs if port.name in roles.state]
        roles.state_axis = _state_axis(states, roles.fixed_batch)
    _find_lengths(roles, [port for port in inputs if port.name in roles.state], shapes, path)
    return roles


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
        inputs=tuple(
            port if not port.dims and port.name.lower() in _RATE_NAMES else port.batch_of_one()
            for port in description.inputs
        ),
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


def _constant(port: Port, notes: List[str]) -> Any:
    kind = np.dtype(port.dtype).kind
    if port.name.lower() in _RATE_NAMES:
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
    """Recurrent states: inputs that an output of the same type and shape replaces, by their names. An input that is the
    only one brings the request."""
    found: Dict[str, str] = {}
    for port in inputs:
        if not _STATE_WORDS.search(port.name):
            continue
        fitting = [
            output
            for output in outputs
            if output.name not in found.values()
            and output.dtype == port.dtype
            and _may_be_equal(output.dims, port.dims)
        ]
        best = max(
            fitting,
            key=lambda output, name=port.name: _likeness(name, output.name),  # type: ignore[misc]
            default=None,
        )
        if best is not None:
            found[port.name] = best.name
    return found if len(found) < len(inputs) else {}


def _may_be_equal(one: Sequence[Optional[int]], other: Sequence[Optional[int]]) -> bool:
    return len(one) == len(other) and all(None in (a, b) or a == b for a, b in zip(one, other))


def _likeness(name: str, output: str) -> Tuple[int, int]:
    """How many characters two names begin with, stripped of in, out, new and next; the rest decides ties."""
    bare = [re.sub(r"(in|out|new|next|prev|past|present|_|\.|n$)", "", text.lower()) for text in (name, output)]
    return len(os.path.commonprefix(bare)), -abs(len(name) - len(output))


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


def _state_axis(states: Sequence[Port], fixed: Optional[int]) -> int:
    """The batch axis of the states: the first open one, else the first of the batch's length."""
    dims = states[0].dims
    wanted = None if None in dims else (fixed if fixed is not None else 1)
    return dims.index(wanted) if wanted in dims else 0


def _find_lengths(roles: Roles, states: Sequence[Port], shapes: Mapping[str, Shape], path: str) -> None:
    """The shapes of one item to try: what was given, what the metadata says, else usual lengths."""
    known: Dict[str, Shape] = {}
    for port in [*roles.given, *states]:
        axis = roles.state_axis if port.name in roles.state else 0
        dims = (*port.dims[:axis], *port.dims[axis + 1 :])
        lengths = shapes.get(port.name, roles.description.usual.get(port.name))
        if port.name in shapes:
            _check_given(port.name, shapes[port.name], dims, path)
        if lengths is not None:
            known[port.name] = lengths
    roles.shapes_given = all(port.name in shapes for port in roles.given if None in port.dims[1:])
    open_ports = [
        port
        for port in [*roles.given, *states]
        if port.name not in known
        and None
        in (
            port.dims[1:]
            if port.name not in roles.state
            else (*port.dims[: roles.state_axis], *port.dims[roles.state_axis + 1 :])
        )
    ]
    if not open_ports:
        roles.candidates = [known]
        return
    images = any(is_image(port) for port in open_ports)
    for length in IMAGE_LENGTHS if images else OTHER_LENGTHS:
        guess = dict(known)
        for port in open_ports:
            axis = roles.state_axis if port.name in roles.state else 0
            guess[port.name] = tuple(
                _length(port, index, dim, length) for index, dim in enumerate(port.dims) if index != axis
            )
        roles.candidates.append(guess)


def _length(port: Port, index: int, dim: Optional[int], length: int) -> int:
    if dim is not None:
        return dim
    return 3 if is_image(port) and index == 1 and port.dims[-1] is None else length


def is_image(port: Port) -> bool:
    """Whether an input looks like an image: four axes, with one or three or four channels, or all of them open."""
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
