"""A lane's launches on the recording double: order, overlap, graphs, and planted faults that the double must notice."""

from __future__ import annotations

import contextlib
import glob

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")
pytest.importorskip("onnxruntime", reason="the double computes with onnxruntime; pip install -e '.[onnx]'")

import cuda_double
import onnx_models
import pycuda_double
import trt_double
import trt_worlds
from cuda_double import Misuse, Use

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, run_batch, run_whole
from edgeserve.engines.cuda.device import CudaStream
from edgeserve.engines.device_arrays import DeviceArray, on_device
from edgeserve.engines.tensorrt import building
from edgeserve.errors import DeviceLost, EngineError, OutOfMemory

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3) / 10


def x(value):
    return {"x": np.full(4, value, np.float32)}


def loaded(monkeypatch, tmp_path, version="10.3", file=None, **settings):
    """``(cuda, lane, engine, session)`` of a small model."""
    settings.setdefault("batch", (1, 2, 4))
    file = file or onnx_models.linear(str(tmp_path))
    return trt_worlds.loaded(monkeypatch, str(tmp_path), file, version, **settings)


def outputs_of(session, value, size=2):
    return run_whole(session, Batch([x(value)], size))[0][0].outputs["y"]


# --- order ------------------------------------------------------------------------------------------------------------


def test_everything_is_given_back_whichever_of_lane_and_model_ends_first(monkeypatch, tmp_path):
    with trt_worlds.world(monkeypatch, "10.3") as cuda:
        engine = trt_worlds.made(str(tmp_path), onnx_models.linear(str(tmp_path)), batch=(1, 2))
        lane = trt_worlds.new_lane()
        for last in (False, True):
            engine.load()
            outputs_of(engine.open(lane), 1.0)
            if last:
                trt_worlds.close(lane)
            engine.unload()
        assert cuda.leaks() == []


def test_the_copies_of_a_batch_do_not_wait_for_the_execution_before(monkeypatch, tmp_path):
    with loaded(monkeypatch, tmp_path) as (cuda, lane, _, session):
        into, _ = lane.common["cuda"].copies
        compute = lane.common["cuda"].stream
        first, second = (session.launch(Batch([x(value)], 2)) for value in (1.0, 2.0))
        with lane.common["cuda"].device.current():
            into.synchronize()
            assert "execute" in cuda.waiting(compute.handle), "nothing was executed yet, and both inputs are copied"
            assert cuda.waiting(into.handle) == []
        for pending, value in ((first, 1.0), (second, 2.0)):
            while not pending.wait(0.01):
                pass
            np.testing.assert_allclose(pending.result()[0].outputs["y"], x(value)["x"] @ WEIGHTS, rtol=1e-6)


@pytest.mark.parametrize(
    ("version", "file", "items", "copied"),
    [
        ("10.3", onnx_models.linear, [x(1.0), x(2.0)], 0),
        ("8.6", onnx_models.lookup, [{"ids": np.array([3])}], 1),
    ],
)
def test_inputs_are_packed_where_they_are_copied_from(monkeypatch, tmp_path, version, file, items, copied):
    shapes = {"ids": (1,)} if file is onnx_models.lookup else {}
    with loaded(monkeypatch, tmp_path, version, file(str(tmp_path)), shapes=shapes) as (_, _, _, session):
        copies = []
        real = np.copyto
        monkeypatch.setattr(np, "copyto", lambda *args, **how: copies.append(args) or real(*args, **how))
        run_whole(session, Batch(items, 2))
        run_whole(session, Batch(items[:1], 1))
        assert len(copies) == 2 * copied


@pytest.mark.parametrize("options", [{}, {"mapped": "no"}])
def test_an_integrated_gpu_copies_nothing_unless_it_is_told_to(monkeypatch, tmp_path, options):
    integrated = {"attributes": {"INTEGRATED": 1}}
    with loaded(monkeypatch, tmp_path, cuda=integrated, options=options) as (cuda, _, _, session):
        outputs_of(session, 1.0)
        assert bool([call for call in cuda.log if call[0] == "copy_to_device"]) == bool(options)


