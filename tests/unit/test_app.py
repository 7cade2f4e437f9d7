"""Configurations given in Python: the same objects as a file's, errors that name the arguments, and the file's text."""

from __future__ import annotations

import functools
import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import edgeserve
from edgeserve import App, Model, Node
from edgeserve.app import configuration
from edgeserve.config.loading import load_config, parse_config
from edgeserve.config.python_names import importable_name, in_python
from edgeserve.config.schema import Config
from edgeserve.config.toml_files import parse_toml
from edgeserve.config.toml_text import toml_of
from edgeserve.engine import Batch, Engine, Footprint, Result
from edgeserve.errors import ConfigError
from edgeserve.policy import Policy


def double(inputs: Dict[str, Any]) -> Dict[str, Any]:
    return {"y": np.asarray(inputs["x"]) * 2}


def example() -> Dict[str, Any]:
    return {"x": np.zeros(3)}


class Doubler(Engine):
    def __init__(self, *_: Any) -> None:
        self.loads = 0

    def load(self) -> Footprint:
        self.loads += 1
        return Footprint(1000)

    def run(self, batch: Batch) -> List[Result]:
        return [Result(double(item)) for item in batch.items]


def read_back(text: str, config: Config) -> Config:
    return replace(parse_config(parse_toml(text), config.directory), source=config.source)


# --- the same objects -------------------------------------------------------------------------------------------------


SAME = f"""
[server]
drain = "2s"
[device.gpu0]
kind = "cuda"
memory = "2GiB"
[device.cpu]
[lane.gpu]
device = "gpu0"
[lane.cpu0]
device = "cpu"
threads = 2
[policy.first]
kind = "fifo"
[model.double]
engine = "python"
function = "{__name__}:double"
options.example = "{__name__}:example"
[model.detect]
engine = "onnx"
file = "detect.onnx"
batch = [1, 2, 4]
lanes = ["gpu"]
sha256 = "{"0" * 64}"
[model.steps]
engine = "python"
function = "words:steps"
[model.chat]
engine = "lm"
file = "chat.gguf"
slots = 4
[model.own]
engine = "{__name__}:Doubler"
[model.slow]
engine = "synthetic"
expected = {{ 1 = "5ms" }}
[app.one]
model = "double"
[app.cam]
model = "detect"
slo = "50ms"
class = "critical"
inputs.x = {{ dtype = "uint8", shape = [4, -1] }}
[[app.graph.node]]
name = "detect"
[[app.graph.node]]
name = "cut"
model = "double"
fan_out = true
[[app.graph.node]]
name = "page"
model = "own"
gather = true
[app.join]
outputs = {{ answer = "c.y" }}
inputs.x = {{ dtype = "int16", shape = [3] }}
[[app.join.node]]
name = "a"
model = "double"
[[app.join.node]]
name = "b"
model = "slow"
after = []
[[app.join.node]]
name = "c"
model = "own"
after = ["a", "b"]
join = 1
inputs = {{ x = "a.y" }}
[app.beside]
on_late = "partial"
[[app.beside.node]]
name = "a"
model = "double"
[[app.beside.node]]
name = "b"
model = "slow"
after = ["a"]
"""


def test_numbers_and_types_of_numpy_stand_for_what_a_file_has() -> None:
    config = configuration(
        models={"m": Model(double, batch=list(np.array([1, 4])))},
        apps={
            "cam": App("m", inputs={"x": {"dtype": int, "shape": np.zeros((2, 3)).shape}}, value=np.float32(2)),
        },
    )
    assert tuple(config.models["m"].batch) == (1, 4)
    assert (config.apps["cam"].inputs["x"].dtype, config.apps["cam"].value) == ("int64", 2.0)


def test_python_and_a_file_make_the_same_configuration() -> None:
    given_in_python = configuration(
        models={
            "double": Model(double, options={"example": example}),
            "detect": Model("detect.onnx", batch=[1, 2, 4], lanes=["gpu"], sha256="0" * 64),
            "steps": Model("words:steps"),
            "chat": Model(Path("chat.gguf"), slots=4),
            "own": Model(Doubler),
            "slow": Model(engine="synthetic", expected={1: "5ms"}),
        },
        apps={
            "one": "double",
            "cam": App(
                "detect", slo="50ms", priority_class="critical", inputs={"x": {"dtype": np.uint8, "shape": (4, -1)}}
            ),
            "graph": App("detect", Node("cut", model="double", fan_out=True), Node("page", model="own", gather=True)),
            "join": App(
                Node("a", model="double"),
                Node("b", model="slow", after=[]),
                Node("c", model="own", after=["a", "b"], join=1, inputs={"x": "a.y"}),
                inputs={"x": {"dtype": np.dtype("int16"), "shape": [3]}},
                outputs={"answer": "c.y"},
            ),
            "beside": App(Node("a", model="double"), Node("b", model="slow", after="a"), on_late="partial"),
        },
        devices={"gpu0": {"kind": "cuda", "memory": "2GiB"}, "cpu": {}},
        lanes={"gpu": {"device": "gpu0"}, "cpu0": {"device": "cpu", "threads": 2}},
        policies={"first": {"kind": "fifo"}},
        server={"drain": "2s"},
    )
    assert given_in_python == read_back(SAME, given_in_python)
    assert read_back(toml_of(given_in_python), given_in_python) == given_in_python


