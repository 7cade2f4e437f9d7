"""Draw the pictures of ``docs/research/orloj.md``: batch latency as a distribution, the score of a request; and
the one of ``README.md``: the stored finish rates of profile PA.

    python research/figures/orloj.py

The scheduler's own code computes them (``sched/published/orloj/lengths.py``,
``sched/published/orloj/slack.py``) for one bimodal model: 40 ms and the length of the longest for each of a
batch; half of the requests are short (about 10 ms), half long (about 60 ms)."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Dict

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

from lib import plots
from replicate.orloj.cases import FACTORS
from replicate.orloj.systems import SYSTEMS

from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.latency.timings import timing_constant
from edgeserve.sched.published.orloj.lengths import Lengths, LengthWindow, lengths_of
from edgeserve.sched.published.orloj.slack import score_of

MS = 1_000_000
FIXED_MS = 40.0
CLASSES = {"short": (10.0, 3.0), "long": (60.0, 5.0)}  # mean and deviation, ms
DELAY_MS = 10_000.0


def lengths() -> Lengths:
    """Distributions learnt from 1,500 requests of each class."""
    draw = random.Random("draw_orloj")
    windows: Dict[str, LengthWindow] = {}
    for name, (mean, deviation) in CLASSES.items():
        times = [round((FIXED_MS + max(0.5, draw.gauss(mean, deviation))) * MS) for _ in range(1500)]
        windows[name] = LengthWindow(1500, times)
    sizes = (1, 2, 4, 8)
    model = BatchTime("m", "gpu0", {size: timing_constant(round((FIXED_MS + 35 * size) * MS)) for size in sizes}, sizes)
    return lengths_of(model, windows, dict.fromkeys(CLASSES, 1.0))


def finish_rates() -> plots.Panel:
    """A line per system of the stored replication that still exists, dots for the paper's columns."""
    with open(Path(plots.ROOT) / "research" / "results" / "replicate_orloj.json", encoding="utf-8") as file:
        stored = json.load(file)["tables"]["PA"]
    known = {system.name for system in SYSTEMS}
    table = {system: kinds for system, kinds in stored.items() if system in known}
    lines = []
    for index, (system, kinds) in enumerate(table.items()):
        colour = f"C{index % 10}"
        lines.append(plots.Line(system, FACTORS, kinds["ours"], "-" if index < 10 else "--", colour))
        if "paper" in kinds:
            lines.append(plots.Line("", FACTORS, kinds["paper"], "o", colour))
    return plots.Panel(
        "Requests in time, by deadline (dots: the paper)",
        "SLO, times the 99th percentile of a request alone",
        "finish rate",
        lines,
    )


def main() -> None:
    plots.draw("docs/research/orloj_finish.svg", [finish_rates()], legend="beside")
    known = lengths()
    chances = []
    for label, size, members in (
        ("1 short", 1, ("short",)),
        ("4 short", 4, ("short",) * 4),
        ("3 short, 1 long", 4, ("long", "short", "short", "short")),
        ("4 of unknown class", 4, None),
    ):
        found = known.expected(None, 4, 4) if members is None else known.batch(size, members)
        chances.append(
            plots.Line(
                label,
                [0, *[time / MS for time in found.times_ns], 380],
                [0, *found.shares, 1],
                "--" if members is None else "-",
            )
        )
    scores = []
    for name in CLASSES:
        for size in (1, 4):
            score = score_of(known, name, size, size, 1 / (DELAY_MS * MS), 1.0)
            slacks = [float(slack) for slack in range(1, 420)]
            scores.append(
                plots.Line(
                    f"{name}, batch of {size}",
                    slacks,
                    [score.p(slack * MS) * DELAY_MS * MS for slack in slacks],
                    "-" if size == 1 else "--",
                )
            )
    plots.draw(
        "docs/research/orloj_latency.svg",
        [plots.Panel("How long a batch takes", "time [ms]", "P(batch has ended)", chances)],
    )
    plots.draw(
        "docs/research/orloj_score.svg",
        [
            plots.Panel(
                "What it would cost to leave a request waiting",
                "slack: time left to its deadline [ms]",
                "score [per 10 s]",
                scores,
            )
        ],
    )


if __name__ == "__main__":
    main()
