"""tegrastats by token class: nothing of a line is lost, nothing raises, and what is absent is never zero."""

from __future__ import annotations

import csv
import os

import pytest
from tegrastats_lines import CASES, mutated

from edgeserve.device.boards import total_power_w
from edgeserve.device.parse import parse_line
from edgeserve.device.readings import state_of_line
from edgeserve.device.state import DeviceState

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
CAPTURED = os.path.join(os.path.dirname(ROOT), "shared", "data", "tegrastats", "lines.tsv")
WITHOUT_CAPTURED = "the captured lines of shared/data do not lie beside this checkout (their licences keep them out)"

TOTALS = {
    "ts01": 12.479,
    "ts03": 5.297,
    "ts05": 7.737,
    "ts11": 3.113,
    "ts12": 6.14,
    "ts16": 8.726,
    "ts18": 9.25,
    "ts23": 2.532,
    "ts31": 17.946,
    "ts34": 74.82,
    "ts38": None,
    "ts42": 9.428,
    "ts44": 22.43,
    "ts49": 1.003,
    "ts54": 32.85,
    "ts56": 5.079,
}
"""Watts of captured lines, added up by hand from the lines by the table of boards."""


def captured():
    if not os.path.exists(CAPTURED):
        pytest.skip(WITHOUT_CAPTURED)
    with open(CAPTURED, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def assert_nothing_is_lost(text):
    """Independent of the parser's own idea of a token: what lies between tokens and unparsed words is space."""
    line = parse_line(text)
    pieces = sorted(
        [(token.start, token.text) for token in line.tokens]
        + [(start, word) for word, start in line.unparsed if not inside(start, line)]
    )
    at = 0
    for start, piece in pieces:
        assert text[at:start].strip() == "", (text, piece)
        assert text[start : start + len(piece)] == piece
        at = start + len(piece)
    assert text[at:].strip() == ""
    return line


def inside(start, line):
    return any(token.start <= start < token.start + len(token.text) for token in line.tokens)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.board)
def test_a_line_says_what_it_says_and_no_more(case):
    line = assert_nothing_is_lost(case.line)
    assert line.unknown == []
    assert " ".join(token.text for token in line.tokens) == case.line
    state = state_of_line(line)
    for name, value in case.says.items():
        assert getattr(state, name) == (pytest.approx(value) if isinstance(value, float) else value), name


def test_captured_lines_parse_with_no_token_lost():
    for row in captured():
        line = assert_nothing_is_lost(row["line"])
        assert line.unknown == [], row["id"]
        assert " ".join(token.text for token in line.tokens) == row["line"], row["id"]


def test_power_totals_of_captured_lines_are_right():
    rows = {row["id"]: row["line"] for row in captured()}
    assert {name: state_of_line(parse_line(rows[name])).power_w for name in TOTALS} == pytest.approx(TOTALS)


@pytest.mark.parametrize("seed", range(4))
def test_mutated_lines_never_raise_and_lose_nothing(seed):
    sources = [case.line for case in CASES if case.line]
    if os.path.exists(CAPTURED):
        sources += [row["line"] for row in captured()]
    unparsed = 0
    for text in mutated(sources, 2_500, seed):
        line = assert_nothing_is_lost(text)
        unparsed += bool(line.unknown)
        state = state_of_line(line)
        assert state.gpu_load is None or 0 <= state.gpu_load <= 1
        assert state.power_w is None or state.power_w >= 0
    assert unparsed > 500, "mutations that break nothing test nothing"


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("RAM 1/2MB (lfb 1x4MB) GLORP ??? VDD_IN 5mW/5mW", ["GLORP", "???"]),
        ("CPU [1%@2,3%@", ["CPU", "[1%@2,3%@"]),  # cut when the pipe was closed
        ("VDD_IN 12mW/", ["VDD_IN", "12mW/"]),
        ("RAM 5/6MB (foo bar baz)", ["(foo", "bar", "baz)"]),
        ("CPU [1%@2,huh,off]", ["huh"]),  # the other cores count, and keep their places
        ("MTS fg", ["MTS", "fg"]),
        ("GR3D_FREQ 0%@[1300,x]", ["GR3D_FREQ", "0%@[1300,x]"]),
        ("tj@C", ["tj@C"]),
        ("APE " + 400 * "9", ["APE", 400 * "9"]),
        ("A" * 20_000 + " tj@5C", ["A" * 20_000, "tj@5C"]),  # beyond the bound on a line
    ],
)
def test_what_has_no_form_is_named(text, unknown):
    assert assert_nothing_is_lost(text).unknown == unknown