def test_a_batch_runs_in_the_next_larger_profile(monkeypatch, tmp_path):
    with loaded(monkeypatch, tmp_path) as (_, _, _, session):
        results, _ = run_whole(session, Batch([x(1.0), x(2.0), x(3.0)], 3))
        assert len(results) == 3
        np.testing.assert_allclose(results[2].outputs["y"], x(3.0)["x"] @ WEIGHTS, rtol=1e-6)
        with pytest.raises(EngineError, match=r"model 'm': a batch of 5, but the largest .* is for 4; add the size"):
            session.launch(Batch([x(1.0)], 5))


def test_more_batches_than_the_lane_is_deep_are_refused(monkeypatch, tmp_path):
    with loaded(monkeypatch, tmp_path) as (_, _, _, session):
        held = [session.launch(Batch([x(1.0)], 1)) for _ in range(2)]
        with pytest.raises(EngineError, match="2 batches are launched and not finished, as many as the lane's depth"):
            session.launch(Batch([x(1.0)], 1))
        for pending in held:
            while not pending.wait(0.01):
                pass
        later = session.launch(Batch([x(5.0)], 1))  # takes the slot of a batch whose result was not read yet
        np.testing.assert_allclose(held[0].result()[0].outputs["y"], x(1.0)["x"] @ WEIGHTS, rtol=1e-6)
        while not later.wait(0.01):
            pass


def test_lanes_count_in_the_footprint(monkeypatch, tmp_path):
    with trt_worlds.world(monkeypatch, "10.3"):
        one, two = (
            trt_worlds.made(str(tmp_path), onnx_models.linear(str(tmp_path)), lanes=lanes, batch=(1, 4))
            for lanes in (1, 2)
        )
        alone, both = one.load(), two.load()
        assert both.work_bytes == 2 * alone.work_bytes
        assert both.weights_bytes == alone.weights_bytes
        one.unload()
        two.unload()


def test_what_a_lanes_models_share_is_counted_once_as_it_is_allocated(monkeypatch, tmp_path):
    """Footprints of several models: their own memory in sum, what they share as large as the largest needs."""
    file = onnx_models.linear(str(tmp_path))
    with trt_worlds.world(monkeypatch, "10.3") as cuda:
        engines = [trt_worlds.made(str(tmp_path), file, name=f"m{size}", batch=(size,)) for size in (2, 8, 4)]
        lane, before = trt_worlds.new_lane(), cuda.free_bytes()
        footprints = [engine.load() for engine in engines]
        for engine in engines:
            engine.open(lane)
        took = before - cuda.free_bytes()
        own = sum(footprint.work_bytes for footprint in footprints)
        assert took == own + max(footprint.shared_bytes for footprint in footprints)
        for engine in engines:
            engine.unload()
        trt_worlds.close(lane)


@pytest.mark.parametrize("version", ["8.6", "10.3", "11.4", "rtx"])
def test_a_lane_with_multiprocessors_of_its_own_runs_plans_that_were_built_for_them(version, monkeypatch, tmp_path):
    file = onnx_models.linear(str(tmp_path))
    with trt_worlds.world(monkeypatch, version) as cuda:
        plans = set()
        for sms in (0, 4):
            lane = trt_worlds.new_lane(name="gpu0", sms=sms)
            model = ModelConfig(
                "m", "tensorrt", file=file, batch=(1, 2), options={"plans": str(tmp_path / "plans"), "aux_streams": 2}
            )
            engine = make_engine(model, [lane], str(tmp_path))
            engine.load()
            session = engine.open(lane)
            np.testing.assert_allclose(outputs_of(session, 2.0), x(2.0)["x"] @ WEIGHTS, rtol=1e-6)
            assert (len(cuda.stream_greens) >= 5) == bool(sms)  # the lane's, its copies', those beside
            plans |= set(glob.glob(str(tmp_path / "plans" / "*.plan")))
            engine.unload()
            trt_worlds.close(lane)
            assert cuda.leaks() == []
    assert len(plans) == 2


@pytest.mark.parametrize(("context", "counted"), [(300 << 20, 300 << 20), (3 << 30, 1 << 30)])
def test_the_first_model_on_a_board_counts_cudas_context_too(monkeypatch, tmp_path, context, counted):
    file = onnx_models.linear(str(tmp_path))
    board = {"attributes": {"INTEGRATED": 1}, "memory_bytes": 8 << 30, "context_bytes": context}
    with trt_worlds.world(monkeypatch, "10.3", **board) as cuda:
        monkeypatch.setattr(building, "available_bytes", cuda.free_bytes)
        first, second = (trt_worlds.made(str(tmp_path), file, name=name) for name in "ab")
        beside, alone = first.load(), second.load()
        assert counted - (64 << 10) <= beside.work_bytes - alone.work_bytes <= counted
        for engine in (first, second):
            engine.unload()


