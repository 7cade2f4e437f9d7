"""Messages where ONNX Runtime refuses a file or fails with an input: what it means and what to do, then its own text.
The files are made here; the texts are the installed version's."""

from __future__ import annotations

import locale
import os

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")
pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")

import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from edgeserve.config.onnx_file import ends_within
from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine, onnx_failures
from edgeserve.engines.base import Batch, LaneInfo
from edgeserve.engines.describe import describe
from edgeserve.engines.onnx_failures import failed_on, not_loaded
from edgeserve.errors import EngineError, OutOfMemory, WrongInput

FLOAT, HALF, BFLOAT, INT64, STRING = (
    getattr(TensorProto, name) for name in ("FLOAT", "FLOAT16", "BFLOAT16", "INT64", "STRING")
)
X, Y = ("x", FLOAT, ["B", 4]), ("y", FLOAT, ["B", 4])


def network(*nodes, inputs=(X,), outputs=(Y,), weights=(), opset=13, ir=8, domains=()):
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(*item) for item in inputs],
        [helper.make_tensor_value_info(*item) for item in outputs],
        [numpy_helper.from_array(value, name) for name, value in weights],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = ir
    return model.SerializeToString()


def relu(**more):
    return network(helper.make_node("Relu", ["x"], ["y"]), **more)


def lower(name):
    node = helper.make_node("StringNormalizer", ["x"], ["y"], case_change_action="LOWER", locale=name)
    return network(node, inputs=[("x", STRING, ["B"])], outputs=[("y", STRING, ["B"])])


OWN = helper.make_node("Own", ["x"], ["y"], domain="my.ops")

FILES = {
    "opset too new": (relu(opset=99), ["opset", "is newer than onnxruntime", "onnx.version_converter"]),
    "IR too new": (relu(ir=99), ["its IR version 99 is newer than", "set model.ir_version = "]),
    "a locale that is missing": (lower("xx_YY"), ["locale xx_YY", "sudo locale-gen xx_YY", "package locales"]),
    "an operator of a library": (
        network(OWN, domains=["my.ops"]),
        ["operator Own of the domain my.ops", "options.custom_ops"],
    ),
    "the same without its opset": (network(OWN), ["operator Own of the domain my.ops", "options.custom_ops"]),
    "an operator of a later opset": (
        network(helper.make_node("GroupNormalization", ["x"], ["y"]), opset=13),
        ["the operator GroupNormalization is not in opset 13"],
    ),
    "an operator of nobody": (
        network(helper.make_node("FooBar", ["x"], ["y"])),
        ["operator FooBar is not in opset 13"],
    ),
    "no kernel": (relu(opset=1), ["has no Relu (opset 1) for the types", "use another provider"]),
    "a type that an operator does not take": (
        network(
            helper.make_node("Conv", ["x", "w"], ["y"]),
            inputs=[("x", INT64, [1, 1, 2, 2]), ("w", INT64, [1, 1, 1, 1])],
            outputs=[("y", INT64, [1, 1, 2, 2])],
        ),
        ["its operator Conv gets 'x' as int64"],
    ),
    "two types in one operator": (
        network(helper.make_node("Add", ["x", "z"], ["y"]), inputs=[X, ("z", INT64, ["B", 4])]),
        ["its operator Add gets a float and a int64", "cast one before"],
    ),
    "a name from nowhere": (
        network(helper.make_node("Add", ["x", "nope"], ["y"])),
        ["a node takes 'nope', which nothing in the graph gives"],
    ),
    "an attribute of another opset": (
        network(helper.make_node("Relu", ["x"], ["y"], foo=3)),
        ["its operator Relu has the attribute 'foo'"],
    ),
    "shapes that contradict each other": (
        network(helper.make_node("MatMul", ["x", "w"], ["y"]), weights=[("w", np.zeros((3, 4), np.float32))]),
        ["the shapes within the graph contradict each other"],
    ),
    "cut off": (relu()[:-20], ["it ends in the middle, after", "download or export it again"]),
    "text": (b"hello world, this is no model", ["it is damaged or no ONNX file"]),
    "zeros": (b"\0" * 100, ["it is damaged or no ONNX file"]),
    "no graph": (b"\x08\x08", ["it is damaged or no ONNX file"]),
    "torch": (b"PK\x03\x04" + b"\0" * 100, ["a zip archive, as torch.save writes", "torch.onnx.export"]),
    "an old torch": (b"\x80\x02\x8a\x0a" + b"\0" * 100, ["a pickle"]),
    "gguf": (b"GGUF\x03\0\0\0" + b"\0" * 40, ["a GGUF file", "engine = 'lm'"]),
    "safetensors": (b"\x20\0\0\0\0\0\0\0" + b'{"a": 1}', ["safetensors", "weights and no graph"]),
    "tflite": (b"\x1c\0\0\0TFL3" + b"\0" * 40, ["a TensorFlow Lite file"]),
    "keras": (b"\x89HDF\r\n\x1a\n" + b"\0" * 40, ["an HDF5 file"]),
    "json": (b'{"a": 1}', ["it is no ONNX file, but JSON"]),
}


