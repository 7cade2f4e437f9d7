"""PARD's batch planning: the largest batches for which a request can wait for one and ride in one at every module.

A request that just misses a batch waits for a whole one, then rides in the next. With batches that take half of the SLO
along the longest path that adds up to the SLO; with larger ones the policy would have to drop what it could serve (the
paper's section 4.1 leaves it to the pipeline's owner; section 3.6 of the specification has the rule). Pure.
"""

from __future__ import annotations

from typing import Dict, Mapping, Sequence

from edgeserve.sched.requests.graph import App
from edgeserve.units import PPM

Times = Mapping[str, Mapping[int, int]]
"""Model -> batch size -> how long such a batch takes, in nanoseconds."""


def plan_sizes(apps: Sequence[App], times: Times, share_ppm: int) -> Dict[str, int]:
    """The largest batch per model, so that no app's longest path takes more than this share of its SLO.

    From the smallest batches, always one size more for the module that saves most lane time per request for what it
    adds to the path. A model of several apps gets the smallest of its plans. Where not even the smallest batches fit
    they stay. O(nodes * sizes) rounds of O(nodes) per app.
    """
    found: Dict[str, int] = {}
    for app in apps:
        for model, size in _plan(app, times, app.slo_ns * share_ppm // PPM).items():
            found[model] = min(size, found.get(model, size))
    return found


def path_ns(app: App, sizes: Mapping[str, int], times: Times) -> int:
    """The longest path through an app, in batches of these sizes."""
    upto: Dict[str, int] = {}
    for node in app.nodes:  # predecessors first
        before_ns = max([upto[pred.name] for pred in node.preds], default=0)
        upto[node.name] = before_ns + times[node.model][sizes[node.model]]
    return max(upto.values())


def _plan(app: App, times: Times, limit_ns: int) -> Dict[str, int]:
    models = list(dict.fromkeys(node.model for node in app.nodes))
    ladder = {model: sorted(times[model]) for model in models}
    step = dict.fromkeys(models, 0)
    while True:
        sizes = {model: ladder[model][step[model]] for model in models}
        now_ns = path_ns(app, sizes, times)
        best, best_gain = "", 0.0
        for model in models:
            if step[model] + 1 == len(ladder[model]):
                continue
            size, more = sizes[model], ladder[model][step[model] + 1]
            added_ns = path_ns(app, {**sizes, model: more}, times) - now_ns
            saved = times[model][size] / size - times[model][more] / more
            gain = saved / max(1, added_ns)
            if now_ns + added_ns <= limit_ns and gain > best_gain:
                best, best_gain = model, gain
        if not best:
            return sizes
        step[best] += 1
