"""The ``torch`` engine on the CPU: how a network is read, what is refused, threads, memory, and what torch raises."""

from __future__ import annotations

import os
import re
import sys
import threading

import numpy as np
import pytest

from edgeserve import cli
from edgeserve.config.loading import load_config
from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo, run_batch
from edgeserve.engines.options import Options
from edgeserve.engines.row_check import Remembers, row_check_of
from edgeserve.errors import ConfigError, DeviceLost, DeviceMissing, EngineError, OutOfMemory

pytest.importorskip("torch", reason="torch is not installed; make test-torch")

import torch
import torch_models

from edgeserve.engines.torch.failures import asked_bytes, failure_of
from edgeserve.engines.torch.reading import read_program

CPU = torch.device("cpu")
ONES = Batch([{"x": np.ones(4, np.float32)}], 1)


def engine_of(directory=".", lanes=None, **settings):
    settings = {"shapes": {"x": (4,)}, **settings}
    return make_engine(ModelConfig("net", "torch", **settings), lanes or [LaneInfo()], str(directory))


def loaded(directory=".", **settings):
    engine = engine_of(directory, **settings)
    engine.load()
    return engine


def looked_at(engine, **settings):
    check = row_check_of(ModelConfig("net", "torch", batch=(1, 2, 4), **settings), engine)
    check.begin(engine.open(LaneInfo()), engine.example())
    for size in check.order():
        check.look(size)
    return check.sizes()


@pytest.mark.parametrize(
    ("network", "sizes"),
    [("Linear", (1, 2, 4)), ("Deep", (1, 2, 4)), ("Trained", (1,)), ("Dropped", (1,)), ("OneBuffer", (1, 2, 4))],
)
@pytest.mark.parametrize("scripted", [False, True])
def test_a_network_runs_in_the_batches_that_keep_items_apart(network, sizes, scripted, tmp_path):
    if scripted and network == "OneBuffer":
        pytest.skip("TorchScript has no such memory")
    file = torch_models.scripted(str(tmp_path), getattr(torch_models, network)()) if scripted else ""
    function = "" if scripted else f"torch_models:{network}"
    engine = loaded(tmp_path, function=function, file=file, batch=(1, 2, 4))
    assert looked_at(engine) == sizes


class Streams(torch.nn.Module):
    """A voice detector that keeps its state in itself, as silero-vad's TorchScript does."""

    def __init__(self):
        super().__init__()
        self.state = torch.zeros(1)

    def forward(self, x):
        self.state = 0.5 * self.state + x.mean()
        return x + self.state


class Noisy(torch.nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)


@pytest.mark.parametrize(("network", "remembers"), [(Streams, True), (Noisy, False), (torch_models.Deep, False)])
@pytest.mark.parametrize("batch", [(1,), (1, 2)])
def test_a_module_that_writes_into_itself_is_found(network, remembers, batch, tmp_path):
    engine = loaded(tmp_path, file=torch_models.scripted(str(tmp_path), network()), batch=batch)
    check = row_check_of(ModelConfig("net", "torch", batch=batch), engine)
    if check is None:
        assert network is Noisy and batch == (1,)
        return
    check.begin(engine.open(LaneInfo()), engine.example())
    if remembers:
        with pytest.raises(Remembers, match="keeps something"):
            check.stands_still()
    else:
        check.stands_still()


ONE = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2))
"""A module that several models are made of."""


def test_models_of_one_module_have_their_own_weights_and_precision(tmp_path):
    begun = {name: tensor.clone() for name, tensor in ONE.state_dict().items()}
    for name, level in (("a", 1.0), ("b", 2.0)):
        torch.save({key: torch.full_like(value, level) for key, value in begun.items()}, tmp_path / f"{name}.pt")
    settings = [{"file": "a.pt"}, {"options": {"precision": "bfloat16"}}, {"file": "b.pt"}, {}]
    engines = [engine_of(tmp_path, function=f"{__name__}:ONE", shapes={"input": (4,)}, **each) for each in settings]

    def said(engine):
        return engine.run(Batch([{"input": np.ones(4, np.float32)}], 1))[0].outputs["output"].tolist()

    alone = []
    for engine in engines:
        engine.load()
        alone.append(said(engine))
    assert list(map(said, engines)) == alone
    assert len({str(each) for each in alone}) == 4
    assert all(torch.equal(tensor, begun[name]) for name, tensor in ONE.state_dict().items())


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_what_half_precision_rounds_is_no_mixing(precision, tmp_path):
    options = {"precision": precision}
    engine = loaded(tmp_path, function="torch_models:Deep", batch=(1, 2, 4), options=options)
    assert looked_at(engine, options=options) == (1, 2, 4)


