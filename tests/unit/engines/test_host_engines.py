"""The registry, the python and the synthetic engine, warm-up and the asset cache."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest

from edgeserve.config.files import cache_directory, resolve_path
from edgeserve.config.loading import parse_config
from edgeserve.config.schema import ModelConfig
from edgeserve.engines import lane_info, make_engine
from edgeserve.engines.base import Batch, BlockingSession, Engine, Finished, Footprint, LaneInfo, Result, run_whole
from edgeserve.engines.functions import import_function
from edgeserve.engines.python import state_size_bytes
from edgeserve.engines.synthetic import SyntheticEngine
from edgeserve.engines.warm import dear_changes, time_changes, warm_up
from edgeserve.errors import ConfigError, EngineError

# --- the registry ---


def test_unknown_kinds_are_refused_with_the_nearest_name():
    expected = r"'abc' is no engine\. Expected one of .*onnx, python, .*synthetic.* or 'mod"
    with pytest.raises(ConfigError, match=expected):
        make_engine(ModelConfig(name="m", engine="abc"), [LaneInfo()])
    with pytest.raises(ConfigError, match=r"\[model.m\] engine = 'onx' is no engine; did you mean 'onnx'\? Exp"):
        make_engine(ModelConfig("m", "onx"), [LaneInfo()])


OWN = """
from edgeserve.engines.base import Engine

class Own(Engine):
    def __init__(self, model, lanes, directory):
        self.told = (model.name, list(lanes), directory)

def no_engine(model, lanes, directory):
    return 7

def host(inputs):
    return inputs
