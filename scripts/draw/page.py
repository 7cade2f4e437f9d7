"""Take the pictures of the server's page, in a browser, of a device that is asked a little more than it can do.

    python scripts/draw/page.py [DIRECTORY]

Needs chromium, and ``pip install playwright``. Wall-clock: no two pictures are equal, and no test compares them.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Dict

import numpy as np
from PIL import Image
from playwright.sync_api import Page, sync_playwright

import edgeserve
from edgeserve.config.loading import parse_config

ROOT = Path(__file__).resolve().parents[2]
IMAGE = {"dtype": "uint8", "shape": [48, 64, 3]}
TABLES: Dict[str, Any] = {
    "monitor": {"enabled": "always"},
    "lane": {"cpu0": {}, "cpu1": {}},
    "model": {
        "detector": {"expected": {1: "9ms", 2: "14ms", 4: "24ms"}, "batch": [1, 2, 4], "lanes": ["cpu0"]},
        "depth": {"expected": {1: "16ms"}, "lanes": ["cpu0"]},
        "wakeword": {"expected": {1: "3ms", 2: "4ms", 4: "6ms"}, "batch": [1, 2, 4], "lanes": ["cpu1"]},
        "intent": {"expected": {1: "40ms"}, "lanes": ["cpu1"]},
    },
    "app": {
        "detect": {"model": "detector", "slo": "60ms", "class": "critical", "inputs": {"image": IMAGE}},
        "depth": {"model": "depth", "slo": "120ms", "inputs": {"image": IMAGE}},
        "wake": {"model": "wakeword", "slo": "60ms", "inputs": {"sound": {"shape": [1600]}}},
        "intents": {"model": "intent", "slo": "250ms", "inputs": {"said": {"dtype": "text"}}},
    },
}
LOADS = {"detect": (15.0, None), "depth": (6.0, 30.0), "wake": (8.0, 6.0), "intents": (2.0, 60.0)}
"""App -> requests a second, and the deadline in ms of every tenth of them, which is too short."""

VIEWS = {"page-dark": (1280, 1000, "dark"), "page-light": (1280, 1000, "light"), "page-phone": (390, 844, "light")}
"""Picture -> width, height and colours of the window."""


def send(endpoint: str, app: str, inputs: Dict[str, Any]) -> None:
    """Ask the app until the process ends, sometimes several times at once."""
    draw, (rate_hz, short_ms) = random.Random(app), LOADS[app]
    with edgeserve.Client(endpoint) as client:
        while True:
            time.sleep(1 / rate_hz if short_ms is None else draw.expovariate(rate_hz))
            for _ in range(4 if draw.random() < 0.04 else 1):
                slo_ms = short_ms if draw.random() < 0.1 else None
                client.submit(app, inputs, slo_ms=slo_ms).add_done_callback(lambda future: future.exception())


def inputs_of_apps() -> Dict[str, Dict[str, Any]]:
    """What each app is asked with."""
    image = np.zeros((48, 64, 3), np.uint8)
    return {
        "detect": {"image": image},
        "depth": {"image": image},
        "wake": {"sound": np.zeros(1600, np.float32)},
        "intents": {"said": "lights on"},
    }


def serve(endpoint: str) -> edgeserve.Runtime:
    """The server of the pictures, not started."""
    models = {name: {"engine": "synthetic", **table} for name, table in TABLES["model"].items()}
    return edgeserve.Runtime(parse_config({**TABLES, "model": models, "server": {"endpoint": endpoint}}), serve=True)


def take(page: Page, name: str, folder: Path) -> None:
    """A picture of what is in the window."""
    path = folder / f"{name}.png"
    page.screenshot(path=str(path))
    Image.open(path).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: drawn anew")


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/guide"
    chromium = shutil.which("chromium") or "chromium"
    with tempfile.TemporaryDirectory() as place:
        endpoint = f"ipc://{place}/bus/socket"
        with serve(endpoint):
            for app, inputs in inputs_of_apps().items():
                threading.Thread(target=send, args=(endpoint, app, inputs), daemon=True).start()
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
                    take(page, name, folder)
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
