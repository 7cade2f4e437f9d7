"""The page of the HTTP front: its files, its stream, who may look; in a browser where one is installed."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import re
import shutil
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np
import pytest
from http_front import FrontThread
from prefix_proxy import PREFIX, addresses, proxied
from serving import served, wait_until

from edgeserve.fronts.http import page_routes
from edgeserve.fronts.http.settings import HttpConfig
from edgeserve.taps import last_steps

PAGE = Path(page_routes.__file__).with_name("page")
TOKEN = "0123456789abcdef0123"
X = np.zeros(4, np.float32)
TABLES = {
    "model": {"echo": {"engine": "synthetic", "expected": {1: "1ms"}}},
    "app": {"echo": {"model": "echo", "slo": "20s", "inputs": {"x": {"shape": [4]}, "said": {"dtype": "text"}}}},
}
ITEM = {"x": X, "said": "a"}
LOCAL = {"listen": "127.0.0.1:0"}


@pytest.fixture(scope="module")
def server():
    with served(TABLES) as (_, client):
        yield client


@pytest.fixture(scope="module")
def front(server):
    with FrontThread(server.endpoint, HttpConfig(**LOCAL)) as thread:
        yield thread


class Viewer:
    """One reader of the stream."""

    def __init__(self, front: FrontThread, headers: Any = None) -> None:
        self.connection = http.client.HTTPConnection(front.http, timeout=20)
        self.connection.request("GET", "/page/stream", headers=headers or {})
        self.response = self.connection.getresponse()

    def events(self) -> Iterator[Tuple[str, Any]]:
        name = ""
        for line in self.response:
            if line.startswith(b"event: "):
                name = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                yield name, json.loads(line[6:])

    def close(self) -> None:
        self.response.close()
        self.connection.close()


def test_the_files_are_served_and_fit_each_other(front):
    status, page, headers = front.ask_raw("GET", "/")
    assert status == 200 and headers["content-type"].startswith("text/html")
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    text = page.decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style| style=| on[a-z]+=", text), "the policy refuses inline code"
    scripts = "".join(path.read_text() for path in PAGE.glob("*.js"))
    assert "innerHTML" not in scripts and "http:" not in scripts.replace("http://www.w3.org/2000/svg", "")
    wanted = set(re.findall(r'byId\("([^"]+)"\)', scripts))
    assert wanted <= set(re.findall(r'id="([^"]+)"', text))
    rules = (PAGE / "page.css").read_text()
    assert set(re.findall(r"var\((--[a-z]+)\)", rules + scripts)) <= set(re.findall(r"(--[a-z]+):", rules))


def test_below_a_proxys_prefix_everything_is_found(server):
    with FrontThread(server.endpoint, HttpConfig(**LOCAL)) as front, proxied(front.http) as place:

        def get(address: str) -> Tuple[int, str]:
            assert address.startswith(f"http://{place}{PREFIX}"), f"{address} is outside of the proxy's prefix"
            with contextlib.closing(http.client.HTTPConnection(place, timeout=20)) as connection:
                connection.request("GET", address[len(f"http://{place}") :], headers={"Sec-Fetch-Site": "same-origin"})
                response = connection.getresponse()
                is_stream = "event-stream" in (response.getheader("content-type") or "")
                return response.status, (response.readline() if is_stream else response.read()).decode()

        start = f"http://{place}{PREFIX}"
        files, asked = [start], []
        for file in files:
            status, text = get(file)
            assert status == 200, file
            for address in addresses(text, start, file):
                kept = files if address.endswith(".js") else asked
                kept += [address] if address not in kept else []
        assert len(files) == 3 and len(asked) == 6
        told = {address[len(start) :]: get(address)[0] for address in asked}
        assert [told.pop(name) for name in ("page/page.css", "page/stream", "page/apps")] == [200] * 3
        assert set(told) == {"page/story/", "v2/models/", "v1/chat/completions"}  # and the rest a request puts together


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(digit * 2 for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colours", [0, 1])
def test_text_can_be_read_in_light_and_in_dark_colours(colours):
    """WCAG 2.2, 1.4.3: 4.5 to 1. axe-core sees a colour only where something of it happens to be on the page."""
    rules = (PAGE / "page.css").read_text().split("prefers-color")[colours]
    table = dict(re.findall(r"(--[a-z]+): (#[0-9a-f]+)", rules))
    pairs = [(text, "--panel") for text in ("--ink", "--soft", "--accent", "--time", "--late", "--none", "--fail")]
    for text, below in (*pairs, ("--ink", "--ground"), ("--soft", "--ground")):
        light, dark = sorted((luminance(table[text]), luminance(table[below])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, below)


def test_viewers_share_what_they_see_and_the_server_rests_without_them(front, server, monkeypatch):
    asked: Dict[str, int] = {}
    ask = front.front.client.ask

    async def counted(kind: str, *more: Any) -> Any:
        asked[kind] = asked.get(kind, 0) + 1
        return await ask(kind, *more)

    monkeypatch.setattr(front.front.client, "ask", counted)
    monkeypatch.setattr(page_routes, "LOOK_S", 0.05)
    monkeypatch.setattr(page_routes, "STEPS_S", 0.05)
    one = Viewer(front)
    seen: Dict[str, Any] = {}
    for name, value in one.events():
        seen[name] = value
        answer = server.infer("echo", ITEM)
        if "steps" in seen and asked["stats"] > 3:
            break
    assert seen["looks"][-1]["apps"]["echo"]["outcomes"]["completed"] > 0
    kinds = {entry["ph"] for entry in seen["steps"]["entries"]}
    assert {"M", "X", "b", "e"} <= kinds
    other = Viewer(front)
    name, looks = next(other.events())
    assert name == "looks" and len(looks) > 1, "who comes later sees the last minute at once"
    one.close()
    other.close()
    wait_until(lambda: front.front._backend.places.count == 0)
    before = asked["stats"]
    assert front.ask("GET", f"/page/story/{answer.id}")[1]["story"][0].startswith(f"request {answer.id} of app echo")
    assert asked["stats"] <= before + 1
    assert front.ask("GET", "/page/story/x")[0] == 400
    assert front.ask("GET", "/page/apps")[1]["echo"]["inputs"]["said"]["dtype"] == "text"


def test_a_viewer_does_not_keep_the_front_from_ending(server, capfd):
    with FrontThread(server.endpoint, HttpConfig(**LOCAL)) as front:
        assert front.ask_raw("HEAD", "/page/stream")[:2] == (200, b"")
        viewer = Viewer(front)
        next(viewer.events())
        begin_s = time.monotonic()
    assert time.monotonic() - begin_s < 2.0 and capfd.readouterr().err == ""
    list(viewer.events())  # it ends as a stream does
    viewer.close()


def test_a_busy_server_is_sampled(front, server, monkeypatch):
    monkeypatch.setattr(page_routes, "STEPS_S", 0.05)
    monkeypatch.setattr(page_routes, "STEPS_BYTES_PER_S", 1000)
    monkeypatch.setattr(last_steps, "PAGE_BYTES_MAX", 8000)
    viewer = Viewer(front)
    for name, value in viewer.events():
        if name == "looks":
            for future in [server.submit("echo", ITEM) for _ in range(40)]:
                future.result(20)
        if name == "steps" and value["rests_s"]:
            break
    viewer.close()
    assert value["rests_s"] > page_routes.REST_S_MIN


def test_without_a_server_the_stream_says_so(tmp_path):
    with FrontThread(f"ipc://{tmp_path}/nobody", HttpConfig(**LOCAL)) as front:
        viewer = Viewer(front)
        found = next(value for name, value in viewer.events() if name == "failed")
        viewer.close()
    assert found["code"] == "server_gone"


def test_a_token_is_asked_for_all_but_the_files(server, tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    with FrontThread(server.endpoint, HttpConfig(**LOCAL, token_file=str(tmp_path / "token"))) as front:
        assert front.ask_raw("GET", "/")[0] == 200
        for path in ("/page/stream", "/page/apps", "/page/story/1"):
            assert front.ask_raw("GET", path)[0] == 401, path
        viewer = Viewer(front, {"Authorization": f"Bearer {TOKEN}"})
        assert next(viewer.events())[0] == "looks"
        viewer.close()


def test_of_several_clients_none_sees_single_requests(server, tmp_path):
    (tmp_path / "tokens").write_text(f"door {TOKEN}\nrobot {TOKEN[::-1]}\n")
    with FrontThread(server.endpoint, HttpConfig(**LOCAL, token_file=str(tmp_path / "tokens"))) as front:
        shown = {"Authorization": f"Bearer {TOKEN}"}
        assert front.ask_raw("GET", "/page/story/1", headers=shown)[0] == 403
        viewer = Viewer(front, shown)
        events = viewer.events()
        assert [next(events)[0] for _ in range(3)] == ["looks", "no_steps", "looks"]
        viewer.close()


def test_viewers_have_places_of_their_own_and_the_oldest_ends(server):
    with FrontThread(server.endpoint, HttpConfig(**LOCAL, in_flight_max=1)) as front:
        viewers = [Viewer(front) for _ in range(page_routes.VIEWERS_OF_ONE_MAX)]
        assert [viewer.response.status for viewer in viewers] == [200] * page_routes.VIEWERS_OF_ONE_MAX
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [4], "data": [0, 0, 0, 0]}]}
        body["inputs"].append({"name": "said", "datatype": "BYTES", "shape": [1], "data": ["a"]})
        assert front.ask("POST", "/v2/models/echo/infer", body)[0] == 200  # requests have theirs
        newest = Viewer(front)
        assert newest.response.status == 200
        viewers[0].response.read()  # it ends
        for viewer in (*viewers, newest):
            viewer.close()


def test_the_page_may_ask_its_own_front_and_others_may_not(front):
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [4], "data": [0, 0, 0, 0]}]}
    body["inputs"].append({"name": "said", "datatype": "BYTES", "shape": [1], "data": ["a"]})
    own = {"Origin": f"http://{front.http}", "Sec-Fetch-Site": "same-origin"}
    assert front.ask("POST", "/v2/models/echo/infer", body, own)[0] == 200
    for other in ("http://127.0.0.1:9", "https://example.org", "null"):
        assert front.ask("POST", "/v2/models/echo/infer", body, {"Origin": other})[0] == 403


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium is installed (apt-get install chromium)")
def test_a_browser_shows_the_server_and_a_keyboard_is_enough(front, server):
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    said: List[str] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 800}, reduced_motion="reduce")
        page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(f"http://{front.http}/")
        page.wait_for_selector("#status[data-state=good]")
        for _ in range(10):
            server.infer("echo", ITEM)
            time.sleep(0.1)
        page.wait_for_selector("#requests button")
        assert page.inner_text("#lanes th[scope=row]") == "cpu0"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
            "a telephone does not scroll sideways"
        )
        page.focus("#timeline")
        page.keyboard.press("ArrowLeft")
        assert "echo" in (page.text_content("#timeline-said") or "")
        page.keyboard.press("Enter")
        page.wait_for_selector("#story-lines li:has-text('launched echo')")
        page.keyboard.press("Escape")
        page.focus("article[data-key=echo] button")
        page.keyboard.press("Enter")
        page.wait_for_selector("#try-form textarea[name=said]")
        page.fill("#try-form textarea[name=said]", "good morning")
        page.click("#try-form button.main")
        page.wait_for_selector("#try-answer pre:has-text('good morning')")
        browser.close()
    assert said == [], "no error, and nothing that the content security policy refused"
