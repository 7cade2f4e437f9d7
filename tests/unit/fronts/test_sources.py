"""Sources of frames: the test pattern, PyAV and GStreamer on files, streams and pipelines that are there, and the
messages where they are missing."""

from __future__ import annotations

import contextlib
import http.server
import importlib.util
import io
import itertools
import os
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from rtsp_camera import RtspCamera, packets_of

from edgeserve.errors import ConfigError
from edgeserve.fronts.sources import Pattern, SourceEnded, is_device, source_of

needs_av = pytest.mark.skipif(importlib.util.find_spec("av") is None, reason="PyAV is not installed")
needs_gstreamer = pytest.mark.skipif(importlib.util.find_spec("gi") is None, reason="PyGObject is not installed")


def squares(count, height=48, width=64):
    """Frames with a square that moves to the right."""
    frames = np.zeros((count, height, width, 3), np.uint8)
    for number, frame in enumerate(frames):
        frame[8:40, 2 * number : 2 * number + 24] = 255
    return list(frames)


@pytest.fixture
def video(tmp_path):
    av = pytest.importorskip("av")
    path = str(tmp_path / "clip.mp4")
    with av.open(path, "w") as output:
        stream = output.add_stream("mpeg4", rate=50)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        for frame in squares(10):
            for packet in stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")):
                output.mux(packet)
        for packet in stream.encode():
            output.mux(packet)
    return path


def read(source, count=10):
    return list(itertools.islice(source.frames(threading.Event()), count))


def left_of(pixels):
    return int(np.nonzero(pixels[24, :, 0] > 128)[0][0])


@pytest.mark.parametrize("size", [(1, 1), (1, 640), (640, 1), (2, 3)])
def test_a_pattern_of_any_size_has_frames(size):
    source = source_of(f"test:{size[0]}x{size[1]}", time.monotonic, 1000.0, "")
    frames = [pixels for _, pixels in itertools.islice(source.frames(threading.Event()), 3)]
    assert [pixels.shape for pixels in frames] == [(*size, 3)] * 3


def test_a_size_of_signs_that_are_no_digits_is_refused():
    with pytest.raises(ConfigError, match="test:HEIGHTxWIDTH"):
        source_of("test:²x2", time.monotonic, 1000.0, "")


def test_the_pattern_comes_at_its_rate_and_moves():
    now_s = itertools.count()  # a host on which each look at the clock takes a second: never early
    frames = read(Pattern((48, 64), 10.0, lambda: float(next(now_s))), 5)
    assert [round(time_s, 6) for time_s, _ in frames] == [0, 0.1, 0.2, 0.3, 0.4]
    assert frames[0][1].shape == (48, 64, 3) and frames[0][1].dtype == np.uint8
    tops = [
        np.nonzero((pixels == 255).all(axis=(1, 2)) | (pixels[:, :, 0] == 255).any(axis=1))[0][0]
        for _, pixels in frames
    ]
    assert len(set(tops)) > 1


def test_a_file_is_read_at_its_own_times(video):
    begin_s = time.monotonic()
    frames = read(source_of(video, time.monotonic, 0.0, "av"))
    assert time.monotonic() - begin_s >= 0.17
    assert [round(time_s, 3) for time_s, _ in frames] == [round(0.02 * number, 3) for number in range(10)]
    assert [abs(left_of(pixels) - 2 * number) <= 1 for number, (_, pixels) in enumerate(frames)] == [True] * 10


@needs_av
@pytest.mark.parametrize("library", ["av", pytest.param("gstreamer", marks=needs_gstreamer)])
def test_a_camera_of_the_network_is_read_and_its_end_is_said(library):
    with RtspCamera(packets_of(squares(30))) as camera:
        source = source_of(camera.url, time.monotonic, 0.0, library)
        assert source.is_live
        frames = []
        with contextlib.suppress(SourceEnded):
            for item in source.frames(threading.Event()):
                frames.append(item)
    assert len(frames) >= 6 and frames[-1][0] > frames[0][0]
    assert [left_of(pixels) for _, pixels in frames] == sorted(left_of(pixels) for _, pixels in frames)
    with pytest.raises(SourceEnded):
        read(source)  # it listens no more


@needs_gstreamer
def test_a_pipeline_brings_frames_whose_rows_are_padded():
    text = "videotestsrc num-buffers=6 pattern=red ! video/x-raw,width=66,height=32,framerate=20/1 ! identity sync=true"
    frames = read(source_of(text, time.monotonic, 0.0, ""))
    assert 2 <= len(frames) <= 6
    assert all(pixels.shape == (32, 66, 3) and (pixels[:, :, 0] > 250).all() for _, pixels in frames)
    assert all((pixels[:, :, 1] < 5).all() for _, pixels in frames) and frames[-1][0] > 0
    with pytest.raises(ConfigError, match="GStreamer says"):
        read(source_of("videotestsrc ! nosuchelement", time.monotonic, 0.0, ""))


