"""Typed reading of a model's ``options``: each engine names the keys it knows, everything else is refused.

Knows the configuration's words only; what an option means is the engine's business.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Mapping, Tuple, Union

from edgeserve.config.schema import ModelConfig
from edgeserve.errors import ConfigError, nearest
from edgeserve.units import parse_duration_ns, parse_size_bytes


def of_name(value: Union[int, Mapping[str, int]], name: str) -> int:
    """What stands for one name where a whole number stands for all, or one by name; 0 for a name that is not there."""
    return value.get(name, 0) if isinstance(value, Mapping) else value


class Options:
    """The options of one model. Making it refuses unknown keys; each getter checks its value.

    Every refusal is a :class:`ConfigError` that names the model, the key, the value and what was expected.
    """

    def __init__(self, model: ModelConfig, known: Iterable[str]) -> None:
        self._model = model
        self._known = names = tuple(known)
        for key in model.options:
            if key not in names:
                raise ConfigError(
                    f"[model.{model.name}] options (engine {model.engine!r}) has no key {key!r}{nearest(key, names)}"
                )

    def __contains__(self, key: str) -> bool:
        return key in self._model.options

    def takes(self, key: str) -> bool:
        """Whether the engine has such an option, given or not."""
        return key in self._known

    def where(self, key: str) -> str:
        """How messages name the option."""
        return f"[model.{self._model.name}] options.{key}"

    def boolean(self, key: str, default: bool) -> bool:
        value = self._model.options.get(key, default)
        if not isinstance(value, bool):
            raise self._refuse(key, value, "true or false")
        return value

    def integer(self, key: str, default: int, low: int, high: int = 2**31) -> int:
        value = self._model.options.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._refuse(key, value, f"a whole number from {low} to {high}")
        return int(value)

    def integers(self, key: str, default: int, low: int, high: int = 2**31) -> Union[int, Dict[str, int]]:
        """A whole number for all, or one by name in a table (see :func:`of_name`)."""
        value = self._model.options.get(key, default)
        each = list(value.values()) if isinstance(value, dict) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) and low <= item <= high for item in each):
            raise self._refuse(key, value, f"a whole number from {low} to {high}, or a table of them by name")
        return dict(value) if isinstance(value, dict) else int(value)

    def number(self, key: str, default: float, low: float, high: float) -> float:
        value = self._model.options.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise self._refuse(key, value, f"a number from {low} to {high}")
        return float(value)

    def text(self, key: str, default: str = "") -> str:
        value = self._model.options.get(key, default)
        if not isinstance(value, str):
            raise self._refuse(key, value, "a string")
        return value

    def duration_ns(self, key: str, default_ns: int) -> int:
        if key not in self._model.options:
            return default_ns
        value = self._model.options[key]
        try:
            duration_ns: int = parse_duration_ns(value)
        except ValueError:
            raise self._refuse(key, value, "a duration with a unit, such as '50ms'") from None
        return duration_ns

    def size_bytes(self, key: str, default_bytes: int) -> int:
        """``false`` is 0."""
        if key not in self._model.options:
            return default_bytes
        value = self._model.options[key]
        if value is False:
            return 0
        try:
            return parse_size_bytes(value)
        except (ValueError, TypeError):
            raise self._refuse(key, value, "a size with a unit, such as '64MiB', or false") from None

    def texts(self, key: str) -> Tuple[str, ...]:
        """A list of strings; a single string counts as a list of one; absent is empty."""
        value = self._model.options.get(key, ())
        if isinstance(value, str):
            return (value,)
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
            raise self._refuse(key, value, "a list of strings")
        return tuple(value)

    def table(self, key: str) -> Dict[str, Any]:
        value = self._model.options.get(key, {})
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            raise self._refuse(key, value, "a table, such as {x = ...}")
        return dict(value)

    def texts_by_name(self, key: str) -> Dict[str, str]:
        table = self.table(key)
        if not all(isinstance(value, str) for value in table.values()):
            raise self._refuse(key, table, "a table of strings, such as {x = 'mask'}")
        return table

    def dims_by_name(self, key: str) -> Dict[str, Tuple[int, ...]]:
        table = self.table(key)
        for dims in table.values():
            if not isinstance(dims, (list, tuple)) or not all(
                isinstance(item, int) and not isinstance(item, bool) and item >= 1 for item in dims
            ):
                raise self._refuse(key, table, "a table of lists of whole numbers, such as {x = [1, 1, 32]}")
        return {name: tuple(dims) for name, dims in table.items()}

    def _refuse(self, key: str, value: Any, expected: str) -> ConfigError:
        return ConfigError(f"{self.where(key)} = {value!r}: expected {expected}")
