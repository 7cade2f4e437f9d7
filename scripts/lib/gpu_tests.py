"""``tests/gpu`` in a process of its own, and what its report says."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from pathlib import Path
from typing import Any, Dict

ROOT = Path(__file__).resolve().parents[2]


def run_tests(quick: bool) -> Dict[str, Any]:
    """``tests/gpu`` in a process of its own: how many passed, what failed, and what was skipped for which reason."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "tests/gpu",
            "-p",
            "no:cacheprovider",
            f"--junit-xml={report}",
            *(["-x"] if quick else []),
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if not report.is_file():
            return {
                "passed": 0,
                "failed": ["pytest itself"],
                "skipped": {},
                "output": (done.stdout + done.stderr)[-4000:],
            }
        return read_report(xml.etree.ElementTree.parse(report).getroot())


def read_report(root: Any) -> Dict[str, Any]:
    """The counts of a junit report."""
    passed, failed = 0, []
    skipped: Dict[str, int] = {}
    for case in root.iter("testcase"):
        skip, wrong = case.find("skipped"), [*case.iter("failure"), *case.iter("error")]
        if wrong:
            failed.append(f"{case.get('classname')}.{case.get('name')}: {(wrong[0].get('message') or '')[:300]}")
        elif skip is not None:
            why = skip.get("message") or ""
            skipped[why] = skipped.get(why, 0) + 1
        else:
            passed += 1
    return {"passed": passed, "failed": failed, "skipped": skipped}
