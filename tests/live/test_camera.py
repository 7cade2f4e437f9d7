"""``edgeserve front camera``: frames to a served app, boxes as lines and on a page, a camera that comes back."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from image_server import image_server
from prefix_proxy import PREFIX, addresses, proxied
from rtsp_camera import RtspCamera, packets_of
from serving import status_of

from edgeserve import cli
from edgeserve.fronts.boxes_page import VIEWERS_MAX, BoxesPage


@pytest.fixture(scope="module")
def server():
    with image_server() as made:
        yield made


def test_the_pattern_has_its_boxes_as_lines(server, tmp_path):
    lines = tmp_path / "lines.json"
    words = [
        "front",
        "camera",
        server[1],
        "--source",
        "test:120x160",
        "--app",
        "detect",
        "--frames",
        "12",
        "--rate",
        "60",
    ]
    assert cli.main([*words, "--lines", str(lines)]) == 0
    read = [json.loads(line) for line in lines.read_text().splitlines()]
    boxes = {line["time_s"]: line["boxes"] for line in read if "boxes" in line}
    assert boxes and {line["lost"] for line in read if "lost" in line} <= {"dropped: superseded"}
    for time_s, ((found),) in boxes.items():
        left, top, right, bottom = found["box"]
        step = round(60 * time_s)  # frames that come too early after one that was late are passed over
        assert (left, top) == (step * 8 % 100, step * 4 % 60) and (right - left, bottom - top) == (60, 60)


@pytest.mark.parametrize("given", [[], ["--lines", "-"]])
def test_lines_go_where_the_table_says_unless_the_command_says_otherwise(server, tmp_path, capsys, given):
    config = Path(server[1]).parent / "camera.toml"
    config.write_text(Path(server[1]).read_text() + f"[front.camera]\nlines = '{tmp_path}/lines.json'\n")
    words = ["front", "camera", str(config), "--source", "test:120x160", "--app", "detect", "--frames", "2"]
    assert cli.main([*words, *given]) == 0
    printed = len(capsys.readouterr().out.splitlines())
    written = tmp_path / "lines.json"
    assert (printed, len(written.read_text().splitlines()) if written.exists() else 0) == ((2, 0) if given else (0, 2))


@pytest.fixture(scope="module")
def page(server):
    """The page of a camera's process, as host and port."""
    pytest.importorskip("PIL")
    process = subprocess.Popen(
        [sys.executable, "-m", "edgeserve", "front", "camera", server[1], "--source", "test:120x160", "--app", "detect",
         "--lines", "", "--page", "127.0.0.1:0"],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    place = process.stderr.readline().split("shown on http://")[1].strip()
    yield place
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=20)[1]
    assert process.returncode == 0 and "in time" in said


def get(place, path, **headers):
    connection = http.client.HTTPConnection(place, timeout=20)
    connection.request("GET", path, headers=headers)
    return connection.getresponse()


def test_the_page_shows_the_newest_frame_with_its_boxes(page):
    from PIL import Image

    for path in ("/", "/?from=here"):
        assert get(page, path).status == 200
    with proxied(page) as proxy:  # which has it below a prefix
        start = f"http://{proxy}{PREFIX}"
        (address,) = addresses(get(proxy, PREFIX).read().decode(), start)
        with contextlib.closing(get(proxy, address[len(f"http://{proxy}") :])) as stream:
            assert stream.status == 200 and stream.readline().startswith(b"--frame")
    answer = get(page, "/frame.jpg")
    assert answer.getheader("Content-Type") == "image/jpeg"
    pixels = np.asarray(Image.open(io.BytesIO(answer.read())).convert("RGB")).astype(int)
    assert pixels.shape == (120, 160, 3)
    rows, columns = np.nonzero(pixels.min(axis=2) > 200)  # the square
    top, left = np.percentile(rows, 10), np.percentile(columns, 10)
    frame = (pixels[:, :, 0] > 150) & (pixels[:, :, 1] < 120)  # and the red line around it
    assert (
        frame.sum() > 100 and abs(np.nonzero(frame)[1].min() - left) < 12 and abs(np.nonzero(frame)[0].min() - top) < 24
    )
    stream = get(page, "/stream")
    pictures = 0
    for _ in range(12):
        pictures += stream.readline().startswith(b"--frame")
        if pictures == 2:
            break
        for line in iter(stream.readline, b"\r\n"):
            if line.startswith(b"Content-Length"):
                length = int(line.split()[1])
        assert stream.read(length).startswith(b"\xff\xd8") and stream.readline() == b"\r\n"
    assert pictures == 2
    stream.close()


