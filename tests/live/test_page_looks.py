"""The look of the page: by axe-core, in three sizes, light and dark; and the pictures of it that the docs show."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from http_front import FrontThread
from serving import served

pytest.importorskip("starlette", reason="pip install -e '.[http]'")
pytest.importorskip("uvicorn", reason="pip install -e '.[http]'")

from edgeserve.fronts.http.settings import HttpConfig

ROOT = Path(__file__).resolve().parents[2]
AXE = ROOT / "clients" / "node" / "node_modules" / "axe-core" / "axe.min.js"
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium is installed (apt-get install chromium)"),
]
SIZES = {"desk": (1440, 1100), "tablet": (820, 1180), "telephone": (390, 844)}
TABLES = {
    "model": {"echo": {"engine": "synthetic", "expected": {1: "1ms"}}},
    "app": {"echo": {"model": "echo", "slo": "20s", "inputs": {"x": {"shape": [4]}, "said": {"dtype": "text"}}}},
}


def findings(page):
    """Rules that are broken seriously, each with the first place of it."""
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:160]}" for each in found if each["impact"] in ("serious", "critical")
    ]


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is missing: run 'make clients'")
def test_axe_finds_nothing_serious():
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with served(TABLES) as (_, client), FrontThread(client.endpoint, HttpConfig(listen="127.0.0.1:0")) as front:
        with playwright.sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for (width, height), colours in [(size, each) for size in SIZES.values() for each in ("light", "dark")]:
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=colours)
                page.goto(f"http://{front.http}/")
                page.wait_for_selector("#status[data-state=good]")
                client.infer("echo", {"x": np.zeros(4, np.float32), "said": "a"})
                page.wait_for_selector("#requests button")
                page.evaluate(AXE.read_text(encoding="utf-8"))  # the page's policy forbids it a script of another place
                assert findings(page) == [], (width, colours)
                page.click("#requests button")
                page.wait_for_selector("#story-lines li")
                assert findings(page) == [], (width, colours, "an open story")
                page.keyboard.press("Escape")
                page.click("article[data-key=echo] button")
                page.wait_for_selector("#try-form")
                assert findings(page) == [], (width, colours, "an open form")
                page.evaluate("document.getElementById('try-form').append(new Image())")
                assert findings(page), "axe-core did not look: an image without a text is one"
                page.close()
            browser.close()


@pytest.mark.timeout(300)
def test_the_pictures_that_the_docs_show_are_drawn_by_the_script(tmp_path):
    pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    script = ROOT / "scripts" / "draw" / "page.py"
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    shown = {path.name for path in (ROOT / "docs" / "guide").iterdir() if path.suffix in (".png", ".svg")}
    assert {path.name for path in tmp_path.iterdir()} == shown
