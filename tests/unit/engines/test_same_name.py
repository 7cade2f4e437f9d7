"""Two contents under one file name never share what was made of one of them; and a file that was replaced is never
served by what was made of the old one, be its size and its modification time the same."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from edgeserve.config import files
from edgeserve.config.loading import parse_config
from edgeserve.config.model_files import content_sha256, model_path, parts_of
from edgeserve.config.profile_match import identity, match_profile
from edgeserve.config.profiles import LaneProfile, Profile, Timing
from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo, run_batch
from edgeserve.engines.lm.tokenizers import open_tokenizer
from edgeserve.engines.onnx_cache import placed
from edgeserve.errors import EngineError
from edgeserve.live.config_reload import kept_models

pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")
pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")

import lm_models
import onnx_models
import trt_worlds
from onnx_double import OnnxDouble

WEIGHTS = {"in the graph": "", "beside it": "m.onnx.data", "of any name": "w.bin", "in a folder": "parts/a/w.bin"}
OLD, NEW = [1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]
BATCH = Batch([{"x": np.ones(4, np.float32)}], 1)
CPU = LaneInfo(name="cpu0")


def gpu():
    return LaneInfo("cuda", name="gpu0", clock_ns=lambda: 1, common={})


def config_of(folder, **more):
    table = {"lane": {"l": {}}, "model": {"m": {"engine": "onnx", "file": "m.onnx", **more}}}
    return parse_config({**table, "app": {"m": {"model": "m"}}}, str(folder), "edge.toml")


def engine_of(folder, lane, engine="onnx", **options):
    return make_engine(ModelConfig("m", engine=engine, file="m.onnx", options=options), [lane], str(folder))


def answer(engine, lane):
    """Its output for ones: the weights. It is unloaded again."""
    engine.load()
    session = engine.open(lane)
    (result,), _ = run_batch(session, BATCH)
    trt_worlds.close(lane)
    engine.unload()
    return result.outputs["y"].tolist()


@pytest.fixture(params=list(WEIGHTS))
def weights(request):
    return WEIGHTS[request.param]


@pytest.fixture(params=["written over", "replaced"])
def retrained(request, tmp_path, weights):
    """A model of :data:`OLD` in a folder, and what makes it one of :data:`NEW`: files of the same names, sizes and
    modification times."""
    folder, beside = tmp_path / "model", tmp_path / "beside"
    for place, values in ((folder, OLD), (beside, NEW)):
        place.mkdir()
        onnx_models.scaled(str(place), values, weights)

    def retrain():
        for place, _, names in os.walk(beside):
            for name in names:
                new = os.path.join(place, name)
                old = str(folder / os.path.relpath(new, beside))
                about = os.stat(old)
                assert about.st_size == os.path.getsize(new)
                if request.param == "replaced":
                    os.replace(new, old)
                else:
                    with open(new, "rb") as source, open(old, "wb") as target:
                        target.write(source.read())
                os.utime(old, ns=(about.st_atime_ns, about.st_mtime_ns))
        return folder

    return folder, retrain


def test_the_digest_and_the_pinned_sha256(retrained):
    folder, retrain = retrained
    digest = content_sha256(parts_of(config_of(folder).models["m"], str(folder)))
    model = config_of(folder, sha256=digest).models["m"]
    assert model_path(model, str(folder)) == str(folder / "m.onnx")
    retrain()
    assert content_sha256(parts_of(model, str(folder))) != digest
    with pytest.raises(EngineError, match=r"change \[model.m\] sha256"):
        model_path(model, str(folder))


def test_a_profile(retrained, weights):
    folder, retrain = retrained
    config = config_of(folder)
    times = LaneProfile({1: Timing(100, 1000, 1500, 1100, 10)})
    same = {"same": identity(config.models["m"], config.directory, {})}
    profile = Profile("m", "here", {"l": times}, circumstances=same)
    assert match_profile(profile, config).mismatches == ()
    retrain()
    match = match_profile(profile, config)
    (why,) = match.mismatches
    assert why.startswith(f"{weights or 'm.onnx'} has changed") and match.usable.lanes == {}


def test_an_engine_that_is_loaded_again(retrained):
    folder, retrain = retrained
    engine = engine_of(folder, CPU)
    assert answer(engine, CPU) == OLD
    retrain()
    assert answer(engine, CPU) == NEW


@pytest.mark.parametrize("kept", [{}, {"trt_engine_cache_path": "mine"}])
def test_the_engines_of_the_tensorrt_provider(retrained, kept, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGESERVE_CACHE", str(tmp_path / "cache"))
    OnnxDouble().installed(monkeypatch)
    folder, retrain = retrained
    asked = {"providers": ["tensorrt", "cuda"], "provider_options": {"tensorrt": kept}}
    assert answer(engine_of(folder, gpu(), **asked), gpu()) == OLD
    retrain()
    assert answer(engine_of(folder, gpu(), **asked), gpu()) == NEW


def test_two_models_of_one_file_name_and_the_tensorrt_provider(tmp_path, weights, monkeypatch):
    monkeypatch.setenv("EDGESERVE_CACHE", str(tmp_path / "cache"))
    OnnxDouble().installed(monkeypatch)
    for name, values in (("a", OLD), ("b", NEW), ("c", OLD)):
        (tmp_path / name).mkdir()
        onnx_models.scaled(str(tmp_path / name), values, weights)
        assert answer(engine_of(tmp_path / name, gpu(), providers=["tensorrt"]), gpu()) == values
    (root,) = (tmp_path / "cache").iterdir()
    assert len(list(root.rglob("*.engine"))) == 2, "what is equal is built once"


def test_two_preparations_of_frames_and_the_tensorrt_provider(tmp_path, monkeypatch):
    """The preparation's nodes and their names are the same; its numbers are not."""
    monkeypatch.setenv("EDGESERVE_CACHE", str(tmp_path / "cache"))
    OnnxDouble().installed(monkeypatch)
    file, levels = onnx_models.brightness(str(tmp_path), (3, 8, 8)), []
    for deviation in (255.0, 1.0):
        options = {"providers": ["tensorrt"], "image": {"std": deviation, "from": [8, 8]}}
        engine = make_engine(ModelConfig("m", engine="onnx", file=file, options=options), [gpu()], str(tmp_path))
        lane = gpu()
        engine.load()
        item = {"image": np.full((8, 8, 3), 255, np.uint8)}
        (result,), _ = run_batch(engine.open(lane), Batch([item], 1))
        trt_worlds.close(lane)
        engine.unload()
        levels.append(float(result.outputs["level"]))
    assert levels == [1.0, 255.0]


