"""NVIDIA's compute-sanitizer around the TensorRT engine's own code with real kernels (``tests/gpu/test_kernels.py``):
accesses beside a buffer, and memory that two kernels use at once."""

from __future__ import annotations

import glob
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

from lib.lane_timing import Setting

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("memcheck", "racecheck")
LIMIT_S = 300
"""For one tool: each kernel takes up to a hundred times as long."""

SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")


def sanitizer() -> Optional[str]:
    """The program, which CUDA's toolkit puts in no PATH."""
    return shutil.which("compute-sanitizer") or next(iter(glob.glob("/usr/local/cuda*/bin/compute-sanitizer")), None)


def sanitize(setting: Setting) -> Dict[str, Any]:
    """The number of faults that each tool found; None where the tool came to no end, or the tests under it failed."""
    rows: List[Dict[str, Any]] = []
    for tool in TOOLS:
        command = [str(sanitizer()), "--tool", tool, "--target-processes", "all", sys.executable, "-m", "pytest"]
        words = ["tests/gpu/test_kernels.py", "-k", "side_by_side and copied", "-q", "-p", "no:cacheprovider"]
        try:
            done = subprocess.run(
                [*command, *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired:
            rows.append({"tool": tool, "faults": None})
            continue
        found = SUMMARY.findall(done.stdout + done.stderr)
        ran = re.search(r"\b[1-9]\d* passed", done.stdout) and "failed" not in done.stdout
        rows.append({"tool": tool, "faults": sum(map(int, found)) if found and ran else None})
    return {"rows": rows}