NAMES = st.sampled_from(["a", "b", "cam 1", "Qwen/Qwen3", 'a"quote', "c.d", "é"])
DURATIONS = st.one_of(
    st.integers(1, 10**12).map(lambda ns: f"{ns}ns"),
    st.integers(1, 10**6).map(lambda ms: f"{ms}ms"),
    st.floats(0.001, 1e3).map(lambda s: f"{s:.3f}s"),
)
SIZES = st.one_of(st.integers(0, 2**40).map(lambda size: f"{size}B"), st.integers(1, 64).map(lambda size: f"{size}MiB"))


def sections(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[Dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keys)


@st.composite
def models(draw: st.DrawFn) -> Model:
    what = draw(st.sampled_from([double, Doubler, "net.onnx", "words:steps", "chat.gguf", "speech"]))
    keys = draw(
        sections(
            batch=st.sampled_from([[1], [1, 2, 8], [4]]),
            memory=SIZES,
            load=DURATIONS,
            pinned=st.booleans(),
            batch_tolerance=st.floats(0.1, 1.0),
            expected=st.dictionaries(st.integers(1, 9).map(str), DURATIONS, max_size=2),
            shapes=st.dictionaries(st.sampled_from("xy"), st.lists(st.integers(0, 9), max_size=3), max_size=2),
            pad=st.dictionaries(st.sampled_from("xy"), st.floats(-1e9, 1e9), max_size=1),
            options=st.dictionaries(NAMES, st.one_of(st.booleans(), st.integers(), st.text(max_size=5)), max_size=2),
        )
    )
    return Model(what, engine="whisper", **keys) if what == "speech" else Model(what, **keys)


@st.composite
def apps(draw: st.DrawFn, names: List[str]) -> App:
    tensors = sections(dtype=st.sampled_from(["uint8", "text"]), shape=st.lists(st.integers(-1, 9), max_size=3))
    keys = draw(
        sections(
            slo=DURATIONS,
            priority_class=st.sampled_from(["critical", "normal", "background"]),
            value=st.floats(0.0, 1e6),
            on_late=st.sampled_from(["drop", "answer", "partial"]),
            stream=st.sampled_from(["none", "in_order", "newest_wins"]),
            weights=st.dictionaries(NAMES, st.floats(0.01, 10.0), max_size=2),
            predict=st.just({"length": double}),
            inputs=st.dictionaries(NAMES, tensors, max_size=2),
            outputs=st.one_of(st.just(["a.y"]), st.just({"z": "a.y"})),
        )
    )
    if draw(st.booleans()):
        return App(draw(st.sampled_from(names)), **keys)
    nodes: List[Node] = []
    for index in range(draw(st.integers(1, 4))):
        more = draw(
            sections(
                after=st.lists(st.sampled_from([f"n{before}" for before in range(index)]), unique=True)
                if index
                else st.just([]),
                fan_out=st.booleans(),
                gather=st.booleans(),
                join=st.sampled_from(["all", "policy", 1, 2]),
                route=st.sampled_from(["all", "one"]),
                parts_max=st.integers(1, 100),
                inputs=st.dictionaries(NAMES, st.just("request.x"), max_size=2),
            )
        )
        nodes.append(Node(f"n{index}", model=draw(st.sampled_from(names)), **more))
    return App(*nodes, **keys)


@st.composite
def drawn_sections(draw: st.DrawFn) -> Dict[str, Any]:
    made = draw(st.dictionaries(NAMES, models(), min_size=1, max_size=4))
    found: Dict[str, Any] = {
        "models": made,
        "apps": draw(st.dictionaries(NAMES, apps(sorted(made)), max_size=3)),
    }
    policies = draw(st.sampled_from([{}, {"plan": {}}, {"fifo": {}}]))
    return {
        **found,
        **({"policies": policies} if policies else {}),
        **draw(
            sections(
                server=sections(drain=DURATIONS, pending_max=st.integers(1, 9)),
                devices=sections(cpu=sections(memory=SIZES, headroom=SIZES)),
                lanes=st.just({"cpu0": {"threads": 3}, "other": {"hang": "1min"}}),
            )
        ),
    }


@given(drawn_sections())
def test_the_text_of_a_configuration_means_the_same(drawn: Dict[str, Any]) -> None:
    config = configuration(**drawn)
    assert read_back(toml_of(config), config) == config


EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").rglob("edge.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.parent.name for path in EXAMPLES])
def test_the_text_of_an_example_means_the_same(path: Path) -> None:
    config = load_config(path)
    assert read_back(toml_of(config), config) == config


