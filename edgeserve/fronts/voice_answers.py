"""Answers of apps as voice needs them: text, sound with its rate, entities. An app may answer anything: what is of
another form is nothing, or :class:`~edgeserve.errors.BadInput`."""

from __future__ import annotations

import json
from typing import Any, List, Mapping

import numpy as np
from numpy.typing import NDArray
from wyoming.intent import Entity

from edgeserve.answers import Answer
from edgeserve.errors import BadInput
from edgeserve.front.sound import RATE_HZ_MAX, RATE_HZ_MIN

LOUD_MAX = 4.0
"""A sound of floats with larger values is not from -1 to 1, where a loud one may reach a little beyond."""


def words_of(outputs: Mapping[str, Any], name: str) -> str:
    """An output that is text; nothing where the app answers something else, or nothing."""
    value = outputs.get(name)
    return value if isinstance(value, str) else ""


def text_of(answer: Answer) -> str:
    """Output ``text``, or the first that is text."""
    names = (
        ["text"] if "text" in answer.outputs else [name for name in answer.outputs if words_of(answer.outputs, name)]
    )
    return words_of(answer.outputs, names[0]).strip() if names else ""


def rate_of(answer: Answer, rate: int) -> int:
    """Output ``rate``, samples a second, or the configured one."""
    found = answer.outputs.get("rate", rate)
    try:
        (told,) = np.asarray(found).reshape(-1).tolist()
        whole = int(told)
    except (TypeError, ValueError, OverflowError):
        told, whole = None, 0
    if whole != told or not RATE_HZ_MIN <= whole <= RATE_HZ_MAX:
        expected = f"one whole number from {RATE_HZ_MIN} to {RATE_HZ_MAX}"
        raise BadInput(f"the app answers rate = {str(found)[:40]!r}; expected {expected}")
    return whole


def sound_of(answer: Answer) -> NDArray[Any]:
    """Output ``audio``, or the only array of numbers, flat: int16, or floats from -1 to 1, of one channel."""
    value = answer.outputs.get("audio")
    if value is None:
        arrays = [each for each in answer.outputs.values() if isinstance(each, np.ndarray) and each.ndim]
        value = arrays[0] if len(arrays) == 1 else None
    if value is None:
        raise BadInput(f"the app answers {', '.join(answer.outputs) or 'nothing'}; expected audio, int16 or float32")
    array = np.asarray(value)
    is_float = array.dtype.kind == "f"
    if not (is_float or array.dtype == np.int16) or sorted(array.shape)[-2:-1] > [1]:
        raise BadInput(
            f"the app answers audio as {array.dtype} {list(array.shape)}; expected int16, or floats from -1 to 1, "
            "[samples] of one channel"
        )
    sound: NDArray[Any] = np.nan_to_num(array.reshape(-1))
    if is_float and len(sound) and float(np.abs(sound).max()) > LOUD_MAX:
        raise BadInput(
            f"the app answers audio of floats up to {np.abs(sound).max():g}; expected -1 to 1 (divide 16 bit samples "
            "by 32768, or answer int16)"
        )
    return sound


def entities_of(value: Any) -> List[Entity]:
    """Output ``entities``: JSON text of an object, name -> value."""
    if value is None or isinstance(value, str) and not value:
        return []
    try:
        table = json.loads(value) if isinstance(value, (str, bytes)) else dict(value)
        return [Entity(str(name), each) for name, each in table.items()]
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"output entities is no JSON object of names and values: {error}") from None
