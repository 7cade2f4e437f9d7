"""A lane's launches on the recording double: order, overlap, graphs, and planted faults that the double must notice."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")
pytest.importorskip("onnxruntime", reason="the double computes with onnxruntime; pip install -e '.[onnx]'")

import onnx_models
import trt_double
import trt_worlds
from cuda_double import POISON, Misuse

from edgeserve.engines.base import Batch, run_whole
from edgeserve.engines.cuda.device import CudaStream
from edgeserve.engines.tensorrt import running
from edgeserve.errors import DeviceLost, EngineError, OutOfMemory

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3) / 10


def x(value):
    return {"x": np.full(4, value, np.float32)}


@contextlib.contextmanager
def loaded(monkeypatch, tmp_path, version="10.3", depth=2, cuda=None, file=None, **settings):
    """``(cuda, lane, engine, session)`` of a small model, unloaded and closed at the end."""
    with trt_worlds.world(monkeypatch, version, **(cuda or {})) as double:
        settings.setdefault("batch", (1, 2, 4))
        engine = trt_worlds.made(str(tmp_path), file or onnx_models.linear(str(tmp_path)), **settings)
        lane = trt_worlds.new_lane()._replace(depth=depth)
        engine.load()
        try:
            yield double, lane, engine, engine.open(lane)
        finally:
            engine.unload()
            trt_worlds.close(lane)


def outputs_of(session, value, size=2):
    return run_whole(session, Batch([x(value)], size))[0][0].outputs["y"]


# --- order ------------------------------------------------------------------------------------------------------------


def test_the_results_are_the_networks(monkeypatch, tmp_path):
    with loaded(monkeypatch, tmp_path) as (_, _, _, session):
        np.testing.assert_allclose(outputs_of(session, 2.0), x(2.0)["x"] @ WEIGHTS, rtol=1e-6)


def test_everything_is_given_back_at_unload(monkeypatch, tmp_path):
    with trt_worlds.world(monkeypatch, "10.3") as cuda:
        engine = trt_worlds.made(str(tmp_path), onnx_models.linear(str(tmp_path)), batch=(1, 2))
        lane = trt_worlds.new_lane()
        for _ in range(2):
            engine.load()
            outputs_of(engine.open(lane), 1.0)
            engine.unload()
        trt_worlds.close(lane)
        assert cuda.leaks() == []


def test_a_lane_that_ends_before_the_model_is_unloaded_leaves_nothing(monkeypatch, tmp_path):
    with trt_worlds.world(monkeypatch, "10.3") as cuda:
        engine = trt_worlds.made(str(tmp_path), onnx_models.linear(str(tmp_path)))
        lane = trt_worlds.new_lane()
        engine.load()
        outputs_of(engine.open(lane), 1.0, 1)
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
        ("10.3", onnx_models.linear, [x(1.0)], 0),
        ("8.6", onnx_models.lookup, [{"ids": np.array([3])}], 1),
    ],
)
def test_inputs_are_packed_where_they_are_copied_from(monkeypatch, tmp_path, version, file, items, copied):
    with loaded(
        monkeypatch,
        tmp_path,
        version,
        file=file(str(tmp_path)),
        shapes={"ids": (1,)} if file is onnx_models.lookup else {},
    ) as (_, _, _, session):
        copies = []
        real = np.copyto
        monkeypatch.setattr(np, "copyto", lambda *args, **how: copies.append(args) or real(*args, **how))
        run_whole(session, Batch(items, 2))
        run_whole(session, Batch(items[:1], 1))
        assert len(copies) == 2 * copied


def test_an_integrated_gpu_copies_nothing(monkeypatch, tmp_path):
    with loaded(monkeypatch, tmp_path, cuda={"attributes": {"INTEGRATED": 1}}) as (cuda, _, _, session):
        outputs_of(session, 1.0)
        assert not [call for call in cuda.log if call[0].startswith("copy_")]


def test_mapped_no_copies_on_an_integrated_gpu_too(monkeypatch, tmp_path):
    with loaded(monkeypatch, tmp_path, cuda={"attributes": {"INTEGRATED": 1}}, options={"mapped": "no"}) as (
        cuda,
        _,
        _,
        session,
    ):
        outputs_of(session, 1.0)
        assert [call for call in cuda.log if call[0] == "copy_to_device"]


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
        later = session.launch(Batch([x(5.0)], 1))  # takes the slot of a batch whose result nobody has asked yet
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


def test_int64_beyond_int32_is_refused_before_version_10(monkeypatch, tmp_path):
    with loaded(monkeypatch, tmp_path, "8.6", file=onnx_models.lookup(str(tmp_path)), shapes={"ids": (1,)}) as (
        _,
        _,
        _,
        session,
    ):
        with pytest.raises(EngineError, match=r"input 'ids' has values from .*; this TensorRT \(8.6.0\) computes them"):
            session.launch(Batch([{"ids": np.array([2**40])}], 1))
        assert run_whole(session, Batch([{"ids": np.array([3])}], 1))[0][0].outputs["y"].shape == (1,)


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
        monkeypatch.setattr(running.ProfileContext, "capture", refuse_capture)
    with loaded(monkeypatch, tmp_path, options={"graph": how != "option"}) as (
        cuda,
        _,
        _,
        session,
    ):
        assert session.graphs == 0
        np.testing.assert_allclose(outputs_of(session, 2.0), x(2.0)["x"] @ WEIGHTS, rtol=1e-6)
        assert "launch" not in [call[0] for call in cuda.log]


def refuse_capture(self, number, slot, stream):
    with stream.captured():
        raise EngineError("operation not permitted when stream is capturing")


def test_other_shapes_than_the_captured_ones_run_without_a_graph(monkeypatch, tmp_path):
    with loaded(
        monkeypatch,
        tmp_path,
        file=onnx_models.pooled(str(tmp_path)),
        batch=(1,),
        options={"ranges": {"x": [[1, 2], [1, 8], [1, 16]]}},
    ) as (_, _, _, session):
        for width in (8, 4, 8, 16):
            item = {"x": np.arange(width, dtype=np.float32)[None]}
            result = run_whole(session, Batch([item], 1))[0][0].outputs["y"]
            np.testing.assert_allclose(result, np.arange(0.5, width, 2))


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
    with loaded(monkeypatch, tmp_path, options={"graph": False}) as (_, _, engine, session):
        with pytest.MonkeyPatch.context() as refusing:
            refusing.setattr(
                engine._loaded.library.trt.IExecutionContext,
                "execute_async_v3",
                lambda self, stream_handle: self._refuse("no kernel"),
            )
            with pytest.raises(EngineError, match="model 'm': batch of 2 cannot be enqueued: no kernel"):
                session.launch(Batch([x(1.0)], 2))
        np.testing.assert_allclose(outputs_of(session, 2.0), x(2.0)["x"] @ WEIGHTS, rtol=1e-6)


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


def launch_two(session):
    """Two batches of different values, checked."""
    pendings = [session.launch(Batch([x(value)], 2)) for value in (1.0, 2.0)]
    for pending, value in zip(pendings, (1.0, 2.0)):
        while not pending.wait(0.01):
            pass
        np.testing.assert_allclose(pending.result()[0].outputs["y"], x(value)["x"] @ WEIGHTS, rtol=1e-6)


@contextlib.contextmanager
def faulty(monkeypatch, tmp_path, **settings):
    """A session whose CUDA double is left as it is afterwards: a fault may leave anything behind."""
    with trt_worlds.world(monkeypatch, settings.pop("version", "10.3")) as cuda:
        engine = trt_worlds.made(
            str(tmp_path), onnx_models.linear(str(tmp_path)), batch=(1, 2), options={"graph": False}, **settings
        )
        engine.load()
        yield cuda, engine, trt_worlds.new_lane()


def test_planted_no_fault(monkeypatch, tmp_path):
    with faulty(monkeypatch, tmp_path) as (_, engine, lane):
        launch_two(engine.open(lane))


def test_planted_memory_used_after_it_was_freed(monkeypatch, tmp_path):
    with faulty(monkeypatch, tmp_path) as (_, engine, lane):
        session = engine.open(lane)
        session._contexts._slots[0].staged["x"].free()
        with pytest.raises((Misuse, EngineError), match="after it was freed"):
            session.launch(Batch([x(1.0)], 2))


def test_planted_context_memory_freed_before_the_context(monkeypatch, tmp_path):
    with faulty(monkeypatch, tmp_path) as (_, engine, lane):
        session = engine.open(lane)
        with pytest.raises(Misuse, match="freed while an execution context has it"):
            session._contexts._memory.free()


def test_planted_buffer_reused_before_its_event(monkeypatch, tmp_path):
    monkeypatch.setattr(running.LaneContexts, "_free_slot", lambda self: (0, self._slots[0]))
    with faulty(monkeypatch, tmp_path) as (_, engine, lane):
        session = engine.open(lane)
        with pytest.raises(Misuse):
            launch_two(session)


def test_planted_context_shared_by_two_profiles(monkeypatch, tmp_path):
    """One context for both batch sizes: the second selects its own profile under the first one's graphs."""
    shared = []

    def create_context(self, engine):
        if not shared:
            shared.append(engine.create_execution_context(self.trt.ExecutionContextAllocationStrategy.USER_MANAGED))
        return shared[0]

    monkeypatch.setattr("edgeserve.engines.tensorrt.versions.Api.create_context", create_context)
    with faulty(monkeypatch, tmp_path) as (_, engine, lane):
        shared.clear()
        with pytest.raises(Misuse, match="a context that runs profile 0 was bound to profile 1"):
            engine.open(lane)


