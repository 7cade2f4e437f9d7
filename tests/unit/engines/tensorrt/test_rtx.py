"""The real parser and builder, through TensorRT for RTX, which builds without a GPU. Nothing is executed: a machine
without a driver cannot even deserialize a plan.

    pip install --no-deps tensorrt-rtx-cu13-libs tensorrt-rtx-cu13-bindings && pip install --no-deps tensorrt-rtx-cu13
    python -m edgeserve.commands.assets scripts/plans/assets.toml examples/{reader,listener}/assets.toml
"""

from __future__ import annotations

import os
import warnings

import pytest

pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed; the commands stand in this file")
pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")

import half_models
import onnx_models
from plans import build_models

from edgeserve.config.files import resolve_path
from edgeserve.config.schema import ModelConfig
from edgeserve.engines.cuda.driver import is_available
from edgeserve.engines.image import read_image
from edgeserve.engines.options import Options
from edgeserve.engines.tensorrt import construct as construct_module
from edgeserve.engines.tensorrt.build_errors import BuildFailed, ParseFailed
from edgeserve.engines.tensorrt.building import BuildLimits, build_plan
from edgeserve.engines.tensorrt.construct import construct
from edgeserve.engines.tensorrt.library import open_library
from edgeserve.engines.tensorrt.settings import BuildRequest
from edgeserve.errors import EngineError

FOR = ["8.6"]
NOT_BUILT = {"voice": "graphScope"}  # its `If` on the sample rate: the builder's own assertion


@pytest.fixture(scope="module")
def library():
    return open_library("tensorrt_rtx")


@pytest.fixture
def profiles(monkeypatch):
    """The optimisation profiles that were given to the builder, as TensorRT says them back."""
    seen = []
    real = construct_module.add_profiles

    def add(library, builder, config, wanted, where):
        class Kept:
            def create_optimization_profile(self):
                seen.append(builder.create_optimization_profile())
                return seen[-1]

        real(library, Kept(), config, wanted, where)
        assert config.num_optimization_profiles == len(wanted)

    monkeypatch.setattr(construct_module, "add_profiles", add)
    return seen


def request(file, sizes=(1, 2, 4), **changes):
    asked = BuildRequest(file, list(sizes), {}, {}, [], 0, {}, {}, "model", 1 << 28, 0, 3, -1, FOR, 1)
    return asked._replace(**changes)


def built(library, wanted, known=b"", keep=lambda timings: None):
    return construct(library, wanted, "model 'm'", lambda phase, share: None, known, keep)


def rows(profile, name):
    return [tuple(shape) for shape in profile.get_shape(name)]


def test_profiles_are_read_back_as_they_were_asked_for(library, profiles, tmp_path):
    file = os.path.join(str(tmp_path), onnx_models.masked_mean(str(tmp_path)))
    plan = built(library, request(file, ranges={"x": [[1], [8], [24]]}, masks={"x": "x_mask"}))
    assert len(plan.plan) > 1000
    assert [size for size, _ in plan.profiles] == [1, 2, 4]
    for size, profile in zip((1, 2, 4), profiles):
        for name in ("x", "x_mask"):
            assert rows(profile, name) == [(size, 1), (size, 8), (size, 24)]


@pytest.mark.parametrize(
    ("make", "changes"),
    [
        (onnx_models.linear, {}),
        (onnx_models.pooled, {"ranges": {"x": [[1, 2], [1, 8], [1, 64]]}}),
        (onnx_models.recurrent, {"states": ["state"], "state_axis": 1, "constants": {"rate": 16000}}),
        (onnx_models.lookup, {"shapes": {"ids": [5]}}),
    ],
)
def test_small_models_of_every_kind_of_input(library, profiles, tmp_path, make, changes):
    plan = built(library, request(os.path.join(str(tmp_path), make(str(tmp_path))), **changes))
    for (_, wanted), profile in zip(plan.profiles, profiles):
        assert profile
        assert {name: rows(profile, name) for name in wanted} == {name: list(shape) for name, shape in wanted.items()}


@pytest.mark.parametrize("name", sorted(half_models.MODELS))
def test_a_strongly_typed_builder_takes_casts_to_float16(library, tmp_path, name):
    more = {
        "attention": {"constants": {"mask": True}},
        "branches": {"constants": {"flag": True}},
        "recurrent": {"states": ["x"], "state_axis": 1, "shapes": {"x": [5, 3]}},
    }
    file = half_models.model_of(str(tmp_path), name)
    plan = built(library, request(file, sizes=(1, 2), precision="fp16", **more.get(name, {})))
    assert "float16" in plan.types and set(half_models.MODELS[name].kept) <= set(plan.kept)


