"""The logarithmic mel spectrum that Whisper's networks read (Radford et al. 2022, section 2.2): frames of 25 ms, 10 ms
apart, on Slaney's mel scale."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

RATE_HZ = 16_000
WINDOW_S = 30
WINDOW_SAMPLES = WINDOW_S * RATE_HZ
HOP = 160
FRAME = 400

LINEAR_HZ = 1000.0
"""Below it the scale is linear, 15 mels to 1000 Hz; above, 27 mels to each factor of 6.4."""


def log_mel(samples: NDArray[Any], bands: int) -> NDArray[Any]:
    """float32 ``[bands, 3000]`` of a window, from -1 to 1.5 or so. ``samples``: at most 30 s at 16 kHz, from -1 to 1;
    what lacks is silence."""
    sound = np.zeros(WINDOW_SAMPLES + FRAME, np.float32)
    sound[FRAME // 2 : FRAME // 2 + len(samples)] = samples
    sound[: FRAME // 2] = sound[FRAME : FRAME // 2 : -1]  # mirrored, as the networks were trained
    frames = np.lib.stride_tricks.sliding_window_view(sound, FRAME)[: -HOP + 1 or None : HOP][: WINDOW_SAMPLES // HOP]
    power = np.abs(np.fft.rfft(frames * _hann(), axis=1)) ** 2
    levels = np.log10(np.maximum(_filters(bands) @ power.T.astype(np.float32), 1e-10))
    found: NDArray[Any] = ((np.maximum(levels, levels.max() - 8.0) + 4.0) / 4.0).astype(np.float32)
    return found


@functools.lru_cache(maxsize=1)
def _hann() -> NDArray[Any]:
    window: NDArray[Any] = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME) / FRAME)).astype(np.float32)
    return window


def _hz(mels: NDArray[Any]) -> NDArray[Any]:
    above = LINEAR_HZ * np.exp((mels - 15.0) * np.log(6.4) / 27.0)
    return np.where(mels < 15.0, mels * LINEAR_HZ / 15.0, above)


@functools.lru_cache(maxsize=4)
def _filters(bands: int) -> NDArray[Any]:
    """Triangles of equal area, ``[bands, FRAME // 2 + 1]``."""
    top = 15.0 + 27.0 * np.log(RATE_HZ / 2 / LINEAR_HZ) / np.log(6.4)
    edges = _hz(np.linspace(0.0, top, bands + 2))
    bins = np.fft.rfftfreq(FRAME, 1.0 / RATE_HZ)
    rising = (bins[None, :] - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins[None, :]) / np.diff(edges)[1:, None]
    weights = np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (edges[2:] - edges[:-2]))[:, None]
    filters: NDArray[Any] = weights.astype(np.float32)
    return filters