@needs_gstreamer
def test_gstreamer_reads_files(tmp_path):
    import gi

    gi.require_version("Gst", "1.0")
    from gi.repository import Gst

    Gst.init(None)
    path, size = str(tmp_path / "clip.avi"), "width=64,height=48,framerate=20/1"
    pipeline = Gst.parse_launch(
        f"videotestsrc num-buffers=10 pattern=blue ! video/x-raw,{size} ! jpegenc ! avimux ! filesink location={path}"
    )
    pipeline.set_state(Gst.State.PLAYING)
    pipeline.get_bus().timed_pop_filtered(20 * Gst.SECOND, Gst.MessageType.EOS | Gst.MessageType.ERROR)
    pipeline.set_state(Gst.State.NULL)
    frames = read(source_of(path, time.monotonic, 0.0, "gstreamer"))
    assert len(frames) >= 5 and all((pixels[:, :, 2] > 230).all() for _, pixels in frames)
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"this is no video" * 100)
    with pytest.raises(ConfigError, match="cannot be read"):
        read(source_of(str(broken), time.monotonic, 0.0, "gstreamer"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("test:0x0", "HEIGHTxWIDTH"),
        ("nowhere.mp4", "there is no such file"),
        ("/dev/video77", "there is no such device; cameras of this machine: "),
        ("/dev/v4l/by-id/nothing", "there is no such device"),
    ],
)
def test_what_is_no_source_is_said_at_once(text, says):
    with pytest.raises(ConfigError, match=says):
        source_of(text, time.monotonic, 0.0, "")


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="there is no /dev/shm to write to")
def test_a_file_in_shared_memory_is_no_device():
    with tempfile.NamedTemporaryFile(dir="/dev/shm", suffix=".mp4") as file:
        assert not is_device(file.name)
    assert is_device(file.name) and is_device(os.devnull) and not is_device("clip.mp4")


@needs_av
def test_a_file_that_is_no_video(tmp_path):
    path = tmp_path / "broken.mp4"
    path.write_bytes(b"this is no video" * 100)
    with pytest.raises(ConfigError, match="cannot be read"):
        read(source_of(str(path), time.monotonic, 0.0, "av"))


OPTIONS = {"libx264": {"bf": "0", "tune": "zerolatency"}, "libx265": {"x265-params": "log-level=none:bframes=0"}}


def pictures(path, count, damaged, codec="mjpeg", form="matroska", whole_bytes=0, rate=1000, size=(64, 48)):
    """A film of pictures, of some of which only the first ``whole_bytes`` are what they were."""
    av = pytest.importorskip("av", reason="PyAV is not installed")
    with av.open(str(path), "w", format=form) as output:
        stream = output.add_stream(codec, rate=rate, options=OPTIONS.get(codec, {}))
        stream.width, stream.height = size
        stream.pix_fmt, stream.gop_size = "yuvj420p" if codec == "mjpeg" else "yuv420p", 10
        frames = [av.VideoFrame.from_ndarray(pixels, format="rgb24") for pixels in columns(count, *size)]
        for number, frame in enumerate(frames):
            frame.pts = number
        packets = [packet for frame in [*frames, None] for packet in stream.encode(frame)]
        for number, packet in enumerate(packets):
            if number in damaged:
                kept = bytes(packet)[:whole_bytes]
                broken = av.Packet(kept + np.random.default_rng(number).bytes(packet.size - len(kept)))
                broken.pts, broken.dts, broken.time_base = packet.pts, packet.dts, packet.time_base
                broken.stream = stream
                packet = broken
            output.mux(packet)
    return str(path)


def columns(count, width, height):
    """Pictures with a bright column on a ground of slopes, each in another place."""
    down, right = np.mgrid[:height, :width]
    for number in range(count):
        pixels = np.stack([down * 7 % 90, right * 5 % 90, (down + right) * 3 % 90], axis=2).astype(np.uint8)
        pixels[:, number * 3 % width :][:, :8] = 250
        yield pixels


@pytest.mark.parametrize("damaged", [{5}, {0}, set(range(3, 32)), {*range(1, 60, 2)}, {59}])
def test_a_damaged_picture_costs_one_frame(tmp_path, caplog, damaged):
    source = source_of(pictures(tmp_path / "film.mkv", 60, damaged), time.monotonic, 0.0, "av")
    assert len(list(source.frames(threading.Event()))) == 60 - len(damaged)
    assert len([record for record in caplog.records if "damaged" in record.message]) == 1


def test_many_damaged_pictures_in_a_row_end_a_source(tmp_path):
    source = source_of(pictures(tmp_path / "film.mkv", 80, set(range(10, 40))), time.monotonic, 0.0, "av")
    found = []
    with pytest.raises(ConfigError, match="cannot be read"):  # a file; a live source is opened again
        for each in source.frames(threading.Event()):
            found.append(each)
    assert len(found) == 10
    source.is_live = True  # as a camera is
    with pytest.raises(SourceEnded):
        list(source.frames(threading.Event()))