def test_what_a_network_writes_into_its_input_nobody_else_reads():
    """It writes nothing into the example's values, which are from 0 to 1."""
    options = {"arguments": {"inplace": True}}
    engine = loaded(function="torch.nn:ReLU", shapes={"input": (4,)}, options=options)
    given = np.array([1, -2, 3, -4], np.float32)
    (result,) = engine.run(Batch([{"input": given}], 1))
    assert result.outputs["output"].tolist() == [1, 0, 3, 0] and given.tolist() == [1, -2, 3, -4]


def test_without_a_batch_axis_a_network_gets_one_item_as_it_is(tmp_path):
    """Time first, and a detector that sees nothing."""
    options = {"batch_axis": False, "inputs": {"x": {"shape": [-1, 2, 4]}}}
    series = loaded(tmp_path, function="torch_models:Series", shapes={"x": (5, 2, 4)}, options=options)
    x = np.random.RandomState(1).randn(7, 2, 4).astype(np.float32)
    (result,) = series.run(Batch([{"x": x}], 1))
    with torch.inference_mode():
        right = series._program.function(torch.from_numpy(x)).numpy()  # its weights are drawn
    np.testing.assert_allclose(result.outputs["output"], right, rtol=1e-5)
    options = {"batch_axis": False, "inputs": {"x": {"shape": [1, 3, -1, -1]}}}
    file = torch_models.scripted(str(tmp_path), torch_models.Boxes())
    boxes = loaded(tmp_path, file=file, shapes={"x": (1, 3, 8, 8)}, options=options)
    (result,) = boxes.run(Batch([{"x": np.zeros((1, 3, 8, 8), np.float32)}], 1))
    assert result.outputs["output"].shape == (0, 3)


def test_rows_that_a_network_lays_in_one_place_are_taken_apart(tmp_path):
    engine = loaded(tmp_path, function="torch_models:Spread", batch=(1, 2))
    one, other = (result.outputs["output"] for result in engine.run(Batch(list(ONES.items) * 2, 2)))
    one[:] = 7
    assert other.tolist() == [1, 1, 1]


def test_a_network_of_lists_is_refused_when_it_is_loaded(tmp_path):
    file = torch_models.scripted(str(tmp_path), torch_models.Lists())
    with pytest.raises(EngineError, match="net"):
        loaded(tmp_path, file=file, shapes={"images": (3, 8, 8)})


# --- reading a network ---


def test_a_module_gets_its_arguments_and_its_weights(tmp_path):
    torch.save({"weight": torch.zeros(4, 3)}, tmp_path / "zeros.pt")
    plain = loaded(function="torch_models:Linear", options={"arguments": {"scale": 10.0}})
    np.testing.assert_allclose(plain.run(ONES)[0].outputs["output"], [18, 22, 26])
    filled = loaded(tmp_path, function="torch_models:Linear", file="zeros.pt")
    np.testing.assert_array_equal(filled.run(ONES)[0].outputs["output"], [0, 0, 0])


