"""The ``onnx`` engine on a GPU provider held to the contract: the engine's own code on doubles of ONNX Runtime and CUDA
that run late, notice misuse and prove nothing about speed. The same on a real GPU is in ``tests/gpu``."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from typing import Any, Dict, Optional

import numpy as np
import onnx_models
import onnxruntime
import pytest
from cuda_double import CudaDouble
from onnx_double import OnnxDouble
from vector_items import ONNX_STATE, VectorModel

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, Engine, LaneInfo, run_batch
from edgeserve.errors import ConfigError, DeviceLost, DeviceMissing, EngineError, OutOfMemory
from edgeserve.testing.engine_conformance import ECHO_SHAPE, ECHO_SIZES

LANE = LaneInfo("cuda", name="gpu0", depth=2)


class OnGpu(VectorModel):
    """Base of the classes below, on doubles."""

    lane = LANE
    settings = {"engine": "onnx"}
    attributes: Dict[str, int] = {}

    @pytest.fixture(autouse=True)
    def _double(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        double = self.double = OnnxDouble(CudaDouble(attributes=self.attributes)).installed(monkeypatch)
        yield
        driver = double.driver
        driver.lost = 0
        driver.run_all()
        for shared in (self._lane().common or {}).values():
            shared.close()
        assert [
            leak
            for leak in driver.leaks()
            if "stream" not in leak and "context" not in leak and "event" not in leak and "device memory" not in leak
        ] == []  # lanes of threads are not closed

    def make(self, directory: str) -> Engine:
        return self.built(directory, file=onnx_models.linear(directory))

    def make_lost(self, directory: str) -> Engine:
        engine = self.make(directory)
        loaded = engine.load

        def load_and_lose() -> Any:
            footprint = loaded()
            self.double.driver.fail["event_done"] = 700
            return footprint

        engine.load = load_and_lose  # type: ignore[method-assign]
        return engine


class TestCuda(OnGpu):
    def make_echo(self, directory: str, rank: int, dtype: str) -> Optional[Engine]:
        if dtype == "text":
            return None  # it stays on the host, which the double does not have
        file = onnx_models.echo(directory, dtype, ECHO_SHAPE[:rank])
        return make_engine(ModelConfig("echo", "onnx", file=file, batch=ECHO_SIZES), [self.lane], directory)


class TestCudaOneAtATime(OnGpu):
    lane = LANE._replace(depth=1)


class TestCudaIntegrated(OnGpu):
    attributes = {"INTEGRATED": 1}


class TestCudaState(OnGpu):
    stateful = True

    def make(self, directory: str) -> Engine:
        return self.built(directory, file=onnx_models.recurrent(directory), **ONNX_STATE)


@pytest.fixture
def double(monkeypatch):
    return OnnxDouble().installed(monkeypatch)


def engine_of(directory, lanes=(LANE,), **options):
    model = ModelConfig(
        name="vec", engine="onnx", batch=(1, 2), file=onnx_models.linear(str(directory)), options=options
    )
    return make_engine(model, lanes, str(directory))


def opened(engine, clock=lambda: 1):
    engine.load()
    return engine.open(LANE._replace(clock_ns=clock, common={}))


BATCH = Batch([{"x": np.ones(4, np.float32)}], 1)


def test_the_real_library_takes_the_calls_that_the_double_takes(tmp_path):
    """On the CPU's memory: names, order and types of the arguments, and what an output says of itself."""
    import onnxruntime

    session = onnxruntime.InferenceSession(
        str(tmp_path / onnx_models.linear(str(tmp_path))), providers=["CPUExecutionProvider"]
    )
    x, binding, options = np.ones((2, 4), np.float32), session.io_binding(), onnxruntime.RunOptions()
    binding.bind_input("x", "cpu", 0, x.dtype, list(x.shape), x.ctypes.data)
    binding.bind_output("y", "cpu", 0)
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    session.run_with_iobinding(binding, options)
    (value,) = binding.get_outputs()
    assert (value.device_name().lower(), tuple(value.shape())) == ("cpu", (2, 3))
    raw = (ctypes.c_float * 6).from_address(value.data_ptr())
    np.testing.assert_allclose(np.frombuffer(raw, np.float32).reshape(2, 3), [[1.8, 2.2, 2.6]] * 2, rtol=1e-6)
    assert all(isinstance(settings, dict) for settings in session.get_provider_options().values())


