"""How values flow through one app: which values each node needs and which a request returns.

Pure and made once per app at start-up, so that the loop only looks things up. It holds no request and no value; the
graph itself comes from ``sched/requests/graph.py``, the names in ``inputs`` and ``outputs`` are checked here.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple

from edgeserve.config.schema import AppConfig
from edgeserve.engines.base import OutputType
from edgeserve.errors import ConfigError, nearest
from edgeserve.sched.requests.graph import App, Node


class Source(NamedTuple):
    """Where one argument comes from: output ``name`` of ``node``; ``node`` of ``None``: the request's own input."""

    argument: str
    node: Optional[str]
    name: str


class NodePlan:
    """One node's place in the flow of values.

    ``value_openers`` are the fan-out nodes around what it returns, from outside inwards (itself, if it fans out).
    ``sources`` of ``None`` means: everything its predecessors return, and the request's own inputs. ``needed`` are the
    outputs that others name. ``is_plain_entry``: it runs on the request's inputs as they are.
    """

    __slots__ = (
        "name",
        "model",
        "fan_out",
        "value_openers",
        "sources",
        "predecessors",
        "needed",
        "is_plain_entry",
    )

    def __init__(self, node: Node, sources: Optional[Tuple[Source, ...]]) -> None:
        self.name = node.name
        self.model = node.model
        self.fan_out = node.fan_out
        self.predecessors = tuple(pred.name for pred in node.preds)
        self.value_openers = _openers(node.scope_after())
        self.sources = sources
        self.is_plain_entry = sources is None and not self.predecessors
        self.needed: Tuple[str, ...] = ()


class AppPlan:
    """The value flow of one app. ``outputs`` of ``()`` means everything that the last nodes (``exits``) return;
    ``plain_exit`` is the one node that brings just that, outside of any fan-out (or ``""``)."""

    __slots__ = ("config", "nodes", "outputs", "exits", "plain_exit")

    def __init__(self, config: AppConfig, policy: str = "") -> None:
        app = App(config, config.policy or policy)
        self.config = config
        inputs = {node.name: node.inputs for node in config.nodes}
        self.nodes: Dict[str, NodePlan] = {}
        for node in app.nodes:
            self.nodes[node.name] = NodePlan(
                node,
                tuple(
                    _source(config, app, node, argument, reference) for argument, reference in inputs[node.name].items()
                )
                or None,
            )
        self.exits = tuple(node.name for node in app.exits)
        self.outputs = tuple(_output(config, app, name) for name in config.outputs)
        plain = not self.outputs and len(self.exits) == 1 and not self.nodes[self.exits[0]].value_openers
        self.plain_exit = self.exits[0] if plain else ""
        self._note_needed()

    def _note_needed(self) -> None:
        needed: Dict[str, List[str]] = {name: [] for name in self.nodes}
        flows = [source for plan in self.nodes.values() for source in plan.sources or ()]
        for source in flows + list(self.outputs):
            # A plain name in ``outputs`` can be promised only if there is one node to bring it.
            owner = source.node or (self.exits[0] if source in self.outputs and len(self.exits) == 1 else None)
            if owner is not None and source.name not in needed[owner]:
                needed[owner].append(source.name)
        for name, names in needed.items():
            self.nodes[name].needed = tuple(names)


def output_types(plan: AppPlan, by_model: Mapping[str, Mapping[str, OutputType]]) -> Dict[str, OutputType]:
    """What an app's answers hold, as far as it is known of its models; what comes in parts is left out."""
    model_of = {node.name: node.model for node in plan.config.nodes}
    whole = {name: by_model.get(model_of[name], {}) for name, node in plan.nodes.items() if not node.value_openers}
    if not plan.outputs:
        return {name: kind for node in plan.exits for name, kind in whole.get(node, {}).items()}
    found = {}
    for source in plan.outputs:
        for node in plan.exits if source.node is None else (source.node,):
            if source.name in whole.get(node, {}):
                found[source.argument] = whole[node][source.name]
    return found


def _openers(scope: Optional[Node]) -> Tuple[str, ...]:
    names: List[str] = []
    while scope is not None:
        names.append(scope.name)
        scope = scope.scope
    return tuple(reversed(names))


def _source(config: AppConfig, app: App, node: Node, argument: str, reference: str) -> Source:
    """``"node.output"`` or ``"request.input"`` to a :class:`Source`; the owner must run before ``node``."""
    where = f"[app.{config.name}] node {node.name!r} inputs.{argument} = {reference!r}"
    owner, _, name = reference.partition(".")
    if not owner or not name:
        raise ConfigError(f"{where}: expected 'request.NAME' or 'NODE.NAME'")
    if owner == "request" and owner not in app.by_name:
        if config.inputs and name not in config.inputs:
            raise ConfigError(f"{where}: [app.{config.name}.inputs] declares no {name!r}{nearest(name, config.inputs)}")
        return Source(argument, None, name)
    if owner not in app.by_name:
        raise ConfigError(f"{where}: no node {owner!r}{nearest(owner, app.by_name)}")
    if not _runs_before(app.by_name[owner], node):
        raise ConfigError(
            f"{where}: {owner!r} does not run before {node.name!r}; add it to the 'after' of that node "
            "or of one before it"
        )
    _check_scopes(app.by_name[owner], node, where)
    return Source(argument, owner, name)


def _check_scopes(owner: Node, node: Node, where: str) -> None:
    """The fan-outs around a value and around its reader must lie along one line, or no part could be matched."""
    around_value, around_reader = _openers(owner.scope_after()), _openers(node.scope)
    depth = min(len(around_value), len(around_reader))
    if around_value[:depth] != around_reader[:depth]:
        raise ConfigError(
            f"{where}: the parts of {owner.name!r} and of {node.name!r} come from different fan-outs; gather them first"
        )


def _output(config: AppConfig, app: App, name: str) -> Source:
    """An entry of ``outputs``: ``"NODE.NAME"``, or the plain name of what a last node returns."""
    owner, _, inner = name.partition(".")
    if not inner:
        return Source(name, None, name)
    if owner not in app.by_name:
        raise ConfigError(f"[app.{config.name}] outputs: {name!r}: no node {owner!r}{nearest(owner, app.by_name)}")
    return Source(inner, owner, inner)


def _runs_before(first: Node, then: Node) -> bool:
    return any(pred is first or _runs_before(first, pred) for pred in then.preds)
