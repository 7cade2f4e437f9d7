"""Recorded lines of tegrastats: what each says, as plain tables for JSON. For boards that are not at hand.

A recording is a file of lines as tegrastats wrote them, or a table of tab-separated columns whose header names one
``line``; the other columns then go along as fields.
"""

from __future__ import annotations

from typing import IO, Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from edgeserve.device.parse import parse_line
from edgeserve.device.readings import state_of_line

COLUMN = "line"
"""The column of a table that holds what tegrastats wrote."""


class RecordedLine(NamedTuple):
    """One recorded line: its number in the file from 1 on, the other columns of its row, and the line itself."""

    number: int
    fields: Dict[str, str]
    text: str


LINE_MAX = 1 << 20
"""Characters of a recorded line: tegrastats writes a few hundred."""


def bounded_lines(file: IO[str]) -> Iterator[str]:
    """The lines of a file or pipe. :class:`ValueError` for one of more than :data:`LINE_MAX` characters: a device
    such as ``/dev/zero`` has a line without an end."""
    for line in iter(lambda: file.readline(LINE_MAX), ""):
        if len(line) == LINE_MAX:
            raise ValueError(f"a line has more than {LINE_MAX} characters")
        yield line


def recorded_lines(file: Iterable[str]) -> Iterator[RecordedLine]:
    """The lines of a recording, those without a word left out. Lines must end with ``\\n`` only: open the file with
    ``newline="\\n"``. A row that lacks the column is read as a whole, so that nothing is lost."""
    header: Optional[List[str]] = None
    first = True
    for number, row in enumerate(file, 1):
        text = row.rstrip("\r\n").lstrip("\ufeff" if first else "")
        if not text.strip():
            continue
        if first:
            first = False
            names = [name.strip() for name in text.split("\t")]
            if len(names) > 1 and COLUMN in names:
                header = names
                continue
        fields, line = _cells(header, text) if header is not None else ({}, text)
        yield RecordedLine(number, fields, line)


def _cells(header: List[str], text: str) -> Tuple[Dict[str, str], str]:
    place = header.index(COLUMN)
    cells = text.split("\t", len(header) - 1)
    if place >= len(cells):
        return {}, text
    return {name: cell for name, cell in zip(header, cells) if name != COLUMN}, cells[place]


def line_table(recorded: RecordedLine) -> Dict[str, Any]:
    """One line for JSON: ``tokens`` with every value and its unit, ``unparsed`` with the words that have the form of no
    token, and ``readings``, what the line says of the device (None where it does not say)."""
    line = parse_line(recorded.text)
    readings = state_of_line(line).table()
    del readings["at_ns"]
    time = next((token.text for token in line.of("time")), None)
    return {
        **recorded.fields,
        "number": recorded.number,
        "line": recorded.text,
        "time": time,
        "tokens": [token.table() for token in line.tokens],
        "readings": readings,
        "unparsed": line.unknown,
    }
