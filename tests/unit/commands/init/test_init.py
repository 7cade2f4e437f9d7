"""``edgeserve init``: what is read from a model file, what is written, and that the result serves."""

from __future__ import annotations

import importlib
import os
import struct
from pathlib import Path

import llama_double
import numpy as np
import pytest

from edgeserve import cli
from edgeserve.commands.check import read_asked
from edgeserve.commands.init import model_files, read_shapes, trial
from edgeserve.commands.init.roles import GUESS_BYTES_MAX, NoBatchAxis, model_names, roles_of
from edgeserve.commands.init.slo import choose_slo, read_rates, round_up
from edgeserve.commands.init.trial import worthwhile
from edgeserve.config.loading import load_config, parse_config
from edgeserve.device.boards import KINDS, Machine
from edgeserve.engines.describe import FileDescription, describe
from edgeserve.engines.gguf import read_header
from edgeserve.engines.lm.lm_options import KNOWN_OPTIONS
from edgeserve.engines.port import Port
from edgeserve.engines.tensorrt import plan_source
from edgeserve.errors import ConfigError, EngineError
from edgeserve.live import device_watch
from edgeserve.live.sensors import with_headroom
from edgeserve.runtime import Runtime
from edgeserve.sched.core.build import build_scheduler
from edgeserve.units import NS_PER_MS

F32, I64 = np.dtype(np.float32), np.dtype(np.int64)


def onnx(tmp_path, name, *arguments):
    import onnx_models

    return os.path.join(str(tmp_path), getattr(onnx_models, name)(str(tmp_path), *arguments))


def written(tmp_path, *arguments):
    out = os.path.join(str(tmp_path), "edge.toml")
    assert cli.main(["init", "--here", *arguments, "--out", out, "--cpu"]) == 0
    return load_config(out)


# --- whole files ---


def test_a_network_becomes_a_configuration_that_serves(tmp_path, capsys):
    config = written(tmp_path, onnx(tmp_path, "linear"))
    model, app = config.models["linear"], config.apps["linear"]
    assert (model.engine, model.file) == ("onnx", "linear.onnx")
    assert app.inputs["x"].shape == (4,)
    assert "edgeserve infer linear --example" in capsys.readouterr().out
    with Runtime(config) as runtime:
        answer = runtime.infer("linear", {"x": np.ones(4, np.float32)}, slo_ms=10_000)
    assert answer["y"].shape == (3,)


def test_frames_of_a_camera_are_proposed_for_image_networks_and_the_proposal_serves(tmp_path, capsys):
    written(tmp_path, onnx(tmp_path, "brightness"))
    said = capsys.readouterr().out
    assert "frames of a camera can be prepared in front of it (0.2" in said
    lines = (tmp_path / "edge.toml").read_text().splitlines()
    taken = [number for number, line in enumerate(lines) if line.startswith(("# options", "# image"))]
    for number in taken:  # as its comment says
        lines[number] = lines[number][2:]
    del lines[taken[1] - 1]
    (tmp_path / "edge.toml").write_text("\n".join(lines))
    with Runtime(load_config(str(tmp_path / "edge.toml"))) as runtime:
        answer = runtime.infer("brightness", {"image": np.full((1080, 1920, 3), 51, np.uint8)}, slo_ms=10_000)
    assert answer["level"] == pytest.approx(51 / 255, abs=0.51 / 255)  # rounding of uint8


def test_networks_of_guessed_sizes_or_other_colours_get_no_proposal(tmp_path):
    for number, dims in enumerate(([3, "H", "W"], [1, 32, 32])):
        written(tmp_path, onnx(tmp_path, "brightness", dims), *(["--force"] if number else []))
        assert "options" not in (tmp_path / "edge.toml").read_text()


