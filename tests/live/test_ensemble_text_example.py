"""The ensemble of text recognisers: a small fit, and the app served. Skips, saying why, when the recognisers (86 MB of
packages) are not in the cache."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any, Iterator

import pytest
from linked_files import own_cache, own_modules

from edgeserve.commands import assets
from edgeserve.config.loading import load_config
from edgeserve.runtime import Runtime

NEEDS = "the example is fitted with onnx and scikit-learn: pip install '.[fit]'"
pytest.importorskip("onnx", reason=NEEDS)
if importlib.util.find_spec("sklearn") is None:  # importing it takes a second of every process that collects
    pytest.skip(NEEDS, allow_module_level=True)
pytest.importorskip("onnxruntime", reason="the recognisers need onnxruntime: pip install '.[onnx]'")
pytest.importorskip("cv2", reason="the example needs opencv: pip install -r examples/reader/requirements.txt")

EXAMPLE = Path(__file__).parents[2] / "examples" / "ensemble_text"
NAMES = ("build", "lines", "recognisers")
LINES = 104


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of these tests' own that holds the recognisers by reference, and a small fit."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        own_cache(patch, folder, assets.read_assets(str(EXAMPLE / "assets.toml")), fetch=False)
        with own_modules(patch, EXAMPLE, NAMES):
            import build

            assert build.main(["--lines", str(LINES)]) == 0
            yield folder / "ensemble-text-1"


@pytest.mark.nightly  # test_ensemble_example.py has what they share
def test_lines_are_read_by_some_of_the_recognisers(fitted: Path) -> None:
    assert {path.name for path in fitted.iterdir()} == {"history.npz", "text.ensemble.json", "text.ensemble.onnx"}
    lines: Any = sys.modules["lines"]
    shown = lines.drawn(12, 5)
    with Runtime(load_config(str(EXAMPLE / "edge.toml"))) as runtime:
        answers = [runtime.infer("text", {"line": image}, slo_ms=30_000) for image in shown.images]
    assert all(set(answer["models"]) <= {"tiny", "fourth", "small"} and 0 < answer.quality <= 1 for answer in answers)
    assert all(answer["models"] == list(answer.branches) for answer in answers)
    right = sum(answer["text"] == text for answer, text in zip(answers, shown.texts))
    assert right >= 6  # of 12 damaged lines; none is read by chance
