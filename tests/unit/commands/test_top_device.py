"""``edgeserve top --device``: recorded lines as JSON and as a table; a recorded machine; wrong usage."""

from __future__ import annotations

import io
import json
import os
import time

import pytest
from board_trees import AGX_ORIN, BARE
from tegrastats_lines import CASES

from edgeserve.cli import main as edgeserve_main
from edgeserve.device.replay import recorded_lines

LINES = [case.line for case in CASES if case.line]


def replayed(capsys, tmp_path, text, *options):
    path = tmp_path / "recorded.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert edgeserve_main(["top", "--replay", str(path), *options]) == 0
    return capsys.readouterr().out


def test_plain_lines_become_one_object_each(capsys, tmp_path):
    out = replayed(capsys, tmp_path, "\n".join(LINES) + "\n", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["line"] for row in rows] == LINES
    assert [row["number"] for row in rows] == list(range(1, len(LINES) + 1))
    for row, line in zip(rows, LINES):
        assert row["unparsed"] == []
        assert " ".join(token["text"] for token in row["tokens"]) == line
        assert all(value["unit"] for token in row["tokens"] for value in token["values"])


def test_a_table_keeps_its_other_columns(capsys, tmp_path):
    text = "id\tboard\tline\tnote\n" + "".join(f"t{number}\tOrin\t{line}\tn\n" for number, line in enumerate(LINES))
    rows = [json.loads(line) for line in replayed(capsys, tmp_path, text, "--json").splitlines()]
    assert [(row["id"], row["board"], row["note"]) for row in rows] == [
        (f"t{number}", "Orin", "n") for number in range(len(LINES))
    ]
    assert [row["line"] for row in rows] == LINES
    assert all(row["unparsed"] == [] for row in rows)


def test_off_missing_and_unknown_are_neither_zero_nor_lost(capsys, tmp_path):
    (row,) = [
        json.loads(line)
        for line in replayed(
            capsys, tmp_path, "RAM 1/2MB (lfb 1x4MB) CPU [off,5%@100] CV0@-256C NEW#3 7q\n", "--json"
        ).splitlines()
    ]
    assert row["unparsed"] == ["NEW#3", "7q"]
    assert row["readings"]["gpu_load"] is row["readings"]["power_w"] is row["time"] is None
    assert row["readings"]["temperatures_c"] == {}
    off = row["tokens"][1]["values"][0]
    assert off == {"name": "load", "value": None, "unit": "%", "state": "off", "index": 0}
    assert row["tokens"][2]["values"] == [{"name": "now", "value": -256, "unit": "C", "state": "off"}]


def test_bytes_that_are_no_text_line_ends_of_another_system_and_blank_lines(capsys, tmp_path):
    text = b"\xef\xbb\xbfVDD_IN 5mW/5mW\r\n\r\n\xff\xfe GR3D_FREQ 5%\n\n"
    rows = [json.loads(line) for line in replayed(capsys, tmp_path, text, "--json").splitlines()]
    assert [(row["number"], [token["name"] for token in row["tokens"]], len(row["unparsed"])) for row in rows] == [
        (1, ["VDD_IN"], 0),
        (3, ["GR3D_FREQ"], 1),
    ]


def test_a_row_without_its_column_is_read_whole():
    rows = list(recorded_lines(io.StringIO("id\tline\nVDD_IN 5mW/5mW\na\tVDD_IN 6mW/6mW\tVIN 7mW\n")))
    assert [(row.fields, row.text) for row in rows] == [
        ({}, "VDD_IN 5mW/5mW"),
        ({"id": "a"}, "VDD_IN 6mW/6mW\tVIN 7mW"),
    ]


def test_recorded_lines_as_a_table(capsys, tmp_path):
    assert "3.00 W" in replayed(capsys, tmp_path, LINES[0], "--interval", "1s")


def test_a_recorded_machine_as_json_and_as_a_table(capsys, tmp_path):
    root = AGX_ORIN.plant(tmp_path / "root")
    options = ["top", "--device", "--root", root, "--interval", "10ms"]
    assert edgeserve_main([*options, "--json", "--count", "2"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["board"], row["l4t"], row["jetpack"]) for row in rows] == [("agx-orin", "36.4.3", "6.2")] * 2
    assert rows[1]["readings"]["power_w"] == pytest.approx(33.5)
    assert edgeserve_main([*options, "--count", "2"]) == 0
    table = capsys.readouterr().out
    assert "33.50 W" in table
    assert "cooling:gpu-throttle-alert" in table.replace("\n", "")
    assert edgeserve_main([*options, "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1, "one look, unless --count says more"


def test_a_machine_that_tells_nothing_shows_dashes_and_no_zero(capsys, tmp_path):
    root = BARE.plant(tmp_path / "root")
    assert edgeserve_main(["top", "--device", "--root", root, "--count", "1"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert len(rows) == 12
    assert not [row for row in rows if "0" in row]


def test_a_line_without_an_end_is_refused(capsys, tmp_path):
    (tmp_path / "zeros").touch()
    os.truncate(tmp_path / "zeros", 2 << 20)
    assert edgeserve_main(["top", "--device", "--replay", str(tmp_path / "zeros")]) == 2
    assert "zeros: a line has more than 1048576 characters; expected a file of lines" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--replay", "/no/such/file", "--json"], "/no/such/file: No such file"),
        (["--replay", "/dev/zero"], "/dev/zero: it is no regular file; expected a file of lines"),
        (["--interval", "1"], "expected a duration"),
        (["--interval", "1ms"], "at least 10ms"),
        (["--count", "-1"], "expected 0 or more"),
    ],
)
def test_wrong_usage_is_said(options, text, capsys):
    assert edgeserve_main(["top", "--device", *options]) == 2
    assert text in capsys.readouterr().err


def test_ctrl_c_ends_the_device_as_it_ends_the_servers_tables(monkeypatch):
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    assert edgeserve_main(["top", "--device", "--json", "--count", "0"]) == 0