@pytest.mark.parametrize(
    ("given", "answer", "operator", "item"),
    [
        ([6], [6], "MatMul", (6,)),  # a filter
        ([6], [2], "MatMul", (6,)),  # a policy
        ([6], [], "ReduceSum", (6,)),  # the worth of a state
        (["T", 6], ["T", 6], "CumSum", (-1, 6)),  # a track
        ([4, 6], [4, 6], "Tanh", (6,)),  # a batch of four
        (["B", 6], ["B", 6], "Tanh", (6,)),
    ],
)
def test_a_run_tells_whether_the_first_axis_is_a_batch(given, answer, operator, item, tmp_path):
    name = onnx(tmp_path, "running_sum" if operator == "CumSum" else "mixing", "m", given, answer, operator)
    config = written(tmp_path, name)
    assert config.apps["m"].inputs["x"].shape == item
    whole = len(item) == len(given)
    assert config.models["m"].options == ({"batch_axis": False} if whole else {})
    example = np.arange(int(np.prod([abs(length) for length in item])), dtype=np.float32)
    with Runtime(config) as runtime:
        got = runtime.infer("m", {"x": example.reshape([abs(length) for length in item])}, slo_ms=10_000)["y"]
    right = {"MatMul": [15.0] * (answer[0] if operator == "MatMul" else 0), "ReduceSum": 15.0}
    np.testing.assert_allclose(
        np.ravel(got), np.ravel(right.get(operator, example if whole else np.tanh(example))), 1e-5
    )


def test_where_a_run_cannot_tell_the_axis_is_asked_for(tmp_path, capsys):
    clamp = onnx(tmp_path, "mixing", "clamp", [6], [6], "Tanh")
    assert cli.main(["init", "--here", clamp, "--out", str(tmp_path / "edge.toml"), "--cpu"]) != 0
    assert "x [6] is one item or a batch of 6" in capsys.readouterr().err
    assert written(tmp_path, clamp, "--batch-axis", "no").apps["clamp"].inputs["x"].shape == (6,)
    assert written(tmp_path, clamp, "--batch-axis", "yes", "--force").models["clamp"].batch == (6,)


AS_THE_FILE_SAYS = {
    "a graph: nodes and edges": (
        """g (float[?,6] x, int64[2,?] edges) => (float[?,6] y) <int64 zero = {0}>
        { row = Gather(edges, zero) at = Gather(x, row) most = ReduceMax<keepdims=0>(at) y = Add(x, most) }""",
        {"x": [-1, 6], "edges": [2, -1]},
    ),
    "boxes of one image": (
        """g (float[1,4,8,8] map, float[boxes,4] rois, int64[boxes] of) => (float[boxes,4,3,3] y)
        { y = RoiAlign<output_height=3, output_width=3>(map, rois, of) }""",
        {"map": [1, 4, 8, 8], "rois": [-1, 4], "of": [-1]},
    ),
    "points, one answer": (
        """g (float[?,4] points, int32[?] kinds) => (float[1,4] y)
        { k = Cast<to=1>(kinds) s = ReduceSum(k) m = ReduceMax<axes=[0]>(points) y = Add(m, s) }""",
        {"points": [-1, 4], "kinds": [-1]},
    ),
    "a frame, row by row": (
        "g (uint8[height,width,3] x) => (float[height,width,3] y) { y = Cast<to=1>(x) }",
        {"x": [-1, -1, 3]},
    ),
    "a frame of fixed size": ("g (uint8[48,64,3] x) => (float[48,64,3] y) { y = Cast<to=1>(x) }", {"x": [48, 64, 3]}),
    "colours first": ("g (float[3,48,64] x) => (float[3,48,64] y) { y = Tanh(x) }", {"x": [3, 48, 64]}),
    "a sound": ("g (float[num_samples] x) => (float[num_samples] y) { y = Tanh(x) }", {"x": [-1]}),
    "time first, with a state": (
        """g (float[time,batch,4] x, float[1,batch,4] h0) => (float[time,batch,4] y, float[1,batch,4] hn)
        { m = ReduceMean<axes=[0]>(x) hn = Add(h0, m) y = Add(x, hn) }""",
        {"x": [-1, -1, 4]},
    ),
}


@pytest.mark.parametrize("kind", sorted(AS_THE_FILE_SAYS))
def test_what_is_one_request_as_a_whole_is_served_so(kind, tmp_path):
    text, inputs = AS_THE_FILE_SAYS[kind]
    config = written(tmp_path, saved(tmp_path, text))
    assert config.models["m"].options["batch_axis"] is False
    assert {name: list(found.shape) for name, found in config.apps["m"].inputs.items()} == inputs


def saved(tmp_path, text):
    import onnx

    header = '<ir_version: 8, opset_import: ["" : 16]>'
    onnx.save(onnx.parser.parse_model(header + text), str(tmp_path / "m.onnx"))
    return str(tmp_path / "m.onnx")


