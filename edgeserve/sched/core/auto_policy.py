"""Which policy an app gets that names none: the right one by what the app is (``docs/guide/policies/README.md``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Collection, Dict, Mapping, Tuple

from edgeserve.config.schema import AUTO, AppConfig, Config, PolicyConfig


def resolved(
    config: Config, sequences: Collection[str], lanes_of: Mapping[str, Collection[str]]
) -> Tuple[Config, Dict[str, str]]:
    """The configuration with a policy for every app, and why, by app, where it was chosen here.

    ``sequences`` are the models whose items are sequences, ``lanes_of`` the lanes that each model may run on. Apps that
    get policies of one kind share one, which has default options and is named after its kind, or ``auto-KIND`` where
    the file has a policy of that name.
    """
    default = next(iter(config.policies))
    policies = {name: policy for name, policy in config.policies.items() if policy.kind != AUTO}
    apps: Dict[str, AppConfig] = {}
    reasons: Dict[str, str] = {}
    names: Dict[str, str] = {}
    for app in config.apps.values():
        name = app.policy or default
        if config.policies[name].kind == AUTO:
            kind, reasons[app.name] = chosen(app, sequences, lanes_of)
            if kind not in names:
                free = kind
                while free in policies:
                    free = f"auto-{free}"
                names[kind] = free
                policies[free] = PolicyConfig(free, kind)
            name = names[kind]
        apps[app.name] = replace(app, policy=name)
    return replace(config, policies=policies, apps=apps), reasons


def chosen(app: AppConfig, sequences: Collection[str], lanes_of: Mapping[str, Collection[str]]) -> Tuple[str, str]:
    """The kind of policy for an app, and why."""
    models = [node.model or node.name for node in app.nodes]
    language = [model for model in models if model in sequences]
    if language:
        return "rtlm+", f"{language[0]} is a language model"
    if app.ensemble_profile is not None:
        return "schemble+", "it is an ensemble whose profile is known"
    different = list(dict.fromkeys(models))
    for index, model in enumerate(different):
        for other in different[:index]:
            shared = [lane for lane in lanes_of[model] if lane in lanes_of[other]]
            if shared:
                return "pard_local", f"its models {other} and {model} share lane {shared[0]}"
    return "edf", "its models share no lane with each other" if len(different) > 1 else "it is one model"