def test_each_lane_has_a_session_on_a_stream_of_its_own(tmp_path, double):
    engine = engine_of(tmp_path, [LANE, LANE._replace(name="gpu1")])
    footprint = engine.load()
    streams = [session.settings["CUDAExecutionProvider"]["user_compute_stream"] for session in double.sessions]
    assert len(set(streams)) == 2
    assert footprint.weights_bytes == 2 * engine_of(tmp_path).load().weights_bytes
    engine.unload()


def test_the_inputs_of_the_next_batch_are_copied_beside_the_batch_before(tmp_path, double):
    session = opened(engine_of(tmp_path))
    driver = double.driver
    first, second = session.launch(BATCH), session.launch(BATCH)
    shared = session._shared
    with shared.current():
        shared.copies[0].synchronize()
    assert driver.ran.count("copy_to_device") == 2, "the copies do not wait for the network"
    assert "network" not in driver.ran
    for pending in (first, second):
        assert pending.wait(10)
        np.testing.assert_allclose(pending.result()[0].outputs["y"], [1.8, 2.2, 2.6], rtol=1e-6)


def test_two_models_of_a_lane_take_turns_on_the_device(tmp_path, double):
    driver, lane = double.driver, LANE._replace(clock_ns=lambda: 1, common={})
    engines = [engine_of(tmp_path), engine_of(tmp_path)]
    for engine in engines:
        engine.load()
    first, second = (engine.open(lane).launch(BATCH) for engine in engines)
    streams = [int(session.settings["CUDAExecutionProvider"]["user_compute_stream"]) for session in double.sessions]
    assert second.wait(10), "the first is not requested, and the second comes behind it"
    assert "network" not in driver.waiting(streams[0])
    assert first.wait(10)


def test_batches_that_fail_leave_their_memory_to_the_next(tmp_path, double):
    session, driver = opened(engine_of(tmp_path)), double.driver
    run_batch(session, BATCH)
    made = [sum(1 for call in driver.log if call[0] == name) for name in ("alloc_host", "create_event")]
    for _ in range(3):
        double.error = "Non-zero status code returned"
        with pytest.raises(EngineError):
            session.launch(BATCH)
        run_batch(session, BATCH)
    now = [sum(1 for call in driver.log if call[0] == name) for name in ("alloc_host", "create_event")]
    assert now[0] == made[0]
    assert now[1] <= made[1] + 4, "marks of a batch that failed are used again once they were passed"


def test_inputs_are_packed_where_they_are_copied_from(tmp_path, double, monkeypatch):
    session, made, real = opened(engine_of(tmp_path)), [], np.empty
    monkeypatch.setattr(np, "empty", lambda *args, **how: made.append(args) or real(*args, **how))
    two = Batch([{"x": np.full(4, value, np.float32)} for value in (1, 2)], 2)
    outputs = [result.outputs["y"] for result in run_batch(session, two)[0]]
    assert made == [], "no array beside the page-locked one"
    np.testing.assert_allclose(outputs[1], [3.6, 4.4, 5.2], rtol=1e-6)


def test_a_batch_that_cannot_be_packed_leaves_its_memory_to_the_next(tmp_path, double):
    session = opened(engine_of(tmp_path))
    run_batch(session, BATCH)
    staged = sum(1 for call in double.driver.log if call[0] == "alloc_host")
    for _ in range(3):
        (result,) = run_batch(session, Batch([{"x": np.ones(3, np.float32)}], 1))[0]
        assert result.error is not None
    run_batch(session, BATCH)
    assert sum(1 for call in double.driver.log if call[0] == "alloc_host") == staged


def test_batches_use_the_same_memory_again(tmp_path, double):
    session = opened(engine_of(tmp_path))
    run_batch(session, BATCH)
    staged = sum(1 for call in double.driver.log if call[0] == "alloc_host")
    for _ in range(4):
        run_batch(session, BATCH)
    assert sum(1 for call in double.driver.log if call[0] == "alloc_host") == staged