def test_footprints_are_the_weights_and_shared_ones_count_once():
    assert loaded(function="torch_models:Linear").load().weights_bytes == 48
    assert loaded(function="torch_models:Twice").load().weights_bytes == 48


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({}, ConfigError, "file and function are missing"),
        ({"function": "torch_models:exported"}, EngineError, "raised TypeError"),
        ({"function": "torch_models:os.getcwd"}, EngineError, "made a str; expected a torch.nn.Module"),
        ({"function": "torch_models:Linear", "options": {"precision": "int4"}}, ConfigError, "precision = 'int4'"),
        ({"function": "torch_models:Linear", "options": {"image": {}}}, ConfigError, "export this one to ONNX"),
        ({"function": "torch_models:Linear", "options": {"inputs": {"y": {}}}}, ConfigError, "does not take"),
        (
            {"function": "torch_models:Linear", "options": {"inputs": {"x": {"dtype": "float8"}}}},
            ConfigError,
            "expected a type of numpy",
        ),
        (
            {"function": "torch_models:Linear", "options": {"inputs": {"x": {"dtype": "U4"}}}},
            ConfigError,
            "no tensors of it",
        ),
        ({"function": "torch_models:Linear", "options": {"inputs": {"x": 4}}}, ConfigError, "expected a table"),
        ({"function": "torch_models:Linear", "shapes": {}}, ConfigError, "lengths of one item are not known"),
        ({"function": "torch_models:Linear", "file": "none.pt"}, EngineError, "there is no file"),
        (
            {"function": "torch_models:MaskedMean", "shapes": {"x": (4,), "x_mask": (4,)}},
            EngineError,
            r"a dict of y without 'output'; name its outputs: options.outputs = \['y'\]",
        ),
        (
            {
                "function": "torch_models:Recurrent",
                "shapes": {"x": (4,), "state": (1, 3)},
                "options": {"constants": {"rate": 1}},
            },
            EngineError,
            r"returned 2 outputs and 1 are named",
        ),
        ({"function": "torch_models:Words"}, EngineError, "its output 'output' is a str; expected a tensor"),
    ],
)
def test_what_cannot_be_is_refused_with_the_mend(settings, error, text):
    with pytest.raises(error, match=text):
        loaded(**settings)


def test_files_that_are_something_else_are_refused(tmp_path):
    (tmp_path / "net.pt2").write_bytes(b"not a program")
    (tmp_path / "net.pt").write_bytes(b"not a program")
    torch.save({"weight": torch.zeros(4, 3)}, tmp_path / "weights.pt")
    with pytest.raises(EngineError, match="cannot be loaded as a program of torch.export.save"):
        loaded(tmp_path, file="net.pt2")
    with pytest.raises(EngineError, match="cannot be loaded as TorchScript"):
        loaded(tmp_path, file="net.pt")
    with pytest.raises(EngineError, match="cannot be loaded as TorchScript .*also need function"):
        loaded(tmp_path, file="weights.pt")
    with pytest.raises(EngineError, match="does not hold the weights of 'torch_models:Recurrent'"):
        loaded(tmp_path, file="weights.pt", function="torch_models:Recurrent")


def test_weights_are_read_without_running_what_a_pickle_holds(tmp_path):
    torch.save(torch_models.Linear(), tmp_path / "module.pt")  # a whole module: a pickle that imports and calls
    with pytest.raises(EngineError, match="does not hold the weights"):
        loaded(tmp_path, file="module.pt", function="torch_models:Linear")


def test_an_exported_program_says_what_it_takes_and_how_large_a_batch(tmp_path):
    file = torch_models.exported(str(tmp_path), torch_models.Linear(), (torch.ones(2, 4),), largest=4)
    engine = loaded(tmp_path, file=file, shapes={}, batch=(1, 4))
    assert engine.example()["x"].shape == (4,)
    with pytest.raises(EngineError, match=r"batch = \[1, 8\], but net.pt2 was exported for a batch of 1 to 4"):
        loaded(tmp_path, file=file, shapes={}, batch=(1, 8))
    with pytest.raises(ConfigError, match="says itself what it takes"):
        loaded(tmp_path, file=file, shapes={}, options={"inputs": {"x": {}}})
    with pytest.raises(ConfigError, match="keeps the types"):
        loaded(tmp_path, file=file, shapes={}, options={"precision": "float16"})


@pytest.mark.parametrize("version", ["2.1.0a0+41361538.nv23.06", "2.3.1"])
def test_an_exported_program_needs_a_torch_that_describes_it(tmp_path, monkeypatch, version):
    (tmp_path / "net.pt2").write_bytes(b"PK")
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(EngineError, match=f"torch is {re.escape(version)}; expected 2.4 or later"):
        loaded(tmp_path, file="net.pt2")


