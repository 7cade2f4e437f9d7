"""FIFO with static batches, ``rtlm`` and ``plan`` on the hub's questions, in virtual time.

    python research/bench/language_policies.py [--quick] [--json FILE]

The real scheduler and the real loop of steps, with a back end that computes nothing and takes as long as SmolLM2
(``int8``) was measured to (docs/research/language-models.md), so that what else a machine does is not in it. A quarter
of the questions is open (160 tokens), of the others two thirds are intents (a long prompt, three tokens) and a third
brief ones. Load 1 is what FIFO answers a second when all questions are there at once. FIFO's batches are static: nobody
joins one that runs, but each answer leaves when it is whole (*early exit*), which is more than the paper's FIFO does.
``research/bench/language_serving.py`` measures the same live."""

from __future__ import annotations

import random
import statistics
import sys
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

from lib.checks import Checks, arguments

from bench.language_lane import MS, SLOTS, STEPS_MS, Case, World
from edgeserve.config.loading import parse_config
from edgeserve.sched.protocol.events import Request

POLICIES: Dict[str, Dict[str, str]] = {
    "fifo": {"kind": "rtlm", "method": "fifo"},
    "rtlm": {"kind": "rtlm"},
    "plan": {"kind": "plan"},
}
CASE = Case("int8", SLOTS, 100 * MS, True)
OPEN, INTENT, BRIEF = (37, 160), (150, 3), (37, 16)
"""Tokens of the prompt, and of the answer at most."""
LONG_SHARE, BRIEF_MIN = 0.25, 8
LOAD = 0.9

Asked = Sequence[Tuple[int, int]]


class Hub(World):
    """One lane, one policy, and questions that arrive whether or not others were answered."""

    def __init__(self, policy: Dict[str, str], asked: Asked, at_s: Sequence[float]) -> None:
        super().__init__(CASE, 0, config_of(policy))
        for (prompt, steps), due_s in zip(asked, at_s):
            self.ask(round(due_s * 1e9), prompt, steps)

    def _answered(self, request: Request) -> None:
        """Nobody asks again."""

    def response_s(self) -> List[float]:
        """How long each answer took, shortest first."""
        self.go_on(10**15)
        return sorted((at_ns - request.arrival_ns) / 1e9 for request, _, at_ns in self.ended)


def config_of(policy: Dict[str, str]) -> Any:
    """The language model alone on its lane."""
    sizes = [size for size in (1, 2, 4, 8) if size <= SLOTS]
    expected = {str(size): f"{STEPS_MS[CASE.weights][size - 1]}ms" for size in sizes}
    return parse_config(
        {
            "lane": {"cpu0": {}},
            "policy": {"words": policy},
            "model": {"chat": {"engine": "synthetic", "batch": sizes, "expected": expected, "slots": SLOTS}},
            "app": {"assistant": {"model": "chat", "policy": "words", "slo": "1000s", "on_late": "answer"}},
        }
    )


def questions(count: int, draw: random.Random) -> List[Tuple[int, int]]:
    """Prompts and answers in the shares of the hub."""
    found = []
    for number in range(count):
        if draw.random() < LONG_SHARE:
            found.append(OPEN)
        else:
            found.append((BRIEF[0], draw.randint(BRIEF_MIN, BRIEF[1])) if number % 3 == 2 else INTENT)
    return found


def measure(count: int, seed: int) -> Dict[str, Dict[str, float]]:
    """All policies on the same questions and arrivals."""
    draw = random.Random(f"{seed}/hub")
    asked = questions(count, draw)
    found: Dict[str, Dict[str, float]] = {}
    rate, at_s = 0.0, [0.0] * count
    for name, policy in POLICIES.items():
        found[name] = {"questions_per_s": count / Hub(policy, asked, [0.0] * count).response_s()[-1]}
        if not rate:
            rate, now_s = LOAD * found[name]["questions_per_s"], 0.0
            for place in range(count):
                now_s += draw.expovariate(rate)
                at_s[place] = now_s
        took_s = Hub(policy, asked, at_s).response_s()
        found[name].update(mean_s=statistics.mean(took_s), p95_s=took_s[int(0.95 * (count - 1))])
    return found


def main() -> int:
    parser = arguments(__doc__, quick="fewer seeds")
    args = parser.parse_args()
    count, seeds = 240, 2 if args.quick else 7
    rows = [measure(count, seed) for seed in range(1, seeds + 1)]
    middle = {
        name: {what: statistics.median(row[name][what] for row in rows) for what in rows[0][name]} for name in POLICIES
    }
    for name, row in middle.items():
        print(
            f"{name:8} {row['questions_per_s']:6.2f} questions/s, load {LOAD:g}: mean {row['mean_s']:6.2f} s, "
            f"p95 {row['p95_s']:6.2f} s"
        )
    checks = Checks("research/bench/language_policies.py")
    for what, bound in (("mean_s", 2.0), ("p95_s", 1.0)):
        checks.at_least(
            f"{what[:-2]} response of FIFO static over plan",
            statistics.median(row["fifo"][what] / row["plan"][what] for row in rows),
            bound,
        )
    return checks.finish(
        args.json,
        {"python": sys.version.split()[0], "questions": count, "seeds": seeds, "load": LOAD},
        rows=rows,
        medians=middle,
    )


if __name__ == "__main__":
    sys.exit(main())
