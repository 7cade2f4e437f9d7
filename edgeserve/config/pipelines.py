"""Pipelines as PARD's JSON: ``[app.NAME] pipeline = "lv.json"`` becomes the app's nodes.

A file holds a list of modules, or ``{"name", "slo_ms", "modules"}``. A module has ``name`` (a registered model),
``id``, ``pres`` and ``subs`` (ids before and after it), and may have ``lane`` (where its model runs), ``max_batch``
(larger sizes of its model are not used), ``route`` (``"one"``: its result names the single successor taken), ``work``
(a predictor, as ``"module:function"``: it becomes the app's predictor of the hint ``NODE.work``), ``inputs`` (as of a
node: argument -> ``"request.x"`` or ``"NODE.x"``) and, on the last module, ``value`` (of a request).

Our graphs may begin and end at several nodes: a request enters at all of them and is answered when all its ends are
done. That is what virtual modules of no cost around them would do, so none are made. Works on plain tables, before
they become a typed configuration; knows no model and no lane but by name.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, NamedTuple, Tuple

from edgeserve.config.readers import names_function, string, table_of
from edgeserve.config.text_files import read_json
from edgeserve.errors import ConfigError, nearest

MODULE_KEYS = ("name", "id", "pres", "subs", "lane", "max_batch", "route", "value", "work", "inputs")
FILE_KEYS = ("name", "slo_ms", "value", "modules")


class Module(NamedTuple):
    """One checked record. ``node`` is its name in the app: the model's, with the id where a model stands twice."""

    id: int
    name: str
    node: str
    pres: Tuple[int, ...]
    subs: Tuple[int, ...]
    lane: str
    max_batch: int  # 0 = as the model
    route: str
    value: float
    work: str  # "" = not predicted
    inputs: Mapping[str, str]  # as a node's


class Pipeline(NamedTuple):
    """A checked file; ``modules`` in its order. ``slo_ms`` 0 = not given."""

    modules: Tuple[Module, ...]
    slo_ms: float
    value: float


def expand_pipelines(table: Mapping[str, Any], directory: str) -> Mapping[str, Any]:
    """The table of a configuration with every app's ``pipeline`` read and written out as nodes; models get the lanes
    and the batch bound that modules name. The table itself when no app has one."""
    apps = table.get("app", {})
    if not isinstance(apps, Mapping) or not any(
        isinstance(app, Mapping) and "pipeline" in app for app in apps.values()
    ):
        return table
    models = {
        name: dict(model) if isinstance(model, Mapping) else model
        for name, model in dict(table.get("model", {})).items()
    }
    expanded = dict(apps)
    lanes: Dict[str, List[str]] = {}
    for name, app in apps.items():
        if isinstance(app, Mapping) and "pipeline" in app:
            expanded[name] = _expanded(name, app, models, lanes, directory)
    for model, named in lanes.items():
        models[model]["lanes"] = named
    return {**table, "app": expanded, "model": models}


def _expanded(
    name: str, app: Mapping[str, Any], models: Dict[str, Any], lanes: Dict[str, List[str]], directory: str
) -> Dict[str, Any]:
    path = app["pipeline"]
    where = f"[app.{name}] pipeline"
    if not isinstance(path, str):
        raise ConfigError(f"{where} = {path!r}: expected the path of a JSON file")
    for key in ("node", "model"):
        if key in app:
            raise ConfigError(
                f"[app.{name}] has both pipeline and {key}; the nodes come from one of them, so take the other away"
            )
    pipeline = load_pipeline(os.path.join(directory, path))
    for module in pipeline.modules:
        if not isinstance(models.get(module.name), dict):
            raise ConfigError(
                f"{path}: module {module.name!r} names no registered model"
                f"{nearest(module.name, models)}; give [model.{module.name}]"
            )
        _bound(models, module, path)
        if module.lane:
            _bind(models[module.name], module, lanes, path)
    given = {key: value for key, value in app.items() if key != "pipeline"}
    if pipeline.slo_ms:
        given.setdefault("slo", f"{pipeline.slo_ms:g}ms")
    given.setdefault("value", pipeline.value)
    _predict(given, pipeline)
    return {**given, "node": nodes_of(pipeline)}


