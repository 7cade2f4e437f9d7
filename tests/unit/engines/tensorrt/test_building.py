"""Builds on the double, in a process of their own where that matters: progress, bounds, and every way to fail."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")
pytest.importorskip("onnxruntime", reason="the double computes with onnxruntime; pip install -e '.[onnx]'")

import onnx_models
import trt_worlds

from edgeserve.engines.tensorrt import building
from edgeserve.engines.tensorrt.build_errors import BuildFailed, BuildOutOfMemory, LibraryMissing, ParseFailed
from edgeserve.engines.tensorrt.building import BuildLimits, build_plan
from edgeserve.engines.tensorrt.settings import BuildRequest
from edgeserve.errors import EngineError

MINUTE = BuildLimits(0, 60 * 10**9)


@pytest.fixture
def build(monkeypatch, tmp_path):
    """``build(**changes)`` with the double of ``version``; ``told`` is the progress of a process of its own."""
    told = []

    def run(
        version="10.3",
        library="tensorrt",
        limits=None,
        fault="",
        timing_cache="",
        free_bytes=None,
        gpu_bytes=None,
        **changes,
    ):
        file = changes.pop("file", onnx_models.linear)
        file = os.path.join(str(tmp_path), file(str(tmp_path))) if callable(file) else file
        request = BuildRequest(file, [1, 2], {}, {}, [], 0, {}, {}, "model", 1 << 28, 0, 3, -1, [], 1)
        request = request._replace(**changes)
        monkeypatch.setenv("TRT_DOUBLE_FAULT", fault)
        with trt_worlds.world(monkeypatch, version, in_process=False):
            asked = (library, request, "model 'm'", str(tmp_path / "m.plan"), timing_cache)
            if limits is None:
                return trt_worlds.build_here(*asked, None, None)
            return build_plan(*asked, limits, told.append, free_bytes=free_bytes, gpu_bytes=gpu_bytes)

    run.told = told
    return run


def test_a_plan_its_metadata_and_progress(build, tmp_path):
    cache = str(tmp_path / "timing")
    built = build(timing_cache=cache, limits=MINUTE)
    assert [size for size, _ in built["profiles"]] == [1, 2]
    assert built["profiles"][1][1] == {"x": [[2, 4]] * 3}
    assert (built["version"], built["layers"]) == ("10.3.0", 1)
    assert os.path.getsize(tmp_path / "m.plan") > 100
    assert [(item.phase, item.share) for item in build.told if item.phase != "start"] == [
        ("parse", 0.0),
        ("build", 0.0),
        ("build", 0.5),
        ("build", 1.0),
        ("build", 1.0),
    ]
    with open(cache, "rb") as file:
        assert file.read() == b"timings"


def test_a_timing_cache_of_another_version_is_begun_again_also_by_a_build_that_fails(build, tmp_path):
    (tmp_path / "timing").write_bytes(b"foreign")
    with pytest.raises(BuildOutOfMemory):
        build(workspace_bytes=1024, timing_cache=str(tmp_path / "timing"))
    assert (tmp_path / "timing").read_bytes() == b"timings"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a file that has no room, as Linux has it")
def test_a_disk_that_is_full_says_so_and_timings_that_cannot_be_kept_lose_no_plan(build, tmp_path):
    build(timing_cache=str(tmp_path / "no folder" / "timing"), limits=MINUTE)
    assert os.path.getsize(tmp_path / "m.plan") > 100
    os.remove(tmp_path / "m.plan")
    os.symlink("/dev/full", tmp_path / "m.plan")
    with pytest.raises(EngineError, match="the plan .* cannot be written in .*: No space left on device; make room"):
        build(limits=MINUTE)


def test_before_version_86_each_lane_gets_a_copy_of_the_profiles(build):
    assert [size for size, _ in build(version="8.5", lanes=2)["profiles"]] == [1, 2, 1, 2]
    assert [size for size, _ in build(version="8.6", lanes=2)["profiles"]] == [1, 2]


def fails(kind, words, **how):
    return pytest.param(how, kind, words, id=words[:30])


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        fails(
            LibraryMissing,
            "TensorRT cannot be imported.*tensorrt_rtx_of_another_name.*apt install",
            library="tensorrt_rtx_of_another_name",
        ),
        fails(
            BuildOutOfMemory, "too little memory to build: .*Lower options.workspace .now 1KiB", workspace_bytes=1024
        ),
        fails(EngineError, "options.dla_core = 1, but this device has 1 DLA core for", precision="fp16", dla_core=1),
        fails(EngineError, "dla_core = 0: DLA cores compute in float16 or int8; set .*'fp16'", dla_core=0),
        fails(
            EngineError,
            r"dla_core = 0: a DLA core runs inputs of one shape, and options.ranges.x goes from \[1, 2\] to \[1, 8\]; "
            r"give shapes = \{x = \[1, 4\]\} instead",
            precision="fp16",
            dla_core=0,
            file=onnx_models.pooled,
            ranges={"x": [[1, 2], [1, 4], [1, 8]]},
        ),
        fails(BuildOutOfMemory, "Could not find any implementation for node", tactic_bytes=1 << 20),
        fails(
            EngineError,
            "options.compute_capabilities is for library = 'tensorrt_rtx'",
            compute_capabilities=["8.6"],
        ),
        fails(
            EngineError,
            r"has '8.7', which tensorrt 1.7.1 does not build for \(it knows SM120",
            version="rtx",
            compute_capabilities=["8.7"],
        ),
        fails(
            BuildOutOfMemory,
            "was killed, most likely by the system because memory ran out",
            fault="killed",
            limits=MINUTE,
        ),
        fails(
            BuildFailed,
            "ended without an answer \\(killed by SIGABRT\\). It said last: .*the library's own",
            fault="crashed",
            limits=MINUTE,
        ),
        fails(BuildFailed, "failed while building: RuntimeError: a bug of the library", fault="raises"),
        fails(
            BuildOutOfMemory,
            "the build uses .*, more than options.build_memory = 256MiB; it was",
            fault="grows",
            limits=BuildLimits(256 << 20, 60 * 10**9),
        ),
        fails(
            BuildFailed,
            "longer than options.build_timeout = 1ms and was ended",
            fault="hangs",
            limits=BuildLimits(0, 10**6),
        ),
    ],
)
def test_a_build_that_fails_says_why_and_what_mends_it(build, how, kind, words):
    with pytest.raises(kind, match=words):
        build(**how)


@pytest.mark.parametrize(
    "how",
    [
        {"precision": "fp16"},
        {"precision": "fp16", "dla_core": 0},
        {"version": "11.4", "dla_core": 0},  # strongly typed: there is no other way
        {"version": "rtx", "compute_capabilities": ["8.6", "8.9"]},
    ],
)
def test_what_a_version_can_do_is_built(build, how):
    build(**how)


def test_an_operator_that_the_parser_does_not_have(build, tmp_path):
    path = onnx_models.one_node(str(tmp_path), "Fold", "fold7", "com.acme")
    with pytest.raises(ParseFailed, match=r"model 'm': .*one_node.onnx: node 0 'fold7' \(Fold\): plugin not found"):
        build(file=path)
    with pytest.raises(ParseFailed, match="node 0: plugin not found"):
        build(version="8.6", file=path)


def test_a_file_that_is_no_model(build, tmp_path):
    (tmp_path / "no.onnx").write_bytes(b"no model at all")
    with pytest.raises(ParseFailed, match="no.onnx: the file: failed to parse"):
        build(file=str(tmp_path / "no.onnx"))


def test_the_librarys_own_plugins_are_registered_before_anything_is_parsed(build, tmp_path):
    path = onnx_models.one_node(str(tmp_path), "EfficientNMS_TRT", "nms")
    for version in ("8.5", "10.3", "11.4"):
        build(version=version, file=path)
    with pytest.raises(ParseFailed, match=r"node 0 'nms' \(EfficientNMS_TRT\): plugin not found"):
        build(version="rtx", file=path)


def test_a_build_is_ended_before_the_board_runs_out_of_memory(build):
    free = [1 << 30, 1 << 30]
    with pytest.raises(BuildOutOfMemory, match="100MiB of memory are free while the build uses .*Stop other programs"):
        build(fault="hangs", limits=MINUTE, free_bytes=lambda: free.pop() if free else 100 << 20)


def test_on_a_board_the_memory_of_a_build_is_its_gpus_too(build, tmp_path):
    """CUDA's memory is in no process's resident memory there; the kernel says how much there is of it."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 7999488 kB\nNvMapMemFree:       0 kB\nNvMapMemUsed:  524288 kB\n")
    assert building.nvmap_bytes(str(meminfo)) == 512 << 20
    assert building.nvmap_bytes(str(tmp_path / "nothing")) == 0
    used = iter([512 << 20, 512 << 20])  # before the build, and at the first look
    with pytest.raises(BuildOutOfMemory, match="the build uses 8.*GiB, more than options.build_memory = 4GiB"):
        build(
            fault="hangs",
            limits=BuildLimits(4 << 30, 60 * 10**9),
            gpu_bytes=lambda: next(used, (8 << 30) + (600 << 20)),
        )


