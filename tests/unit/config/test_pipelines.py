"""PARD's JSON: what becomes of it, and what each mistake is told."""

from __future__ import annotations

import copy
import json

import pytest

from edgeserve.config.loading import load_config, parse_config
from edgeserve.config.pipelines import nodes_of, parse_pipeline
from edgeserve.errors import ConfigError
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sim.scenario import parse_scenario

LV = {
    "name": "lv",
    "slo_ms": 500,
    "modules": [
        {"name": "person", "id": 0, "pres": [], "subs": [1, 2]},
        {"name": "pose", "id": 1, "pres": [0], "subs": [3]},
        {"name": "face", "id": 2, "pres": [0], "subs": [3], "lane": "l1", "max_batch": 4},
        {"name": "expression", "id": 3, "pres": [1, 2], "subs": [4]},
        {"name": "eye", "id": 4, "pres": [3], "subs": [], "value": 3},
    ],
}


def table(tmp_path, record, **app):
    (tmp_path / "lv.json").write_text(json.dumps(record))
    names = ("person", "pose", "face", "expression", "eye")
    return {
        "lane": {"l0": {}, "l1": {}},
        "policy": {"pard": {}},
        "app": {"lv": {"pipeline": "lv.json", **app}},
        "model": {
            name: {
                "engine": "synthetic",
                "batch": [1, 2, 4, 8],
                "expected": {str(size): f"{size + 4}ms" for size in (1, 2, 4, 8)},
            }
            for name in names
        },
    }


def test_the_paper_s_pipeline_becomes_an_app(tmp_path):
    config = parse_config(table(tmp_path, LV), str(tmp_path))
    app = config.apps["lv"]
    assert {node.name: node.after for node in app.nodes} == {
        "person": (),
        "pose": ("person",),
        "face": ("person",),
        "expression": ("pose", "face"),
        "eye": ("expression",),
    }
    assert (app.slo_ns, app.value) == (500 * 10**6, 3.0)
    assert config.models["face"].lanes == ("l1",) and config.models["face"].batch == (1, 2, 4)
    assert config.models["pose"].lanes == () and config.models["pose"].batch == (1, 2, 4, 8)
    assert [node.name for node in build_scheduler(config).state.apps["lv"].exits] == ["eye"]


def test_what_the_configuration_says_goes_before_what_the_pipeline_says(tmp_path):
    app = parse_config(table(tmp_path, LV, slo="300ms", value=1.0, on_late="answer"), str(tmp_path)).apps["lv"]
    assert (app.slo_ns, app.value, app.on_late) == (300 * 10**6, 1.0, "answer")


def test_a_module_names_what_it_gets_as_a_node_does(tmp_path):
    record = copy.deepcopy(LV)
    record["modules"][3]["inputs"] = {"pose": "pose.points", "face": "face.points"}
    app = parse_config(table(tmp_path, record), str(tmp_path)).apps["lv"]
    assert {node.name: node.inputs for node in app.nodes if node.inputs} == {
        "expression": {"pose": "pose.points", "face": "face.points"}
    }
    record["modules"][3]["inputs"] = ["pose"]
    with pytest.raises(ConfigError, match="module 'expression' inputs = .*expected a table"):
        parse_config(table(tmp_path, record), str(tmp_path))


def test_a_bare_list_of_modules_is_enough():
    assert [node["name"] for node in nodes_of(parse_pipeline(LV["modules"]))] == [
        "person",
        "pose",
        "face",
        "expression",
        "eye",
    ]


def test_a_model_may_stand_twice():
    rows = [{"name": "face", "id": 7, "pres": [], "subs": [9]}, {"name": "face", "id": 9, "pres": [7], "subs": []}]
    assert nodes_of(parse_pipeline(rows)) == [
        {"name": "face-7", "model": "face", "route": "all", "after": []},
        {"name": "face-9", "model": "face", "route": "all", "after": ["face-7"]},
    ]


def test_several_entries_and_exits_need_no_virtual_module(tmp_path):
    rows = [
        {"name": "person", "id": 0, "pres": [], "subs": [2]},
        {"name": "pose", "id": 1, "pres": [], "subs": [2]},
        {"name": "face", "id": 2, "pres": [0, 1], "subs": [3, 4]},
        {"name": "expression", "id": 3, "pres": [2], "subs": []},
        {"name": "eye", "id": 4, "pres": [2], "subs": []},
    ]
    app = build_scheduler(parse_config(table(tmp_path, rows), str(tmp_path))).state.apps["lv"]
    assert [node.name for node in app.entries] == ["person", "pose"]
    assert [node.name for node in app.exits] == ["expression", "eye"]


def test_a_fork_that_takes_one_branch(tmp_path):
    record = copy.deepcopy(LV)
    record["modules"][0]["route"] = "one"
    app = build_scheduler(parse_config(table(tmp_path, record), str(tmp_path))).state.apps["lv"]
    assert app.by_name["person"].route_one  # the join below it does not wait for the other (sched/requests/graph.py)


def test_a_file_on_disk_names_itself_in_every_error(tmp_path):
    (tmp_path / "edge.toml").write_text('[app.lv]\npipeline = "none.json"\n')
    with pytest.raises(ConfigError, match=r"edge.toml: .*none.json: cannot be read.*relative to the configuration"):
        load_config(str(tmp_path / "edge.toml"))


