"""The configuration: what a file means, and that each wrong one names the place, the value and the mend."""

from __future__ import annotations

import pytest

from edgeserve.config.addresses import host_and_port
from edgeserve.config.gone import GONE
from edgeserve.config.loading import load_config, parse_config
from edgeserve.config.readers import durations_by_size
from edgeserve.config.schema import AppConfig, DeviceConfig, LaneConfig, ServerConfig
from edgeserve.errors import ConfigError
from edgeserve.front.registry import front_of

MINIMAL = {"model": {"m": {"engine": "synthetic"}}, "app": {"a": {"model": "m"}}}


def with_changes(**sections):
    return {**MINIMAL, **sections}


def predicting(hints, **app):
    return {"app": {"a": {"model": "m", "predict": hints, **app}}}


def test_a_file_of_four_lines_serves_one_model_on_one_lane_under_the_plan():
    config = parse_config(MINIMAL)
    assert config.devices == {"cpu": DeviceConfig(name="cpu")}
    assert config.lanes == {"cpu0": LaneConfig(name="cpu0", device="cpu")}
    assert [(policy.name, policy.kind) for policy in config.policies.values()] == [("plan", "plan")]
    assert config.server == ServerConfig()
    app = config.apps["a"]
    assert [(node.name, node.model, node.after) for node in app.nodes] == [("m", "m", ())]
    assert (app.slo_ns, app.priority_class, app.on_late, app.stream) == (10**9, "normal", "drop", "none")


def test_the_default_lane_stands_on_the_first_device():
    assert parse_config(with_changes(device={"gpu": {"kind": "cuda"}})).lanes["cpu0"].device == "gpu"


def test_a_whole_file():
    config = parse_config(
        {
            "server": {"memory": "64MiB", "drain": "2s", "pending_max": 10},
            "device": {"gpu": {"kind": "cuda:1", "memory": "2GiB"}},
            "lane": {"gpu0": {"device": "gpu", "ahead": "5ms", "hang": "1s", "cores": [0, 1]}},
            "model": {
                "m": {
                    "engine": "onnx",
                    "file": "m.onnx",
                    "batch": [1, 4],
                    "expected": {"1": "5ms", "4": "12ms"},
                    "memory": "64MiB",
                    "load": "3ms",
                    "pinned": True,
                    "lanes": ["gpu0"],
                    "shapes": {"x": [3, 8]},
                    "pad": {"x": -1},
                    "state": {"h": "hn"},
                    "options": {"threads": 2},
                }
            },
            "policy": {"cw": {"kind": "clockwork", "window_ms": 3}},
            "app": {
                "a": {
                    "slo": "50ms",
                    "class": "critical",
                    "value": 2,
                    "on_late": "answer",
                    "stream": "in_order",
                    "weights": {"cam": 3},
                    "inputs": {"x": {"shape": [-1, 8], "optional": True}},
                    "node": [
                        {"name": "one", "model": "m"},
                        {"name": "two", "model": "m", "join": 1, "route": "one"},
                        {"name": "m", "after": ["one"]},
                    ],
                }
            },
        }
    )
    assert config.server.message_bytes_max == 4 * 1024**2
    assert config.server.drain_ns == 2 * 10**9
    assert config.devices["gpu"] == DeviceConfig("gpu", "cuda:1", 2 * 1024**3)
    lane = config.lanes["gpu0"]
    assert (lane.device, lane.ahead_ns, lane.hang_ns, lane.cores) == ("gpu", 5_000_000, 10**9, (0, 1))
    model = config.models["m"]
    assert (model.batch, model.expected, model.memory_bytes) == ((1, 4), {1: 5_000_000, 4: 12_000_000}, 64 * 1024**2)
    assert (model.shapes, model.pad, model.options) == ({"x": (3, 8)}, {"x": -1.0}, {"threads": 2})
    assert config.policies["cw"].options == {"window_ms": 3}
    app = config.apps["a"]
    assert (app.priority_class, app.value, app.on_late, app.weights) == ("critical", 2.0, "answer", {"cam": 3.0})
    assert [(node.name, node.model, node.after, node.join, node.route) for node in app.nodes] == [
        ("one", "m", (), "all", "all"),
        ("two", "m", ("one",), 1, "one"),
        ("m", "m", ("one",), "all", "all"),
    ]
    assert app.inputs["x"].shape == (-1, 8)


