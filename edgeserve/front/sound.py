"""Sound that a client sends, as 16 kHz and one channel: what it says of itself is checked before anything is made of
it.

Pure functions but for :class:`Converter`, which keeps where one sound stands between its chunks.
"""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple, Optional, Tuple

import numpy as np
from numpy.typing import NDArray

RATE_HZ = 16_000
RATE_HZ_MIN, RATE_HZ_MAX = 4_000, 384_000
"""Below it there is no speech, and each sample would become more than four; above it nothing records."""

CHANNELS_MAX = 64

LOBES = 4
"""Samples at 16 kHz on each side of one that its filter reaches: a quarter of a millisecond."""

WHOLE, FLOATS = 1, 3
"""Codings of samples, by WAV's numbers: whole numbers (PCM) and floats."""

WIDTHS = {WHOLE: (1, 2, 3, 4), FLOATS: (4, 8)}
"""Bytes that a sample of each may have."""

SAMPLES = {(WHOLE, 1): "u1", (WHOLE, 2): "<i2", (WHOLE, 4): "<i4", (FLOATS, 4): "<f4", (FLOATS, 8): "<f8"}
"""Coding and bytes of a sample -> its dtype, as in WAV files: of 8 bits without a sign. Of 24 bits numpy has none."""

EXTENSIBLE = 0xFFFE
"""WAV's number of a coding that the first two bytes of a GUID tell."""

CHUNKS_MAX = 64
"""The most chunks of a WAV file before its sound."""


class BadSound(ValueError):
    """The header of a sound is impossible."""


def check_form(rate: Any, width: Any, channels: Any, coding: int = WHOLE) -> None:
    """Raise :class:`BadSound` for a rate, a width of samples in bytes or a number of channels that is none."""
    if not _is_whole(rate, RATE_HZ_MIN, RATE_HZ_MAX):
        raise BadSound(f"{_shown(rate)} samples a second, expected {RATE_HZ_MIN} to {RATE_HZ_MAX}")
    if not _is_whole(width, 1, 8) or width not in WIDTHS[coding]:
        expected = "1, 2, 3 or 4 (8, 16, 24 or 32 bits)" if coding == WHOLE else "4 or 8 (floats of 32 or 64 bits)"
        raise BadSound(f"samples of {_shown(width)} bytes, expected {expected}")
    if not _is_whole(channels, 1, CHANNELS_MAX):
        raise BadSound(f"{_shown(channels)} channels, expected 1 to {CHANNELS_MAX}")