def changed(**fields):
    """The pipeline with the fields of its third module, face, changed."""
    record = copy.deepcopy(LV)
    record["modules"][2].update(fields)
    return record


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (changed(lanes="l1"), "module 'face' has no field 'lanes'.*'lane'"),
        ({**LV, "slo": 5}, "the pipeline has no field 'slo'.*'slo_ms'"),
        ({**LV, "modules": []}, "expected a list of at least one module"),
        ({**LV, "modules": [3]}, "module number 1 = 3: expected an object"),
        ({**LV, "modules": [{"id": 1, "pres": [], "subs": []}]}, "module number 1 lacks the field 'name'"),
        ({**LV, "slo_ms": -1}, "slo_ms = -1: expected a time"),
        (changed(id=1), "modules 'pose' and 'face' both have id 1; give one of them another"),
        (changed(id=True), "id = True: expected a whole number"),
        (changed(pres=[0, 9]), "module 'face' pres names id 9, which no module has .ids: 0, 1, 2, 3, 4"),
        (changed(pres=[0, 4]), r"'face' \(id 2\) has pres 4, but module 'eye' \(id 4\) does not have subs 2; add it"),
        (changed(subs=[]), r"module 'expression' \(id 3\) has pres 2, but module 'face' \(id 2\) does not have subs 3"),
        (changed(pres=[0, 0]), "module 'face' pres = .0, 0. names a module twice"),
        (changed(max_batch=0), "max_batch = 0: expected a whole number from 1"),
        (changed(lane=3), "lane = 3: expected the name of a lane"),
        (changed(route="first"), "route = 'first': expected 'all' or 'one'"),
        (changed(value=2), "module 'face' value = 2: .*give it to the last module"),
        (
            changed(work="objects"),
            "module 'face' work = 'objects': expected a predictor as 'module:function'.*beside the",
        ),
        (changed(work=2), "module 'face' work = 2: expected a predictor"),
        (
            [{"name": "a", "id": 0, "pres": [1], "subs": [1]}, {"name": "b", "id": 1, "pres": [0], "subs": [0]}],
            "there is a cycle through 'a', 'b'; take one of their links away",
        ),
    ],
)
def test_a_mistake_names_the_module_and_the_mend(record, message):
    with pytest.raises(ConfigError, match=message):
        parse_pipeline(record)


@pytest.mark.parametrize(
    ("record", "app", "message"),
    [
        (changed(name="faces"), {}, "lv.json: module 'faces' names no registered model.*'face'.*give .model.faces."),
        (changed(max_batch=0.5), {}, "lv.json: module 'face' max_batch"),
        (LV, {"model": "person"}, "has both pipeline and model"),
        (LV, {"pipeline": 3}, "pipeline = 3: expected the path of a JSON file"),
        (LV, {"slow": "1s"}, "has no key 'slow'.*'slo'"),
    ],
)
def test_a_mistake_in_the_configuration_is_told_too(tmp_path, record, app, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(table(tmp_path, record, **app), str(tmp_path))


def test_a_bound_below_every_size_and_a_lane_that_the_model_has_not(tmp_path):
    made = table(tmp_path, LV)
    made["model"]["face"]["batch"] = [8]
    with pytest.raises(ConfigError, match="max_batch = 4: the model's batch sizes are .8.; add one"):
        parse_config(made, str(tmp_path))
    made = table(tmp_path, LV)
    made["model"]["face"]["lanes"] = ["l0"]
    with pytest.raises(ConfigError, match="lane = 'l1': .model.face. lanes = .'l0'. does not hold it"):
        parse_config(made, str(tmp_path))


def test_a_predictor_of_work_becomes_the_app_s(tmp_path):
    record = changed(work="predictors:faces")
    assert parse_config(table(tmp_path, record), str(tmp_path)).apps["lv"].predict == {"face.work": "predictors:faces"}
    assert parse_config(table(tmp_path, LV), str(tmp_path)).apps["lv"].predict == {}
    app = parse_config(table(tmp_path, record, predict={"length": "p:long"}), str(tmp_path)).apps["lv"]
    assert app.predict == {"length": "p:long", "face.work": "predictors:faces"}


@pytest.mark.parametrize("own", [{"face.work": "p:own"}, {"face": {"work": "p:own"}}])
def test_the_app_s_own_predictor_goes_before_the_pipeline_s(tmp_path, own):
    app = parse_config(table(tmp_path, changed(work="p:theirs"), predict=own), str(tmp_path)).apps["lv"]
    assert app.predict == {"face.work": "p:own"}


def test_a_predictor_of_a_module_that_stands_twice_is_for_its_own_node(tmp_path):
    rows = [
        {"name": "face", "id": 7, "pres": [], "subs": [9]},
        {"name": "face", "id": 9, "pres": [7], "subs": [], "work": "p:second"},
    ]
    assert parse_config(table(tmp_path, rows), str(tmp_path)).apps["lv"].predict == {"face-9.work": "p:second"}


def test_the_table_that_was_given_stays_as_it_was(tmp_path):
    made = table(tmp_path, LV)
    before = copy.deepcopy(made)
    parse_config(made, str(tmp_path))
    assert made == before


def test_a_recorded_scenario_needs_the_file_no_more(tmp_path):
    made = {**table(tmp_path, LV), "workload": {"w": {"app": "lv", "rate": 5.0}}}
    scenario = parse_scenario(made, str(tmp_path))
    assert parse_config(scenario.edge, "/nowhere").apps == scenario.config.apps
