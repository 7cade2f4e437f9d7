"""The requests of ensembles that a policy holds: which of their models have answered, run, wait, and what they add.

An *ensemble* is an app with one join behind several models; a request's models are bits of one number, in their order.
An app whose model has variants counts as one, too: one of them answers, and its quality is what the answer is worth.
"""

from __future__ import annotations

from typing import Dict, List, Sequence, Tuple

from edgeserve.config.ensemble_profile import EnsembleProfile, join_of, lead_of
from edgeserve.config.schema import NodeConfig
from edgeserve.sched.requests.graph import App, Node
from edgeserve.sched.requests.states import Job, RequestRecord
from edgeserve.units import FOREVER_NS

Row = Tuple[float, ...]


class Ensemble:
    """One app as an ensemble. ``nodes`` are its models, ``join`` combines them; ``leads`` are the nodes before them,
    ``helpers`` the other nodes that the join alone waits for, such as a node that scores the request beside the models;
    ``before`` are both. ``profile`` is None where nothing was fitted: then each model counts alike. ``one_of``: the
    models are variants, in the place of one node, which is the ``join`` as well. ``batch_ns``: batches that take longer
    do not tell what a request costs: of variants, batches that leave no time to wait for such a one before."""

    def __init__(self, app: App, nodes: Sequence[Node], join: Node) -> None:
        self.app = app
        self.nodes = tuple(nodes)
        self.join = join
        self.bits: Dict[str, int] = {node.name: index for index, node in enumerate(nodes)}
        self.leads = frozenset([pred.name for node in nodes for pred in _before(node)])
        self.helpers = frozenset([node.name for node in join.preds if node not in nodes and node.succs == (join,)])
        self.before = self.leads | self.helpers
        profile: EnsembleProfile | None = app.ensemble
        self.profile = profile
        self.score = profile.score if profile is not None else ""
        self.one_of = False
        self.batch_ns = FOREVER_NS
        self.mean: Row = (
            profile.mean_row()
            if profile is not None
            else tuple([bin(subset).count("1") / len(nodes) for subset in range(1 << len(nodes))])
        )

    def row(self, request: RequestRecord) -> Row:
        """The worth of each subset's answer to a request, by its difficulty as far as that is known."""
        score = request.hints.get(self.score)
        if self.profile is None or score is None:
            return self.mean
        return self.profile.row(score)

    def observed(self, request: RequestRecord, answered: int) -> Row | None:
        """The same from what the models said that have answered; None where the history does not tell."""
        profile = self.profile
        if profile is None or answered not in profile.observed:
            return None
        votes = []
        for bit, node in enumerate(self.nodes):
            if answered >> bit & 1:
                label, margin = request.hints.get(f"{node.name}.label"), request.hints.get(f"{node.name}.margin")
                if label is None or margin is None:
                    return None
                votes.append((label, margin, profile.weights[bit] if profile.weights else 1.0))
        return profile.observed_row(answered, lead_of(votes), request.hints.get(self.score))


def ensemble_of(app: App) -> Ensemble | None:
    """The app as an ensemble, or None: as its profile says, else where one join is left to the policy and everything
    before it is a branch of its own."""
    if app.ensemble is not None:
        after = {node.name: [pred.name for pred in node.preds] for node in app.nodes}
        join = app.by_name[join_of(app.ensemble, after)]
        nodes = [app.by_name[name] for name in app.ensemble.models]
    else:
        joins = [node for node in app.nodes if node.join == "policy" and not node.gather and len(node.preds) > 1]
        if len(joins) != 1:
            return None
        join = joins[0]
        nodes = sorted(join.preds, key=_index)
    if join.depth or any(node.depth or len(node.succs) != 1 or node.fan_out or node.route_one for node in nodes):
        return None
    return Ensemble(app, nodes, join)


