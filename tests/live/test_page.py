"""The page of the HTTP front: its files, its stream, who may look; in a browser where one is installed."""

from __future__ import annotations

import http.client
import http.server
import json
import queue
import re
import shutil
import threading
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np
import pytest
from http_front import FrontThread
from serving import served, wait_until

pytest.importorskip("starlette", reason="pip install -e '.[http]'")
pytest.importorskip("uvicorn", reason="pip install -e '.[http]'")

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
    for path in re.findall(r'(?:src|href)="(/[^"]+)"', text) + ["/page/try.js"]:
        assert front.ask_raw("GET", path)[0] == 200, path
    scripts = "".join(path.read_text() for path in PAGE.glob("*.js"))
    assert "innerHTML" not in scripts and "http:" not in scripts.replace("http://www.w3.org/2000/svg", "")
    wanted = set(re.findall(r'byId\("([^"]+)"\)', scripts))
    assert wanted <= set(re.findall(r'id="([^"]+)"', text))
    rules = (PAGE / "page.css").read_text()
    assert set(re.findall(r"var\((--[a-z]+)\)", rules + scripts)) <= set(re.findall(r"(--[a-z]+):", rules))


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


# --- what a browser shows of a server that the test invents -----------------------------------------------------------


class Told:
    """A front of invented servers: the page's files, and a stream that says what the test puts into it. ``None`` ends
    the stream, as a front does that is gone."""

    def __init__(self) -> None:
        told = self
        self.pieces: Any = queue.Queue()

        class Answers(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # noqa: N802 the name that http.server calls
                self.send_response(200)
                if self.path != "/page/stream":
                    name, kind = page_routes.FILES[self.path]
                    self.send_header("content-type", kind.decode())
                    self.end_headers()
                    self.wfile.write((PAGE / name).read_bytes())
                    return
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                while True:
                    piece = told.pieces.get()
                    if piece is None:
                        return
                    self.wfile.write(page_routes.event(*piece))
                    self.wfile.flush()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def looks(self, *looks: Any) -> None:
        self.pieces.put(("looks", list(looks)))

    def close(self) -> None:
        self.pieces.put(None)
        self._server.shutdown()
        self._server.server_close()


BOUNDS_MS = [1.0, 10.0, 100.0, 1000.0]


def app_row(
    answered: int = 0,
    late: int = 0,
    refused: int = 0,
    failed: int = 0,
    latencies: Any = (0, 0, 0, 0, 0),
    reasons: Any = None,
    breakdown_ms: Any = None,
) -> Dict[str, Any]:
    """The counts of an app since the server's start."""
    return {
        "outcomes": {"completed": answered, "rejected": refused, "dropped": 0, "cancelled": 0, "failed": failed},
        "reasons": reasons or {},
        "late": late,
        "open": 0,
        "latency_histogram": {"bounds_ms": BOUNDS_MS, "counts": list(latencies), "sum_ms": float(sum(latencies))},
        "breakdown_ms": breakdown_ms or {"queue": 1.0, "load": 0.0, "batch": 0.0, "execute": 3.0, "other": 0.0},
        "policy": "edf",
        "slo_ms": 50.0,
        "expected_ms": 4.0,
    }


def look(uptime_s: float, apps: Any, lanes: Any = ("cpu0",), open: int = 0) -> Dict[str, Any]:
    row = {"works": 0, "jobs": 0, "busy": 0.5, "refused": 0, "failed": 0, "in_flight": 0, "state": "up"}
    return {
        "uptime_s": uptime_s,
        "open": open,
        "pending_max": 9,
        "apps": apps,
        "lanes": dict.fromkeys(lanes, row),
        "devices": {},
        "device": {},
    }


def steps(ends: Any) -> Any:
    """Entries of a timeline: one lane, and a request for each (app, outcome, reason)."""
    entries: List[Any] = [{"ph": "M", "pid": 1, "tid": 0, "name": "thread_name", "args": {"name": "cpu0"}}]
    for number, (app, outcome, reason) in enumerate(ends, 1):
        at = number * 1000.0
        said = {"outcome": outcome, "reason": reason, "slack_ms": 5.0, "queue_ms": 1.0}
        entries.append({"ph": "X", "tid": 0, "ts": at, "dur": 500.0, "name": app, "args": {"requests": [number]}})
        entries.append({"ph": "b", "id": number, "cat": app, "ts": at, "args": said})
        entries.append({"ph": "e", "id": number, "ts": at + 700.0})
    return {"now_us": 1e6, "entries": entries, "rests_s": 0}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if shutil.which("chromium") is None:
        pytest.skip("no chromium is installed (apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def told() -> Iterator[Told]:
    told = Told()
    yield told
    told.close()


def opened(browser: Any, told: Told, width: int = 1440) -> Any:
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.set_default_timeout(15_000)
    page.goto(told.address)
    return page


def tile(page: Any, name: str) -> str:
    return str(page.text_content(f"#t-{name}"))


@pytest.mark.nightly
def test_failures_are_counted_and_shown_apart_from_refusals(browser, told):
    page = opened(browser, told)
    told.looks(look(100, {"a": app_row(50, reasons={"failed": {"model_failed": 7}}, failed=7)}))
    refused = {"rejected": {"cannot_make_deadline": 3}, "dropped": {"cannot_make_deadline": 1}}
    after = app_row(80, 10, 4, 10, reasons={"failed": {"model_failed": 10}, **refused})
    told.looks(look(110, {"a": after}))
    told.pieces.put(("steps", steps([("a", "failed", "it broke"), ("a", "rejected", "cannot_make_deadline")])))
    page.wait_for_selector("#requests button")
    assert (tile(page, "time"), tile(page, "late"), tile(page, "none"), tile(page, "fail")) == (
        "54.1 %",
        "10",
        "4",
        "3",
    )
    assert page.inner_text("#h-minute") == "The last 10 seconds"
    assert "4 refused · 3 failed" in page.inner_text("article .rates")
    assert page.inner_text("article .chips li.fail") == "model failed 3"
    assert page.inner_text("article .chips li:not(.fail)") == "cannot make deadline 4"
    for which, shown in (("none", "rejected: cannot make deadline"), ("fail", "failed: it broke")):
        page.click(f"input[value={which}]")
        assert page.locator("#requests td.end").all_inner_texts() == [shown]
    page.close()


@pytest.mark.nightly
def test_latencies_are_those_of_the_minute_that_the_heading_names(browser, told):
    page = opened(browser, told)
    slow = {"queue": 900.0, "load": 0.0, "batch": 0.0, "execute": 100.0, "other": 0.0}
    told.looks(
        look(0, {"a": app_row(0)}), look(10, {"a": app_row(1000, latencies=(0, 0, 0, 0, 1000), breakdown_ms=slow)})
    )
    for second in range(11, 80):  # all was slow before; in this minute nothing is
        done = 10 * (second - 10)
        parts = dict(zip(slow, (1.0, 0.0, 0.0, 3.0, 0.0)))
        mixed = {part: (slow[part] * 1000 + parts[part] * done) / (1000 + done) for part in slow}
        row = app_row(1000 + done, latencies=(0, done, 0, 0, 1000), breakdown_ms=mixed)
        told.looks(look(second, {"a": row}))
    page.wait_for_selector("#h-minute:has-text('The last minute')")
    page.wait_for_selector("article .took:has-text('100 within 10')")
    assert "half within 10.0 ms, 99 of 100 within 10.0 ms" in page.inner_text("article .took")
    assert page.get_attribute("article .parts .bar", "aria-label") == "queue 1.00 ms, execute 3.00 ms"
    page.close()


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["the server is gone", "the front is gone"])
def test_a_page_without_a_server_is_grey_and_says_how_old_it_is_until_another_one_answers(browser, told, how):
    page = opened(browser, told)
    told.looks(look(100, {"a": app_row(5)}), look(101, {"a": app_row(9)}))
    page.wait_for_selector("#status[data-state=good]")
    assert page.get_attribute("body", "data-stale") is None
    told.pieces.put(("failed", {"error": "the server is gone"}) if how == "the server is gone" else None)
    page.wait_for_selector("body[data-stale] #status[data-state=bad]")
    page.wait_for_selector("#uptime:has-text('old')")
    assert page.evaluate("getComputedStyle(document.querySelector('main')).filter") == "grayscale(1)"
    told.looks(look(1, {"a": app_row(3)}), look(2, {"a": app_row(4)}))  # it has started again, and counts from 0
    page.wait_for_selector("#status[data-state=good]")
    page.wait_for_selector("#t-time:has-text('100 %')")
    assert page.get_attribute("body", "data-stale") is None
    assert page.inner_text("#h-minute") == "The last 1 seconds" and page.inner_text("#uptime") == "up 2 s"
    page.close()


LONG = "a name that was chosen to be very long, and with_no_place_to_break_it_" + "x" * 120
RIGHT_TO_LEFT = "\u05d6\u05d9\u05d4\u05d5\u05d9 \u05e4\u05e0\u05d9\u05dd"
ERROR = "model 'm' failed: " + "a_reason_without_any_space_" * 12 + " and one that has some " * 9


@pytest.mark.nightly
@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize(
    "names", [[], ["a"], [LONG, RIGHT_TO_LEFT, "c"], [f"app {number}" for number in range(40)]], ids=len
)
def test_nothing_is_pushed_out_of_the_window(browser, told, width, names):
    page = opened(browser, told, width)
    large = app_row(10**12, 10**9, 10**11, 10**10, (0, 0, 10**12, 0, 0), {"failed": {LONG: 10**10}})
    lanes = ["cpu0", *names[:1]]
    told.looks(look(10, dict.fromkeys(names, app_row()), lanes), look(70, dict.fromkeys(names, large), lanes, 10**9))
    page.wait_for_selector("#status[data-state=good]")
    if names:
        ends = [(name, "failed", ERROR) for name in names[:3]]
        told.pieces.put(("steps", steps(ends)))
        page.wait_for_selector("#requests button")
        inside = "(at) => { const box = at.getBoundingClientRect(); return box.left >= 0 && box.right <= innerWidth; }"
        for place in (
            "#requests td.end",
            "#requests td.n",
            "#requests td button",
            "article button",
            "article h3",
            "dd",
        ):
            for at in page.query_selector_all(place):
                assert at.evaluate(inside), place
        assert (
            page.evaluate("Math.max(...[...document.querySelectorAll('#requests tr')].map((row) => row.clientHeight))")
            < 80
        )
        assert page.get_attribute("#requests td.end span", "title").startswith("failed: model 'm' failed")
    else:
        assert page.is_visible("#apps-none")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("#apps article").count() == len(names)
    if len(names) > 8:
        page.wait_for_selector("#timeline-note:has-text('The 8 apps of 40 that are asked most')")
    page.close()


@pytest.mark.nightly
def test_charts_say_what_their_axes_are(browser, told):
    page = opened(browser, told)
    told.looks(*[look(second, {"a": app_row(7 * second)}) for second in range(5, 8)])
    page.wait_for_selector("article .axis")
    assert page.locator("article .axis span").all_inner_texts() == ["up to 7", "requests a second", "60 s ago", "now"]
    bars = page.eval_on_selector_all("article svg rect", "(bars) => bars.map((bar) => Number(bar.getAttribute('x')))")
    assert [round(at) for at in bars] == [58, 59]  # the last two seconds, at the right end
    page.close()
