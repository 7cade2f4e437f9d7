"""The roles of the inputs and outputs of a tensor model: batched, constant, mask or recurrent state; and, from that,
the way from a batch of items to the model's arrays and back. Knows shapes and dtypes, no runtime; every tensor engine
(ONNX Runtime, TensorRT) can use it.

From the configuration: ``shapes`` (per item, for the example), ``pad`` (inputs padded to a common shape), ``state``
(state input -> the output that replaces it); and these options:

``constants = {sr = 16000}`` inputs that are the same for every item; ``state_axis`` the batch axis of states, one for
all or ``{h = 1, c = 0}``;
``mask = {x = "x_mask"}`` a mask input to fill for a padded one; ``pad_multiple = {x = [1, 1, 32]}`` rounds padded
shapes up (:mod:`edgeserve.engines.rounding`); ``pad_batch = false`` runs the items alone instead of padding to the
batch size; ``crop_outputs = {y = {axis = 0, like = "x", of = 2}}`` cuts output ``y`` to an item's share: as much of its
axis 0 as the item fills of
axis 2 of the padded input ``x``.

``batch_axis = false`` (where the engine takes it): the model has no batch axis, and runs one item as it is. By itself
where the file fixes the batch of the inputs at 1 and an output does not have it. ``settings = ["scales"]`` (likewise):
inputs without a batch axis beside others that have one; each request brings them, so it runs alone.

``hints = {"NODE.label" = "y:argmax", "NODE.margin" = "y:margin", difficulty = "z"}`` tells the scheduler a number of
each item's outputs: the single value of ``z``, the place of the largest value of ``y``, the distance of its two
largest.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.config.schema import ModelConfig
from edgeserve.engines.axis_names import batch_elsewhere, length_of_another, name_of_another
from edgeserve.engines.base import Batch, OutputType, Result, RowFacts, Values, own_failure, with_failures
from edgeserve.engines.collate import Room, Shape, Slot, common_shape, dims_text, fit, mask, odd_shapes, stack
from edgeserve.engines.constants import cast_exactly, constant_of
from edgeserve.engines.crops import cropped, read_crops
from edgeserve.engines.example_item import example_item
from edgeserve.engines.misfits import misfits_of
from edgeserve.engines.options import Options, of_name
from edgeserve.engines.output_hints import hints_of, read_hints
from edgeserve.engines.port import Port
from edgeserve.engines.rounding import beyond, check_roundings, rounding
from edgeserve.engines.states import States
from edgeserve.errors import EngineError, StateLost, WrongInput, WrongRows, nearest, sent_instead
from edgeserve.units import counted

PORT_OPTIONS = ("constants", "state_axis", "mask", "pad_multiple", "pad_batch", "crop_outputs", "hints")


HALF_ROUNDING = 0.03
"""The ``rounding`` of :class:`RowFacts` where numbers may have 10 bits: float16, bfloat16, and TF32, with which a GPU
computes float32 unless it is told otherwise."""

WORK_PER_INPUT_BYTE = 32
"""Estimated working memory per byte of the largest batch's inputs, until a profile has measured it: between 12 and 41
for the reader demo's three convolutional networks (docs/guide/profiling.md)."""

NUMBERS_MAX = 63
"""The ``numbers_max`` of :class:`RowFacts`: places that most tables have."""

Shapes = Dict[str, Tuple[List[Shape], Shape]]
"""Padded input -> (the items' own shapes, the common shape)."""


class PackedBatch(NamedTuple):
    """A batch as the model takes it: ``feeds`` hold the items that can run (``rows`` of them; without any there are no
    feeds) and fill up the batch to ``size`` rows; ``failed`` has the errors of the others, by their places in the
    batch."""

    feeds: Dict[str, NDArray[Any]]
    shapes: Shapes
    rows: int
    size: int
    failed: Mapping[int, EngineError]


