"""The files of a model: which they are, and what of them is refused before an engine reads them."""

from __future__ import annotations

import json
import os
import random

import numpy as np
import pytest

from edgeserve.config import onnx_file
from edgeserve.config.files import file_sha256
from edgeserve.config.model_files import content_sha256, graph_parts, model_path, parts_of, weights_size_bytes
from edgeserve.config.onnx_file import named_in, whole_numbers
from edgeserve.config.schema import ModelConfig
from edgeserve.engines.describe import check_file
from edgeserve.errors import EngineError

onnx = pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")

import onnx_models  # noqa: E402 needs onnx
from onnx import TensorProto, helper, numpy_helper  # noqa: E402


def model(file="m.onnx", engine="onnx", **more):
    return ModelConfig("m", engine=engine, file=file, **more)


def external(name, location, length=16):
    """A tensor whose numbers lie in another file."""
    tensor = numpy_helper.from_array(np.zeros(4, np.float32), name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def graph_of(nodes=(), weights=(), sparse=()):
    return helper.make_graph(list(nodes), "g", [], [], list(weights), sparse_initializer=list(sparse))


def saved(path, graph, **more):
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    for field, items in more.items():
        getattr(made, field).extend(items)
    path.write_bytes(made.SerializeToString())


def constant(location):
    return helper.make_node("Constant", [], ["c"], value=external("c", location))


def sparse(location):
    indices = numpy_helper.from_array(np.zeros(4, np.int64), "i")
    return helper.make_sparse_tensor(external("s", location), indices, [4])


PLACES = {
    "an initializer": lambda: graph_of(weights=[external("w", "w.bin")]),
    "a node": lambda: graph_of([constant("w.bin")]),
    "a branch of a node": lambda: graph_of(
        [helper.make_node("If", ["x"], ["y"], then_branch=graph_of(weights=[external("w", "w.bin")]))]
    ),
    "a node of a branch of a branch": lambda: graph_of(
        [
            helper.make_node(
                "If",
                ["x"],
                ["y"],
                then_branch=graph_of([helper.make_node("If", [], [], else_branch=graph_of([constant("w.bin")]))]),
            )
        ]
    ),
    "a list of tensors": lambda: graph_of(
        [helper.make_node("Own", [], ["y"], values=[external("w", "w.bin")], domain="own")]
    ),
    "a list of graphs": lambda: graph_of(
        [helper.make_node("Own", [], ["y"], bodies=[graph_of(weights=[external("w", "w.bin")])], domain="own")]
    ),
    "a sparse initializer": lambda: graph_of(sparse=[sparse("w.bin")]),
    "a sparse attribute": lambda: graph_of([helper.make_node("Constant", [], ["c"], sparse_value=sparse("w.bin"))]),
}


@pytest.mark.parametrize("place", list(PLACES))
def test_a_graph_names_files_wherever_a_tensor_may_be(tmp_path, place):
    saved(tmp_path / "m.onnx", PLACES[place]())
    assert named_in(str(tmp_path / "m.onnx")) == {"w.bin": 16}


def test_functions_and_what_trains_a_model_name_files_too(tmp_path):
    function = helper.make_function("own", "F", [], ["c"], [constant("f.bin")], [helper.make_opsetid("", 13)])
    training = onnx.TrainingInfoProto()
    training.algorithm.CopyFrom(graph_of(weights=[external("w", "t.bin")]))
    saved(tmp_path / "m.onnx", graph_of(), functions=[function], training_info=[training])
    assert set(named_in(str(tmp_path / "m.onnx"))) == {"f.bin", "t.bin"}


def test_several_files_in_the_order_of_their_first_use_each_with_what_is_needed_of_it(tmp_path):
    weights = [external("a", "b.bin"), external("b", "a.bin"), external("c", "b.bin", 400)]
    saved(tmp_path / "m.onnx", graph_of(weights=weights))
    assert list(named_in(str(tmp_path / "m.onnx")).items()) == [("b.bin", 400), ("a.bin", 16)]


def test_numbers_inside_the_graph_name_no_file(tmp_path):
    """Also where entries for one are left behind, or a text has the word."""
    tensor = external("w", "left.bin")
    tensor.data_location, tensor.raw_data = TensorProto.DEFAULT, np.zeros(4, np.float32).tobytes()
    node = helper.make_node("Identity", ["w"], ["location"], doc_string="location EPContext")
    saved(tmp_path / "m.onnx", graph_of([node], weights=[tensor]))
    assert named_in(str(tmp_path / "m.onnx")) == {}


def test_the_engine_of_a_graph_that_was_exported_with_one(tmp_path):
    def node(**attributes):
        return helper.make_node("EPContext", [], ["y"], domain="com.microsoft", **attributes)

    nodes = [
        node(embed_mode=0, ep_cache_context="a/engine.bin"),
        node(embed_mode=1, ep_cache_context=b"the engine itself"),
        node(ep_cache_context=b"likewise"),
    ]
    saved(tmp_path / "m.onnx", graph_of(nodes))
    assert named_in(str(tmp_path / "m.onnx")) == {"a/engine.bin": 0}


def test_what_is_no_graph_names_nothing_and_breaks_nothing(tmp_path):
    path = tmp_path / "m.onnx"
    saved(path, graph_of([constant("a.bin")], weights=[external("w", "b.bin")]))
    whole, draw = path.read_bytes(), random.Random(3)
    for content in (
        b"",
        b"weights",
        b"PK\3\4" + b"\0" * 99,
        b"\x80" * 40,
        b"\x3a\xff\xff\xff\xff\x0f",
        bytes(draw.randrange(256) for _ in range(99)),
    ):
        path.write_bytes(content)
        assert named_in(str(path)) == {}
    for _ in range(2000):
        damaged = bytearray(whole[: draw.randrange(len(whole) + 1)])
        for _ in range(draw.randrange(4)):
            if damaged:
                damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path.write_bytes(bytes(damaged))
        named_in(str(path))


def test_single_whole_numbers_are_found_wherever_they_stand(tmp_path):
    def number(value, *, kind=TensorProto.INT64, dims=(), raw=False):
        data = np.array(value, helper.tensor_dtype_to_np_dtype(kind))
        return helper.make_tensor("c", kind, dims, data.tobytes() if raw else data.reshape(-1), raw=raw)

    nodes = [
        helper.make_node("Constant", [], ["a"], value=number(55)),
        helper.make_node("Constant", [], ["b"], value=number([103], dims=[1], kind=TensorProto.INT32, raw=True)),
        helper.make_node("Constant", [], ["c"], value_int=50256),
        helper.make_node("Constant", [], ["d"], value_int=-9),
        helper.make_node("Constant", [], ["e"], value=number([7, 8, 300], dims=[3])),  # several are no single number
        helper.make_node("Constant", [], ["f"], value=number(5.0, kind=TensorProto.FLOAT)),
        helper.make_node("Gather", ["a", "b"], ["g"], axis=66),  # nor is an attribute of another node one
    ]
    weights = [number(-1, raw=True), number(-2, kind=TensorProto.INT32), number([], dims=[0]), external("w", "w.bin")]
    saved(tmp_path / "m.onnx", graph_of(nodes, weights=weights))
    assert whole_numbers(str(tmp_path / "m.onnx")) == (-9, -2, -1, 55, 103, 50256)


@pytest.mark.parametrize("text", [b"", b"not a graph", b"\x3a\x05\x0a"])
def test_no_number_is_found_in_what_is_no_graph(tmp_path, text):
    (tmp_path / "m.onnx").write_bytes(text)
    assert whole_numbers(str(tmp_path / "m.onnx")) == ()


def test_a_graph_of_endless_fields_is_not_walked_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file, "FIELDS_MAX", 1000)
    saved(tmp_path / "m.onnx", graph_of([helper.make_node("Relu", ["x"], ["y"])] * 400))
    assert named_in(str(tmp_path / "m.onnx")) == {}
    saved(tmp_path / "m.onnx", graph_of([helper.make_node("Relu", ["x"], ["y"])] * 1200))
    assert "is not read: its graph has more than 1000 fields" in refused(tmp_path)
    with open(tmp_path / "m.onnx", "wb") as file:  # two gigabytes of nothing
        file.write(b"\x08\x08\x3a\x80\x80\x80\x80\x08")
        os.truncate(file.fileno(), 2**31 + 8)
    assert named_in(str(tmp_path / "m.onnx")) == {}


