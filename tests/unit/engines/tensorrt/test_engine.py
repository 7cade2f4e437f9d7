"""The engine's life on the double: plans found, refused and built again; what a machine may lack."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")
pytest.importorskip("onnxruntime", reason="the double computes with onnxruntime; pip install -e '.[onnx]'")

import onnx_models
import trt_double
import trt_worlds

import edgeserve
from edgeserve.commands.measure import StopRule
from edgeserve.commands.profile import print_outcomes, profile_model
from edgeserve.config.loading import load_config
from edgeserve.config.profiles import read_profile
from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, run_whole
from edgeserve.engines.cuda import driver
from edgeserve.engines.tensorrt import building, plan_source
from edgeserve.engines.tensorrt.build_errors import LibraryMissing, PlanRefused
from edgeserve.errors import ConfigError, DeviceLost, DeviceMissing, EngineError, OutOfMemory

TOML = """
[device.gpu]
kind = "cuda"

[lane.gpu0]
device = "gpu"
depth = 2

[model.net]
engine = "tensorrt"
file = "linear.onnx"
batch = [1, 2, 4]
options = { plans = "plans", allow_build = true }

[app.net]
model = "net"
slo = "10s"
"""


@pytest.fixture
def double(monkeypatch):
    with trt_worlds.world(monkeypatch, "10.3") as cuda:
        yield cuda


@pytest.fixture
def builds(monkeypatch):
    """Counts the builds."""
    seen = []

    def counted(*arguments):
        seen.append(arguments)
        return trt_worlds.build_here(*arguments)

    monkeypatch.setattr(plan_source, "build_plan", counted)
    return seen


def made(tmp_path, **settings):
    return trt_worlds.made(str(tmp_path), onnx_models.linear(str(tmp_path)), **settings)


def loads(engine):
    engine.load()
    engine.unload()


def test_a_plan_is_built_once_and_found_again(double, builds, tmp_path):
    for _ in range(2):
        loads(made(tmp_path, batch=(1, 2)))
    assert len(builds) == 1
    loads(made(tmp_path, batch=(1, 4)))
    assert len(builds) == 2
    assert double.leaks() == []


def test_a_server_builds_no_plan_unless_it_is_allowed_to(double, builds, tmp_path):
    serving = [trt_worlds.LANE._replace(serves=True)]
    file = onnx_models.linear(str(tmp_path))

    def engine(lanes, **options):
        model = ModelConfig("m", "tensorrt", file=file, options={"plans": str(tmp_path / "plans"), **options})
        return make_engine(model, lanes, str(tmp_path))

    with pytest.raises(
        EngineError, match=r"model 'm': there is no plan of linear.onnx .*edgeserve profile.*allow_build"
    ):
        engine(serving).load()
    assert builds == [] and double.leaks() == []
    loads(engine(serving, allow_build=True))
    loads(engine(serving))
    assert len(builds) == 1, "what is there is found"


def test_a_refused_plan_stays_where_it_may_not_be_built_again(double, builds, tmp_path):
    loads(made(tmp_path))
    double.refusals.append("magic tag does not match")
    model = ModelConfig("m", "tensorrt", file="linear.onnx", options={"plans": str(tmp_path / "plans")})
    engine = make_engine(model, [trt_worlds.LANE._replace(serves=True)], str(tmp_path))
    with pytest.raises(PlanRefused, match="refuses the plan"):
        engine.load()
    loads(engine)
    assert len(builds) == 1


def test_a_plan_is_built_anew_with_new_timings_where_that_is_asked(double, builds, tmp_path):
    loads(made(tmp_path))
    engine = made(tmp_path)
    engine.rebuilds = True
    loads(engine)
    loads(engine)
    timings = [arguments[4] for arguments in builds]
    assert len(builds) == 2 and timings[0] and not timings[1]


def test_a_plan_of_another_version_of_the_library_is_not_run(monkeypatch, builds, tmp_path):
    for version in ("10.3", "10.7"):
        with trt_worlds.world(monkeypatch, version, in_process=False):
            loads(made(tmp_path))
    assert len(builds) == 2


def test_a_plan_that_later_versions_run_too_is_found_by_them(monkeypatch, builds, tmp_path):
    for version in ("10.3", "10.7", "11.0"):
        with trt_worlds.world(monkeypatch, version, in_process=False):
            loads(made(tmp_path, options={"version_compatible": True}))
    assert len(builds) == 1
    with trt_worlds.world(monkeypatch, "8.6", in_process=False):  # which is older: the plan is refused, and built anew
        loads(made(tmp_path, options={"version_compatible": True}))
    assert len(builds) == 2
    with trt_worlds.world(monkeypatch, "8.5", in_process=False), pytest.raises(EngineError, match="needs TensorRT 8.6"):
        made(tmp_path, options={"version_compatible": True}, batch=(1, 2)).load()


@pytest.mark.parametrize(
    ("version", "options", "said"),
    [
        ("10.3", {}, "built in float32, as the file has it. options.precision = 'fp16' may be faster"),
        ("10.3", {"precision": "fp16"}, "built with precision = 'fp16': float16 where that is faster"),
        ("11.4", {}, "built in float32, as the file has it. options.precision = 'fp16' may be faster"),
        ("11.4", {"precision": "fp16"}, "built with precision = 'fp16': float16, and in float32 nothing"),
    ],
)
def test_at_load_a_line_says_which_precision_it_has(version, options, said, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", "edgeserve.tensorrt")
    monkeypatch.setattr(plan_source, "build_plan", trt_worlds.build_here)
    with trt_worlds.world(monkeypatch, version):
        for _ in range(2):  # built, then found
            loads(made(tmp_path, options=options))
    lines = [line for line in map(str, caplog.messages) if "built " in line and "plan was" not in line]
    assert len(lines) == 2 and all(re.search(said, line) for line in lines), lines


@pytest.mark.parametrize("version", ["10.3", "11.4", "rtx"])
def test_half_precision_changes_neither_types_nor_answers_much(version, tmp_path, monkeypatch):
    """float16 by the builder's choice, or by casts in the graph: clients see no difference."""
    answers = []
    for options in ({}, {"precision": "fp16"}):
        with trt_worlds.loaded(
            monkeypatch, str(tmp_path), onnx_models.linear(str(tmp_path)), version, options=options
        ) as (
            _,
            _,
            _,
            session,
        ):
            (result,), _ = run_whole(session, Batch([{"x": np.array([1, -2, 0.1, 4], np.float32)}], 1))
            answers.append(result.outputs["y"])
    assert [answer.dtype for answer in answers] == [np.float32, np.float32]
    assert np.allclose(*answers, rtol=2e-3)


