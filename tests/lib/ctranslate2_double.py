"""A double of ctranslate2 whose network hears "la" in each loud second, and a model's files for it."""

from __future__ import annotations

import json
import os
import struct
from types import SimpleNamespace
from typing import Any, List

import numpy as np

from edgeserve.engines.lm.tokenizers import byte_characters

FIRST_TIME = 50_364
"""The first token of time in a multilingual network; in one for English alone it is smaller by one."""


def write_files(directory: str, english: bool = False) -> str:
    """A model's files; the name of the first."""
    letters = sorted(byte_characters(), key=lambda letter: byte_characters()[letter])
    specials = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|ar|>", "<|translate|>", "<|transcribe|>"]
    first = FIRST_TIME - english
    fill = [f"<fill {number}>" for number in range(first - 1 - len(letters) - len(specials))]
    times = [f"<|{number * 0.02:.2f}|>" for number in range(1501)]
    with open(os.path.join(directory, "vocabulary.json"), "w", encoding="utf-8") as file:
        json.dump([*letters, *fill, *specials, "<|notimestamps|>", *times], file)
    with open(os.path.join(directory, "model.bin"), "wb") as binary:
        binary.write(
            b"\6\0\0\0decoder/layer_0/ffn\0decoder/layer_1/ffn\0encoder/layer_norm/beta\0\1" + struct.pack("<I", 8)
        )
    return "model.bin"


class StorageView:
    def __init__(self, array: Any) -> None:
        self.array = array

    @classmethod
    def from_array(cls, array: Any) -> StorageView:
        return cls(np.array(array))


class Whisper:
    n_mels = 80

    def __init__(self, folder: str, **settings: Any) -> None:
        self.folder, self.settings, self.calls = folder, settings, []

    def encode(self, features: StorageView) -> StorageView:
        assert features.array.shape[1:] == (80, 3000) and features.array.dtype == np.float32
        return features

    def detect_language(self, encoded: StorageView) -> List[Any]:
        return [[("<|ar|>", 0.9), ("<|en|>", 0.1)] for _ in encoded.array]

    def generate(self, encoded: StorageView, prompts: List[List[int]], **settings: Any) -> List[Any]:
        self.calls.append((prompts, settings))
        return [self._said(row, prompt) for row, prompt in zip(encoded.array, prompts)]

    def _said(self, spectrum: Any, prompt: List[int]) -> Any:
        first = FIRST_TIME - (len(prompt) == 1)
        quiet = float(spectrum.min())
        loud = [bool(part.max() > quiet + 0.5) for part in np.split(spectrum, 30, axis=1)]
        tokens: List[int] = []
        for second, is_loud in enumerate(loud):
            before, after = second and loud[second - 1], second < 29 and loud[second + 1]
            tokens += [first + 50 * second] if is_loud and not before else []
            tokens += list(b" la") if is_loud else []
            tokens += [first + 50 * (second + 1)] if is_loud and not after and second < 29 else []
        silent = not any(loud)
        tokens = tokens or [first, *b" hm", first + 1500]
        return SimpleNamespace(
            sequences_ids=[tokens], scores=[-2.0 if silent else -0.1], no_speech_prob=0.9 if silent else 0
        )


def module() -> Any:
    """A double of the library."""
    return SimpleNamespace(__version__="double", StorageView=StorageView, models=SimpleNamespace(Whisper=Whisper))


def sound(*loud: int, seconds: int, dtype: Any = np.float32) -> Any:
    """A tone in these seconds."""
    audio = np.zeros(16_000 * seconds, np.float32)
    for second in loud:
        audio[16_000 * second + 800 : 16_000 * (second + 1) - 800] = 0.5 * np.sin(np.arange(14_400) / 5)
    return audio if dtype == np.float32 else np.round(audio * 32767).astype(dtype)
