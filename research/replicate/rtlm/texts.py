"""RT-LM's orders on real texts: recorded questions, what is predicted of each, and how long the answer was.

Texts and lengths are those of ``research/common/answers.jsonl`` (SmolLM2-135M-Instruct, greedy, at most 512 tokens;
recorded by ``b48585bf:research/bench/answer_lengths.py``). A prediction never comes from a text of its own form. Drawn
are only the arrivals, and which text comes; steps take DialoGPT's published times. The malicious texts are questions
with a sentence that is crafted to make the answer long; what predicts has seen none of them.
"""

from __future__ import annotations

import csv
import os
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Sequence

import numpy as np
from common import lw
from common.replicated import AHEAD, OURS
from lib.checks import Checks

from edgeserve.commands.fit.length import History, fit, folds, read_history
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import parse_scenario
from replicate.rtlm import cases, world
from replicate.rtlm.world import LMS, Case, Result, System

ANSWERS = str(Path(__file__).resolve().parents[2] / "common" / "answers.jsonl")
CRAFTED = "crafted"
STEPS_MAX = 512
LM = LMS["DialoGPT"]
SECONDS = 1500.0
RULES, NETWORK, LINEAR, TRUE = "weighted rules", "LW", "linear model", "true lengths"
BLIND = ("FIFO", "HPF", "continuous FIFO")
"""Systems that look at no prediction."""

AWARE = ("LUF", "MUF", "UP", "UP+C", "plan")
RATIOS = (0.0, 0.5, 1.0)
OPEN_MOST, BRIEF_MOST, INTENT = 160, 16, 3
HUB_LOADS = (1.1, 2.2, 2.5, 2.8)
"""Loads in multiples of FIFO's throughput in static batches; continuous batches serve about three times as much."""

HUB_BUSY, HUB_AHEAD = 2.5, 1.1
HUB_SEEDS = tuple(range(21, 27))


class Text(NamedTuple):
    """Words of the question, tokens of the answer, what each predictor says of these, whether it is crafted."""

    words: int
    tokens: int
    predicted: Dict[str, float]
    crafted: bool


def texts() -> List[Text]:
    """Every recorded text. A crafted one is predicted from all plain ones."""
    history = read_history(ANSWERS)
    crafted = np.array([form == CRAFTED for form in history.forms])
    plain = np.flatnonzero(~crafted)
    splits = [(np.setdiff1d(plain, plain[test]), plain[test]) for test in folds([history.forms[i] for i in plain], 1)]
    splits.append((plain, np.flatnonzero(crafted)))
    rows = lw.rows_of(history.texts)
    design = np.column_stack([rows[:, :6], np.ones(len(rows))])
    predicted: Dict[str, Any] = {name: np.zeros(len(rows)) for name in (RULES, NETWORK, LINEAR)}
    for train, test in splits:
        known = History([history.texts[i] for i in train], history.tokens[train], [history.forms[i] for i in train])
        asked = [history.texts[i] for i in test]
        predicted[RULES][test] = design[test] @ np.linalg.lstsq(design[train], history.tokens[train], rcond=None)[0]
        predicted[NETWORK][test] = np.exp(lw.trained(known.texts, known.tokens).log_means(asked))
        model = fit(known)
        predicted[LINEAR][test] = [model.predict(text).mean(STEPS_MAX) for text in asked]
    return [
        Text(
            int(rows[place, 6]),
            int(tokens),
            {**{name: float(np.clip(of[place], 1, STEPS_MAX)) for name, of in predicted.items()}, TRUE: float(tokens)},
            bool(crafted[place]),
        )
        for place, tokens in enumerate(history.tokens)
    ]


def hub_texts() -> List[Text]:
    """The questions to a hub at home, in the shares of ``examples/chat/load.py``: a quarter open questions of at most
    :data:`OPEN_MOST` tokens, a quarter brief ones, half intents. How long an open or brief answer will be is predicted
    from texts of other forms; an intent has its length from its grammar."""
    history = read_history(ANSWERS)
    plain = [place for place, form in enumerate(history.forms) if form != CRAFTED]
    found: List[Text] = []
    for test in folds([history.forms[place] for place in plain], 1):
        asked = [plain[place] for place in test]
        train = np.setdiff1d(plain, asked)
        model = fit(
            History([history.texts[i] for i in train], history.tokens[train], [history.forms[i] for i in train])
        )
        for place in asked:
            words, length = len(history.texts[place].split()), model.predict(history.texts[place])
            for most in (OPEN_MOST, BRIEF_MOST):
                tokens = min(most, int(history.tokens[place]))
                found.append(Text(words, tokens, {LINEAR: length.mean(most), TRUE: float(tokens)}, False))
            found += 2 * [Text(words, INTENT, {LINEAR: float(INTENT), TRUE: float(INTENT)}, False)]
    return found


def saturated_per_s(pool: Sequence[Text]) -> float:
    """FIFO's throughput when it never waits: full batches, each as long as its longest answer."""
    draw = random.Random("saturation")
    longest = [max([draw.choice(pool).tokens for _ in range(LM.batch)]) for _ in range(4000)]
    return LM.batch / ((2 + statistics.fmean(longest)) * LM.eta_ms / 2e3)


