"""The doctor's findings on TensorRT, on the double and without one."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")
pytest.importorskip("onnxruntime", reason="the double computes with onnxruntime; pip install -e '.[onnx]'")

import onnx_models
import trt_worlds

from edgeserve.config.schema import Config, DeviceConfig, LaneConfig, ModelConfig
from edgeserve.engines.cuda import driver
from edgeserve.engines.tensorrt import diagnose


@pytest.fixture
def double(monkeypatch):
    with trt_worlds.world(monkeypatch, "10.3") as cuda:
        monkeypatch.setattr(diagnose, "look", diagnose.main)  # the CUDA double lives in this process
        yield cuda


def config(tmp_path, **options):
    model = ModelConfig(
        "net", engine="tensorrt", file=onnx_models.linear(str(tmp_path)), options={"plans": "plans", **options}
    )
    return Config(
        models={"net": model}, lanes={"gpu0": LaneConfig("gpu0")}, directory=str(tmp_path), source="edge.toml"
    )


def test_a_small_model_is_built_and_run(double):
    assert diagnose.findings(None) == [
        (
            "tensorrt",
            "good",
            "tensorrt 10.3.0 built and ran a small model in 0.0 s on double 0, 2 CUDA graphs, 1 DLA core",
            "",
        )
    ]
    assert double.leaks() == []


def test_whether_the_plan_of_a_model_is_there(double, tmp_path):
    found = diagnose.findings(config(tmp_path))
    assert found[1] == (
        "plan of net",
        "note",
        "there is none for this library and device: building it takes an unknown time, and a server does not begin "
        "that",
        "edgeserve profile edge.toml",
    )
    engine = trt_worlds.made(str(tmp_path), "linear.onnx", name="net", options={"plans": "plans"})
    engine.load()
    engine.unload()
    subject, status, text, _ = diagnose.findings(config(tmp_path))[1]
    assert (subject, status) == ("plan of net", "good")
    assert text.endswith("built in 0 s")


@pytest.mark.parametrize(("version", "has"), [("10.3", True), ("10.13", False), ("11.4", True), ("rtx", False)])
def test_a_dla_core_that_this_release_lacks_is_said_before_a_build(version, has, tmp_path, monkeypatch):
    with trt_worlds.world(monkeypatch, version):
        monkeypatch.setattr(diagnose, "look", diagnose.main)
        found = diagnose.findings(config(tmp_path, dla_core=0, precision="fp16"))
    assert ("1 DLA core" in found[0][2]) == has
    subject, status, text, mend = found[1]
    assert (subject, status) == ("plan of net", "note" if has else "wrong")
    assert has or (text.endswith("has 0 DLA cores here") and "11.4 and later on AGX Orin" in mend)


def look_here(choice, limit_s=0.0, plan="", plugins=()):
    return diagnose.main(choice, plan, *plugins)


def test_a_plan_that_was_built_elsewhere_is_read_and_not_built(double, monkeypatch, tmp_path):
    monkeypatch.setattr(diagnose, "look", look_here)
    profiles = [{"x": [[1, 4], [4, 4], [8, 4]]}, {"x": [[16, 4]] * 3}]
    for version in ("10.3", "8.6"):
        trt_worlds.plan_file(str(tmp_path), onnx_models.linear(str(tmp_path)), profiles, f"{version}.plan", version)
    own = config(tmp_path)
    for version, status, words in (
        ("10.3", "good", "built elsewhere, takes batches of 1 to 8 and 16"),
        ("8.6", "wrong", "refuses the plan: version tag does not match"),
    ):
        model = replace(own.models["net"], file=f"{version}.plan")
        subject, found, text, mend = diagnose.findings(replace(own, models={"net": model}))[1]
        assert (subject, found) == ("plan of net", status)
        assert words in text
        assert ("name the ONNX file" in mend) == (status == "wrong")
    (tmp_path / "ops.so").write_text("no library")
    model = replace(own.models["net"], file="10.3.plan", options={"plugins": ["ops.so"]})
    _, found, text, _ = diagnose.findings(replace(own, models={"net": model}))[1]
    assert found == "wrong" and "ops.so cannot be loaded" in text, "a plan is read with the plugins that it needs"
    assert double.leaks() == []


def test_the_plan_of_a_model_is_that_of_its_lanes_gpu(double, tmp_path):
    double.devices = 2
    own = config(tmp_path)
    second = replace(
        own,
        lanes={"gpu1": LaneConfig("gpu1", device="b")},
        devices={"a": DeviceConfig("a", "cuda"), "b": DeviceConfig("b", "cuda:1")},
    )
    assert [diagnose.device_index_of(one, own.models["net"]) for one in (own, second)] == [0, 1]
    ask = double.attribute
    double.attribute = lambda index, name: index + 4 if name == "MULTIPROCESSOR_COUNT" else ask(index, name)
    engine = trt_worlds.made(str(tmp_path), "linear.onnx", name="net", options={"plans": "plans"})
    engine.load()  # for card 0
    engine.unload()
    assert [diagnose.findings(one)[1][1] for one in (own, second)] == ["good", "note"]


def test_a_library_that_is_missing_is_wrong_only_where_it_is_needed(monkeypatch, tmp_path):
    monkeypatch.setattr(driver, "_open", {})
    monkeypatch.setattr(driver, "BINDINGS", ())
    monkeypatch.setattr(diagnose, "look", diagnose.main)
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    assert diagnose.findings(None) == []
    assert diagnose.findings(Config()) == []
    ((subject, status, text, mend),) = diagnose.findings(config(tmp_path))
    assert (subject, status) == ("tensorrt", "wrong")
    assert "TensorRT cannot be imported" in text
    assert "apt install" in mend


def test_without_a_device_the_small_model_says_so(double, tmp_path):
    double.devices = 0
    ((subject, status, text, mend),) = diagnose.findings(config(tmp_path))
    assert (subject, status) == ("tensorrt", "wrong")
    assert "tensorrt 10.3.0 is here, and the GPU is not: " in text
    assert "device 0 does not exist" in text
    assert mend


def test_a_model_file_that_is_missing(double, tmp_path):
    wrong = config(tmp_path)
    (tmp_path / "linear.onnx").unlink()
    subject, status, text, _ = diagnose.findings(wrong)[1]
    assert (subject, status) == ("plan of net", "wrong")
    assert "there is no file" in text


def test_the_process_that_looks_answers_without_a_library_and_its_end_is_told(monkeypatch):
    about = diagnose.look("no_such_library")
    assert about["missing"]
    assert "no_such_library" in about["error"]
    real = subprocess.run
    monkeypatch.setattr(
        diagnose.subprocess, "run", lambda command, **how: real([sys.executable, "-c", "import os; os._exit(9)"], **how)
    )
    assert diagnose.look("auto") == {"error": "the check ended with status 9"}