def _is_whole(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _shown(value: Any) -> str:
    return repr(value)[:40]


def count_at_16_khz(count: int, rate: int) -> int:
    """The number of samples at 16 kHz of ``count`` samples at ``rate``."""
    return max(1, round(count * RATE_HZ / rate))


class Wav(NamedTuple):
    """A WAV file: its form, and the bytes of its samples."""

    rate: int
    width: int
    channels: int
    coding: int
    data: memoryview

    @property
    def frame_bytes(self) -> int:
        """The bytes of one sample of all channels."""
        return self.width * self.channels


def wav_of(file: bytes) -> Wav:
    """A WAV file, read by its chunks. Of the length of its sound nothing is believed: a stream says 0 or the largest
    number there. A file of the length that its head tells is no stream. Raises :class:`BadSound`."""
    if len(file) < 12 or file[:4] != b"RIFF" or file[8:12] != b"WAVE":
        raise BadSound("no head of RIFF and WAVE")
    form: Optional[Tuple[int, ...]] = None
    is_whole = int.from_bytes(file[4:8], "little") == len(file) - 8
    at = 12
    for _ in range(CHUNKS_MAX):
        name, size = file[at : at + 4], int.from_bytes(file[at + 4 : at + 8], "little")
        at += 8
        if at > len(file):
            break
        if name == b"data":
            if form is None:
                raise BadSound("samples before their form (the chunk 'fmt ')")
            coding, rate, width, channels = form
            check_form(rate, width, channels, coding)
            return Wav(
                rate, width, channels, coding, memoryview(file)[at : at + size if size or is_whole else len(file)]
            )
        if name == b"fmt ":
            form = _form_of(file[at : at + min(size, 40)])
        at += size + size % 2
    raise BadSound("no samples (no chunk 'data')")


def _form_of(chunk: bytes) -> Tuple[int, int, int, int]:
    """Coding, rate, bytes of a sample and channels."""
    if len(chunk) < 16:
        raise BadSound("a chunk 'fmt ' that is cut off")
    coding, channels, rate, _, frame, bits = struct.unpack("<HHIIHH", chunk[:16])
    if coding == EXTENSIBLE and len(chunk) >= 26:
        (coding,) = struct.unpack("<H", chunk[24:26])
    if coding not in WIDTHS:
        raise BadSound(f"samples of coding {coding}, expected {WHOLE} (PCM) or {FLOATS} (floats)")
    width = frame // channels if channels and frame % channels == 0 and frame else (bits + 7) // 8
    return coding, rate, width, channels


def one_channel(data: Any, width: int, channels: int, coding: int = WHOLE) -> NDArray[Any]:
    """The mean of the channels, float64 from -1 to 1; bytes behind the last whole frame are left out."""
    whole = len(data) // (width * channels) * width * channels
    if coding == WHOLE and width == 3:
        parts = np.frombuffer(data[:whole], np.uint8).reshape(-1, 3)
        sound = np.zeros((len(parts), 4), np.uint8)
        sound[:, 1:] = parts
        return one_channel(sound.tobytes(), 4, channels)
    mixed: NDArray[Any] = np.frombuffer(data[:whole], SAMPLES[coding, width]).reshape(-1, channels)
    if coding == FLOATS:
        mixed = np.clip(np.nan_to_num(mixed.astype(np.float64)), -1.0, 1.0)
    mixed = mixed.mean(axis=1)
    if coding == FLOATS:
        return mixed
    return (mixed - 128) / 128 if width == 1 else mixed / 2.0 ** (8 * width - 1)


def resampled(sound: NDArray[Any], rate: int) -> NDArray[Any]:
    """The same sound at 16 kHz: what it has of frequencies that both rates can hold."""
    count = count_at_16_khz(len(sound), rate)
    parts = np.fft.rfft(sound)
    kept = np.zeros(count // 2 + 1, parts.dtype)
    both = min(len(parts), len(kept))
    kept[:both] = parts[:both]
    found: NDArray[Any] = np.fft.irfft(kept, count) * (count / len(sound))
    return found


def _low_pass(rate: int) -> NDArray[np.float64]:
    """The weights of samples at ``rate`` that leave what 16 kHz can hold: a sinc function within a Hann window."""
    step = rate / RATE_HZ
    half = math.ceil(LOBES * step) if step > 1 else 0
    weights = np.sinc(np.arange(-half, half + 1) / step) * np.hanning(2 * half + 3)[1:-1]
    taps: NDArray[np.float64] = weights / weights.sum()
    return taps


class Converter:
    """Chunks of one sound as 16-bit integers at 16 kHz, one channel. Between two samples the sound is a straight line,
    without the frequencies that 16 kHz cannot hold. ``seconds_max``: of one chunk."""

    def __init__(self, seconds_max: float) -> None:
        self._seconds_max = seconds_max
        self._form: Optional[Tuple[int, int, int]] = None
        self._half = b""  # of a frame, of which the rest is in the next chunk
        self._taps = np.ones(1)  # what low-pass filters the sound
        self._tail = np.zeros(0)  # the samples that the filter still needs
        self._last = np.zeros(0)  # the last sample of the chunk before
        self._at = 0.0  # where the next sample lies, counted from that one

    def convert(self, data: bytes, rate: Any, width: Any, channels: Any) -> NDArray[np.int16]:
        """The next chunk. Raises :class:`BadSound`."""
        form = (rate, width, channels)
        if form != self._form:
            check_form(*form)
            self._form, self._half, self._last, self._at = form, b"", np.zeros(0), 0.0
            self._taps = _low_pass(rate)
            self._tail = np.zeros(0)
        if len(data) > self._seconds_max * rate * width * channels:
            raise BadSound(f"a chunk of {len(data)} bytes, which is more than {self._seconds_max:g} s of sound")
        data = self._half + data
        whole = len(data) - len(data) % (width * channels)
        data, self._half = data[:whole], data[whole:]
        if form == (RATE_HZ, 2, 1):
            return np.frombuffer(data, np.int16)
        new = one_channel(data, width, channels) * 32768.0
        if not len(self._tail):  # before its begin the sound was as it begins
            self._tail = np.repeat(new[:1], len(self._taps) // 2)
        new = np.concatenate([self._tail, new])
        if len(new) < len(self._taps):
            self._tail = new
            return np.zeros(0, np.int16)
        self._tail = new[len(new) - len(self._taps) + 1 :]
        sound = np.concatenate([self._last, np.convolve(new, self._taps, "valid")])
        step, end = rate / RATE_HZ, len(sound) - 1
        count = int((end - self._at) // step) + 1 if self._at <= end else 0
        places = self._at + step * np.arange(count)
        self._last, self._at = sound[-1:], self._at + step * count - end
        found: NDArray[np.int16] = np.clip(np.rint(np.interp(places, np.arange(end + 1), sound)), -32768, 32767).astype(
            np.int16
        )
        return found