@pytest.mark.parametrize("name", [name for name in GONE if " " in name and name.startswith("[")])
def test_a_key_that_went_says_what_to_use_instead(name):
    where, key = name.replace("front.NAME", "front.http").replace("NAME", "a").rsplit(" ", 1)
    section, _, inner = where.strip("[]").partition(".")
    with pytest.raises(ConfigError) as error:
        parse_config(with_changes(**{section: {inner: {key: 7}} if inner else {key: 7}}))
        front_of(inner, {key: 7})
    assert str(error.value) == f"{where} {key} = 7: there is no such key any more; {GONE[name]}"


@pytest.mark.parametrize("name", [name for name in GONE if name.startswith("[") and name.endswith("]")])
def test_a_section_that_went_says_what_to_use_instead(name):
    with pytest.raises(ConfigError) as error:
        parse_config(with_changes(**{name.strip("[]"): {}}))
    assert str(error.value) == f"{name}: there is no such section any more; {GONE[name]}"


def test_a_file_that_is_no_configuration_by_its_size_is_not_read(tmp_path):
    path = tmp_path / "edge.toml"
    with open(path, "wb") as file:
        file.truncate(5 << 20)
    for place in (str(path), "/dev/zero"):
        with pytest.raises(ConfigError, match=f"{place}: has more than 4MiB"):
            load_config(place)