def test_planted_profile_used_by_two_contexts_before_version_86(monkeypatch, tmp_path):
    monkeypatch.setattr("edgeserve.engines.tensorrt.engine.TensorrtEngine._copy_of_lane", lambda self, loaded: 0)
    with faulty(monkeypatch, tmp_path, version="8.5", lanes=2) as (_, engine, lane):
        engine.open(lane)
        with pytest.raises(EngineError, match="profile 0 is in use by another context"):
            engine.open(trt_worlds.new_lane())


def test_planted_missing_address(monkeypatch, tmp_path):
    with faulty(monkeypatch, tmp_path) as (_, engine, lane):
        context_type = engine._loaded.library.trt.IExecutionContext
        kept = context_type.set_tensor_address
        monkeypatch.setattr(
            context_type,
            "set_tensor_address",
            lambda self, name, pointer: True if name == "y" else kept(self, name, pointer),
        )
        with pytest.raises(Misuse, match=r"without set_tensor_address of \['y'\]"):
            engine.open(lane)


@pytest.mark.parametrize("event", ["fed", "ran"])
def test_planted_missing_wait(monkeypatch, tmp_path, event):
    with faulty(monkeypatch, tmp_path) as (_, engine, lane):
        session = engine.open(lane)
        kept = CudaStream.wait
        skipped = [id(getattr(slot, event)) for slot in session._contexts._slots]
        monkeypatch.setattr(CudaStream, "wait", lambda self, mark: None if id(mark) in skipped else kept(self, mark))
        with pytest.raises(Misuse, match="touch the same memory, and nothing orders them"):
            session.launch(Batch([x(1.0)], 2))


