"""A configuration on this machine: would the server start with it, and are its models measured. Nothing is loaded."""

from __future__ import annotations

import os
import sys
from typing import Dict, List

from edgeserve.commands.doctor.finding import GOOD, NOTE, WRONG, Finding, good, note, wrong
from edgeserve.config.machine import device_slug
from edgeserve.config.machine_costs import find_machine
from edgeserve.config.profile_match import AT_START, EXPECTED, MEASURED, profile_command, times_from
from edgeserve.config.schema import Config
from edgeserve.errors import ConfigError, EngineError, ProfileError
from edgeserve.front.processes import FrontProcess
from edgeserve.ipc.credentials import AllowedKeys, Credentials
from edgeserve.live.input_rules import InputRule
from edgeserve.live.preflight import check_before_loading
from edgeserve.live.problem import Problem
from edgeserve.live.profiles import faults_of, matched_profiles
from edgeserve.live.request import language_model
from edgeserve.predict.serving.answer_lengths import answer_lengths
from edgeserve.predict.serving.predictors import load_predictors
from edgeserve.python_file import config_at
from edgeserve.units import counted


def check_config_file(path: str, cores: int) -> List[Finding]:
    """A configuration on this machine: would the server start with it, and are its models measured."""
    try:
        config = config_at(path)
    except ConfigError as error:
        return wrong("configuration", str(error), f"correct {path}")
    return check_configuration(config, cores)


def check_configuration(config: Config, cores: int) -> List[Finding]:
    """The same of one that was read."""
    path, size = config.source, f"{counted(len(config.apps), 'app')}, {counted(len(config.models), 'model')}"
    found = good("configuration", f"{path}: {size}")
    threads = sum(lane.threads for lane in config.lanes.values())
    if threads > cores:
        found += note(
            "lanes",
            f"{counted(len(config.lanes), 'lane')} with {counted(threads, 'thread')} "
            f"on {counted(cores, 'core')}: times will vary",
            f"lower [lane.*] threads in {path}, or give busy lanes a core of their own (cores = [...])",
        )
    if not config.apps:
        found += wrong(
            "configuration",
            f"{path} has no [app.NAME]: there is nothing to serve",
            f"write one into {path} (docs/reference/configuration.md)",
        )
    for name in config.fronts:
        found.append(check_front(config, name))
    return [
        *found,
        *check_server(config),
        *check_before(config),
        *check_inputs(config),
        *check_predictors(config),
        *check_profiles(config),
    ]


def check_server(config: Config) -> List[Finding]:
    """What else of ``[server]`` keeps a server from starting: keys of clients, the place of a recording."""
    server, mend = config.server, f"correct [server] in {config.source}"
    try:
        keys = AllowedKeys(config.curve_client_keys_path, lambda: 0) if server.curve_client_keys else None
        Credentials(keys, server.control_keys)
    except ConfigError as error:
        return wrong("server", str(error), mend)
    file = os.path.join(config.directory, server.record)
    if server.record and (os.path.isdir(file) or not os.access(os.path.dirname(file), os.W_OK | os.X_OK)):
        return wrong("server", f"[server] record = {server.record!r}: a recording cannot be written there", mend)
    return []


def check_front(config: Config, name: str) -> Finding:
    """The obstacles to a front's start: missing packages, ports in use, settings that mean nothing."""
    subject = f"front {name}"
    try:
        front = FrontProcess(config, name)
    except ConfigError as error:
        return Finding(
            subject, WRONG, str(error), f"correct [front.{name}] in {config.source}, or install what is missing"
        )
    places = [str(getattr(front.settings, key, "")) for key in ("listen", "grpc")]
    return Finding(subject, GOOD, " and ".join([place for place in places if place]) or "can start")


def check_before(config: Config) -> List[Finding]:
    """The server's own checks before it loads the first model. Threads are counted by the caller."""
    matches, _ = matched_profiles(config)
    usable = [match.usable for match in matches if match.usable.lanes]
    problems = check_before_loading(config, usable)
    found = [
        Finding(problem.subject, WRONG, problem.text, _mend(config, problem))
        for problem in problems
        if problem.subject != "threads"
    ]
    return found


def _mend(config: Config, problem: Problem) -> str:
    """The place to correct it."""
    if problem.subject == "models":
        model = next(
            (name for name in config.models if f"{name!r}" in problem.text or f"[model.{name}]" in problem.text), ""
        )
        if model and "there is no file" in problem.text:
            return _asset_mend(config.source)
        return f"correct [model.{model}] in {config.source}" if model else f"correct {config.source}"
    if "there is no such file" in problem.text:
        return _asset_mend(config.source)
    return {
        "memory": f"correct {config.source}",
        "cores": f"correct [lane.*] cores in {config.source}",
        "deadlines": f"correct [app.{problem.app}] slo in {config.source}, or measure again",
        "policies": f"correct {config.source}, or a module beside it",
        "names": f"name the values in {config.source} as it says (docs/guide/pipelines.md)",
    }[problem.subject]


def check_inputs(config: Config) -> List[Finding]:
    """Are the declared inputs of apps of a type that can be checked?"""
    found = []
    for app in config.apps.values():
        for name, tensor in app.inputs.items():
            try:
                InputRule(app.name, name, tensor)
            except ConfigError as error:
                found += wrong("inputs", str(error), f"correct {config.source}")
    return found


def check_predictors(config: Config) -> List[Finding]:
    """Can the functions and files that predict hints be read, and do they have an effect? Else no server starts."""
    found = []
    for app in config.apps.values():
        try:
            load_predictors(app, config.directory)
            answer_lengths(app, language_model(app, config), config)
        except (ConfigError, EngineError) as error:
            found += wrong(
                "predictors", str(error), f"correct [app.{app.name}.predict] in {config.source}, or the module"
            )
        else:
            if app.predict:
                found += good("predictors", f"{app.name}: {', '.join(app.predict)}")
    return found


def check_profiles(config: Config) -> List[Finding]:
    """Which profiles of this machine match the configuration, and where the times of the other models come from."""
    directory = os.path.join(config.profiles_path, device_slug())
    matches, errors = matched_profiles(config)
    found = [
        Finding("profiles", NOTE, f"{error}. The server starts without this file", profile_command(config))
        for error in errors
    ]
    try:
        find_machine(config.profiles_path)
    except ProfileError as error:
        found += note("profiles", f"{error}. 'check' and 'simulate' end with it", profile_command(config))
    for said, command in faults_of(config, matches):
        found += note("profiles", said, command)
    usable = {match.profile.model: match.usable for match in matches}
    sources: Dict[str, List[str]] = {}
    for model in config.models.values():
        sources.setdefault(times_from(config, model, usable.get(model.name)), []).append(model.name)
    shown = "; ".join(
        f"{source}: {', '.join(sources[source])}" for source in (MEASURED, EXPECTED, AT_START) if source in sources
    )
    if AT_START in sources:
        return [
            *found,
            Finding("profiles", NOTE, f"times of models in {directory}: {shown}", profile_command(config)),
        ]
    return [*found, Finding("profiles", GOOD, f"times of models in {directory}: {shown or 'there is no model'}")]


def _asset_mend(path: str) -> str:
    assets = os.path.join(os.path.dirname(path), "assets.toml")
    return f"{sys.executable} -m edgeserve.commands.assets {assets}" if os.path.exists(assets) else f"correct {path}"