WRONG = [
    ({"modle": {}}, ["[modle] is no section", "did you mean 'model'?"]),
    ({"server": {"drian": "1s"}}, ["[server] has no key 'drian'", "did you mean 'drain'?"]),
    ({"server": {"drain": 5}}, ["[server] drain", "5", "a duration with a unit"]),
    ({"server": {"memory": "big"}}, ["[server] memory", "'big'", "a size with a unit"]),
    ({"server": {"memory": "1MiB"}}, ["[server] memory = '1MiB'", "at least 16MiB"]),
    ({"server": {"pending_max": 0}}, ["[server] pending_max = 0", "whole number from 1"]),
    ({"server": {"pending_max": 2**31}}, ["pending_max = 2147483648", "from 1 to 1000000"]),
    ({"server": {"pending_max": True}}, ["pending_max = True", "whole number"]),
    ({"server": []}, ["[server] = []", "expected a table"]),
    ({"lane": {"gpu0": {"device": "tpu9"}}}, ["[lane.gpu0] device = 'tpu9' does not exist", "known: cpu"]),
    ({"device": {"gpu": {"kind": "cpu:1"}}}, ["[device.gpu] kind = 'cpu:1': expected 'cpu', 'cuda', or 'cuda:1'"]),
    ({"device": {"cpu": {"headroom": "AUTO"}}}, ["[device.cpu] headroom = 'AUTO'", "a size with a unit", "or 'auto'"]),
    ({"lane": {"cpu0": {"hang": "0s"}}}, ["[lane.cpu0] hang = '0s': expected more"]),
    ({"lane": {"gpu0": {"ahead": "soon"}}}, ["[lane.gpu0] ahead", "'soon'"]),
    ({"lane": "gpu0"}, ["[lane] must hold named tables", "[lane.NAME]"]),
    (
        {"model": {"m": {"engine": "x"}, "../m": {"engine": "x"}}},
        ["[model.'../m']: its profile is a file of this name", "no part '.'"],
    ),
    ({"model": {"m": {"engine": "x"}, "/m": {"engine": "x"}}}, ["[model.'/m']: its profile is a file of this name"]),
    *[
        (
            {"model": {"m": {"engine": "x"}, name: {"engine": "x"}}},
            [f"[model.{name!r}]: its profile is a file of this name", "rename"],
        )
        for name in ("mode-x/y", "a.schema", "a.json/b", "n" * 201, "a\0b")
    ],
    (
        {"server": {"critical_for": ["detector"]}},
        ["[server] critical_for = 'detector'", "'uid:1000'", "[app.NAME] class"],
    ),
    ({"server": {"critical_for": ["uid:me"]}}, ["[server] critical_for = 'uid:me'", "'uid:1000'"]),
    ({"model": {"m": {}}}, ["[model.m] lacks the key 'engine'; it needs engine, and may have file, function, lanes"]),
    ({"model": {"m": {"engine": 3}}}, ["[model.m] engine = 3", "expected a string"]),
    ({"model": {"m": {"engine": "x", "lanes": ["gpu9"]}}}, ["[model.m] lanes = 'gpu9' does not exist"]),
    (
        {"lane": {"slow": {"priority": 2}}},
        ["[lane.slow] priority = 2 is of a GPU's streams, and device 'cpu' is a cpu", "see nice"],
    ),
    ({"model": {"m": {"engine": "x", "lanes": "cpu0"}}}, ["[model.m] lanes = 'cpu0'", "expected a list"]),
    ({"model": {"m": {"engine": "x", "batch": [4, 1]}}}, ["[model.m] batch = [4, 1]", "rising order"]),
    ({"model": {"m": {"engine": "x", "batch": []}}}, ["batch = []", "such as [1, 2, 4, 8]"]),
    ({"model": {"m": {"engine": "x", "batch": [1, 1]}}}, ["batch = [1, 1]", "rising order"]),
    ({"model": {"m": {"engine": "x", "expected": {"one": "5ms"}}}}, ["[model.m] expected.one", "expected.4 = '12ms'"]),
    ({"model": {"m": {"engine": "x", "pinned": 1}}}, ["pinned = 1", "expected true or false"]),
    ({"model": {"m": {"engine": "x", "pad": {"x": "no"}}}}, ["[model.m] pad.x = 'no'", "expected a number"]),
    ({"policy": {"p": {"kind": 3}}}, ["[policy.p] kind = 3", "expected a string"]),
    ({"app": {"a": {}}}, ["[app.a] needs either model", "[[app.a.node]]"]),
    ({"app": {"a": {"modle": "m", "slo": "1s"}}}, ["[app.a] has no key 'modle'; did you mean 'model'?"]),
    ({"app": {"a": {"model": "m", "node": []}}}, ["[app.a] needs either model"]),
    ({"app": {"a": {"node": []}}}, ["[app.a] node", "at least one"]),
    ({"app": {"a": {"model": "n"}}}, ["[app.a] model = 'n' does not exist", "known: m"]),
    (
        {"app": {"a": {"node": [{"name": "m"}, {"name": "n"}]}}},
        [
            "[[app.a.node]] name = 'n' has no model = '...', so it means a model of its own name, and there is none",
            "known: m",
        ],
    ),
    ({"app": {"a": {"node": [{"name": "n", "model": "o"}]}}}, ["[app.a] node 'n' model = 'o' does not exist"]),
    (
        {"device": {"gpu": {"kind": "cuda"}}, "lane": {"gpu0": {"threads": 2}}},
        ["[lane.gpu0] lacks device = '...'; the file has 'gpu' (left out means 'cpu', which it does not have)"],
    ),
    ({"app": {"a": {"model": "m", "class": "urgent"}}}, ["[app.a] class = 'urgent'", "'critical', 'normal'"]),
    ({"app": {"a": {"model": "m", "slo": "0s"}}}, ["[app.a] slo = '0s'", "too late"]),
    (
        {"app": {"a": {"model": "m", "slo": "9" * 400 + "s"}}},
        ["[app.a] slo = '999", "a duration with a unit", "exists"],
    ),
    ({"app": {"a": {"model": "m", "slo": "9" * 30 + "s"}}}, ["[app.a] slo = '999", "of a size that exists"]),
    ({"model": {"m": {"engine": "x", "memory": "9" * 400 + "GB"}}}, ["memory = '999", "a size with a unit", "exists"]),
    ({"app": {"a": {"model": "m", "value": float("inf")}}}, ["[app.a] value = inf", "expected a number from 0.0"]),
    ({"app": {"a": {"model": "m", "value": float("nan")}}}, ["[app.a] value = nan", "expected a number from 0.0"]),
    ({"app": {"a": {"model": "m", "weights": {"x": float("inf")}}}}, ["[app.a] weights.x = inf", "a number"]),
    ({"model": {"m": {"engine": "x", "pad": {"x": 10**400}}}}, ["[model.m] pad.x = 1000", "expected a number"]),
    ({"app": {"a": {"model": "m", "weights": {"x": 0}}}}, ["[app.a] weights.x = 0", "0.001"]),
    ({"app": {"a": {"model": "m", "polcy": "edf"}}}, ["[app.a] has no key 'polcy'", "did you mean 'policy'?"]),
    (
        {"app": {"a": {"model": "m", "policy": "fifo"}}},
        ["[app.a] policy = 'fifo' does not exist", "known: plan", "[policy.fifo] kind"],
    ),
    ({"app": {"a": {"model": "m", "inputs": {"x": {"shpe": []}}}}}, ["[app.a] inputs.x has no key 'shpe'"]),
    (
        {"app": {"a": {"model": "m", "predict": {"length": "x"}}}},
        ["[app.a] predict.length = 'x'", "such as 'image[1]'"],
    ),
    (
        {"app": {"a": {"model": "m", "predict": {"length": "x[0]"}, "inputs": {"y": {"shape": [-1]}}}}},
        ["[app.a] predict.length = 'x[0]'", "declares no input 'x'", "[app.a.inputs]"],
    ),
    (
        {"app": {"a": {"model": "m", "predict": {"length": "x[1]"}, "inputs": {"x": {"shape": [-1]}}}}},
        ["[app.a] predict.length = 'x[1]'", "has 1 axis", "correct the axis"],
    ),
    (
        {"app": {"a": {"model": "m", "predict": {"length": "x[0]"}, "inputs": {"x": {"dtype": "text"}}}}},
        ["input 'x' has 0 axes"],
    ),
    (
        predicting({"size": "p:f"}),
        ["[app.a.predict] 'size'", "Those of this app are length, work, steps, steps_sd, tokens, m.work"],
    ),
    (predicting({"m.parts": "p:f"}), ["[app.a.predict] 'm.parts'", "no policy reads"]),
    (predicting({"other.work": "p:f"}), ["'other.work'", "m.work"]),
    (predicting({"length": "f"}), ["[app.a] predict.length = 'f'", "'module:function'"]),
    (predicting({"m": {"work": 3}}), ["[app.a] predict.m.work = 3", "'module:function'"]),
    (predicting({"m.work": "p:f", "m": {"work": "p:g"}}), ["predict.m.work is given twice"]),
    (predicting("p:f"), ["[app.a] predict = 'p:f'", "a table of hints"]),
    (predicting({"work": "x[0]"}), ["predict.work = 'x[0]'", "'module:function'"]),
    ({"app": {"a": {"node": [{"model": "m"}]}}}, ["[[app.a.node]] number 1 lacks the key 'name'"]),
    ({"app": {"a": {"node": [{"name": "m", "join": 0}]}}}, ["join = 0", "'all', 'policy' or a number"]),
    ({"app": {"a": {"node": [{"name": "m", "join": True}]}}}, ["join = True"]),
    ({"policy": {"p": {"kind": "edf"}, "q": {"kind": "fifo"}}}, ["[app.a] needs policy = '...'", "p, plan, q"]),
]


