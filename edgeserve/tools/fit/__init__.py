"""``edgeserve fit APP HISTORY``: learn from what was recorded what an app's policy wants to know before a request runs.

A history of prompts and output lengths (``.jsonl``) gives the length model of a language model's app.
"""

from __future__ import annotations

import argparse

from edgeserve.errors import ConfigError
from edgeserve.tools.fit import length


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("app", help="the app's name; the fitted file is called after it")
    parser.add_argument("history", help="recorded prompts, a JSON object a line: {\"text\": ..., \"tokens\": 42}")
    parser.add_argument("--out", metavar="FILE", help="the fitted file (default: APP.length.npz)")
    parser.add_argument("--tokens-max", type=int, metavar="N",
                        help="the most tokens an answer may have (default: the longest recorded)")
    parser.add_argument("--held-out", type=float, default=0.2, metavar="SHARE",
                        help="share of the history that measures the errors and is not trained on (default: 0.2)")
    parser.add_argument("--epochs", type=int, default=100, metavar="N", help="passes over the history (default: 100)")
    parser.add_argument("--seed", type=int, default=1, metavar="N",
                        help="of the split and the first weights (default: 1)")
    parser.add_argument("--json", action="store_true", help="print the errors as one JSON object")


def main(args: argparse.Namespace) -> int:
    if not args.history.endswith(".jsonl"):
        raise ConfigError(f"history {args.history!r} is of no known kind, "
                          "expected a .jsonl file of prompts and lengths")
    return length.main(args)