def alternatives_of(app: App) -> Ensemble | None:
    """The app of one model that has variants as an ensemble of which one answers, or None."""
    node = app.nodes[0]
    if len(node.models) < 2:
        return None
    found = Ensemble(app, [Node(NodeConfig(node.name, model), 0) for model in node.models], node)
    found.one_of, found.batch_ns = True, app.slo_ns // 2
    found.bits = {model: bit for bit, model in enumerate(node.models)}
    row = [0.0]
    for model in node.models:
        row += [max(worth, node.qualities[model]) for worth in row]
    found.mean = tuple(row)
    return found


def _index(node: Node) -> int:
    return node.index


def _before(node: Node) -> List[Node]:
    found: List[Node] = []
    for pred in node.preds:
        found += [pred, *_before(pred)]
    return found


class Query:
    """One request of an ensemble. ``answered``, ``running`` and ``gone`` (left out, failed, lost) are sets of models;
    ``jobs`` are the ready jobs by model. ``planned`` are models that are to run, for good where the
    request ``is_committed``; ``wanted`` are to be in memory, too. ``due_ns``: when its models
    are to have ended; ``last_ns``: when they must have."""

    __slots__ = (
        "request",
        "ensemble",
        "answered",
        "running",
        "gone",
        "jobs",
        "planned",
        "wanted",
        "due_ns",
        "last_ns",
        "row",
        "observed",
        "is_committed",
        "is_scored",
        "is_noted",
    )

    def __init__(self, request: RequestRecord, ensemble: Ensemble, last_ns: int, early_ns: int = 0) -> None:
        self.request = request
        self.ensemble = ensemble
        self.answered = 0
        self.running = 0
        self.gone = 0
        self.jobs: Dict[int, Job] = {}
        self.planned = 0
        self.wanted = 0
        self.last_ns = last_ns
        self.due_ns = last_ns - early_ns
        self.row: Row = ensemble.row(request)
        self.observed: Row | None = None  # by the answers so far, once there is one
        self.is_committed = False
        self.is_noted = False  # its story says that a plan met its bound
        self.is_scored = ensemble.score in request.hints

    def score_came(self) -> bool:
        """True if the request's difficulty has become known since it was last asked."""
        if self.is_scored or self.ensemble.score not in self.request.hints:
            return False
        self.is_scored = True
        self.row = self.ensemble.row(self.request)
        return True

    def key(self) -> Tuple[int, int, int]:
        """Requests in order of their deadlines; equal ones by arrival, then by number."""
        return self.due_ns, self.request.arrival_ns, self.request.id

    def waiting(self) -> int:
        """The models whose jobs are ready."""
        found = 0
        for bit in self.jobs:
            found |= 1 << bit
        return found

    def model(self, bit: int) -> str:
        """The name of a model."""
        return self.ensemble.nodes[bit].model

    def took(self, bit: int) -> bool:
        """A model's job is not ready any more; of variants, it was that of all of them. Whether it was."""
        found = self.jobs.pop(bit, None) is not None
        if self.ensemble.one_of:
            self.jobs.clear()
        return found

    def waits(self) -> List[Job]:
        """The jobs that are ready."""
        jobs = list(self.jobs.values())
        return jobs[:1] if self.ensemble.one_of else jobs

    def begun(self) -> int:
        """The models that run or have answered."""
        return self.running | self.answered

    def worth(self, subset: int) -> float:
        """The worth of an answer of this subset, by all present knowledge."""
        if self.observed is not None and subset & self.answered == self.answered:
            return self.observed[subset]
        return self.row[subset]

    def gain(self, subset: int) -> float:
        """The worth that more models add to the begun ones; 0 where the answer would still be of no use."""
        begun = self.running | self.answered
        rows = self.row if self.observed is None else self.observed
        after = rows[begun | subset]
        if after < self.request.quality_min:
            return 0.0
        before = rows[begun] if begun else 0.0
        return after - (before if before >= self.request.quality_min else 0.0)

    def adds(self, subset: int, planned: int) -> bool:
        """True if more models than planned would make the answer better: of variants, one in place of the planned."""
        return not self.ensemble.one_of or self.worth(subset) > self.worth(planned)

    def answers(self, bit: int) -> None:
        """A model has answered."""
        self.running &= ~(1 << bit)
        self.answered |= 1 << bit
        self.observed = self.ensemble.observed(self.request, self.answered)
