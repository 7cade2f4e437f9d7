"""A few rounds of ``scripts/dev/faults.py``: a client, a model's process and the server are killed while they work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "dev" / "faults.py"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it looks at /proc")
def test_whatever_is_killed_every_request_is_answered_once_and_nothing_stays_behind() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--rounds", "3", "--seed", "5"], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    assert "3 rounds" in done.stdout and "nothing was left behind" in done.stdout
