"""Readers of configuration values: a TOML value and where it stands -> the typed value, or ``ConfigError``.

``entry`` makes a dataclass field of a reader; :mod:`edgeserve.config.loading` applies them. Knows no section.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, field, fields
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar, Union

from edgeserve.config.limits import NUMBER_MAX
from edgeserve.errors import ConfigError, nearest
from edgeserve.units import format_size, parse_duration_ns, parse_size_bytes

Reader = Callable[[Any, str], Any]
"""``read(value, where)``; ``where`` names the section and key in messages."""


Marked = TypeVar("Marked", bound=Reader)
T = TypeVar("T")


def takes(**schema: Any) -> Callable[[Marked], Marked]:
    """Say of a reader what it takes, as a JSON Schema."""

    def mark(read: Marked) -> Marked:
        vars(read)["schema"] = schema
        return read

    return mark


def schema_of(read: Reader) -> Dict[str, Any]:
    """The JSON Schema of what a reader takes; anything, of a reader that does not say. Editors check by it; what it
    cannot say, the reader says."""
    return dict(vars(read).get("schema", {}))


@takes(type="string")
def string(value: Any, where: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise ConfigError(f"{where} = {value!r}: expected a string")
    return value


@takes(type="string", pattern="^[0-9a-f]{64}$")
def sha256(value: Any, where: str) -> str:
    """The digest of a file, in lower case."""
    if not isinstance(value, str) or len(value) != 64 or set(value) - set("0123456789abcdef"):
        raise ConfigError(f"{where} = {value!r}: expected 64 hexadecimal digits in lower case (sha256sum FILE)")
    return value


@takes(type="string", pattern="^(cpu|cuda(:[0-9]{1,2})?)$")
def chip(value: Any, where: str) -> str:
    """What computes: the host, or a GPU by its number."""
    if not isinstance(value, str) or re.fullmatch("cpu|cuda(:[0-9]{1,2})?", value) is None:
        raise ConfigError(f"{where} = {value!r}: expected 'cpu', 'cuda', or 'cuda:1' for the second of several GPUs")
    return value


@takes(type="boolean")
def boolean(value: Any, where: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ConfigError(f"{where} = {value!r}: expected true or false")
    return value


def integer(low: int, high: int = 2**31) -> Reader:
    """A reader of whole numbers from ``low`` to ``high``."""

    @takes(type="integer", minimum=low, maximum=high)
    def read(value: Any, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ConfigError(f"{where} = {value!r}: expected a whole number from {low} to {high}")
        return int(value)

    return read


def number(low: float, high: float = NUMBER_MAX) -> Reader:
    """A reader of numbers from ``low`` to ``high``."""

    @takes(type="number", **_bounds(low, high))
    def read(value: Any, where: str) -> float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        try:
            if is_number and low <= value <= high:
                return float(value)
        except OverflowError:  # a whole number that no float holds
            pass
        raise ConfigError(f"{where} = {_shown(value)}: expected a number from {low} to {high}")

    return read


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _bounds(low: float, high: float) -> Dict[str, float]:
    bounds = {"minimum": low, "maximum": high}
    return {name: bound for name, bound in bounds.items() if abs(bound) != float("inf")}


any_number = number(float("-inf"), float("inf"))


@takes(type="string")
def duration(value: Any, where: str) -> int:
    """A duration with its unit, in nanoseconds."""
    try:
        return parse_duration_ns(value)
    except ValueError as error:
        raise ConfigError(f"{where} = {error}") from None


@takes(type="string")
def size(value: Any, where: str) -> int:
    """A size with its unit, in bytes."""
    try:
        return parse_size_bytes(value)
    except ValueError as error:
        raise ConfigError(f"{where} = {error}") from None


AUTO = -1
"""The result of :func:`size_or_auto` for ``"auto"``: the machine that serves tells the size."""


@takes(type="string")
def size_or_auto(value: Any, where: str) -> int:
    """A size with its unit, in bytes, or :data:`AUTO`."""
    try:
        return AUTO if value == "auto" else size(value, where)
    except ConfigError as error:
        raise ConfigError(f"{error}; or 'auto'") from None


def size_from(low: int) -> Reader:
    """A reader of sizes of at least ``low`` bytes."""

    @takes(type="string")
    def read(value: Any, where: str) -> int:
        found = size(value, where)
        if found < low:
            raise ConfigError(f"{where} = {value!r}: expected at least {format_size(low)}")
        return found

    return read


def one_of(*names: str) -> Reader:
    """A reader of one of these strings."""

    @takes(enum=list(names))
    def read(value: Any, where: str) -> str:
        if value not in names:
            raise ConfigError(f"{where} = {value!r}: expected one of {', '.join(map(repr, names))}")
        return str(value)

    return read


@takes(type="number", exclusiveMinimum=0, maximum=1)
def quality_number(value: Any, where: str) -> float:
    """The worth of an answer as a share of a whole one's."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 < value <= 1.0:
        raise ConfigError(f"{where} = {value!r}: expected a quality above 0, 1 at most")
    return float(value)


