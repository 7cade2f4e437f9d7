"""One line of tegrastats to tokens, by the class of each token and never by its position or the board: a pure function.

The order, the names and the presence of tokens differ between boards, releases and users, so nothing is looked for.
What has the form of a class is data, under any name; the rest is named in ``unparsed``. Every character of a
line that is no space belongs to one token or one unparsed word. Nothing raises. What a token means for a device (which
rails add up, which zones count) is not known here: see :mod:`edgeserve.device.readings`.

Classes, with what they look like::

    time         11-15-2024 08:38:09
    memory       RAM 6185/7620MB (lfb 8x2MB)    IRAM 0/252kB(lfb 252kB)    SWAP 0/3810MB (cached 1MB)
    cores        CPU [15%@729,off,11%@729]      cpu [0%,off]@102
    engine       GR3D_FREQ 63%@[621]  EMC_FREQ 43%@2133  VIC off  APE 200  NVDLA0_FREQ @1600  GR3D_FREQ 1%
    shares       MTS fg 1% bg 9%
    limit        EDP limit 1734
    temperature  cpu@53.968C    tj@63.2C/64C
    rail         VDD_IN 12479mW/12479mW    POM_5V_IN 1003/919    VIN 87426mW/43713mW/87426mW
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, Match, Optional, Pattern, Tuple, Union

LINE_CHARS_MAX = 16_384
"""A line of 14 cores and 40 tokens has about 900; beyond this bound the words are only named, not looked into."""

RAIL_NAMES = re.compile(r"(VDD|VDDQ|VIN|POM|VCC|NC)(_|$)|VDDRQ$|SYS5V$|.*_(5V|4V0|3V3|1V8)", re.IGNORECASE)
"""Names of power rails: a bare number behind one is milliwatts; behind any other name it is a clock in MHz."""

MEMORY_NAMES = re.compile(r"[A-Z]*RAM$|SWAP$", re.IGNORECASE)
"""Names of memory: two numbers without a unit behind one are megabytes; behind any other name they are milliwatts."""

OFF, UNKNOWN = "off", "unknown"

Number = Union[int, float]


@dataclass(frozen=True)
class Value:
    """One number of a token: ``value`` is None where the line says ``off`` (``state`` then says so). ``assumed``: the
    line gave no unit, and ``unit`` is the one that tegrastats means there. ``index`` counts cores and clocks."""

    name: str
    value: Optional[Number]
    unit: str
    state: str = ""
    index: Optional[int] = None
    assumed: bool = False

    def table(self) -> Dict[str, Any]:
        """A form of it for JSON, without fields that do not apply."""
        found: Dict[str, Any] = {"name": self.name, "value": self.value, "unit": self.unit}
        found.update({key: getattr(self, key) for key in ("state", "assumed") if getattr(self, key)})
        if self.index is not None:
            found["index"] = self.index
        return found


@dataclass(frozen=True)
class Token:
    """One token: its class, its name as the board writes it, its values, the text and where that starts in the line."""

    kind: str
    name: str
    values: Tuple[Value, ...]
    text: str
    start: int

    def get(self, name: str) -> Optional[Value]:
        """The first value of that name."""
        return next((value for value in self.values if value.name == name), None)

    def all(self, name: str) -> List[Value]:
        """Every value of that name, in order."""
        return [value for value in self.values if value.name == name]

    def table(self) -> Dict[str, Any]:
        """A form of it for JSON."""
        values: List[Dict[str, Any]] = [value.table() for value in self.values]
        if self.kind == "time":
            values = [{"name": "time", "value": self.text, "unit": "board time"}]
        return {"class": self.kind, "name": self.name, "text": self.text, "values": values}


@dataclass(frozen=True)
class Line:
    """A parsed line. ``unparsed`` are (word, start) of everything that has the form of no class."""

    tokens: Tuple[Token, ...]
    unparsed: Tuple[Tuple[str, int], ...]

    @property
    def unknown(self) -> List[str]:
        """The words that have the form of no class, in order."""
        return [word for word, _ in self.unparsed]

    def of(self, kind: str) -> List[Token]:
        """The tokens of one class."""
        return [token for token in self.tokens if token.kind == kind]


# --- the forms --------------------------------------------------------------------------------------------------------

_N = r"[0-9]{1,15}(?:\.[0-9]{1,12})?"
_NAME = r"(?P<name>[A-Za-z_][A-Za-z0-9_.:+-]{0,63})"
_END = r"(?=\s|\Z)"
_NONE = r"N/?A|NaN"  # seen in other tools' records of tegrastats
_BYTES = r"(?:[kKMGT]i?)?B"
_CLOCK = r"[kMG]?Hz"
_POWER = r"[mu]?[WAV]"
_CORES_CHARS = 4_000  # between brackets: 250 cores


def _form(text: str) -> Pattern[str]:
    return re.compile(text + _END, re.IGNORECASE)


_TIME = _form(r"(?P<time>[0-9]{2,4}[-/][0-9]{2}[-/][0-9]{2,4}\s+[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?)")
_MEMORY = _form(
    rf"{_NAME}\s+(?P<used>{_N})\s*(?P<used_unit>{_BYTES})?/(?P<total>{_N})(?P<unit>{_BYTES})?"
    rf"(?:\s*\(\s*(?P<key>[A-Za-z_]{{1,64}})\s+(?:(?P<count>[0-9]{{1,15}})x)?(?P<size>{_N})"
    rf"(?P<size_unit>{_BYTES})\s*\))?"
)
_CORES = _form(rf"{_NAME}\s*\[(?P<cores>[^\[\]]{{0,{_CORES_CHARS}}})\](?:@(?P<clock>{_N})(?P<unit>{_CLOCK})?)?")
_CORE = re.compile(
    rf"\s*(?:(?P<off>off|{_NONE})|(?P<load>{_N})%(?:@(?P<clock>{_N})(?P<unit>{_CLOCK})?)?)\s*\Z", re.IGNORECASE
)
_SHARES = _form(rf"(?P<name>MTS)(?P<shares>(?:\s+[A-Za-z_]+\s+{_N}%)+)")
_SHARE = re.compile(rf"([A-Za-z_]+)\s+({_N})%")
_LIMIT = _form(rf"(?P<name>EDP)\s+limit\s+(?P<clock>{_N})(?P<unit>{_CLOCK})?")
_TEMPERATURE = _form(
    rf"(?P<name>[A-Za-z0-9_.:+-]{{1,64}})@(?:(?P<none>{_NONE})|(?P<now>-?{_N})(?P<unit>°?[CFK])?"
    rf"(?:/(?P<max>-?{_N})(?P<max_unit>°?[CFK])?)?)"
)
_RAIL = _form(rf"{_NAME}\s+(?P<powers>-?{_N}(?:{_POWER})?(?:/-?{_N}(?:{_POWER})?){{0,7}})")
_POWER_VALUE = re.compile(rf"(-?{_N})({_POWER})?", re.IGNORECASE)
_ENGINE = _form(
    rf"{_NAME}\s+(?:(?P<off>off|{_NONE})|(?=[0-9@])(?:(?P<load>{_N})%)?"
    rf"(?:@(?:\[(?P<clocks>[^\[\]]{{0,200}})\]|(?P<clock>{_N})(?P<unit>{_CLOCK})?))?)"
)
_ENGINE_CLOCK = re.compile(rf"\s*({_N})({_CLOCK})?\s*\Z", re.IGNORECASE)
_WORD = re.compile(r"\S+")
_SPACE = re.compile(r"\s*")

_RAIL_PLACES = ("now", "average", "max")


def _number(text: str) -> Number:
    return float(text) if "." in text else int(text)


def _value(name: str, text: str, unit: Optional[str], default: str, index: Optional[int] = None) -> Value:
    return Value(name, _number(text), unit or default, index=index, assumed=unit is None)


def _time_of(match: Match[str]) -> Optional[List[Value]]:
    return []


def _memory_of(match: Match[str]) -> Optional[List[Value]]:
    unit, key = match.group("unit"), match.group("key")
    if not unit and not key and not MEMORY_NAMES.match(match.group("name")):
        return None  # a rail without units
    values = [
        _value("used", match.group("used"), match.group("used_unit") or unit, "MB"),
        _value("total", match.group("total"), unit, "MB"),
    ]
    if key:
        if match.group("count"):
            values.append(Value(f"{key.lower()}_count", int(match.group("count")), "blocks"))
        values.append(Value(key.lower(), _number(match.group("size")), match.group("size_unit")))
    return values


def _cores_of(match: Match[str]) -> Optional[List[Value]]:
    values: List[Value] = []
    for index, text in enumerate(match.group("cores").split(",")):
        core = _CORE.match(text)
        if core is None:
            values.append(Value("load", None, "%", UNKNOWN, index))  # a hole keeps its place; see _unknown_cores
        elif core.group("off"):
            values.append(Value("load", None, "%", core.group("off").lower(), index))
        else:
            values.append(_value("load", core.group("load"), "%", "%", index))
            if core.group("clock"):
                values.append(_value("clock", core.group("clock"), core.group("unit"), "MHz", index))
    if match.group("clock"):
        values.append(_value("clock", match.group("clock"), match.group("unit"), "MHz"))
    return values


def _shares_of(match: Match[str]) -> Optional[List[Value]]:
    return [_value(key, share, "%", "%") for key, share in _SHARE.findall(match.group("shares"))]


def _limit_of(match: Match[str]) -> Optional[List[Value]]:
    return [_value("limit", match.group("clock"), match.group("unit"), "MHz")]


def _temperature_of(match: Match[str]) -> Optional[List[Value]]:
    if match.group("none"):
        return [Value("now", None, "C", match.group("none").lower())]
    found = []
    for name, key, unit in (("now", "now", "unit"), ("max", "max", "max_unit")):
        if match.group(key) is not None:
            value = _value(name, match.group(key), (match.group(unit) or "").lstrip("°") or None, "C")
            is_off = value.unit.upper() == "C" and is_gated(value.value)
            found.append(replace(value, state=OFF if is_off else ""))
    return found


def _rail_of(match: Match[str]) -> Optional[List[Value]]:
    powers = match.group("powers")
    if "/" not in powers and not powers[-1].isalpha() and not RAIL_NAMES.match(match.group("name")):
        return None  # one bare number: a clock, as in "APE 150"
    values = []
    for place, text in enumerate(powers.split("/")):
        number = _POWER_VALUE.fullmatch(text)
        assert number is not None, "the form of the token holds that of its values"
        name = _RAIL_PLACES[place] if place < len(_RAIL_PLACES) else f"value{place + 1}"
        values.append(_value(name, number.group(1), number.group(2), "mW"))
    return values


def _engine_of(match: Match[str]) -> Optional[List[Value]]:
    if match.group("off"):
        return [Value("load", None, "%", match.group("off").lower())]
    values: List[Value] = []
    if match.group("load"):
        values.append(_value("load", match.group("load"), "%", "%"))
    if match.group("clock"):
        values.append(_value("clock", match.group("clock"), match.group("unit"), "MHz"))
    clocks = match.group("clocks")
    if clocks is not None and clocks.strip():
        for index, text in enumerate(clocks.split(",")):
            clock = _ENGINE_CLOCK.match(text)
            if clock is None:
                return None
            values.append(_value("clock", clock.group(1), clock.group(2), "MHz", index))
    return values


def _bare_of(match: Match[str]) -> Optional[List[Value]]:
    return [_value("clock", match.group("clock"), match.group("unit"), "MHz")]


_BARE = _form(rf"{_NAME}\s+(?P<clock>{_N})(?P<unit>{_CLOCK})?")

_CLASSES: Tuple[Tuple[str, Pattern[str], Callable[[Match[str]], Optional[List[Value]]]], ...] = (
    ("time", _TIME, _time_of),
    ("limit", _LIMIT, _limit_of),
    ("shares", _SHARES, _shares_of),
    ("cores", _CORES, _cores_of),
    ("memory", _MEMORY, _memory_of),
    ("rail", _RAIL, _rail_of),
    ("engine", _BARE, _bare_of),
    ("engine", _ENGINE, _engine_of),
    ("temperature", _TEMPERATURE, _temperature_of),
)
"""Tried in this order. Two forms meet in one place only: a bare number, which the rail's name decides."""