def test_a_torch_that_moves_no_exported_program_is_said(tmp_path, monkeypatch):
    file = torch_models.exported(str(tmp_path), torch_models.Linear(), (torch.ones(2, 4),))
    monkeypatch.setitem(sys.modules, "torch.export.passes", None)
    model = ModelConfig("net", "torch", file=file)
    with pytest.raises(EngineError, match="expected one with torch.export.passes, which moves it to meta"):
        read_program(model, Options(model, ()), str(tmp_path), torch.device("meta"), None)


def test_outputs_of_an_exported_program_have_the_names_of_its_dict(tmp_path):
    x = torch.ones(2, 4)
    file = torch_models.exported(str(tmp_path), torch_models.MaskedMean(), (x, x))
    item = {"x": np.ones(4, np.float32), "x_mask": np.ones(4, np.float32)}
    assert loaded(tmp_path, file=file, shapes={}).run(Batch([item], 1))[0].outputs["y"] == 1.0


# --- memory ---


def test_what_a_client_sends_read_only_can_be_used():
    x = np.ones(4, np.float32)
    x.flags.writeable = False
    assert loaded(function="torch_models:Linear").run(Batch([{"x": x}], 1))[0].error is None


# --- threads ---


def test_each_lane_has_its_own_number_of_threads(tmp_path):
    engine = make_engine(
        ModelConfig("net", "torch", function="torch_models:Threads", shapes={"x": (1,)}),
        [LaneInfo(threads=1, name="a"), LaneInfo(threads=2, name="b")],
        str(tmp_path),
    )
    before = torch.get_num_threads()
    engine.load()
    assert torch.get_num_threads() == before, "loading leaves the thread that loads as it was"
    barrier, seen = threading.Barrier(2), {}

    def work(lane):
        session = engine.open(lane)
        barrier.wait()
        for _ in range(20):
            result = run_batch(session, Batch([{"x": np.zeros(1, np.float32)}], 1))[0][0]
            seen.setdefault(lane.name, set()).add(float(result.outputs["output"]))

    threads = [
        threading.Thread(target=work, args=(LaneInfo(threads=number, name=name),))
        for number, name in ((1, "a"), (2, "b"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == {"a": {1.0}, "b": {2.0}}


def test_lanes_of_unequal_threads_are_refused_where_torch_has_one_number(monkeypatch):
    monkeypatch.setattr(torch.__config__, "parallel_info", lambda: "ATen parallel backend: native thread pool")
    lanes = [LaneInfo(threads=1), LaneInfo(threads=2)]
    with pytest.raises(EngineError, match=r"its lanes have \[1, 2\] threads.*options.process = true"):
        engine_of(lanes=lanes, function="torch_models:Linear").load()
    engine_of(lanes=lanes, function="torch_models:Linear", options={"threads": 1}).load()


# --- determinism ---


def test_deterministic_operators_can_be_asked_for():
    before = torch.are_deterministic_algorithms_enabled()
    try:
        engine = loaded(function="torch_models:Linear", options={"deterministic": True})
        assert torch.are_deterministic_algorithms_enabled()
        random = np.random.default_rng(1)
        batch = Batch([{"x": random.random(4).astype(np.float32)} for _ in range(4)], 4)
        first, second = (np.stack([result.outputs["output"] for result in engine.run(batch)]) for _ in range(2))
        np.testing.assert_array_equal(first, second)
    finally:
        torch.use_deterministic_algorithms(before)


# --- failures ---


def test_cuda_that_is_not_there_is_a_missing_device():
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(DeviceMissing, match="model 'net': torch .* has no CUDA device here"):
        engine_of(lanes=[LaneInfo("cuda")], function="torch_models:Linear").load()


def test_no_room_is_out_of_memory_with_the_bytes_and_the_next_batch_runs():
    engine = loaded(function="torch_models:Greedy", shapes={"x": (1,)})
    with pytest.raises(OutOfMemory, match="model 'net': torch found no room on cpu") as caught:
        engine.run(Batch([{"x": np.ones(1, np.float32)}], 1))
    assert caught.value.asked_bytes == 4 << 48
    assert engine.run(Batch([{"x": np.zeros(1, np.float32)}], 1))[0].error is None


def test_what_a_network_raises_names_the_model_and_the_shapes():
    engine = loaded(
        function="torch_models:Lookup", shapes={"x": (1,)}, options={"inputs": {"x": {"dtype": "int64", "shape": [1]}}}
    )
    with pytest.raises(EngineError, match=r"model 'net' failed on x int64\[1, 1\]: IndexError: index out of range"):
        engine.run(Batch([{"x": np.array([99])}], 1))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronous", DeviceLost),
        ("CUDA error: device-side assert triggered", DeviceLost),
        ("CUDA error: out of memory", OutOfMemory),
        ("CUDA driver error: out of memory", OutOfMemory),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", OutOfMemory),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", OutOfMemory),
        ('NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/opt/c10/cuda/CUDACachingAllocator.cpp":830', OutOfMemory),
        ("Triton Error [CUDA]: an illegal memory access was encountered", DeviceLost),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", DeviceMissing),
        ("CUDA error: invalid argument", EngineError),
        ("shapes cannot be multiplied", EngineError),
    ],
)
def test_texts_of_cuda_become_the_errors_that_lanes_understand(text, kind):
    error = failure_of("net", RuntimeError(text), {}, CPU)
    assert type(error) is kind
    assert "model 'net'" in str(error)


