"""The model of both replicas: how sharp an image is. Says which process ran it."""

from __future__ import annotations

import os
from typing import Any, Dict

import numpy as np


def sharpness(inputs: Dict[str, Any]) -> Dict[str, Any]:
    """The variance of the Laplacian: high where there are edges."""
    image = inputs["image"].astype(np.float32)
    laplacian = 4 * image[1:-1, 1:-1] - image[:-2, 1:-1] - image[2:, 1:-1] - image[1:-1, :-2] - image[1:-1, 2:]
    return {"score": float(laplacian.var()), "process": os.getpid()}


def example() -> Dict[str, Any]:
    """An input to be warmed up with."""
    return {"image": np.zeros((480, 640), np.uint8)}
