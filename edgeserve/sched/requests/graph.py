"""Apps as graphs: the order of nodes, the fan-out of requests into parts, and the joins of parts and branches.

A graph is checked when it is built; afterwards nothing in it changes. It knows no request and no time. What an app was
asked lately is kept beside it (``recent`` of the app).

Fan-out and joins follow one rule, *tokens*. When a job ends, each successor gets a token: *done*, or *skipped* if the
branch was not taken (``route = "one"``) or nothing came down it. A node runs when its tokens are complete and at least
one is done; when all are skipped it passes *skipped* on without running. So a join below a conditional fork never
waits for the branch that was not taken (PARD, section 2 of the specification). A join that may do without some of its
predecessors passes over the ones that fail; when none is left it has failed itself.

A ``fan_out`` node opens a *scope*: its successors run once per part, with the part's index appended to
:data:`~edgeserve.sched.protocol.events.Part`. A ``gather`` node closes the innermost scope: it waits for every part.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Sequence, Tuple, Union

from edgeserve.config.hints import hint_bounds
from edgeserve.config.schema import AppConfig, NodeConfig
from edgeserve.errors import ConfigError, nearest
from edgeserve.sched.requests.arrivals import AppArrivals


class Node:
    """One model's place in an app. ``depth`` counts the scopes that are open around it.

    ``plain``: it neither fans out nor routes, so its results cannot be wrong. ``follower`` is the one node that
    runs whenever a plain node is done: its only successor, which waits for nothing else. ``is_join``: it waits for
    several predecessors or parts; ``feeds_join``: a successor of the node does, ``feeds_joins``: all of them do.
    ``spared``: these joins may do without it; ``optional``: all that the node leads to are such joins.
    ``steps_key`` and ``tokens_key``: the hints that tell its steps and input tokens, ``steps`` and ``tokens`` in a
    simple app. ``stages``: nodes on the longest path from it to an exit, itself included. ``models`` are all that
    may run its jobs: ``model``, and the variants of it that are of use; ``qualities`` is what the answer of each is
    worth, empty where the model has no variants."""

    def __init__(self, config: NodeConfig, index: int) -> None:
        self.name = config.name
        self.model = config.model or config.name
        self.models: Tuple[str, ...] = (self.model,)
        self.qualities: Mapping[str, float] = {}
        self.index = index
        self.fan_out = config.fan_out
        self.gather = config.gather
        self.join: Union[str, int] = config.join
        self.route_one = config.route == "one"
        self.parts_max = config.parts_max
        self.preds: Tuple[Node, ...] = ()
        self.succs: Tuple[Node, ...] = ()
        self.depth = 0
        self.stages = 1
        self.scope: Node | None = None  # the fan-out node that opened the innermost scope around this node
        self.plain = not self.fan_out and not self.route_one
        self.follower: Node | None = None
        self.is_join = False
        self.feeds_join = self.feeds_joins = self.spared = self.optional = False
        self.steps_key = self.name + ".steps"
        self.tokens_key = self.name + ".tokens"
        self.closers: Tuple[Node, ...] = ()  # the gather nodes that close the scope which this node opens

    def scope_after(self) -> Node | None:
        """The scope that this node's successors stand in."""
        return self if self.fan_out else self.scope

    def __repr__(self) -> str:
        return f"Node({self.name})"


class App:
    """A graph of nodes that answers a request, with the defaults of its requests.

    ``nodes`` are in topological order. ``entries`` run first, ``exits`` end the request. ``simple`` marks the app of
    a single plain node, whose requests need no bookkeeping of tokens. ``ensemble`` is its models as an ensemble, if
    they are one. ``history_share``: of so many of its requests the outputs of all models are recorded. ``worth``:
    whether each request counts as the mean of all or by its own size (``worth.py``); ``recent``: the last of them.
    ``usual``: the hints of a usual request, where the world predicts them; what a request of the app is expected to
    take is told of such a one. ``one_shape``: its inputs are declared, and have the same shape in every request.
    """

    def __init__(self, config: AppConfig, policy: str) -> None:
        self.name = config.name
        self.policy = policy
        self.slo_ns = config.slo_ns
        self.priority_class = config.priority_class
        self.value = config.value
        self.worth = config.worth
        self.recent = AppArrivals()
        self.on_late = config.on_late
        self.stream = config.stream
        self.state_ttl_ns = config.state_ttl_ns
        self.streams_max = config.streams_max
        self.pending_max = config.pending_max
        self.background_wait_ns = config.background_wait_ns
        self.weights: Dict[str, float] = dict(config.weights)
        self.nodes = _graph(config)
        self.by_name = {node.name: node for node in self.nodes}
        self.entries = tuple(node for node in self.nodes if not node.preds)
        self.exits = tuple(node for node in self.nodes if not node.succs)
        self.ensemble = config.ensemble_profile
        self.history_share = config.history_share if config.history else 0.0
        self.simple = len(self.nodes) == 1 and self.nodes[0].plain
        if self.simple:
            self.nodes[0].steps_key, self.nodes[0].tokens_key = "steps", "tokens"
            if config.variants:
                self.nodes[0].models, self.nodes[0].qualities = tuple(config.variants), dict(config.variants)
        self.hint_bounds = hint_bounds(config)
        self.usual: Mapping[str, float] = {}
        self.one_shape = bool(config.inputs) and not any(
            -1 in item.shape or item.dtype in ("text", "bytes", "any") for item in config.inputs.values()
        )

    def bounded(self, hints: Mapping[str, float]) -> Mapping[str, float]:
        """The hints, those beyond their bound taken for it: what follows multiplies by them."""
        bounds = self.hint_bounds
        for name, value in hints.items():
            if value > bounds.get(name, value):
                return {hint: min(number, bounds.get(hint, number)) for hint, number in hints.items()}
        return hints

    def __repr__(self) -> str:
        return f"App({self.name}: {' '.join(node.name for node in self.nodes)})"