def test_a_process_that_says_and_does_nothing_is_ended(build, monkeypatch):
    monkeypatch.setattr(building, "SILENT_LOOKS_MAX", 10)
    with pytest.raises(BuildFailed, match="has said and done nothing for 2 s"):
        build(fault="stuck", limits=MINUTE)


@pytest.mark.nightly  # 8 s, and a machine under load is silent for longer
def test_a_process_that_computes_in_silence_is_not_ended_but_for_its_time(build, monkeypatch):
    """Some calls of the library keep the interpreter's lock, so that the thread that beats cannot."""
    monkeypatch.setattr(building, "SILENT_LOOKS_MAX", 8)  # 2 s; the fault computes for some 3 s
    build(fault="computes", limits=MINUTE)
    told = [item.elapsed_s for item in build.told if item.phase == "build" and item.share == 0.0]
    assert len(set(told)) > 1, "it goes on, and whoever waits hears so"
    with pytest.raises(BuildFailed, match="longer than options.build_timeout = 200ms and was ended"):
        build(fault="stuck", limits=BuildLimits(0, 2 * 10**8))


@pytest.mark.parametrize(
    ("index", "visible", "expected"),
    [(0, None, None), (1, None, "1"), (0, "3", "3"), (0, "3,5", "3"), (1, "3,5", "5"), (1, "GPU-a,GPU-b", "GPU-b")],
)
def test_the_process_sees_the_gpu_that_it_builds_for(index, visible, expected):
    own = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    made = building.environment_of(index, {"HOME": "/", **own})
    assert made.get("CUDA_VISIBLE_DEVICES") == expected
    assert made["HOME"] == "/"