def _predict(app: Dict[str, Any], pipeline: Pipeline) -> None:
    """``work``: the app's predictor of ``NODE.work``, unless the app has one (under either spelling of TOML)."""
    named = app.get("predict", {})
    if not isinstance(named, Mapping):
        return  # refused where apps are read
    added = {}
    for module in pipeline.modules:
        inner = named.get(module.node)
        given = f"{module.node}.work" in named or (isinstance(inner, Mapping) and "work" in inner)
        if module.work and not given:
            added[f"{module.node}.work"] = module.work
    if added:
        app["predict"] = {**named, **added}


def _bound(models: Dict[str, Any], module: Module, path: str) -> None:
    """``max_batch``: the model keeps the sizes up to it."""
    sizes = models[module.name].get("batch", [1])
    if not module.max_batch or not isinstance(sizes, list):
        return  # a value that is no list is refused where models are read
    kept = [size for size in sizes if not isinstance(size, int) or size <= module.max_batch]
    if not kept:
        raise ConfigError(
            f"{path}: module {module.name!r} max_batch = {module.max_batch}: the model's batch sizes are "
            f"{sizes}; add one that is no larger to [model.{module.name}] batch"
        )
    models[module.name]["batch"] = kept


def _bind(model: Mapping[str, Any], module: Module, lanes: Dict[str, List[str]], path: str) -> None:
    """``lane``: the model runs there; where it stands twice with two lanes, on both."""
    allowed = model.get("lanes", [])
    if allowed and module.lane not in allowed:
        raise ConfigError(
            f"{path}: module {module.name!r} lane = {module.lane!r}: [model.{module.name}] lanes = "
            f"{allowed!r} does not hold it{nearest(module.lane, allowed)}; add it there, or leave one of "
            "the two out"
        )
    named = lanes.setdefault(module.name, [])
    if module.lane not in named:
        named.append(module.lane)


def nodes_of(pipeline: Pipeline) -> List[Dict[str, Any]]:
    """The ``[[app.NAME.node]]`` tables of a pipeline."""
    by_id = {module.id: module for module in pipeline.modules}
    return [
        {
            "name": module.node,
            "model": module.name,
            "route": module.route,
            "after": [by_id[pre].node for pre in module.pres],
            **({"inputs": module.inputs} if module.inputs else {}),
        }
        for module in pipeline.modules
    ]


def load_pipeline(path: str) -> Pipeline:
    """Read and check one file. :class:`ConfigError` names the file, the module and the mend."""
    try:
        record = read_json(path)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); give the path of a JSON file, relative to the configuration"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{path}: is not JSON: {error}") from None
    try:
        return parse_pipeline(record)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_pipeline(record: Any) -> Pipeline:
    """A parsed JSON value to a checked pipeline."""
    head: Mapping[str, Any] = record if isinstance(record, dict) else {"modules": record}
    for key in head:
        if key not in FILE_KEYS:
            raise ConfigError(f"the pipeline has no field {key!r}{nearest(key, FILE_KEYS)}")
    rows = head.get("modules")
    if not isinstance(rows, list) or not rows:
        raise ConfigError(
            "modules: expected a list of at least one module, such as "
            '[{"name": "detect", "id": 0, "pres": [], "subs": []}]'
        )
    slo_ms = _number(head.get("slo_ms", 0), "slo_ms", "a time in milliseconds")
    names = [row.get("name") for row in rows if isinstance(row, dict)]
    modules = [_module(row, index, names) for index, row in enumerate(rows)]
    _check_graph(modules)
    ends = [module for module in modules if not module.subs]
    value = _number(head.get("value", max(module.value for module in ends)), "value", "a number")
    return Pipeline(tuple(modules), slo_ms, value)