@pytest.mark.parametrize("case", list(FILES))
def test_a_file_that_is_refused(tmp_path, case, capfd):
    """The same is said by a server and by ``edgeserve init``, and only once."""
    content, said = FILES[case]
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(EngineError) as by_server:
        make_engine(ModelConfig("m", engine="onnx", file="m.onnx"), [LaneInfo()], str(tmp_path)).load()
    with pytest.raises(EngineError) as by_init:
        describe(str(path))
    for text in (str(by_server.value), str(by_init.value)):
        assert str(path) in text and [part for part in said if part not in text] == []
        own = text.partition(f" onnxruntime {onnxruntime.__version__} said: ")[2]
        assert own.startswith("[ONNXRuntimeError]") and text.isprintable()
    assert capfd.readouterr() == ("", "")


def test_a_locale_that_is_there_is_taken(tmp_path):
    before = locale.setlocale(locale.LC_CTYPE)
    try:
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    except locale.Error:
        pytest.skip("this system has no locale C.UTF-8")
    finally:
        locale.setlocale(locale.LC_CTYPE, before)
    (tmp_path / "m.onnx").write_bytes(lower("C.UTF-8"))
    make_engine(ModelConfig("m", engine="onnx", file="m.onnx"), [LaneInfo()], str(tmp_path)).load()


def test_a_graph_larger_than_its_format_allows(tmp_path, monkeypatch):
    """With another bound: two gigabytes are not written for a test."""
    monkeypatch.setattr(onnx_failures, "PROTOBUF_BYTES_MAX", 50)
    (tmp_path / "m.onnx").write_bytes(b"\x08\x08" + b"\xff" * 100)
    text = not_loaded(str(tmp_path / "m.onnx"), RuntimeError("[ONNXRuntimeError] : 7 : INVALID_PROTOBUF"))
    assert "it has 102 bytes, and no graph may be larger than 2 GB" in text and "save_as_external_data=True" in text


def test_a_sparse_file_of_more_than_two_gigabytes(tmp_path):
    with open(tmp_path / "m.onnx", "wb") as file:
        file.write(b"\x08\x08\x3a\x80\x80\x80\x80\x09")  # a graph of 2.25 GB
        os.truncate(file.fileno(), 9 * 2**28 + 8)
    with pytest.raises(EngineError, match=r"no graph may be larger than 2 GB.*save_as_external_data"):
        make_engine(ModelConfig("m", engine="onnx", file="m.onnx"), [LaneInfo()], str(tmp_path)).load()


