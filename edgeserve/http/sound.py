"""Sound that a client sends, as 16 kHz and one channel: what it says of itself is checked before anything is made of
it.

Pure functions but for :class:`Converter`, which keeps where one sound stands between its chunks.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

import numpy as np
from numpy.typing import NDArray

RATE_HZ = 16_000
RATE_HZ_MIN, RATE_HZ_MAX = 4_000, 384_000
"""Below it there is no speech, and each sample would become more than four; above it nothing records."""

CHANNELS_MAX = 64

SAMPLES = {1: "u1", 2: "<i2", 4: "<i4"}
"""Bytes of a sample -> its dtype, as in WAV files: of 8 bits without a sign."""


class BadSound(ValueError):
    """What a sound says of itself cannot be."""


def check_form(rate: Any, width: Any, channels: Any) -> None:
    """Raise :class:`BadSound` for a rate, a width of samples in bytes or a number of channels that is none."""
    if not _is_whole(rate, RATE_HZ_MIN, RATE_HZ_MAX):
        raise BadSound(f"{_shown(rate)} samples a second, expected {RATE_HZ_MIN} to {RATE_HZ_MAX}")
    if not _is_whole(width, 1, 4) or width not in SAMPLES:
        raise BadSound(f"samples of {_shown(width)} bytes, expected 1, 2 or 4 (8, 16 or 32 bits)")
    if not _is_whole(channels, 1, CHANNELS_MAX):
        raise BadSound(f"{_shown(channels)} channels, expected 1 to {CHANNELS_MAX}")


def _is_whole(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _shown(value: Any) -> str:
    return repr(value)[:40]


def count_at_16_khz(count: int, rate: int) -> int:
    """How many samples so many become."""
    return max(1, round(count * RATE_HZ / rate))


def one_channel(data: bytes, width: int, channels: int) -> NDArray[Any]:
    """The mean of the channels, float64 from -1 to 1; bytes behind the last whole frame are left out."""
    whole = len(data) // (width * channels) * width * channels
    sound: NDArray[Any] = np.frombuffer(data[:whole], SAMPLES[width]).reshape(-1, channels).mean(axis=1)
    return (sound - 128) / 128 if width == 1 else sound / 2.0 ** (8 * width - 1)


def resampled(sound: NDArray[Any], rate: int) -> NDArray[Any]:
    """The same sound at 16 kHz: what it has of frequencies that both rates can hold."""
    count = count_at_16_khz(len(sound), rate)
    parts = np.fft.rfft(sound)
    kept = np.zeros(count // 2 + 1, parts.dtype)
    both = min(len(parts), len(kept))
    kept[:both] = parts[:both]
    found: NDArray[Any] = np.fft.irfft(kept, count) * (count / len(sound))
    return found


class Converter:
    """Chunks of one sound as 16-bit integers at 16 kHz, one channel. Between two samples the sound is a straight line.
    ``seconds_max``: of one chunk."""

    def __init__(self, seconds_max: float) -> None:
        self._seconds_max = seconds_max
        self._form: Optional[Tuple[int, int, int]] = None
        self._last = np.zeros(0)  # the last sample of the chunk before
        self._at = 0.0  # where the next sample lies, counted from that one

    def convert(self, data: bytes, rate: Any, width: Any, channels: Any) -> NDArray[np.int16]:
        """The next chunk. Raises :class:`BadSound`."""
        form = (rate, width, channels)
        if form != self._form:
            check_form(*form)
            self._form, self._last, self._at = form, np.zeros(0), 0.0
        if len(data) > self._seconds_max * rate * width * channels:
            raise BadSound(f"a chunk of {len(data)} bytes, which is more than {self._seconds_max:g} s of sound")
        if len(data) % (width * channels):
            raise BadSound(f"a chunk of {len(data)} bytes, which are no whole samples of {width * channels}")
        if form == (RATE_HZ, 2, 1):
            return np.frombuffer(data, np.int16)
        sound = np.concatenate([self._last, one_channel(data, width, channels) * 32768.0])
        if not len(sound):
            return np.zeros(0, np.int16)
        step, end = rate / RATE_HZ, len(sound) - 1
        count = int((end - self._at) // step) + 1 if self._at <= end else 0
        places = self._at + step * np.arange(count)
        self._last, self._at = sound[-1:], self._at + step * count - end
        found: NDArray[np.int16] = np.clip(np.rint(np.interp(places, np.arange(end + 1), sound)), -32768, 32767).astype(
            np.int16
        )
        return found
