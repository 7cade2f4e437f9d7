"""Texts that others chose (names in a model's file, its metadata, file names, answers), written so that each stays one
value: in a configuration as TOML, in a comment, on a terminal.

A configuration is text that a server follows, and a terminal follows control sequences. So every such text is written
by the functions here: a name with line breaks, quotes or escape sequences adds no section and moves no cursor.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Iterable, Mapping, TextIO

from edgeserve.errors import ConfigError

_UNPRINTABLE = "\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
"""Control characters, breaks of lines and paragraphs, marks that turn the direction of writing round, and halves of
characters (what a file name holds that is no UTF-8)."""

_IN_A_LINE = re.compile(f"[{_UNPRINTABLE}]")
_IN_LINES = re.compile(f"(?!\r?\n|\t)[{_UNPRINTABLE}]")
_IN_A_STRING = re.compile(f'[{_UNPRINTABLE}"\\\\]')
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")


def one_line(text: str) -> str:
    """The text on one line: what would break it or steer a terminal stands there as an escape (``\\n``, ``\\x1b``)."""
    return _IN_A_LINE.sub(_escaped, text)


def printable(text: str) -> str:
    """The same of a text that may have lines and tabs."""
    return _IN_LINES.sub(_escaped, text)


def toml_string(text: str) -> str:
    """A string of TOML. :class:`ConfigError` for what no TOML can say: a name that is no Unicode text."""
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise ConfigError(f"{text!r}: no configuration can name it, since it is no UTF-8; rename it")
    return f'"{_IN_A_STRING.sub(_escaped_in_toml, text)}"'


def toml_key(name: str) -> str:
    """A key of TOML, quoted where it has to be."""
    return name if _BARE_KEY.match(name) else toml_string(name)


def toml_value(value: Any) -> str:
    """A value of TOML on one line: a table, list, string, number or truth value."""
    if isinstance(value, Mapping):
        inside = ", ".join(f"{toml_key(str(key))} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, str):
        return toml_string(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)  # also inf and nan
    raise TypeError(f"a {type(value).__name__} is no value of TOML")


def toml_file(lines: Iterable[str]) -> str:
    """A file of these lines, each of which stays one, for any text of its comment."""
    return "".join(f"{one_line(line)}\n" for line in lines)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


def _escaped_in_toml(found: re.Match[str]) -> str:
    char = found[0]
    return f"\\{char}" if char in '"\\' else f"\\u{ord(char):04x}"  # none of them is beyond U+FFFF


class PlainLog(logging.Formatter):
    """A format of log records whose messages stay on one line each, also with texts of a client or a model in them."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 the base class's name
        """See :class:`logging.Formatter`."""
        record.message = one_line(record.message)
        return super().formatMessage(record)


def log_to(stream: TextIO, level: int, form: str) -> None:
    """Have the root logger write there, as a command does."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PlainLog(form))
    logging.basicConfig(level=level, handlers=[handler])


class PlainOutput:
    """An output stream that writes every text :func:`printable`. All else is the stream's own. ``rich_proxied_file`` is
    where rich finds the stream that takes its colours."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        """Write a text; how many characters were given."""
        self.rich_proxied_file.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)