def test_an_example_tells_a_size_that_an_image_can_have(tmp_path):
    """As SAM's decoder takes it: a size of 0 fails in it."""
    text = """g (float[1,1,8,8] masks, float[2] orig_im_size) => (float[1,1,h,w] y) <int64[2] ones = {1, 1}>
    { size = Cast<to=7>(orig_im_size) all = Concat<axis=0>(ones, size)
      y = Resize<mode="nearest">(masks, , , all) }"""
    config = written(tmp_path, saved(tmp_path, text))
    assert config.models["m"].options["settings"] == ["orig_im_size"]


def test_guessed_lengths_make_no_huge_input():
    port = Port("x", F32, (None,) * 5, ("batch", "a", "b", "c", "d"))
    found = roles([port])
    assert found.candidates and all(np.prod(guess["x"]) * 4 <= GUESS_BYTES_MAX for guess in found.candidates)


def test_a_batch_of_one_whose_outputs_lack_it_is_none_also_without_the_option(tmp_path):
    """``batch_axis = false`` by itself: the list is the item's, however long."""
    import drawn_graphs as graphs
    import onnx

    onnx.save(graphs.of_steps("image", end=graphs._places, x=[1, 2, 3, 2], y=["found", 4]), str(tmp_path / "m.onnx"))
    model = {"engine": "onnx", "file": "m.onnx"}
    tables = {"model": {"m": model}, "app": {"m": {"model": "m", "slo": "30s"}}}
    image = np.zeros((1, 2, 3, 2), np.float32)
    with Runtime(parse_config(tables, directory=str(tmp_path))) as runtime:
        assert runtime.infer("m", {"x": image - 9})["y"].shape == (0, 4)
        assert runtime.infer("m", {"x": image + 9})["y"].shape == (12, 4)


def test_a_classifier_of_scikit_learn_serves_its_label_and_says_how_to_get_the_rest(tmp_path, capsys):
    config = written(tmp_path, onnx(tmp_path, "classifier"))
    assert "'zipmap': False" in capsys.readouterr().out
    with Runtime(config) as runtime:
        answer = runtime.infer("classifier", {"x": np.array([0, 3, 1, 2], np.float32)}, slo_ms=10_000)
    assert set(answer) == {"label"} and int(answer["label"]) == 1


@pytest.mark.parametrize(
    ("content", "mend"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "git lfs pull"),
        (b"\n<!DOCTYPE html><html>", "address of the file itself"),
        (b"\x08\x07\x12\xff\xff", "download or export it again"),
    ],
)
def test_a_file_that_is_no_model_says_what_to_do(content, mend, tmp_path, capsys):
    pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")
    (tmp_path / "m.onnx").write_bytes(content)
    (tmp_path / "edge.toml").write_text(
        '[lane.cpu0]\n[model.m]\nengine = "onnx"\nfile = "m.onnx"\n[app.m]\nmodel = "m"\nslo = "1s"\n'
    )
    assert cli.main(["init", "--here", str(tmp_path / "m.onnx"), "--out", str(tmp_path / "new.toml")]) != 0
    assert mend in capsys.readouterr().err
    with pytest.raises(EngineError, match=mend):
        with Runtime(str(tmp_path / "edge.toml")):
            pass


