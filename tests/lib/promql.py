"""As much of PromQL as the Grafana board uses, evaluated between two scrapes: what Prometheus would answer to each of
the board's questions, one value per series. Anything else in an expression is an error.
"""

from __future__ import annotations

import math
import re
from typing import Any, Callable, Dict, FrozenSet, List, Sequence, Tuple

Labels = FrozenSet[Tuple[str, str]]
Vector = Dict[Labels, float]
Samples = Dict[Tuple[str, Labels], float]

TOKEN = re.compile(r'\s*([A-Za-z_:][\w:]*|\d+(?:\.\d+)?|"[^"]*"|=~|!~|!=|[-+/*>(){}\[\],=])')
MATCH: Dict[str, Callable[[str, str], bool]] = {
    "=": lambda value, wanted: value == wanted,
    "!=": lambda value, wanted: value != wanted,
    "=~": lambda value, wanted: re.fullmatch(wanted, value) is not None,
}


def evaluate(expression: str, before: Samples, after: Samples, seconds: float) -> Vector:
    """The expression's series at the second scrape, ``seconds`` after the first."""
    parser = _Parser(expression, before, after, seconds)
    found = parser.comparison()
    assert not parser.tokens, f"{expression}: {parser.tokens} is left"
    assert isinstance(found, dict), f"{expression}: a number"
    return found


class _Parser:
    def __init__(self, expression: str, before: Samples, after: Samples, seconds: float) -> None:
        self.tokens: List[str] = []
        place = 0
        while place < len(expression.rstrip()):
            found = TOKEN.match(expression, place)
            assert found, f"{expression[place:]}: no PromQL"
            self.tokens.append(found[1])
            place = found.end()
        self._before, self._after, self._seconds = before, after, seconds

    def comparison(self) -> Any:
        left = self._sum()
        if self._has(">"):
            bound = self._sum()
            return {labels: value for labels, value in left.items() if value > bound}
        return left

    def _sum(self) -> Any:
        left = self._product()
        while self.tokens and self.tokens[0] in "+-":
            sign = 1 if self.tokens.pop(0) == "+" else -1
            left = _joined(left, self._product(), lambda a, b, sign=sign: a + sign * b, None)
        return left

    def _product(self) -> Any:
        left = self._term()
        while self._has("/"):
            on = None
            if self._has("on"):
                on = self._names()
                assert self._has("group_left")
            left = _joined(left, self._term(), lambda a, b: a / b if b else math.nan, on)
        return left

    def _term(self) -> Any:
        token = self.tokens.pop(0)
        if token == "(":
            inside = self.comparison()
            self._take(")")
            return inside
        if token[0].isdigit():
            return float(token)
        if token == "sum":
            self._take("by")
            names = self._names()
            return _summed(self._argument(), names)
        if token == "rate":
            self._take("(")
            name = self.tokens.pop(0)
            now, then = self._select(name)
            self._take("[")
            self._take("range")
            self._take("]")
            self._take(")")
            assert re.search(r"_(total|count|bucket|sum)$", name), f"rate of {name}, which is no counter"
            return {labels: (value - then.get(labels, 0.0)) / self._seconds for labels, value in now.items()}
        if token == "histogram_quantile":
            self._take("(")
            share = float(self.tokens.pop(0))
            self._take(",")
            inside = self.comparison()
            self._take(")")
            return _quantile(share, inside)
        return self._select(token)[0]

    def _select(self, name: str) -> Tuple[Vector, Vector]:
        """The series of a name and its matchers, now and then."""
        wanted: List[Tuple[str, str, str]] = []
        if self._has("{"):
            while not self._has("}"):
                label, sign, text = (self.tokens.pop(0) for _ in range(3))
                wanted.append((label, sign, text.strip('"')))
                self._has(",")
        return tuple(
            {
                labels: value
                for (own, labels), value in samples.items()
                if own == name
                and all(  # type: ignore
                    MATCH[sign](dict(labels).get(label, ""), text) for label, sign, text in wanted
                )
            }
            for samples in (self._after, self._before)
        )

    def _argument(self) -> Any:
        self._take("(")
        inside = self.comparison()
        self._take(")")
        return inside

    def _names(self) -> List[str]:
        self._take("(")
        names = []
        while not self._has(")"):
            names.append(self.tokens.pop(0))
            self._has(",")
        return names

    def _has(self, token: str) -> bool:
        if self.tokens and self.tokens[0] == token:
            self.tokens.pop(0)
            return True
        return False

    def _take(self, token: str) -> None:
        assert self._has(token), f"{token!r} was expected before {self.tokens[:5]}"


def _summed(vector: Vector, names: Sequence[str]) -> Vector:
    found: Vector = {}
    for labels, value in vector.items():
        kept = frozenset(pair for pair in labels if pair[0] in names)
        found[kept] = found.get(kept, 0.0) + value
    return found


def _joined(left: Vector, right: Vector, operate: Callable[[float, float], float], on: Any) -> Vector:
    """Series with the same labels (those of ``on``), the others are left out, as Prometheus does."""

    def key(labels: Labels) -> Labels:
        return labels if on is None else frozenset(pair for pair in labels if pair[0] in on)

    others = {key(labels): value for labels, value in right.items()}
    assert len(others) == len(right), "several series on the right match one on the left"
    return {labels: operate(value, others[key(labels)]) for labels, value in left.items() if key(labels) in others}


def _quantile(share: float, buckets: Vector) -> Vector:
    """Linear within the bucket where the share is reached."""
    groups: Dict[Labels, List[Tuple[float, float]]] = {}
    for labels, count in buckets.items():
        bound = float(dict(labels)["le"].replace("+Inf", "inf"))
        groups.setdefault(frozenset(pair for pair in labels if pair[0] != "le"), []).append((bound, count))
    found: Vector = {}
    for labels, rows in groups.items():
        rows.sort()
        assert rows[-1][0] == math.inf, "a histogram without +Inf"
        wanted, low, under = share * rows[-1][1], 0.0, 0.0
        for bound, count in rows:
            if count >= wanted and count > 0:
                found[labels] = low if bound == math.inf else low + (bound - low) * (wanted - under) / (count - under)
                break
            low, under = bound, count
        else:
            found[labels] = math.nan
    return found
