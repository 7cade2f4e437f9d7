"""The answers to questions about what serves: pure functions of the loop's tables, asked on the loop's thread."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping

from edgeserve import __version__, compiled
from edgeserve.config.schema import WRITING_ENGINES, AppConfig
from edgeserve.live.errors import EarlyRefusals
from edgeserve.live.estimates import app_fit, times_table
from edgeserve.live.served import Served
from edgeserve.live.stats import energy_of
from edgeserve.live.value_flow import output_types
from edgeserve.sched.core.build import model_lanes
from edgeserve.units import ns_to_s

NOT_PREDICTED: Dict[str, Any] = {"count": 0, "mean_ms": 0.0, "went_without": 0}
"""The table of an app without predictors."""


def story(served: Served, early: EarlyRefusals, request_id: int) -> List[str]:
    """The story of a request, line by line; no line when it is not remembered."""
    from edgeserve.live.why import story_of

    lines = story_of(served.scheduler, request_id) or early.story(request_id)
    if lines:
        return lines
    for request in served.world.predictions.requests():
        if request.id == request_id:
            return [f"request {request_id} of app {request.app}: waits for its prediction"]
    for request in served.world.lifecycle.held or ():
        if request.id == request_id:
            return [f"request {request_id} of app {request.app}: waits for another configuration to take over"]
    arriving = served.world.values.requests.get(request_id)
    return [] if arriving is None else [f"request {request_id} of app {arriving.app}: is arriving"]


def health(served: Served, now_ns: int) -> Dict[str, Any]:
    """``ready``: it accepts requests, and every app could run now; else ``stopping`` or ``blocked`` says why not
    (app -> why). And which lanes are up, and how many bytes of requests one connection may have in flight."""
    blocked = blocked_apps(served, now_ns)
    return {
        "ready": not served.world.lifecycle.stopping and not blocked,
        "stopping": served.world.lifecycle.stopping,
        "blocked": blocked,
        "version": __version__,
        "core": compiled.running().kind,
        "pid": os.getpid(),
        "open": served.world.lifecycle.open_count,
        "client_bytes_max": served.config.server.client_bytes_max,
        "lanes": {name: lane["state"] for name, lane in _lane_tables(served, now_ns).items()},
    }


def blocked_apps(served: Served, now_ns: int) -> Dict[str, str]:
    """Apps that could not run now -> why: no lane is up for a model, its process is down, it cannot be loaded."""
    config = served.config
    why = {name: _blocked_model(served, name, now_ns) for name in config.models}
    found: Dict[str, str] = {}
    for app in config.apps.values():
        reasons = [why[node.model or node.name] for node in app.nodes]
        if any(reasons) and not any(not why[variant] for variant in app.variants):
            found[app.name] = next(reason for reason in reasons if reason)
    return found


def _blocked_model(served: Served, model: str, now_ns: int) -> str:
    """The reason why no lane could run a model now, or ``""``: of the lanes' reasons the first."""
    config, reasons = served.config, []
    for lane in model_lanes(config, config.models[model]):
        device = config.lanes[lane].device
        engine = served.world.engine(model, device)
        placement = served.scheduler.devices[device].placements[model]
        if served.world.works.counts[lane].is_stuck(now_ns, config.lanes[lane].hang_ns):
            reason = f"lane {lane} {'hangs' if served.world.works.counts[lane].up else 'is down'}"
        elif placement.failures and not served.scheduler.devices[device].is_resident(model):
            reason = f"model {model} could not be loaded on device {device}"
        else:
            said = engine.trouble(lane) if engine is not None else ""
            reason = f"model {model} on lane {lane}: {said}" if said else ""
        if not reason:
            return ""
        reasons.append(reason)
    return reasons[0] if reasons else f"model {model} has no lane"


def stats(served: Served, now_ns: int, device: Mapping[str, Any]) -> Dict[str, Any]:
    """Counts per app, model, lane and device, and what policies have learnt, as plain numbers and strings. ``device``:
    what its monitor reported."""
    from edgeserve.live.figures import figures_of

    world, energy = served.world, served.scheduler.energy(now_ns)
    return {
        "uptime_s": ns_to_s(now_ns - world.started_ns),
        "open": world.lifecycle.open_count,
        "pending_max": served.config.server.pending_max,
        "apps": {
            name: {
                **counts.table(),
                **_predictions(served, name),
                **_expected(served, name),
                **_cached(served, name),
                **_history(served, name),
                **energy_of(name, energy, counts),
            }
            for name, counts in world.app_counts.items()
        },
        "models": {
            name: {
                "ignored_hints": world.values.result_hints.ignored_hints(name),
                "latency": _latency(served, name, now_ns),
                **_figures(served, name),
            }
            for name in served.config.models
        },
        "policies": figures_of(served.scheduler.policies),
        "trials": served.scheduler.trials(),
        "lanes": _lane_tables(served, now_ns),
        "devices": _devices(served, energy),
        "device": device,
        "streams_with_state": world.values.state_count(),
    }


def _figures(served: Served, model: str) -> Dict[str, Any]:
    """The figures of a model's engines on its batches, by device."""
    engines = {device: served.world.engine(model, device) for device in served.config.devices}
    told = {device: engine.figures() for device, engine in engines.items() if engine is not None}
    return {"engine": figures} if (figures := {device: each for device, each in told.items() if each}) else {}


