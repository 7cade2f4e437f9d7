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
from linked_files import hard_linked

from edgeserve.config.loading import load_config
from edgeserve.runtime import Runtime
from edgeserve.tools import assets

NEEDS = "the example is built with onnx and scikit-learn: pip install '.[fit]'"
pytest.importorskip("onnx", reason=NEEDS)
if importlib.util.find_spec("sklearn") is None:  # importing it takes a second of every process that collects
    pytest.skip(NEEDS, allow_module_level=True)
onnxruntime = pytest.importorskip("onnxruntime", reason="the example's models need onnxruntime: pip install '.[onnx]'")

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("build", "data", "inputs", "compare")


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The modules of the example, with a cache of these tests' own that holds the fetched digits by reference."""
    real = assets.cache_directory()
    try:
        packages = [
            package
            for package in assets.read_assets(str(EXAMPLES / "dynamic" / "assets.toml"))
            if package.name == "scikit-learn"
        ]
        assets.fetch(packages, real)
    except assets.AssetError as error:
        pytest.skip(f"the example's digits are not in the cache and cannot be fetched: {error}")
    folder = tmp_path_factory.mktemp("cache")
    hard_linked(os.path.join(real, packages[0].folder), folder / packages[0].folder)
    patch = pytest.MonkeyPatch()
    patch.setenv("EDGESERVE_CACHE", str(folder))
    others = {name: sys.modules.pop(name) for name in NAMES if name in sys.modules}  # another example's of these names
    patch.syspath_prepend(str(EXAMPLES / "ensemble"))
    import build

    patch.setattr(build, "WIDE", 128)
    patch.setattr(build, "NARROW", 96)
    patch.setattr(build, "NETWORK_COPIES", 3)
    patch.setattr(build, "NEIGHBOUR_COPIES", 2)
    patch.setattr(build, "EPOCHS", 15)
    yield build
    patch.undo()
    for name in NAMES:
        sys.modules.pop(name, None)
    sys.modules.update(others)


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


def test_the_app_answers_with_some_of_its_models(example: Any, built: str) -> None:
    asked = sys.modules["data"].asked(30)
    config = load_config(str(EXAMPLES / "ensemble" / "edge.toml"))
    with Runtime(config) as runtime:
        answers = [runtime.infer("digits", {"image": image}, slo_ms=20_000) for image in asked.images]
    assert {name for answer in answers for name in answer["models"]} <= set(example.MODELS)
    assert all(1 <= len(answer["models"]) <= 3 and 0 <= answer.quality <= 1 for answer in answers)
    assert any(len(answer["models"]) < 3 for answer in answers)
    right = sum(int(answer["label"]) == label for answer, label in zip(answers, asked.labels))
    assert right >= 15  # of 30 corrupted digits, by small models; chance would be 3