def test_int64_beyond_int32_is_refused_before_version_10(monkeypatch, tmp_path):
    file = onnx_models.lookup(str(tmp_path))
    with loaded(monkeypatch, tmp_path, "8.6", file, shapes={"ids": (1,)}) as (_, _, _, session):
        with pytest.raises(EngineError, match=r"input 'ids' has values from .*; this TensorRT \(8.6.0\) computes them"):
            session.launch(Batch([{"ids": np.array([2**40])}], 1))
        assert run_whole(session, Batch([{"ids": np.array([3])}], 1))[0][0].outputs["y"].shape == (1,)


# --- shapes that depend on values -------------------------------------------------------------------------------------


def found(directory, rows=1):
    """A network whose output has a column for each positive number of its input."""
    nodes = [
        onnx_models.helper.make_node("Relu", ["x"], ["seen"]),
        onnx_models.helper.make_node("NonZero", ["seen"], ["y"]),
    ]
    dims = [rows or "B", 5]
    return onnx_models.save(
        directory, "found", nodes, [("x", onnx_models.FLOAT, dims)], [("y", onnx_models.INT64, [2, "N"])]
    )


@pytest.mark.parametrize("integrated", [False, True])
@pytest.mark.parametrize("version", ["10.3", "11.4"])
def test_an_output_whose_shape_depends_on_values(integrated, version, monkeypatch, tmp_path):
    board = {"attributes": {"INTEGRATED": int(integrated)}}
    with loaded(monkeypatch, tmp_path, version, found(str(tmp_path)), batch=(1,), cuda=board) as (cuda, _, _, session):
        items = [{"x": np.array([row], np.float32)} for row in ([1, -1, 2, 0, 3], [-1] * 5, [4] * 5)]
        answers = [run_whole(session, Batch([item], 1))[0][0].outputs["y"] for item in items]
        assert [answer.tolist() for answer in answers] == [
            [[0, 0, 0], [0, 2, 4]],
            [[], []],
            [[0] * 5, [0, 1, 2, 3, 4]],
        ]
        assert session.graphs == 0


def test_rows_that_are_no_items_are_not_batched(monkeypatch, tmp_path):
    with trt_worlds.world(monkeypatch, "10.3") as cuda:
        for file, batch in ((found(str(tmp_path), 0), (1, 2)), (found(str(tmp_path), 0), (1,))):
            with pytest.raises(EngineError, match=r"output 'y' depends on .*Set \[model.m\] batch = \[1\], and export"):
                trt_worlds.made(str(tmp_path), file, batch=batch).load()
        assert cuda.leaks() == []


# --- graphs -----------------------------------------------------------------------------------------------------------


def test_a_graph_per_profile_and_slot_is_launched_instead(monkeypatch, tmp_path):
    with loaded(monkeypatch, tmp_path) as (cuda, _, _, session):
        assert session.graphs == 3 * 2
        before = len(cuda.log)
        outputs_of(session, 1.0)
        assert [call[0] for call in cuda.log[before:]].count("launch") == 1


@pytest.mark.parametrize("how", ["option", "capture"])
def test_without_graphs_the_network_is_enqueued(monkeypatch, tmp_path, how):
    if how == "capture":
        monkeypatch.setattr(CudaStream, "captured", refuse_capture)
    with loaded(monkeypatch, tmp_path, options={"graph": how != "option"}) as (cuda, _, _, session):
        assert session.graphs == 0
        np.testing.assert_allclose(outputs_of(session, 2.0), x(2.0)["x"] @ WEIGHTS, rtol=1e-6)
        assert "launch" not in [call[0] for call in cuda.log]


@contextlib.contextmanager
def refuse_capture(self):
    raise EngineError("operation not permitted when stream is capturing")
    yield