TENSORRT = "TensorrtExecutionProvider"
HERE = {"onnxruntime": "1.20", "device": {"name": "Orin"}, "power_mode": "MAXN"}


def places(tmp_path, provider=TENSORRT, content="abc", here=HERE, **settings):
    given = {"trt_engine_cache_path": str(tmp_path), "trt_timing_cache_path": str(tmp_path), **settings}
    ((_, told),) = placed([(provider, given)], "m.onnx", {"model": content}, here, str(tmp_path))
    return told


def test_a_folder_stands_for_all_that_an_engine_is_built_from(tmp_path):
    (tmp_path / "table").write_text("TRT-1")
    first = places(tmp_path)
    same = [places(tmp_path, device_id="1"), places(tmp_path, user_compute_stream="7")]
    assert {told["trt_engine_cache_path"] for told in [first, *same]} == {first["trt_engine_cache_path"]}
    others = [
        places(tmp_path, content="abd"),
        places(tmp_path, here={**HERE, "onnxruntime": "1.21"}),
        places(tmp_path, here={**HERE, "device": {"name": "Thor"}}),
        places(tmp_path, here={**HERE, "power_mode": "15W"}),
        places(tmp_path, trt_fp16_enable="True"),
        places(tmp_path, trt_profile_max_shapes="x:8x4"),
        places(tmp_path, trt_int8_calibration_table_name="table"),
    ]
    (tmp_path / "table").write_text("TRT-2")
    others.append(places(tmp_path, trt_int8_calibration_table_name="table"))
    assert len({told["trt_engine_cache_path"] for told in [first, *others]}) == 1 + len(others)
    assert all(os.path.isdir(told["trt_engine_cache_path"]) for told in others)
    assert others[-1]["trt_int8_calibration_table_name"] == str(tmp_path / "table"), "the provider looks beside engines"


def test_timings_of_kernels_are_of_one_machine_and_of_all_models(tmp_path):
    told = [places(tmp_path), places(tmp_path, content="abd"), places(tmp_path, trt_fp16_enable="True")]
    here = {item["trt_timing_cache_path"] for item in told}
    elsewhere = places(tmp_path, here={**HERE, "power_mode": "15W"})["trt_timing_cache_path"]
    assert len(here) == 1 and elsewhere not in here


