"""The apps that a front asks: whether they are served, which input takes what the front brings, and values as JSON."""

from __future__ import annotations

import json
import logging
import math
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Set

import numpy as np

from edgeserve.config.text_files import read_text
from edgeserve.errors import BadInput, ConfigError, UnknownApp, nearest
from edgeserve.front.numbers import SHOWN_CHARS, array_of
from edgeserve.texts import is_text

log = logging.getLogger("edgeserve")

STREAMS = ("in_order", "newest_wins", "optional")
ELEMENTS_MAX = 4096
"""The most elements of an array in JSON; a larger one is reported by its dtype and shape."""

TOLD_MAX = 64
"""Kinds of trouble that a front logs: who connects can make new ones at will."""


class Troubles:
    """Logs each failure once: a camera would fill a log."""

    def __init__(self, front: str) -> None:
        self._front = front
        self._told: Set[str] = set()

    def tell(self, kind: str, what: str) -> None:
        """Log ``what``, unless trouble of that kind was."""
        if kind not in self._told and len(self._told) < TOLD_MAX:
            self._told.add(kind)
            log.warning("%s: %s (told once)", self._front, what)


class ServedApp(NamedTuple):
    """An app, and the input that takes what the front brings."""

    name: str
    input: str
    inputs: Mapping[str, Mapping[str, Any]]
    streams: bool

    @property
    def dtype(self) -> str:
        return str(self.inputs[self.input]["dtype"])

    @property
    def shape(self) -> Any:
        return tuple(self.inputs[self.input]["shape"])


def lines_of(where: str, path: str) -> List[str]:
    """The lines of a file that the key at ``where`` names; none without a file. Raises :class:`ConfigError`."""
    try:
        return read_text(path).splitlines() if path else []
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where} = {path!r} cannot be read: {error}") from None


def of_any(about: Mapping[str, Any]) -> bool:
    """True if an input takes numbers."""
    return about["dtype"] not in ("text", "bytes", "any")


def of_text(about: Mapping[str, Any]) -> bool:
    """True if an input takes text."""
    return bool(about["dtype"] == "text")


def app_for(
    apps: Mapping[str, Any], name: str, brings: str, fits: Callable[[Mapping[str, Any]], bool], example: str
) -> ServedApp:
    """The app ``name`` of ``AsyncClient.apps()``: its one input that must be given, or else the first that may be.
    Raises :class:`EdgeServeError` where there is no such app, or none of its inputs fits ``brings``."""
    if name not in apps:
        raise UnknownApp(f"no app {name!r} is served there{nearest(name, apps)}")
    inputs = apps[name]["inputs"]
    needed = [each for each, about in inputs.items() if not about.get("optional")]
    fitting = [each for each in needed or inputs if fits(inputs[each])]
    if len(needed) > 1 or not fitting:
        raise ConfigError(
            f"app {name!r} takes {', '.join(inputs) or 'no declared inputs'}; this front brings {brings}. "
            f"Declare it in [app.{name}.inputs], such as {example}"
        )
    return ServedApp(name, fitting[0], inputs, apps[name]["stream"] in STREAMS)


def inputs_from_json(app: str, declared: Mapping[str, Any], payload: bytes) -> Dict[str, Any]:
    """Inputs from a JSON object, arrays as the app declares them, without optional ones that are null; anything else is
    the text of the app's one input of text. Raises :class:`BadInput`."""
    try:
        text = payload.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"app {app!r}: the question is no UTF-8 ({error.reason}); send text, or JSON") from None
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        texts = [name for name, about in declared.items() if of_text(about)]
        if len(texts) != 1:
            raise BadInput(f"app {app!r}: expected a JSON object with {', '.join(declared) or 'its inputs'}")
        return {texts[0]: text}
    try:
        return {
            name: array_of(value, np.dtype(declared[name]["dtype"]))
            if name in declared and of_any(declared[name])
            else value
            for name, value in values.items()
            if value is not None or not declared.get(name, {}).get("optional")
        }
    except (ValueError, TypeError, OverflowError) as error:
        raise BadInput(f"app {app!r}: an input is no array of its declared dtype: {str(error)[:SHOWN_CHARS]}") from None


def as_json(value: Any) -> Any:
    """An output's value as JSON has it: lists for arrays, no bytes, null for a number that is not finite."""
    if isinstance(value, np.ndarray):
        if value.size > ELEMENTS_MAX or (value.dtype.hasobject and not is_text(value)):
            return {"dtype": value.dtype.name, "shape": list(value.shape)}
        return as_json(value.tolist())
    if isinstance(value, np.generic):
        return as_json(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [as_json(each) for each in value]
    if isinstance(value, dict):
        return {str(key): as_json(each) for key, each in value.items()}
    return len(value) if isinstance(value, (bytes, memoryview)) else value