@pytest.fixture
def tensorrt(monkeypatch, tmp_path):
    """TensorRT's double, on a machine that has a GPU."""
    pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")
    import trt_worlds

    monkeypatch.setenv("EDGESERVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(trial, "has_nvidia_gpu", lambda: True)
    monkeypatch.setattr(plan_source, "build_plan", trt_worlds.build_here)
    with trt_worlds.world(monkeypatch, "10.3"):
        yield


def test_where_tensorrt_and_a_gpu_answer_it_is_proposed_and_its_plan_is_there(tensorrt, tmp_path):
    out = tmp_path / "edge.toml"
    assert cli.main(["init", "--here", onnx(tmp_path, "linear"), "--out", str(out)]) == 0
    model = load_config(str(out)).models["linear"]
    assert (model.engine, model.batch) == ("tensorrt", (1, 2, 4, 8))
    assert '# options = { precision = "fp16" }' in out.read_text()
    plans = sorted((tmp_path / "cache" / "tensorrt").glob("*.plan"))
    with Runtime(load_config(str(out))) as runtime:
        runtime.infer("linear", {"x": np.ones(4, np.float32)}, slo_ms=10_000)
    assert sorted((tmp_path / "cache" / "tensorrt").glob("*.plan")) == plans, "what init built is served"


def test_what_tensorrt_cannot_build_is_served_otherwise_with_the_reason(tensorrt, tmp_path, monkeypatch):
    monkeypatch.setenv("TRT_DOUBLE_FAULT", "raises")
    out = tmp_path / "edge.toml"
    assert cli.main(["init", "--here", onnx(tmp_path, "linear"), "--out", str(out)]) == 0
    assert load_config(str(out)).models["linear"].engine == "onnx"
    assert "a bug of the library" in out.read_text()


def test_a_state_a_constant_and_the_states_batch_axis_are_found(tmp_path):
    config = written(tmp_path, onnx(tmp_path, "recurrent"))
    model = config.models["recurrent"]
    assert model.state == {"state": "stateN"}
    assert model.options == {"constants": {"rate": 16000}, "state_axis": 1}
    assert config.apps["recurrent"].stream == "in_order"
    assert list(config.apps["recurrent"].inputs) == ["x"]


def test_open_axes_get_lengths_that_run_and_stay_open_for_requests(tmp_path):
    config = written(tmp_path, onnx(tmp_path, "pooled"))
    assert config.models["pooled"].shapes == {"x": (1, 128)}
    assert config.models["pooled"].batch == (1,)
    assert config.apps["pooled"].inputs["x"].shape == (1, -1)


def test_lengths_that_are_given_are_fixed(tmp_path):
    config = written(tmp_path, onnx(tmp_path, "pooled"), "--shape", "x=1,6")
    assert config.models["pooled"].shapes == {"x": (1, 6)}
    assert config.apps["pooled"].inputs["x"].shape == (1, 6)


def test_a_folder_stands_for_its_models_and_a_rate_is_the_deadline(tmp_path):
    onnx(tmp_path, "linear")
    onnx(tmp_path, "lookup")
    config = written(tmp_path, str(tmp_path), "--rate", "linear=20")
    assert sorted(config.apps) == ["linear", "lookup"]
    assert config.apps["linear"].slo_ns == 50 * NS_PER_MS


def test_a_file_of_the_asset_cache_keeps_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGESERVE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache" / "net").mkdir(parents=True)
    path = onnx(tmp_path / "cache" / "net", "linear")
    for given in ("cache:net/linear.onnx", path):
        assert written(tmp_path, given, "--force").models["linear"].file == "cache:net/linear.onnx"


def test_a_model_file_is_never_overwritten(tmp_path, capsys):
    path = Path(onnx(tmp_path, "linear"))
    before = path.read_bytes()
    assert cli.main(["init", "--here", str(path), "--out", str(path), "--force"]) == 2
    assert f"--out {path} is a model file" in capsys.readouterr().err and path.read_bytes() == before


def test_nothing_is_overwritten_unless_asked(tmp_path, capsys):
    file = onnx(tmp_path, "linear")
    written(tmp_path, file)
    assert cli.main(["init", "--here", file, "--out", f"{tmp_path}/edge.toml"]) == 2
    assert "edge.toml is there already; give another name with --out, or --force" in capsys.readouterr().err
    written(tmp_path, file, "--force")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"x", "its ending is none of a model file"),
        ("config.json", b"{}", "engine = 'lm' and file = 'FOLDER/config.json'"),
        ("a.engine", b"x", "elsewhere give the ONNX file"),
        ("a.onnx", b"", "the file is empty"),
        ("a.onnx", b"no model", "cannot be read as an ONNX model"),
        ("a.gguf", b"nope", "does not begin with GGUF"),
    ],
)
def test_a_file_that_is_no_model_is_said_to_be_none(tmp_path, name, content, words, capsys):
    if content and name.endswith("onnx"):
        pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")
    path = tmp_path / name
    path.write_bytes(content)
    assert cli.main(["init", "--here", str(path), "--out", f"{tmp_path}/edge.toml"]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "edge.toml").exists()