def test_kernels_that_were_compiled_at_load_are_kept_where_they_fit(tmp_path, monkeypatch):
    file = onnx_models.linear(str(tmp_path))

    def compiled(**options):
        with trt_worlds.loaded(monkeypatch, str(tmp_path), file, "rtx", options=options) as (cuda, _, _, _):
            return cuda.compiled

    assert [compiled(), compiled()] == [1, 0]
    (kept,) = glob.glob(str(tmp_path / "plans" / "*.kernels"))
    with open(kept, "wb") as other:
        other.write(b"of another driver")
    assert [compiled(), compiled()] == [1, 0]
    assert compiled(timing_cache=False) == 1


@pytest.mark.parametrize("integrated", [True, False])
def test_the_builder_takes_no_more_memory_than_is_free_which_makes_no_other_plan(
    integrated, builds, tmp_path, monkeypatch
):
    free = [3 << 30, 1 << 30]
    monkeypatch.setattr(building, "available_bytes", lambda: free[0])
    settings = {"attributes": {"INTEGRATED": int(integrated)}, "memory_bytes": 3 << 30}
    with trt_worlds.world(monkeypatch, "10.3", in_process=False, **settings):
        loads(made(tmp_path))
        free.pop(0)
        loads(made(tmp_path))
        loads(made(tmp_path, batch=(1, 2, 4), options={"build_memory": "2GiB"}))
    limits = [arguments[1].tactic_bytes for arguments in builds]
    assert len(limits) == 2 and limits[1] == 2 << 30
    assert 64 << 20 <= limits[0] <= 3 << 30