def tuple_of(reader: Reader) -> Reader:
    """A reader of lists."""

    @takes(type="array", items=schema_of(reader))
    def read(value: Any, where: str) -> Tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{where} = {value!r}: expected a list")
        return tuple(reader(item, f"{where}[{index}]") for index, item in enumerate(value))

    return read


@takes(type="array", items={"type": "integer", "minimum": 1, "maximum": 4096})
def sizes(value: Any, where: str) -> Tuple[int, ...]:
    """Batch sizes in rising order."""
    found = tuple_of(integer(1, 4096))(value, where)
    if not found or list(found) != sorted(set(found)):
        raise ConfigError(f"{where} = {value!r}: expected batch sizes in rising order, such as [1, 2, 4, 8]")
    return tuple(found)


def table_of(reader: Reader) -> Reader:
    """A reader of tables with strings as keys."""

    @takes(type="object", additionalProperties=schema_of(reader))
    def read(value: Any, where: str) -> Dict[str, Any]:
        if not isinstance(value, dict):
            raise ConfigError(f"{where} = {value!r}: expected a table")
        return {str(key): reader(item, f"{where}.{key}") for key, item in value.items()}

    return read


def list_or_table_of(reader: Reader) -> Reader:
    """A reader of lists, which become tuples, and of tables with strings as keys."""

    @takes(anyOf=[schema_of(tuple_of(reader)), schema_of(table_of(reader))])
    def read(value: Any, where: str) -> Any:
        if isinstance(value, dict):
            return table_of(reader)(value, where)
        if not isinstance(value, list):
            raise ConfigError(f"{where} = {value!r}: expected a list or a table")
        return tuple_of(reader)(value, where)

    return read


@takes()
def anything(value: Any, where: str) -> Any:
    """Any value, unchecked."""
    return value


@takes(type="object", additionalProperties={"type": "string"})
def durations_by_size(value: Any, where: str) -> Dict[int, int]:
    """A table: batch size -> duration."""
    table = table_of(duration)(value, where)
    for key in table:
        if not key.isdecimal() or int(key) < 1:
            raise ConfigError(f"{where}.{key}: expected a batch size as the key, such as {where}.4 = '12ms'")
    return {int(key): ns for key, ns in table.items()}


@takes(anyOf=[{"enum": ["all", "policy"]}, {"type": "integer", "minimum": 1}])
def join(value: Any, where: str) -> Union[str, int]:
    """When a join goes on: ``all``, ``policy`` or a number of predecessors."""
    if value in ("all", "policy") or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return "all" if value == "all" else "policy" if value == "policy" else int(value)
    raise ConfigError(f"{where} = {value!r}: expected 'all', 'policy' or a number of parts to wait for")


