"""``options.image`` for networks that take images: what is proposed, and how far its frames are from numpy's here."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np

from edgeserve.commands.init.roles import Roles, Shape, is_image
from edgeserve.engines.image import BORDER, ImageForm, in_numpy
from edgeserve.errors import EngineError

FRAME = (1080, 1920)
"""The size that most cameras give; the user corrects it."""

SEED = 1


class ImageProposal(NamedTuple):
    """``options`` is what stands in ``options.image``. ``mean`` and ``most``: the grey levels between numpy's form of a
    drawn frame and the prepared one. ``why``: what keeps frames from being prepared; nothing is proposed then."""

    input: str = ""
    options: Dict[str, Any] = {}
    mean: float = 0.0
    most: float = 0.0
    why: str = ""


def propose_image(path: str, roles: Roles, shapes: Dict[str, Shape]) -> Optional[ImageProposal]:
    """A proposal for an ONNX network whose one image input has three colours and a known size; ``None`` for others."""
    images = [port for port in roles.given if is_image(port)]
    if roles.description.engine != "onnx" or len(images) != 1 or np.dtype(images[0].dtype).kind != "f":
        return None
    name, dims = images[0].name, images[0].dims[1:]
    lengths = shapes.get(name, dims) if roles.shapes_given or name in roles.description.usual else dims
    if None in lengths or 3 not in (lengths[0], lengths[2]):
        return None
    size = lengths[1:] if lengths[0] == 3 else lengths[:2]
    options: Dict[str, Any] = {"size": list(size), "from": list(FRAME)}
    if name in roles.description.usual:  # told by the YOLO family's exporter, whose networks see frames so
        options["letterbox"] = True
    form = ImageForm(
        input=name,
        size=tuple(int(length) for length in size if length),
        layout="nchw" if lengths[0] == 3 else "nhwc",
        frame_size=FRAME,
        border=BORDER if "letterbox" in options else -1,
    )
    frame = np.random.default_rng(SEED).integers(0, 256, (*FRAME, 3), np.uint8)
    try:
        from edgeserve.engines.onnx_ports import prepared_frame

        prepared = prepared_frame(path, form, frame)
    except EngineError as error:
        return ImageProposal(why=" ".join(str(error).split()))
    apart = np.abs(prepared - in_numpy(frame, form)) * form.std[0]
    found = ImageProposal(form.input, options, float(apart.mean()), float(apart.max()))
    if found.most > 1:
        return ImageProposal(why=f"they were {found.most:.1f} grey levels off numpy's, more than one")
    return found


def image_lines(found: Optional[ImageProposal], has_shapes: bool) -> List[str]:
    """The comment before the proposal, in the model's section."""
    if found is None:
        return []
    if found.why:
        return [f"# Frames of a camera cannot be prepared in front of this network here: {found.why}"]
    unless = ", and leave shapes out" if has_shapes else ""
    return [
        "# To send frames of a camera (uint8) instead, take this line and that of the input, with the size of your",
        f"# frames in both{unless}. Values are 0 to 1: give mean and std where the network was trained with others.",
        f"# Checked here against numpy: {found.mean:.2f} grey levels apart on average, {found.most:.2f} at most "
        "(docs/guide/images.md).",
    ]
