"""Whisper's answer on a window of sound, as segments with times; and the beginning of the next window.

Pure: numbers of tokens in, seconds out. Tokens from ``first_time`` on are times within the window, 20 ms apart.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Sequence, Tuple

TIME_S = 0.02


class SpokenSegment(NamedTuple):
    """Tokens that were said from one time to another, in seconds from the window's begin."""

    start_s: float
    end_s: float
    tokens: Tuple[int, ...]


class HeardWindow(NamedTuple):
    """The text of a window, and how much of it was heard to the end: the next one begins there."""

    segments: Tuple[SpokenSegment, ...]
    heard_s: float


def window_of(tokens: Sequence[int], first_time: int, length_s: float, is_last: bool) -> HeardWindow:
    """A window of ``length_s``. What was still being said at its end is heard again with the next window, unless this
    ``is_last`` or it began with that."""
    segments: List[SpokenSegment] = []
    start_s: Optional[float] = None
    words: List[int] = []
    for token in tokens:
        if token < first_time:
            words.append(token)
            continue
        time_s = min((token - first_time) * TIME_S, length_s)
        if words:
            segments.append(SpokenSegment(start_s or 0.0, time_s, tuple(words)))
            words = []
        start_s = time_s
    ends_within = len(tokens) > 1 and tokens[-1] >= first_time and tokens[-2] >= first_time
    if (words or ends_within) and segments and segments[-1].end_s > 0 and not is_last:
        return HeardWindow(tuple(segments), segments[-1].end_s)
    if words:
        segments.append(SpokenSegment(start_s or 0.0, length_s, tuple(words)))
    return HeardWindow(tuple(segments), length_s)
