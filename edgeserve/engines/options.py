"""Typed reading of a model's ``options``: each engine names the keys it knows, everything else is refused.

Knows the configuration's words only; what an option means is the engine's business.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Mapping, Tuple, Union

from edgeserve.config.readers import (
    Reader,
    anything,
    boolean,
    duration,
    integer,
    number,
    size,
    string,
    table_of,
    tuple_of,
)
from edgeserve.config.schema import ModelConfig
from edgeserve.errors import ConfigError, nearest


def of_name(value: Union[int, Mapping[str, int]], name: str) -> int:
    """The number for one name where a whole number stands for all, or one by name; 0 for a name that is not there."""
    return value.get(name, 0) if isinstance(value, Mapping) else value


class Options:
    """The options of one model. Making it refuses unknown keys. Each getter returns the checked value of a key, else
    its default: of a duration (``"2ms"``) nanoseconds, of a size (``"2MiB"``) bytes, of an absent table ``{}``.

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
        """True if the engine has such an option, given or not."""
        return key in self._known

    def where(self, key: str) -> str:
        """The option's name in messages."""
        return f"[model.{self._model.name}] options.{key}"

    def boolean(self, key: str, default: bool) -> bool:
        return bool(self._read(key, default, boolean))

    def integer(self, key: str, default: int, low: int, high: int = 2**31) -> int:
        return int(self._read(key, default, integer(low, high)))

    def integers(self, key: str, default: int, low: int, high: int = 2**31) -> Union[int, Dict[str, int]]:
        """A whole number for all, or one by name in a table (see :func:`of_name`)."""
        one = integer(low, high)
        named = isinstance(self._model.options.get(key), dict)
        found: Union[int, Dict[str, int]] = self._read(key, default, table_of(one) if named else one)
        return found

    def number(self, key: str, default: float, low: float, high: float) -> float:
        return float(self._read(key, default, number(low, high)))

    def text(self, key: str, default: str = "") -> str:
        return str(self._read(key, default, string))

    def duration_ns(self, key: str, default_ns: int) -> int:
        return int(self._read(key, default_ns, duration))

    def size_bytes(self, key: str, default_bytes: int) -> int:
        """Bytes, of a size with its unit, such as ``"2MiB"``; ``false`` is 0."""
        if self._model.options.get(key) is False:
            return 0
        try:
            return int(self._read(key, default_bytes, size))
        except ConfigError as error:
            raise ConfigError(f"{error}, or false") from None

    def texts(self, key: str) -> Tuple[str, ...]:
        """A list of strings; a single string counts as a list of one; absent is empty."""
        if isinstance(self._model.options.get(key), str):
            return (str(self._model.options[key]),)
        return tuple(self._read(key, (), tuple_of(string)))

    def table(self, key: str) -> Dict[str, Any]:
        return dict(self._read(key, {}, table_of(anything)))

    def texts_by_name(self, key: str) -> Dict[str, str]:
        return dict(self._read(key, {}, table_of(string)))

    def lists_by_name(self, key: str, read: Reader) -> Dict[str, Tuple[Any, ...]]:
        return dict(self._read(key, {}, table_of(tuple_of(read))))

    def _read(self, key: str, default: Any, read: Reader) -> Any:
        return read(self._model.options[key], self.where(key)) if key in self._model.options else default
