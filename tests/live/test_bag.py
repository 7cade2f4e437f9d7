"""Recorded bags through a served app: live at the bag's own times, and in virtual time."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import pytest
from image_server import image_server

from edgeserve import cli

pytest.importorskip("rosbags.typesys", reason="rosbags is not installed")
from recorded_bag import BEGIN_NS, FRAMES, GAP_NS, HAS_MCAP, write_bag
from rosbags.highlevel import AnyReader


@pytest.fixture(scope="module")
def server():
    with image_server() as made:
        yield made


@pytest.mark.parametrize("storage", ["SQLITE3", pytest.param("MCAP", marks=pytest.mark.skipif(
    not HAS_MCAP, reason="this rosbags writes sqlite3 alone"))])  # fmt: skip
def test_a_bag_becomes_a_bag_of_detections(server, tmp_path, capsys, storage):
    bag = write_bag(tmp_path / "bag", storage)
    if storage == "MCAP":
        bag += "/bag.mcap"
    out = tmp_path / "out"
    assert cli.main(["front", "bag", bag, server[1], "--app", "detect", "--out", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    lost = sum(result["ended_otherwise"].values())
    assert result["sent"] == FRAMES and result["in_time"] + lost == FRAMES
    assert set(result["ended_otherwise"]) <= {"dropped: superseded"}  # where the machine was busy for 40 ms
    with AnyReader([out]) as reader:
        found = [(at_ns, reader.deserialize(data, one.msgtype)) for one, at_ns, data in reader.messages()]
        assert {one.topic for one in reader.connections} == {"/camera/image_raw/detections"}
    assert len(found) == result["in_time"] >= 1
    for at_ns, array in found:
        number = (at_ns - BEGIN_NS) // GAP_NS
        stamp = array.header.stamp
        assert stamp.sec * 10**9 + stamp.nanosec == at_ns - 3 * 10**6 and array.header.frame_id == "front"
        (box,) = [one.bbox for one in array.detections]
        assert (box.center.position.x, box.center.position.y) == (number + 10, 15)
        assert (box.size_x, box.size_y) == (20, 10)


def test_outputs_are_written_as_they_are(server, tmp_path):
    out = tmp_path / "out"
    bag = write_bag(tmp_path / "bag", "SQLITE3")
    assert cli.main(["front", "bag", bag, server[1], "--app", "detect", "--out", str(out), "--outputs", "--json"]) == 0
    with AnyReader([out]) as reader:
        read = {one.topic: reader.deserialize(data, one.msgtype) for one, _, data in reader.messages()}
    assert set(read) == {f"/camera/image_raw/{name}" for name in ("boxes", "scores", "classes")}
    assert [axis.size for axis in read["/camera/image_raw/boxes"].layout.dim] == [1, 4]


def test_answers_that_cannot_be_written_end_the_run(server, tmp_path, capsys, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("edgeserve.fronts.bag.BagWriter.write", full)
    bag = write_bag(tmp_path / "bag", "SQLITE3")
    assert cli.main(["front", "bag", bag, server[1], "--app", "detect", "--out", str(tmp_path / "out")]) == 2
    assert "No space left on device" in capsys.readouterr().err


def test_a_signal_ends_it_with_what_was_sent(server, tmp_path, capsys):
    bag = write_bag(tmp_path / "bag", "SQLITE3")
    ends = threading.Timer(0.25, signal.raise_signal, [signal.SIGINT])
    ends.start()
    assert cli.main(["front", "bag", bag, server[1], "--app", "detect", "--json"]) == 0
    ends.join()
    result = json.loads(capsys.readouterr().out)
    assert 1 <= result["sent"] < FRAMES
    assert result["in_time"] + result["late"] + sum(result["ended_otherwise"].values()) == result["sent"]


def test_in_virtual_time_the_scheduler_says_how_many(server, tmp_path, capsys):
    bag = write_bag(tmp_path / "bag", "SQLITE3", ("/left", "/right"))
    words = ["front", "bag", bag, server[1], "--app", "detect", "--topic", "/left", "--topic", "/right", "--simulate"]
    assert cli.main([*words, "--json"]) == 0
    app = json.loads(capsys.readouterr().out)["apps"]["detect"]
    assert app["offered"] == 2 * FRAMES and app["finish_rate"] == 1.0
    slow = Path(server[1]).with_name("slow.toml")
    slow.write_text(Path(server[1]).read_text().replace('"5ms"', '"60ms"').replace('"10s"', '"70ms"'))
    words[3] = str(slow)
    assert cli.main([*words, "--json"]) == 0
    app = json.loads(capsys.readouterr().out)["apps"]["detect"]
    assert 0.2 < app["finish_rate"] < 0.5  # 60 ms each, two frames every 40 ms
    assert cli.main(words) == 0
    assert "virtual time" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--topic", "/rosout"], "/rosout is of std_msgs/msg/String"),
        (["--topic", "/lft"], "did you mean '/left'"),
        ([], "give --topic"),
        (["--topic", "/left", "--simulate", "--out", "x"], "virtual time runs no model"),
        (["--topic", "/left", "--app", "detct"], "did you mean 'detect'"),
    ],
)
def test_what_cannot_be_run_is_said_at_once(server, tmp_path, capsys, arguments, says):
    bag = write_bag(tmp_path / "bag", "SQLITE3", ("/left", "/right"))
    assert cli.main(["front", "bag", bag, server[1], "--app", "detect", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_what_is_no_bag(tmp_path, capsys):
    (tmp_path / "a.mcap").write_bytes(b"no bag")
    for path in (tmp_path / "a.mcap", tmp_path / "nowhere"):
        assert cli.main(["front", "bag", str(path), "--app", "detect"]) == 2
        assert "the bag cannot be read" in capsys.readouterr().err
