"""Checks of a configuration before the first model is loaded: a mistake is reported at once and not after
minutes of loading. ``edgeserve serve`` and ``edgeserve doctor`` ask the same questions.

A :class:`Problem` that ``stops`` would stop the server; the others are said and it goes on.
"""

from __future__ import annotations

import inspect
import os
from collections import abc
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Type

from edgeserve.config.profile_record import Profile
from edgeserve.config.schema import Config, ModelConfig
from edgeserve.engines import check_streams, lane_info, make_engine
from edgeserve.engines.base import Engine, fact_of
from edgeserve.errors import ConfigError, EdgeServeError, EngineError, nearest
from edgeserve.live.estimates import AppFit, app_fit, too_slow
from edgeserve.live.value_flow import AppPlan, name_clashes
from edgeserve.offload.pin import allowed_cores
from edgeserve.sched.core.build import build_scheduler, model_lanes, profiled_lanes
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policy_api.policy import Policy
from edgeserve.units import NS_PER_MS, counted, format_size

FILE_ENGINES = ("onnx", "tensorrt", "torch", "combine", "lm", "sentence", "whisper")
"""Engines whose ``file`` is one file; the meaning of the key in users' own engines is not known."""


class Problem(NamedTuple):
    """A problem of a configuration: its subject, a sentence with the value and the fix, and whether it stops the
    server. ``app``: the app that a deadline is too short for, and its ``fit``. ``error``: the raised exception."""

    subject: str
    text: str
    stops: bool = True
    app: str = ""
    error: Optional[EdgeServeError] = None
    fit: Optional[AppFit] = None


def check_before_loading(
    config: Config, profiles: Sequence[Profile] = (), engines: Dict[Tuple[str, str], Engine] | None = None
) -> List[Problem]:
    """Everything but the endpoint, each sentence once. Nothing is loaded. The engines that are made for it are kept in
    ``engines``, by (model, device)."""
    made: Dict[Tuple[str, str], Engine] = {} if engines is None else engines
    found: Dict[str, Problem] = {}
    for problem in (
        *check_cores(config),
        *check_memory(config, profiles),
        *check_models(config, made),
        *check_apps(config, profiles),
        *check_value_names(config, made),
    ):
        found.setdefault(problem.text, problem)
    return list(found.values())


def raise_or_tell(problems: Sequence[Problem], tell: Any) -> None:
    """Raise what would stop the server, all of it at once; ``tell`` the rest."""
    for problem in problems:
        if not problem.stops:
            tell("%s", problem.text)
    stopping = [problem for problem in problems if problem.stops]
    if len(stopping) == 1:
        raise stopping[0].error or ConfigError(stopping[0].text)
    if stopping:
        texts = "\n".join(f"  * {problem.text}" for problem in stopping)
        raise ConfigError(f"{counted(len(stopping), 'mistake')}:\n{texts}")


def check_cores(config: Config) -> List[Problem]:
    """Are there the cores and threads that the lanes name? A server goes on without, with other times."""
    cores = sorted(allowed_cores())
    found = []
    for lane in config.lanes.values():
        missing = [core for core in lane.cores if core not in cores]
        if missing and cores:
            found.append(
                Problem(
                    "cores",
                    f"[lane.{lane.name}] cores = {list(lane.cores)}: this process may not use "
                    f"{'core' if len(missing) == 1 else 'cores'} {_few(missing)}; it has "
                    f"{counted(len(cores), 'core')}: {_few(cores)}. The lane is not pinned",
                    False,
                )
            )
        if lane.threads > len(cores) > 0 and config.devices[lane.device].kind == "cpu":
            found.append(
                Problem(
                    "threads",
                    f"[lane.{lane.name}] threads = {lane.threads}, on "
                    f"{counted(len(cores), 'core')}: threads wait for each other, and times "
                    f"vary; set threads = {len(cores)} or fewer",
                    False,
                )
            )
    return found


def check_memory(config: Config, profiles: Sequence[Profile] = ()) -> List[Problem]:
    """Has the host the memory that the file and the profiles say? A model that can never be loaded beside its device's
    headroom stops the server: all its requests would expire. A GPU's own memory is not looked at."""
    host_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    host = f"the {format_size(host_bytes)} of this machine"
    measured = {profile.model: sum(profile.footprint) for profile in profiles}
    found = []
    for device in config.devices.values():
        if device.kind == "cuda" and not _shares_memory():
            continue
        headroom = max(0, device.headroom_bytes)
        if device.memory_bytes > host_bytes:
            text = f"[device.{device.name}] memory = {format_size(device.memory_bytes)} is more than {host}; lower it"
            found.append(Problem("memory", text, False))
        for model in config.models.values():
            needs = model.memory_bytes or measured.get(model.name, 0)
            lanes = model_lanes(config, model)
            if needs + headroom > host_bytes and device.name in {config.lanes[lane].device for lane in lanes}:
                size = f" with {format_size(needs)}" if needs else ""
                beside = f" beside [device.{device.name}] headroom = {format_size(headroom)}" if headroom else ""
                mend = f"correct {'headroom, or ' if headroom else ''}[model.{model.name}] memory"
                text = f"model {model.name!r}{size} does not fit into {host}{beside}; {mend}"
                found.append(Problem("memory", text, bool(headroom)))
    return found