def test_a_folder_without_models_and_a_file_named_twice_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="there is no model file in this folder"):
        model_files([str(tmp_path)])
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="no model file in this folder.*file = 'FOLDER/config.json'"):
        model_files([str(tmp_path)])
    with pytest.raises(ConfigError, match="is named twice"):
        model_files(["a.onnx", "a.onnx"])
    with pytest.raises(EngineError, match="there is no such file"):
        describe(f"{tmp_path}/a.onnx")


# --- a language model ---


def gguf_file(path, entries, tensors=0):
    """A GGUF header with (name, type, packed value) entries, and small tensors behind it."""
    body = b"".join(
        struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value for name, kind, value in entries
    )
    body += b"".join(text(b"t%d" % index) + struct.pack("<IQIQ", 1, 8, 0, 32 * index) for index in range(tensors))
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, len(entries)) + body + b"\0" * 64 * tensors)
    return str(path)


def text(value):
    return struct.pack("<Q", len(value)) + value


@pytest.fixture
def llama(tmp_path_factory, monkeypatch):
    """A double of llama.cpp."""
    yield from llama_double.installed(tmp_path_factory.mktemp("llama"), monkeypatch)


def tiny_gguf(tmp_path):
    """A header of a language model."""
    tokens = struct.pack("<IQ", 8, 2) + text(b"a") + text(b"bc")
    return gguf_file(
        tmp_path / "tiny.gguf",
        [
            (b"general.architecture", 8, text(b"llama")),
            (b"tokenizer.ggml.model", 8, text(b"gpt2")),
            (b"tokenizer.ggml.tokens", 9, tokens),
            (b"general.name", 8, text(b"Tiny")),
            (b"llama.context_length", 4, struct.pack("<I", 2048)),
            (b"llama.rope.freq_base", 6, struct.pack("<f", 1e4)),
        ],
        tensors=1,
    )


@pytest.mark.parametrize(
    ("in_library", "on_machine", "words", "kind"),
    [("1", True, (), "cuda"), ("", True, (), "cpu"), ("1", False, (), "cpu"), ("1", True, ("--cpu",), "cpu")],
    ids=["a gpu", "none in the library", "none in the machine", "not asked for"],
)
def test_a_gguf_file_is_served_on_the_gpu_where_library_and_machine_have_one(
    tmp_path, llama, monkeypatch, in_library, on_machine, words, kind
):
    monkeypatch.setenv("LLAMA_DOUBLE_GPU", in_library)
    monkeypatch.setattr(trial, "has_nvidia_gpu", lambda: on_machine)
    out = str(tmp_path / "edge.toml")
    assert cli.main(["init", tiny_gguf(tmp_path), "--out", out, "--here", *words]) == 0
    config = load_config(out)
    lane = config.lanes[(config.models["tiny"].lanes or tuple(config.lanes))[0]]
    assert config.devices[lane.device].kind == kind


@pytest.mark.parametrize(("kind", "headroom"), [("agx-orin", 512 * 10**6), ("desktop-gpu", 0)])
def test_a_board_keeps_memory_free_for_everything_else(tmp_path, llama, monkeypatch, kind, headroom):
    monkeypatch.setenv("LLAMA_DOUBLE_GPU", "1")
    monkeypatch.setattr(trial, "has_nvidia_gpu", lambda: True)
    monkeypatch.setattr(device_watch, "detect_board", lambda: Machine(KINDS[kind]))
    out = str(tmp_path / "edge.toml")
    assert cli.main(["init", "--here", tiny_gguf(tmp_path), "--out", out]) == 0
    written, unmeasured = load_config(out), {("tiny", "gpu0"): {1: [], 2: []}}
    assert build_scheduler(written, measured=unmeasured).devices["gpu"].headroom_bytes == 0
    served = build_scheduler(with_headroom(written), measured=unmeasured)
    assert served.devices["gpu"].headroom_bytes == headroom
    Path(out).write_text(Path(out).read_text().replace('"auto"', '"1GB"'))
    assert with_headroom(load_config(out)).devices["gpu"].headroom_bytes == 10**9


