"""The ``torch`` engine's path on CUDA, on the CPU: its own code with streams and events that only count. The same on a
real GPU is in ``tests/gpu``."""

from __future__ import annotations

import gc
from typing import Optional

import numpy as np
import pytest

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, Engine, LaneInfo, run_batch
from edgeserve.engines.device_arrays import DeviceArray
from edgeserve.errors import OutOfMemory
from edgeserve.testing.engine_conformance import ECHO_SHAPE, ECHO_SIZES

pytest.importorskip("torch", reason="torch is not installed; make test-torch")

import torch
import torch_cuda_double
import torch_models
from vector_items import TORCH_STATE, VectorModel

LANE = LaneInfo("cuda", name="gpu0", depth=2)
CLOCKED = LANE._replace(clock_ns=lambda: 1, common={})


class OnCuda(VectorModel):
    lane = LANE
    settings = {"engine": "torch", "function": "torch_models:Linear", "shapes": {"x": (4,)}}

    @pytest.fixture(autouse=True)
    def _double(self, monkeypatch: pytest.MonkeyPatch) -> None:
        torch_cuda_double.installed(monkeypatch)


class TestModule(OnCuda):
    def make_echo(self, directory: str, rank: int, dtype: str) -> Optional[Engine]:
        if dtype not in ("bool", "int64", "float32"):
            return None  # as on the CPU, where all are tried
        shape = list(ECHO_SHAPE[:rank])
        options = {"outputs": ["y"], "inputs": {"x": {"dtype": dtype, "shape": shape}}}
        model = ModelConfig(
            "echo",
            "torch",
            function="torch_models:Identity",
            batch=ECHO_SIZES,
            shapes={"x": tuple(shape)},
            options=options,
        )
        return make_engine(model, [self.lane], directory)


class TestModuleOneAtATime(OnCuda):
    lane = LANE._replace(depth=1)


class TestModuleState(OnCuda):
    stateful = True
    settings = {"engine": "torch", "function": "torch_models:Recurrent", **TORCH_STATE}


class TestModuleByGraphs(OnCuda):
    settings = {**OnCuda.settings, "options": {"graph": True}}


class TestStateByGraphs(TestModuleState):
    settings = {**TestModuleState.settings, "options": {**TestModuleState.settings.get("options", {}), "graph": True}}


@pytest.mark.parametrize("depth", [1, 2])
def test_graphs_give_each_batch_its_own_answers_and_are_counted(tmp_path, monkeypatch, depth):
    torch_cuda_double.installed(monkeypatch)
    lane = CLOCKED._replace(depth=depth, common={})
    settings = {"function": "torch_models:Linear", "shapes": {"x": (4,)}, "batch": (1, 2)}
    engines = [
        make_engine(ModelConfig("net", "torch", options=options, **settings), [lane], str(tmp_path))
        for options in ({"graph": True}, {})
    ]
    for engine in engines:
        engine.load()
    by_graph, plain = (engine.open(lane._replace(common={})) for engine in engines)
    for turn in range(8):
        for size in (1, 2):
            batches = [Batch([{"x": np.full(4, turn + place, np.float32)}] * size, size) for place in range(depth)]
            held = [by_graph.launch(batch) for batch in batches]  # several at a time, where the lane holds them
            for batch, pending in zip(batches, held):
                while not pending.wait(0.01):
                    pass
                for mine, its in zip(pending.result(), run_batch(plain, batch)[0]):
                    for name, value in its.outputs.items():
                        np.testing.assert_allclose(mine.outputs[name], value, rtol=1e-6)
    told = engines[0].figures()["graphs"]
    assert told["captured"] == 2 and told["enqueued"] == 6 and told["replayed"] == 8 * 2 * depth - 6
    assert engines[1].figures() == {}
    for engine in engines:
        engine.unload()


