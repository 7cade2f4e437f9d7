"""Frames in an app's form, boxes back in the frame, and of frames that wait the newest."""

from __future__ import annotations

import asyncio
import os

import numpy as np
import pytest

from edgeserve.answers import Answer
from edgeserve.errors import BadInput, Dropped
from edgeserve.fronts.camera_front import CameraFront, CameraSettings
from edgeserve.fronts.image_apps import Detector, NewestWins, Tally, reason_of


class Server:
    """The questions of a front to an ``AsyncClient`` before its first frame."""

    def __init__(self, dtype, shape):
        self.inputs = {"image": {"dtype": dtype, "shape": shape}}

    async def apps(self):
        return {"detect": {"inputs": self.inputs, "stream": "none", "slo_ms": 33.0}}


def detector(dtype="uint8", shape=(-1, -1, 3), **options):
    made = Detector(Server(dtype, list(shape)), "detect", **options)
    asyncio.run(made.look("a test"))
    return made


def frame(height, width):
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:, :, 0] = 255
    return pixels


def test_an_app_of_any_size_has_the_frame_itself():
    pixels = frame(48, 64)
    one = detector()
    np.testing.assert_array_equal(one.prepared(pixels), pixels)
    found = one.found({"boxes": [[10, 20, 30, 60]], "scores": [0.9], "classes": [3]}, 48, 64)
    assert [tuple(box) for box in found] == [(20, 40, 20, 40, "3", 0.9)]


@pytest.mark.parametrize("classes", [[1], np.array([1], np.uint8), np.array([1.0], np.float32), [1.0], ["dog"]])
def test_a_class_has_its_name_whatever_its_type(classes):
    one = detector(labels=["cat", "dog"])
    (box,) = one.found({"boxes": [[10, 20, 30, 60]], "scores": [0.9], "classes": classes}, 48, 64)
    assert box.label == "dog"
    (box,) = one.found({"boxes": [[10, 20, 30, 60]], "scores": [0.9], "labels": ["²"]}, 48, 64)
    assert box.label == "²"


@pytest.mark.parametrize("letterbox", [False, True])
def test_boxes_come_back_to_the_frame(letterbox):
    """A frame of 40 x 80 in a network's 20 x 20: a box around the frame's right half."""
    one = detector("float32", (3, 20, 20), letterbox=letterbox)
    image = one.prepared(frame(40, 80))
    assert image.shape == (3, 20, 20) and image.dtype == np.float32 and image[0, 10, 10] == 1.0
    assert image[1, 0, 0] == (pytest.approx(114 / 255) if letterbox else 0.0)
    y, height = (10, 10) if letterbox else (10, 20)
    rows = np.zeros((20, 6), np.float32)
    rows[0] = [15, y, 10, height, 0.1, 0.8]
    (box,) = one.found({"output0": rows.T[None]}, 40, 80)
    np.testing.assert_allclose(box[:4], [60, 20, 40, 40], atol=1e-4)
    assert (box.label, box.score) == ("1", pytest.approx(0.8))


def test_a_server_that_resizes_says_the_networks_size():
    one = detector(size=(20, 20), letterbox=True, labels=["cat", "dog"])
    assert one.prepared(frame(40, 80)).shape == (40, 80, 3)
    rows = np.zeros((20, 6), np.float32)
    rows[0] = [15, 10, 10, 10, 0.1, 0.8]
    (box,) = one.found({"output0": rows.T[None]}, 40, 80)
    np.testing.assert_allclose(box[:4], [60, 20, 40, 40], atol=1e-4)
    assert box.label == "dog"


def test_grey_depth_and_points():
    assert detector("uint8", (4, 4)).prepared(frame(8, 8)).tolist() == [[76] * 4] * 4
    depth = np.full((2, 2), 1500, np.uint16)
    assert detector("float32", (-1, -1)).prepared(depth).tolist() == [[1.5, 1.5]] * 2
    assert detector("uint16", (-1, -1)).prepared(depth) is depth
    cloud = np.ones((5, 4), np.float32)
    assert detector("float32", (-1, 4)).prepared(cloud) is cloud
    for wrong in (detector(), detector("uint8", (2, 2)), detector("float32", (10,))):
        with pytest.raises(BadInput, match="app 'detect' takes"):
            wrong.prepared(depth)


def test_what_cannot_be_asked_is_said_at_once():
    with pytest.raises(BadInput, match="let the app's last node"):
        detector().found({"boxes": [1], "scores": [1, 2]}, 2, 2)


def test_of_frames_that_wait_the_newest_is_asked():
    async def run():
        tally, asked, gates = Tally(), [], {}

        async def ask(number):
            asked.append(number)
            gates[number] = asyncio.Event()
            await gates[number].wait()

        frames = NewestWins(ask, 2, tally.reasons)
        for number in range(5):
            frames.offer(number)
        await asyncio.sleep(0)
        assert asked == [0, 1] and tally.reasons["superseded"] == 2
        gates[0].set()
        while len(asked) < 3:
            await asyncio.sleep(0)
        assert asked == [0, 1, 4]
        gates[1].set()
        gates[4].set()
        await frames.ended()
        frames.offer(5)
        await asyncio.sleep(0)
        await frames.cancel()
        assert asked == [0, 1, 4, 5] and sum(tally.reasons.values()) == 2

    asyncio.run(run())


def test_reasons_are_those_of_the_server():
    assert reason_of(Dropped("no", "superseded")) == "dropped: superseded"
    assert reason_of(BadInput("no")) == "bad_input" and reason_of(ValueError()) == "error"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("page", ["", "127.0.0.1:0"])
def test_lines_that_cannot_be_written_end_the_camera_unless_it_has_a_page(page, caplog):
    class Seeing(Server):
        async def infer(self, app, inputs, **options):
            return Answer({"boxes": np.zeros((0, 4)), "scores": np.zeros(0), "classes": np.zeros(0)})

    async def serve():
        settings = CameraSettings(
            source="test:48x64", app="detect", lines="/dev/full", page=page, rate=100.0, frames=8 if page else 0
        )
        front = CameraFront(Seeing("uint8", [-1, -1, 3]), settings)
        await front.look()
        serving = asyncio.ensure_future(front.serve(asyncio.Event(), lambda *places: None))
        await asyncio.wait({serving}, timeout=20.0)
        assert serving.done(), "it goes on without anything to write to"
        serving.result()
        return front.camera.tally.answered

    if page:
        pytest.importorskip("PIL")
        assert asyncio.run(serve()) > 1
        assert [record.levelname for record in caplog.records] == ["WARNING"]
    else:
        with pytest.raises(OSError, match="No space"):
            asyncio.run(serve())