GATED_C, BROKEN_C = -40, 200
"""Outside a temperature is no measurement: a zone that is switched off reads -256, Tegra is rated from -40, and boards
go off at 117.5 at most."""


def is_gated(celsius: Optional[Number]) -> bool:
    """True if a temperature says that its sensor is off, or broken."""
    return celsius is not None and not GATED_C <= celsius <= BROKEN_C


def parse_line(text: str) -> Line:
    """The tokens of one line. Never raises."""
    tokens: List[Token] = []
    unparsed: List[Tuple[str, int]] = []
    at = _end(_SPACE.match(text))
    while at < len(text):
        token = _token_at(text, at) if at < LINE_CHARS_MAX else None
        if token is None:
            word = _WORD.match(text, at)
            assert word is not None, "spaces were skipped"
            unparsed.append((word.group(), at))
            at = word.end()
        else:
            tokens.append(token)
            unparsed.extend(_unknown_cores(token))
            at += len(token.text)
        at = _end(_SPACE.match(text, at))
    return Line(tuple(tokens), tuple(unparsed))


def _end(match: Optional[Match[str]]) -> int:
    assert match is not None, "the pattern matches nothing, too"
    return match.end()


def _token_at(text: str, at: int) -> Optional[Token]:
    for kind, form, read in _CLASSES:
        match = form.match(text, at)
        if match is None or match.end() == at:
            continue
        values = read(match)
        if values is not None:
            name = match.groupdict().get("name") or kind
            return Token(kind, name, tuple(values), match.group(), at)
    return None


def _unknown_cores(token: Token) -> List[Tuple[str, int]]:
    """The cores of a list that have no known form: they keep their place as holes, and are named as unparsed."""
    if token.kind != "cores" or not any(value.state == UNKNOWN for value in token.values):
        return []
    found, at = [], token.text.index("[") + 1
    for text in token.text[at : token.text.index("]")].split(","):
        if _CORE.match(text) is None:
            found.append((text, token.start + at))
        at += len(text) + 1
    return found
