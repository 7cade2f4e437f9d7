"""Recurrent states of streams: from one run's outputs to the inputs of the next."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.config.schema import ModelConfig
from edgeserve.engines.collate import Shape, dims_text
from edgeserve.engines.port import Port
from edgeserve.errors import EngineError, StateLost


class GrowingState(EngineError):
    """A model's new state has another shape than the one that it replaces."""


class States:
    """The recurrent states of a model: inputs that get what an output returned for the same stream. ``outputs`` are the
    outputs' names by those of the inputs, ``axes`` the batch axes. Never changes after it was made."""

    def __init__(
        self,
        where: str,
        model: ModelConfig,
        axes: Mapping[str, int],
        ports: Mapping[str, Port],
    ) -> None:
        self._where = where
        self._model = model
        self.outputs = dict(model.state)
        self.axes = axes
        self.output_axes = {output: axes[name] for name, output in self.outputs.items()}
        self._ports = [ports[name] for name in self.outputs]
        self._shapes = {port.name: self._shape(port) for port in self._ports}

    def size_bytes(self) -> int:
        """Bytes of one item's state."""
        return sum(
            int(np.prod(self._shapes[port.name], dtype=np.int64)) * np.dtype(port.dtype).itemsize
            for port in self._ports
        )

    def packed(self, states: Sequence[Any], size: int) -> Dict[str, NDArray[Any]]:
        """The state inputs of a batch of ``size``."""
        return {port.name: self._packed(port, states, size) for port in self._ports}

    def check(self, state: Any, index: int) -> None:
        """Raise :class:`StateLost` for a state that this model did not return."""
        for name, shape in self._shapes.items() if state is not None else ():
            own = state.get(name) if isinstance(state, dict) else None
            if getattr(own, "shape", None) != shape:
                raise StateLost(
                    f"{self._where}: the state of item {index} is not one that this model returned "
                    f"({name!r} of shape {list(shape)} was expected); the stream begins anew with its next request"
                )

    def new(self, arrays: Mapping[str, NDArray[Any]], index: int) -> Dict[str, NDArray[Any]]:
        """The state of an item for the next of its stream. Raises :class:`StateLost` where nothing can go on from it,
        :class:`GrowingState` where nothing could from any item's."""
        state = {}
        for name, output in self.outputs.items():
            # Copied, so that a stream keeps its own state alive and not the whole batch's.
            part = state[name] = np.array(arrays[output].take(index, axis=self.axes[name]), copy=True)
            if part.shape != self._shapes[name]:
                raise GrowingState(
                    f"{self._where}: the new state {output!r} has the shape {list(part.shape)} per item, and {name!r}, "
                    f"which it replaces, {list(self._shapes[name])}: a state that grows cannot be kept for ever. "
                    "Export the model with a state of one length, such as a window of the latest steps"
                )
            if part.dtype.kind == "f" and not np.isfinite(part).all():
                raise StateLost(
                    f"{self._where}: the new state {output!r} holds {_strange(part)}, and all that follows would be "
                    "made of it; the stream begins anew with its next request. Are the inputs what the model expects?"
                )
        return state

    def _packed(self, port: Port, states: Sequence[Any], size: int) -> NDArray[Any]:
        shape, axis = self._shapes[port.name], self.axes[port.name]
        packed: NDArray[Any] = np.zeros((*shape[:axis], size, *shape[axis:]), dtype=port.dtype)
        for index, state in enumerate(states):
            if state is not None:  # the start of a stream: zeros
                place: Tuple[Any, ...] = (*(slice(None),) * axis, index)
                packed[place] = state[port.name]
        return packed

    def _shape(self, port: Port) -> Shape:
        """Per item: without the batch axis."""
        axis = self.axes[port.name]
        if len(port.dims) <= axis:
            raise EngineError(
                f"{self._where}: options.state_axis = {axis}, but state {port.name!r} has the shape "
                f"{dims_text(port.dims)}"
            )
        dims = port.dims[:axis] + port.dims[axis + 1 :]
        given = self._model.shapes.get(port.name, dims)
        if len(given) != len(dims) or None in given:
            raise EngineError(
                f"{self._where}: state {port.name!r} has the shape {dims_text(dims)} per item; give its "
                f"lengths in [model.{self._model.name}] shapes = {{{port.name} = [...]}}"
            )
        return tuple(int(dim) for dim in given if dim is not None)


def _strange(array: NDArray[Any]) -> str:
    """The values of an array that are no finite numbers, as text."""
    return "NaN" if np.isnan(array).any() else "infinite numbers"