def test_a_gguf_file_becomes_a_language_model(tmp_path, llama):
    path = tiny_gguf(tmp_path)
    assert describe(path).facts == {
        "architecture": "llama",
        "name": "Tiny",
        "context_length": 2048,
        "size_bytes": os.path.getsize(path),
    }
    config = written(tmp_path, path)
    assert config.models["tiny"].engine == "lm"
    options = config.models["tiny"].options
    assert options["context"] == 2048 and "chat" not in options
    assert config.models["tiny"].slots == max(config.models["tiny"].batch) == 2
    assert not set(options) - set(KNOWN_OPTIONS)  # the engine refuses what it does not know
    app = config.apps["tiny"]
    assert app.inputs["prompt"].dtype == "text" and app.on_late == "answer"


def test_a_header_of_millions_of_empty_arrays_is_refused_before_they_are_read(tmp_path):
    path = gguf_file(tmp_path / "a.gguf", [(b"a", 9, struct.pack("<IQ", 9, 5_000_000))])
    os.truncate(path, 1 << 30)  # sparse: as many bytes as the arrays would have
    with pytest.raises(EngineError, match="more than 4000000 texts and arrays"):
        read_header(str(path))


# --- what is guessed ---


def roles(inputs, outputs=(), shapes=None, opaque=False, usual=None):
    return roles_of(FileDescription("onnx", tuple(inputs), tuple(outputs), usual or {}, opaque), shapes or {}, "m.onnx")


def test_the_metadata_of_the_file_comes_before_a_guess():
    found = roles([Port("images", F32, (None, 3, None, None))], usual={"images": (3, 480, 640)})
    assert found.candidates == [{"images": (3, 480, 640)}]
    assert found.is_open


def test_an_image_is_guessed_to_be_one():
    found = roles([Port("x", F32, (None, None, None, None))])
    assert found.candidates[0] == {"x": (3, 640, 640)}
    assert roles([Port("ids", I64, (None, None))]).candidates[0] == {"ids": (128,)}


def test_only_inputs_with_an_output_of_the_same_form_are_states():
    outputs = [Port("hn", F32, (2, None, 64)), Port("cn", F32, (2, None, 64)), Port("y", F32, (None, 1))]
    found = roles(
        [Port("x", F32, (None, 4)), Port("c0_state", F32, (2, None, 64)), Port("h0_state", F32, (2, None, 64))], outputs
    )
    assert found.state == {"c0_state": "cn", "h0_state": "hn"}
    assert found.state_axis == 1
    assert roles([Port("x", F32, (None, 4)), Port("state", F32, (None, 3))], outputs).state == {}


@pytest.mark.parametrize(
    ("inputs", "outputs", "settings"),
    [
        ([("x", (None, None)), ("lengths", (None,)), ("scales", (3,))], [("y", (None, None))], ["scales"]),
        ([("x", (None, 4)), ("step", ())], [("y", (None, 4))], ["step"]),
        ([("x", (1, None, 2)), ("orig_im_size", (2,)), ("has_mask", (1,))], [("y", (1, 4))], ["orig_im_size"]),
        ([("x", (1, 4)), ("anchors", (9, 2))], [("y", (None, 4))], ["anchors"]),
        ([("x", (None, 4)), ("speed", (1,))], [("y", (None, 4))], []),
        ([("x", (4, 8))], [("y", (4, 2))], []),
    ],
)
def test_a_fixed_length_beside_a_batch_is_a_setting(inputs, outputs, settings):
    ports = [[Port(name, F32, dims) for name, dims in side] for side in (inputs, outputs)]
    found = roles(*ports)
    assert found.settings == settings
    assert [port.name for port in found.given] == [name for name, _ in inputs]
    if settings:
        assert found.fixed_batch == 1 and any("no batch axis, so each request brings" in note for note in found.notes)
        whole = {name: dims for name, dims in inputs if name in settings}
        assert {port.name: port.dims[1:] for port in found.given if port.name in settings} == whole


def test_a_single_number_is_a_setting_and_a_rate_a_constant_also_with_an_axis():
    found = roles([Port("x", F32, (None, 4)), Port("sr", I64, (1,)), Port("speed", F32, ())])
    assert (found.constants, found.settings) == ({"sr": 16000}, ["speed"])


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ([("a", (4,)), ("b", (6, 2))], [("y", (4,))]),  # nothing says which would be the batch
        ([("a", ()), ("b", ())], [("y", ())]),
        ([("x", (4, 8)), ("gain", ())], [("y", (4, 2))]),
        ([("x", (None, 4)), ("state", (2, 3))], [("y", (None, 4)), ("stateN", (2, 3))]),
        ([("x", (None, 6)), ("edge_index", (2, None))], [("y", (None, 3))]),
    ],
)
def test_where_inputs_outputs_or_states_have_no_batch_axis_that_is_said(inputs, outputs):
    with pytest.raises(NoBatchAxis):
        roles(*[[Port(port[0], F32, *port[1:]) for port in side] for side in (inputs, outputs)])


