"""Answers of apps as sound: what is of another form is refused, and never noise."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("wyoming", reason="the front needs wyoming: pip install '.[wyoming]'")

from edgeserve.answers import Answer
from edgeserve.errors import BadInput
from edgeserve.fronts.voice_answers import sound_of


@pytest.mark.parametrize("shape", [(4,), (1, 4), (4, 1), (1, 1, 4), (0,), (1, 0), ()])
@pytest.mark.parametrize("dtype", ["int16", "float16", "float32", "float64"])
def test_one_channel_is_sound(shape, dtype):
    audio = np.full(shape, 1, dtype)
    found = sound_of(Answer({"audio": audio, "rate": np.array([8000])}))
    assert found.tolist() == audio.reshape(-1).tolist() and found.dtype == dtype


@pytest.mark.parametrize(
    "audio",
    [
        np.zeros((2, 4), np.int16),
        np.zeros((4, 2), np.float32),
        np.full(4, 40_000, np.int32),
        np.zeros(4, np.uint8),
        np.zeros(4, np.int8),
        np.full(4, 9000, np.float32),
        np.float32([0.1, np.inf]),
        "text",
    ],
    ids=lambda audio: f"{getattr(audio, 'dtype', 'text')}",
)
def test_what_is_no_sound_of_one_channel_is_refused(audio):
    with pytest.raises(BadInput, match="expected"):
        sound_of(Answer({"audio": audio}))
