"""Fit the text ensemble: what the three recognisers read on lines whose text is known, and what that says of others.

python examples/ensemble_text/build.py            # into the asset cache, where edge.toml looks
python examples/ensemble_text/build.py --lines 200 --out DIR
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, Dict, List, Optional, Sequence

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from lines import drawn
from recognisers import FIT, MODELS, features, read

from edgeserve.commands.fit.ensemble import fit
from edgeserve.config.files import resolve_path
from edgeserve.predict import texts
from edgeserve.predict.history import EnsembleHistory, save_history

HISTORY_SEED = 1


def recorded(count: int) -> EnsembleHistory:
    """What every recogniser reads on every line of the history."""
    shown = drawn(count, HISTORY_SEED)
    outputs, labels, seen = [], [], []
    for image, text in zip(shown.images, shown.texts):
        said: List[texts.Said] = [read(model, image) for model in MODELS]
        outputs.append(texts.classes(said)[1])
        labels.append(texts.label_of(said, text))
        seen.append(features(image))
    return EnsembleHistory(MODELS, np.stack(outputs).astype(float), "classification", np.array(labels), np.stack(seen))


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(description="Fit the ensemble of examples/ensemble_text.")
    parser.add_argument("--lines", type=int, default=800, help="of the history (default: 800)")
    parser.add_argument("--out", metavar="DIR", help="where to write (default: the asset cache)")
    args = parser.parse_args(argv)
    directory = args.out or os.path.dirname(resolve_path(FIT, ""))
    os.makedirs(directory, exist_ok=True)
    made = recorded(args.lines)
    save_history(os.path.join(directory, "history.npz"), made)
    about: Dict[str, Any] = fit(made, os.path.join(directory, os.path.basename(FIT)))
    right = (made.outputs.argmax(axis=2) == np.asarray(made.labels)[:, None]).mean(axis=0)
    for name, share in zip(MODELS, right):
        print(f"{name:<24} reads the line right in {share:.1%}")
    for name, share in about["agreement"].items():
        print(f"{name:<24} agrees with all three in {share:.1%}")
    print(f"difficulty predicted with a rank correlation of {about['rank_correlation']:.2f}; files are in {directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