class Ports:
    """The roles of a model's inputs and outputs. Never changes after it was made, so any thread may use it.

    Making it checks the configuration against the model; every mismatch is an :class:`EngineError` with the mend.
    ``names`` are the outputs that :meth:`unpack` takes, in their order.
    """

    def __init__(
        self,
        model: ModelConfig,
        options: Options,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        most: Mapping[str, Shape] = {},
    ) -> None:
        """``most``: the longest shapes of items that the model takes, where it says so."""
        self._model = model
        self._where = f"model {model.name!r}"
        self.names = [port.name for port in outputs]
        self._states = dict(model.state)
        state_axis = options.integers("state_axis", 0, 0, 8)
        self._state_axes = {name: of_name(state_axis, name) for name in self._states}
        self._pad_batch = options.boolean("pad_batch", True)
        self._masks = options.texts_by_name("mask")
        constants = options.table("constants")
        self._settings = frozenset(options.texts("settings"))
        inputs, outputs = self._with_batch_axis(inputs, outputs, options, state_axis)
        self._declared = list(outputs)
        by_name = {port.name: port for port in inputs}
        roundings = options.lists_by_name("pad_multiple", rounding)
        for what, names in (
            ("pad", model.pad),
            ("state", model.state),
            ("options.state_axis", state_axis if isinstance(state_axis, dict) else ()),
            ("options.constants", constants),
            ("options.settings", self._settings),
            ("options.mask", [*self._masks, *self._masks.values()]),
            ("options.pad_multiple", roundings),
            ("shapes", model.shapes),
        ):
            self._known(what, names, by_name, "input")
        self._known("state", self._states.values(), self.names, "output")
        if isinstance(state_axis, dict):
            self._known("options.state_axis", state_axis, self._states, "recurrent state")
        self._constants = {name: constant_of(self._where, by_name[name], value) for name, value in constants.items()}
        answered = [name for name in self.names if name not in self._states.values()]
        self._crops = read_crops(self._where, options.table("crop_outputs"), self._known, answered, model.pad)
        self._hints = read_hints(self._where, options.table("hints"))
        for hint in self._hints:
            self._known(f"options.hints.{hint.hint}", [hint.output], self.names, "output")
        given = {*self._constants, *self._states, *self._masks.values()}
        self._given = {
            name: why
            for why, names in (
                ("options.constants", self._constants),
                ("state", self._states),
                ("options.mask", self._masks.values()),
            )
            for name in names
        }
        batched = [port for port in inputs if port.name not in given]
        self._kept = States(self._where, model, self._state_axes, by_name)
        self._mask_ports = {name: by_name[masked] for name, masked in self._masks.items()}
        self._fixed_size = self._check_batch(batched)
        self._slots = [
            Slot(
                port.name,
                port.dtype,
                port.dims[1:],
                model.pad.get(port.name),
                roundings.get(port.name, ()),
                self._where,
                most.get(port.name, ()),
            )
            for port in batched
        ]
        for slot in self._slots:
            self._check_pad(slot)
        check_roundings(self._where, roundings, model.pad, {slot.name: len(slot.dims) for slot in self._slots})

    def outputs(self) -> Dict[str, OutputType]:
        """The types of an item's outputs: the model's without the batch axis, recurrent states left out."""
        states, found = set(self._states.values()), {}
        for port in self._declared:
            if port.name in states or not port.dims:
                continue
            shape = [-1 if dim is None else dim for dim in port.dims[1:]]
            for cut in self._crops.get(port.name, ()):
                shape[cut.axis : cut.axis + 1] = [-1] if cut.axis < len(shape) else []
            kind = "text" if np.dtype(port.dtype).kind == "O" else str(port.dtype)
            found[port.name] = OutputType(kind, tuple(shape))
        return found

    def misfits(self, declared: Mapping[str, Optional[OutputType]]) -> List[str]:
        """The reason why no item that is as an app declares it can run (:mod:`edgeserve.engines.misfits`)."""
        return misfits_of(self._slots, declared, self._value)

    def rows(self, device_kind: str) -> RowFacts:
        """The facts on rows for an engine on such a device. Inputs that are padded and have no open axis are filled up
        along the last."""
        open_axes = {
            slot.name: tuple(axis for axis, dim in enumerate(slot.dims) if dim is None) or (len(slot.dims) - 1,)
            for slot in self._slots
            if slot.pad is not None and slot.dims
        }
        longer = {
            slot.name: beyond(self._example_shape(slot), slot.rounding, slot.most)
            for slot in self._slots
            if slot.rounding and (slot.name in self._model.shapes or None not in slot.dims)
        }
        facts = RowFacts(lacking=self._lacking if self._batch_axis else "", open_axes=open_axes, longer=longer)
        on_cpu = device_kind == "cpu"  # a GPU is lost to a place beyond a table
        return facts._replace(numbers_max=NUMBERS_MAX) if on_cpu else facts._replace(rounding=HALF_ROUNDING)

    @property
    def smallest(self) -> int:
        """The smallest batch size that the model is configured for."""
        return self._model.batch[0]

    @property
    def is_doubtful(self) -> bool:
        """True if a run must tell if the outputs have the batch of 1 that the file fixes for the inputs."""
        return self._batch_axis and self._may_lack

    # --- a batch, there and back ---

    @property
    def where(self) -> str:
        """The model's name in messages."""
        return self._where

    def dtype_of(self, name: str) -> Any:
        """The type of an input that items bring; ``None`` of another."""
        return next((slot.dtype for slot in self._slots if slot.name == name), None)

    def is_padded(self, name: str) -> bool:
        """True if an input's items are filled up to one shape, or it is none that items bring."""
        return all(slot.name != name or slot.pad is not None for slot in self._slots)

    def pack(self, batch: Batch, room: Optional[Room] = None) -> PackedBatch:
        """The model's input arrays for those items of ``batch`` that fit it, and what :meth:`unpack` needs. Inputs that
        items bring are packed into ``room``, where there is one."""
        if not 1 <= len(batch.items) <= batch.size:
            raise EngineError(
                f"{self._where}: a batch of size {batch.size} has {len(batch.items)} items; "
                "expected at least one and no more than its size"
            )
        try:
            return self._packed(batch, {}, room)  # nearly always: all at once costs half as much as one by one
        except BaseException:  # any error that an item's values raise
            failed = self._wrong_items(batch)
            if not failed:
                raise
        rest = batch.without(failed)
        return self._packed(rest, failed, room) if rest.items else PackedBatch({}, {}, 0, 0, failed)

    def _packed(self, batch: Batch, failed: Mapping[int, EngineError], room: Optional[Room]) -> PackedBatch:
        count = len(batch.items)
        size = batch.size if self._pad_batch else count
        if self._fixed_size is not None:
            if size > self._fixed_size:
                raise EngineError(
                    f"{self._where}: batch of {size}, but the model's batch axis is fixed at "
                    f"{self._fixed_size}; {self._batch_mend()}"
                )
            size = self._fixed_size
        for item in batch.items if self._given else ():
            self._refuse_given(item)
        for index, state in enumerate(batch.states if self._states else ()):
            self._kept.check(state, index)
        feeds = dict(self._constants)
        shapes: Shapes = {}
        for slot in self._slots:
            arrays = [fit(slot, self._value(slot.name, item)) for item in batch.items]
            own = [array.shape for array in arrays]
            common = common_shape(slot, own, batch.exact)
            feeds[slot.name] = stack(slot, arrays, common, size, room)
            shapes[slot.name] = (own, common)
        for name, port in self._mask_ports.items():
            own, common = shapes[name]
            feeds[port.name] = mask(own, common, size, len(port.dims) - 1, port.dtype)
        feeds.update(self._kept.packed(batch.states, size))
        if not self._batch_axis:
            feeds = {
                name: value if name in self._constants else value.reshape(value.shape[1:])
                for name, value in feeds.items()
            }
        for name in self._settings if self._batch_axis else ():
            feeds[name] = feeds[name].reshape(feeds[name].shape[1:])
        return PackedBatch(feeds, shapes, count, size, failed)

    def unpack(self, arrays: Sequence[NDArray[Any]], packed: PackedBatch) -> List[Result]:
        """One result per item of the batch, from the model's output arrays (in the order of its outputs); an error
        for one that did not run."""
        results = self._results(arrays, packed) if packed.rows else []
        return with_failures(results, packed.failed) if packed.failed else results

    def _results(self, arrays: Sequence[NDArray[Any]], packed: PackedBatch) -> List[Result]:
        if not self._batch_axis:
            arrays = [np.expand_dims(array, 0) for array in arrays]
        by_name = dict(zip(self.names, arrays))
        results: List[Result] = []
        failed: Dict[int, EngineError] = {}
        state_outputs = set(self._states.values())
        for name, array in by_name.items():
            self._check_rows(name, np.shape(array), self._kept.output_axes.get(name, 0), packed)
        kept = [(name, array) for name, array in by_name.items() if name not in state_outputs]
        for index in range(packed.rows):
            try:
                results.append(self._result(index, kept, by_name, packed))
            except BaseException as error:  # noqa: BLE001 its outputs lack what is read of them
                failed[index] = own_failure(self._model.name, error)
        if not results:
            raise failed[0]
        return with_failures(results, failed)

    def _result(
        self,
        index: int,
        kept: Sequence[Tuple[str, NDArray[Any]]],
        by_name: Mapping[str, NDArray[Any]],
        packed: PackedBatch,
    ) -> Result:
        outputs = {name: array[index] for name, array in kept}
        for name, cuts in self._crops.items():
            outputs[name] = cropped(self._where, cuts, name, outputs[name], index, packed.shapes)
        hints = hints_of(self._where, self._hints, outputs) if self._hints else None
        if not self._states:
            return Result(outputs, hints=hints)
        try:
            state = self._kept.new(by_name, index)
        except StateLost as error:
            return Result(outputs, error=error)
        return Result(outputs, hints=hints, state=state, state_bytes=sum(int(part.nbytes) for part in state.values()))

    def _check_rows(self, name: str, shape: Shape, axis: int, packed: PackedBatch) -> None:
        """More rows than were fed are as wrong as fewer: which of them are whose is not known then."""
        if len(shape) <= axis or shape[axis] != packed.size:
            raise WrongRows(
                f"{self._where}: output {name!r} has shape {list(shape)} for a batch of {packed.size} "
                f"({counted(packed.rows, 'item')}); expected a length of {packed.size} on axis {axis}, a row for each. "
                f"A model whose outputs have no batch axis runs one item as it is, where the engine can: set "
                f"[model.{self._model.name}] batch = [1] and options.batch_axis = false, or export it with the batch "
                "first in each output"
            )

    def example(self) -> Values:
        """One item of drawn values. Raises :class:`EngineError` for an input whose lengths are not known."""
        return example_item(self._slots, {slot.name: self._example_shape(slot) for slot in self._slots})

    def input_size_bytes(self, size: int) -> int:
        """Bytes of the inputs of a batch of ``size``; axes of unknown length count as 1."""
        total = 0
        for slot in self._slots:
            shape = self._model.shapes.get(slot.name) or tuple(dim or 1 for dim in slot.dims)
            total += int(np.prod(shape, dtype=np.int64)) * np.dtype(slot.dtype).itemsize
        total += self._kept.size_bytes()
        return total * size

    # --- helpers of packing ---

    def _wrong_items(self, batch: Batch) -> Dict[int, EngineError]:
        """The reason why some items cannot run, or not with the others, by their places."""
        fitted: Dict[int, List[NDArray[Any]]] = {}
        failed: Dict[int, EngineError] = {}
        for index, item in enumerate(batch.items):
            try:
                if self._given:
                    self._refuse_given(item)
                if self._states:
                    self._kept.check(batch.states[index], index)
                fitted[index] = [fit(slot, self._value(slot.name, item)) for slot in self._slots]
            except BaseException as error:  # noqa: BLE001 it is this item's
                failed[index] = own_failure(self._model.name, error)
        for place, slot in enumerate(self._slots):
            rows = list(fitted)
            for odd, why in odd_shapes(slot, [fitted[row][place].shape for row in rows]).items():
                failed[rows[odd]] = why
                del fitted[rows[odd]]
        return failed

    def _value(self, name: str, item: Values) -> Any:
        if name not in item:
            takes = [slot.name for slot in self._slots]
            raise WrongInput(
                f"{self._where}: input {name!r} is missing{sent_instead(name, item, takes)}; the model "
                f"takes {', '.join(takes)}"
            )
        return item[name]

    def _refuse_given(self, item: Values) -> None:
        """An input that the configuration provides must not be sent too: one of the two would be ignored."""
        for name, why in self._given.items():
            if name in item:
                raise WrongInput(
                    f"{self._where}: input {name!r} was sent, but [model.{self._model.name}] {why} "
                    "provides it; leave it out, or name the node's inputs without it"
                )

    # --- checks of the configuration ---

    def _with_batch_axis(
        self, inputs: Sequence[Port], outputs: Sequence[Port], options: Options, state_axis: Any
    ) -> Tuple[Sequence[Port], Sequence[Port]]:
        """The inputs and outputs with a batch axis of 1 in front where the model has none, which is put in front of
        each item and taken off around the model's run."""
        constants = options.table("constants")
        no_rows = {*constants, *self._states, *self._masks.values(), *self._settings}
        brought = [port for port in inputs if port.name not in no_rows]
        answers = [port for port in outputs if port.name not in self._states.values()]
        lacks = length_of_another(brought, answers)
        self._lacking = lacks or batch_elsewhere(brought) or name_of_another(brought, answers)
        # By itself without, where the file fixes the batch at 1 and an output does not have it.
        is_free = options.takes("batch_axis") and not (self._states or "image" in options or "batch_axis" in options)
        is_one = self._model.batch == (1,) and all(port.dims[:1] == (1,) for port in brought)
        self._may_lack = is_free and is_one and any(port.dims[:1] != (1,) for port in answers)
        self._batch_axis = options.boolean("batch_axis", not (lacks and self._may_lack))
        if not self._batch_axis:
            if any(self._state_axes.values()) or self._model.batch != (1,):
                raise EngineError(
                    f"{self._where}: options.batch_axis = false takes one item at a time, so it needs batch = [1] and "
                    f"no state_axis; found batch = {list(self._model.batch)}, state_axis = {state_axis}"
                )
            inputs = [port if port.name in constants else port.batch_of_one() for port in inputs]
            outputs = [port.batch_of_one() if port.dims else port for port in outputs]
        elif self._settings:
            others = [port for port in inputs if port.name not in {*self._settings, *constants, *self._states}]
            if self._model.batch != (1,) or any(port.dims[:1] not in ((1,), (None,)) for port in others):
                raise EngineError(
                    f"{self._where}: options.settings = {sorted(self._settings)} are each request's own and have no "
                    "batch axis, so batch = [1] is needed, and a model that takes it; found batch = "
                    f"{list(self._model.batch)}. What is the same for all requests is a constant: options.constants"
                )
            inputs = [port.batch_of_one() if port.name in self._settings else port for port in inputs]
        return inputs, outputs

    def _check_pad(self, slot: Slot) -> None:
        """Raise for a pad value that the input's type does not have; texts are padded with empty ones."""
        try:
            if slot.pad is not None and np.dtype(slot.dtype).kind != "O":
                cast_exactly(slot.pad, np.dtype(slot.dtype))
        except (ValueError, OverflowError) as error:
            raise EngineError(
                f"{self._where}: [model.{self._model.name}] pad.{slot.name} = {slot.pad!r}: expected a number that "
                f"{slot.dtype} has; {error}"
            ) from None

    def _known(self, what: str, names: Any, known: Any, side: str) -> None:
        for name in names:
            if name not in known:
                raise EngineError(
                    f"{self._where}: {what} names {name!r}, which is no {side} of the model{nearest(name, known)}"
                )

    def _check_batch(self, batched: Sequence[Port]) -> Optional[int]:
        """The size that the model's batch axis is fixed at, or ``None``; larger batch sizes are refused."""
        fixed: Optional[int] = None
        for port in batched:
            if not port.dims:
                raise EngineError(
                    f"{self._where}: input {port.name!r} is a single number without a batch axis; give it in "
                    f"[model.{self._model.name}] options.constants = {{{port.name} = ...}}, or name it in "
                    "options.settings where each request brings its own"
                )
            if port.dims[0] is not None:
                fixed = port.dims[0]
                if max(self._model.batch) > fixed:
                    raise EngineError(
                        f"{self._where}: batch = {list(self._model.batch)}, but the batch axis of "
                        f"input {port.name!r} is fixed at {fixed}; {self._batch_mend()}"
                    )
        return fixed

    def _batch_mend(self) -> str:
        return f"set [model.{self._model.name}] batch = [1], or export the model with a dynamic batch axis"

    def _example_shape(self, slot: Slot) -> Shape:
        shape = self._model.shapes.get(slot.name)
        if shape is None and None not in slot.dims:
            shape = tuple(dim for dim in slot.dims if dim is not None)
        if shape is None or len(shape) != len(slot.dims):
            raise EngineError(
                f"{self._where}: input {slot.name!r} has the shape {dims_text(slot.dims)} per item; give "
                f"its lengths for warm-up in [model.{self._model.name}] shapes = {{{slot.name} = [...]}}"
            )
        return shape