def test_other_shapes_than_the_captured_ones_run_without_a_graph(monkeypatch, tmp_path):
    ranges = {"ranges": {"x": [[1, 2], [1, 8], [1, 16]]}}
    file = onnx_models.pooled(str(tmp_path))
    with loaded(monkeypatch, tmp_path, file=file, batch=(1,), options=ranges) as (_, _, _, session):
        for width in (8, 4, 8, 16):
            item = {"x": np.arange(width, dtype=np.float32)[None]}
            result = run_whole(session, Batch([item], 1))[0][0].outputs["y"]
            np.testing.assert_allclose(result, np.arange(0.5, width, 2))


def test_graphs_come_back_once_other_shapes_stay_and_few_shapes_keep_theirs(monkeypatch, tmp_path):
    ranges = {"ranges": {"x": [[1, 2], [1, 8], [1, 16]]}}
    file = onnx_models.pooled(str(tmp_path))
    with loaded(monkeypatch, tmp_path, file=file, batch=(1,), options=ranges) as (cuda, _, engine, session):

        def launches(*widths):
            before = len(cuda.log)
            for width in widths:
                item = {"x": np.arange(width, dtype=np.float32)[None]}
                result = run_whole(session, Batch([item], 1))[0][0].outputs["y"]
                np.testing.assert_allclose(result, np.arange(0.5, width, 2))
            return [call[0] for call in cuda.log[before:]].count("launch")

        assert launches(*[8] * 4) == 4
        assert launches(*[4] * 8) == 0, "an odd shape is enqueued"
        assert launches(*[4] * 12) >= 10, "of each slot one more, then its graph"
        assert launches(*[8, 8, 4, 4] * 3) == 12, "shapes that alternate keep their graphs"
        assert launches(*[2, 6, 10, 12] * 2) == 0, "each takes the place of the one that was not used for longest"
        assert min(launches(*[width] * 20) for width in (8, 4, 14, 16)) >= 8
        told = engine.figures()["graphs"]
        assert told["replayed"] == [call[0] for call in cuda.log].count("launch")
        assert told["captured"] - told["dropped"] == session.graphs
        assert told["dropped"] >= 2 and told["enqueued"] >= 8


def test_no_graph_is_captured_while_another_batch_waits(monkeypatch, tmp_path):
    ranges = {"ranges": {"x": [[1, 2], [1, 8], [1, 16]]}}
    file = onnx_models.pooled(str(tmp_path))
    with loaded(monkeypatch, tmp_path, file=file, batch=(1,), options=ranges) as (cuda, _, _, session):
        batch = Batch([{"x": np.arange(4, dtype=np.float32)[None]}], 1)
        before = session.launch(batch)
        captures = [call[0] for call in cuda.log].count("begin_capture")
        for _ in range(20):
            after = session.launch(batch)
            while not before.wait(0.01):
                pass
            before = after
        assert [call[0] for call in cuda.log].count("begin_capture") == captures
        while not before.wait(0.01):
            pass


# --- one working memory per lane ---


def blocks(cuda):
    """The sizes of the device memory that is in use."""
    return [int(leak.split()[-2]) for leak in cuda.leaks() if leak.startswith("device memory of")]


@pytest.mark.parametrize("large_first", [True, False])
def test_the_models_of_a_lane_work_in_one_block_as_large_as_the_largest_needs(monkeypatch, tmp_path, large_first):
    file = onnx_models.linear(str(tmp_path))
    with trt_worlds.world(monkeypatch, "10.3") as cuda:
        lane = trt_worlds.new_lane()
        sizes = [(1, 2, 8), (1, 2)] if large_first else [(1, 2), (1, 2, 8)]
        engines = [
            trt_worlds.made(str(tmp_path), file, name=f"m{place}", batch=each) for place, each in enumerate(sizes)
        ]
        sessions = []
        for engine in engines:
            engine.load()
            sessions.append(engine.open(lane))
            for session in sessions:
                for value in (1.0, 2.0, 3.0, 4.0):  # the first ones are enqueued where the block moved, then captured
                    np.testing.assert_allclose(outputs_of(session, value), x(value)["x"] @ WEIGHTS, rtol=1e-6)
        assert [size for size in blocks(cuda) if size >= trt_double.CONTEXT_BYTES] == [8 * trt_double.CONTEXT_BYTES]
        before = len(cuda.log)
        for session in sessions:
            outputs_of(session, 1.0)
        assert [call[0] for call in cuda.log[before:]].count("launch") == 2, "both have graphs again"
        engines[0].unload()
        np.testing.assert_allclose(outputs_of(sessions[1], 5.0), x(5.0)["x"] @ WEIGHTS, rtol=1e-6)
        engines[1].unload()
        trt_worlds.close(lane)
        assert cuda.leaks() == []


