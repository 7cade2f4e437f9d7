"""The time that an app's requests take alone: its example requests, one by one through the model that they enter by.

Where a model's time depends on what it is given, batch sizes are half of the story; the other half is how the times
of each app's requests are spread. ``[app.NAME] examples`` names a function that returns a few hundred typical ones.
The session is given, and the clock; files are ``commands/profile.py``'s.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Sequence

from edgeserve.config.schema import AppConfig, Config, NodeConfig
from edgeserve.engines.base import Batch, Session, Values
from edgeserve.engines.functions import import_function
from edgeserve.engines.warm import time_run_ns
from edgeserve.errors import ConfigError

PASSES = 3
"""The number of runs of each example. Its median counts: what else the machine did in between does not belong to the
input."""

Clock = Callable[[], int]


def entry_nodes(config: Config, model: str) -> Dict[str, NodeConfig]:
    """App -> the node where its requests enter ``model``, for the apps that name examples. A node behind others is left
    out: what it is given is made on the way."""
    found = {}
    for app in config.apps.values():
        if app.examples:
            for node in app.nodes:
                if node.model == model and not node.after:
                    found[app.name] = node
    return found


def example_items(app: AppConfig, node: NodeConfig, directory: str) -> List[Values]:
    """The app's example requests as the node's model gets them. Raises :class:`ConfigError`."""
    where = f"[app.{app.name}] examples = {app.examples!r}"
    requests = import_function(app.examples, directory, where)()
    if (
        not isinstance(requests, (list, tuple))
        or not requests
        or not all(isinstance(request, Mapping) for request in requests)
    ):
        raise ConfigError(
            f"{where}: returned {type(requests).__name__}; expected a list of requests, each a dict of named inputs"
        )
    return [_item(dict(request), node, where) for request in requests]


def measure_alone(
    session: Session,
    items: Sequence[Values],
    clock_ns: Clock,
    time_ns_max: int = 30 * 10**9,
    stopped: Callable[[], bool] = lambda: False,
) -> List[int]:
    """Each item's time alone, the median of :data:`PASSES`, in the order of ``items``. Passes go over all items, so a
    disturbance meets each of them once. After ``time_ns_max`` no further pass is begun and the first one ends early:
    then there are fewer times than items."""
    runs: List[List[int]] = [[] for _ in items]
    begun_ns = clock_ns()
    for index in [*range(len(items))] * PASSES:
        if stopped() or (clock_ns() - begun_ns >= time_ns_max and (index == 0 or len(runs[index]) == 0)):
            break
        runs[index].append(time_run_ns(session, Batch([items[index]], 1), clock_ns))
    return [sorted(times)[len(times) // 2] for times in runs if times]


def _item(request: Dict[str, Any], node: NodeConfig, where: str) -> Values:
    if not node.inputs:
        return request
    names = {argument: source.partition(".")[2] for argument, source in node.inputs.items()}
    for name in names.values():
        if name not in request:
            raise ConfigError(
                f"{where}: a request has no {name!r}, which node {node.name!r} takes; "
                f"it has {', '.join(sorted(request))}"
            )
    return {argument: request[name] for argument, name in names.items()}
