"""Costs of the device's monitor: its share of one core at one and at ten readings a second, and each source's cost.

    python research/bench/monitor.py [--seconds 20] [--root DIR] [--json FILE]

The monitor runs on its own thread in this process, which does nothing else meanwhile; the share is the processor time
of the whole process over the time that passed. ``--root`` reads the files of a recorded machine. The claim: under 1 %.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Dict

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

from common.replicated import BEYOND, checks_of
from lib.checks import arguments

from edgeserve.device.boards import detect_board
from edgeserve.device.monitor import Monitor
from edgeserve.device.sources import sources_for
from edgeserve.units import NS_PER_S

SHARE_MAX = 0.01
RATES = (1, 10)  # readings a second


def measured(root: str, rate: int, seconds: float) -> Dict[str, Any]:
    """One monitor at one rate: processor time of the process, and what each source took."""
    board = detect_board(root)
    monitor = Monitor(
        "bench", sources_for(board, root), lambda state: None, time.monotonic_ns, time.thread_time_ns, NS_PER_S // rate
    )
    began_s, spent_s = time.monotonic(), time.process_time()
    monitor.start()
    time.sleep(seconds)
    share = (time.process_time() - spent_s) / (time.monotonic() - began_s)
    costs = monitor.costs()
    monitor.stop()
    return {"board": board.kind.slug, "rate": rate, "share": round(share, 5), "sources": costs["sources"]}


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="per rate (default: 20)")
    parser.add_argument("--root", default="/", help="read the files of a recorded machine below this directory")
    args = parser.parse_args()
    rows = [measured(args.root, rate, args.seconds) for rate in RATES]
    for name, cost in rows[-1]["sources"].items():
        print(f"{name}: {cost['ms']:.3f} ms per reading, {cost['reads']} readings")
    checks = checks_of("research/bench/monitor.py", one_side=BEYOND)
    for row in rows:
        checks.at_most(f"{row['rate']} readings a second: share of a core", row["share"], SHARE_MAX)
    return checks.finish(args.json, {"board": rows[0]["board"]}, rows=rows)


if __name__ == "__main__":
    sys.exit(main())
