"""What the device's monitor costs: its share of one core at one and at ten readings a second, and each source's cost.

    python scripts/bench/monitor.py [--seconds 20] [--root DIR] [--json FILE]

The monitor runs on its own thread in this process, which does nothing else meanwhile; the share is the processor time
of the whole process over the time that passed. ``--root`` reads the files of a recorded machine. The claim: under 1 %.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from typing import Any, Dict

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
    """Measure, print, and end with 1 where the claim does not hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="per rate (default: 20)")
    parser.add_argument("--root", default="/", help="read the files of a recorded machine below this directory")
    parser.add_argument("--json", default="", metavar="FILE", help="write the numbers there")
    args = parser.parse_args()
    rows = [measured(args.root, rate, args.seconds) for rate in RATES]
    for row in rows:
        print(f"{row['rate']:3} readings a second: {row['share']:.3%} of a core ({row['board']})")
    for name, cost in rows[-1]["sources"].items():
        print(f"    {name}: {cost['ms']:.3f} ms per reading, {cost['reads']} readings")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"machine": platform.processor() or platform.machine(), "rows": rows}, file, indent=1)
    kept = all(row["share"] < SHARE_MAX for row in rows)
    print(f"under {SHARE_MAX:.0%} of a core: {'yes' if kept else 'no'}")
    return 0 if kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