# --- what is refused --------------------------------------------------------------------------------------------------


def refused(tmp_path, file="m.onnx", **more):
    """The messages of a server and of ``init``."""
    with pytest.raises(EngineError) as by_server:
        model_path(model(file, **more), str(tmp_path))
    with pytest.raises(EngineError) as by_init:
        check_file(str(tmp_path / file))
    assert str(by_server.value) == f"model 'm': {by_init.value}"
    return str(by_init.value)


@pytest.mark.parametrize(
    "name",
    [
        "../w.bin",
        "../../etc/passwd",
        "a/../../w.bin",
        "/etc/passwd",
        "{folder}/w.bin",
        "",
        "link.bin",
        "linked/w.bin",
        "w\0.bin",
        "..",
        "../" * 40 + "etc/passwd",
    ],
)
def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path, name):
    folder = tmp_path / "model"
    (folder / "a").mkdir(parents=True)
    (tmp_path / "w.bin").write_bytes(b"0" * 16)
    (folder / "w.bin").write_bytes(b"0" * 16)
    (folder / "link.bin").symlink_to(tmp_path / "w.bin")
    (folder / "linked").symlink_to(tmp_path)
    saved(folder / "m.onnx", graph_of(weights=[external("w", name.replace("{folder}", str(folder)))]))
    text = refused(folder)
    assert "leads out of the model's folder" in text and "Move the file into the folder" in text
    assert text.isprintable()


