"""True if a profile still describes a model: what it was measured with, beside the configuration as it is now.

It compares and says; what follows is decided by its callers. A *mismatch* means that the times are those of something
else (another file, engine, option, shape or lane), *lacking* that a lane or a batch size was not measured, a *doubt*
that the times may be off (drift, load) although everything is the same. ``docs/guide/profiling.md`` has the table.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from edgeserve.config.files import file_sha256
from edgeserve.config.model_files import parts_of
from edgeserve.config.profile_record import LaneProfile, Profile
from edgeserve.config.profile_record import profile_command as profile_command
from edgeserve.config.schema import Config, ModelConfig

DRIFT_MAX = 0.1
"""A doubt from here on: the device got so much slower or faster while it was measured. Live batches correct less."""

LOAD_CORES_MAX = 0.25
"""A doubt from here on: other programs and the lane together wanted so many cores more than there were."""

CLOCK_MAX = 0.05
"""A doubt from here on: the highest clock differs by such a share, as in another power mode of a board."""

UNTIMED_OPTIONS = ("process_timeout", "process_restarts_max")
"""Options of every engine that change no time."""

MEASURED, EXPECTED, AT_START = "measured", "expected", "measured at start"
"""The sources of a model's times before its first batch: its profile, ``[model.NAME.expected]``, start-up."""


@dataclass(frozen=True)
class ProfileMatch:
    """One profile beside the configuration. ``usable`` has the lanes whose times still hold, and no lane where none
    does. Each text is a sentence without its full stop, with both values."""

    profile: Profile
    usable: Profile
    mismatches: Tuple[str, ...] = ()
    lacking: Tuple[str, ...] = ()
    doubts: Tuple[str, ...] = ()


def identity(model: ModelConfig, directory: str, versions: Mapping[str, str]) -> Dict[str, Any]:
    """The facts that a model's times depend on, beside its lane, as a profile stores it: engine, content of its files,
    settings, ``versions`` (library -> version). A file that cannot be read is left out."""
    sources = {
        f"file {part.name}" if place else "file": (part.name if place else model.file, part.path)
        for place, part in enumerate(parts_of(model, directory))
    }
    for key, spec in (
        ("engine", model.engine),
        ("function", model.function),
        ("options.example", str(model.options.get("example", ""))),
    ):
        if ":" in spec:
            path = os.path.join(directory, *spec.partition(":")[0].split(".")) + ".py"
            sources[key] = os.path.basename(path), path
    files = {
        key: {"name": name, "sha256": file_sha256(path)}
        for key, (name, path) in sources.items()
        if os.path.isfile(path) and os.access(path, os.R_OK)
    }
    settings: Dict[str, Any] = {
        "function": model.function,
        "shapes": model.shapes,
        "pad": model.pad,
        "state": model.state,
        "options": {key: value for key, value in model.options.items() if key not in UNTIMED_OPTIONS},
    }
    if model.engine == "synthetic":
        settings["expected"] = model.expected  # the time that it really takes
    table = {"engine": model.engine, "files": files, "settings": settings, "versions": dict(versions)}
    return dict(json.loads(json.dumps(table, default=str)))  # as it is read back


def lane_settings(config: Config, lane: str) -> Dict[str, Any]:
    """The settings of a lane that times depend on, as a profile stores them."""
    settings = config.lanes[lane]
    return {
        **({"sms": settings.sms} if settings.sms else {}),
        "device_kind": config.devices[settings.device].kind,
        "threads": settings.threads,
        "cores": list(settings.cores),
    }


def differences(measured: Mapping[str, Any], now: Mapping[str, Any]) -> List[str]:
    """The mismatches between two :func:`identity` tables. What one of them does not know is not compared."""
    if measured.get("engine") != now["engine"]:
        return [_changed("engine", measured.get("engine"), now["engine"])]  # its options differ with it
    found = []
    for key, file in now["files"].items():
        then = _table(_table(measured.get("files")).get(key)).get("sha256", file["sha256"])
        if then != file["sha256"]:
            found.append(
                f"{file['name']} has changed (sha256 {file['sha256'][:12]} now, {str(then)[:12]} when measured)"
            )
    found = list(dict.fromkeys(found))  # a function and its example are often in one file
    found += _changes(_flat(_table(measured.get("settings"))), _flat(now["settings"]))
    versions = _table(measured.get("versions"))
    return found + [
        _changed(name, versions[name], version)
        for name, version in now["versions"].items()
        if name in versions and _minor(versions[name]) != _minor(version)
    ]