# --- inputs on the device ---


class Theirs:
    """An array of another library on the double's device; a stream of its own fills it, late."""

    def __init__(self, cuda, values, stream=None, **about):
        self.values = np.asarray(values, np.float32)
        self.pointer = cuda.alloc_device(self.values.nbytes)
        self.cuda = cuda
        cuda.enqueue(stream or cuda_double.LEGACY, "theirs", self._fill, [Use(self.pointer, self.values.nbytes)])
        self.__cuda_array_interface__ = {
            "shape": self.values.shape,
            "typestr": "<f4",
            "data": (self.pointer, False),
            "version": 3,
            "stream": stream or cuda_double.LEGACY,
            **about,
        }

    def _fill(self):
        self.cuda.memory_at(self.pointer, self.values.nbytes)[:] = self.values.view(np.uint8).ravel()

    def free(self):
        self.cuda.free_device(self.pointer)


@pytest.mark.parametrize("integrated", [0, 1])
@pytest.mark.parametrize("graph", [True, False])
def test_an_input_on_the_device_is_waited_for_and_copied_there_alone(monkeypatch, tmp_path, integrated, graph):
    board = {"attributes": {"INTEGRATED": integrated}}
    with loaded(monkeypatch, tmp_path, cuda=board, options={"graph": graph}) as (cuda, lane, _, session):
        device = lane.common["cuda"].device
        with device.current():
            stream = cuda.create_stream()
            theirs = [Theirs(cuda, [1, 2, 3, 4], stream), Theirs(cuda, [5, 6, 7, 8])]
        before = len(cuda.log)
        both = Batch([{"x": on_device(one)} for one in theirs], 2)
        for one, result in zip(theirs, run_batch(session, both)[0]):
            np.testing.assert_allclose(result.outputs["y"], one.values @ WEIGHTS, rtol=1e-6)
        calls = [call[0] for call in cuda.log[before:]]
        assert calls.count("copy_on_device") == 2 and "copy_to_device" not in calls
        mixed = Batch([x(3.0), {"x": np.zeros(5, np.float32)}, {"x": on_device(theirs[0])}], 4)
        first, wrong, last = run_batch(session, mixed)[0]
        assert "input 'x' has shape (5,)" in str(wrong.error)
        np.testing.assert_allclose(first.outputs["y"], x(3.0)["x"] @ WEIGHTS, rtol=1e-6)
        np.testing.assert_allclose(last.outputs["y"], theirs[0].values @ WEIGHTS, rtol=1e-6)
        with device.current():
            for one in theirs:
                one.free()
            cuda.destroy_stream(stream)


def test_planted_no_wait_for_who_makes_an_input(monkeypatch, tmp_path):
    with faulty(monkeypatch, tmp_path) as (engine, lane):
        session = engine.open(lane)
        cuda = trt_double.cuda
        with lane.common["cuda"].device.current():
            theirs = Theirs(cuda, [1, 2, 3, 4], cuda.create_stream())
        array = on_device(theirs)
        array.stream = None
        with pytest.raises(Misuse, match="touch the same memory, and nothing orders them"):
            session.launch(Batch([{"x": array}], 1))


def test_an_input_on_the_device_that_must_be_cast_fails_alone(monkeypatch, tmp_path):
    with loaded(monkeypatch, tmp_path) as (cuda, lane, _, session):
        wide = DeviceArray(4096, (4,), np.float64, None, None)
        wrong, good = run_batch(session, Batch([{"x": wide}, x(1.0)], 2))[0]
        assert "input 'x' lies on the GPU, and is float64, to be cast to float32 there" in str(wrong.error)
        np.testing.assert_allclose(good.outputs["y"], x(1.0)["x"] @ WEIGHTS, rtol=1e-6)


