"""Damaged pictures of a video, read by PyAV: one costs one frame, 30 in a row end the source."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest

pytest.importorskip("av", reason="pip install -e '.[camera]'")

import av

from edgeserve.errors import ConfigError
from edgeserve.fronts import sources
from edgeserve.fronts.sources import DAMAGED_MAX, PyAv, SourceEnded

FRAMES = DAMAGED_MAX + 20
HEAD = b"\xff\xd8\xff"
"""The beginning of a JPEG file."""

TABLES = 560
"""Bytes at its beginning that hold what a decoder needs."""


@pytest.fixture
def video(tmp_path):
    """Writes a video of JPEG pictures whose numbers are damaged."""

    def written(damaged):
        path = str(tmp_path / "video.mkv")
        with av.open(path, "w") as container:
            stream = container.add_stream("mjpeg", rate=1000)
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
            for number in range(FRAMES):
                pixels = np.full((48, 64, 3), number, np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
            container.mux(stream.encode())
        with open(path, "rb") as file:
            whole = bytearray(file.read())
        places, at = [], whole.find(HEAD)
        while at >= 0:
            places.append(at)
            at = whole.find(HEAD, at + 1)
        assert len(places) == FRAMES
        for number in damaged:
            whole[places[number] : places[number] + TABLES] = bytes(TABLES)
        with open(path, "wb") as file:
            file.write(whole)
        return path

    return written


def read(path, is_live=False):
    return [int(pixels[0, 0, 0]) for _, pixels in PyAv(path, is_live, lambda: 1e9).frames(threading.Event())]


def test_one_damaged_picture_costs_one_frame_and_is_told_once(video, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("edgeserve"), "propagate", True)
    damaged = (3, 10, 11, 12, FRAMES - 1)
    with caplog.at_level(logging.WARNING, "edgeserve"):
        found = read(video(damaged))
    assert len(found) == FRAMES - len(damaged)
    np.testing.assert_allclose(found, [number for number in range(FRAMES) if number not in damaged], atol=3)
    assert sum("a damaged picture is left out" in record.message for record in caplog.records) == 1


def test_one_less_than_too_many_in_a_row_are_left_out(video):
    assert len(read(video(range(5, 5 + DAMAGED_MAX - 1)))) == FRAMES - DAMAGED_MAX + 1


def test_too_many_in_a_row_end_a_file_with_a_sentence_and_a_live_source_to_be_opened_again(video):
    path = video(range(5, 5 + DAMAGED_MAX))
    with pytest.raises(ConfigError, match="cannot be read"):
        read(path)
    with pytest.raises(SourceEnded):
        read(path, is_live=True)


def test_a_device_that_is_not_there_ends_with_a_sentence():
    with pytest.raises(ConfigError, match="there is no such device; cameras of this machine"):
        sources.source_of("/dev/video987", lambda: 0.0, 0.0, "av")