def _module(row: Any, index: int, names: List[Any]) -> Module:
    if not isinstance(row, dict):
        raise ConfigError(f"module number {index + 1} = {row!r}: expected an object with name, id, pres and subs")
    name = row.get("name")
    where = f"module {name!r}" if isinstance(name, str) else f"module number {index + 1}"
    for key in row:
        if key not in MODULE_KEYS:
            raise ConfigError(f"{where} has no field {key!r}{nearest(key, MODULE_KEYS)}")
    for key in ("name", "id", "pres", "subs"):
        if key not in row:
            raise ConfigError(f"{where} lacks the field {key!r}")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where} name = {name!r}: expected the name of a model")
    if not _is_whole(row["id"]):
        raise ConfigError(f"{where} id = {row['id']!r}: expected a whole number")
    for key in ("pres", "subs"):
        if not isinstance(row[key], list) or not all(_is_whole(item) for item in row[key]):
            raise ConfigError(f"{where} {key} = {row[key]!r}: expected a list of ids")
    max_batch, lane, route = row.get("max_batch", 0), row.get("lane", ""), row.get("route", "all")
    if "max_batch" in row and (not _is_whole(max_batch) or max_batch < 1):
        raise ConfigError(f"{where} max_batch = {max_batch!r}: expected a whole number from 1")
    if not isinstance(lane, str):
        raise ConfigError(f"{where} lane = {lane!r}: expected the name of a lane")
    if route not in ("all", "one"):
        raise ConfigError(f"{where} route = {route!r}: expected 'all' or 'one'")
    work = row.get("work", "")
    if "work" in row and not names_function(work):
        raise ConfigError(
            f"{where} work = {work!r}: expected a predictor as 'module:function', looked for beside the "
            "configuration; it gets a request's inputs and returns its work relative to the usual (1.0)"
        )
    if "value" in row and row["subs"]:
        raise ConfigError(
            f"{where} value = {row['value']!r}: a request is worth one number, when it is answered; give "
            "it to the last module, or to the whole pipeline"
        )
    node = name if names.count(name) == 1 else f"{name}-{row['id']}"
    return Module(
        row["id"],
        name,
        node,
        tuple(row["pres"]),
        tuple(row["subs"]),
        lane,
        max_batch,
        route,
        _number(row.get("value", 1), f"{where} value", "a number"),
        work,
        table_of(string)(row.get("inputs", {}), f"{where} inputs"),
    )


def _check_graph(modules: List[Module]) -> None:
    """Ids are unique, both sides of a link name it, and there is no cycle."""
    by_id: Dict[int, Module] = {}
    for module in modules:
        if module.id in by_id:
            raise ConfigError(
                f"modules {by_id[module.id].name!r} and {module.name!r} both have id {module.id}; give "
                "one of them another"
            )
        by_id[module.id] = module
    for module in modules:
        for key, ids, back in (("pres", module.pres, "subs"), ("subs", module.subs, "pres")):
            for other in ids:
                if other not in by_id:
                    raise ConfigError(
                        f"module {module.name!r} {key} names id {other}, which no module has "
                        f"(ids: {', '.join(map(str, sorted(by_id)))})"
                    )
                theirs = by_id[other].subs if back == "subs" else by_id[other].pres
                if module.id not in theirs:
                    raise ConfigError(
                        f"module {module.name!r} (id {module.id}) has {key} {other}, but module "
                        f"{by_id[other].name!r} (id {other}) does not have {back} {module.id}; add it "
                        "there, or take it away here"
                    )
            if len(set(ids)) != len(ids):
                raise ConfigError(f"module {module.name!r} {key} = {list(ids)} names a module twice")
    left = dict(by_id)
    while left:
        free = [module for module in left.values() if not any(pre in left for pre in module.pres)]
        if not free:
            names = ", ".join(repr(module.name) for module in left.values())
            raise ConfigError(f"there is a cycle through {names}; take one of their links away")
        for module in free:
            del left[module.id]


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any, where: str, expected: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise ConfigError(f"{where} = {value!r}: expected {expected} that is not negative")
    return float(value)