def _graph(config: AppConfig) -> Tuple[Node, ...]:
    """Build, link, order and check the nodes of one app. Raises :class:`ConfigError` naming the node and the mend."""
    where = f"[app.{config.name}]"
    if not config.nodes:
        raise ConfigError(f"{where} has no node; give model = '...' or [[app.{config.name}.node]] tables")
    nodes: Dict[str, Node] = {}
    for index, item in enumerate(config.nodes):
        if item.name in nodes:
            raise ConfigError(f"{where} has two nodes named {item.name!r}; rename one")
        nodes[item.name] = Node(item, index)
    for item in config.nodes:
        for pred in item.after or ():
            if pred not in nodes:
                raise ConfigError(f"{where} node {item.name!r} after = {pred!r} does not exist{nearest(pred, nodes)}")
        nodes[item.name].preds = tuple(nodes[pred] for pred in item.after or ())
        if len(set(item.after or ())) != len(item.after or ()):
            raise ConfigError(f"{where} node {item.name!r} names a predecessor twice: after = {list(item.after or ())}")
    for node in nodes.values():
        node.succs = tuple(other for other in nodes.values() if node in other.preds)
    ordered = _topological(list(nodes.values()), where)
    for index, node in enumerate(ordered):
        node.index = index
        _place_in_scope(node, where)
    for node in reversed(ordered):
        node.stages = 1 + max([succ.stages for succ in node.succs], default=0)
        node.is_join = len(node.preds) > 1 or node.gather
        node.optional = bool(node.succs) and all(
            succ.join != "all" if succ.is_join else succ.optional and not succ.fan_out and not node.fan_out
            for succ in node.succs
        )
    for node in ordered:
        node.feeds_join = any(succ.is_join for succ in node.succs)
        node.feeds_joins = bool(node.succs) and all(succ.is_join for succ in node.succs)
        node.spared = node.feeds_joins and all(succ.join != "all" for succ in node.succs)
        if node.plain and len(node.succs) == 1 and len(node.succs[0].preds) == 1 and not node.succs[0].gather:
            node.follower = node.succs[0]
        node.closers = (
            tuple(other for other in ordered if other.gather and other.preds[0].scope_after() is node)
            if node.fan_out
            else ()
        )
    return tuple(ordered)


def _topological(nodes: List[Node], where: str) -> List[Node]:
    """Predecessors first, otherwise in the order of the file; a cycle is refused."""
    ordered: List[Node] = []
    placed = set()
    while len(ordered) < len(nodes):
        ready = [node for node in nodes if node.name not in placed and all(pred.name in placed for pred in node.preds)]
        if not ready:
            cycle = ", ".join(node.name for node in nodes if node.name not in placed)
            raise ConfigError(f"{where} has a cycle through {cycle}; take one of their 'after' entries away")
        ordered.append(ready[0])
        placed.add(ready[0].name)
    return ordered


def _place_in_scope(node: Node, where: str) -> None:
    """Set ``scope`` and ``depth`` from the predecessors (which have theirs already) and check fan-out and gather."""
    here = f"{where} node {node.name!r}"
    scopes: Sequence[Node | None] = [pred.scope_after() for pred in node.preds]
    if any(scope is not scopes[0] for scope in scopes):
        names = ", ".join(pred.name for pred in node.preds)
        raise ConfigError(f"{here} joins {names}, which do not stand in the same fan-out; gather the parts first")
    scope = scopes[0] if scopes else None
    if node.gather:
        if scope is None:
            raise ConfigError(
                f"{here} has gather = true but no fan-out is open before it; "
                "set fan_out = true on the node that makes the parts"
            )
        scope = scope.scope
    if node.fan_out and node.route_one:
        raise ConfigError(f"{here} has fan_out and route = 'one'; put the choice in a node of its own")
    if isinstance(node.join, int) and not node.gather and node.join > len(node.preds):
        raise ConfigError(f"{here} join = {node.join}: it has only {len(node.preds)} predecessors")
    node.scope = scope
    node.depth = 0 if scope is None else scope.depth + 1