@pytest.mark.parametrize("cut", range(0, 60, 3))
def test_where_a_file_ends_is_seen(tmp_path, cut):
    whole, path = relu(), tmp_path / "m.onnx"
    path.write_bytes(whole[: len(whole) - cut])
    opset = whole.rindex(b"\x42")  # behind the graph: what ends before it is whole, as far as it goes
    assert ends_within(str(path)) == (len(whole) - cut not in (opset, len(whole)))


# --- runs -------------------------------------------------------------------------------------------------------------


def failure(tmp_path, content, items):
    (tmp_path / "m.onnx").write_bytes(content)
    engine = make_engine(ModelConfig("m", engine="onnx", file="m.onnx", batch=(1, 2)), [LaneInfo()], str(tmp_path))
    engine.load()
    with pytest.raises(EngineError) as found:
        engine.run(Batch(items, len(items)))
    return found.value


def open_input(name):
    return (name, FLOAT, ["B", f"{name}_length"])


FIXED = network(helper.make_node("Reshape", ["x", "s"], ["y"]), weights=[("s", np.array([1, 4], np.int64))])
TABLE = network(
    helper.make_node("Gather", ["t", "x"], ["y"]),
    inputs=[("x", INT64, ["B", 1])],
    outputs=[("y", FLOAT, ["B", 1, 4])],
    weights=[("t", np.zeros((10, 4), np.float32))],
)
JOINED = network(
    helper.make_node("Concat", ["x", "z"], ["y"], axis=0),
    inputs=[open_input("x"), open_input("z")],
    outputs=[open_input("y")],
)
ADDED = network(
    helper.make_node("Add", ["x", "z"], ["y"]), inputs=[open_input("x"), open_input("z")], outputs=[open_input("y")]
)
FOUR = {"x": np.zeros(4, np.float32)}
THREE_AND_FIVE = {"x": np.zeros(3, np.float32), "z": np.zeros(5, np.float32)}


@pytest.mark.parametrize(
    ("content", "items", "said"),
    [
        (
            FIXED,
            [FOUR, FOUR],
            ["a Reshape in the graph has the fixed shape [1,4] and got [2,4]", "[model.m] batch = [1]"],
        ),
        (TABLE, [{"x": np.array([99])}, {"x": np.array([1])}], ["an input has the index 99", "from -10 to 9"]),
        (JOINED, [THREE_AND_FIVE], ["lengths do not fit each other at its operator Concat"]),
        (ADDED, [THREE_AND_FIVE], ["lengths do not fit each other at its operator Add", "[model.m] shapes"]),
    ],
)
def test_an_input_that_fails(tmp_path, content, items, said):
    error = failure(tmp_path, content, items)
    text = str(error)
    assert [part for part in said if part not in text] == []
    assert f"onnxruntime {onnxruntime.__version__} said: [ONNXRuntimeError]" in text
    assert not isinstance(error, WrongInput), "of several items nothing says which one it was"


def test_the_only_items_value_is_its_own_mistake(tmp_path):
    error = failure(tmp_path, TABLE, [{"x": np.array([99])}])
    assert isinstance(error, WrongInput) and "has the index 99" in str(error)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Invalid rank for input: x Got: 3 Expected: 4 Please fix", "its input 'x' has 3 axes where 4 are expected"),
        (
            "Got invalid dimensions for input: x for the following indices\n index: 1 Got: 4 Expected: 3",
            "a length of 4 where 3",
        ),
        ("Unexpected input data type. Actual: (tensor(double)) , expected: (tensor(float))", "double where float"),
        ("something else", "failed on x float32[4]: onnxruntime"),
    ],
)
def test_texts_of_other_ways_to_fail(text, said):
    assert said in str(failed_on("m", RuntimeError(text), {"x": np.zeros(4, np.float32)}))


def test_memory_and_long_texts():
    short = RuntimeError("Failed to allocate memory for requested buffer of size 4096")
    error = failed_on("m", short, {})
    assert isinstance(error, OutOfMemory) and error.asked_bytes == 4096
    assert len(str(failed_on("m", RuntimeError("x" * 10**6), {}))) < 2000