def test_links_as_caches_of_downloads_have_them_are_followed(tmp_path):
    """Both the graph and its weights are links into one folder of contents."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    saved(blobs / "1f2e", graph_of(weights=[external("w", "m.onnx_data")]))
    (blobs / "77aa").write_bytes(b"0" * 16)
    (snapshot / "m.onnx").symlink_to("../../blobs/1f2e")
    (snapshot / "m.onnx_data").symlink_to("../../blobs/77aa")
    assert model_path(model(), str(snapshot)) == str(snapshot / "m.onnx")
    (tmp_path / "secret").write_bytes(b"0" * 16)
    os.unlink(snapshot / "m.onnx_data")
    (snapshot / "m.onnx_data").symlink_to("../../secret")
    assert "leads out" in refused(snapshot)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 16\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is not there: copy all files of the model into one folder"),
        (b"0" * 15, "with 16 bytes, and it has 15: copy or download it again"),
        (b"", "with 16 bytes, and it has 0"),
        (POINTER, "is a pointer of git-lfs, not the model: fetch the model with 'git lfs install'"),
        (b"<!DOCTYPE html><html>404", "is a web page, not a model"),
    ],
)
def test_weights_that_are_not_what_the_graph_needs_are_refused(tmp_path, content, said):
    saved(tmp_path / "m.onnx", graph_of(weights=[external("w", "parts/w.bin")]))
    (tmp_path / "parts").mkdir()
    if content is not None:
        (tmp_path / "parts" / "w.bin").write_bytes(content)
    text = refused(tmp_path)
    assert text.startswith(f"{tmp_path}/m.onnx names the file 'parts/w.bin'") and said in text


@pytest.mark.parametrize("name", ["*/_ORT_MEM_ADDR_/*", "\x1b[31mred\n.bin", "parts"])
def test_odd_names_of_files_that_are_not_there_are_shown_as_text(tmp_path, name):
    (tmp_path / "parts").mkdir()
    saved(tmp_path / "m.onnx", graph_of(weights=[external("w", name)]))
    text = refused(tmp_path)
    assert "is not there" in text and text.isprintable()


# --- which files belong to a model ------------------------------------------------------------------------------------


def names(found, folder):
    return [os.path.relpath(part.path, folder) for part in found]


def test_the_files_of_a_graph(tmp_path):
    file = onnx_models.scaled(str(tmp_path), [1.0] * 10, "parts/w.bin")
    (tmp_path / "m.onnx.data").write_bytes(b"of another model")
    for engine in ("onnx", "tensorrt"):
        assert names(parts_of(model(engine=engine), str(tmp_path)), tmp_path) == ["m.onnx", "parts/w.bin"]
    assert weights_size_bytes(str(tmp_path / file)) == os.path.getsize(tmp_path / file) + 40
    digests = [file_sha256(str(tmp_path / name)) for name in ("m.onnx", "parts/w.bin")]
    assert content_sha256(graph_parts(str(tmp_path / file))) not in digests


def test_a_file_of_two_names_is_one(tmp_path):
    weights = [external("a", "./w.bin"), external("b", "w.bin", 400), external("c", "parts/../w.bin", 8)]
    saved(tmp_path / "m.onnx", graph_of(weights=weights))
    (tmp_path / "w.bin").write_bytes(b"0" * 400)
    graph = os.path.getsize(tmp_path / "m.onnx")
    assert weights_size_bytes(str(tmp_path / "m.onnx")) == graph + 400
    (tmp_path / "w.bin").write_bytes(b"0" * 399)
    assert "with 400 bytes, and it has 399" in refused(tmp_path)


def test_files_that_change_their_contents_with_each_other_are_other_files(tmp_path):
    saved(tmp_path / "m.onnx", graph_of(weights=[external("b", "b.bin"), external("a", "a.bin")]))
    digests = set()
    for one, other in ((b"1" * 16, b"2" * 16), (b"2" * 16, b"1" * 16)):
        (tmp_path / "a.bin").write_bytes(one)
        (tmp_path / "b.bin").write_bytes(other)
        parts = parts_of(model(), str(tmp_path))
        assert names(parts, tmp_path) == ["m.onnx", "a.bin", "b.bin"]
        digests.add(content_sha256(parts))
    assert len(digests) == 2


def test_a_graph_of_any_name(tmp_path):
    os.rename(tmp_path / onnx_models.scaled(str(tmp_path), [1.0], "w.bin"), tmp_path / "network")
    assert names(parts_of(model("network"), str(tmp_path)), tmp_path) == ["network", "w.bin"]


def test_the_parts_of_a_gguf_model(tmp_path):
    for part in (1, 2, 3):
        (tmp_path / f"q-{part:05d}-of-00003.gguf").write_bytes(b"GGUF")
    found = parts_of(model("q-00001-of-00003.gguf", "lm"), str(tmp_path))
    assert names(found, tmp_path) == [f"q-{part:05d}-of-00003.gguf" for part in (1, 2, 3)]
    os.unlink(tmp_path / "q-00002-of-00003.gguf")
    assert "names the file 'q-00002-of-00003.gguf', which is not there" in refused(
        tmp_path, "q-00001-of-00003.gguf", engine="lm"
    )


@pytest.mark.parametrize(
    ("engine", "file", "beside", "others"),
    [
        ("lm", "m.onnx", {"m.json": '{"tokenizer": "words.json"}', "words.json": "{}"}, {"other.json": "{}"}),
        ("sentence", "m.onnx", {"tokenizer.json": "{}"}, {"config.json": "{}"}),
        ("whisper", "model.bin", {"config.json": "{}", "tokenizer.json": "", "vocabulary.json": ""}, {"LICENSE": ""}),
        (
            "lm",
            "config.json",
            {"model.safetensors": "", "tokenizer.json": "", "tokenizer.model": "", "chat_template.jinja": ""},
            {"pytorch_model.bin": "", "README.md": "", ".gitattributes": ""},
        ),
        ("lm", "config.json", {"pytorch_model.bin": "", "vocab.txt": ""}, {"training.log": ""}),
    ],
)
def test_what_an_engine_reads_beside_a_models_file(tmp_path, engine, file, beside, others):
    onnx_models.scaled(str(tmp_path), [1.0], name=file[: -len(".onnx")] if file.endswith(".onnx") else "spare")
    if not file.endswith(".onnx"):
        (tmp_path / file).write_text("{}")
    for name, text in {**beside, **others}.items():
        (tmp_path / name).write_text(text)
    found = parts_of(model(file, engine), str(tmp_path))
    assert names(found, tmp_path)[0] == file
    assert set(names(found, tmp_path)) == {file, *beside}


def test_a_tokenizer_that_the_configuration_names(tmp_path):
    onnx_models.scaled(str(tmp_path), [1.0])
    found = parts_of(model(engine="sentence", options={"tokenizer": "../words.json"}), str(tmp_path / "."))
    assert found[1].path == str(tmp_path.parent / "words.json")


def test_a_saved_folder_with_its_weights_in_several_files(tmp_path):
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    for part in (1, 2):
        (tmp_path / f"model-0000{part}-of-00002.safetensors").write_text("x")
    (tmp_path / "consolidated.safetensors").write_text("of another loader")
    found = names(parts_of(model("config.json", "lm"), str(tmp_path)), tmp_path)
    assert set(found) == {"config.json", "model.safetensors.index.json", *index["weight_map"].values()}
    os.unlink(tmp_path / "model-00002-of-00002.safetensors")
    with pytest.raises(EngineError, match=r"names the file 'model-00002-of-00002.safetensors', which is not there"):
        model_path(model("config.json", "lm"), str(tmp_path))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../x.safetensors"}}))
    with pytest.raises(EngineError, match="leads out"):
        model_path(model("config.json", "lm"), str(tmp_path))


def test_what_is_pinned_is_all_of_it(tmp_path):
    """The digest of several files is that of their digests."""
    import hashlib

    onnx_models.scaled(str(tmp_path), [1.0, 2.0], "w.bin")
    files = [(tmp_path / name).read_bytes() for name in ("m.onnx", "w.bin")]
    digest = hashlib.sha256("".join(hashlib.sha256(file).hexdigest() for file in files).encode()).hexdigest()
    assert model_path(model(sha256=digest), str(tmp_path)) == str(tmp_path / "m.onnx")
    with pytest.raises(EngineError, match=r"m.onnx and its other files \(w.bin\) together have sha256 [0-9a-f]{64}"):
        model_path(model(sha256=hashlib.sha256(files[0]).hexdigest()), str(tmp_path))