@pytest.mark.parametrize(
    ("provider", "key"),
    [
        ("NvTensorRTRTXExecutionProvider", "nv_runtime_cache_path"),
        ("OpenVINOExecutionProvider", "cache_dir"),
        ("MIGraphXExecutionProvider", "migraphx_model_cache_dir"),
        ("CoreMLExecutionProvider", "ModelCacheDirectory"),
    ],
)
def test_what_other_providers_keep(tmp_path, provider, key):
    found = set()
    for content in ("a", "b"):
        ((_, told),) = placed([(provider, {key: str(tmp_path)})], "m.onnx", {"model": content}, HERE, ".")
        assert os.path.dirname(told[key]) == str(tmp_path)
        found.add(told[key])
    assert len(found) == 2


def test_a_graph_that_is_exported_with_its_engine(tmp_path):
    """Its engine must lie below the export, by a relative path."""
    for given, place in (({}, "kept"), ({"trt_ep_context_file_path": "out"}, "out")):
        found = set()
        for content in ("a", "b"):
            settings = {"trt_engine_cache_path": "kept", "trt_dump_ep_context_model": "True", **given}
            ((_, told),) = placed([(TENSORRT, settings)], "m.onnx", {"model": content}, HERE, str(tmp_path))
            assert told["trt_ep_context_file_path"] == str(tmp_path / place)
            assert (tmp_path / place / told["trt_engine_cache_path"]).is_dir()
            found.add(told["trt_engine_cache_path"])
        assert len(found) == 2 and not any(map(os.path.isabs, found))


def test_a_plan_of_tensorrt(retrained, tmp_path, monkeypatch):
    folder, retrain = retrained
    with trt_worlds.world(monkeypatch, "10.3"):
        lane = trt_worlds.new_lane()
        plans = str(tmp_path / "plans")
        assert answer(engine_of(folder, lane, "tensorrt", plans=plans), lane) == OLD
        retrain()
        lane = trt_worlds.new_lane()
        assert answer(engine_of(folder, lane, "tensorrt", plans=plans), lane) == NEW


def test_a_configuration_that_is_read_again(retrained, monkeypatch):
    monkeypatch.setattr(files, "STEP_NS", -(10**18))  # as if the files were old
    folder, retrain = retrained
    config = config_of(folder)
    engines = {("m", "cpu"): make_engine(config.models["m"], [CPU], str(folder))}
    assert kept_models(config, config_of(folder), engines) == {"m"}
    os.utime(folder / "m.onnx")
    assert kept_models(config, config_of(folder), engines) == set()
    engines = {("m", "cpu"): make_engine(config.models["m"], [CPU], str(folder))}
    retrain()
    assert kept_models(config, config_of(folder), engines) == set()


def test_a_file_that_has_just_changed_is_asked_again(tmp_path, monkeypatch):
    """It may change once more within the step of its times, which is two seconds on some file systems."""
    step, exact = 2 * 10**9, files.stamp
    monkeypatch.setattr(files, "stamp", lambda path: (*exact(path)[:3], *(at // step * step for at in exact(path)[3:])))
    path = tmp_path / "w.bin"
    for number in range(20):
        path.write_bytes(number.to_bytes(8, "big"))
        assert files.file_sha256(str(path)) == files.read_sha256(str(path))


def test_a_tokenizer(tmp_path):
    pytest.importorskip("tokenizers", reason="pip install -e '.[lm]'")
    facts = {"tokenizer": "tokenizer.json", "first": [], "stops": [1], "chat_template": ""}
    path = tmp_path / "tokenizer.json"
    for word in ("cat", "dog"):
        about = path.stat() if path.exists() else None
        vocabulary = {"<unk>": 0, word: 1, "bird": 2}
        model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
        path.write_text(json.dumps({"version": "1.0", "added_tokens": [], "pre_tokenizer": None, "model": model}))
        if about is not None:
            os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
            assert path.stat().st_size == about.st_size
        assert open_tokenizer(facts, str(tmp_path), "m").encode(word) == [1]


@pytest.mark.parametrize("unloaded", [True, False])
def test_a_language_model_that_is_loaded_again(tmp_path, unloaded):
    """Its tokenizer may have been read for a count before its weights are."""
    model = ModelConfig("m", engine="lm", file=lm_models.tiny(str(tmp_path)), batch=(1,))
    engine = make_engine(model, [CPU], str(tmp_path))
    if unloaded:
        engine.load()
        engine.unload()
    assert engine.count_tokens({"prompt": "abc"}) == 3
    about = tmp_path / "tiny.json"
    told = json.loads(about.read_text())
    about.write_text(json.dumps({**told, "first": [*told["first"], 65]}))
    engine.load()
    try:
        assert engine.count_tokens({"prompt": "abc"}) == 4
    finally:
        engine.unload()
