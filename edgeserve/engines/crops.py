"""``options.crop_outputs``: outputs of padded items cut to the share that an item fills of its input."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from numpy.typing import NDArray

from edgeserve.engines.collate import Shape, crop
from edgeserve.errors import EngineError


class Crop(NamedTuple):
    """Cut an output's ``axis`` to the share that an item fills of axis ``of`` of the padded input ``like``."""

    axis: int
    like: str
    of: int


Shapes = Mapping[str, Tuple[List[Shape], Shape]]
"""Padded input -> (the items' own shapes, the common shape)."""

Known = Callable[[str, Any, Any, str], None]


def read_crops(
    where: str, table: Mapping[str, Any], known: Known, outputs: Sequence[str], padded: Any
) -> Dict[str, List[Crop]]:
    """The crops of ``options.crop_outputs``, by output. ``known(what, names, of, side)`` refuses unknown names."""
    known("options.crop_outputs", table, outputs, "output (states aside)")
    crops: Dict[str, List[Crop]] = {}
    for name, rows in table.items():
        for row in rows if isinstance(rows, list) else [rows]:
            if not isinstance(row, dict) or set(row) != {"axis", "like", "of"}:
                raise EngineError(
                    f"{where}: options.crop_outputs.{name} = {row!r}; expected {{axis = 0, like = 'x', of = 2}}"
                )
            known(f"options.crop_outputs.{name}.like", [row["like"]], padded, "padded input (pad)")
            crops.setdefault(name, []).append(Crop(int(row["axis"]), str(row["like"]), int(row["of"])))
    return crops


def cropped(
    where: str, crops: Sequence[Crop], name: str, array: NDArray[Any], index: int, shapes: Shapes
) -> NDArray[Any]:
    """Output ``name`` of the item at ``index``, cut to its share. ``shapes``: those of padded inputs."""
    for cut in crops:
        own, common = shapes[cut.like]
        if cut.axis >= array.ndim or cut.of >= len(common):
            raise EngineError(
                f"{where}: options.crop_outputs.{name} names axis {cut.axis} of an output "
                f"{list(array.shape)} and axis {cut.of} of input {cut.like!r} {list(common)}; "
                "axes are counted per item, from 0"
            )
        array = crop(array, cut.axis, own[index][cut.of], common[cut.of])
    return array
