"""A disk that is full ends the recording, not what is served."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest

from edgeserve.sched.protocol.events import RequestCancelled
from edgeserve.taps.trace import Recorder, read_recording


def fill(recorder: Recorder, steps: int) -> None:
    for step in range(steps):
        recorder.tap(step, [RequestCancelled(step, "because " * 20)], [])
    recorder.close()
    recorder.tap(steps, [], [])
    recorder.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("start", [{}, {"models": "m" * 100_000}], ids=["steps", "start"])
def test_a_full_disk_ends_the_recording_and_is_told_once(caplog: pytest.LogCaptureFixture, start: Any) -> None:
    fill(Recorder("/dev/full", start), 1000)
    assert [record.message.startswith("the recording /dev/full ends here") for record in caplog.records] == [True]


class Limited(io.FileIO):
    """A file on a disk with room for 50,001 bytes."""

    def write(self, data: Any) -> int:
        room = 50_001 - self.tell()
        if room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(bytes(data)[:room])


def limited(path: str, mode: str, **_: Any) -> Any:
    return io.TextIOWrapper(io.BufferedWriter(Limited(path, mode))) if mode == "w" else io.FileIO(path, mode)


def test_what_was_written_before_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "run.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr("edgeserve.taps.trace.open", limited, raising=False)
        fill(Recorder(path), 1000)
    steps = read_recording(path).steps
    assert 100 < len(steps) < 1000
    assert [step.now_ns for step in steps] == list(range(len(steps)))
