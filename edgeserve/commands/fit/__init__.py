"""``edgeserve fit APP HISTORY``: learn from what was recorded what an app's policy wants to know before a request runs.

A history of prompts and output lengths (``.jsonl``) gives the length model of a language model's app; a history of the
outputs of an ensemble's models (``.npz``) gives the ensemble's combiner, accuracy profile and difficulty predictor.
"""

from __future__ import annotations

import argparse

from edgeserve.commands.fit import ensemble, length
from edgeserve.errors import ConfigError
from edgeserve.predict.combiner import KINDS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("app", help="the app's name; the fitted file is called after it")
    parser.add_argument(
        "history",
        help='recorded prompts (.jsonl, an object a line: {"text": ..., "tokens": 42}, and "form" for its kind), '
        "or outputs of an ensemble's models (.npz; docs/guide/ensembles.md)",
    )
    parser.add_argument("--out", metavar="FILE", help="the fitted file (default: APP.length.npz or APP.ensemble.json)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of splits and first weights (default: 1)")
    parser.add_argument("--json", action="store_true", help="print what was fitted as one JSON object")
    ensembles = parser.add_argument_group("ensembles")
    ensembles.add_argument(
        "--epochs", type=int, default=100, metavar="N", help="passes over the history (default: 100)"
    )
    ensembles.add_argument(
        "--combiner",
        default="weighted_average",
        choices=KINDS,
        help="how outputs become one answer (default: weighted_average)",
    )
    ensembles.add_argument("--bins", type=int, default=10, metavar="N", help="bins of the difficulty (default: 10)")
    ensembles.add_argument(
        "--tolerance",
        type=float,
        metavar="DISTANCE",
        help="how near an answer of a regression must be to count as the same",
    )
    ensembles.add_argument(
        "--score",
        default="discrepancy",
        choices=("discrepancy", "agreement"),
        help="what difficulty means (default: discrepancy)",
    )


def main(args: argparse.Namespace) -> int:
    if args.history.endswith(".jsonl"):
        return length.main(args)
    if args.history.endswith(".npz"):
        return ensemble.main(args)
    raise ConfigError(
        f"history {args.history!r} is of no known kind, expected a .jsonl file of prompts and lengths "
        "or a .npz file of outputs"
    )
