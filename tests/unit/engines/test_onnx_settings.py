"""Settings of a session of ONNX Runtime, and options that cannot be meant."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any, Dict

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")
pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")

import onnx_models
from onnx import helper

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo
from edgeserve.engines.onnx_settings import (
    Arena,
    OnnxThreads,
    check_entries,
    known_entries,
    read_form,
    session_options,
)
from edgeserve.engines.options import Options
from edgeserve.errors import ConfigError, EngineError

ENTRY = "session.disable_prepacking"


def form_of(tmp_path: Any = ".", **options: Any) -> Any:
    return read_form(Options(ModelConfig("m", engine="onnx", options=options), options), str(tmp_path))


def engine_of(folder: Any, file: str, **options: Any) -> Any:
    return make_engine(ModelConfig("m", engine="onnx", file=file, options=options), [LaneInfo()], str(folder))


def test_entries_reach_the_session_as_onnx_runtime_writes_them() -> None:
    entries = {ENTRY: True, "session.use_env_allocators": 0, "ep.context_file_path": "x.onnx"}
    told = session_options(OnnxThreads(1), form_of(session=entries))
    assert [told.get_session_config_entry(key) for key in entries] == ["1", "0", "x.onnx"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"session": {"session.disable_prepackin": True}},
            r"does not know; did you mean 'session.disable_prepacking'\?",
        ),
        ({"session": {"session.nothing_like_it_at_all": 1}}, r"'session.nothing_like_it_at_all', which onnxruntime"),
        ({"session": {ENTRY: [1]}}, r"options.session.'session.disable_prepacking' = \[1\]: expected a string"),
        ({"session": {"session.intra_op.allow_spinning": "1"}}, "which options.spin sets; leave it out"),
        ({"session": {"session.set_denormal_as_zero": "1"}}, "which every lane sets"),
        ({"session": "x"}, "expected a table"),
        ({"optimization_level": "al"}, r"options.optimization_level = 'al'; did you mean 'all'\?"),
        ({"optimization_level": 3}, "expected a string"),
        ({"custom_ops": ["none.so"]}, "there is no file .*none.so; expected a library of operators"),
        ({"custom_ops": ["nowhere_at_all"]}, "neither a file in .* nor a package"),
        ({"custom_ops": ["json"]}, r"neither a file in .* nor a package with get_library_path"),
        ({"shrink": "yes"}, "expected true or false"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_loaded(
    tmp_path: Any, options: Dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        engine_of(tmp_path, "none.onnx", **options)


def test_the_list_of_entries_is_the_librarys_own() -> None:
    known = known_entries()
    assert ENTRY in known and "session.set_denormal_as_zero" in known and len(known) > 10
    check_entries(["vendor.key", "ep.any.key"], "here")  # of providers in other libraries


@pytest.mark.parametrize("level", ["none", "basic", "extended", "all"])
def test_the_level_of_optimisation(level: str) -> None:
    told = session_options(OnnxThreads(1), form_of(optimization_level=level)).graph_optimization_level
    names = {"none": "DISABLE_ALL", "all": "ENABLE_ALL"}
    assert str(told).endswith(names.get(level, f"ENABLE_{level.upper()}"))


def test_a_library_that_has_no_operators_is_named(tmp_path: Any) -> None:
    (tmp_path / "own.so").write_bytes(b"\x7fELF")
    file = onnx_models.linear(str(tmp_path))
    with pytest.raises(EngineError, match=r"model 'm': options.custom_ops: .*own.so cannot be loaded by onnxruntime"):
        engine_of(tmp_path, file, custom_ops=["own.so"]).load()


# --- outputs that are left out ----------------------------------------------------------------------------------------


def two_outputs(folder: Any) -> str:
    """``y = x * 2`` and ``z = -x``."""
    nodes = [helper.make_node("Mul", ["x", "two"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
    outputs = [(name, onnx_models.FLOAT, ["B", 4]) for name in ("y", "z")]
    inputs = [("x", onnx_models.FLOAT, ["B", 4])]
    return onnx_models.save(str(folder), "two", nodes, inputs, outputs, [("two", np.float32(2))])


def test_an_output_that_is_left_out_is_not_served(tmp_path: Any) -> None:
    engine = engine_of(tmp_path, two_outputs(tmp_path), leave_out=["z"])
    engine.load()
    (result,) = engine.run(Batch([{"x": np.ones(4, np.float32)}], 1))
    assert {name: value.tolist() for name, value in result.outputs.items()} == {"y": [2, 2, 2, 2]}
    assert list(engine.outputs()) == ["y"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["zz"], r"options.leave_out names 'zz', which is no output; did you mean 'z'\?"),
        (["y", "z"], r"leaves no output \(y, z\)"),
    ],
)
def test_names_of_outputs_are_checked(tmp_path: Any, names: Any, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        engine_of(tmp_path, two_outputs(tmp_path), leave_out=names).load()


# --- memory after an unusually large input ----------------------------------------------------------------------------


def gives_back(sizes: Any, usual: int = 0) -> Any:
    arena = Arena(usual)
    return [place for place, size in enumerate(sizes) if arena.gives_back_after({"x": np.zeros(size, np.uint8)})]


def test_memory_goes_back_after_an_input_that_is_unusually_large_and_after_no_other() -> None:
    small, large = 100, 1000
    assert gives_back([small] * 50) == []
    assert gives_back([small, large, *[small] * 60]) == [1]
    assert gives_back([*[small] * 40, large, small, small]) == [40]
    assert gives_back([large, *[small] * 50]) == [1], "nothing was known when it came"
    assert gives_back([small, large] * 40, usual=large) == [], "the configuration declares it"
    assert gives_back([small, 2 * small] * 40) == []


def test_what_has_become_usual_keeps_its_memory_until_it_is_no_longer() -> None:
    small, large = 100, 1000
    found = gives_back([*[small] * 40, *[large] * 100, *[small] * 100])
    assert [place for place in found if 40 <= place < 140] == [40, 41]
    assert len([place for place in found if place >= 140]) == 1
    steady = random.Random(1)
    assert len(gives_back([steady.choice([small, large]) for _ in range(500)])) < 5


MEASURED = """
import sys
import numpy as np
from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

options = {"shrink": sys.argv[2] == "yes"}
model = ModelConfig("m", engine="onnx", file=sys.argv[1], shapes={"x": (3, 64, 64)}, options=options)
engine = make_engine(model, [LaneInfo()], ".")
engine.load()
def run(side):
    engine.run(Batch([{"x": np.zeros((3, side, side), np.float32)}], 1))
for _ in range(5):
    run(64)
before = resident()
run(1024)
print(resident() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_large_frame_does_not_keep_its_memory(tmp_path: Any) -> None:
    """Without it some 270 MB stay, as many as two of its layers take."""
    weights = [("w", np.zeros((32, 3, 3, 3), np.float32)), ("v", np.zeros((32, 32, 3, 3), np.float32))]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "v"], ["b"], pads=[1, 1, 1, 1]),
        helper.make_node("ReduceMean", ["b"], ["y"], axes=[1, 2, 3], keepdims=0),
    ]
    file = onnx_models.save(
        str(tmp_path),
        "wide",
        nodes,
        [("x", onnx_models.FLOAT, ["B", 3, "H", "W"])],
        [("y", onnx_models.FLOAT, ["B"])],
        weights,
    )
    kept = {}
    for shrink in ("yes", "no"):
        command = [sys.executable, "-c", MEASURED, str(tmp_path / file), shrink]
        kept[shrink] = int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert kept["yes"] < kept["no"] / 3, kept
