"""The value flow of one app: the values that each node needs and that a request returns.

Pure and made once per app at start-up, so that the loop only looks things up. It holds no request and no value; the
graph itself comes from ``sched/requests/graph.py``, the names in ``inputs`` and ``outputs`` are checked here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Collection, Container, Dict, List, Mapping, NamedTuple, Optional, Tuple

from edgeserve.config.schema import AppConfig
from edgeserve.engines.base import OutputType, Values
from edgeserve.errors import ConfigError, nearest
from edgeserve.sched.requests.graph import App, Node

if TYPE_CHECKING:
    from edgeserve.live.value_names import NameBook


class ArgumentSource(NamedTuple):
    """The source of one argument: output ``name`` of ``node``; ``node`` of ``None``: the request's own input."""

    argument: str
    node: Optional[str]
    name: str


class NodePlan:
    """One node's place in the flow of values.

    ``value_openers`` are the fan-out nodes around what it returns, from outside inwards (itself, if it fans out).
    ``sources`` of ``None`` means: everything its predecessors return, and the request's own inputs. ``needed`` are the
    outputs that others name. ``is_plain_entry``: it runs on the request's inputs as they are. ``is_join``: it has
    several predecessors. ``takes_first``: it is a join of one, so only the first predecessor's values are for it.
    ``routes``: its results name the successor that is taken.
    """

    def __init__(self, node: Node, sources: Optional[Tuple[ArgumentSource, ...]]) -> None:
        self.name = node.name
        self.model = node.model
        self.fan_out = node.fan_out
        self.predecessors = tuple(pred.name for pred in node.preds)
        self.value_openers = _openers(node.scope_after())
        self.sources = sources
        self.is_plain_entry = sources is None and not self.predecessors
        self.needed: Tuple[str, ...] = ()
        self.routes = node.route_one
        self.is_join = len(self.predecessors) > 1
        self.takes_first = self.is_join and node.join == 1 and not node.gather and sources is None


class AppPlan:
    """The value flow of one app. ``exits`` are its last nodes; ``outputs`` are what an answer has, ``()`` for all that
    the exits return. ``plain_exit`` is the only exit, where the answer is what that node returns and it is in no
    fan-out, else ``""``. ``names`` records the names that nodes return, and is ``None`` for an app of one node, whose
    names meet no others. ``has_joins`` is true if a node has several predecessors."""

    def __init__(self, config: AppConfig) -> None:
        app = App(config, config.policy)
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
        self.outputs = _outputs(config, app)
        plain = not self.outputs and len(self.exits) == 1 and not self.nodes[self.exits[0]].value_openers
        self.plain_exit = self.exits[0] if plain else ""
        self._note_needed()
        plain_names = frozenset(source.name for source in self.outputs if source.node is None)
        self.names: Optional[NameBook] = None
        if len(app.nodes) > 1:
            from edgeserve.live.value_names import NameBook

            self.names = NameBook(config, app, plain_names)
        self.has_joins = any(node.is_join for node in self.nodes.values())

    def piece(self, node: str, outputs: Values) -> Values:
        """The values of a last node's piece that belong to the answer, under their names there. A piece of the only
        last node may hold more than the answer does."""
        if not self.outputs:
            return outputs
        named = {source.name: source.argument for source in self.outputs if source.node in (None, node)}
        if len(self.exits) == 1:
            return {named.get(name, name): value for name, value in outputs.items()}
        return {named[name]: value for name, value in outputs.items() if name in named}

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


def name_clashes(plan: AppPlan, returned: Mapping[str, Collection[str]]) -> List[str]:
    """The clashes of names among an app's values, in sentences. ``returned``: the names of the outputs of each
    model, as far as they are known."""
    if plan.names is None:
        return _unlike(plan.config, returned)
    for node in plan.nodes.values():
        plan.names.learn(node.name, returned.get(node.model, ()))
    return plan.names.told(plan.config.inputs)


def _unlike(app: AppConfig, returned: Mapping[str, Collection[str]]) -> List[str]:
    """The variants of an app's model that do not return what it returns, in sentences."""
    model, found = app.nodes[0].model, []
    names = returned.get(model, ())
    for variant in app.variants:
        lacks = [name for name in sorted(names) if name not in returned[variant]] if returned.get(variant) else []
        if lacks:
            has = ", ".join(map(repr, sorted(returned[variant])))
            found.append(
                f"[model.{model}.variants] {variant}: model {variant!r} returns {has} and no "
                f"{', '.join(map(repr, lacks))}, which {model!r} returns; a variant answers with the same names"
            )
    return found


def output_types(plan: AppPlan, by_model: Mapping[str, Mapping[str, OutputType]]) -> Dict[str, OutputType]:
    """The output types of an app's answers, as far as its models' are known; values that come in parts are left out."""
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