def run(system: System, pool: Sequence[Text], predictor: str, load: float, seed: int, malicious: float = 0.0) -> Result:
    """Simulate one case."""
    plain = [text for text in pool if not text.crafted]
    crafted = [text for text in pool if text.crafted]
    case = Case(rate=load * saturated_per_s(plain), seconds=SECONDS)
    table = world.scenario_of(system, case)
    truth = table["truth"]["chat"]
    del truth["predict"]
    truth["steps_max"] = STEPS_MAX
    table["app"]["chat"]["slo"] = "6000s"
    draw, at = random.Random(f"{seed}/texts"), 0.0
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "texts.csv")
        with open(path, "w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["arrival_s", "steps", "answer", "tokens"])
            while True:
                at += draw.expovariate(case.rate)
                if at > SECONDS:
                    break
                text = draw.choice(crafted if draw.random() < malicious else plain)
                rows.writerow([f"{at:.9f}", f"{text.predicted[predictor]:.6f}", text.tokens, max(1, text.words)])
        table["workload"] = {"people": {"app": "chat", "kind": "trace", "file": path}}
        return world.judge(simulate(parse_scenario(table), seed, []), LM)


def over(seeds: Sequence[int], *case: Any, malicious: float = 0.0) -> Result:
    """The mean of the seeds."""
    system, pool, predictor, load = case
    return world.mean([run(system, pool, predictor, load, seed, malicious) for seed in seeds])


def on_hub(checks: Checks, seeds: Sequence[int] = HUB_SEEDS, loads: Sequence[float] = HUB_LOADS) -> Dict[str, Any]:
    """Orders by predicted lengths on a hub's questions."""
    pool, found = hub_texts(), {}
    print(f"\n{'a hub, mean s':18}{'continuous FIFO':>16}{'plan, predicted':>18}{'true lengths':>14}{'ahead':>8}")
    for load in loads:
        rows = {
            "continuous FIFO": over(seeds, cases.CONTINUOUS_FIFO, pool, TRUE, load),
            "plan, predicted": over(seeds, cases.PLAN, pool, LINEAR, load),
            "plan, true lengths": over(seeds, cases.PLAN, pool, TRUE, load),
        }
        means = [row.mean for row in rows.values()]
        ahead = means[0] / means[1]
        print(f"{f'load {load}':18}{means[0]:16.2f}{means[1]:18.2f}{means[2]:14.2f}{ahead:8.2f}", flush=True)
        found[f"load {load}"] = {name: row._asdict() for name, row in rows.items()}
        if load >= HUB_BUSY:
            checks.at_least(f"a hub, load {load}: continuous FIFO's mean to that of plan", ahead, HUB_AHEAD, OURS)
    return found


def on_texts(seeds: Sequence[int], checks: Checks) -> Dict[str, Any]:
    """Orders by what is predicted of real texts, and malicious ones."""
    pool = texts()
    systems = {**cases.ORDERS, "continuous FIFO": cases.CONTINUOUS_FIFO, "plan": cases.PLAN}
    found: Dict[str, Any] = {}
    for load in (0.95, 1.1):
        rows = {name: over(seeds, systems[name], pool, TRUE, load) for name in BLIND}
        for predictor in (RULES, NETWORK, LINEAR, TRUE):
            rows.update({f"{name}, {predictor}": over(seeds, systems[name], pool, predictor, load) for name in AWARE})
        print(f"\n{f'real texts, load {load}':32}{'mean':>8}{'p95':>8}{'max':>8}")
        for name, row in rows.items():
            print(f"{name:32}{row.mean:8.2f}{row.p95:8.2f}{row.max:8.1f}", flush=True)
        found[f"load {load}"] = {name: row._asdict() for name, row in rows.items()}
        for predictor in (NETWORK, LINEAR):
            where, up = f"real texts, load {load}, {predictor}", rows[f"UP+C, {predictor}"]
            checks.at_most(f"{where}: UP+C beside FIFO, mean", up.mean / rows["FIFO"].mean, 1.0, AHEAD)
            checks.at_most(f"{where}: UP+C ahead of LUF, mean", up.mean / rows[f"LUF, {predictor}"].mean, 0.99, AHEAD)
            checks.at_most(f"{where}: UP+C beside FIFO, largest", up.max / rows["FIFO"].max, 1.0, AHEAD)
            checks.at_most(
                f"{where}: plan beside continuous FIFO, mean",
                rows[f"plan, {predictor}"].mean / rows["continuous FIFO"].mean,
                1.02,
                OURS,
            )
    one = len(seeds) == 1  # a quick run
    found["hub"] = on_hub(checks, HUB_SEEDS[:1], [HUB_BUSY]) if one else on_hub(checks)
    found["malicious"] = {}
    print(f"\n{'crafted texts, load 0.8':32}" + "".join(f"{ratio:8.0%}" for ratio in RATIOS) + "   (mean s)")
    for name in ("FIFO", "UP+C", "continuous FIFO", "plan"):
        each = [over(seeds, systems[name], pool, LINEAR, 0.8, malicious=ratio) for ratio in RATIOS]
        print(f"{name:32}" + "".join(f"{row.mean:8.2f}" for row in each), flush=True)
        found["malicious"][name] = [row._asdict() for row in each]
    for better, worse in (("UP+C", "FIFO"), ("plan", "UP+C")):
        checks.at_most(
            f"crafted texts: {better} beside {worse}, worst ratio of means",
            max([a["mean"] / b["mean"] for a, b in zip(found["malicious"][better], found["malicious"][worse])]),
            1.0,
            AHEAD,
        )
    return found