def test_an_unknown_name_of_a_known_form_is_data():
    line = parse_line("QPU0_FREQ 17%@[900,800] soc99@45.5C VDD_QPU 120mW/110mW VRAM 3/16GB FOO off")
    assert line.unknown == []
    assert [(token.kind, token.name) for token in line.tokens] == [
        ("engine", "QPU0_FREQ"),
        ("temperature", "soc99"),
        ("rail", "VDD_QPU"),
        ("memory", "VRAM"),
        ("engine", "FOO"),
    ]


def test_a_core_that_is_off_keeps_its_place_and_is_no_zero():
    token = parse_line("CPU [7%@10,off,9%@20]").tokens[0]
    assert [(value.index, value.name, value.value, value.state) for value in token.values] == [
        (0, "load", 7, ""),
        (0, "clock", 10, ""),
        (1, "load", None, "off"),
        (2, "load", 9, ""),
        (2, "clock", 20, ""),
    ]


@pytest.mark.parametrize("text", ["GR3D_FREQ off", "VIC off", "GR3D_FREQ N/A", "GR3D_FREQ @[300]", "GR3D_FREQ 999%@5"])
def test_a_load_that_is_not_told_is_none(text):
    assert state_of_line(parse_line(text)).gpu_load is None


def test_a_bare_number_is_a_clock_and_behind_the_name_of_a_rail_milliwatts():
    clock, power = parse_line("APE 150 VDD_IN 150").tokens
    assert (clock.kind, clock.values[0].unit, clock.values[0].assumed) == ("engine", "MHz", True)
    assert (power.kind, power.values[0].unit, power.values[0].assumed) == ("rail", "mW", True)


def test_a_rail_that_reads_a_little_below_zero_is_data_and_no_power_of_a_module():
    line = parse_line("VDD_GPU_SOC 2000mW/2000mW VDD_CPU_CV -4mW/-1mW VIN_SYS_5V0 3000mW/3000mW")
    assert line.unknown == []
    assert state_of_line(line).power_w == pytest.approx(4.996)
    assert state_of_line(parse_line("VDD_IN -12/-12")).power_w is None


@pytest.mark.parametrize("text", ["", "   ", "\x00\x01", "tegrastats: permission denied", "[sudo] password for user:"])
def test_what_is_no_line_of_tegrastats_says_nothing(text):
    state = state_of_line(parse_line(text))
    assert state == DeviceState()


def test_spaces_of_any_number_separate_tokens():
    line = parse_line("  RAM  1/2MB   (lfb  1x4MB)\t GR3D_FREQ   5%@[ 1 , 2 ]  ")
    assert line.unknown == []
    assert [token.name for token in line.tokens] == ["RAM", "GR3D_FREQ"]


def test_part_of_a_sum_is_no_total():
    xavier = {"GPU": 1.0, "CPU": 1.0, "SOC": 1.0, "CV": 0.0, "VDDRQ": 1.0, "SYS5V": 1.0}
    assert total_power_w(xavier) == 5.0
    for rail in xavier:
        assert total_power_w({name: watts for name, watts in xavier.items() if name != rail}) is None
    assert total_power_w({"VIN_SYS_5V0": 4.0}) is None
    assert total_power_w({}) is None


@pytest.mark.parametrize(
    "text",
    [
        "[," * 5_000,
        "A " * 8_000,
        "CPU [" * 3_000,
        "MTS a 1% " * 2_000,
        "A 1/1/1/" * 2_000,
        "MTS" + " a 1%" * 3_000 + "x",
        "A@1C/" * 3_000,
        "a [" + "1%," * 4_000,
    ],
)
def test_long_nonsense_is_read_in_a_time_that_grows_with_its_length(text):
    """Each of these took under 20 ms; a form that looks back and forth would take minutes and end by the time limit."""
    assert_nothing_is_lost(text)