def test_unloading_gives_everything_back(tmp_path, double):
    engine = engine_of(tmp_path)
    lane = LANE._replace(clock_ns=lambda: 1, common={})
    engine.load()
    run_batch(engine.open(lane), BATCH)
    engine.unload()
    lane.common["cuda"].close()
    assert [leak for leak in double.driver.leaks() if leak != "device memory of 12 bytes"] == []  # the double's arena


def test_a_provider_that_falls_back_is_refused(tmp_path, double):
    double.falls_back = True
    with pytest.raises(EngineError, match=r"asked for CUDAExecutionProvider but onnxruntime .* fell back to CPU"):
        engine_of(tmp_path).load()
    assert double.driver.leaks() == []


@pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler makes the provider's library")
def test_the_library_that_a_provider_lacks_is_named(tmp_path, double, monkeypatch):
    folder = tmp_path / "onnxruntime" / "capi"
    folder.mkdir(parents=True)
    source, needed = tmp_path / "empty.c", tmp_path / "libcudnn_of_a_test.so.9"
    source.write_text("int nothing;")
    subprocess.run(["cc", "-shared", "-o", needed, source, f"-Wl,-soname,{needed.name}"], check=True)
    provider = folder / "libonnxruntime_providers_cuda.so"
    subprocess.run(["cc", "-shared", "-Wl,--no-as-needed", "-o", provider, source, needed], check=True)
    needed.unlink()
    monkeypatch.setattr(onnxruntime, "__file__", str(folder.parent / "__init__.py"))
    double.falls_back = True
    with pytest.raises(EngineError, match=r"fell back to CPU.*; libcudnn_of_a_test.so.9 cannot be found"):
        engine_of(tmp_path).load()


def test_libraries_of_nvidias_packages_are_loaded_first_and_a_cpu_model_needs_none(
    tmp_path, double, monkeypatch, capsys
):
    sessions = []

    def preload_dlls():
        print("Failed to load libcudart.so.13")
        sessions.append(len(double.sessions))

    monkeypatch.setattr(onnxruntime, "preload_dlls", preload_dlls, raising=False)
    engine_of(tmp_path, providers=["cpu"], lanes=(LaneInfo("cpu", name="cpu0"),)).load()
    assert sessions == []
    engine_of(tmp_path).load()
    assert sessions == [1], "before the session on the GPU"
    assert capsys.readouterr().out == "", "a library that nothing needs is no news"


def test_a_convolutions_algorithm_is_chosen_without_timing_them_all_for_each_batch_size(tmp_path, double):
    for own, expected in (({}, "HEURISTIC"), ({"cudnn_conv_algo_search": "EXHAUSTIVE"}, "EXHAUSTIVE")):
        engine_of(tmp_path, provider_options={"cuda": own}).load()
        assert double.sessions[-1].settings["CUDAExecutionProvider"]["cudnn_conv_algo_search"] == expected


def test_a_provider_that_ignores_the_stream_is_refused(tmp_path, double):
    double.ignores_the_stream = True
    with pytest.raises(EngineError, match="does not use the stream that it was given"):
        engine_of(tmp_path).load()


def test_tensorrt_gets_the_stream_and_its_options_too(tmp_path, double):
    engine = engine_of(
        tmp_path,
        providers=["tensorrt", "cuda"],
        provider_options={"tensorrt": {"trt_engine_cache_enable": True}, "cuda": {"gpu_mem_limit": 9}},
    )
    engine.load()
    settings = double.sessions[0].settings
    streams = {own["user_compute_stream"] for own in settings.values()}
    assert len(streams) == 1
    assert settings["TensorrtExecutionProvider"]["trt_engine_cache_enable"] == "True"
    assert settings["CUDAExecutionProvider"]["gpu_mem_limit"] == "9"
    assert settings["CUDAExecutionProvider"]["arena_extend_strategy"] == "kSameAsRequested"


def test_the_engines_of_the_tensorrt_provider_are_kept_and_found_by_the_next_start(tmp_path, double, monkeypatch):
    monkeypatch.setenv("EDGESERVE_CACHE", str(tmp_path / "cache"))
    places = []
    for own in ({}, {"trt_engine_cache_path": str(tmp_path / "mine")}):
        engine = engine_of(tmp_path, providers=["tensorrt", "cuda"], provider_options={"tensorrt": own})
        engine.load()
        settings = double.sessions[-1].settings["TensorrtExecutionProvider"]
        assert settings["trt_engine_cache_enable"] == "True"
        assert os.path.isdir(settings["trt_engine_cache_path"])
        places.append(os.path.relpath(settings["trt_engine_cache_path"], tmp_path).split(os.sep)[0])
    assert places == ["cache", "mine"]


