"""A library that is not installed is said by ``edgeserve doctor``, by ``init`` and before a server loads its first
model, with what installs it: for every kind of engine."""

from __future__ import annotations

import json
import sys
from typing import Any, Dict, Optional, Tuple

import llama_double
import pytest

from edgeserve import cli
from edgeserve.commands.doctor.configuration import check_config_file
from edgeserve.commands.doctor.finding import WRONG
from edgeserve.config.loading import parse_config
from edgeserve.engines import ENGINES
from edgeserve.live.preflight import check_models

onnx = pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")
pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")

import lm_models  # noqa: E402 needs numpy alone
import onnx_models  # noqa: E402 needs onnx

IMAGE = {"options": {"image": {"size": [24, 32]}}}

NEEDS: Dict[str, Tuple[Dict[str, Any], str, str]] = {
    "onnx": ({"engine": "onnx", "file": "brightness.onnx"}, "onnxruntime", "edgeserve-runtime[onnx]"),
    "onnx, frames": ({"engine": "onnx", "file": "brightness.onnx", **IMAGE}, "onnx", "edgeserve-runtime[images]"),
    "tensorrt": ({"engine": "tensorrt", "file": "brightness.onnx"}, "tensorrt", "tensorrt"),
    "torch": ({"engine": "torch", "file": "m.pt2"}, "torch", "edgeserve-runtime[torch]"),
    "lm, llama.cpp": ({"engine": "lm", "file": "m.gguf"}, "llama_cpp", "edgeserve-runtime[lm-llama]"),
    "lm, onnx": ({"engine": "lm", "file": "tiny.onnx"}, "onnxruntime", "edgeserve-runtime[lm]"),
    "lm, onnx, a tokenizer": ({"engine": "lm", "file": "words.onnx"}, "tokenizers", "edgeserve-runtime[lm]"),
    "lm, torch": ({"engine": "lm", "file": "config.json"}, "torch", "edgeserve-runtime[lm-torch]"),
    "lm, a chat": ({"engine": "lm", "file": "tiny.onnx", "options": {"chat": True}}, "jinja2", "edgeserve-runtime[lm]"),
    "sentence, llama.cpp": ({"engine": "sentence", "file": "m.gguf"}, "llama_cpp", "edgeserve-runtime[lm-llama]"),
    "sentence, onnx": ({"engine": "sentence", "file": "brightness.onnx"}, "tokenizers", "edgeserve-runtime[lm]"),
    "whisper": ({"engine": "whisper", "file": "model.bin"}, "ctranslate2", "edgeserve-runtime[speech]"),
}
"""Model, the module that is missing, and what the message says to install."""

NEED_NONE = ("combine", "python", "synthetic")


def test_every_kind_of_engine_is_tried() -> None:
    assert {model["engine"] for model, _, _ in NEEDS.values()} | set(NEED_NONE) == set(ENGINES)


@pytest.fixture
def folder(tmp_path: Any) -> Any:
    onnx_models.brightness(str(tmp_path))
    lm_models.tiny(str(tmp_path))
    lm_models.tiny(str(tmp_path), "words", tokenizer="tokenizer.json")
    llama_double.write_file(tmp_path / "m.gguf")
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.bin").write_bytes(b"weights")
    (tmp_path / "m.pt2").write_bytes(b"PK\3\4")
    return tmp_path


class Missing:
    """Finds every module but one, and those below it; or that one fails when it is imported."""

    def __init__(self, name: str, error: Optional[Exception] = None) -> None:
        self.name = name
        self.error = error or ModuleNotFoundError(f"No module named {name!r}", name=name)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.split(".")[0] == self.name:
            raise self.error


BROKEN = (OSError("libcublas.so.12: cannot open"), RuntimeError("Failed to load libcublas.so.12"))
"""The errors of torch and of llama-cpp-python where a library of their own does not load."""


def without(monkeypatch: Any, name: str, error: Optional[Exception] = None) -> None:
    """Have a library missing, or broken, as if nothing had imported it yet."""
    for module in list(sys.modules):
        of_engine = module.startswith("edgeserve.engines.") and module.count(".") > 1
        if module.split(".")[0] == name or of_engine and _imports(sys.modules[module], name):
            package, _, leaf = module.rpartition(".")
            if package in sys.modules:  # there too the module is again what it was, afterwards
                monkeypatch.setattr(sys.modules[package], leaf, sys.modules[module], raising=False)
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [Missing(name, error), *sys.meta_path])


def _imports(module: Any, name: str) -> bool:
    """True if a module of this package was imported with the library, itself or through another."""
    return any(getattr(value, "__name__", "") == name for value in vars(module).values()) or any(
        getattr(value, "__module__", "").startswith("edgeserve.engines.onnx_") for value in vars(module).values()
    )


@pytest.mark.parametrize("case", list(NEEDS))
def test_doctor_and_a_server_say_what_is_missing_before_anything_is_loaded(
    folder: Any, case: str, monkeypatch: Any
) -> None:
    model, library, installs = NEEDS[case]
    table = {"lane": {"cpu0": {}}, "model": {"m": model}, "app": {"m": {"model": "m", "slo": "1s"}}}
    without(monkeypatch, library)
    problems = check_models(parse_config(table, str(folder)), {})
    assert [(problem.stops, installs in problem.text) for problem in problems] == [(True, True)], problems
    assert "'m'" in problems[0].text and library in problems[0].text
    (folder / "edge.toml").write_text(
        "[lane.cpu0]\n[app.m]\nmodel = 'm'\nslo = '1s'\n[model.m]\n"
        + "".join(f"{key} = {_toml(value)}\n" for key, value in model.items())
    )
    wrong = [item for item in check_config_file(str(folder / "edge.toml"), 64) if item.status == WRONG]
    assert [item.text for item in wrong] == [problems[0].text]


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


@pytest.mark.parametrize(("file", "library"), [("m.gguf", "llama_cpp"), ("brightness.onnx", "onnxruntime")])
def test_init_writes_nothing_that_could_not_be_served(
    folder: Any, file: str, library: str, monkeypatch: Any, capsys: Any
) -> None:
    without(monkeypatch, library)
    out = folder / "edge.toml"
    assert cli.main(["init", "--here", str(folder / file), "--out", str(out), "--cpu"]) != 0
    assert library in capsys.readouterr().err and not out.exists()


@pytest.mark.parametrize("error", BROKEN, ids=["OSError", "RuntimeError"])
@pytest.mark.parametrize("case", ["lm, llama.cpp", "lm, torch", "torch", "sentence, llama.cpp", "whisper"])
def test_a_library_that_does_not_load_is_said_like_one_that_is_missing(
    folder: Any, case: str, error: Exception, monkeypatch: Any, capsys: Any
) -> None:
    model, library, _ = NEEDS[case]
    table = {"lane": {"cpu0": {}}, "model": {"m": model}, "app": {"m": {"model": "m", "slo": "1s"}}}
    without(monkeypatch, library, error)
    problems = check_models(parse_config(table, str(folder)), {})
    assert [(problem.stops, "libcublas.so.12" in problem.text) for problem in problems] == [(True, True)], problems
    assert "raised" not in problems[0].text
    if model["file"] in ("m.gguf", "m.pt2"):
        assert cli.main(["init", "--here", str(folder / model["file"]), "--out", str(folder / "e.toml"), "--cpu"]) != 0
        assert "libcublas.so.12" in capsys.readouterr().err
