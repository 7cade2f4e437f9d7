"""Ensembles whose models answer with texts: what a model is sure of becomes a distribution over the texts said.

Which texts are possible is known only when they are there, so every request has classes of its own: the different texts
of its models in their order, and one for any other text. Subsets are compared within a request, so that discrepancy,
agreement and combiners (``discrepancy.py``, ``accuracy.py``, ``combiner.py``) work on these classes as on any.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from edgeserve.predict.combiner import Combiner

SURE_MIN, SURE_MAX = 0.01, 0.99
"""No model is taken to know nothing, or everything."""

Said = Optional[Tuple[str, float]]
"""The text that one model read, and its certainty, from 0 to 1; None where it did not run."""


def classes(said: Sequence[Said]) -> Tuple[List[str], NDArray[Any]]:
    """The different texts, and the models' probabilities of them: float32 (models, models + 1).

    A model gives its own text its certainty, and shares the rest evenly among the other columns; the last one is
    for texts that no model read. Rows of models that did not run are 0. Raises ``ValueError`` where no model ran."""
    texts = list(dict.fromkeys(item[0] for item in said if item is not None))
    if not texts:
        raise ValueError("no model said anything")
    columns = len(said) + 1
    rows = np.zeros((len(said), columns), np.float32)
    for model, item in enumerate(said):
        if item is not None:
            sure = min(SURE_MAX, max(SURE_MIN, item[1]))
            rows[model] = (1 - sure) / (columns - 1)
            rows[model, texts.index(item[0])] = sure
    return texts, rows


def combined(said: Sequence[Said], combiner: Combiner) -> Tuple[str, float]:
    """The text that the models agree on, by a combiner, and the share of the vote that it has."""
    texts, rows = classes(said)
    subset = sum([1 << model for model, item in enumerate(said) if item is not None])
    shares = combiner.answers(rows[None].astype(float), subset)[0]
    place = int(shares[: len(texts)].argmax())
    return texts[place], float(shares[place])


def label_of(said: Sequence[Said], truth: str) -> int:
    """The class of the true text: that of the models that said it, else the last."""
    texts, rows = classes(said)
    return texts.index(truth) if truth in texts else rows.shape[1] - 1


def hints(node: str, text: str, sure: float) -> Dict[str, float]:
    """The hints by which a policy tells whether more models could change the answer: equal texts have equal labels."""
    return {f"{node}.label": float(crc32(text.encode())), f"{node}.margin": min(SURE_MAX, max(SURE_MIN, sure))}
