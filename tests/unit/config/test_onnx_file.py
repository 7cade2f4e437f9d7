"""Names of outputs read from a file's bytes: as ONNX Runtime reads them, and nothing of what is no ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import onnx_models
import onnxruntime
import pytest

from edgeserve.config.onnx_file import output_names

MODELS = (
    onnx_models.linear,
    onnx_models.brightness,
    onnx_models.masked_mean,
    onnx_models.pooled,
    onnx_models.recurrent,
    onnx_models.lookup,
    onnx_models.total,
)


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_the_names_are_those_that_the_engine_finds(tmp_path: Path, make: Callable[[str], str]) -> None:
    path = str(tmp_path / make(str(tmp_path)))
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert output_names(path) == [output.name for output in session.get_outputs()]


def test_outputs_that_are_no_tensors_are_left_out(tmp_path: Path) -> None:
    path = str(tmp_path / onnx_models.classifier(str(tmp_path)))
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    kinds = {output.name: output.type for output in session.get_outputs()}
    assert output_names(path) == [name for name, kind in kinds.items() if kind.startswith("tensor(")]
    assert len(output_names(path)) < len(kinds)


@pytest.mark.parametrize("content", [b"", b"\x3a", b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"PK\x03\x04" * 99])
def test_what_is_no_onnx_file_has_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.onnx").write_bytes(content)
    assert output_names(str(tmp_path / "x.onnx")) == []
    assert output_names(str(tmp_path / "y.onnx")) == []


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_file_that_was_cut_off_raises_nothing(tmp_path: Path, share: float) -> None:
    whole: Any = (tmp_path / onnx_models.linear(str(tmp_path))).read_bytes()
    (tmp_path / "cut.onnx").write_bytes(whole[: int(share * len(whole))])
    assert output_names(str(tmp_path / "cut.onnx")) == []
