"""How well the lengths of a language model's answers are predicted from its prompts, rung by rung (RT-LM, Fig. 2).

    python scripts/bench/answer_lengths.py record LENGTHS.jsonl     # asks the model: minutes
    python scripts/bench/answer_lengths.py judge LENGTHS.jsonl --out assistant.length.npz --json FILE

``record`` has the model answer the questions of ``scripts/lib/prompts.py``, greedily, and appends a line per answer.
``judge`` trains every rung (input length, best single rule, weighted rules, the LW network) on a part and compares
predictions with true lengths on the rest: prompts that were not trained on, and then whole forms of questions that were
not. The file that it writes is what ``edgeserve fit`` would write.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, Dict, List, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/

import numpy as np
from lib.checks import Checks, arguments
from lib.prompts import FORMS, prompts

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo
from edgeserve.tools.fit.length import Errors, fit

TOKENS_MAX = 192
"""``options.max_tokens`` of the chat example."""

TOGETHER = 12
SEEDS = (1, 2, 3, 4, 5)
RUNGS = ("input length", "best single rule", "weighted rules", "LW, seven features")


def record(args: argparse.Namespace) -> int:
    """Answer what is not in the file yet."""
    known = {row["text"] for row in read(args.file)} if os.path.exists(args.file) else set()
    lane = LaneInfo(threads=args.threads, name="cpu0")
    engine = make_engine(
        ModelConfig(
            name="chat",
            engine="lm",
            file=args.model,
            batch=(1, TOGETHER),
            slots=TOGETHER,
            options={"chat": True, "context": 512, "max_tokens": TOKENS_MAX},
        ),
        [lane],
        os.getcwd(),
    )
    engine.load()
    session = engine.open(lane)
    asked = [prompt for prompt in prompts(args.count) if prompt.text not in known]
    for begin in range(0, len(asked), TOGETHER):
        group = asked[begin : begin + TOGETHER]
        results = session.launch(Batch([{"prompt": prompt.text} for prompt in group], TOGETHER)).result()
        with open(args.file, "a", encoding="utf-8") as file:
            for prompt, result in zip(group, results):
                file.write(
                    json.dumps(
                        {"text": prompt.text, "tokens": int(result.outputs["completion_tokens"]), "form": prompt.form}
                    )
                    + "\n"
                )
        print(f"{begin + len(group)} of {len(asked)}", flush=True)
    engine.unload()
    return 0


def read(path: str) -> List[Dict[str, Any]]:
    """The recorded answers."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def median_of(ladders: Sequence[Dict[str, Errors]]) -> Dict[str, Dict[str, float]]:
    """Of several splits, the median of each number of each rung."""
    return {
        rung: {name: float(np.median([ladder[rung]._asdict()[name] for ladder in ladders])) for name in Errors._fields}
        for rung in RUNGS
    }


def new_forms(rows: Sequence[Dict[str, Any]], seed: int) -> Dict[str, Errors]:
    """The ladder where a fifth of the forms is held out: no question of these was trained on."""
    order = np.random.default_rng(seed).permutation(len(FORMS))
    held = {int(form) for form in order[: len(FORMS) // 5]}
    last = [row for row in rows if row["form"] in held]
    ordered = [row for row in rows if row["form"] not in held] + last
    return fit(
        [row["text"] for row in ordered],
        [row["tokens"] for row in ordered],
        tokens_max=TOKENS_MAX,
        tested=range(len(ordered) - len(last), len(ordered)),
        seed=seed,
    )[1]


def judge(args: argparse.Namespace) -> int:
    """Train, compare, and write the model of the first split."""
    rows = read(args.file)
    texts, lengths = [row["text"] for row in rows], [row["tokens"] for row in rows]
    fitted = [fit(texts, lengths, tokens_max=TOKENS_MAX, seed=seed) for seed in SEEDS]
    found = {
        "new prompts": median_of([ladder for _, ladder in fitted]),
        "new forms of prompts": median_of([new_forms(rows, seed) for seed in SEEDS]),
    }
    if args.out:
        fitted[0][0].save(args.out)
    for name, ladder in found.items():
        print(f"\n{name + ', medians of ' + str(len(SEEDS)) + ' splits':<44}{'Pearson':>9}{'Spearman':>10}{'MAE':>8}")
        for rung, errors in ladder.items():
            print(f"{rung:<44}{errors['pearson']:>9.2f}{errors['spearman']:>10.2f}{errors['mae']:>8.1f}")
    mean = float(np.abs(np.array(lengths) - np.median(lengths)).mean())
    print(f"always the median: MAE {mean:.1f} tokens")
    checks = Checks("scripts/bench/answer_lengths.py")
    new = found["new prompts"]
    for lower, upper in zip(RUNGS, RUNGS[1:]):
        checks.at_least(f"Pearson of {upper!r} over {lower!r}", new[upper]["pearson"] - new[lower]["pearson"], 0.0)
    checks.at_most(
        "MAE of the network over that of the input's length", new[RUNGS[-1]]["mae"] / new[RUNGS[0]]["mae"], 1.0
    )
    return checks.finish(
        args.json,
        {"python": sys.version.split()[0], "model": args.model, "answers": len(rows), "tokens_max": TOKENS_MAX},
        found=found,
        mae_of_the_median=mean,
        tokens={
            "mean": float(np.mean(lengths)),
            "median": float(np.median(lengths)),
            "cut": sum(length >= TOKENS_MAX for length in lengths),
        },
    )


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("verb", choices=("record", "judge"))
    parser.add_argument("file", help="recorded answers: JSON lines")
    parser.add_argument("--model", default="cache:smollm2-135m-onnx/smollm2.onnx")
    parser.add_argument("--count", type=int, default=420)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", default="", help="write the fitted model there")
    args = parser.parse_args()
    return record(args) if args.verb == "record" else judge(args)


if __name__ == "__main__":
    sys.exit(main())