def match_profile(
    profile: Profile,
    config: Config,
    versions: Mapping[str, str] | None = None,
    clocks_mhz: Mapping[str, float] | None = None,
    power_mode: str = "",
    cards: Mapping[str, Mapping[str, Any]] | None = None,
) -> ProfileMatch:
    """Compare a profile of a model of ``config`` with that configuration. ``versions``, ``clocks_mhz`` (``"max"`` of
    the processor, ``"gpu"``), ``power_mode`` and ``cards`` (the GPU of each lane) are this machine's; without them they
    do not count, since the profile may be another machine's."""
    model, known, now_mhz = config.models[profile.model], profile.circumstances, clocks_mhz or {}
    doubts, mismatches = [], []
    if _table(known.get("same")):
        mismatches = differences(_table(known["same"]), identity(model, config.directory, versions or {}))
    elif known.get("published"):
        doubts.append(f"its times were published, by {known['published']}")
    else:
        doubts.append("it does not say with which engine, file and options it was measured")
    if mismatches:
        return ProfileMatch(profile, replace(profile, lanes={}), tuple(mismatches))
    lanes: Dict[str, LaneProfile] = {}
    lacking: List[str] = []
    for lane in model.lanes or tuple(config.lanes):
        if lane not in profile.lanes:
            lacking.append(f"no time was measured on lane {lane} (measured: {', '.join(profile.lanes) or 'none'})")
            continue
        about, here = _table(_table(known.get("lanes")).get(lane)), profile.lanes[lane]
        odd = _changes(_table(about.get("settings")), lane_settings(config, lane)) if about.get("settings") else []
        other, doubtful = _other_card(_table(about.get("card")), (cards or {}).get(lane, {}))
        doubts += [f"lane {lane}: {text}" for text in doubtful]
        if config.devices[config.lanes[lane].device].kind == "cuda" and not here.clock_mhz and now_mhz.get("gpu"):
            doubts.append(
                f"lane {lane}: it does not say at which clock of the GPU it was measured: the highest that was "
                "seen since the start counts"
            )
        if odd or other:
            mismatches += [f"lane {lane}: {text}" for text in (*odd, *other)]
            continue
        strangers, texts = _other_examples(config, here, _table(about.get("examples")))
        mismatches += texts
        lanes[lane] = replace(here, alone={app: times for app, times in here.alone.items() if app not in strangers})
        missing = [str(size) for size in model.batch if size not in here.timings]
        if missing:
            lacking.append(
                f"no time was measured for batch {', '.join(missing)} on {lane} (measured: "
                f"{', '.join(map(str, sorted(here.timings))) or 'none'})"
            )
        doubts += _doubts_of_lane(lane, here, about, config.lanes[lane].threads)
    doubts += _other_inputs(config, model, _table(known.get("inputs")))
    clock, now = _number(_table(known.get("clocks_mhz")).get("max")), now_mhz.get("max", 0)
    if clock and now and abs(now / clock - 1) > CLOCK_MAX:
        doubts.append(
            f"the processor's highest clock is {now:.0f} MHz now, it was {clock:.0f} MHz when measured: "
            "another power mode, or a cap"
        )
    mode = known.get("power_mode")
    if mode and power_mode and mode != power_mode:
        doubts.append(f"the device is in power mode {power_mode} now, it was in {mode} when measured")
    return ProfileMatch(profile, replace(profile, lanes=lanes), tuple(mismatches), tuple(lacking), tuple(doubts))


def times_from(config: Config, model: ModelConfig, usable: Profile | None) -> str:
    """The source of a model's times when the server starts: one of the three constants above, the weakest of all its
    lanes and batch sizes."""
    lanes = usable.lanes if usable is not None else {}
    missing = {
        size
        for lane in model.lanes or tuple(config.lanes)
        for size in model.batch
        if lane not in lanes or size not in lanes[lane].timings
    }
    if not missing:
        return MEASURED
    return EXPECTED if missing <= set(model.expected) else AT_START


# --- the parts of it --------------------------------------------------------------------------------------------------


def _changes(measured: Mapping[str, Any], now: Mapping[str, Any]) -> List[str]:
    return [
        _changed(key, measured.get(key), now.get(key))
        for key in sorted({*measured, *now})
        if measured.get(key) != now.get(key)
    ]


def _changed(key: str, measured: Any, now: Any) -> str:
    return f"{key} is {_shown(now)} now, it was {_shown(measured)} when measured"