@pytest.mark.parametrize("handle", [0, "copies"])
def test_planted_wrong_stream(monkeypatch, tmp_path, handle):
    with faulty(monkeypatch, tmp_path) as (_, engine, lane):
        session = engine.open(lane)
        context_type = engine._loaded.library.trt.IExecutionContext
        kept = context_type.execute_async_v3
        wrong = lane.common["cuda"].copies[1].handle if handle else 0
        monkeypatch.setattr(context_type, "execute_async_v3", lambda self, stream: kept(self, wrong))
        with pytest.raises(Misuse, match="nothing orders them" if handle else "default stream"):
            session.launch(Batch([x(1.0)], 2))


def test_planted_results_read_before_the_end(monkeypatch, tmp_path):
    with faulty(monkeypatch, tmp_path) as (_, engine, lane):
        session = engine.open(lane)
        session.launch(Batch([x(1.0)], 2))
        early = session._contexts._slots[0].collecting.results()[0].outputs["y"]
        assert early.view(np.uint8).tolist() == [POISON] * early.nbytes


def test_planted_graph_of_the_first_run(monkeypatch, tmp_path):
    monkeypatch.setattr(
        running.LaneContexts,
        "_warm",
        lambda self, context, shapes: context.capture(0, self._slots[0], self.stream.stream),
    )
    with faulty(monkeypatch, tmp_path) as (_, engine, lane), pytest.raises(Misuse, match="it holds the initialisation"):
        engine.open(lane)


def test_planted_graph_kept_over_a_change_of_shapes(monkeypatch, tmp_path):
    with loaded(
        monkeypatch,
        tmp_path,
        file=onnx_models.pooled(str(tmp_path)),
        batch=(1,),
        options={"ranges": {"x": [[1, 2], [1, 8], [1, 16]]}},
    ) as (cuda, lane, _, session):
        context = session._contexts._contexts[1]
        context.reshape({"x": (1, 1, 4)})
        with lane.common["cuda"].device.current(), pytest.raises(Misuse, match="shapes had changed"):
            context.graphs[0].launch(lane.common["cuda"].stream)