@pytest.mark.parametrize("text", ["", "[model.m]\nengine = 'python'\nfunction = 'a:b'\n"])
def test_a_file_is_written_as_it_was_read(text: str) -> None:
    config = parse_config(parse_toml(text))
    assert read_back(toml_of(config), config) == config


# --- what is wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        ({"apps": {"cam": App("m", slo="200")}}, r"apps\['cam'\] slo = '200': expected a duration with a unit"),
        ({"apps": {"cam": App("m", slo=200)}}, r"apps\['cam'\] slo = 200: expected a duration with a unit"),
        ({"apps": {"cam": App("m", slow="1s")}}, r"apps\['cam'\] has no key 'slow'.*'slo'"),
        (
            {"apps": {"cam": App("m", priority_class="urgent")}},
            r"apps\['cam'\] priority_class = 'urgent': expected one of 'critical'",
        ),
        ({"apps": {"cam": App("n")}}, r"apps\['cam'\] model = 'n' does not exist"),
        ({"apps": {"cam": App()}}, r"apps\['cam'\] needs either model = '...' or node = \[...\], which"),
        ({"apps": {"cam": App(nodes=["m"], slo="1s")}}, r"apps\['cam'\] has no key 'nodes'; did you mean 'node'"),
        ({"apps": {"cam": App(Node("a", fan=True))}}, r"apps\['cam'\] node number 1 has no key 'fan'"),
        ({"apps": {"cam": App("m", klass="normal")}}, r"\['cam'\] has no key 'klass'; did you mean 'priority_class'"),
        ({"apps": {"cam": App("m", xyz=1)}}, r"apps\['cam'\] has no key 'xyz' \(known: .*, priority_class, .*, value"),
        ({"apps": {"cam": App("m", inputs={"x": {"typ": "uint8"}})}}, r"apps\['cam'\] inputs.x has no key 'typ'"),
        ({"models": {"m": Model(double, batch=[2, 1])}}, r"models\['m'\] batch = \[2, 1\]: expected batch sizes"),
        ({"models": {"m": Model(double, lanes=["gpu"])}}, r"models\['m'\] lanes = 'gpu' does not exist"),
        ({"lanes": {"cpu0": {"thread": 2}}}, r"lanes\['cpu0'\] has no key 'thread'.*'threads'"),
        ({"policies": {"p": {"kind": 3}}}, r"policies\['p'\] kind = 3: expected a string"),
        ({"server": {"drain": "5"}}, r"^server drain = '5': expected a duration"),
        ({"server": 7}, r"^server = 7: expected a table"),
        ({"apps": {"cam": App("m", inputs={"x": "uint8"})}}, r"inputs.x = 'uint8': expected a table of .*dtype, shape"),
        ({"apps": [App("m")]}, r"^apps = \[.*\]: expected a dict with names as keys"),
        ({"models": {"m": Model(Doubler())}, "devices": {"a": {}, "b": {}},
          "lanes": {"la": {"device": "a"}, "lb": {"device": "b"}}}, r"models\['m'\] is an engine object.*one device"),
    ],
)  # fmt: skip
def test_an_error_names_the_argument(sections: Dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        configuration(**{"models": {"m": Model(double)}, **sections})


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: App(double), "<function double at .*>: expected the name that it has in models="),  # type: ignore[arg-type]
        (lambda: Model(7), "expected a function, the path of a model's file, an engine's class or an engine"),
        (lambda: Model("net.xml"), r"Model\('net.xml'\): its ending names no engine \(known: .*onnx.*engine='...'"),
        (lambda: Model(double, options={"example": lambda: {}}), "options.example = .*lambda.* has no name to import"),
        (lambda: App("m", predict={"length": lambda inputs: 1}), "predict.length = .*lambda.* has no name to import"),
        (lambda: edgeserve.Runtime(), "needs a configuration: the path of its file, or models="),
        (lambda: edgeserve.Runtime("edge.toml", models={}), r"\('edge.toml'\) or models=..., not both"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(make: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make()


class Own(Policy):
    """A policy of one's own."""


def test_nodes_may_be_given_by_name_too() -> None:
    by_place = App(Node("m"), "n", slo="1s").table
    assert App(node=[Node("m"), "n"], slo="1s").table == by_place
    assert App(node=[{"name": "m"}, Node("n")], slo="1s").table == by_place


def test_a_policy_is_given_as_a_class_that_the_text_names() -> None:
    config = configuration(models={"m": double}, apps={"cam": "m"}, policies={"own": {"kind": Own}})
    assert config.policies["own"].kind == f"{__name__}:Own"
    assert f'kind = "{__name__}:Own"' in toml_of(config)


def test_an_unknown_argument_is_refused() -> None:
    with pytest.raises(TypeError, match="model"):
        edgeserve.Runtime(model={"m": double})  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (lambda inputs: inputs, r"models\['m'\] is a function that no file can name .*lambda.*define it at the top"),
        (functools.partial(double), r"models\['m'\] is a function that no file can name .*partial"),
        (Doubler(), r"models\['m'\] is an engine object that no file can name .*give its class"),
    ],
)
def test_a_model_that_no_file_can_name_is_said(model: Any, text: str) -> None:
    runtime = edgeserve.Runtime(models={"m": model}, apps={"app": "m"})
    with pytest.raises(ConfigError, match=text):
        runtime.config()