def _shares_memory() -> bool:
    from edgeserve.device.boards import detect_board  # for configurations with a GPU

    return detect_board().is_jetson


def check_models(config: Config, engines: Dict[Tuple[str, str], Engine]) -> List[Problem]:
    """Can the engine of each model be made, with its options; are its file and functions there?"""
    found = []
    for model in config.models.values():
        try:
            _check_model(config, model, engines)
        except (ConfigError, EngineError) as error:
            found.append(Problem("models", str(error), error=error))
    return found


def _check_model(config: Config, model: ModelConfig, engines: Dict[Tuple[str, str], Engine]) -> None:
    lanes = model_lanes(config, model)
    for device in config.devices:
        here = [lane_info(config, lane, serves=True) for lane in lanes if config.lanes[lane].device == device]
        if here and (model.name, device) not in engines:
            engine = make_engine(model, here, config.directory)
            check_streams(config, model, engine)
            engines[model.name, device] = engine
    if model.engine in FILE_ENGINES and (model.file or model.engine == "onnx"):
        from edgeserve.config.model_files import model_path

        model_path(model, config.directory)
    for (name, _), engine in engines.items():
        if name == model.name:
            fact_of(engine, name, "check", (object,))
    for key, spec in (("function", model.function), ("options.example", model.options.get("example", ""))):
        if isinstance(spec, str) and spec and not (key == "function" and model.given is not None):
            _imported(spec, config.directory, f"[model.{model.name}] {key}")


def check_apps(config: Config, profiles: Sequence[Profile] = ()) -> List[Problem]:
    """Can a scheduler be made: policies with their options, and the graphs of the apps? And which apps could not be in
    time even alone, by profiles and ``expected``: apps with a model of unknown times are left out of that."""
    profiled = profiled_lanes(profiles)
    known = {
        (model.name, lane): {
            *model.expected,
            *(profiled[model.name, lane].timings if (model.name, lane) in profiled else ()),
        }
        for model in config.models.values()
        for lane in model_lanes(config, model)
    }
    assumed = {
        (name, lane): {size: [NS_PER_MS] for size in config.models[name].batch if size not in sizes}
        for (name, lane), sizes in known.items()
    }
    try:
        import_policies(config)
        state = build_scheduler(config, profiles, measured=assumed).state
    except EdgeServeError as error:
        return [Problem("policies", str(error), error=error)]
    unknown = {name for (name, _), sizes in assumed.items() if sizes}
    found = []
    for app in state.apps.values():
        if any(node.model in unknown for node in config.apps[app.name].nodes):
            continue
        fit = app_fit(state, app, by_policy=True)
        if not fit.fits:
            found.append(Problem("deadlines", too_slow(fit), False, app.name, fit=fit))
    return found


def check_value_names(config: Config, engines: Mapping[Tuple[str, str], Engine]) -> List[Problem]:
    """Do the names of ``inputs`` and ``outputs`` exist, and does every value keep its own, by what functions and model
    files tell before they are loaded?"""
    returned = {
        model: fact_of(engine, model, "output_names", (abc.Collection,)) for (model, _), engine in engines.items()
    }
    found = []
    for app in config.apps.values():
        try:
            plan = AppPlan(app)
        except ConfigError as error:
            found.append(Problem("names", str(error), error=error))
            continue
        found += [Problem("names", text) for text in name_clashes(plan, returned)]
        for node in plan.nodes.values():
            names = returned.get(node.model) if config.models[node.model].engine == "onnx" else None  # all of them
            found += [
                Problem(
                    "names",
                    f"[app.{app.name}] names output {name!r} of node {node.name!r}, and model {node.model!r} returns "
                    f"none of that name{nearest(name, names)}",
                )
                for name in node.needed
                if names and name not in names
            ]
    return found


def models_of_sequences(config: Config) -> Set[str]:
    """The models whose items are sequences, as their engines say before they are loaded."""
    engines: Dict[Tuple[str, str], Engine] = {}
    check_models(config, engines)  # what cannot be made, others say
    return {model for (model, _), engine in engines.items() if engine.makes_sequences}


def _few(cores: Sequence[int]) -> str:
    return ", ".join(map(str, cores[:16])) + (" ..." if len(cores) > 16 else "")


def _imported(spec: str, directory: str, where: str) -> Any:
    from edgeserve.engines.functions import import_function  # an app in Python names none

    return import_function(spec, directory, where)


def import_policies(config: Config) -> None:
    """Import what a configuration's ``kind = "module:Class"`` name, so that a scheduler can be built of it.

    Raises :class:`EngineError` when the module or the class cannot be found, :class:`ConfigError` when it is no policy.
    """
    for policy in config.policies.values():
        if ":" not in policy.kind:
            continue
        where = f"[policy.{policy.name}] kind"
        found = _imported(policy.kind, config.directory, where)
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