def test_each_state_has_the_axis_with_the_batchs_name_or_length():
    names = [
        ("x", ("N", "", ""), (None, 5, 8)),
        ("cache_a", ("", "N"), (2, None)),
        ("cache_b", ("T", "N"), (None, None)),
    ]
    inputs = [Port(name, F32, dims, axes) for name, axes, dims in names]
    found = roles(inputs, [Port(f"new_{port.name}", F32, port.dims, port.axes) for port in inputs])
    assert found.state_axis == 1 and set(found.state) == {"cache_a", "cache_b"}
    fixed = [Port("x", F32, (1, 4)), Port("h", F32, (2, 1, 8)), Port("c", F32, (1, 8))]
    found = roles(fixed, [Port("y", F32, (1, 4)), Port("hn", F32, (2, 1, 8)), Port("cn", F32, (1, 8))])
    assert (found.state_axis, found.fixed_batch) == ({"h": 1, "c": 0}, 1)


@pytest.mark.parametrize(
    ("name", "output", "is_state"),
    [
        ("state", "stateN", True),
        ("h", "hn", True),
        ("h_0", "h_n", True),
        ("input_3_state", "output_3_state", True),
        ("cached_len_0", "new_cached_len_0", True),
        ("initial_state", "final_state", True),
        ("prevHidden", "nextHidden", True),
        ("state", "action", False),
        ("cell_image", "denoised", False),
        ("memory_mask", "logits", False),
        ("past_actions", "scores", False),
        ("prev_x", "x_between", False),
    ],
)
def test_a_state_and_what_replaces_it_have_one_name(name, output, is_state):
    found = roles(
        [Port("x", F32, (None, 4)), Port(name, F32, (None, 4))],
        [Port("y", F32, (None, 2)), Port(output, F32, (None, 4))],
    )
    assert found.state == ({name: output} if is_state else {})


def test_a_position_beside_states_is_one_and_one_of_two_frames_is_none():
    inputs = [Port("x", F32, (None, 4)), Port("cache", F32, (None, 4)), Port("lens", I64, (None,))]
    outputs = [Port("y", F32, (None, 4)), Port("new_cache", F32, (None, 4)), Port("new_lens", I64, (None,))]
    assert roles(inputs, outputs).state == {"cache": "new_cache", "lens": "new_lens"}
    assert roles([inputs[0], inputs[2]], outputs).state == {}
    frames = [Port(f"{side}_frame", F32, (1, 3, 8, 8)) for side in ("prev", "next")]
    assert roles(frames, [Port("frame", F32, (1, 3, 8, 8))]).state == {}


def test_a_model_without_a_batch_axis_is_refused():
    with pytest.raises(NoBatchAxis, match=r"no batch axis in front \(image \[480, 640, 3\]\)"):
        roles([Port("image", F32, (480, 640, 3))], [Port("y", F32, (10,))])
    assert roles([Port("x", F32, (4, 8))], [Port("y", F32, (4, 2))]).fixed_batch == 4


def test_torchscript_needs_shapes_and_takes_those_given():
    with pytest.raises(EngineError, match="--shape x=3,224,224"):
        roles([Port("x", F32, ())], opaque=True)
    assert roles([Port("x", F32, ())], shapes={"x": (3, 8, 8)}, opaque=True).given[0].dims == (None, 3, 8, 8)


def test_a_shape_of_the_wrong_rank_or_length_is_refused():
    port = Port("x", F32, (None, 3, None))
    with pytest.raises(EngineError, match="has 3 axes; the input has 2 per item"):
        roles([port], shapes={"x": (1, 3, 8)})
    with pytest.raises(EngineError, match=r"does not fit the input, which is \[3, any\]"):
        roles([port], shapes={"x": (4, 8)})
    with pytest.raises(ConfigError, match="expected INPUT=LENGTHS"):
        read_shapes(["x=3,a"])