def test_pycudas_arrays_are_copied_within_the_device_and_those_of_another_context_refused(monkeypatch, tmp_path):
    with loaded(monkeypatch, tmp_path) as (cuda, _, _, session):
        mine, its = (pycuda_double.GPUArray(cuda, x(2.0)["x"], autoinit) for autoinit in (False, True))
        before = len(cuda.log)
        good, wrong = run_batch(session, Batch([{"x": on_device(mine)}, {"x": on_device(its)}], 2))[0]
        np.testing.assert_allclose(good.outputs["y"], x(2.0)["x"] @ WEIGHTS, rtol=1e-6)
        assert "is of another CUDA context (import pycuda.autoprimaryctx, not pycuda.autoinit)" in str(wrong.error)
        calls = [call[0] for call in cuda.log[before:]]
        assert calls.count("copy_on_device") == 1 and "copy_to_device" not in calls
        assert cuda_double.LEGACY in [call[2] for call in cuda.log[before:] if call[0] == "record"], (
            "its stream is awaited"
        )
        mine.free()
        its.free()


# --- streams beside the lane's ---


@pytest.mark.parametrize("version", ["8.5", "8.6", "10.3", "11.4", "rtx"])
def test_a_plan_is_built_for_the_lanes_stream_alone(monkeypatch, tmp_path, version):
    with loaded(monkeypatch, tmp_path, version, batch=(1,)) as (cuda, _, _, session):
        outputs_of(session, 1.0, 1)
        assert "auxiliary" not in cuda.ran
        assert cuda.use_default_stream("cudaMemset") == []


@pytest.mark.parametrize("how", ["option", "given"])
def test_streams_beside_it_are_ours_so_that_another_library_neither_waits_nor_spoils_a_capture(
    monkeypatch, tmp_path, how
):
    file = onnx_models.linear(str(tmp_path))
    options = {"aux_streams": 2} if how == "option" else {}
    if how == "given":
        profiles = [{"x": [[size, 4]] * 3} for size in (1, 2, 4)]
        file = trt_worlds.plan_file(str(tmp_path), file, profiles, aux=2)
    execute = trt_double.IExecutionContext.execute_async_v3

    def and_another_library(self, stream_handle):
        returned = execute(self, stream_handle)
        assert trt_double.cuda.use_default_stream("cudaMemset") == []
        return returned

    monkeypatch.setattr(trt_double.IExecutionContext, "execute_async_v3", and_another_library)
    with loaded(monkeypatch, tmp_path, file=file, options=options) as (cuda, _, _, session):
        assert session.graphs == 3 * 2
        np.testing.assert_allclose(outputs_of(session, 2.0), x(2.0)["x"] @ WEIGHTS, rtol=1e-6)
        assert "auxiliary" in cuda.ran


# --- failures ---------------------------------------------------------------------------------------------------------


def test_memory_that_is_missing_at_open_is_told_and_given_back(monkeypatch, tmp_path):
    with trt_worlds.world(monkeypatch, "10.3", memory_bytes=6000) as cuda:
        engine = trt_worlds.made(str(tmp_path), onnx_models.linear(str(tmp_path)), batch=(1, 2))
        lane = trt_worlds.new_lane()
        engine.load()
        with pytest.raises(OutOfMemory, match="model 'm': .* of device memory cannot be had"):
            engine.open(lane)
        engine.unload()
        trt_worlds.close(lane)
        assert cuda.leaks() == []


def test_an_enqueue_that_the_library_refuses_fails_its_batch_alone(monkeypatch, tmp_path):
    with loaded(monkeypatch, tmp_path, options={"graph": False}) as (_, _, _, session):
        with pytest.MonkeyPatch.context() as refusing:
            kind = __import__("tensorrt").IExecutionContext
            refusing.setattr(kind, "execute_async_v3", lambda self, stream_handle: self._refuse("no kernel"))
            with pytest.raises(EngineError, match="model 'm': batch of 2 cannot be enqueued: no kernel"):
                session.launch(Batch([x(1.0)], 2))
        np.testing.assert_allclose(outputs_of(session, 2.0), x(2.0)["x"] @ WEIGHTS, rtol=1e-6)


def test_a_failure_does_not_quote_what_tensorrt_8_logs_of_contexts_that_it_made(monkeypatch, tmp_path):
    with loaded(monkeypatch, tmp_path, "8.6", options={"graph": False}) as (_, _, _, session):
        kind = __import__("tensorrt").IExecutionContext
        monkeypatch.setattr(kind, "execute_async_v3", lambda self, stream_handle: False)
        with pytest.raises(EngineError, match="cannot be enqueued: TensorRT did not say why"):
            session.launch(Batch([x(1.0)], 2))


