"""The host functions of the listener: what happens between its networks, on a CPU lane.

Each takes one item's named values and returns named values (``windows`` returns one part per window). The networks are
openWakeWord's: the sizes and the scaling below are the published ones.
"""

from __future__ import annotations

from typing import Any, Dict

import numpy as np

from edgeserve.engine import Parts

Values = Dict[str, Any]

WINDOW = 76  # spectrum frames of 10 ms that one embedding looks at
HOP = 8  # frames between two embeddings: 80 ms
COUNT = 16  # embeddings that a head looks at
FRAMES = WINDOW + (COUNT - 1) * HOP
WORDS = ("alexa", "hey_jarvis", "hey_marvin", "hey_mycroft")
HEARD = 0.5  # a word was said above this score


def windows(inputs: Values) -> Parts:
    """The spectrum ``mel`` (1 x frames x 32) to one part per window, scaled as the embedding network wants it."""
    spectrum = np.asarray(inputs["mel"], np.float32).reshape(-1, 32) / 10.0 + 2.0
    if len(spectrum) != FRAMES:
        raise ValueError(f"the spectrum has {len(spectrum)} frames, not {FRAMES}; send 31840 samples of sound")
    return Parts(
        [{"window": np.ascontiguousarray(spectrum[at * HOP : at * HOP + WINDOW, :, np.newaxis])} for at in range(COUNT)]
    )


def stack(inputs: Values) -> Values:
    """The embeddings of all windows, in order, to ``features`` (16 x 96)."""
    return {"features": np.stack([np.asarray(item, np.float32).reshape(96) for item in inputs["embeddings"]])}


def act(inputs: Values) -> Values:
    """The heads' scores to ``word`` (the word that was said, empty for none) and ``scores``."""
    scores = np.array([float(np.asarray(inputs[word]).reshape(-1)[0]) for word in WORDS], np.float32)
    best = int(scores.argmax())
    word = WORDS[best] if scores[best] > HEARD else ""
    return {"word": word, "scores": scores}


# --- one item for each, to warm up and to measure with ----------------------------------------------------------------


def example_windows() -> Values:
    """A silent spectrum."""
    return {"mel": np.zeros((1, FRAMES, 32), np.float32)}


def example_stack() -> Values:
    """Sixteen embeddings of nothing."""
    return {"embeddings": [np.zeros((1, 1, 96), np.float32)] * COUNT}


def example_act() -> Values:
    """No word."""
    return {word: np.zeros((1,), np.float32) for word in WORDS}