def split_reference(reference: str, nodes: Container[str], where: str) -> Tuple[str, str]:
    """``"NODE.NAME"`` as its two parts; the node is ``request`` for an input of the request, and may have dots in its
    own name. ``("", "")`` where no node of ``nodes`` is named. :class:`ConfigError` where two could be meant."""
    found = []
    for place, letter in enumerate(reference):
        owner, name = reference[:place], reference[place + 1 :]
        if letter == "." and name and (owner == "request" or owner in nodes):
            found.append((owner, name))
    if len(found) > 1 or (found and found[0][0] == "request" and "request" in nodes):
        other = f"output {found[1][1]!r} of node {found[1][0]!r}" if len(found) > 1 else "an output of node 'request'"
        mine = "the request's input" if found[0][0] == "request" else f"output of node {found[0][0]!r}:"
        raise ConfigError(f"{where} could mean {mine} {found[0][1]!r} or {other}; rename the node")
    return found[0] if found else ("", "")


def _source(config: AppConfig, app: App, node: Node, argument: str, reference: str) -> ArgumentSource:
    """``"node.output"`` or ``"request.input"`` to a :class:`ArgumentSource`; the owner must run before ``node``."""
    where = f"[app.{config.name}] node {node.name!r} inputs.{argument} = {reference!r}"
    owner, name = split_reference(reference, app.by_name, where)
    if not owner:
        owner, _, name = reference.partition(".")
        if not owner or not name:
            raise ConfigError(f"{where}: expected 'request.NAME' or 'NODE.NAME'")
        raise ConfigError(f"{where}: no node {owner!r}{nearest(owner, app.by_name)}")
    if owner == "request":
        if config.inputs and name not in config.inputs:
            raise ConfigError(f"{where}: [app.{config.name}.inputs] declares no {name!r}{nearest(name, config.inputs)}")
        return ArgumentSource(argument, None, name)
    if not _runs_before(app.by_name[owner], node):
        raise ConfigError(
            f"{where}: {owner!r} does not run before {node.name!r}; add it to the 'after' of that node "
            "or of one before it"
        )
    _check_scopes(app.by_name[owner], node, where)
    return ArgumentSource(argument, owner, name)


def _check_scopes(owner: Node, node: Node, where: str) -> None:
    """Raise for a value and a reader whose fan-outs do not lie along one line: their parts could not be matched."""
    around_value, around_reader = _openers(owner.scope_after()), _openers(node.scope)
    depth = min(len(around_value), len(around_reader))
    if around_value[:depth] != around_reader[:depth]:
        raise ConfigError(
            f"{where}: the parts of {owner.name!r} and of {node.name!r} come from different fan-outs; gather them first"
        )


def _outputs(config: AppConfig, app: App) -> Tuple[ArgumentSource, ...]:
    """The values of an answer and their names: ``outputs`` as a list of ``"NODE.NAME"`` and plain names of what last
    nodes return, or as a table that gives each its name in the answer."""
    where = f"[app.{config.name}] outputs"
    if not isinstance(config.outputs, tuple):
        return tuple(_output(config, app, f"{where}.{key}", key, text) for key, text in config.outputs.items())
    found: Dict[str, ArgumentSource] = {}
    for text in config.outputs:
        source = _output(config, app, where, "", text)
        other = found.setdefault(source.argument, source)
        if other is not source and other != source:
            from edgeserve.live.value_names import named_apart

            apart = [item.node for item in (other, source) if item.node is not None]
            raise ConfigError(
                f"{where}: {source.argument!r} of {_owner(other)} and of {_owner(source)} would have one name in the "
                f"answer; give each its own: {named_apart((), source.name, apart or ['NODE'], 'outputs')}"
            )
    return tuple(found.values())


def _owner(source: ArgumentSource) -> str:
    return "a last node" if source.node is None else f"node {source.node!r}"


def _output(config: AppConfig, app: App, where: str, argument: str, reference: str) -> ArgumentSource:
    """An entry of ``outputs``. ``argument`` of ``""``: it has the name of the value."""
    owner, name = split_reference(reference, app.by_name, f"{where} = {reference!r}")
    if owner == "request":
        raise ConfigError(f"{where}: {reference!r}: an answer holds what nodes return, no input of the request")
    if owner:
        return ArgumentSource(argument or name, owner, name)
    if "." in reference:
        owner = reference.partition(".")[0]
        raise ConfigError(f"{where}: {reference!r}: no node {owner!r}{nearest(owner, app.by_name)}")
    return ArgumentSource(argument or reference, None, reference)


def _runs_before(first: Node, then: Node) -> bool:
    return any(pred is first or _runs_before(first, pred) for pred in then.preds)
