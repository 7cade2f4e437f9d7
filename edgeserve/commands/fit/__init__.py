"""``edgeserve profile --fit APP=HISTORY``: learn from records what an app's policy wants to know before a request runs.

A history of prompts and output lengths (``.jsonl``) gives the length model of a language model's app; a history of the
outputs of an ensemble's models (``.npz``) gives the ensemble's combiner, accuracy profile and difficulty predictor.
"""

from __future__ import annotations

import argparse

from edgeserve.commands.fit import ensemble, length
from edgeserve.errors import ConfigError


def fit(args: argparse.Namespace) -> int:
    """Write the fitted file, which is called after the app, and say how well it predicts."""
    app, mark, history = args.fit.partition("=")
    if not (app and mark and history):
        raise ConfigError(f"--fit {args.fit!r}: expected APP=HISTORY, such as chat=prompts.jsonl")
    if history.endswith(".jsonl"):
        return length.report(history, args.out or f"{app}.length.npz", args.json)
    if history.endswith(".npz"):
        return ensemble.report(history, args.out or f"{app}.ensemble.json", args.combiner, args.json)
    raise ConfigError(
        f"history {history!r} is of no known kind, expected a .jsonl file of prompts and lengths "
        "or a .npz file of outputs"
    )