def test_a_plan_that_the_library_refuses_is_built_again_once(double, builds, tmp_path, monkeypatch, caplog):
    loads(made(tmp_path))
    refused = []
    library = sys.modules["tensorrt"]
    real = library.Runtime.deserialize_cuda_engine

    def refuse_first(self, data):
        if not refused:
            refused.append(1)
            self._log.log(1, "magic tag does not match")
            return None
        return real(self, data)

    monkeypatch.setattr(library.Runtime, "deserialize_cuda_engine", refuse_first)
    loads(made(tmp_path))
    assert len(builds) == 2
    assert "is removed: model 'm': tensorrt 10.3.0 refuses the plan" in caplog.text
    monkeypatch.setattr(library.Runtime, "deserialize_cuda_engine", lambda self, data: None)
    with pytest.raises(PlanRefused, match=r"model 'm': .*did not say why.*edgeserve doctor"):
        made(tmp_path).load()
    assert len(builds) == 3
    assert double.leaks() == []


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("[defaultAllocator.cpp::allocate::19] Error Code 1: Cuda Runtime (out of memory)", OutOfMemory),
        (
            "[virtualMemoryBuffer.cpp::resizePhysical::145] Error Code 2: OutOfMemory (Requested size was 9)",
            OutOfMemory,
        ),
        ("Requested amount of GPU memory (8388608 bytes) could not be allocated", OutOfMemory),
        ("[x.cpp::y::1] Error Code 1: Cuda Runtime (an illegal memory access was encountered)", DeviceLost),
        ("[impl.cpp::alloc::585] Error Code 1: Myelin (Error 2 (out of memory))", OutOfMemory),
        ("[cudnn.cpp::create::9] Error Code 1: Cudnn (CUDNN_STATUS_ALLOC_FAILED)", OutOfMemory),
    ],
)
def test_a_device_that_fails_while_a_plan_is_loaded_is_not_the_plans_fault(double, builds, tmp_path, said, kind):
    loads(made(tmp_path))
    double.refusals.append(said)
    engine = made(tmp_path)
    with pytest.raises(kind, match="model 'm'") as caught:
        engine.load()
    assert "Check that the GPU" not in str(caught.value)
    loads(engine)
    assert len(builds) == 1, "the plan is good and stays"
    assert double.leaks() == []


def test_a_plan_whose_profiles_are_others_is_refused(double, builds, tmp_path, monkeypatch):
    engine = made(tmp_path, batch=(1, 2))
    engine_type = trt_double.ICudaEngine
    loads(engine)
    library = sys.modules["tensorrt"]
    assert "get_tensor_profile_shape" in vars(engine_type)
    monkeypatch.setattr(
        library.ICudaEngine, "get_tensor_profile_shape", lambda self, name, index: [(1, 4), (1, 4), (8, 4)]
    )
    with pytest.raises(PlanRefused, match=r"optimisation profile 0 .batch size 1. takes input 'x' of .*\(8, 4\)"):
        made(tmp_path, batch=(1, 2)).load()


def too_old(patch, cuda):
    library = __import__("tensorrt")
    patch.delattr(library.IExecutionContext, "execute_async_v3")
    patch.setattr(library, "__version__", "8.4.1")


def no_binding(patch, cuda):
    patch.setattr(driver, "_open", {})
    patch.setattr(driver, "BINDINGS", ("no_such_module",))


def no_library(patch, cuda):
    patch.setitem(sys.modules, "tensorrt", None)
    patch.setitem(sys.modules, "tensorrt_rtx", None)


def shape_of_values(patch, cuda):
    kind = __import__("tensorrt").IExecutionContext
    patch.setattr(kind, "get_tensor_shape", lambda self, name: (-1, 4))
    patch.setattr(kind, "get_max_output_size", lambda self, name: -1)