def test_a_device_that_is_lost_while_a_batch_runs(monkeypatch, tmp_path):
    with loaded(monkeypatch, tmp_path) as (cuda, _, _, session):
        pending = session.launch(Batch([x(1.0)], 1))
        cuda.lost = 719
        assert pending.wait(1.0)
        with pytest.raises(DeviceLost, match="model 'm': .*719"):
            pending.result()
        with pytest.raises(DeviceLost, match="model 'm'"):
            session.launch(Batch([x(1.0)], 1))
        cuda.lost = 0  # so that the double can be tidied up
        cuda.run_all()


def test_a_network_that_cannot_be_captured_says_why_in_the_librarys_words(monkeypatch, tmp_path, caplog):
    """Nothing asks a stream that is captured whether it is done: CUDA forbids that, and would hide the reason."""
    library = {}

    def refuse(self, stream):
        if self._engine and trt_double.cuda.capturing(stream):
            return self._refuse("this layer cannot be captured")
        return library["execute"](self, stream)

    with trt_worlds.world(monkeypatch, "10.3"):
        kind = __import__("tensorrt").IExecutionContext
        library["execute"] = kind.execute_async_v3
        monkeypatch.setattr(kind, "execute_async_v3", refuse)
        engine, lane = trt_worlds.made(str(tmp_path), onnx_models.linear(str(tmp_path))), trt_worlds.new_lane()
        engine.load()
        with caplog.at_level("INFO", "edgeserve.tensorrt"):
            session = engine.open(lane)
        assert "no CUDA graph (model 'm': batch of 1 cannot be enqueued: this layer cannot be captured)" in caplog.text
        assert session.graphs == 0
        np.testing.assert_allclose(outputs_of(session, 2.0, 1), x(2.0)["x"] @ WEIGHTS, rtol=1e-6)
        engine.unload()
        trt_worlds.close(lane)


# --- planted faults: the double notices each --------------------------------------------------------------------------


@contextlib.contextmanager
def faulty(monkeypatch, tmp_path):
    """An engine whose CUDA double is left as it is afterwards: a fault may leave anything behind."""
    with trt_worlds.world(monkeypatch, "10.3"):
        engine = trt_worlds.made(
            str(tmp_path), onnx_models.linear(str(tmp_path)), batch=(1, 2), options={"graph": False}
        )
        engine.load()
        yield engine, trt_worlds.new_lane()


def test_planted_missing_waits(monkeypatch, tmp_path):
    with faulty(monkeypatch, tmp_path) as (engine, lane):
        session = engine.open(lane)
        monkeypatch.setattr(CudaStream, "wait", lambda self, mark: None)
        with pytest.raises(Misuse, match="touch the same memory, and nothing orders them"):
            session.launch(Batch([x(1.0)], 2))


@pytest.mark.parametrize("handle", [0, "copies"])
def test_planted_wrong_stream(monkeypatch, tmp_path, handle):
    with faulty(monkeypatch, tmp_path) as (engine, lane):
        session = engine.open(lane)
        context_type = __import__("tensorrt").IExecutionContext
        kept = context_type.execute_async_v3
        wrong = lane.common["cuda"].copies[1].handle if handle else 0
        monkeypatch.setattr(context_type, "execute_async_v3", lambda self, stream: kept(self, wrong))
        with pytest.raises(Misuse, match="nothing orders them" if handle else "default stream"):
            session.launch(Batch([x(1.0)], 2))


@pytest.mark.parametrize(("version", "refused"), [("10.3", False), ("11.4", True), ("rtx", True)])
def test_a_driver_whose_cuda_is_too_old_for_shares_is_refused_with_a_sentence(version, refused, monkeypatch, tmp_path):
    file = onnx_models.linear(str(tmp_path))
    with trt_worlds.world(monkeypatch, version, cuda=(12, 8)) as cuda:
        model = ModelConfig("m", "tensorrt", file=file, options={"plans": str(tmp_path)})
        engine = make_engine(model, [trt_worlds.new_lane(name="gpu0", sms=4)], str(tmp_path))
        if refused:
            with pytest.raises(EngineError, match="model 'm'.* sms: .* driver of CUDA 13 or later, .* is of CUDA 12.8"):
                engine.load()
        else:
            engine.load()
            engine.unload()
        assert cuda.leaks() == []
