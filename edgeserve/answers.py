"""The answer to one request: what :meth:`Runtime.infer` and the clients return when a request completed.

A plain value object; it knows no socket and no scheduler. A request that did not complete raises one of the errors
of :mod:`edgeserve.errors` instead.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, Mapping, Sequence

from edgeserve.errors import TimedOut as TimedOut  # where it was first
from edgeserve.errors import UnknownOutput, did_you_mean

BREAKDOWN_KEYS = ("queue", "load", "batch", "execute", "other")
"""Where a request's time went: waiting in the queue, waiting for its model to be loaded, launched but behind other
work on the lane, running, and what remains of the total: transport, checks, decisions, hand-over."""


class Answer(Mapping[str, Any]):
    """Named outputs of one completed request, and how it went. ``answer["y"]`` is ``answer.outputs["y"]``.

    ``outcome`` is ``"completed"``; ``late`` says that the deadline had passed by then; ``reason`` is empty unless the
    answer is partial, then it says why; ``breakdown_ms`` has the keys of :data:`BREAKDOWN_KEYS` and adds up to
    ``total_ms``, which runs to its end from when it was sent, or arrived where that is not known. ``id`` is the number
    that the server gave the request, for ``story``. ``quality`` is what the policy of an ensemble expects the answer to
    be worth beside that of all its models (for a classifier the chance that both agree), and ``branches`` names the
    models that took part; 1.0 and nothing where no policy said."""

    __slots__ = ("outputs", "outcome", "late", "reason", "breakdown_ms", "total_ms", "id", "quality", "branches")

    def __init__(self, outputs: Dict[str, Any], outcome: str = "completed", late: bool = False,
                 breakdown_ms: Mapping[str, float] | None = None, total_ms: float = 0.0, reason: str = "",
                 id: int = 0, quality: float = 1.0, branches: Sequence[str] = ()) -> None:
        self.outputs = outputs
        self.outcome = outcome
        self.late = late
        self.reason = reason
        self.breakdown_ms: Dict[str, float] = dict.fromkeys(BREAKDOWN_KEYS, 0.0)
        self.breakdown_ms.update(breakdown_ms or {})
        self.breakdown_ms["other"] = max(0.0, total_ms - sum(self.breakdown_ms.values()))
        self.total_ms = total_ms
        self.id = id
        self.quality = quality
        self.branches = tuple(branches)

    def __getitem__(self, name: str) -> Any:
        try:
            return self.outputs[name]
        except KeyError:
            has = ", ".join(map(repr, sorted(self.outputs))) or "no output at all"
            raise UnknownOutput(f"the answer has no output {name!r}{did_you_mean(str(name), self.outputs)} It has "
                                f"{has}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.outputs)

    def __len__(self) -> int:
        return len(self.outputs)

    def __repr__(self) -> str:
        breakdown = ", ".join(f"{key} {value:.2f}" for key, value in self.breakdown_ms.items())
        late = ", late" if self.late else ""
        worth = f", quality {self.quality:.3f} of {', '.join(self.branches)}" if self.branches else ""
        return f"Answer({sorted(self.outputs)}, {self.outcome}{late}{worth}, {self.total_ms:.2f} ms: {breakdown})"