@pytest.mark.parametrize(
    ("lacks", "error", "says"),
    [
        (lambda patch, cuda: setattr(cuda, "devices", 0), DeviceMissing, r"device 0 does not exist"),
        (lambda patch, cuda: cuda.fail.update(device_count=35), DeviceMissing, r"model 'm': .*\(35\).*driver"),
        (no_binding, DeviceMissing, "no library for CUDA can be imported"),
        (no_library, LibraryMissing, "TensorRT cannot be imported .tensorrt: .*; tensorrt_rtx: .*apt install"),
        (too_old, LibraryMissing, "tensorrt 8.4.1 is too old; expected 8.5 or later"),
        (shape_of_values, EngineError, "model 'm': the shape of output 'x' depends on the input's values"),
    ],
)
def test_what_a_machine_or_a_model_lacks_is_told_with_the_mend(double, monkeypatch, tmp_path, lacks, error, says):
    lacks(monkeypatch, double)
    with pytest.raises(error, match=says):
        made(tmp_path).load()
    assert double.leaks() == []


def test_without_the_model(double, tmp_path):
    with pytest.raises(EngineError, match="there is no file .*nothing.onnx"):
        trt_worlds.made(str(tmp_path), "nothing.onnx").load()


def test_a_plan_that_fails_is_gone_before_its_device_is_given_back(double, tmp_path, monkeypatch):
    """The double refuses the device's release while an engine lives, also one that a traceback keeps alive."""
    library = __import__("tensorrt")
    monkeypatch.setattr(library.ICudaEngine, "get_tensor_dtype", lambda self, name: library.DataType.BF16)
    with pytest.raises(EngineError, match="tensor 'x' is .*, which numpy has no type for; export the model") as kept:
        made(tmp_path).load()
    assert len(double.engines) == 0
    assert kept.value.__traceback__ is not None


def test_a_refused_plan_is_gone_before_another_is_built(double, tmp_path, monkeypatch):
    loads(made(tmp_path))
    alive = []
    monkeypatch.setattr(
        plan_source, "build_plan", lambda *how: alive.append(len(double.engines)) or trt_worlds.build_here(*how)
    )
    library = __import__("tensorrt")
    kept = library.ICudaEngine.num_optimization_profiles
    monkeypatch.setattr(
        library.ICudaEngine, "num_optimization_profiles", property(lambda self: kept.fget(self) if alive else 7)
    )
    loads(made(tmp_path))
    assert alive == [0]


def test_an_error_of_opening_does_not_keep_the_plan_alive(double, tmp_path):
    engine, lane = made(tmp_path), trt_worlds.new_lane()
    engine.load()
    double.fail["alloc_host"] = 2
    with pytest.raises(OutOfMemory) as kept:
        engine.open(lane)
    engine.unload()
    assert len(double.engines) == 0, kept.value
    trt_worlds.close(lane)
    assert double.leaks() == []


def test_more_lanes_than_it_was_made_for_before_version_86(monkeypatch, tmp_path):
    with trt_worlds.world(monkeypatch, "8.5"):
        engine = made(tmp_path)
        engine.load()
        lanes = [trt_worlds.new_lane(), trt_worlds.new_lane()]
        engine.open(lanes[0])
        engine.open(lanes[0])  # the same lane again: the contexts that it has
        with pytest.raises(EngineError, match=r"1 lane opened it before, and with TensorRT 8.5.0 .*made for 1 lane"):
            engine.open(lanes[1])
        engine.unload()
        for lane in lanes:
            trt_worlds.close(lane)


def test_served_from_a_configuration(double, tmp_path):
    onnx_models.linear(str(tmp_path))
    (tmp_path / "edge.toml").write_text(TOML)
    x = np.arange(4, dtype=np.float32)
    with edgeserve.Runtime(str(tmp_path / "edge.toml")) as runtime:
        waiting = [runtime.submit("net", {"x": x + number}) for number in range(6)]
        for number, future in enumerate(waiting):
            np.testing.assert_allclose(future.result(timeout=60)["y"], (x + number) @ onnx_weights(), rtol=1e-5)
    assert double.leaks() == []
    assert len(glob.glob(os.path.join(str(tmp_path), "plans", "net-*.plan"))) == 1


def onnx_weights():
    return np.arange(12, dtype=np.float32).reshape(4, 3) / 10