def entry(reader: Reader, default: Any = MISSING, key: str | None = None, factory: Any = MISSING) -> Any:
    """A field of a section's dataclass: its reader, its default or factory, and its name in the file where the two
    names differ."""
    metadata = {"read": reader, "key": key}
    if factory is not MISSING:
        return field(default_factory=factory, metadata=metadata)
    if default is not MISSING:
        return field(default=default, metadata=metadata)
    return field(metadata=metadata)


def refuse_gone(where: str, table: Mapping[str, Any]) -> None:
    """See :func:`edgeserve.config.gone.refuse_gone`."""
    from edgeserve.config import gone  # where a key is not known

    gone.refuse_gone(where, table)


def read_table(kind: Type[T], table: Any, where: str, also: Sequence[str] = (), **given: Any) -> T:
    """One TOML table to one dataclass; unknown keys are refused with the nearest name. ``also``: keys that another
    reader has read."""
    readers = {}
    for item in fields(kind):  # type: ignore[arg-type]
        if "read" in item.metadata:
            readers[item.metadata["key"] or item.name] = item
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} = {table!r}: expected a table of keys such as {', '.join(list(readers)[:3])}")
    values = dict(given)
    for key, value in table.items():
        if key not in readers:
            refuse_gone(where, table)
            raise ConfigError(f"{where} has no key {key!r}{nearest(key, [*readers, *also])}")
        item = readers[key]
        values[item.name] = item.metadata["read"](value, f"{where} {key}")
    for key, item in readers.items():
        if item.name not in values and item.default is MISSING and item.default_factory is MISSING:
            raise ConfigError(
                f"{where} lacks the key {key!r}; it needs {', '.join(_needed(readers))}, and may have "
                f"{', '.join(name for name in readers if name not in _needed(readers))}"
            )
    return kind(**values)


def _needed(readers: Mapping[str, Any]) -> List[str]:
    return [key for key, item in readers.items() if item.default is MISSING and item.default_factory is MISSING]


@takes(type="object")
def read_predictors(value: Any, where: str) -> Dict[str, str]:
    """``[app.NAME.predict]`` to hint -> function; the hint ``length`` may be an input's axis, and ``steps`` a file.
    TOML takes an unquoted ``NODE.steps`` for a table in the table: both spellings mean the hint."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} = {value!r}: expected a table of hints, such as \"length\" = 'module:function'")
    found: Dict[str, str] = {}
    for name, item in value.items():
        inner = (
            {f"{name}.{rest}": function for rest, function in read_predictors(item, f"{where}.{name}").items()}
            if isinstance(item, Mapping)
            else {name: item}
        )
        for hint, function in inner.items():
            if hint in found:
                raise ConfigError(f"{where}.{hint} is given twice, quoted and not; take one of them away")
            is_other, also = OTHER_PREDICTORS.get(hint, (names_function, ""))
            if not isinstance(function, str) or not (names_function(function) or is_other(function)):
                raise ConfigError(
                    f"{where}.{hint} = {function!r}: expected 'module:function', looked for beside the "
                    f"configuration{also}"
                )
            found[hint] = function
    return found


def input_axis(value: str) -> Optional[Tuple[str, int]]:
    """An input's name and the number of its axis, written as ``"image[1]"``; None where it is written otherwise."""
    match = re.fullmatch(r"(.+)\[(\d{1,2})\]", value)
    return None if match is None else (match.group(1), int(match.group(2)))


def names_lengths(value: str) -> bool:
    """True if it names a file of ``edgeserve profile --fit`` that predicts lengths of answers."""
    return value.endswith(".npz")


def names_function(value: Any) -> bool:
    """True if it is written as ``"module:function"``."""
    return isinstance(value, str) and re.fullmatch(r"[\w.]+:[\w.]+", value) is not None


OTHER_PREDICTORS: Mapping[str, Tuple[Callable[[str], Any], str]] = {
    "length": (input_axis, ", or an input and its axis, such as 'image[1]'"),
    "steps": (names_lengths, ", or a file of 'edgeserve profile --fit', such as 'chat.length.npz'"),
}
"""Hint -> what else than a function may predict it, and how that is written."""
