"""``edgeserve tune`` on recordings and scenarios whose best policy is known."""

from __future__ import annotations

import json

import pytest

from edgeserve.cli import main
from edgeserve.config.loading import load_config, parse_toml

EDGE = """# a camera and something slow
[model.m]
engine = "synthetic"
batch = [1, 2, 4, 8]
expected = { 1 = "10ms", 2 = "13ms", 4 = "20ms", 8 = "34ms" }

[policy.KIND]   # as it was

[app.cam]       # the camera
model = "m"
slo = "80ms"

[app.slow]
model = "m"
slo = "400ms"
"""

LOAD = """
[run]
duration = "5s"
noise = 0.05
step_cost = "50us"
[workload.cam]
app = "cam"
rate = {cam}
[workload.slow]
app = "slow"
rate = {slow}
"""


def record(place, kind="fifo", cam=130.0, slow=90.0, duration="5s"):
    """A configuration and what a simulated server recorded with it."""
    edge, scenario, file = place / "edge.toml", place / "scenario.toml", place / "run.jsonl"
    edge.write_text(EDGE.replace("KIND", kind))
    scenario.write_text('config = "edge.toml"\n' + LOAD.format(cam=cam, slow=slow).replace("5s", duration))
    assert (
        main(["simulate", str(scenario), "--seeds", "1", "--record", str(file), "--json", str(place / "ignored.json")])
        == 0
    )
    return edge, file


def tune(*words):
    """Paths and options; a text may hold several options."""
    return main(["tune", *[part for word in words for part in str(word).split()]])


def tuned(place):
    """The configuration of ``place`` tuned with what it recorded: the place, and the table."""
    where = f"--record {place}/run.jsonl --json {place}/out.json --write {place}/new.toml"
    assert tune(place / "edge.toml", where, "--loads 1,1.2 --policy edf --policy fifo") == 0
    return place, json.loads((place / "out.json").read_text())


@pytest.fixture(scope="module")
def behind(tmp_path_factory):
    """fifo where edf is far better; tuned once, with everything it writes."""
    place = tmp_path_factory.mktemp("behind")
    record(place, duration="3s")
    return tuned(place)


# --- recordings -------------------------------------------------------------------------------------------------------


def test_a_policy_that_is_far_better_is_recommended(behind):
    _, table = behind
    assert table["take"] is True
    assert {choice["kind"] for choice in table["configurations"]["best"].values()} == {"edf"}
    for load, least in (("1", 0.02), ("1.2", 0.2)):
        gain = table["loads"][load]["best"]["(all)"]["gain"]
        assert gain["share"] > least
        assert gain["share"] > gain["spread"] > 0
    assert table["sentence"].startswith("Take edf")
    assert "instead of fifo" in table["sentence"]


def test_the_simulated_recording_is_close_to_what_was_recorded(behind):
    _, table = behind
    for found in table["recorded"].values():
        assert found["simulated"] == pytest.approx(found["recorded"], abs=0.05)  # at the edge of overload
    assert not any("decides otherwise" in note for note in table["notes"])


def test_its_gain_is_what_the_other_policy_really_gains(behind, tmp_path):
    """The truth is known here: the same scenario under edf, with other seeds."""
    _, table = behind
    record(tmp_path)
    finish = {}
    for kind in ("fifo", "edf"):
        command = f"simulate {tmp_path}/scenario.toml --policy {kind} --seeds 3 --seed 7 --json {tmp_path}/out.json"
        assert main(command.split()) == 0
        report = json.loads((tmp_path / "out.json").read_text())["policies"][kind]
        finish[kind] = report["total"]["finish_rate"]
    gain = table["loads"]["1"]["best"]["(all)"]["gain"]
    assert gain["share"] == pytest.approx(finish["edf"] - finish["fifo"], abs=gain["spread"] + 0.05)


def test_the_configuration_is_written_with_its_comments(behind):
    place, table = behind
    text = (place / "new.toml").read_text()
    config = load_config(str(place / "new.toml"))
    assert {config.policies[app.policy].kind for app in config.apps.values()} == {"edf"}
    assert "# a camera and something slow" in text and "# the camera" in text and "# as it was" in text
    rest = {name: section for name, section in parse_toml(text).items() if name not in ("policy", "app")}
    assert rest == {"model": parse_toml((place / "edge.toml").read_text())["model"]}