@pytest.mark.parametrize("graph", [True, False])
def test_stats_and_profiles_tell_of_graphs(graph, double, tmp_path, monkeypatch, capsys):
    onnx_models.linear(str(tmp_path))
    (tmp_path / "edge.toml").write_text(TOML.replace("plans = ", "graph = false, plans = ") if not graph else TOML)
    with edgeserve.Runtime(str(tmp_path / "edge.toml")) as runtime:
        runtime.infer("net", {"x": np.zeros(4, np.float32)})
        told = runtime.stats()["models"]["net"].get("engine", {})
    assert (told["gpu"]["graphs"]["replayed"] >= 1 and told["gpu"]["graphs"]["captured"] == 6) if graph else not told
    config = load_config(str(tmp_path / "edge.toml"))
    rule = StopRule(runs_min=3, runs_max=3, time_ns_max=10**9)
    outcome = profile_model(config, "net", "gpu0", (1, 2), str(tmp_path / "profiles"), "d", rule)
    assert not outcome.why
    kept = read_profile(outcome.path).circumstances["lanes"]["gpu0"].get("graphs", {})
    assert (kept["replayed"] > kept["enqueued"]) if graph else not kept
    print_outcomes([outcome], "profiles", "d")
    assert ("batches were CUDA graphs" in capsys.readouterr().out) == graph


def test_frames_are_prepared_in_the_plan(monkeypatch, tmp_path):
    """The plan is built from the network with its preparation, and its name tells how frames are prepared."""
    dims = ["B", 3, 4, 4]
    graph = onnx_models.save(
        str(tmp_path),
        "negative",
        [onnx_models.helper.make_node("Neg", ["x"], ["y"])],
        [("x", onnx_models.FLOAT, dims)],
        [("y", onnx_models.FLOAT, dims)],
    )
    frame = np.full((8, 8, 3), 255, np.uint8)
    for image, value in (({}, -1.0), ({"std": 1.0}, -255.0), ({}, -1.0)):
        options = {"image": {"from": [8, 8], **image}}
        with trt_worlds.loaded(monkeypatch, str(tmp_path), graph, batch=(1, 2), options=options) as (_, _, _, session):
            results, _ = run_whole(session, Batch([{"x": frame}, {"x": frame}], 2))
            assert all(np.allclose(result.outputs["y"], value) for result in results)
    assert len(glob.glob(str(tmp_path / "plans" / "*.plan"))) == 2


def test_frames_of_any_size_cannot_be_letterboxed_in_a_plan(double, tmp_path):
    with pytest.raises(EngineError, match=r"letterbox needs from = \[height, width\]"):
        loads(made(tmp_path, options={"image": {"letterbox": True}}))


PLUGIN = """
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void registered(void) {
    FILE *file = fopen(PLACE, "a");
    fprintf(file, "%d\\n", (int)getpid());
    fclose(file);
}
int version = VERSION;
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler makes the plugins")
def test_plugins_of_ones_own_are_loaded_where_a_plan_is_built_and_where_it_runs(monkeypatch, tmp_path):
    place, library = tmp_path / "registered", tmp_path / "ops.so"
    (tmp_path / "ops.c").write_text(PLUGIN)

    def compiled(version):
        words = [f'-DPLACE="{place}"', f"-DVERSION={version}"]
        new = tmp_path / f"{version}.so"
        subprocess.run(["cc", "-shared", "-fPIC", *words, "-o", new, tmp_path / "ops.c"], check=True)
        os.replace(new, library)

    compiled(1)
    with trt_worlds.world(monkeypatch, "10.3", in_process=False):
        loads(made(tmp_path, options={"plugins": ["ops.so"]}))
        by = place.read_text().split()
        assert len(by) == 2 and str(os.getpid()) in by, "the process that builds, and this one"
        first = glob.glob(str(tmp_path / "plans/*.plan"))
        compiled(2)
        loads(made(tmp_path, options={"plugins": ["ops.so"]}))
        assert len(glob.glob(str(tmp_path / "plans/*.plan"))) == len(first) + 1, "another plan for other plugins"
        library.write_text("no library")
        with pytest.raises(LibraryMissing, match=r"model 'm': the plugins in .*ops.so cannot be loaded"):
            made(tmp_path, options={"plugins": ["ops.so"]}).load()
        with pytest.raises(ConfigError, match="options.plugins: there is no file"):
            made(tmp_path, options={"plugins": ["none.so"]})
