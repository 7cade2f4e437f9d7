"""The form in which a model's matrices are stored: as float32, or in blocks of 32 numbers with 8 or 4 bits each.

A block has a scale and a zero point (asymmetric), as ONNX Runtime's ``MatMulNBits`` takes them: a number is
``(stored - zero point) * scale``.
"""

from __future__ import annotations

from typing import Any, Tuple

import numpy as np
from numpy.typing import NDArray

BLOCK = 32
BITS = {"float32": 0, "int8": 8, "int4": 4}
"""Name of a storage -> bits of a number; 0: as it is."""


def quantise(matrix: NDArray[Any], bits: int) -> Tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """``matrix[N, K]`` (K a multiple of 32) -> stored ``uint8[N, K/32, 32*bits/8]``, scales ``float32[N*K/32]``, zero
    points ``uint8``: one byte per block of 8 bits, two blocks of 4 bits in one byte, low half first, rows padded."""
    rows, columns = matrix.shape
    blocks = matrix.reshape(rows, columns // BLOCK, BLOCK)
    low = np.minimum(blocks.min(axis=2), 0.0)
    high = np.maximum(blocks.max(axis=2), 0.0)
    most = (1 << bits) - 1
    scales = ((high - low) / most).astype(np.float32)
    scales[scales == 0] = 1.0
    zeros = np.clip(np.rint(-low / scales), 0, most).astype(np.uint8)
    stored = np.clip(np.rint(blocks / scales[:, :, None]) + zeros[:, :, None], 0, most).astype(np.uint8)
    if bits == 4:
        stored = stored[:, :, 0::2] | (stored[:, :, 1::2] << 4)
        if zeros.shape[1] % 2:
            zeros = np.concatenate([zeros, np.zeros((rows, 1), np.uint8)], axis=1)
        zeros = zeros[:, 0::2] | (zeros[:, 1::2] << 4)
    return np.ascontiguousarray(stored), scales.reshape(-1), np.ascontiguousarray(zeros).reshape(-1)


def restore(stored: NDArray[Any], scales: NDArray[Any], zeros: NDArray[Any], bits: int) -> NDArray[Any]:
    """The numbers that the stored ones stand for: ``float32[N, K]``."""
    rows, blocks = stored.shape[:2]
    numbers, points = stored, zeros.reshape(rows, -1)
    if bits == 4:
        numbers = np.stack([stored & 15, stored >> 4], axis=3).reshape(rows, blocks, BLOCK)
        points = np.stack([points & 15, points >> 4], axis=2).reshape(rows, -1)[:, :blocks]
    values: NDArray[np.float32] = (numbers.astype(np.float32) - points[:, :, None]) * scales.reshape(rows, blocks, 1)
    return values.reshape(rows, blocks * BLOCK).astype(np.float32)
