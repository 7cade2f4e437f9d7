"""The policies on the same ensemble, the same digits and the same bursts, one after the other in this process.

    python examples/ensemble/compare.py                      # four policies, two rounds, about three minutes
    python examples/ensemble/compare.py --load 1.5 --rounds 5 --seconds 30 --json result.json

The load is given relative to what the lane can do with all three models for every request. A request counts as missed
when it has no answer at its deadline; an answer agrees when its label is that of all three models.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import replace
from typing import Any, Dict, List, NamedTuple, Sequence

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from build import MODELS
from data import asked

from edgeserve import Runtime
from edgeserve.config.ensemble_profile import read_fit
from edgeserve.config.files import resolve_path
from edgeserve.config.loading import load_config
from edgeserve.config.schema import Config, PolicyConfig
from edgeserve.errors import EdgeServeError
from edgeserve.predict.combiner import combiner_of

HERE = os.path.dirname(os.path.abspath(__file__))

POLICIES: Dict[str, Dict[str, Any]] = {
    "original": {"kind": "ensemble_static", "options": {"pick": "all"}},
    "static, the fastest": {"kind": "ensemble_static", "options": {"pick": "static", "models": ["features"]}},
    "schemble": {"kind": "schemble", "options": {}},
    "plan": {"kind": "plan", "options": {}},
}
POOL = 400
BURST_S, BURST_VARIATION = 0.5, 0.5
"""The rate is drawn anew every half second, with this coefficient of variation."""

GRACE_S = 5.0


class Outcome(NamedTuple):
    """Shares of all requests but ``agreed`` (of the answers) and ``models`` (per answer)."""

    missed: float
    agreed: float
    accuracy: float
    models: float


def config_of(config: Config, policy: Dict[str, Any]) -> Config:
    """The example's configuration under another policy."""
    return replace(config, policies={"main": PolicyConfig(name="main", **policy)})


def whole_rate(config: Config) -> float:
    """Requests per second that the lane answers with all models, one by one, in this process."""
    images = asked(60).images
    with Runtime(config_of(config, POLICIES["original"])) as runtime:
        began = 0.0
        for index, image in enumerate(images):
            if index == 20:
                began = time.perf_counter()
            runtime.infer("digits", {"image": image}, slo_ms=2000)
        return 40 / (time.perf_counter() - began)


def arrivals(rate: float, seconds: float, seed: int) -> List[float]:
    """Poisson arrivals (s) whose rate is drawn from a gamma distribution every half second."""
    draw = np.random.RandomState(seed)
    shape = 1 / BURST_VARIATION**2
    times: List[float] = []
    for start in np.arange(0, seconds, BURST_S):
        count = draw.poisson(draw.gamma(shape, rate / shape) * BURST_S)
        times += sorted(start + draw.uniform(0, BURST_S, count))
    return times


def run(config: Config, policy: Dict[str, Any], due: Sequence[float], truth: np.ndarray, images: np.ndarray) -> Outcome:
    """One policy under one load."""
    with Runtime(config_of(config, policy)) as runtime:
        for image in images[:20]:
            runtime.infer("digits", {"image": image}, slo_ms=2000)
        began = time.perf_counter()
        futures = []
        for index, at in enumerate(due):
            left = at - (time.perf_counter() - began)
            if left > 0:
                time.sleep(left)
            futures.append(runtime.submit("digits", {"image": images[index % len(images)]}))
        answers = [answer_of(future) for future in futures]
    given = [(index, answer) for index, answer in enumerate(answers) if answer is not None and not answer.late]
    right = sum(int(answer["label"]) == int(truth[index % len(truth)]) for index, answer in given)
    models = sum(len(answer["models"]) for _, answer in given)
    total = max(1, len(answers))
    return Outcome(1 - len(given) / total, right / max(1, len(given)), right / total, models / max(1, len(given)))


def answer_of(future: Any) -> Any:
    try:
        return future.result(GRACE_S)
    except EdgeServeError:
        return None


def labels_of_all(config: Config, images: np.ndarray) -> np.ndarray:
    """What all three models say together."""
    import onnxruntime

    outputs = [
        onnxruntime.InferenceSession(
            resolve_path(config.models[name].file, HERE), providers=["CPUExecutionProvider"]
        ).run(None, {"image": images})[0]
        for name in MODELS
    ]
    path = resolve_path(config.models["together"].file, HERE)
    combiner = combiner_of((read_fit(path) or {})["fit"]["combiner"], path)
    labels: np.ndarray = combiner.answers(np.stack(outputs, axis=1), 7).argmax(axis=1)
    return labels


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare policies on the digits ensemble, live.")
    parser.add_argument("--load", type=float, default=1.2, help="relative to the full ensemble's capacity (1.2)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run (10)")
    parser.add_argument("--rounds", type=int, default=2, help="all policies in turns so often (2)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE", help="write every run")
    args = parser.parse_args()
    config = load_config(os.path.join(HERE, "edge.toml"))
    images = asked(POOL, args.seed).images
    truth = labels_of_all(config, images)
    rate = args.load * whole_rate(config)
    print(f"{rate:.0f} requests/s in bursts, deadline {config.apps['digits'].slo_ns / 1e6:g} ms")
    found: Dict[str, List[Outcome]] = {name: [] for name in POLICIES}
    for number in range(args.rounds):
        due = arrivals(rate, args.seconds, args.seed * 100 + number)
        for name, policy in POLICIES.items():
            found[name].append(run(config, policy, due, truth, images))
    print(f"{'median of ' + str(args.rounds) + ' rounds':<22}{'missed':>9}{'agree':>9}{'in all':>9}{'models':>9}")
    for name, outcomes in found.items():
        row = [statistics.median(column) for column in zip(*outcomes)]
        print(f"{name:<22}{row[0]:>9.1%}{row[1]:>9.1%}{row[2]:>9.1%}{row[3]:>9.2f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(
                {
                    "rate": rate,
                    "load": args.load,
                    "seconds": args.seconds,
                    "seed": args.seed,
                    "runs": {name: [outcome._asdict() for outcome in outcomes] for name, outcomes in found.items()},
                },
                file,
                indent=1,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
