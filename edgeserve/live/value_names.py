"""Clashes of names where values of several sources meet in one app: one would replace or stand in for another.

A node without ``inputs`` is given values by their names alone: the request's inputs, and its predecessors' outputs. Two
sources of one name meet where one of the values would replace the other, or stand in for it when the other is missing.
Such names are refused, with the key that tells them apart. Allowed are

* a node with one predecessor, whose output replaces the request's input of the same name,
* branches of a route of which one at most is taken,
* a join of one: it is given what its first predecessor returned, and nothing of the others.

Names are learnt: from the configuration and the models' files before anything runs, from the warm-up, and from every
result (:meth:`NameBook.learn`). Learnt names stay, so an answer never depends on which results came before it.
Belongs to the loop's thread; other threads may read ``input_clashes``.
"""

from __future__ import annotations

import json
import re
from typing import Collection, Dict, FrozenSet, Iterable, List, Mapping, NamedTuple, Sequence, Set, Tuple

from edgeserve.config.schema import AppConfig
from edgeserve.sched.requests.graph import App, Node

NAMES_MAX = 1024
"""Names that are remembered of one node. A function that returns others each time is not watched any further."""

WAYS_MAX = 64
"""Alternatives that are kept of one node. A node with more counts as one that always runs."""

Way = FrozenSet[Tuple[str, str]]
"""Choices under which a node runs: (node with ``route = "one"``, the successor that it took)."""


class ValueReader(NamedTuple):
    """A place where values meet by name. ``where`` says it to people, ``key`` is what tells the values apart there, and
    ``sources`` are the nodes whose outputs are read. ``replaces``: an output of its one predecessor takes the place of
    a request's input. ``above`` are nodes further up, whose outputs it is not given. ``only``: the names that are read,
    all where it is empty. ``pairs``: sources that may both have a value."""

    where: str
    key: str
    sources: Tuple[str, ...]
    replaces: bool
    above: Tuple[str, ...]
    reads_request: bool
    only: FrozenSet[str]
    pairs: Tuple[Tuple[str, str], ...]


class NameBook:
    """The names that each node of one app returns, as far as they are known, and what follows.

    ``plain`` are the names of the app's ``outputs`` that name no node.
    ``clashes``: node -> name -> why a result of the node with this name cannot be used. ``input_clashes``: name of a
    request's input -> why a request cannot bring it. ``replaced``: node -> names of inputs that its result must hold
    where the request brings them, since a reader behind it would be given the request's instead."""

    def __init__(self, config: AppConfig, app: App, plain: FrozenSet[str]) -> None:
        self.clashes: Dict[str, Dict[str, str]] = {}
        self.input_clashes: Dict[str, str] = {}
        self.replaced: Dict[str, FrozenSet[str]] = {}
        self._returned: Dict[str, Set[str]] = {node.name: set() for node in app.nodes}
        self._readers = _readers(config, app, plain)

    def knows(self, node: str, names: Collection[str]) -> bool:
        """True if nothing of this result is new."""
        known = self._returned[node]
        return known.issuperset(names) or len(known) >= NAMES_MAX

    def learn(self, node: str, names: Iterable[str]) -> None:
        """Note names that a node returns, among others perhaps."""
        known = self._returned[node]
        before = len(known)
        known.update(names)
        if len(known) > before:
            self._find()

    def told(self, inputs: Collection[str] = ()) -> List[str]:
        """The clashes by all known names, in sentences. ``inputs``: the names that a request may bring."""
        found = [text for table in self.clashes.values() for text in table.values()]
        found += [text for name, text in self.input_clashes.items() if name in inputs]
        return list(dict.fromkeys(found))

    def _find(self) -> None:
        clashes: Dict[str, Dict[str, str]] = {}
        inputs: Dict[str, str] = {}
        replaced: Dict[str, Set[str]] = {}
        for reader in self._readers:
            for one, other in reader.pairs:
                for name in sorted(self._names(one, reader) & self._names(other, reader)):
                    text = _clash(reader, name, (one, other))
                    clashes.setdefault(one, {}).setdefault(name, text)
                    clashes.setdefault(other, {}).setdefault(name, text)
            if not reader.reads_request:
                continue
            if reader.replaces:
                replaced.setdefault(reader.sources[0], set()).update(self._returned[reader.sources[0]])
            given = self._returned[reader.sources[0]] if reader.replaces else set()
            for maker in reader.above if reader.replaces else (*reader.sources, *reader.above):
                for name in sorted(self._returned[maker] - given):
                    inputs.setdefault(name, _clash(reader, name, (maker,)))
        self.clashes, self.input_clashes = clashes, inputs
        self.replaced = {node: frozenset(names) for node, names in replaced.items()}

    def _names(self, node: str, reader: ValueReader) -> Set[str]:
        return self._returned[node] & reader.only if reader.only else self._returned[node]