def test_a_network_that_cannot_be_captured_is_enqueued(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", "edgeserve.torch")
    torch_cuda_double.installed(monkeypatch)
    model = ModelConfig("net", "torch", function="torch_models:Linear", shapes={"x": (4,)}, options={"graph": True})
    engine = make_engine(model, [CLOCKED], str(tmp_path))
    engine.load()
    call = engine.call

    def looks(tensors):
        return [output * 1.0 if output.sum().item() else output for output in call(tensors)]

    monkeypatch.setattr(engine, "call", looks)
    session = engine.open(CLOCKED._replace(common={}))
    for _ in range(6):
        (result,) = run_batch(session, Batch([{"x": np.ones(4, np.float32)}], 1))[0]
        assert result.error is None
    assert engine.figures()["graphs"] == {"captured": 0, "dropped": 0, "replayed": 0, "enqueued": 6}
    assert "no CUDA graph (CUDA error: operation not permitted when stream is capturing)" in caplog.text


@pytest.mark.parametrize(("depth", "waits"), [(1, 0), (2, 2)])
def test_copies_have_streams_of_their_own_where_the_lane_holds_several_batches(tmp_path, monkeypatch, depth, waits):
    torch_cuda_double.installed(monkeypatch)
    lane = LANE._replace(depth=depth, clock_ns=lambda: 1, common={})
    model = ModelConfig("net", "torch", function="torch_models:Linear", shapes={"x": (4,)})
    engine = make_engine(model, [lane], str(tmp_path))
    engine.load()
    session = engine.open(lane)
    run_batch(session, Batch([{"x": np.ones(4, np.float32)}], 1))
    assert len(torch_cuda_double.Stream.waits) == waits  # the network for its inputs, the copy back for the network
    if waits:
        (computing, inward), (outward, computed) = torch_cuda_double.Stream.waits
        assert computing == computed
        assert len({computing, inward, outward}) == 3


def test_inputs_are_packed_where_they_are_copied_from(tmp_path, monkeypatch):
    torch_cuda_double.installed(monkeypatch)
    model = ModelConfig("net", "torch", function="torch_models:Linear", shapes={"x": (4,)}, batch=(1, 2))
    engine = make_engine(model, [CLOCKED], str(tmp_path))
    engine.load()
    session, made, real = engine.open(CLOCKED), [], np.empty
    monkeypatch.setattr(np, "empty", lambda *args, **how: made.append(args) or real(*args, **how))
    results, _ = run_batch(session, Batch([{"x": np.full(4, value, np.float32)} for value in (1, 2)], 2))
    assert made == [], "no array beside the page-locked one"
    assert [result.error for result in results] == [None, None]


def on_gpu(array, stream):
    return DeviceArray(array.ctypes.data, array.shape, array.dtype, stream, array)


@pytest.mark.parametrize("depth", [1, 2])
def test_inputs_on_the_gpu_are_copied_there_behind_the_stream_that_made_them(tmp_path, monkeypatch, depth):
    torch_cuda_double.installed(monkeypatch)
    lane = CLOCKED._replace(depth=depth, common={})
    model = ModelConfig("net", "torch", function="torch_models:Linear", shapes={"x": (4,)}, batch=(1, 2, 4))
    engine = make_engine(model, [lane], str(tmp_path))
    engine.load()
    session = engine.open(lane)
    host = [np.arange(4, dtype=np.float32) + value for value in range(3)]
    expected = [run_batch(session, Batch([{"x": x}], 1))[0][0].outputs for x in host]
    torch_cuda_double.Stream.waits.clear()
    mixed = [host[0], on_gpu(host[1], 7), on_gpu(host[2].astype(np.float64), 7), on_gpu(host[2], None)]
    results, _ = run_batch(session, Batch([{"x": x} for x in mixed], 4))
    for result, outputs in zip([results[0], results[1], results[3]], expected):
        for name, value in outputs.items():
            np.testing.assert_array_equal(result.outputs[name], value)
    assert "lies on the GPU, and is float64, to be float32 there" in str(results[2].error)
    inward = [waiting for waiting, other in torch_cuda_double.Stream.waits if other == 7]
    assert len(inward) == 1, "the copies wait for the stream that makes the values"
    (alone,) = run_batch(session, Batch([{"x": on_gpu(host[2].astype(np.int8), None)}], 1))[0]
    assert alone.error is not None


def weights():
    """Tensors as large as a weight of ``torch_models.Linear`` that are alive; not the form's own, which have no
    memory."""
    return [item for item in gc.get_objects() if type(item) in KINDS and item.shape == (4, 3)]


KINDS = (torch.Tensor, torch.nn.Parameter)


FORMS = {
    "module": lambda place: {"function": "torch_models:Linear"},
    "script": lambda place: {"file": torch_models.scripted(place, torch_models.Linear())},
    "export": lambda place: {"file": torch_models.exported(place, torch_models.Linear(), (torch.ones(2, 4),))},
}


@pytest.mark.parametrize("form", FORMS)
def test_an_eviction_frees_the_weights_without_a_collection(tmp_path, monkeypatch, form):
    settings = FORMS[form](str(tmp_path))
    gc.collect()
    torch_cuda_double.installed(monkeypatch)
    before = len(weights())
    collections = []
    gc.disable()
    gc.callbacks.append(lambda phase, info: collections.append(phase))
    try:
        engine = make_engine(ModelConfig("net", "torch", shapes={"x": (4,)}, **settings), [LANE], str(tmp_path))
        for _ in range(2):
            engine.load()
            result = run_batch(engine.open(CLOCKED), Batch([{"x": np.ones(4, np.float32)}], 1))
            assert result[0][0].error is None
            assert len(weights()) > before or form == "script"  # whose tensors Python does not see
            engine.unload()
            assert len(weights()) == before
    finally:
        gc.callbacks.pop()
        gc.enable()
    assert collections == []


def test_a_load_without_room_has_garbage_collected_and_is_tried_again(tmp_path, monkeypatch):
    torch_cuda_double.installed(monkeypatch)
    from edgeserve.engines.torch import torch_engine

    full, read = [True], torch_engine.read_program

    def read_program(*arguments):
        if full[0]:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return read(*arguments)

    model = ModelConfig("net", "torch", function="torch_models:Linear", shapes={"x": (4,)})
    monkeypatch.setattr(torch_engine, "read_program", read_program)
    with pytest.raises(OutOfMemory):
        make_engine(model, [LANE], str(tmp_path)).load()
    monkeypatch.setattr(torch_engine.torch.cuda, "empty_cache", lambda: full.__setitem__(0, False))
    engine = make_engine(model, [LANE], str(tmp_path))
    engine.load()
    assert run_batch(engine.open(CLOCKED), Batch([{"x": np.ones(4, np.float32)}], 1))[0][0].error is None
