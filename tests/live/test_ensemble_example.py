"""The ensemble example: a small build of its three models, its fit, and the app served. Skips, saying why, when the
digits are neither cached nor to be fetched."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import pytest
from linked_files import own_cache, own_modules

from edgeserve.commands import assets
from edgeserve.config.loading import load_config
from edgeserve.runtime import Runtime

NEEDS = "the example is built with onnx and scikit-learn: pip install '.[fit]'"
pytestmark = pytest.mark.nightly
pytest.importorskip("onnx", reason=NEEDS)
if importlib.util.find_spec("sklearn") is None:  # importing it takes a second of every process that collects
    pytest.skip(NEEDS, allow_module_level=True)
onnxruntime = pytest.importorskip("onnxruntime", reason="the example's models need onnxruntime: pip install '.[onnx]'")

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("build", "data", "inputs", "compare")


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The modules of the example, with a cache of these tests' own that holds the fetched digits by reference."""
    packages = assets.read_assets(str(EXAMPLES / "dynamic" / "assets.toml"))
    with pytest.MonkeyPatch.context() as patch:
        own_cache(patch, tmp_path_factory.mktemp("cache"), [one for one in packages if one.name == "scikit-learn"])
        with own_modules(patch, EXAMPLES / "ensemble", NAMES):
            import build

            small = {"WIDE": 128, "NARROW": 96, "NETWORK_COPIES": 3, "NEIGHBOUR_COPIES": 2}
            for name, value in small.items():
                patch.setattr(build, name, value)
            yield build


@pytest.fixture(scope="module")
def built(example: Any) -> str:
    """The directory with a small build."""
    place = Path(os.environ["EDGESERVE_CACHE"]) / "ensemble-digits-1"
    assert example.main(["--out", str(place)]) == 0
    return str(place)


def test_what_is_learnt_fitted_and_asked_are_different_digits(example: Any) -> None:
    learnt, fitted, asked = (
        set(part.numbers.tolist()) for part in (example.learnt(), example.history(), sys.modules["data"].asked(500))
    )
    assert not learnt & fitted and not learnt & asked and not fitted & asked


def test_the_exported_neighbours_are_the_nearest(example: Any, built: str) -> None:
    images, labels = example.versions(example.NEIGHBOUR_COPIES, 0.6, seed=3)
    shown = sys.modules["data"].asked(5).images
    session = onnxruntime.InferenceSession(os.path.join(built, "neighbours.onnx"), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"image": shown})
    expected = np.zeros((5, 10))
    for angle, right, down in example.FEW_VIEWS:
        for row, seen in enumerate(shown @ example.view(angle, 1.0, right, down)):
            distances = np.sqrt(((images - seen) ** 2).sum(axis=1))
            votes = np.full(10, 1e-3)
            for near in np.argsort(distances)[: example.NEIGHBOURS]:
                votes[labels[near]] += 1 / (distances[near] + example.NEAR)
            expected[row] += votes / votes.sum() / len(example.FEW_VIEWS)
    assert found == pytest.approx(expected, abs=2e-3)


def test_the_app_answers_with_its_models(example: Any, built: str) -> None:
    asked = sys.modules["data"].asked(30)
    config = load_config(str(EXAMPLES / "ensemble" / "edge.toml"))
    with Runtime(config) as runtime:
        answers = [runtime.infer("digits", {"image": image}, slo_ms=20_000) for image in asked.images]
    assert {name for answer in answers for name in answer["models"]} <= set(example.MODELS)
    assert all(1 <= len(answer["models"]) <= 3 and 0 <= answer.quality <= 1 for answer in answers)
    right = sum(int(answer["label"]) == label for answer, label in zip(answers, asked.labels))
    assert right >= 15  # of 30 corrupted digits, by small models; chance would be 3
