"""Checks of a configuration before the first model is loaded: a mistake is reported at once and not after
minutes of loading. ``edgeserve serve`` and ``edgeserve doctor`` ask the same questions.

A :class:`~edgeserve.live.problem.Problem` that ``stops`` would stop the server; the others are said and it goes on.
"""

from __future__ import annotations

from collections import abc
from typing import Callable, Dict, List, Mapping, Sequence, Set, Tuple

from edgeserve.config.profile_record import Profile
from edgeserve.config.schema import Config, ModelConfig
from edgeserve.engines import check_streams, lane_info, make_engine
from edgeserve.engines.base import Engine, fact_of
from edgeserve.errors import ConfigError, EdgeServeError, EngineError, nearest
from edgeserve.live.estimates import app_fit, too_slow
from edgeserve.live.problem import Problem
from edgeserve.live.value_flow import AppPlan, name_clashes
from edgeserve.sched.core.build import build_scheduler, model_lanes, profiled_lanes
from edgeserve.units import NS_PER_MS, counted

FILE_ENGINES = ("onnx", "tensorrt", "torch", "combine", "lm", "sentence", "whisper")
"""Engines whose ``file`` is one file; the meaning of the key in users' own engines is not known."""


def check_before_loading(
    config: Config, profiles: Sequence[Profile] = (), engines: Dict[Tuple[str, str], Engine] | None = None
) -> List[Problem]:
    """Everything but the endpoint, each sentence once. Nothing is loaded. The engines that are made for it are kept in
    ``engines``, by (model, device)."""
    made: Dict[Tuple[str, str], Engine] = {} if engines is None else engines
    found: Dict[str, Problem] = {}
    for problem in (
        *check_machine(config, profiles),
        *check_models(config, made),
        *check_apps(config, profiles),
        *check_value_names(config, made),
    ):
        found.setdefault(problem.text, problem)
    return list(found.values())


def raise_or_tell(problems: Sequence[Problem], tell: Callable[[str], object]) -> None:
    """Raise what would stop the server, all of it at once; ``tell`` the rest."""
    for problem in problems:
        if not problem.stops:
            tell(problem.text)
    stopping = [problem for problem in problems if problem.stops]
    if len(stopping) == 1:
        raise stopping[0].error or ConfigError(stopping[0].text)
    if stopping:
        texts = "\n".join(f"  * {problem.text}" for problem in stopping)
        raise ConfigError(f"{counted(len(stopping), 'mistake')}:\n{texts}")


def check_machine(config: Config, profiles: Sequence[Profile] = ()) -> List[Problem]:
    """Has this machine the cores, threads and memory that the file and the profiles name?"""
    devices, models = config.devices.values(), config.models.values()
    names_memory = any(device.memory_bytes or device.headroom_bytes > 0 for device in devices) or any(
        model.memory_bytes for model in models
    )
    if not (profiles or names_memory or any(lane.cores or lane.threads > 1 for lane in config.lanes.values())):
        return []
    from edgeserve.live.machine_fit import check_cores, check_memory

    return [*check_cores(config), *check_memory(config, profiles)]


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
            from edgeserve.engines.functions import import_function  # an app in Python names none

            import_function(spec, config.directory, f"[model.{model.name}] {key}")


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
        if any(":" in policy.kind for policy in config.policies.values()):
            from edgeserve.live.own_policies import import_policies

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