def test_names_are_bare_and_unique():
    assert model_names(["a/yolo v8.onnx", "b/yolo-v8.onnx", "ü.onnx"]) == ["yolo-v8", "yolo-v8-2", "model"]


def test_sizes_are_kept_while_an_item_gets_cheaper():
    assert list(worthwhile({1: 100, 2: 120, 4: 239, 8: 240})) == [1, 2]
    assert list(worthwhile({1: 100, 2: 200})) == [1]


def test_a_deadline_is_the_rates_period_the_users_or_a_round_guess():
    assert choose_slo(5 * NS_PER_MS, 0, 30.0, 0).slo_ns == 33 * NS_PER_MS
    assert not choose_slo(50 * NS_PER_MS, 0, 30.0, 0).fits
    assert choose_slo(5 * NS_PER_MS, 0, 30.0, 7).slo_ns == 7
    assert choose_slo(12 * NS_PER_MS, 20 * NS_PER_MS, 0.0, 0).slo_ns == 60 * NS_PER_MS
    assert [round_up(value * NS_PER_MS) for value in (1, 7, 101, 450, 999)] == [
        value * NS_PER_MS for value in (1, 8, 120, 500, 1000)
    ]


def test_rates_name_apps_that_are_there():
    assert read_rates(["30"], ["a", "b"]) == {"a": 30.0, "b": 30.0}
    with pytest.raises(ConfigError, match="there is no app 'aa'; did you mean 'aab'"):
        read_rates(["aa=3"], ["aab"])
    for wrong in ("a=-1", "a=1e6", "a=nan"):
        with pytest.raises(ConfigError, match="requests per second above 0 and below 1e6"):
            read_rates([wrong], ["a"])
    assert read_rates(["30", "a=5"], ["a", "b"]) == {"a": 5.0, "b": 30.0}


@pytest.mark.parametrize("words", [["a=1", "a=2"], ["1", "2"], ["a@x=1", "a@x=2"]])
def test_a_rate_is_said_once(words):
    read = read_asked if "@" in words[0] else read_rates
    with pytest.raises(ConfigError, match="another --rate says the same of .*; leave one out"):
        read(words, ["a"])


def test_an_app_may_have_a_clients_mark_in_its_name():
    assert read_asked(["a@b=1", "a@c=2", "a=3"], ["a@b", "a"]) == {("a@b", ""): 1.0, ("a", "c"): 2.0, ("a", ""): 3.0}


class Lengths:
    """Stands for llama.cpp where it makes vectors: of a text its length."""

    def __init__(self, *about):
        pass

    def tokens_of(self, text):
        return [1] * len(text)

    def vectors(self, rows):
        return np.array([[len(row), 1.0] for row in rows], np.float32)

    def close(self):
        pass


@pytest.mark.parametrize("gpu", ["", "1"], ids=["no gpu", "a gpu"])
def test_a_gguf_file_that_makes_vectors_becomes_a_sentence_model(tmp_path, llama, monkeypatch, gpu):
    llama_sentences = importlib.import_module(llama_double.SENTENCES)
    monkeypatch.setenv("LLAMA_DOUBLE_GPU", gpu)
    monkeypatch.setattr(trial, "has_nvidia_gpu", lambda: bool(gpu))
    monkeypatch.setattr(llama_sentences, "LlamaEncoder", Lengths)
    path = gguf_file(
        tmp_path / "small.gguf",
        [
            (b"general.architecture", 8, text(b"bert")),
            (b"tokenizer.ggml.model", 8, text(b"bert")),
            (b"bert.pooling_type", 4, struct.pack("<I", 1)),
            (b"bert.attention.causal", 7, b"\0"),
        ],
        tensors=1,
    )
    out = str(tmp_path / "edge.toml")
    assert cli.main(["init", "--here", path, "--out", out]) == 0
    config = load_config(out)
    assert (config.models["small"].engine, config.models["small"].options) == ("sentence", {})
    assert {name: entry.dtype for name, entry in config.apps["small"].inputs.items()} == {"text": "text"}
    with Runtime(config) as runtime:
        answer = runtime.infer("small", {"text": "four"})
        assert answer["prompt_tokens"] == 4 and np.linalg.norm(answer["embedding"]) == pytest.approx(1)
