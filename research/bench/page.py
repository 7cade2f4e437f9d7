"""The server's page in a browser: accessibility by axe-core, and whether anything grows while it stays open.

    python research/bench/page.py [--axe node_modules/axe-core/axe.min.js] [--minutes 60] [--json FILE]

A server that is asked a little more than it can do (``lib/page_server.py``) runs in a process of its own, its front
in another. With ``--axe`` the page, an open story and an open form are looked at in three sizes and two colours. Then
the page stays open: at each of :data:`LOOKS` times, the browser's heap after a forced collection, its nodes and
listeners, and the memory of server and front are read. The last third must not be above the third before it, the first
third fills what is bounded. Needs chromium, and ``pip install playwright``; axe-core comes from npm.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Dict, List

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

import psutil
from lib.checks import Checks, arguments
from lib.page_server import LOADS, inputs_of_apps, send, serve
from playwright.sync_api import Browser, Page, sync_playwright

SIZES = {"a desk": (1280, 1000), "a tablet": (768, 1024), "a telephone": (390, 844)}
COLOURS = ("light", "dark")
SERIOUS = ("serious", "critical")
LOOKS = 30
"""Times at which memory is read, evenly over the time that the page is open."""

READS = 5
"""Of the browser at each look, of which the least counts: what was drawn just now is not collected at once."""

GROWTH_MAX = {"browser_heap": 1.1, "nodes": 1.25, "listeners": 1.25, "server": 1.05, "front": 1.05}
"""The least of the last third to that of the third before it: what leaks is never given back. Nodes are the bars and
reasons of a minute too, which are more where more is late."""

Row = Dict[str, float]


def findings(page: Page) -> List[str]:
    """What axe-core calls serious or critical: rule, and the first place of it."""
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{item['id']} ({item['impact']}): {item['nodes'][0]['html'][:160]}"
        for item in found["violations"]
        if item["impact"] in SERIOUS
    ]


def look_with_axe(browser: Browser, address: str, axe: str, checks: Checks) -> None:
    """The page, a story and a form, in every size and colour."""
    for size, (width, height) in SIZES.items():
        for colours in COLOURS:
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=colours)  # type: ignore[arg-type]
            page.goto(address)
            page.wait_for_selector("#requests button")
            page.wait_for_selector("article[data-key] button")
            page.evaluate(axe)  # as a debugger does: the page's own policy forbids it a script of another place
            found = findings(page)
            page.click("#requests button")
            page.wait_for_selector("#story-lines li")
            found += findings(page)
            page.keyboard.press("Escape")
            page.click("article[data-key=detect] button")
            page.wait_for_selector("#try-form")
            found += findings(page)
            page.evaluate("document.getElementById('try-form').append(new Image())")
            assert findings(page), "an image without a text is one: axe-core did not look"
            page.close()
            for text in found:
                print(f"{size}, {colours}: {text}", flush=True)
            checks.at_most(f"axe-core, {size}, {colours}: serious findings", len(found), 0)


def watch(browser: Browser, address: str, minutes: float, processes: Dict[str, psutil.Process]) -> List[Row]:
    """What is in use while the page is open, a row per look."""
    page = browser.new_page(viewport={"width": 1280, "height": 1000}, color_scheme="dark")
    page.goto(address)
    page.wait_for_selector("#requests button")
    tools = page.context.new_cdp_session(page)
    rows: List[Row] = []
    began_s = time.monotonic()
    for look in range(1, LOOKS + 1):
        page.wait_for_timeout(1e3 * max(0.0, began_s + 60 * minutes * look / LOOKS - time.monotonic()))
        reads: List[Row] = []
        for _ in range(READS):
            page.wait_for_timeout(200)
            tools.send("HeapProfiler.collectGarbage")
            found, used = tools.send("Memory.getDOMCounters"), tools.send("Runtime.getHeapUsage")["usedSize"]
            reads.append({"browser_heap": used, "nodes": found["nodes"], "listeners": found["jsEventListeners"]})
        row: Row = {
            "minute": round((time.monotonic() - began_s) / 60, 2),
            **{name: min(read[name] for read in reads) for name in reads[0]},
            **{name: process.memory_info().rss for name, process in processes.items()},
        }
        rows.append(row)
        print(", ".join(f"{name} {value:,}" for name, value in row.items()), flush=True)
    page.close()
    return rows


def judge(rows: List[Row], checks: Checks) -> None:
    """Growth over the last two thirds of the time."""
    third = len(rows) // 3
    for name, bound in GROWTH_MAX.items():
        before, after = (min(row[name] for row in part) for part in (rows[third : 2 * third], rows[2 * third :]))
        checks.at_most(f"{name.replace('_', ' ')}: last third to the one before", after / before, bound)


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--axe", metavar="FILE", help="axe.min.js of the npm package axe-core")
    parser.add_argument("--minutes", type=float, default=60.0, help="how long the page stays open (default 60)")
    parser.add_argument("--serve", metavar="ENDPOINT", help="only serve: for the script itself")
    args = parser.parse_args()
    if args.serve:
        with serve(args.serve):
            print("ready", flush=True)
            threading.Event().wait()
    checks, rows = Checks("research/bench/page.py"), []
    circumstances: Dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine()}
    with tempfile.TemporaryDirectory() as place:
        endpoint = f"ipc://{place}/bus/socket"
        server = subprocess.Popen([sys.executable, __file__, "--serve", endpoint], stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        server.stdout.readline()
        command = [sys.executable, "-m", "edgeserve", "top", "--web", "--endpoint", endpoint]
        front = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert front.stdout is not None
            address = front.stdout.readline().split()[0]
            for app, values in inputs_of_apps().items():
                threading.Thread(target=send, args=(endpoint, app, values), daemon=True).start()
            with sync_playwright() as driver:
                browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
                circumstances["chromium"] = browser.version
                if args.axe:
                    axe = Path(args.axe).read_text(encoding="utf-8")
                    circumstances["axe_core"] = axe[:80].partition("v")[2].split()[0]
                    look_with_axe(browser, address, axe, checks)
                if args.minutes:
                    processes = {"server": psutil.Process(server.pid), "front": psutil.Process(front.pid)}
                    rows = watch(browser, address, args.minutes, processes)
                    judge(rows, checks)
                browser.close()
        finally:
            for process in (front, server):
                process.terminate()
                process.wait()
    circumstances.update(minutes=args.minutes, requests_per_second=sum(rate for rate, _ in LOADS.values()))
    return checks.finish(args.json, circumstances, rows=rows)


if __name__ == "__main__":
    sys.exit(main())