@pytest.mark.parametrize(("changes", "words"), WRONG)
def test_a_wrong_file_names_the_place_the_value_and_the_mend(changes, words):
    with pytest.raises(ConfigError) as caught:
        parse_config(with_changes(**changes))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("name", ["a/versions/1", "a/versions/1/ready", "a/config", "stats"])
def test_a_name_is_refused_with_the_front_that_cannot_say_it_alone(name):
    table = with_changes(app={"a": {"model": "m"}, name: {"model": "m"}})
    for others in ({}, {"mqtt": {"host": "h"}}, {"camera": {"app": "a"}}):
        assert name in parse_config({**table, "front": others}).apps
    for front, about in [("http", {}), ("web", {"kind": "http"})]:
        with pytest.raises(ConfigError) as error:
            parse_config({**table, "front": {"mqtt": {}, front: about}})
        words = (repr(name) if "/" in name else name, f"/v2/models/{name} of KServe", "rename", f"[front.{front}] out")
        assert all(word in str(error.value) for word in words)


def test_a_file_is_read_and_its_directory_is_where_relative_paths_start(tmp_path):
    path = tmp_path / "edge.toml"
    path.write_text('[model.m]\nengine = "synthetic"\n[app.a]\nmodel = "m"\nslo = "20ms"\n', encoding="utf-8")
    config = load_config(str(path))
    assert config.apps["a"] == AppConfig("a", config.apps["a"].nodes, slo_ns=20_000_000)
    assert (config.directory, config.source) == (str(tmp_path), str(path))