def test_a_build_without_code_for_the_device_says_so():
    error = failure_of("net", RuntimeError("CUDA error: no kernel image is available for execution"), {}, CPU)
    assert "has no code for the device" in str(error)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has", 20 << 30),
        ("Tried to allocate 512 bytes", 512),
        ("tried to allocate 800 bytes. Error", 800),
        ("Tried to allocate 2.50 MiB", 2621440),
        ("out of memory", None),
    ],
)
def test_the_bytes_asked_are_read(text, asked):
    assert asked_bytes(text) == asked


class Words(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(70, 4)

    def forward(self, x):
        return self.table(x).sum(1)


def test_a_script_of_whole_numbers_is_served_by_init_and_says_why_floats_fail(tmp_path):
    file = os.path.join(str(tmp_path), torch_models.scripted(str(tmp_path), Words()))
    out = str(tmp_path / "edge.toml")
    assert cli.main(["init", "--here", file, "--shape", "x=6", "--out", out, "--cpu", "--slo", "1s"]) == 0
    (model,) = load_config(out).models.values()
    assert model.options["inputs"]["x"] == {"dtype": "int64", "shape": [6]} and model.batch[-1] > 1
    with pytest.raises(EngineError, match="scalar types: Long, Int"):
        loaded(tmp_path, file=file, shapes={"x": (6,)})


def of_image(tmp_path, **options):
    model = ModelConfig(
        "net",
        "torch",
        function="torch_models:Layout",
        shapes={"x": (3, 5, 5)},
        options={"outputs": ["y", "last"], **options},
    )
    return make_engine(model, [LaneInfo()], str(tmp_path))


@pytest.mark.parametrize("channels_last", [False, True])
def test_images_and_kernels_lie_channels_last_where_that_is_asked(tmp_path, channels_last):
    engine = of_image(tmp_path, channels_last=channels_last)
    engine.load()
    (result,) = engine.run(Batch([{"x": np.arange(75, dtype=np.float32).reshape(3, 5, 5)}], 1))
    assert result.outputs["last"].tolist() == [float(channels_last)] * 2
    assert result.outputs["y"][0] == np.arange(75).reshape(3, 5, 5)[:, :3, :3].sum() / 2, "the same answers"
    engine.unload()


def test_a_network_is_compiled_where_that_is_asked(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(torch, "compile", lambda module: lambda *given: calls.append(1) or module(*given))
    engine = of_image(tmp_path, compile=True)
    engine.load()
    calls.clear()
    engine.run(Batch([{"x": np.zeros((3, 5, 5), np.float32)}], 1))
    assert calls == [1]
    script = ModelConfig("net", "torch", file="net.pt", shapes={"x": (4,)}, options={"compile": True})
    with pytest.raises(ConfigError, match="options.compile: net.pt is TorchScript"):
        make_engine(script, [LaneInfo()], str(tmp_path))
