"""Policies that a configuration names by ``"module:Class"``: imported and checked before a scheduler is built."""

from __future__ import annotations

import inspect
from typing import Type

from edgeserve.config.schema import Config
from edgeserve.engines.functions import import_function
from edgeserve.errors import ConfigError, EngineError
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policy_api.policy import Policy


def import_policies(config: Config) -> None:
    """Import what a configuration's ``kind = "module:Class"`` name, so that a scheduler can be built of it.

    Raises :class:`ConfigError` when the module or the class cannot be found, or is no policy.
    """
    for policy in config.policies.values():
        if ":" not in policy.kind:
            continue
        where = f"[policy.{policy.name}] kind"
        try:
            found = import_function(policy.kind, config.directory, where)
        except EngineError as error:  # no engine: a policy is wrong in the configuration alone
            raise ConfigError(str(error)) from error
        if not (isinstance(found, type) and issubclass(found, Policy)):
            raise ConfigError(
                f"{where} = {policy.kind!r} is a {type(found).__name__}; expected a subclass of "
                "edgeserve.policy.Policy (docs/guide/write-a-policy.md)"
            )
        _check_hooks(found, f"{where} = {policy.kind!r}")
        POLICIES[policy.kind] = found  # again for every configuration: two may each have a module of this name


def _check_hooks(kind: Type[Policy], where: str) -> None:
    """Raise :class:`ConfigError` for a policy that lacks a hook, or whose hook takes other arguments than the scheduler
    gives: its first call would end the loop."""
    for name in ("bid", "queued"):
        if getattr(kind, name) is getattr(Policy, name):
            raise ConfigError(f"{where} has no {name}(); every policy needs one (docs/reference/policy-interface.md)")
    for name, hook in vars(Policy).items():
        if name.startswith("_") or not inspect.isfunction(hook):
            continue
        expected = list(inspect.signature(hook).parameters)
        try:
            inspect.signature(getattr(kind, name)).bind(*expected)
        except TypeError as error:
            raise ConfigError(
                f"{where}: {name}() cannot be called with ({', '.join(expected[1:])}): {error} "
                "(docs/reference/policy-interface.md)"
            ) from None