def test_an_operator_that_is_not_there(library, tmp_path):
    path = onnx_models.one_node(str(tmp_path), "Fold", "fold7", "com.acme")
    with pytest.raises(ParseFailed, match=r"node 0 'fold7' \(Fold\): .*run it with engine = 'onnx'"):
        built(library, request(path))


def test_a_missing_and_a_damaged_file(library, tmp_path):
    with pytest.raises(ParseFailed, match="nothing.onnx"):
        built(library, request(str(tmp_path / "nothing.onnx")))
    (tmp_path / "no.onnx").write_bytes(b"no model at all")
    with pytest.raises(ParseFailed, match="no.onnx: the file: "):
        built(library, request(str(tmp_path / "no.onnx")))


def test_what_the_library_cannot_do_is_told(library, tmp_path):
    file = os.path.join(str(tmp_path), onnx_models.linear(str(tmp_path)))
    with pytest.raises(EngineError, match=r"has '8.7', which tensorrt_rtx .* does not build for \(it knows SM"):
        built(library, request(file, compute_capabilities=["8.7"]))


def test_a_library_that_times_no_kernels_is_given_no_timings(library, tmp_path):
    file = os.path.join(str(tmp_path), onnx_models.linear(str(tmp_path)))
    kept = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # its calls for timing caches do nothing, and say so
        built(library, request(file), b"no timing cache", kept.append)
    assert not kept


@pytest.mark.skipif(is_available(), reason="this machine has a GPU: the plan can be deserialized")
def test_a_plan_on_a_machine_without_a_driver(library, tmp_path):
    plan = built(library, request(os.path.join(str(tmp_path), onnx_models.linear(str(tmp_path)))))
    assert library.trt.Runtime(library.log).deserialize_cuda_engine(plan.plan) is None
    assert "driver" in library.why("").lower()


def test_the_process_that_builds_tells_progress_and_writes_the_plan(tmp_path):
    file = os.path.join(str(tmp_path), onnx_models.linear(str(tmp_path)))
    told = []
    answer = build_plan(
        "tensorrt_rtx",
        request(file),
        "model 'm'",
        str(tmp_path / "m.plan"),
        str(tmp_path / "timing"),
        BuildLimits(0, 120 * 10**9),
        told.append,
    )
    assert os.path.getsize(tmp_path / "m.plan") > 1000
    assert not os.path.exists(tmp_path / "timing")  # nothing was timed
    assert answer["profiles"][2] == [4, {"x": [[4, 4]] * 3}]
    shares = [item.share for item in told if item.phase == "build"]
    assert shares[-1] == 1.0
    assert shares == sorted(shares)


@pytest.mark.parametrize(
    ("image", "frame"),
    [
        ({"from": [90, 160], "letterbox": True}, [90, 160, 3]),
        ({"format": "nv12", "from": [90, 160], "letterbox": True, "matrix": "bt709"}, [135, 160]),
        ({"format": "yuyv", "from": [48, 64]}, [48, 64, 2]),
        ({"format": "bgr"}, None),
    ],
    ids=["letterboxed", "nv12", "yuyv", "any size"],
)
def test_frames_are_prepared_in_the_plan(library, profiles, tmp_path, image, frame):
    dims = ["B", 3, 48, 64]
    onnx_models.save(
        str(tmp_path),
        "rectified",
        [onnx_models.helper.make_node("Relu", ["x"], ["y"])],
        [("x", onnx_models.FLOAT, dims)],
        [("y", onnx_models.FLOAT, dims)],
    )
    model = ModelConfig("m", engine="tensorrt", file="rectified.onnx", options={"image": image})
    form = read_image(Options(model, ("image",)), model)
    ranges = {} if frame else {"x": [[48, 64, 3], [90, 160, 3], [1080, 1920, 3]]}
    built(library, request(str(tmp_path / "rectified.onnx"), image=form._asdict(), ranges=ranges))
    for size, profile in zip((1, 2, 4), profiles):
        assert rows(profile, "x") == [(size, *row) for row in ([frame] * 3 if frame else ranges["x"])]


@pytest.mark.parametrize("name", sorted(build_models.models()))
def test_a_real_model_is_built_with_the_profiles_that_were_asked_for(library, profiles, name):
    model: ModelConfig = build_models.models()[name]
    if not os.path.isfile(resolve_path(model.file, ".")):
        pytest.skip(f"{model.file} is not in the asset cache; the command stands at the top of this file")
    wanted = build_models.request_of(model, FOR)
    if name in NOT_BUILT:
        with pytest.raises(BuildFailed, match=NOT_BUILT[name]):
            built(library, wanted)
        return
    plan = built(library, wanted)
    assert [size for size, _ in plan.profiles] == sorted(model.batch)
    assert len(plan.plan) > 10_000
    for (_, shapes), profile in zip(plan.profiles, profiles):
        assert {port: rows(profile, port) for port in shapes} == {port: list(shape) for port, shape in shapes.items()}
