"""The contract of fronts notices what a front may do wrong: faults planted in the front of the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from for_each import each_time

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "write-a-front.md"

FAULTS = {
    "a_client_that_goes": ("if not asking.done() and", "if False and"),
    "an_unknown_app": ('raise UnknownApp(f"no app {app!r} is served")', 'return {"y": []}'),
    "a_failure": ('return {"error": error.code, "message": str(error)}', 'return {"y": []}'),
    "a_refusal": ('return {"error": error.code, "message": str(error)}', 'return {"error": "failed"}'),
    "too_large": ("limit=self.settings.line_max", "limit=2**30"),
    "many_clients": ('Places(64, "connections")', 'Places(8, "connections")'),
}
"""The test that must fail -> the planted fault: a text, and what stands in its place."""


def files():
    return dict(re.findall(r"<!-- file: (\w+\.py) -->\s*```python\n(.*?)```", PAGE.read_text(), flags=re.S))


@pytest.mark.timeout(180)
@pytest.mark.parametrize("case", each_time(FAULTS, "a_refusal"))
def test_a_planted_fault_is_noticed(case, tmp_path):
    right, wrong = FAULTS[case]
    for name, source in files().items():
        assert name != "line_front.py" or source.count(right) == 1, f"mend this test: {right!r} stands no longer there"
        (tmp_path / name).write_text(source.replace(right, wrong))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "test_line_front.py", "-k", case]
    done = subprocess.run(command, cwd=str(tmp_path), capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "1 failed" in done.stdout, done.stdout[-2000:]
