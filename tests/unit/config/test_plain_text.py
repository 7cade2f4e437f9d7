"""Foreign texts of any content: a configuration means what was found, and a terminal shows it."""

from __future__ import annotations

import io
import math
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeserve.config.plain_text import PlainOutput, one_line, printable, toml_file, toml_key, toml_string, toml_value
from edgeserve.config.toml_files import parse_toml
from edgeserve.errors import ConfigError

UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
ANYTHING = st.text(st.characters(), max_size=30)  # also halves of characters, as file names of Linux may give
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | UNICODE,
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(UNICODE, inside, max_size=4),
    max_leaves=12,
)
ATTACKS = [
    '"',
    "\\",
    "\n[model.x]\nengine = 'python'",
    "'''",
    '"""',
    "\r",
    "\x00",
    "\x7f",
    "\x85",
    "\u2028",
    "😀",
    "a.b",
    "",
]


@given(st.dictionaries(UNICODE, VALUES, max_size=4))
def test_what_is_written_is_read_back_as_it_was(table):
    lines = [f"{toml_key(key)} = {toml_value(value)}" for key, value in table.items()]
    assert parse_toml(toml_file(lines)) == table


@pytest.mark.parametrize("text", ATTACKS)
def test_no_text_ends_its_string_its_key_or_its_comment(text):
    lines = [f"[{toml_key(text)}]", f"{toml_key(text)} = {toml_string(text)}  # {text}", f"# {text}", "end = 1"]
    assert parse_toml(toml_file(lines)) == {text: {text: text, "end": 1}}


def test_numbers_that_are_none_are_written_too():
    read = parse_toml(f"x = {toml_value([math.inf, -math.inf, math.nan])}")["x"]
    assert read[:2] == [math.inf, -math.inf] and math.isnan(read[2])


def test_what_no_configuration_can_say_is_refused_and_shown():
    with pytest.raises(ConfigError, match=r"a\\udcff.*no UTF-8"):
        toml_string("a\udcff")


@given(ANYTHING)
def test_what_is_printed_steers_no_terminal(text):
    out = io.StringIO()
    print(text, file=PlainOutput(out))
    for shown, allowed in ((out.getvalue(), "\n\t"), (printable(text), "\n\t"), (one_line(text), "")):
        shown = shown.replace("\r\n", "\n")
        shown.encode("utf-8")
        assert not [char for char in shown if unicodedata.category(char) == "Cc" and char not in allowed]
    assert len(one_line(text).splitlines()) <= 1


@pytest.mark.parametrize("text", ["plain", "Straße 東京 שלום", "👩‍👩‍👧 in one", "a\tb\nc", "lines of\r\nWindows\r\n"])
def test_what_people_write_is_printed_as_it_is(text):
    assert printable(text) == text