def test_names_by_which_a_file_finds_something() -> None:
    assert importable_name(double) == f"{__name__}:double"
    assert importable_name(Doubler.run) == f"{__name__}:Doubler.run"
    assert importable_name(np.abs) in ("", "numpy:absolute", "numpy:abs"), "where numpy says its own name"
    assert importable_name(Doubler().run) == "", "bound to an object"
    assert importable_name(lambda: 0) == importable_name(7) == importable_name(functools.partial(double)) == ""


def test_tables_of_a_file_as_arguments() -> None:
    assert in_python("mend [model.*] expected") == "mend models[...] expected"
    assert in_python("[app.a.b.inputs] x") == "apps['a.b'] inputs x"
    assert in_python("[[app.cam.node]] number 2: y") == "apps['cam'] node number 2: y"
    assert in_python("say [server] drain = '5'; [1, 2]") == "say server drain = '5'; [1, 2]"


# --- twins ------------------------------------------------------------------------------------------------------------


def surface(kind: type) -> Dict[str, Any]:
    return {name: member for name, member in inspect.getmembers(kind) if not name.startswith("_")}


def test_the_asyncio_runtime_has_all_that_the_runtime_has() -> None:
    own, twin = surface(edgeserve.Runtime), surface(edgeserve.AsyncRuntime)
    attributes = {name for name in vars(edgeserve.Runtime(models={"m": double})) if not name.startswith("_")}
    assert {*own, *attributes} == set(twin)
    for name, member in own.items():
        if inspect.isfunction(member):
            assert inspect.signature(member).parameters.keys() == inspect.signature(twin[name]).parameters.keys(), name
    made = (inspect.signature(kind.__init__).parameters.keys() for kind in (edgeserve.Runtime, edgeserve.AsyncRuntime))
    assert len(set(map(tuple, made))) == 1


# --- said twice -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "keys"),
    [
        (double, {"function": "other:function"}),
        (lambda inputs: inputs, {"function": "other:function"}),
        (double, {"engine": "onnx"}),
        ("here:function", {"function": "other:function"}),
        ("model.onnx", {"file": "other.onnx"}),
        (Doubler, {"engine": "onnx"}),
    ],
)
def test_a_model_that_says_two_things_is_refused(what: Any, keys: Dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"says {next(iter(keys))} twice; leave one of the two out"):
        Model(what, **keys)


def test_a_model_may_say_the_same_twice() -> None:
    assert Model("model.bin", engine="onnx", file="model.bin").table["file"] == "model.bin"
    assert Model(Doubler, file="weights.bin", function="loader:read").table["function"] == "loader:read"


@pytest.mark.parametrize("keys", [{"model": "b"}, {"node": [{"name": "b"}]}])
def test_an_app_that_says_two_things_is_refused(keys: Dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="says its nodes twice; leave one of the two out"):
        App("a", **keys)