@pytest.mark.parametrize("content", [b"\x08\x08\x12\x84", b"\0" * 5_000_000, None])
def test_a_file_of_another_kind_in_the_place_of_a_configuration_names_init(content, tmp_path):
    path = tmp_path / "model.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"model\.onnx: .*'edgeserve init'"):
        load_config(str(path))


def test_what_cannot_be_read_is_a_configuration_error_that_names_the_file(tmp_path):
    path = tmp_path / "edge.toml"
    with pytest.raises(ConfigError, match=r"edge.toml: cannot be read"):
        load_config(str(path))
    path.write_text("model = [", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"edge.toml: is not TOML"):
        load_config(str(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"edge.toml: is not TOML"):
        load_config(str(path))
    path.write_text("[server]\nports = 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"edge.toml: \[server\] has no key 'ports'"):
        load_config(str(path))


# --- predictors -------------------------------------------------------------------------------------------------------


def test_predictors_of_the_hints_that_an_app_s_nodes_have():
    nodes = [
        {"name": "cut", "model": "m", "fan_out": True},
        {"name": "read", "model": "m", "route": "one"},
        {"name": "m"},
    ]
    hints = ["length", "work", "cut.parts", "cut.work", "read.route", "read.steps", "m.work"]
    made = {"app": {"a": {"node": nodes, "predict": dict.fromkeys(hints, "p:f")}}}
    assert list(parse_config(with_changes(**made)).apps["a"].predict) == hints
    for hint in ("steps", "cut.route", "read.parts"):  # of the app with one node; of nodes of another kind
        wrong = {"app": {"a": {"node": nodes, "predict": {hint: "p:f"}}}}
        with pytest.raises(ConfigError, match=f"predict. '{hint}': no policy reads such a hint; .*read.route"):
            parse_config(with_changes(**wrong))


def test_a_hint_of_a_node_may_be_written_without_quotes():
    app = parse_config(with_changes(**predicting({"m": {"work": "p:f"}, "length": "p.q:g"}))).apps["a"]
    assert app.predict == {"m.work": "p:f", "length": "p.q:g"}


def test_the_hint_that_the_app_s_policy_is_told_to_read_may_be_predicted_too():
    made = with_changes(**predicting({"tokens": "p:f"}), policy={"p": {"kind": "plan", "hint": "tokens"}})
    assert parse_config(made).apps["a"].predict == {"tokens": "p:f"}


def test_a_policy_from_outside_may_read_hints_of_any_name():
    made = with_changes(**predicting({"difficulty": "p:f"}), policy={"p": {"kind": "ours:Ensemble"}})
    assert parse_config(made).apps["a"].predict == {"difficulty": "p:f"}


@pytest.mark.parametrize(
    ("line", "mend"),
    [
        ("slo = 50ms", '; texts and durations stand in quotes: slo = "50ms"'),
        ("engine = onnx  # mine", '; texts and durations stand in quotes: engine = "onnx"'),
        ("model = [", ""),
    ],
)
def test_a_value_without_quotes_is_told_with_the_line_that_would_do(tmp_path, line, mend):
    path = tmp_path / "edge.toml"
    path.write_text(f"[app.a]\n{line}\nmodel = 'm'\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="is not TOML") as error:
        load_config(str(path))
    assert str(error.value).endswith(mend or ")")


def test_the_keys_of_an_app_that_are_known_are_all_of_them():
    model = {"m": {"engine": "python", "function": "m:f"}}
    with pytest.raises(ConfigError, match=r"\[app.a\] has no key 'xxxxx' .*inputs,.* model, node,"):
        parse_config({"model": model, "app": {"a": {"model": "m", "xxxxx": 1}}})
    with pytest.raises(ConfigError, match=r"\[app.a\] has no key 'input'; did you mean 'inputs'"):
        parse_config({"model": model, "app": {"a": {"model": "m", "input": {}}}})


def test_signs_that_look_like_digits_are_none():
    with pytest.raises(ConfigError, match="HOST:PORT"):
        host_and_port("listen", "127.0.0.1:8²", "127.0.0.1:80")
    with pytest.raises(ConfigError, match="a batch size"):
        durations_by_size({"²": "1ms"}, "expected")
