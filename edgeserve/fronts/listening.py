"""Detectors on the sound of one voice connection: of wake words, and of speech.

Sound is 16-bit integers at 16 kHz, mono; apps take float32 from -1 to 1, or integers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Awaitable, Deque, List, Mapping, Optional, Protocol, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.answers import Answer
from edgeserve.errors import EdgeServeError
from edgeserve.front import ServedApp

RATE = 16_000
FULL_SCALE = 32_768.0

FRAMES_WAITING_MAX = 64
"""Frames for the voice detector: then the connection is read more slowly."""

VOICE_SCORE = 0.5
SILENCE_S = {"default": 0.7, "relaxed": 1.25, "aggressive": 0.25}
"""Seconds of the pause that ends a command, by the protocol's sensitivity (Home Assistant's own figures)."""


class EventSink(Protocol):
    """The connection that asks for a detector, and is told the events."""

    async def ask(self, role: str, values: Mapping[str, Any]) -> Answer:
        """Ask the app of a role. Raises :class:`EdgeServeError`."""

    def unanswered(self, role: str, error: EdgeServeError) -> None:
        """A look at the sound that was refused or failed."""

    def begin(self, work: Awaitable[None]) -> asyncio.Task[None]:
        """A task that ends with the connection."""

    async def word_heard(self, name: str, now_ms: int) -> None:
        """A wake word."""

    async def voice_began(self, now_ms: int) -> None:
        """The beginning of speech."""

    async def voice_ended(self, now_ms: int) -> None:
        """A pause of the speaker."""


class WakeWords:
    """The last seconds of one connection's sound, shown to the wake app every so often. One look at a time; the sound
    meanwhile is in the next. ``words``: the ones to detect; none: any, told by the app's name. ``is_unit``: floats go
    from -1 to 1."""

    def __init__(
        self, connection: EventSink, app: ServedApp, words: Sequence[str], every_ms: float, is_unit: bool
    ) -> None:
        self._connection = connection
        self._app = app
        self._words = words
        self._every = round(every_ms * RATE / 1000)
        self._scale = 1 / FULL_SCALE if is_unit else 1.0
        self._names: Optional[List[str]] = None
        self._looking: Optional[asyncio.Task[None]] = None
        self._begun = 0  # how often: an answer on an earlier sound says nothing of this one
        self.begin(None)

    def begin(self, names: Optional[List[str]]) -> None:
        """Hear anew, for one of ``names`` (None: any)."""
        self._begun += 1
        self._names = names or None
        self._window = np.zeros(self._app.shape[0], np.int16)
        self._unseen = self._now_ms = 0
        self.found = False

    def hear(self, sound: NDArray[np.int16], now_ms: int, is_voice: bool) -> None:
        """More sound; ``is_voice``: worth a look."""
        self._window = np.concatenate([self._window, sound])[-len(self._window) :]
        self._unseen += len(sound)
        self._now_ms = now_ms
        idle = self._looking is None or self._looking.done()
        if is_voice and self._unseen >= self._every and idle:
            self._looking = self._connection.begin(self._look())

    async def _look(self) -> None:
        while self._unseen >= self._every:
            self._unseen = 0
            window, now_ms, begun = self._window, self._now_ms, self._begun
            values = {self._app.input: as_type(window, self._app.dtype, self._scale)}
            try:
                answer = await self._connection.ask("wake", values)
            except EdgeServeError as error:
                self._connection.unanswered("wake", error)
                continue
            if begun != self._begun:
                continue
            told = answer.outputs.get("word")
            word = told if isinstance(told, str) else ""
            heard = word if self._words else self._app.name
            if word and (not self._words or word in self._words) and (self._names is None or heard in self._names):
                self.begin(self._names)  # the same word is heard once
                self.found = True
                await self._connection.word_heard(heard, now_ms)


class VoiceActivity:
    """Frames of one connection's sound, shown to the voice detector in order."""

    def __init__(self, connection: EventSink, app: ServedApp) -> None:
        self._connection = connection
        self._app = app
        self._length = self._app.shape[0]
        self._hop = self._length - 64 if self._length % 512 == 64 else self._length  # Silero: 64 samples seen before
        self._frames: asyncio.Queue[Tuple[NDArray[np.int16], int]] = asyncio.Queue(FRAMES_WAITING_MAX)
        self._asking: Optional[asyncio.Task[None]] = None
        self._lately: Deque[bool] = deque(maxlen=2 * RATE // self._hop)
        self._begun = 0
        self.begin(None)

    @property
    def was_heard_lately(self) -> bool:
        """True if speech was detected in the last two seconds."""
        return any(self._lately)

    def begin(self, pause_s: Optional[float]) -> None:
        """Begin anew; a pause of ``pause_s`` ends the speech."""
        self._begun += 1
        self._rest = np.zeros(self._length - self._hop, np.int16)
        self._pause = round((pause_s or SILENCE_S["default"]) * RATE / self._hop)
        self._speaking, self._silent = False, 0
        self._lately.clear()
        while not self._frames.empty():
            self._frames.get_nowait()

    async def hear(self, sound: NDArray[np.int16], now_ms: int) -> None:
        """More sound. Waits while many frames are not asked for yet."""
        self._rest = np.concatenate([self._rest, sound])
        while len(self._rest) >= self._length:
            frame, self._rest = self._rest[: self._length], self._rest[self._hop :]
            await self._frames.put((frame, now_ms - len(self._rest) * 1000 // RATE))
            if self._asking is None or self._asking.done():
                self._asking = self._connection.begin(self._ask())

    async def _ask(self) -> None:
        while not self._frames.empty():
            (frame, now_ms), begun = self._frames.get_nowait(), self._begun
            values = {self._app.input: as_type(frame, self._app.dtype, 1 / FULL_SCALE)}
            try:
                answer = await self._connection.ask("vad", values)
            except EdgeServeError as error:
                self._connection.unanswered("vad", error)
                continue
            if begun != self._begun:
                continue
            is_voice = _score_of(answer) > VOICE_SCORE
            self._lately.append(is_voice)
            self._silent = 0 if is_voice else self._silent + 1
            if is_voice and not self._speaking:
                self._speaking = True
                await self._connection.voice_began(now_ms)
            elif self._speaking and self._silent >= self._pause:
                self._speaking = False
                await self._connection.voice_ended(now_ms)


def as_type(sound: NDArray[Any], dtype: str, scale: float) -> NDArray[Any]:
    """Sound as an app takes it, or as the protocol does: integers as they are, floats scaled, and back."""
    if np.dtype(dtype).kind == "f":
        return np.asarray(sound.astype(dtype) * np.asarray(scale, dtype))
    if sound.dtype.kind == "f":
        return (np.clip(sound, -1.0, 1.0) * (FULL_SCALE - 1)).astype(dtype)
    return sound.astype(dtype, copy=False)


def _score_of(answer: Answer) -> float:
    """The first output that is one number."""
    for value in answer.outputs.values():
        array = np.asarray(value)
        if array.size == 1 and array.dtype.kind in "fiub":
            return float(array.reshape(-1)[0])
    return 0.0
