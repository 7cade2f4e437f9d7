"""Draw the picture of ``docs/research/schemble.md``: how hard requests are, and what subsets of the models are worth.

    python research/figures/schemble.py [--fit FILE] [--history FILE]

The example's fit and history are drawn (``python examples/ensemble/build.py`` makes both), unless others are named.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, List, Mapping, Sequence

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

from lib import plots

from edgeserve.config.ensemble_profile import EnsembleProfile, read_ensemble, read_fit
from edgeserve.config.files import resolve_path
from edgeserve.predict.combiner import combiner_of
from edgeserve.predict.discrepancy import Discrepancy
from edgeserve.predict.history import EnsembleHistory, load_history

PLACE = "cache:ensemble-digits-1/"
PICTURE = "docs/research/schemble_fit.svg"
BARS = 20


def scores_of(history: EnsembleHistory, fit: Mapping[str, Any], where: str) -> np.ndarray:
    """The discrepancy score of every record of the history, as the fit scales it."""
    answers = combiner_of(fit["combiner"], where).answers(history.outputs, (1 << len(history.models)) - 1)
    statistics = Discrepancy(history.task, tuple(fit["temperatures"]), tuple(fit["scales"]), fit["top"])
    return statistics.scores(history.outputs, answers)


def subset_name(models: Sequence[str], subset: int) -> str:
    """The models of a subset."""
    return " + ".join(name for bit, name in enumerate(models) if subset >> bit & 1)


def panels(history: EnsembleHistory, scores: np.ndarray, profile: EnsembleProfile) -> List[plots.Panel]:
    """The histogram of the scores, and the profile's agreement of each subset by bin of the score."""
    counts, edges = np.histogram(scores, np.linspace(0, 1, BARS + 1))
    shares = 100 * counts / len(scores)
    line = plots.Line("", edges.tolist(), [*shares.tolist(), float(shares[-1])], "steps")
    inner = [0.0, *profile.edges, 1.0]
    middles = [(low + high) / 2 for low, high in zip(inner, inner[1:])]
    lines = []
    for subset in range(1, profile.all_models):
        alone = bin(subset).count("1") == 1
        lines.append(
            plots.Line(
                subset_name(profile.models, subset),
                middles,
                [100 * row[subset] for row in profile.agreement],
                "-" if alone else "--",
            )
        )
    return [
        plots.Panel(f"difficulty of {len(history):,} requests", "discrepancy score", "% of the requests", [line]),
        plots.Panel(
            "what subsets are worth", "predicted difficulty", "% that agree with all models", lines, y_from_zero=False
        ),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", default=f"{PLACE}digits.ensemble.json")
    parser.add_argument("--history", default=f"{PLACE}history.npz")
    parser.add_argument("--out", default=PICTURE, help="relative to the repository")
    args = parser.parse_args(argv)
    path = resolve_path(args.fit, ".")
    profile, table = read_ensemble(path), read_fit(path)
    if profile is None or table is None:
        raise SystemExit(f"{path} does not exist; python examples/ensemble/build.py makes it")
    history = load_history(resolve_path(args.history, "."))
    print(plots.draw(args.out, panels(history, scores_of(history, table["fit"], path), profile)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
