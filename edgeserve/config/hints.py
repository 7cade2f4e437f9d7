"""The hints of a request that mean something here: numbers that its client declares, that its app predicts, or that
one of its nodes says of it or of a part.

A policy reads them by name. Clients and nodes may say any name (a policy of one's own may know more, and a model that
several apps use may speak of nodes that only one of them has); what the configuration says of an app is checked
against this list, since a predictor of a hint that no policy reads would only cost time.
"""

from __future__ import annotations

from typing import Any, Collection, Dict, Sequence

from edgeserve.config.limits import STEPS_MAX, WORK_MAX
from edgeserve.config.schema import AppConfig, Config, NodeConfig, PolicyConfig
from edgeserve.errors import ConfigError, did_you_mean


def known_hints(nodes: Sequence[NodeConfig]) -> Dict[str, str]:
    """Name -> meaning of every hint that a request to an app with these nodes may have.

    ``steps``, ``steps_sd`` and ``tokens`` are for the app of one plain node, where ``NODE.steps`` would say the same;
    with more nodes each has its own. ``parts`` and ``route`` belong to the nodes that make parts and choose a
    successor.
    """
    known = {
        "length": "how long it is, in a unit of the app's own: more takes longer",
        "work": "its work at every node relative to the usual, which is 1.0",
    }
    alone = len(nodes) == 1 and not nodes[0].fan_out and nodes[0].route == "all"
    if alone:
        known["steps"] = "runs that it needs, of an iterative model: tokens of the answer, of a language model"
        known["steps_sd"] = "deviation of the logarithm of those steps, of a language model"
        known["tokens"] = "tokens of its input, of a model of sequences"
    for node in nodes:
        known[f"{node.name}.work"] = "its work at the node relative to the usual, which is 1.0"
        if not alone:
            known[f"{node.name}.steps"] = "runs that it needs at the node, of an iterative model"
            known[f"{node.name}.steps_sd"] = "deviation of the logarithm of those steps, of a language model"
            known[f"{node.name}.tokens"] = "tokens of its input at the node, of a model of sequences"
        if node.fan_out:
            known[f"{node.name}.parts"] = "parts that the node will make of it"
        if node.route == "one":
            known[f"{node.name}.route"] = "the successor that the node will choose, counted from 0"
    return known


def read_hints(app: AppConfig, config: Config) -> Collection[str]:
    """The hints that the app's policy may read; empty for a policy from outside, which may read any."""
    policy = config.policies.get(app.policy or next(iter(config.policies), ""))
    if policy is None or ":" in policy.kind:
        return ()
    known = set(known_hints(app.nodes))
    if policy.options.get("hint"):
        known.add(str(policy.options["hint"]))
    return known


def hint_bounds(app: AppConfig) -> Dict[str, float]:
    """Name -> the largest value of each hint by which a policy multiplies: steps, work and parts. A larger one that a
    request declares is refused; one that a function or a node says is taken for this."""
    bounds: Dict[str, float] = {"steps": STEPS_MAX, "work": WORK_MAX}
    for node in app.nodes:
        bounds[f"{node.name}.steps"] = STEPS_MAX
        bounds[f"{node.name}.work"] = WORK_MAX
        if node.fan_out:
            bounds[f"{node.name}.parts"] = node.parts_max
    return bounds


def check_predicted(app: AppConfig, policy: PolicyConfig) -> None:
    """``[app.NAME.predict]`` names hints that mean something, or the ``hint`` that the policy's options name.
    A policy from outside (``kind = "module:Class"``) may read hints of any name."""
    known: Dict[str, Any] = dict(known_hints(app.nodes))
    if policy.options.get("hint"):
        known[str(policy.options["hint"])] = "what the policy takes for the length"
    for hint in app.predict:
        if hint not in known and ":" not in policy.kind:
            raise ConfigError(
                f"[app.{app.name}.predict] {hint!r}: no policy reads such a hint"
                f"{did_you_mean(hint, known)} Those of this app are {', '.join(known)}"
            )
