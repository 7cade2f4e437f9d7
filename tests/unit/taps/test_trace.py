"""Recordings round-trip exactly, replays compare every action, timelines hold what a viewer needs."""

from __future__ import annotations

import json
import os

import pytest

from edgeserve.sched.protocol.actions import (
    CutBatch,
    DropState,
    EvictModel,
    FinishRequest,
    LatencyBreakdown,
    LoadModel,
    ReleaseInputs,
    ReleaseState,
    RetainInputs,
    RunBatch,
)
from edgeserve.sched.protocol.events import (
    BatchProgress,
    DeviceChanged,
    DrainRequested,
    JobId,
    JobResult,
    LaneChanged,
    Request,
    RequestArrived,
    RequestCancelled,
    WorkFinished,
    WorkRefused,
)
from edgeserve.taps.timeline import timeline_of
from edgeserve.taps.trace import (
    RecordedStep,
    Recorder,
    TraceError,
    build_inputs,
    read_recording,
    start_of,
    step_line,
)

JOB = JobId(7, "read", (2, 0))
MS = 10**6
EVENTS = (
    RequestArrived(Request(7, "a", 1, 2, "me", "critical", 0.1, "cam", "answer", {"length": 37.5})),
    RequestArrived(Request(8, "a", 1, 2, margin_ns=3)),
    RequestCancelled(9, "gone"),
    WorkFinished(3, 5, 6, (JobResult(JOB, "done", 4, "left", {"x": 0.1}, "", 12, 4), JobResult(JOB))),
    WorkRefused(4, "late"),
    LaneChanged("l", False, 0.3, "hot"),
    DeviceChanged("d", 5, None, 0.7),
    LaneChanged("l", None, 0.6, "clock", 17),
    DeviceChanged("d", None, 0.5, None, 4096, "soft", "hard", 7),
    BatchProgress(3, 4, (JobResult(JOB, "failed", reason="bad"),)),
    DrainRequested(),
)
ACTIONS = (
    RunBatch(3, "l", "m", (JOB, JobId(8, "read", ())), 4, 0, 2**62, 17, 2, True),
    LoadModel(4, "copy:d", "m", 5, 6),
    RunBatch(6, "l", "m", (JOB,), 1, 0, 9, 17, 8, variant="decode"),
    CutBatch(6, "l"),
    ReleaseState(JOB),
    EvictModel(5, "copy:d", "m"),
    DropState(JOB),
    DropState(None, "a", "cam"),
    RetainInputs(JOB),
    ReleaseInputs(JOB),
    FinishRequest(7, "completed", "", LatencyBreakdown(1, 2, 3, 4)),
)


def test_every_event_and_action_survives_a_recording(tmp_path):
    path = str(tmp_path / "r.jsonl")
    start = start_of(
        {("m", "d"): (1, 2)},
        {"d": ["m"]},
        {("m", "l"): {1: [5, 6]}},
        sequences={"m": (512, 1024, 8)},
        sizes={"m": (1,)},
    )
    recorder = Recorder(path, start)
    recorder.tap(11, EVENTS, ACTIONS)
    recorder.tap(12, (), ())
    recorder.close()
    assert os.stat(path).st_mode & 0o077 == 0, "it names the client of each request"
    recording = read_recording(path)
    assert recording.steps == [RecordedStep(11, EVENTS, ACTIONS), RecordedStep(12, (), ())]
    assert build_inputs(recording.start) == {
        "footprints": {("m", "d"): (1, 2)},
        "resident": {"d": ["m"]},
        "measured": {("m", "l"): {1: [5, 6]}},
        "sequences": {"m": (512, 1024, 8)},
        "sizes": {"m": (1,)},
    }


def test_a_configuration_keeps_its_order(tmp_path):
    path = str(tmp_path / "r.jsonl")
    Recorder(path, {"config": {"lane": {"z": {}, "a": {}}}}).close()
    assert list(read_recording(path).start["config"]["lane"]) == ["z", "a"]


def test_lines_are_the_same_bytes_for_any_order_of_hints():
    lines = [
        step_line(0, (RequestArrived(Request(1, "a", 0, 1, hints=hints)),), ())
        for hints in ({"x": 1, "y": 2}, {"y": 2, "x": 1})
    ]
    assert lines[0] == lines[1]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty; a recording starts with"),
        ('{"format": 99}\n', "format 99, expected 2"),
        ('{"format":2}\nnot json\n', "r.jsonl:2: is no step"),
        ('{"format":2}\n{"now":1,"events":[{"kind":"Nonsense"}],"actions":[]}\n', "r.jsonl:2: is no step"),
    ],
)
def test_what_is_no_recording_is_named(tmp_path, text, reason):
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError, match=reason):
        read_recording(str(path))


def test_a_recording_that_cannot_be_written_is_a_sentence(tmp_path):
    with pytest.raises(TraceError, match=r"no_such/r.jsonl: a recording cannot be written there \(No such file"):
        Recorder(str(tmp_path / "no_such" / "r.jsonl"))


def test_a_timeline_holds_batches_ends_and_reasons(tmp_path):
    run = RunBatch(1, "gpu0", "m", (JobId(1, "m", ()),), 1, 0, 2**62, 4 * MS)
    steps = [
        RecordedStep(
            0, (RequestArrived(Request(1, "a", 0, 3 * MS)), RequestArrived(Request(2, "a", 0, 3 * MS))), (run,)
        ),
        RecordedStep(3 * MS, (), (FinishRequest(2, "dropped", "expired"),)),
        RecordedStep(
            5 * MS, (WorkFinished(1, 0, 5 * MS, (JobResult(JobId(1, "m", ())),)),), (FinishRequest(1, "completed"),)
        ),
        RecordedStep(6 * MS, (LaneChanged("gpu0", False, 1.0, "lost"),), ()),
    ]
    path = str(tmp_path / "t.json")
    timeline_of(steps).write(path)
    with open(path, encoding="utf-8") as file:
        entries = json.load(file)["traceEvents"]
    batch = next(entry for entry in entries if entry["ph"] == "X")
    assert (batch["name"], batch["ts"], batch["dur"]) == ("m x1", 0, 5000)
    names = [entry["name"] for entry in entries if entry["ph"] == "i"]
    assert names == ["dropped: expired", "late by 2ms", "down lost"]
    tracks = {entry["args"]["name"] for entry in entries if entry["ph"] == "M"}
    assert tracks == {"lanes", "gpu0", "app a"}
    assert {entry["ph"] for entry in entries if entry.get("cat") == "a"} == {"b", "e"}


def test_a_timeline_is_taken_in_pieces_and_late_is_what_the_client_would_call_so():
    timeline = timeline_of([RecordedStep(0, (RequestArrived(Request(1, "a", 0, 3 * MS, margin_ns=MS)),), ())])
    assert {entry["ph"] for entry in timeline.take()} == {"M"}
    timeline.add(4 * MS, (), (FinishRequest(1, "completed"),))
    begins = [entry["args"]["slack_ms"] for entry in timeline.take() if entry["ph"] == "b"]
    assert begins == [0.0]
    assert {entry["ph"] for entry in timeline.take()} == {"M"}
