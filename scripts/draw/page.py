"""Take the pictures of the server's page, in a browser, of a device that is asked a little more than it can do.

    python scripts/draw/page.py [DIRECTORY]

Needs chromium, and ``pip install playwright``: without one of them only ``top.svg`` is drawn, and the exit status is 3.
Wall-clock: no two pictures are equal, and no test compares them.
"""

from __future__ import annotations

import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/

from lib.page_server import inputs_of_apps, send, serve
from rich.console import Console

ROOT = Path(__file__).resolve().parents[2]
VIEWS = {
    "page-dark": (1440, 1100, "dark"),
    "page-light": (1440, 1100, "light"),
    "page-phone": (390, 844, "light"),
    "page-phone-dark": (390, 844, "dark"),
}
"""Picture -> width, height and colours of the window."""


TOP_S = 5.0
"""Seconds until ``edgeserve top`` has something to show."""

NO_BROWSER = 3


def take(page: Any, name: str, folder: Path) -> None:
    """A picture of what is in the window."""
    from PIL import Image

    path = folder / f"{name}.png"
    page.screenshot(path=str(path))
    Image.open(path).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: drawn anew")


def take_top(endpoint: str, folder: Path) -> None:
    """The output of ``edgeserve top`` as a picture that loads no font."""
    command = [sys.executable, "-m", "edgeserve", "top", "--count", "1", "--endpoint", endpoint]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "88"})
    console = Console(record=True, width=88, file=io.StringIO())
    console.print(done.stdout.rstrip(), highlight=False, markup=False)
    svg = console.export_svg(title="edgeserve top")
    (folder / "top.svg").write_text(re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL), encoding="utf-8")


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/guide"
    chromium = shutil.which("chromium")
    with tempfile.TemporaryDirectory() as place:
        endpoint = f"ipc://{place}/bus/socket"
        with serve(endpoint):
            for app, inputs in inputs_of_apps().items():
                threading.Thread(target=send, args=(endpoint, app, inputs), daemon=True).start()
            if chromium is None or importlib.util.find_spec("playwright") is None:
                time.sleep(TOP_S)
                take_top(endpoint, folder)
                print("the page is not drawn: that needs chromium, and pip install playwright")
                return NO_BROWSER
            from playwright.sync_api import sync_playwright

            command = [sys.executable, "-m", "edgeserve", "top", "--web", "--endpoint", endpoint]
            front = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert front.stdout is not None
            address = front.stdout.readline().split()[0]
            with sync_playwright() as driver:
                browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                for name, (width, height, colours) in VIEWS.items():
                    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=colours)  # type: ignore[arg-type]
                    page.goto(address)
                    time.sleep(62 if name == "page-dark" else 12)
                    page.wait_for_selector("#status[data-state=good]")
                    take(page, name, folder)
                    if name == "page-dark":
                        page.locator("#timeline").screenshot(path=str(folder / "timeline.png"))
                        take_top(endpoint, folder)
                    if name == "page-light":
                        page.click("input[value=late]")
                        page.click("#requests button")
                        page.wait_for_selector("#story-lines li:has-text('arrived')")
                        take(page, "page-story", folder)
                browser.close()
            front.terminate()
            front.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