def test_the_page_is_for_this_machine_and_three_paths(page):
    assert get(page, "/", Host="rebound.example:80").status == 403
    assert get(page, "/etc/passwd").status == 404


@pytest.mark.parametrize("path", ["/", "/stream", "/frame.jpg"])
def test_no_page_of_another_place_shows_the_camera(page, path):
    for site in ("cross-site", "same-site"):
        assert get(page, path, **{"Sec-Fetch-Site": site}).status == 403
    answer = get(page, path, **{"Sec-Fetch-Site": "same-origin"})
    assert answer.status == 200 and answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    answer.close()


def test_a_viewer_that_left_gives_its_place_back_without_a_frame():
    pytest.importorskip("PIL")

    async def run():
        page = BoxesPage("page", "127.0.0.1:0", lambda: "")
        server = await page.start()
        host, port = page.place.split("//")[1].split(":")
        ask = f"GET /stream HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
        viewers = []
        for _ in range(VIEWERS_MAX):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(ask)
            await reader.readuntil(b"\r\n\r\n")
            viewers.append((reader, writer))
        viewers[3][1].close()
        await asyncio.sleep(0.2)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(ask)
        assert b"200 OK" in await reader.readline()  # in the place of the one that left: the oldest stays
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(viewers[0][0].read(1), 0.2)
        another = await asyncio.open_connection(host, int(port))
        another[1].write(ask)
        assert b"200 OK" in await another[0].readline()
        assert await asyncio.wait_for(viewers[0][0].read(1), 10) == b""  # the oldest ends
        for _, each in (*viewers, (reader, writer), another):
            each.close()
        server.close()

    asyncio.run(run())


def test_a_camera_that_goes_is_asked_again(server, tmp_path, caplog):
    pytest.importorskip("av", reason="PyAV is not installed")
    lines = tmp_path / "lines.json"
    frames = [np.zeros((48, 64, 3), np.uint8) for _ in range(8)]
    for number, frame in enumerate(frames):
        frame[8:40, 4 * number : 4 * number + 24] = 255
    with RtspCamera(packets_of(frames)) as camera:
        words = ["front", "camera", server[1], "--source", camera.url, "--app", "detect", "--library", "av"]
        assert cli.main([*words, "--frames", "18", "--lines", str(lines)]) == 0
        assert camera.played >= 3
    read = sorted([json.loads(line) for line in lines.read_text().splitlines()], key=lambda line: line["frame"])
    times = [line["time_s"] for line in read]  # go on over the pauses
    assert times == sorted(times) and any(len(line.get("boxes", ())) == 1 for line in read)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--source", "test", "--app", "detct"], "did you mean 'detect'"),
        (["--source", "test", "--app", "detect", "--rate", "-1"], "--rate = -1"),
        (["--source", "test", "--app", "detect", "--size", "480x640"], "--size: invalid"),
        (["--source", "test", "--app", "detect", "--lines", "no/where.json"], "--lines = 'no/where.json'"),
        (["--source", "test", "--app", "detect", "--labels-file", "nowhere.txt"], "--labels-file = 'nowhere.txt'"),
        (["--source", "nowhere.mp4", "--app", "detect"], "there is no such file"),
        (["--source", "test", "--app", "detect", "--page", "here"], "expected HOST:PORT"),
    ],
)
def test_what_cannot_be_run_is_said_at_once(server, capsys, arguments, says):
    assert status_of(["front", "camera", server[1], *arguments]) == 2
    assert says in capsys.readouterr().err
