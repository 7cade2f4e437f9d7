"""The options of a policy: what ``[policy.NAME]`` may say, with types, defaults, bounds and meanings.

Each policy names a frozen dataclass (``Policy.options_type``) whose fields are made by :func:`option`. The message of
an option that is refused and the table in ``docs/reference/policy-options.md`` are made from these fields.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Dict, Mapping, NamedTuple, Sequence, Tuple, Type, Union

from edgeserve.compiled import mypyc_attr
from edgeserve.errors import ConfigError, nearest

Number = Union[int, float]
"""A number that may have a fraction. (Compiled, a class cannot inherit an attribute of type ``float``.)"""

INF = math.inf

TYPE_WORDS: Mapping[type, str] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    tuple: "list",
}
"""The name, in messages and tables, of a value of a default's type."""


def option(default: object, meaning: str, low: Number = -INF, high: Number = INF, one_of: Sequence[str] = ()) -> Any:
    """A field of a dataclass of options. The type of ``default`` is the accepted type; ``low`` and ``high`` bound a
    number and are allowed themselves; ``one_of`` lists the texts that are allowed."""
    return field(default=default, metadata={"meaning": meaning, "low": low, "high": high, "one_of": tuple(one_of)})


def other_default(kind: Type[Any], name: str, default: object) -> Any:
    """The option ``name`` of the dataclass ``kind``, with another default."""
    return next(field(default=default, metadata=item.metadata) for item in fields(kind) if item.name == name)


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(frozen=True)
class PolicyOptions:
    """Options of every policy."""

    trials: bool = option(
        True,
        "run requests that the policy gives up because of an estimate, where the lane idles: the estimate is mended",
    )


class PolicyOption(NamedTuple):
    """One option: its ``key`` in the file, the ``name`` of its field (``lambda_`` of ``lambda``), its default (a list
    where the field holds a tuple), its meaning, and the allowed values."""

    key: str
    name: str
    default: object
    meaning: str
    low: Number
    high: Number
    one_of: Tuple[str, ...]

    @property
    def type_words(self) -> str:
        """The allowed values, in words: ``number from 0 to 1``."""
        if self.one_of:
            return ", ".join([f'"{word}"' for word in self.one_of])
        words = TYPE_WORDS[tuple if isinstance(self.default, list) else type(self.default)]
        if self.low > -INF:
            words += f" from {self.low}"
        return words if self.high == INF else f"{words} to {self.high}"

    def read(self, value: object, where: str) -> object:
        """The value as the field holds it. Raises :class:`ConfigError` that begins with ``where``."""
        if isinstance(self.default, float) and type(value) is int:
            value = float(value)
        if self.one_of:
            if value not in self.one_of:
                near = get_close_matches(str(value), self.one_of, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ConfigError(f"{where} = {value!r}: expected one of {self.type_words}{hint}")
        elif type(value) is not type(self.default):
            words = self.type_words if isinstance(self.default, bool) else f"a {self.type_words}"
            example = f", such as {self.default!r}" if self.default not in ([], "") else ""
            raise ConfigError(f"{where} = {value!r}: expected {words}{example}")
        elif isinstance(value, (int, float)) and not (self.low <= value <= self.high and abs(value) < INF):
            raise ConfigError(f"{where} = {value!r}: expected a {self.type_words}")
        return tuple(value) if isinstance(value, list) else value


def options_of(kind: Type[PolicyOptions]) -> Dict[str, PolicyOption]:
    """Key in the file -> the option, those of every policy first."""
    found = {}
    for item in fields(kind):
        default: Any = item.default
        told: Mapping[str, Any] = item.metadata
        found[item.name.rstrip("_")] = PolicyOption(
            item.name.rstrip("_"),
            item.name,
            list(default) if isinstance(default, tuple) else default,
            told["meaning"],
            told["low"],
            told["high"],
            told["one_of"],
        )
    return found


def read_options(kind: Type[PolicyOptions], name: str, given: Mapping[str, object]) -> PolicyOptions:
    """The options of ``[policy.name]``. An unknown key, a value of a wrong type and one out of bounds raise
    :class:`ConfigError`."""
    known = options_of(kind)
    values: Dict[str, Any] = {}
    for key, value in given.items():
        if key not in known:
            raise ConfigError(f"[policy.{name}] has no option {key!r}{nearest(key, known)}")
        values[known[key].name] = known[key].read(value, f"[policy.{name}] {key}")
    return kind(**values)
