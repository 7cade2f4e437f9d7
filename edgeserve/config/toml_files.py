"""TOML files and texts, read into tables that nothing has checked yet."""

from __future__ import annotations

import re
import sys
from typing import Any, Dict

from edgeserve.config.text_files import decoded
from edgeserve.errors import ConfigError
from edgeserve.units import format_size

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE_BYTES_MAX = 4 << 20
"""The bytes of a configuration: some 50,000 lines."""


def read_toml(path: str) -> Dict[str, Any]:
    """The table of one TOML file, unchecked. :class:`ConfigError` names the file when it cannot be read."""
    return parse_toml(read_toml_text(path), path)


def read_toml_text(path: str) -> str:
    """The text of one TOML file, its lines as they end there."""
    made_by = "" if path.endswith(".toml") else "; of a model file 'edgeserve init' makes one"
    try:
        with open(path, "rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            size = format_size(FILE_BYTES_MAX)
            raise ConfigError(f"{path}: has more than {size}; give the path of a TOML file{made_by}")
        return decoded(content)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give the path of a TOML file{made_by}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: is not TOML: {error}{made_by}") from None


def parse_toml(text: str, source: str = "(a text)") -> Dict[str, Any]:
    """The table of a TOML text, unchecked."""
    try:
        return dict(tomllib.loads(text))
    except RecursionError:
        raise ConfigError(f"{source}: is not TOML of ours: it is nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: is not TOML: {error}{_mend_of(text, str(error))}") from None


def _mend_of(text: str, error: str) -> str:
    """The mend of usual mistakes: line breaks of other systems; in the line that the parser stopped at, a text without
    quotes, as ``slo = 50ms`` is."""
    if "\r" in text.replace("\r\n", "\n"):
        return "; a line ends in a carriage return alone: end lines with LF, or with CR LF"
    place = re.search(r"at line (\d+)", error)
    lines = text.splitlines()
    if place is None or not 0 < int(place[1]) <= len(lines):
        return ""
    found = re.fullmatch(r"\s*([\w.-]+)\s*=\s*([\w.:/+-]+%?)\s*(#.*)?", lines[int(place[1]) - 1])
    return f'; texts and durations stand in quotes: {found[1]} = "{found[2]}"' if found is not None else ""