def _shown(value: Any) -> str:
    if value in (None, "", {}):
        return "not set"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _flat(settings: Mapping[str, Any]) -> Dict[str, Any]:
    """``{"options": {"threads": 2}}`` as ``{"options.threads": 2}``; an empty value counts as not set."""
    flat: Dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat.update({f"{key}.{name}": item for name, item in value.items()})
        elif value:
            flat[key] = value
    return flat


def _minor(version: Any) -> Tuple[str, ...]:
    """A patch release changes no time on purpose."""
    return tuple(str(version).split(".")[:2])


def _table(value: Any) -> Dict[str, Any]:
    """``value`` where it is a table, else an empty one: people may have edited the file."""
    return dict(value) if isinstance(value, Mapping) else {}


def _other_examples(config: Config, lane: LaneProfile, measured: Mapping[str, Any]) -> Tuple[List[str], List[str]]:
    """The apps whose requests alone were measured with other examples, and a warning for each."""
    apps = [
        name
        for name in lane.alone
        if name in config.apps
        and config.apps[name].examples
        and measured.get(name, config.apps[name].examples) != config.apps[name].examples
    ]
    return apps, [_changed(f"[app.{name}] examples", measured[name], config.apps[name].examples) for name in apps]


def _other_card(measured: Mapping[str, Any], now: Mapping[str, Any]) -> Tuple[List[str], List[str]]:
    """The mismatches and the doubts between the GPU that was measured and the present one, where that is known."""
    if not now:
        return [], []
    if not measured:
        return [], [f"it does not say on which GPU it was measured, and this is {now['name']}"]
    texts = {
        key: _changed(f"the GPU's {key}", measured[key], now[key])
        for key in now
        if key in measured and measured[key] != now[key]
    }
    driver = [texts.pop("driver")] if "driver" in texts else []
    return list(texts.values()), driver


def _doubts_of_lane(lane: str, known: LaneProfile, about: Mapping[str, Any], threads: int) -> List[str]:
    """The drift and the load that were noted when the lane was measured."""
    found = []
    drifts = {f"batch {size} was": timing.drift for size, timing in known.timings.items()}
    drifts["all batch sizes were"] = _number(about.get("drift"))
    worst = max(drifts, key=lambda what: abs(drifts[what]))
    if abs(drifts[worst]) > DRIFT_MAX:
        found.append(
            f"the device got {abs(drifts[worst]):.0%} {'slower' if drifts[worst] > 0 else 'faster'} while "
            f"{worst} measured on {lane} (up to {DRIFT_MAX:.0%} is usual)"
        )
    load = _table(about.get("load"))
    others, cores = _number(load.get("others")), _number(load.get("cores"))
    if cores and others > LOAD_CORES_MAX and others + threads > cores + LOAD_CORES_MAX:
        found.append(
            f"other programs kept {others:.1f} of {cores:.0f} {'core' if cores == 1 else 'cores'} busy while "
            f"{lane} was measured with {threads} {'thread' if threads == 1 else 'threads'}"
        )
    return found


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0


def _other_inputs(config: Config, model: ModelConfig, inputs: Mapping[str, Any]) -> List[str]:
    """The inputs that enter the model, from requests of an app, with another type or shape than the measured example.
    Axes of any length and values that are no arrays are not compared."""
    found = []
    for app in config.apps.values():
        for node in app.nodes:
            if (node.model or node.name) != model.name or node.after:
                continue
            for name, (dtype, shape) in _arrays(inputs).items():
                source = node.inputs.get(name, "" if node.inputs else f"request.{name}")
                declared = app.inputs.get(source.partition(".")[2]) if source.startswith("request.") else None
                if declared is None or declared.dtype in ("text", "bytes", "any") or -1 in declared.shape:
                    continue
                if declared.dtype != dtype or list(declared.shape) != shape:
                    found.append(
                        f"input {name} is {declared.dtype}{list(declared.shape)} in app {app.name}, it was "
                        f"{dtype}{shape} when measured ([model.{model.name}] shapes or options.example "
                        "say what is measured)"
                    )
    return found


def _arrays(inputs: Mapping[str, Any]) -> Dict[str, Tuple[str, List[int]]]:
    """The recorded inputs that were arrays: name -> (dtype, shape)."""
    return {
        name: (str(value[0]), list(value[1]))
        for name, value in inputs.items()
        if isinstance(value, Sequence) and len(value) == 2 and isinstance(value[1], list)
    }
