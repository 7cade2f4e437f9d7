"""The bounds of the benches of ``gpu_check.py``."""

from __future__ import annotations

from typing import Any, Mapping

from edgeserve.engines.warm import CHANGE_FACTOR_MAX
from lib.checks import Checks

OVERHEAD_MAX = 0.05
CALL_MS = 5.0
"""The bound on the overhead is for calls of this length."""

LOOP_MIN, IN_TIME_MIN, URGENT_MIN, PROMISES_MIN = 0.95, 0.98, 0.995, 0.9
"""The bench ``serve``: least shares of a thread's work that knows no deadline, and of the requests."""

ALONE_MAX = 1.5
"""The 99.9th percentile of one batch at a time, as a factor of the median: a desktop's other programs share the CPU
that launches, where Clockwork's machines had none."""


def check(results: Mapping[str, Any], checks: Checks) -> None:
    """Hold the benches' figures against their bounds."""
    for row in results.get("overhead", {}).get("rows", ()):
        if row["bare_ms"] >= CALL_MS:
            checks.at_most(
                f"batch {row['batch']} of {row['bare_ms']:.1f} ms: overhead of the engine",
                row["overhead"],
                OVERHEAD_MAX,
            )
    if "overlap" in results:
        checks.at_least("batches a second, two launched to one", results["overlap"]["gain"], 1.0)
    for row in results.get("tensorrt", {}).get("rows", ()):
        if row["bare_ms"] >= CALL_MS and (row["mapped"], row["graph"], row["lanes"], row["depth"]) == (0, 0, 1, 1):
            precision = "fp16" if row["fp16"] else "as the file has it"
            checks.at_most(
                f"TensorRT, {precision}, {row['bare_ms']:.1f} ms: overhead of the engine",
                row["ms"] / row["bare_ms"] - 1,
                OVERHEAD_MAX,
            )
    for row in results.get("sizes", {}).get("rows", ()):
        name = f"{row['engine']}, batch {row['batch']}: time after another size, to that after its own"
        checks.at_most(name, row["changed_ms"] / row["steady_ms"], CHANGE_FACTOR_MAX)
    for row in results.get("sanitize", {}).get("rows", ()):
        checks.is_true(f"{row['tool']} ran to its end and found no fault", row["faults"] == 0)
    check_serving(results.get("serve", {}), checks)
    rows = results.get("profile", {}).get("rows", ())
    if rows:
        checks.at_most("time per item, largest batch to single", rows[-1]["per_item_ms"] / rows[0]["per_item_ms"], 1.0)
    rows = results.get("predictability", {}).get("rows", ())
    if rows:
        checks.at_most("one at a time: p99.9 to median", rows[0]["p999_to_median"], ALONE_MAX)
        checks.at_least(
            "16 at once: p99.9 to median, to one at a time", rows[-1]["p999_to_median"] / rows[0]["p999_to_median"], 1.0
        )


def check_serving(result: Mapping[str, Any], checks: Checks) -> None:
    """Hold the runtime's figures against the greedy thread's."""
    if "wrong_answers" in result:
        checks.at_most("answers of the runtime that are not the network's", result["wrong_answers"], 0)
    for row in result.get("rows", ()):
        load = row["load"]
        if row["urgent_in_time"] is None:
            checks.at_least(f"{load}: answers a second, to the thread's", row["ratio"], LOOP_MIN)
            continue
        bound = {"90%": IN_TIME_MIN, "120%": 1.0, "150%": 1.0}.get(load.split()[0])
        if bound is not None:
            checks.at_least(f"{load}: answers in time, to the thread's", row["ratio"], bound)
        checks.at_least(f"{load}: urgent requests in time", row["urgent_in_time"], URGENT_MIN)
        checks.at_least(f"{load}: accepted requests in time", row["promises_kept"], PROMISES_MIN)