"""


def test_an_engine_of_ones_own_is_found_beside_the_configuration(tmp_path):
    (tmp_path / "own_engine.py").write_text(OWN)
    lanes = [LaneInfo(threads=3)]
    assert make_engine(ModelConfig("m", "own_engine:Own"), lanes, str(tmp_path)).told == ("m", lanes, str(tmp_path))
    with pytest.raises(ConfigError, match=r"\[model.m\] engine = 'own_engine:no_engine' made a int; expected an edges"):
        make_engine(ModelConfig("m", "own_engine:no_engine"), lanes, str(tmp_path))
    with pytest.raises(
        ConfigError,
        match=r"'own_engine:host' cannot be called with \(model, lanes, directory\): .* "
        r"engine = 'python' and function = 'own_engine:host'",
    ):
        make_engine(ModelConfig("m", "own_engine:host"), lanes, str(tmp_path))
    with pytest.raises(EngineError, match=r"\[model.m\] engine = 'own_engine:Out': .* has no function or class 'Out'"):
        make_engine(ModelConfig("m", "own_engine:Out"), lanes, str(tmp_path))


def test_a_missing_library_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "edgeserve.engines.onnx", raising=False)
    with pytest.raises(EngineError, match=r"engine 'onnx' cannot be imported .*edgeserve-runtime\[onnx\]"):
        make_engine(ModelConfig("m", "onnx"), [LaneInfo()])


def test_no_engine_is_imported_before_it_is_needed():
    code = (
        "import sys, edgeserve, edgeserve.engines\n"
        "late = [n for n in ('onnxruntime', 'edgeserve.engines.python', 'edgeserve.offload.process')"
        " if n in sys.modules]\n"
        "assert not late, late"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_lane_info_comes_from_the_configuration():
    config = parse_config(
        {
            "device": {"gpu": {"kind": "cuda:1"}},
            "lane": {"gpu0": {"device": "gpu", "threads": 2, "cores": [0, 1], "depth": 3}},
        }
    )
    assert lane_info(config, "gpu0") == LaneInfo("cuda", 1, 2, (0, 1), "gpu0", 3, flush=True)
    models = {
        "everywhere": {"engine": "synthetic", "expected": {"1": "1ms"}},
        "there": {"engine": "synthetic", "expected": {"1": "1ms"}, "lanes": ["b"]},
    }
    two = parse_config({"lane": {"a": {}, "b": {}}, "model": models})
    assert [lane_info(two, lane).models for lane in "ab"] == [1, 2]
    with pytest.raises(ConfigError, match="lane 'gpu1' does not exist; did you mean 'gpu0'"):
        lane_info(config, "gpu1")


# --- python ---


def host(tmp_path, source, function="steps:f", name="steps", **settings):
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
    engine = make_engine(ModelConfig("m", "python", function=function, **settings), [LaneInfo()], str(tmp_path))
    engine.load()
    return engine


def test_what_a_function_may_return(tmp_path):
    engine = host(
        tmp_path,
        """
        from edgeserve.engines.base import Result
        from edgeserve.engines.python import Parts, Route
        def f(inputs):
            return {"dict": {"y": 1}, "parts": Parts([{"a": 1}, {"a": 2}], {"page": 7}, {"count": 2}),
                    "none": Parts([]), "list": [{"a": 1}, {"a": 2}], "empty": [],
                    "route": Route("next", {"y": 2}), "result": Result({"y": 3}, done=False),
                    }[inputs["want"]]
        """,
    )
    plain, parts, none, listed, empty, route, result = engine.run(
        Batch([{"want": want} for want in ("dict", "parts", "none", "list", "empty", "route", "result")], 8)
    )
    assert plain.outputs == {"y": 1}
    assert plain.parts is None
    assert parts.parts == [{"a": 1}, {"a": 2}]
    assert parts.outputs == {"page": 7}
    assert parts.hints == {"count": 2}
    assert none.parts == []
    assert (listed.parts, listed.outputs) == ([{"a": 1}, {"a": 2}], {})
    assert (empty.parts, empty.outputs) == ([], {})
    assert (route.route, route.outputs) == ("next", {"y": 2})
    assert not result.done


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("None", "returned NoneType None for item 0; expected a dict of outputs, Parts"),
        ("[1, 2]", "returned list"),
        ("[{'a': 1}, None]", "returned list"),
        ("(part for part in [{'a': 1}])", "returned generator .*or of a fan-out a list of dicts"),
        ("__import__('numpy').zeros(3)", "returned ndarray .*or of a fan-out a list of dicts"),
        ("[{1: 2}]", "gave dict {1: 2} for item 0; expected a dict whose keys are the outputs' names"),
        ("{1: 2}", "gave dict {1: 2} for item 0; expected a dict whose keys are the outputs' names"),
        ("Parts({'a': 1})", "returned Parts of dict"),
        ("Parts([1])", "gave int 1 for item 0"),
        ("Route(3, {})", r"returned Route\(3, ...\)"),
        ("Route('a', 3)", "gave int 3"),
    ],
)
def test_what_a_function_may_not_return(tmp_path, returned, message):
    engine = host(tmp_path, f"from edgeserve.engines.python import Parts, Route\ndef f(inputs):\n    return {returned}")
    with pytest.raises(EngineError, match=f"model 'm': steps:f {message}"):
        run_whole(BlockingSession(engine), Batch([{}], 1))


@pytest.mark.parametrize("options", [{}, {"batched": True}, {"stateful": True}, {"batched": True, "stateful": True}])
def test_a_function_says_hints_with_its_outputs(tmp_path, options):
    engine = host(
        tmp_path,
        f"""
        from edgeserve.engines.base import Result
        def f(item, state=None):
            if {options.get("batched", False)}:
                return [one(each) for each in item]
            return one(item)
        def one(item):
            said = Result({{"y": 1}}, hints={{"next.work": item["x"]}})
            return (said, "kept") if {options.get("stateful", False)} else said
        """,
        options=options,
    )
    (result,) = engine.run(Batch([{"x": 2.5}], 1))
    assert (result.outputs, result.hints, result.done) == ({"y": 1}, {"next.work": 2.5}, True)
    assert result.state == ("kept" if "stateful" in options else None)


def test_batched_and_stateful_returns_are_checked(tmp_path):
    source = "def f(*arguments):\n    return {'y': 1}"
    with pytest.raises(EngineError, match="for a batch of 2; expected a list with one entry per item"):
        host(tmp_path, source, options={"batched": True}).run(Batch([{}, {}], 2))
    with pytest.raises(EngineError, match=r"expected \(outputs, new state\), since options.stateful"):
        run_whole(BlockingSession(host(tmp_path, source, options={"stateful": True})), Batch([{}], 1))


def test_batched_and_stateful_together(tmp_path):
    engine = host(
        tmp_path,
        """
        def f(items, states):
            return [({"y": item["x"] + (state or 0)}, item["x"]) for item, state in zip(items, states)]
        """,
        options={"batched": True, "stateful": True},
    )
    first = engine.run(Batch([{"x": 1}, {"x": 2}], 2))
    second = engine.run(Batch([{"x": 10}, {"x": 10}], 2, [first[1].state, None]))
    assert [result.outputs["y"] for result in second] == [12, 10]
    assert first[0].state_bytes > 0


def test_an_exception_fails_its_item_and_says_which_and_where(tmp_path):
    engine = host(tmp_path, "def f(inputs):\n    return {'y': 1 / inputs['x']}")
    first, second, third = engine.run(Batch([{"x": 1}, {"x": 0}, {"x": 4}], 4))
    assert (first.outputs, first.error, third.outputs, third.error) == ({"y": 1}, None, {"y": 0.25}, None)
    with pytest.raises(EngineError, match=r"raised ZeroDivisionError on item 1: division by zero \(.*steps.py:2\)"):
        raise second.error
    assert isinstance(second.error.__cause__, ZeroDivisionError)  # with its traceback, for the log


def test_a_return_that_cannot_be_used_fails_its_item_alone(tmp_path):
    results = host(tmp_path, "def f(inputs):\n    return inputs['y']").run(Batch([{"y": {}}, {"y": 5}, {"y": {}}], 4))
    assert [result.error is None for result in results] == [True, False, True]
    assert "steps:f returned int 5 for item 1; expected a dict of outputs, Parts(...), Route" in str(results[1].error)


def test_a_batched_function_returns_an_exception_for_an_item_that_fails(tmp_path):
    engine = host(
        tmp_path,
        """
        def f(items):
            if not all(items): raise RuntimeError("no item may be empty")
            return [{"y": item["x"]} if item["x"] else ValueError("x is 0, expected more") for item in items]
        """,
        options={"batched": True},
    )
    results = engine.run(Batch([{"x": 1}, {"x": 0}, {"x": 2}], 4))
    assert [result.outputs for result in results] == [{"y": 1}, {}, {"y": 2}]
    assert str(results[1].error) == (
        "model 'm': steps:f raised ValueError on item 1: x is 0, expected more (returned, not raised)"
    )
    with pytest.raises(EngineError, match=r"model 'm': steps:f raised RuntimeError: no item may be empty \(.*:3\)"):
        engine.run(Batch([{"x": 1}, {}], 2))  # it may not have come to the others: unknown


@pytest.mark.parametrize("batched", [False, True])
def test_a_stateful_item_that_fails_has_no_new_state(tmp_path, batched):
    one = "def one(item, state):\n    return ({'y': 1 / item['x']}, 'new') if item['x'] else ValueError('x is 0')\n"
    all_ = "def f(items, states):\n    return [one(item, state) for item, state in zip(items, states)]"
    engine = host(tmp_path, one + (all_ if batched else "f = one"), options={"stateful": True, "batched": batched})
    good, bad = engine.run(Batch([{"x": 1}, {"x": 0}], 2, ["old", "old"]))
    assert (good.state, good.error) == ("new", None)
    assert bad.state is None
    assert "raised ValueError on item 1: x is 0" in str(bad.error)


def test_a_function_may_return_a_failed_result_itself(tmp_path):
    engine = host(
        tmp_path,
        """
        from edgeserve.engines.base import Result
        def f(inputs, state):
            return Result({}, error=ValueError("no")), 5
        """,
        options={"stateful": True},
    )
    result = engine.run(Batch([{}], 1))[0]
    assert isinstance(result.error, ValueError)
    assert result.state is None


def test_a_large_array_that_nothing_else_holds_is_not_copied(tmp_path):
    (tmp_path / "fresh.py").write_text(
        "import numpy as np\nplaces = []\n\ndef make(item):\n    x = np.zeros(60_000)\n"
        "    places.append(x.ctypes.data)\n    return {'whole': x} if item['x'] else {'part': x[100:50_000]}\n"
    )
    engine = make_engine(ModelConfig("m", "python", function="fresh:make"), [LaneInfo()], str(tmp_path))
    engine.load()
    whole, part = (result.outputs for result in engine.run(Batch([{"x": 1}, {"x": 0}], 2)))
    assert [whole["whole"].ctypes.data, part["part"].ctypes.data - 800] == sys.modules["fresh"].places


def test_the_example_of_a_function(tmp_path):
    source = "def f(inputs):\n    return inputs\ndef one():\n    return {'x': 5}\ndef bad():\n    return 5"
    with pytest.raises(EngineError, match=r"give \[model.m\] options.example = 'module:function'"):
        host(tmp_path, source).example()
    assert host(tmp_path, source, options={"example": "steps:one"}).example() == {"x": 5}
    assert host(tmp_path, source, shapes={"x": (2, 3)}).example()["x"].shape == (2, 3)
    with pytest.raises(EngineError, match="steps:bad returned int; expected a dict"):
        host(tmp_path, source, options={"example": "steps:bad"}).example()


def test_two_configurations_may_have_modules_of_one_name(tmp_path):
    results = []
    for number in (1, 2):
        home = tmp_path / str(number)
        home.mkdir()
        (home / "same_helper.py").write_text(f"VALUE = {number}")
        results.append(
            host(
                home,
                "import same_helper\ndef f(inputs):\n    return {'y': same_helper.VALUE}",
                function="same_steps:f",
                name="same_steps",
            )
        )
    assert [engine.run(Batch([{}], 1))[0].outputs["y"] for engine in results] == [1, 2]


def test_imports_inside_functions_find_their_neighbours(tmp_path):
    (tmp_path / "late_neighbour.py").write_text("VALUE = 3")
    engine = host(tmp_path, "def f(inputs):\n    import late_neighbour\n    return {'y': late_neighbour.VALUE}")
    assert engine.run(Batch([{}], 1))[0].outputs == {"y": 3}


@pytest.mark.parametrize(
    ("spec", "kind", "message"),
    [
        ("steps", ConfigError, "expected 'module:function'"),
        ("no_such_module:f", EngineError, "cannot be imported from .*ModuleNotFoundError"),
        ("broken_steps:f", EngineError, "cannot be imported .*ValueError: broken on purpose"),
        ("exits_steps:f", EngineError, "cannot be imported .*SystemExit: 3"),
        ("plain_steps:g", EngineError, "has no function or class 'g'"),
        ("plain_steps:VALUE", EngineError, "has no function or class 'VALUE'"),
        ("textwrap:f", EngineError, "was already imported from .*which hides the one in .*rename it"),
    ],
)
def test_functions_that_cannot_be_found(tmp_path, spec, kind, message):
    (tmp_path / "broken_steps.py").write_text("raise ValueError('broken on purpose')")
    (tmp_path / "exits_steps.py").write_text("raise SystemExit(3)")
    (tmp_path / "plain_steps.py").write_text("VALUE = 1\ndef f(inputs):\n    return {}")
    (tmp_path / "textwrap.py").write_text("def f(inputs):\n    return {}")
    path = list(sys.path)
    with pytest.raises(kind, match=message):
        import_function(spec, str(tmp_path), "[model.m] function")
    assert [entry for entry in sys.path if entry != str(tmp_path)] == [e for e in path if e != str(tmp_path)]
    assert sys.path[0] == path[0]


def test_a_function_is_needed():
    with pytest.raises(ConfigError, match="needs function = 'module:name'"):
        make_engine(ModelConfig("m", "python"), [LaneInfo()])


def test_state_bytes():
    assert state_size_bytes(None) == 0
    assert state_size_bytes(np.zeros(10)) == 80
    assert state_size_bytes({"a": np.zeros(10), "b": [b"x" * 100]}) >= 180
    endless = []
    endless.append(endless)
    assert state_size_bytes(endless) > 0  # bounded


# --- synthetic ---


def synthetic(expected=None, shapes=None, **options):
    waits = []
    model = ModelConfig("m", "synthetic", expected=expected or {}, shapes=shapes or {}, options=options)
    engine = SyntheticEngine(model, waits.append)
    engine.load()
    return engine, waits


def test_the_stated_time_is_what_it_waits():
    engine, waits = synthetic(c0="2ms", c1="1ms")
    engine.run(Batch([{}], 1))
    engine.run(Batch([{}], 4))  # padded: the size counts
    assert waits == [0.003, 0.006]
    engine, waits = synthetic(expected={1: 1_000_000, 4: 2_000_000})
    for size in (1, 3, 4, 8):
        engine.run(Batch([{}], size))
    assert waits == [0.001, 0.002, 0.002, 0.004]


def test_the_longest_item_decides():
    engine, waits = synthetic(c0="1ms", per_length={"x": "10us"})
    engine.run(Batch([{"x": [0] * 5}, {"x": [0] * 100}], 2))
    assert waits == [0.002]


def test_noise_follows_the_seed():
    runs = []
    for seed in (1, 1, 2):
        engine, waits = synthetic(c0="1ms", noise=0.1, seed=seed)
        for _ in range(200):
            engine.run(Batch([{}], 1))
        runs.append(waits)
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
    assert np.mean(runs[0]) == pytest.approx(0.001, rel=0.05)
    assert np.std(runs[0]) == pytest.approx(0.0001, rel=0.3)
    assert min(runs[0]) >= 0


def test_a_synthetic_item_that_is_not_as_declared_fails_alone():
    engine, waits = synthetic(c0="1ms", shapes={"x": (2,)}, steps=3)
    wrong = {"x": np.zeros(3)}
    results = engine.run(Batch([wrong, {"x": np.ones(2)}, {}, {"x": np.ones(2)}], 4, [None, 1, None, 2], steps_max=1))
    assert [result.done for result in results] == [True, True, True, False]  # its own state, not its neighbour's
    assert "input 'x' has shape (3,); expected (2,)" in str(results[0].error)
    assert "input 'x' is missing" in str(results[2].error)
    assert results[1].error is results[3].error is None
    assert [str(result.error)[:9] for result in engine.run(Batch([wrong, wrong], 2))] == ["model 'm'"] * 2
    assert waits == [0.001]  # nothing ran for the second batch


def test_ordered_trouble():
    engine, waits = synthetic(c0="1ms", fail_every=2)
    engine.run(Batch([{}], 1))
    with pytest.raises(EngineError, match="model 'm': batch 2 failed, as options.fail_every says"):
        engine.run(Batch([{}], 1))
    engine, waits = synthetic(c0="1ms", hang_every=1, hang="5s")
    with pytest.raises(EngineError, match="batch 1 hung"):
        engine.run(Batch([{}], 1))
    assert waits == [5.0]


def test_unload_ends_a_hang():
    import threading

    engine = make_engine(ModelConfig("m", "synthetic", options={"c0": "1ms", "hang_every": 1}), [LaneInfo()])
    engine.load()
    seen = []

    def hang():
        try:
            engine.run(Batch([{}], 1))
        except EngineError as error:
            seen.append(str(error))

    thread = threading.Thread(target=hang, daemon=True)
    thread.start()
    engine.unload()
    thread.join(10)
    assert not thread.is_alive()
    assert seen
    assert ("unloaded while it ran" in seen[0]) or ("not loaded" in seen[0])


def test_fan_out_is_drawn_between_its_bounds():
    engine, _ = synthetic(c0="1ms", fan_out=[2, 4])
    counts = {len(engine.run(Batch([{"x": 1}], 1))[0].parts) for _ in range(60)}
    assert counts == {2, 3, 4}
    engine, _ = synthetic(c0="1ms", fan_out=0)
    assert engine.run(Batch([{}], 1))[0].parts == []


def test_steps_come_back_unfinished():
    engine, waits = synthetic(c0="1ms", steps=5)
    result = engine.run(Batch([{"x": 1}], 1, steps_max=2))[0]
    assert (result.done, result.state, result.steps) == (False, 3, 2)
    result = engine.run(Batch([{"x": 1}], 1, [result.state], steps_max=2))[0]
    assert not result.done
    result = engine.run(Batch([{"x": 1}], 1, [result.state], steps_max=2))[0]
    assert (result.done, result.steps) == (True, 1)
    assert result.outputs == {"x": 1}
    assert waits == [0.002, 0.002, 0.001]
    mixed = engine.run(Batch([{"x": 1}, {"x": 2}], 2, [1, None]))
    assert [(result.done, result.steps) for result in mixed] == [(True, 1), (True, 1)]  # not bounded: one call
    assert waits[-1] == 0.005  # the slower of the two decides


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "does not say how long it takes"),
        ({"c0": "fast"}, "options.c0 = 'fast': expected a duration"),
        ({"c0": "1ms", "nois": 0.1}, "has no key 'nois'; did you mean 'noise'"),
        ({"c0": "1ms", "fan_out": [3, 1]}, r"fan_out = \[3, 1\]: expected a number of parts"),
        ({"c0": "1ms", "per_length": {"x": "1"}}, "options.per_length: '1': expected a duration"),
    ],
)
def test_synthetic_options_are_checked(options, message):
    with pytest.raises(ConfigError, match=message):
        make_engine(ModelConfig("m", "synthetic", options=options), [LaneInfo()])


# --- warm-up and files ---


class Recorder(Engine):
    def __init__(self):
        self.now_ns = 0
        self.sizes = []

    def load(self):
        return Footprint(1)

    def example(self):
        return {"x": 1}

    def run(self, batch):
        assert len(batch.items) == batch.size
        self.sizes.append(batch.size)
        self.now_ns += batch.size * 100
        return [Result({}) for _ in batch.items]


def test_warm_up_runs_every_size_largest_first_in_rounds():
    engine = Recorder()
    times = warm_up(BlockingSession(engine), engine.example(), (1, 4, 2, 4), lambda: engine.now_ns, repetitions=2)
    assert engine.sizes == [4, 2, 1, 4, 2, 1]
    assert times == {1: [100, 100], 2: [200, 200], 4: [400, 400]}
    assert list(times) == [1, 2, 4]


def test_warm_up_goes_on_with_the_sizes_that_took_less_than_it_may_spend():
    engine = Recorder()
    times = warm_up(
        BlockingSession(engine), engine.example(), (1, 4), lambda: engine.now_ns, repetitions=1, spend_ns=1000
    )
    assert times == {1: [100] * 10, 4: [400] * 3}
    assert engine.sizes == [4, 1] * 3 + [1] * 7


class PlansAnew(Recorder):
    """Takes 5000 longer for each batch that is of another size than the one before, as a library does that keeps the
    plan of the last one."""

    def run(self, batch):
        self.now_ns += 5000 * (self.sizes[-1:] != [batch.size])
        return super().run(batch)


def test_the_cost_of_changing_the_batch_size_is_told_beside_the_steady_time():
    engine = PlansAnew()
    changes = time_changes(BlockingSession(engine), {}, (4, 1, 2), lambda: engine.now_ns)
    assert changes == {1: (5100, 100), 2: (5200, 200), 4: (5400, 400)}
    assert dear_changes(changes).startswith("slow after a batch of another size: batches of 1 (5.1us, else 100ns), 2")
    assert time_changes(BlockingSession(engine), {}, (4,), lambda: engine.now_ns) == {}
    ends_ns = engine.now_ns + 6000
    part = time_changes(
        BlockingSession(engine), {}, (1, 2, 4), lambda: engine.now_ns, stopped=lambda: engine.now_ns > ends_ns
    )
    assert part == {1: (5100, 100), 2: (5200, 200)}, "what was measured when it was stopped"
    steady = time_changes(BlockingSession(Recorder()), {}, (1, 2), lambda: 0)
    assert dear_changes(steady) == "" and len(steady) == 2


def test_cache_directory_follows_the_environment(monkeypatch):
    assert cache_directory({"EDGESERVE_CACHE": "/a/b", "XDG_CACHE_HOME": "/c"}) == "/a/b"
    assert cache_directory({"XDG_CACHE_HOME": "/c"}) == "/c/edgeserve"
    assert cache_directory({}).endswith("/.cache/edgeserve")
    monkeypatch.setenv("EDGESERVE_CACHE", "/a")
    assert resolve_path("cache:zoo/m.onnx", "/config") == "/a/zoo/m.onnx"
    assert resolve_path("../m.onnx", "/config/here") == "/config/m.onnx"
    assert resolve_path("/m.onnx", "/config") == "/m.onnx"


def test_warm_up_of_a_model_of_sequences_measures_a_turn_and_not_the_whole_answer():
    class Turns(BlockingSession):
        def __init__(self):
            self.now = 0

        def launch(self, batch):
            self.now += 600
            return Finished([Result({}, turns=2), Result({}, turns=6)][: len(batch.items)])

    session = Turns()
    assert warm_up(session, {}, (1, 2), lambda: session.now) == {1: [300] * 3, 2: [100] * 3}
    session = Turns()
    spent = warm_up(session, {}, (2,), lambda: session.now, spend_ns=2400)
    assert len(spent[2]) == 4, "what may be spent is time, not time per turn"


@pytest.mark.parametrize("turns", [0, 3], ids=["no turns", "turns"])
def test_warm_up_of_sequences_measures_the_steps_that_follow_the_prompts(turns):
    class Reads(BlockingSession):
        """Reads a prompt for 1000 ns and makes a step in 100."""

        def __init__(self):
            self.now = 0

        def launch(self, batch):
            if batch.states[0] is not None:
                assert batch.states == ["read"] * len(batch.items) and batch.steps_max is None
                self.now += 300
                return Finished([Result({"said": 1}, steps=3, turns=turns) for _ in batch.items])
            self.now += 1000 + (0 if batch.steps_max else 300)
            unfinished = Result({}, state="read", done=False, turns=turns and 1)
            return Finished([unfinished if batch.steps_max else Result({}, turns=turns and 4) for _ in batch.items])

    session, seen = Reads(), {}
    assert warm_up(session, {}, (1, 2), lambda: session.now, sequences=True, seen=seen) == {1: [100] * 3, 2: [100] * 3}
    assert seen == {"said": 1}
