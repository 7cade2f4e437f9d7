"""The worth of a model's place in memory: the demand of its apps, and their loss while it is away.

An app loses, while one of its models is away, the requests that cannot wait for as long: all of its models together are
worth that, and some of them at most half of it, so that an app becomes whole rather than several become halves. Of an
ensemble each member that is away costs its part alone; of a model with variants the best that is there counts with its
quality. Worth is that of the lanes (``requests/worth.py``), by class. ``here``: the models that can run now.
"""

from __future__ import annotations

from typing import AbstractSet, Callable, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Set, Tuple

from edgeserve.priority_class import CLASSES, RANKS
from edgeserve.sched.latency.path_cost import REFRESH_NS, AppCosts
from edgeserve.sched.requests.graph import App

PARTIAL = 0.5
"""The greatest worth of an app's models while they cannot answer, as a share of the worth of the fewest that can."""

Worth = Tuple[float, ...]
"""Value by class, the most urgent first: compared in this order, so that no number of frames outweighs critical
requests."""

NOTHING: Worth = (0.0,) * len(CLASSES)


class AppDemand(NamedTuple):
    """The demand of one app: its models, the ones of them that are members of its ensemble, its class, the value that
    comes per nanosecond, for how long one of its requests can wait, and the qualities of models that are variants."""

    models: Tuple[str, ...]
    members: Tuple[str, ...]
    rank: int
    per_ns: float
    slack_ns: float
    qualities: Mapping[str, float] = {}

    def lost(self, away_ns: float, busy_ns: float) -> float:
        """The worth of requests that come while a model is away and cannot wait until it is back, and for the
        ``busy_ns`` of work that waits for the lanes: under overload little can."""
        return self.per_ns * min(away_ns, max(0.0, away_ns + busy_ns - self.slack_ns))

    def part(self, here: AbstractSet[str]) -> float:
        """The share of its worth that the app has with these models."""
        if self.qualities:
            best = [quality for model, quality in self.qualities.items() if model in here]
            return max(best) / max(self.qualities.values()) if best else 0.0
        missing = [model for model in self.models if model not in here]
        if not missing:
            return 1.0
        if len(missing) < len(self.members) and all(model in self.members for model in missing):
            return 1.0 - len(missing) / len(self.members)
        least = 1.0 / max(1, len(self.members))  # of what answers
        return PARTIAL * least * (len(self.models) - len(missing)) / len(self.models)


class ModelWorth:
    """The demand of the apps, taken anew every :data:`REFRESH_NS`. ``by_model``: the apps that need a model;
    ``models``: all that any app needs."""

    def __init__(self, apps: Sequence[App], costs: Mapping[str, AppCosts]) -> None:
        self._apps = tuple(apps)
        self._costs = costs
        self._models = {
            app.name: tuple(dict.fromkeys([model for node in app.nodes for model in node.models])) for app in apps
        }
        self._members = {app.name: _members(app) for app in apps}
        self.models = frozenset([model for models in self._models.values() for model in models])
        self._taken_ns = -REFRESH_NS
        self.by_model: Dict[str, List[AppDemand]] = {}

    def refresh(self, now_ns: int) -> None:
        """Take the rates anew where they are old."""
        if now_ns < self._taken_ns + REFRESH_NS:
            return
        self._taken_ns = now_ns
        self.by_model.clear()
        for app in self._apps:
            recent = app.recent
            per_ns = recent.per_ns(now_ns) * recent.worth
            if per_ns > 0.0:
                slack_ns = max(0.0, recent.allowed_ns - self._costs[app.name].alone_ns)
                members = self._members[app.name]
                rank, qualities = RANKS[app.priority_class], app.nodes[0].qualities
                asked = AppDemand(self._models[app.name], members, rank, per_ns, slack_ns, qualities)
                for model in asked.models:
                    self.by_model.setdefault(model, []).append(asked)

    def lost_without(self, models: AbstractSet[str], away_ns: float, busy_ns: float, here: AbstractSet[str]) -> Worth:
        """The worth lost while these models are away, among the ones that are ``here``; ``busy_ns``: the work that
        waits for the lanes."""
        if not self.by_model:
            return NOTHING
        lost = [0.0] * len(CLASSES)
        left = here - models
        counted: Set[int] = set()
        for model in models:
            for asked in self.by_model.get(model, ()):
                if id(asked) not in counted:
                    counted.add(id(asked))
                    lost[asked.rank] += (asked.part(here) - asked.part(left)) * asked.lost(away_ns, busy_ns)
        return tuple(lost)

    def gained_with(
        self, model: str, load_ns: int, away_ns: float, here: AbstractSet[str], fit: Callable[[Iterable[str]], bool]
    ) -> Worth:
        """The worth of requests that come for a model while others are away for it, of apps that cannot wait until it
        is loaded and whose models ``fit`` into memory together."""
        gained = [0.0] * len(CLASSES)
        for asked in self.by_model.get(model, ()):
            if asked.slack_ns < load_ns and fit((model,) if asked.qualities else asked.models):
                more = asked.part(here | {model}) - asked.part(here)
                gained[asked.rank] += more * asked.per_ns * away_ns
        return tuple(gained)


def _members(app: App) -> Tuple[str, ...]:
    """The models that an app's policy chooses among: of nodes before a join that is the policy's."""
    chosen = [pred.model for node in app.nodes if node.join == "policy" for pred in node.preds]
    needed = [node.model for node in app.nodes if not any(after.join == "policy" for after in node.succs)]
    return tuple([model for model in dict.fromkeys(chosen) if model not in needed])


def added(a: Worth, b: Worth) -> Worth:
    """Both together."""
    return tuple([x + y for x, y in zip(a, b)])
