"""What could be configured instead: a policy with options for each app, and the configuration that says so."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, NamedTuple, Tuple

from edgeserve.config.loading import parse_config
from edgeserve.config.schema import Config
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policy_api.options import defaults_of

SMALLER_BATCHES = "smaller batches"
"""Values of an option that depend on the models: a half and a quarter of the largest batch size."""

OPTIONS: Mapping[str, Tuple[Tuple[str, Any], ...]] = {
    "edf": (("batch_max", SMALLER_BATCHES), ("admit", (False,))),
    "fifo": (("batch_max", SMALLER_BATCHES),),
    "clockwork": (("refuse_early", (False,)), ("margin_ms", (5.0,))),
    "orloj": (("reading", ("urgent", "single")),),
    "pard": (("batch_times", ("measured",)), ("paths", ("expected",))),
    "pard+": (("batch_times", ("measured",)), ("collect", ("ahead",))),
}
"""Kind -> its options that are tried, each with the values beside its default. docs/guide/tune.md shows this table."""


class PolicyChoice(NamedTuple):
    """A policy: its kind, and the options that differ from their defaults, sorted by name."""

    kind: str
    options: Tuple[Tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        options = ", ".join(f"{key} = {value!r}" for key, value in self.options)
        return f"{self.kind} ({options})" if options else self.kind

    def with_option(self, name: str, value: Any) -> PolicyChoice:
        """The same policy with another value of one option."""
        return choice_of(self.kind, {**dict(self.options), name: value})


Candidate = Tuple[Tuple[str, PolicyChoice], ...]
"""The choice of each app, in the order of the configuration."""


class Made(NamedTuple):
    """The configuration of a candidate: checked, as a table, and what changes in the file: sections ``[policy.*]`` that
    it lacks, and the name of each app's policy."""

    config: Config
    edge: Dict[str, Any]
    policies: Dict[str, Dict[str, Any]]
    apps: Dict[str, str]


def choice_of(kind: str, options: Mapping[str, Any]) -> PolicyChoice:
    """A choice without the options that have their default."""
    policy = POLICIES.get(kind)
    defaults: Dict[str, Any] = defaults_of(policy.options_type) if policy is not None else {}
    return PolicyChoice(
        kind,
        tuple(sorted((key, value) for key, value in options.items() if key not in defaults or defaults[key] != value)),
    )


def todays(config: Config) -> Candidate:
    """What the configuration says."""
    found = []
    for app in config.apps.values():
        policy = config.policies[app.policy or next(iter(config.policies))]
        found.append((app.name, choice_of(policy.kind, policy.options)))
    return tuple(found)


def everywhere(candidate: Candidate, choice: PolicyChoice) -> Candidate:
    """One choice for all apps."""
    return tuple((app, choice) for app, _ in candidate)


def for_app(candidate: Candidate, name: str, choice: PolicyChoice) -> Candidate:
    """Another choice for one app."""
    return tuple((app, choice if app == name else old) for app, old in candidate)


def variants(choice: PolicyChoice, config: Config) -> List[Tuple[str, List[Any]]]:
    """The options of a choice that are tried, with the values beside the present one."""
    largest = max((model.batch[-1] for model in config.models.values()), default=1)
    smaller = sorted({size for size in (largest // 2, largest // 4) if size > 0} | ({1} if largest > 1 else set()))
    found = []
    for name, values in OPTIONS.get(choice.kind, ()):
        default = defaults_of(POLICIES[choice.kind].options_type)[name]
        tried: List[Any] = list(values)
        if values == SMALLER_BATCHES:
            tried = [*smaller]
        now = dict(choice.options).get(name, default)
        found.append((name, [value for value in [default, *tried] if value != now]))
    return found


def title(candidate: Candidate) -> str:
    """The candidate for people."""
    choices = list(dict.fromkeys(choice for _, choice in candidate))
    if len(choices) == 1:
        return str(choices[0])
    return "; ".join(f"{', '.join(app for app, other in candidate if other == choice)}: {choice}" for choice in choices)


def make(candidate: Candidate, edge: Mapping[str, Any], config: Config) -> Made:
    """The configuration ``edge`` with the candidate's policies. Sections that are there keep their names, and stay
    where no app needs them any more; today's candidate is exactly what is configured. Raises :class:`ConfigError` where
    the candidate cannot serve these apps."""
    if candidate == todays(config):
        return Made(config, dict(edge), {}, {app.name: app.policy for app in config.apps.values()})
    sections = (
        {name: {"kind": policy.kind, **policy.options} for name, policy in config.policies.items()}
        if "policy" in edge
        else {}
    )
    known = {
        _key(choice_of(config.policies[name].kind, config.policies[name].options)): name
        for name in reversed(list(sections))
    }
    added: Dict[str, Dict[str, Any]] = {}
    apps: Dict[str, str] = {}
    for app, choice in candidate:
        if _key(choice) not in known:
            name = _free_name(choice.kind, {**sections, **added})
            added[name] = {**({} if name == choice.kind else {"kind": choice.kind}), **dict(choice.options)}
            known[_key(choice)] = name
        apps[app] = known[_key(choice)]
    used = {name: edge["policy"][name] if name in sections else added[name] for name in dict.fromkeys(apps.values())}
    table = {
        **edge,
        "policy": used,
        "app": {name: {**section, "policy": apps[name]} for name, section in edge["app"].items()},
    }
    return Made(parse_config(table, config.directory, config.source), table, added, apps)


def _key(choice: PolicyChoice) -> str:
    return repr(choice)  # options may hold lists


def _free_name(kind: str, taken: Mapping[str, Any]) -> str:
    """A name for the section of a policy: its kind, else its kind and a number."""
    base = re.sub(r"\W", "_", kind.rpartition(":")[2].replace("+", "_plus"))
    name, number = base, 2
    while name in taken:
        name, number = f"{base}_{number}", number + 1
    return name
