"""How well the lengths of a language model's answers are predicted, on forms of questions that were never seen.

    python research/bench/answer_lengths.py record FILE --corpus FOLDER   # asks the model: an hour
    python research/bench/answer_lengths.py judge [FILE] [--json FILE]      # FILE: research/common/answers.jsonl
    python research/bench/answer_lengths.py pack [FILE]                     # writes the model that the package ships

``record`` has SmolLM2-135M-Instruct answer, greedily and with at most 512 tokens, the household questions of
``research/common/prompts.py`` and first turns of the chatterbot corpus: ``FOLDER`` is ``data/english`` of the package
chatterbot-corpus 1.3.3 (BSD-3-Clause, Gunther Cox). Some of its questions are asked again with a sentence that is
crafted to make the answer long (form ``crafted``, for ``research/replicate/rtlm``; not judged here). A line per answer
is appended to the file as it comes.

``judge`` holds out whole forms: the templates of the household questions, and the corpus's files (trivia, science,
...). Every rung (number of words, weighted rules, the paper's LW network, the linear model that serves) is trained on
the rest. What a rung uses to correct its means and quantiles is held out of the rest in the same way.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

import numpy as np
from common import lw
from common.prompts import prompts
from lib.checks import Checks, arguments
from numpy.typing import NDArray

import edgeserve
from edgeserve.commands.fit.length import Errors, History, errors_of, fit, folds, read_history
from edgeserve.config.loading import parse_config
from edgeserve.predict.length import PACKAGED

ANSWERS = str(Path(__file__).resolve().parents[1] / "common" / "answers.jsonl")
TOKENS_MAX, TOGETHER, HOUSEHOLD = 512, 16, 264
PER_FILE = {"trivia": 90, "coding": 24, "psychology": 20, "emotion": 14, "ai": 30}
PER_FILE_ELSE = 23
CRAFTED, CRAFTED_FORM = 48, "crafted"
CRAFTED_OF = ("trivia", "science", "literature", "politics", "food", "computers")
SUFFIXES = (
    "Explain in detail how and why, compare the various views on it, and give several examples.",
    "Tell me everything about it: the history, the causes, the consequences, and what people think of such things.",
    "Write a long story about it, then discuss its advantages and disadvantages, and finally list ten facts.",
)
SEEDS = (1, 2, 3, 4, 5)
SERVES = "linear model"
RUNGS = ("number of words", "weighted rules", "LW", SERVES)


def asked(corpus: str) -> List[Tuple[str, str]]:
    """Questions and their forms, mixed, so that a recording that is broken off has some of each."""
    draw, real = random.Random("1/corpus"), []
    for path in sorted(Path(corpus).glob("*.yml")) if corpus else ():
        turns = re.findall(r"^- - (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        texts = sorted({turn.strip().strip("\"'").strip() for turn in turns})
        draw.shuffle(texts)
        real += [(text, path.stem) for text in texts[: PER_FILE.get(path.stem, PER_FILE_ELSE)]]
    draw.shuffle(real)
    plain = [text for text, form in real if form in CRAFTED_OF and len(text.split()) > 2]
    crafted = [
        (f"{text.rstrip('?. ')}? {SUFFIXES[index % 3]}", CRAFTED_FORM) for index, text in enumerate(plain[:CRAFTED])
    ]
    piles = {1: crafted, 4: real, 3: [(prompt.text, str(prompt.form)) for prompt in prompts(HOUSEHOLD)]}
    found: Dict[str, str] = {}
    while any(piles.values()):
        for count, pile in piles.items():
            for _ in range(min(count, len(pile))):
                text, form = pile.pop()
                found.setdefault(text, form)
    return list(found.items())


def record(args: argparse.Namespace) -> int:
    """Answer what is not in the file yet."""
    known = set()
    if os.path.exists(args.file):
        with open(args.file, encoding="utf-8") as file:
            known = {json.loads(line)["text"] for line in file}
    left: Iterator[Tuple[str, str]] = iter([row for row in asked(args.corpus) if row[0] not in known])
    config = parse_config(
        {
            "lane": {"cpu0": {"threads": args.threads}},
            "model": {
                "chat": {
                    "engine": "lm",
                    "file": args.model,
                    "batch": [1, 2, 4, 8, TOGETHER],
                    "slots": TOGETHER,
                    "state_memory": "2GiB",
                    "options": {"chat": True, "context": 1024, "max_tokens": TOKENS_MAX},
                }
            },
            "app": {"chat": {"model": "chat", "slo": "36000s", "on_late": "answer"}},
        },
        directory=os.getcwd(),
    )
    with edgeserve.Runtime(config) as runtime, open(args.file, "a", encoding="utf-8") as file:
        running: List[Any] = []
        while True:
            while len(running) < TOGETHER + 4:
                row = next(left, None)
                if row is None:
                    break
                running.append((row, runtime.submit("chat", {"prompt": row[0]})))
            if not running:
                return 0
            for item in [item for item in running if item[1].done()]:
                running.remove(item)
                (text, form), future = item
                tokens = int(future.result()["completion_tokens"])
                file.write(json.dumps({"text": text, "tokens": tokens, "form": form}, ensure_ascii=False) + "\n")
                file.flush()
            time.sleep(0.05)


def part(history: History, at: NDArray[Any]) -> History:
    """Some of the rows."""
    return History([history.texts[place] for place in at], history.tokens[at], [history.forms[place] for place in at])


def plain(history: History) -> History:
    """Without the crafted ones."""
    return part(history, np.array([place for place, form in enumerate(history.forms) if form != CRAFTED_FORM]))


def held_out(history: History, seed: int) -> Dict[str, Tuple[NDArray[Any], NDArray[Any]]]:
    """Of every rung the predicted means, and 0.9-quantiles where it has any, of each text by what was learnt from other
    forms."""
    count, most = len(history.texts), float(history.tokens.max())
    found = {rung: (np.zeros(count), np.zeros(count)) for rung in RUNGS}
    rows = lw.rows_of(history.texts)
    for test in folds(history.forms, seed):
        train = np.setdiff1d(np.arange(count), test)
        known, new = part(history, train), part(history, test)
        for rung, columns in (("number of words", rows[:, 6:]), ("weighted rules", rows[:, :6])):
            design = np.column_stack([columns, np.ones(count)])
            weights = np.linalg.lstsq(design[train], history.tokens[train], rcond=None)[0]
            found[rung][0][test] = design[test] @ weights
        found["LW"][0][test] = np.minimum(
            most, np.exp(lw.trained(known.texts, known.tokens, seed).log_means(new.texts))
        )
        model = fit(known, seed)
        laws = [model.predict(text) for text in new.texts]
        found[SERVES][0][test] = [law.mean(most) for law in laws]
        found[SERVES][1][test] = [law.quantile(0.9, most) for law in laws]
    return found


def median_of(rows: Sequence[Errors]) -> Dict[str, float]:
    """Of several splits, the median of each number."""
    return {name: float(np.median([getattr(row, name) for row in rows])) for name in Errors._fields}


def judge(args: argparse.Namespace) -> int:
    """Compare, and write down."""
    history = plain(read_history(args.file))
    splits = [held_out(history, seed) for seed in SEEDS]
    rows = {
        rung: median_of([errors_of(split[rung][0], history.tokens, split[rung][1]) for split in splits])
        for rung in RUNGS
    }
    title = f"new forms, medians of {len(SEEDS)} splits"
    print(f"{title:<32}{'Spearman':>10}{'Pearson':>9}{'MAE':>8}{'mean':>7}{'<= q90':>8}")
    for rung, row in rows.items():
        print(
            f"{rung:<32}{row['spearman']:>10.2f}{row['pearson']:>9.2f}{row['mae']:>8.1f}{row['mean']:>7.2f}"
            f"{row['within_90']:>8.3f}"
        )
    middle = float(np.abs(history.tokens - np.median(history.tokens)).mean())
    print(f"always the median: MAE {middle:.1f} tokens")
    checks, serves = Checks("research/bench/answer_lengths.py"), rows[SERVES]
    checks.at_least("linear model: Spearman on new forms", serves["spearman"], 0.4)
    for rung in RUNGS[:-1]:
        checks.at_least(f"linear model over {rung!r}, Spearman", serves["spearman"] - rows[rung]["spearman"], 0.0)
    checks.at_least("linear model: predicted means over tokens", serves["mean"], 0.93)
    checks.at_most("linear model: predicted means over tokens", serves["mean"], 1.07)
    checks.at_least("linear model: share within the 0.9-quantile", serves["within_90"], 0.87)
    checks.at_most("linear model: share within the 0.9-quantile", serves["within_90"], 0.93)
    return checks.finish(
        args.json,
        {
            "python": sys.version.split()[0],
            "answers": len(history.texts),
            "forms": len(set(history.forms)),
            "tokens_max": TOKENS_MAX,
        },
        found=rows,
        mae_of_the_median=middle,
        tokens={
            "mean": float(history.tokens.mean()),
            "median": float(np.median(history.tokens)),
            "cut": int((history.tokens >= TOKENS_MAX).sum()),
        },
    )


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("verb", choices=("record", "judge", "pack"))
    parser.add_argument("file", nargs="?", default=ANSWERS, help="recorded answers: JSON lines")
    parser.add_argument("--corpus", default="", help="the folder data/english of chatterbot-corpus")
    parser.add_argument("--model", default="cache:smollm2-135m-onnx/smollm2.onnx")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if args.verb == "pack":
        fit(read_history(args.file)).save(PACKAGED)
        return 0
    return record(args) if args.verb == "record" else judge(args)


if __name__ == "__main__":
    sys.exit(main())