def _predictions(served: Served, app: str) -> Dict[str, Any]:
    predictors = served.validators[app].predictors
    table = predictors.table() if predictors is not None else NOT_PREDICTED
    return {"failed_predictions": predictors.failed() if predictors is not None else {}, "predictions": table}


def _history(served: Served, app: str) -> Mapping[str, Any]:
    return served.world.history.table(app) if served.world.history is not None else {}


def _expected(served: Served, app: str) -> Dict[str, Any]:
    state = served.scheduler.state
    known = state.apps[app]
    answers = known.simple and known.nodes[0].model in state.sequences.models  # a step alone would say nothing
    fit = app_fit(state, known, by_policy=answers)
    return {"policy": known.policy, **fit.table()}


def _cached(served: Served, app: str) -> Dict[str, Any]:
    """The part of the prompts of an app's language models that was in memory before they were read."""
    sequences = served.scheduler.state.sequences
    nodes = [node for node in served.scheduler.state.apps[app].nodes if node.model in sequences.models]
    shares = {node.name: sequences.cached_milli(app, node.name) / 1000 for node in nodes}
    return {"prompt_cached": shares} if shares else {}


def expected(served: Served, now_ns: int) -> Dict[str, Dict[str, Any]]:
    """Per app, what a request could expect that arrived now."""
    state = served.scheduler.state
    since_ns = max(0, now_ns - state.board.now_ns)  # the estimate is of the last step
    return {app.name: app_fit(state, app, by_policy=True).prospect(since_ns) for app in state.apps.values()}


def _lane_tables(served: Served, now_ns: int) -> Dict[str, Dict[str, Any]]:
    lanes = served.config.lanes
    return {
        name: counts.table(now_ns, served.world.started_ns, lanes[name].hang_ns if name in lanes else 0)
        for name, counts in served.world.works.counts.items()
    }


def _latency(served: Served, model: str, now_ns: int) -> Dict[str, Any]:
    """The estimates of a model's times, per lane, and their basis."""
    state = served.scheduler.state
    return {lane.name: times_table(state.latency[model, lane.name], now_ns) for lane in state.lanes_of[model]}


def _devices(served: Served, energy: Mapping[str, Any]) -> Dict[str, Any]:
    return {
        name: {
            "models": [model for model in device.placements if device.is_resident(model)],
            "used_bytes": device.used_bytes,
            "state_bytes": device.state_bytes,
            "budget_bytes": served.config.devices[name].memory_bytes,
            "shared_bytes": served.config.devices[name].memory_bytes - device.budget_bytes,
            "free_bytes": device.free_bytes,
            "thermal": device.thermal,
            "power": device.power,
            **energy.get(name, {}),
        }
        for name, device in served.scheduler.devices.items()
    }


def models(served: Served) -> Dict[str, Any]:
    """The models: lanes, batch sizes, and whether each is in memory."""
    return {
        model.name: {
            "engine": model.engine,
            "batch": list(served.world.sizes_of(model.name)),
            "pinned": model.pinned,
            "lanes": model_lanes(served.config, model),
            "resident": [
                device.name
                for device in served.scheduler.devices.values()
                if model.name in device.placements and device.is_resident(model.name)
            ],
        }
        for model in served.config.models.values()
    }


def apps(served: Served) -> Dict[str, Any]:
    """The apps: inputs, outputs, deadline."""
    return {
        app.name: {
            "nodes": [node.name for node in app.nodes],
            **_expected(served, app.name),
            "class": app.priority_class,
            "stream": app.stream,
            "needs_stream": bool(served.validators[app.name].stateful),
            "on_late": app.on_late,
            "outputs": [source.argument for source in served.validators[app.name].plan.outputs],
            "output_types": _output_types(served, app.name),
            **_writing(served, app),
            "inputs": {
                name: {
                    "dtype": tensor.dtype,
                    "shape": list(tensor.shape),
                    "optional": tensor.optional,
                    **_usual(served, app, name),
                }
                for name, tensor in app.inputs.items()
            },
        }
        for app in served.config.apps.values()
    }


def _output_types(served: Served, app: str) -> Dict[str, Any]:
    types = output_types(served.validators[app].plan, served.started.outputs)
    return {name: {"dtype": kind.dtype, "shape": list(kind.shape)} for name, kind in types.items()}


def _writing(served: Served, app: AppConfig) -> Dict[str, Any]:
    """Whether an answer may come in pieces, and how many tokens the longest conversation has, if that is known."""
    exits = served.validators[app.name].plan.exits
    last = [served.config.models[node.model] for node in app.nodes if node.name in exits]
    sequences = served.started.sequences
    contexts = [sequences[model.name].context_tokens for model in last if model.name in sequences]
    in_pieces = bool(contexts) or any(model.engine in WRITING_ENGINES for model in last)
    return {"pieces": in_pieces, **({"context_tokens": min(contexts)} if contexts else {})}


def _usual(served: Served, app: AppConfig, name: str) -> Dict[str, List[int]]:
    """The lengths that an input of an app of one node is warmed up with, where the configuration says them."""
    shape = served.config.models[app.nodes[0].model].shapes.get(name) if len(app.nodes) == 1 else None
    return {} if shape is None or shape == app.inputs[name].shape else {"usual": list(shape)}