def test_the_cache_of_the_tensorrt_provider_is_of_one_release_and_power_mode(tmp_path):
    from edgeserve.engines.onnx_cache import tensorrt_cache

    roots = []
    for mode in ("0000", "0002"):
        root = tmp_path / mode
        for path, text in (
            ("etc/nv_tegra_release", "# R36 (release), REVISION: 4.3"),
            ("var/lib/nvpmodel/status", f"pmode:{mode}"),
            ("etc/nvpmodel.conf", "< POWER_MODEL ID=0 NAME=MAXN >\n< POWER_MODEL ID=2 NAME=MODE_30W >"),
        ):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        roots.append(os.path.basename(tensorrt_cache(str(root))))
    assert roots == ["36-4-3-maxn", "36-4-3-mode-30w"]


def test_a_graph_of_the_provider_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"provider_options.cuda.enable_cuda_graph"):
        engine_of(tmp_path, provider_options={"cuda": {"enable_cuda_graph": True}})


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Failed to allocate memory for requested buffer of size 123", OutOfMemory),
        ("BFCArena: Available memory of 100 is smaller than requested bytes of 123", OutOfMemory),
        ("CUDA failure 700: an illegal memory access was encountered", DeviceLost),
        ("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0 ; expr=cublasCreate(&cublas_handle_);", OutOfMemory),
        ("CUDNN failure 4001: CUDNN_STATUS_ALLOC_FAILED ; GPU=0", OutOfMemory),
        ("Non-zero status code returned while running Gather node", EngineError),
    ],
)
def test_what_a_run_raises_becomes_the_models_error_and_the_next_batch_runs(tmp_path, double, text, kind):
    session = opened(engine_of(tmp_path))
    double.error = text
    with pytest.raises(kind, match="model 'vec'") as caught:
        session.launch(BATCH)
    assert type(caught.value) is kind
    if kind is OutOfMemory:
        assert caught.value.asked_bytes == (123 if "123" in text else None)
    assert run_batch(session, BATCH)[0][0].error is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Available memory of 100 is smaller than requested bytes of 123", OutOfMemory),
        ("CUDA failure 2: out of memory", OutOfMemory),
        ("Exception during initialization: std::bad_alloc", OutOfMemory),
        ("CUDA failure 700: an illegal memory access was encountered", DeviceLost),
    ],
)
def test_a_device_that_fails_at_the_load_is_not_taken_for_a_faulty_file(tmp_path, double, text, kind):
    double.load_error = text
    with pytest.raises(kind, match="model 'vec'"):
        engine_of(tmp_path).load()
    assert double.driver.leaks() == []


def test_without_a_library_for_cuda_onnxruntime_copies_and_waits_by_itself(tmp_path, double, monkeypatch):
    def missing(choice="auto"):
        raise DeviceMissing("no library for CUDA can be imported")

    monkeypatch.setattr("edgeserve.engines.onnx.open_driver", missing)
    session = opened(engine_of(tmp_path))
    np.testing.assert_allclose(run_batch(session, BATCH)[0][0].outputs["y"], [1.8, 2.2, 2.6], rtol=1e-6)
    assert "user_compute_stream" not in double.sessions[0].settings["CUDAExecutionProvider"]
    with pytest.raises(DeviceMissing):
        engine_of(tmp_path, cuda="cuda-bindings").load()


def test_the_library_can_be_left_alone(tmp_path, double):
    engine_of(tmp_path, cuda="none").load()
    assert "user_compute_stream" not in double.sessions[0].settings["CUDAExecutionProvider"]


def test_a_share_of_the_multiprocessors_is_refused_where_no_stream_would_keep_it(tmp_path, monkeypatch):
    OnnxDouble(CudaDouble()).installed(monkeypatch)
    model = ModelConfig("m", "onnx", onnx_models.linear(str(tmp_path)), options={"cuda": "none"})
    with pytest.raises(ConfigError, match=r"\[model.m\] options.cuda = 'none' .* sms"):
        make_engine(model, [LANE._replace(sms=4)], str(tmp_path)).load()