def test_reported_is_not_what_chose(behind):
    """Half of the recording chooses, the other half is told of."""
    place, table = behind
    count = sum(found["offered"] for found in table["recorded"].values())
    assert table["loads"]["1"]["today"]["(all)"]["offered"] == 2 * (count - count // 2)  # two runs report
    assert "second half" in table["spread_of"]


def test_where_nothing_is_better_the_screen_says_keep_in_tables_and_a_sentence(tmp_path, capsys):
    """edf on a lane that is used by half."""
    record(tmp_path, "edf", cam=60.0, slow=30.0)
    where = f"--record {tmp_path}/run.jsonl --write {tmp_path}/new.toml"
    assert tune(tmp_path / "edge.toml", where, "--loads 1 --policy fifo --requests 400") == 0
    assert not (tmp_path / "new.toml").exists()
    said = capsys.readouterr().out
    for words in (
        "as it is, in time: cam",
        "on the part that chose",
        "load 1, on the part that reports",
        "Keep what you have (edf)",
        "is not written",
    ):
        assert words in said


def test_a_configuration_that_decides_otherwise_than_recorded_is_told_of(behind, tmp_path, capsys):
    place, _ = behind
    other = tmp_path / "edge.toml"
    other.write_text((place / "edge.toml").read_text().replace("[policy.fifo]", "[policy.fifo]\nbatch_max = 1\n"))
    assert tune(other, "--record", place / "run.jsonl", "--loads", "1", "--policy", "fifo", "--requests", "600") == 0
    assert "decides otherwise than the recorded server" in " ".join(capsys.readouterr().out.split())


# --- scenarios --------------------------------------------------------------------------------------------------------


@pytest.mark.worlds
def test_a_scenario_is_tuned_by_seeds_and_gets_a_snippet_since_its_policies_come_from_elsewhere(tmp_path, capsys):
    record(tmp_path, cam=180.0, duration="2s")
    where = f"--json {tmp_path}/out.json --write {tmp_path}/new.toml"
    assert tune(tmp_path / "scenario.toml", where, "--loads 1.2 --policy edf --seeds 3") == 0
    table = json.loads((tmp_path / "out.json").read_text())
    assert table["take"] is True
    assert table["configurations"]["best"]["cam"]["kind"] == "edf"
    assert table["spread_of"] == "3 seeds"
    assert table["recorded"] == {}
    said = capsys.readouterr().out
    assert "[policy.edf]" in said and 'policy = "edf"' in said
    assert not (tmp_path / "new.toml").exists()


# --- errors -----------------------------------------------------------------------------------------------------------


def refused(capsys, *arguments):
    assert tune(*arguments) == 2
    return capsys.readouterr().err


def test_errors_say_what_is_wrong(behind, tmp_path, capsys):
    place, _ = behind
    edge, file = place / "edge.toml", place / "run.jsonl"
    with open(file, encoding="utf-8") as lines:
        text = lines.readlines()
    short, empty = tmp_path / "short.jsonl", tmp_path / "empty.jsonl"
    short.write_text("".join(text[:200]))
    empty.write_text(text[0])
    assert "too short" in refused(capsys, edge, "--record", short)
    assert "holds no request" in refused(capsys, edge, "--record", empty)
    other = tmp_path / "edge.toml"
    other.write_text(edge.read_text().replace("[app.cam]", "[app.dog]"))
    assert "another configuration" in refused(capsys, other, "--record", file)
    assert "no such policy" in refused(capsys, edge, "--record", file, "--policy", "edff")
    assert "is no load" in refused(capsys, edge, "--record", file, "--loads", "1,none")
    assert "beside" in refused(capsys, edge, "--record", file, "--write", tmp_path / "new.toml")
    assert "--record FILE" in refused(capsys, edge)
    assert "at least 3" in refused(capsys, place / "scenario.toml", "--seeds", "2")
    assert "--requests 10" in refused(capsys, edge, "--record", file, "--requests", "10")
    assert "--seeds -1" in refused(capsys, edge, "--record", file, "--seeds", "-1")
    assert "cannot be read" in refused(capsys, edge, "--record", tmp_path / "none.jsonl")