def named_apart(prefix: Sequence[str], name: str, owners: Sequence[str], key: str) -> str:
    """The line of a configuration that gives each value of one name a name of its own, such as
    ``inputs = { small_p = "small.p", large_p = "large.p" }``."""
    entries = [f"{_bare(f'{owner}_{name}')} = {json.dumps(f'{owner}.{name}')}" for owner in (*prefix, *owners)]
    return f"{key} = {{ {', '.join(entries)} }}"


def _bare(text: str) -> str:
    """A key of TOML that needs no quotes."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)


def _clash(reader: ValueReader, name: str, makers: Sequence[str]) -> str:
    """The reason why a name cannot be used at a reader, and the line that resolves it. One maker: the request brings
    the other."""
    sources = ("the request", f"node {makers[0]!r}") if len(makers) == 1 else [f"node {maker!r}" for maker in makers]
    if len(makers) == 1 and makers[0] in reader.above:
        argument = name if _bare(name) == name else json.dumps(name)
        either = " or ".join(json.dumps(f"{owner}.{name}") for owner in ("request", makers[0]))
        return (
            f"{reader.where} would be given the request's {name!r}, although node {makers[0]!r} before it returns "
            f"another {name!r}; name all that it reads: inputs = {{ {argument} = {either}, ... }}"
        )
    line = named_apart(("request",) if len(makers) == 1 else (), name, makers, reader.key)
    return (
        f"{reader.where} would be given {name!r} of {sources[0]} and of {sources[1]}, and one would replace the other; "
        f"name them apart: {line}"
    )


def _readers(config: AppConfig, app: App, plain: FrozenSet[str]) -> Tuple[ValueReader, ...]:
    """Every place of an app where values meet by name alone. ``plain``: the names of ``outputs`` that name no node."""
    ways, depth = _ways_to(app.nodes), {node.name: node.depth for node in app.nodes}
    named = {node.name for node in config.nodes if node.inputs}
    found = []
    for node in app.nodes:
        if node.name in named or not node.preds:
            continue
        preds = [] if node.join == 1 and not node.gather else list(node.preds)
        found.append(
            ValueReader(
                f"[app.{config.name}] node {node.name!r}",
                "inputs",
                tuple(pred.name for pred in node.preds),
                not node.is_join,
                _above(node),
                True,
                frozenset(),
                _pairs(preds, node.depth, ways, depth),
            )
        )
    if len(app.exits) > 1 and (plain or not config.outputs):
        found.append(
            ValueReader(
                f"[app.{config.name}] the answer",
                "outputs",
                tuple(node.name for node in app.exits),
                False,
                (),
                False,
                plain,
                _pairs(app.exits, 0, ways, depth),
            )
        )
    return tuple(found)


def _pairs(
    nodes: Sequence[Node], at: int, ways: Mapping[str, FrozenSet[Way]], depth: Mapping[str, int]
) -> Tuple[Tuple[str, str], ...]:
    """The pairs of nodes that may both have run for a reader in ``at`` scopes."""
    return tuple(
        (one.name, other.name)
        for place, one in enumerate(nodes)
        for other in nodes[place + 1 :]
        if not _never_both(ways[one.name], ways[other.name], at, depth)
    )


def _above(reader: Node) -> Tuple[str, ...]:
    """The nodes before a reader's predecessors that stand in no fan-out that is closed before it."""
    around = set()
    scope = reader.scope
    while scope is not None:
        around.add(scope)
        scope = scope.scope
    found: Dict[str, None] = {}
    waiting = [before for pred in reader.preds for before in pred.preds]
    while waiting:
        node = waiting.pop()
        waiting += node.preds
        inner = node.scope_after()
        if node not in reader.preds and (inner is None or inner in around):
            found[node.name] = None
    return tuple(found)


def _ways_to(nodes: Sequence[Node]) -> Dict[str, FrozenSet[Way]]:
    """The alternatives under which each node runs, by its name. ``nodes`` are in topological order."""
    depth = {node.name: node.depth for node in nodes}
    found: Dict[str, FrozenSet[Way]] = {}
    for node in nodes:
        ways: Set[Way] = set() if node.preds else {frozenset()}
        for pred in node.preds:
            taken = {(pred.name, node.name)} if pred.route_one else set()
            ways.update(_seen_from(way | taken, node.depth, depth) for way in found[pred.name])
        found[node.name] = frozenset(ways if len(ways) <= WAYS_MAX else {frozenset()})
    return found


def _never_both(one: FrozenSet[Way], other: FrozenSet[Way], at: int, depth: Mapping[str, int]) -> bool:
    """True if two nodes cannot both have run for a reader that stands in ``at`` scopes: each alternative of one takes
    another successor of some route than each alternative of the other. ``depth``: the scopes around each node."""
    return all(
        any(route == their_route and succ != theirs for route, succ in mine for their_route, theirs in yours)
        for mine in [_seen_from(way, at, depth) for way in one]
        for yours in [_seen_from(way, at, depth) for way in other]
    )


def _seen_from(way: Way, at: int, depth: Mapping[str, int]) -> Way:
    """The choices that are one to a reader in ``at`` scopes: those of deeper routes differ from part to part."""
    return frozenset(choice for choice in way if depth[choice[0]] <= at)