DAMAGE = {
    "vp9, after which the decoder takes no more": ("libvpx-vp9", "matroska", range(12, 38), 0),
    "hevc, with an error of its own": ("libx265", "mpegts", (30,), 6),
    "h264, not decoded": ("libx264", "mpegts", (29,), 6),
    "h264, made up": ("libx264", "mp4", (29,), 40),
    "mpeg2, made up": ("mpeg2video", "mpegts", (28,), 100),
}
"""The fate of a damaged picture -> codec, container, the damaged packets, how many bytes of each are whole."""


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_picture_of_any_codec_is_left_out_and_no_more(tmp_path, caplog, case):
    codec, form, damaged, whole_bytes = DAMAGE[case]
    if codec == "libx265" and pytest.importorskip("av").library_versions["libavcodec"] < (62,):
        pytest.skip("FFmpeg before 8 makes such a picture up without a word")
    path = pictures(tmp_path / "film", 70, damaged, codec, form, whole_bytes, rate=50, size=(320, 240))
    source = source_of(path, itertools.count().__next__, 0.0, "av")  # a host that is never early
    numbers = [round(50 * time_s) for time_s, _ in source.frames(threading.Event())]
    assert damaged[len(damaged) // 2] not in numbers and numbers == sorted({*numbers})
    assert {*numbers} >= {*range(12), *range(50, 70)}  # after it some wait for the next that needs no other
    assert len([record for record in caplog.records if "damaged" in record.message]) == 1


PARTS = {
    "its kind is unreadable": lambda head, data: (head.replace(b"image/jpeg", b"\xff\0"), data),
    "its head is noise": lambda head, data: (np.random.default_rng(1).bytes(80), data),
    "it has no mark": lambda head, data: (head.replace(b"--frame", b"--fr\0me"), data),
    "it is shorter than it says": lambda head, data: (head, data[: len(data) // 2]),
    "it is longer than it says": lambda head, data: (head, data + data[:3000]),
}
"""Damage of a part of a ``multipart`` stream -> its head and its picture."""


@needs_av
@pytest.mark.parametrize("damage", [None, *PARTS])
def test_a_damaged_part_of_a_multipart_stream_costs_one_frame(damage):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

    class Camera(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_GET(self):  # noqa: N802 http.server's name
            self.send_response(200)
            self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
            self.end_headers()
            for number, pixels in enumerate(columns(20, 320, 240)):
                file = io.BytesIO()
                noise = np.random.default_rng(number).integers(0, 40, pixels.shape, np.uint8)
                image.fromarray(np.minimum(pixels, 210) + noise).save(file, "JPEG")
                data = file.getvalue()
                head = b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n" % len(data)
                if number == 8 and damage:
                    head, data = PARTS[damage](head, data)
                self.wfile.write(head + data + b"\r\n")
            self.wfile.write(b"--frame--\r\n")

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Camera) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        source, found = source_of(f"http://127.0.0.1:{server.server_port}/", time.monotonic, 0.0, "av"), []
        with contextlib.suppress(SourceEnded):  # the camera ends
            for _, pixels in source.frames(threading.Event()):
                found.append(pixels)
        server.shutdown()
    assert len(found) >= 20 - bool(damage)


def test_a_camera_whose_packets_have_no_pictures_any_more_is_opened_again(tmp_path):
    path = pictures(tmp_path / "film.mp4", 70, set(range(12, 70)), "mpeg2video", "mp4", 6, rate=50)
    source = source_of(path, itertools.count().__next__, 0.0, "av")
    assert len(list(source.frames(threading.Event()))) in (11, 12)  # FFmpeg before 8 keeps the last to itself
    source.is_live = True
    with pytest.raises(SourceEnded, match="in a row"):
        list(source.frames(threading.Event()))


def test_a_file_without_times_is_read_at_its_rate(tmp_path):
    source = source_of(pictures(tmp_path / "a.h264", 8, (), "libx264", "h264"), time.monotonic, 0.0, "av")
    begin_s = time.monotonic()
    times = [time_s for time_s, _ in source.frames(threading.Event())]
    assert times == pytest.approx([number / 25 for number in range(8)])  # FFmpeg's rate of a stream that names none
    assert time.monotonic() - begin_s > 0.25


def test_times_that_begin_anew_go_on(tmp_path):
    one = pictures(tmp_path / "a.ts", 8, (), "mpeg2video", "mpegts", rate=25)
    other = pictures(tmp_path / "b.ts", 8, (), "mpeg2video", "mpegts", rate=25, size=(96, 80))
    both = tmp_path / "both.ts"
    both.write_bytes(Path(one).read_bytes() + Path(other).read_bytes())
    frames = list(source_of(str(both), itertools.count().__next__, 0.0, "av").frames(threading.Event()))
    assert {pixels.shape for _, pixels in frames} == {(48, 64, 3), (80, 96, 3)}
    times = [time_s for time_s, _ in frames]
    assert times == pytest.approx([number / 25 for number in range(len(times))]) and len(times) >= 14
