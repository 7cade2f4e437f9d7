"""A request of an ensemble that asks for models: what each of them would add, and how long what was decided stands.

Makes no batch and no choice (``members.py``).
"""

from __future__ import annotations

from typing import Dict, Final, Iterable, List, Sequence, Tuple

from edgeserve.sched.plan.source import is_here
from edgeserve.sched.policies.common.ensembles import Ensemble, Query
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.requests.states import RequestRecord
from edgeserve.units import FOREVER_NS

EVERY_SUBSET: Final = 6
"""The most waiting models of which every subset is looked at. Of more: single ones, pairs, and subsets that grow by the
best model each, so that ten models are 65 subsets and not 1,023."""


class Asking(Query):
    """A request of an ensemble. ``gains``: what each model that it wants adds, in nanoseconds of lane time; ``spare``:
    the models that would add something, less than the price; ``until_ns``: when they are to end; ``seen``: what that
    was worked out from; ``told``: the models that are said to be demand, -1 where that is still to be said;
    ``lacks``: the part of its worth that is lost while the variant that it wants is not in memory."""

    __slots__ = ("gains", "spare", "until_ns", "seen", "told", "lacks")

    def __init__(self, request: RequestRecord, ensemble: Ensemble, last_ns: int, early_ns: int) -> None:
        super().__init__(request, ensemble, last_ns, early_ns)
        self.gains: List[float] = [0.0] * len(ensemble.nodes)
        self.seen: Tuple[int, int, int, int, bool] = (-1, 0, 0, 0, False)
        self.spare = 0
        self.lacks = 1.0
        self.until_ns = self.due_ns
        self.told = 0


class Looked:
    """The validity of decisions about requests: until one is due, the price is another one, a model would end
    beyond a time by which it is to end (``ups``) or before one that it was beyond (``downs``), or a variant is loaded
    or evicted (``here``)."""

    __slots__ = ("price", "due_ns", "ups", "downs", "here")

    def __init__(self) -> None:
        self.price = -1
        self.due_ns = FOREVER_NS
        self.ups: Dict[str, int] = {}
        self.downs: Dict[str, int] = {}
        self.here: Dict[str, bool] = {}

    def at(self, query: Asking, board: Board) -> None:
        """A request was looked at."""
        if board.now_ns < query.due_ns < self.due_ns:
            self.due_ns = query.due_ns
        nodes = query.ensemble.nodes
        for bit in query.jobs:
            model = nodes[bit].model
            ends_ns = board.earliest_end_ns(model)
            if query.ensemble.one_of:
                self.here[model] = is_here(model, board)
            for by_ns in (query.due_ns, query.last_ns):
                if ends_ns is None or ends_ns > by_ns:
                    self.downs[model] = max(by_ns, self.downs.get(model, 0))
                    self.ups.setdefault(model, FOREVER_NS)
                else:
                    self.ups[model] = min(by_ns, self.ups.get(model, FOREVER_NS))

    def is_over(self, board: Board) -> bool:
        """True if all are to be looked at again."""
        if self.due_ns <= board.now_ns:
            return True
        for model, most_ns in self.ups.items():
            ends_ns = board.earliest_end_ns(model)
            at_ns = FOREVER_NS if ends_ns is None else ends_ns
            if at_ns > most_ns or at_ns <= self.downs.get(model, 0):
                return True
        for model, was in self.here.items():  # noqa: SIM110 a generator costs a call per model
            if is_here(model, board) != was:
                return True
        return False


def subsets_of(query: Query, bits: Sequence[int]) -> Iterable[int]:
    """The subsets of the models ``bits`` that a request may want, as bits."""
    if query.ensemble.one_of:
        return [1 << bit for bit in bits]
    count = len(bits)
    if count <= EVERY_SUBSET:
        found = [0]
        for bit in bits:
            found += [subset | 1 << bit for subset in found]
        return found[1:]
    chosen = {1 << one | 1 << other for one in bits for other in bits}
    chain = 0
    while len(bits) > bin(chain).count("1"):
        best, best_gain = 0, -1.0
        for bit in bits:
            gain = query.gain(chain | 1 << bit)
            if not chain >> bit & 1 and gain > best_gain:
                best, best_gain = 1 << bit, gain
        chain |= best
        chosen.add(chain)
    return sorted(chosen)
