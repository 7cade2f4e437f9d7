"""Fitting an ensemble: from a history to a file that plans and combines, and histories that cannot be used."""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
from typing import Any, Dict

import numpy as np
import pytest

from edgeserve.cli import main
from edgeserve.config.ensemble_profile import read_ensemble, read_fit
from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo
from edgeserve.errors import ConfigError, EngineError
from edgeserve.predict.combiner import KINDS, combiner_of
from edgeserve.predict.history import EnsembleHistory, load_history, save_history


def history(records: int = 800, task: str = "classification", features: bool = True) -> EnsembleHistory:
    """Three models with noise of different sizes; the noise of a record is its first feature."""
    random = np.random.default_rng(11)
    noise = random.random(records) ** 2 * 4
    truth = random.integers(0, 4, records)
    logits = (
        np.eye(4)[truth][:, None] * 3
        + random.normal(0, 1, (records, 3, 4)) * noise[:, None, None] * np.array([0.6, 0.9, 1.1])[None, :, None]
    )
    powers = np.exp(logits - logits.max(axis=2, keepdims=True))
    outputs = powers / powers.sum(axis=2, keepdims=True) if task == "classification" else logits
    labels: Any = truth if task == "classification" else np.eye(4)[truth] * 3
    columns = np.column_stack([noise, random.random(records)]) if features else None
    return EnsembleHistory(("a", "b", "c"), outputs, task, labels, columns, np.arange(records) // 2)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """``fitted(*arguments, **changes)``: the path of a fit of :func:`history`, and its output; each made once."""
    pytest.importorskip("sklearn", reason="fitting needs scikit-learn")
    made: Dict[Any, Any] = {}

    def fit(*arguments: str, **changes: Any) -> Any:
        key = (arguments, tuple(sorted(changes.items())))
        if key not in made:
            place = tmp_path_factory.mktemp("fit")
            save_history(str(place / "h.npz"), history(**changes))
            path, out, err = str(place / "app.ensemble.json"), io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                words = ["profile", "--fit", f"app={place / 'h.npz'}", "--out", path, *arguments]
                assert main(words) == 0
            made[key] = path, out.getvalue(), err.getvalue()
        return made[key]

    return fit


def test_each_step_is_told_as_it_begins_and_not_among_the_results(fitted: Any) -> None:
    _, out, err = fitted("--json")
    assert json.loads(out)["records"] == 800
    assert [line.split(":")[0] for line in err.splitlines()] == ["edgeserve profile --fit"] * 4
    assert "400 records in at most 100 epochs ..." in err
    assert "every subset of 3 models" in err


def test_the_file_plans_and_the_predictor_ranks(fitted: Any) -> None:
    path, out, _ = fitted("--json")
    about = json.loads(out)
    profile = read_ensemble(path)
    assert profile is not None and profile.models == ("a", "b", "c") and len(profile.agreement) == 10
    assert profile.row(0.0)[1] > profile.row(1.0)[1] + 0.1
    assert profile.weights[0] > profile.weights[1] > profile.weights[2]
    assert sorted(profile.observed) == [1, 2, 3, 4, 5, 6]
    assert about["rank_correlation"] > 0.5
    assert about["agreement"]["a + b"] > about["agreement"]["b"]
    table = read_fit(path)
    assert table is not None and table["about"]["predictor"] == "app.ensemble.onnx"


def test_the_exported_network_gives_the_hint(fitted: Any) -> None:
    pytest.importorskip("onnxruntime", reason="runs the exported network")
    place = pathlib.Path(fitted("--json")[0]).parent
    options = {"hints": {"difficulty": "difficulty"}}
    model = ModelConfig("score", "onnx", file="app.ensemble.onnx", batch=(1, 4), options=options)
    engine = make_engine(model, [LaneInfo()], str(place))
    engine.load()
    items = [{"features": np.array([noise, 0.5], np.float32)} for noise in (0.0, 3.5)]
    easy, hard = engine.open(LaneInfo()).launch(Batch(items, 4)).result()
    assert easy.hints is not None and hard.hints is not None
    assert 0 <= easy.hints["difficulty"] < hard.hints["difficulty"] <= 1
    engine.unload()


@pytest.mark.parametrize("kind", KINDS)
def test_every_combiner_answers_with_every_subset(tmp_path: pathlib.Path, fitted: Any, kind: str) -> None:
    path, _, _ = fitted("--combiner", kind, features=False)
    model = ModelConfig(name="join", engine="combine", file=path, shapes={"a": (4,)})
    engine = make_engine(model, [LaneInfo()], str(tmp_path))
    engine.load()
    recorded = history()
    table = read_fit(path)
    assert table is not None
    combiner = combiner_of(table["fit"]["combiner"], path)
    for names in (["a"], ["b", "c"], ["a", "b", "c"]):
        item = {name: recorded.outputs[5, "abc".index(name)] for name in names}
        (result,) = engine.run(Batch([item], 1))
        assert result.error is None, result.error
        expected = combiner.answers(recorded.outputs[5:6], sum(1 << "abc".index(name) for name in names))[0]
        assert result.outputs["answer"] == pytest.approx(expected, abs=1e-6)
        assert (result.outputs["label"], result.outputs["models"]) == (expected.argmax(), names)
    assert set(engine.example()) == {"a", "b", "c"}


def test_a_regression_is_fitted(fitted: Any) -> None:
    path, _, _ = fitted("--combiner", "stacking", task="regression")
    profile = read_ensemble(path)
    assert profile is not None and len(profile.agreement) == 10 and profile.observed == {}
    assert profile.row(0.0)[1] > profile.row(1.0)[1]


def test_without_features_every_request_counts_as_the_mean(fitted: Any) -> None:
    path, out, _ = fitted(features=False)
    profile = read_ensemble(path)
    assert profile is not None and len(profile.agreement) == 1
    assert "no features" in out


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"d": [1.0]}, "no model of the ensemble"),
        ({}, "no model's output came"),
        ({"a": "text"}, "expected numbers"),
        ({"a": [0.7, 0.1, 0.1, 0.1], "b": [0.2, float("nan"), 0.4, 0.4]}, "'b' holds NaN"),
        ({"a": np.ma.masked_array([0.7, 0.1, 0.1, 0.1], [1, 0, 0, 0])}, "'a' is a masked array"),
        ({"a": [1.0, 2.0], "b": [1.0]}, "1 and 2 values"),
        ({"a": np.ones((2, 3, 1)), "b": np.ones((1, 3, 2))}, "[2, 3] and [3, 2]"),
    ],
)
def test_an_item_that_cannot_be_combined_fails_alone(fitted: Any, item: Dict[str, Any], said: str) -> None:
    path, _, _ = fitted(features=False)
    engine = make_engine(ModelConfig(name="join", engine="combine", file=path), [LaneInfo()], "/")
    engine.load()
    wrong, right = engine.run(Batch([item, {"a": [0.7, 0.1, 0.1, 0.1]}], 2))
    assert said in str(wrong.error) and right.error is None


def test_a_file_that_is_none_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "f.json").write_text('{"edgeserve_ensemble": 1, "profile": {}}')
    engine = make_engine(ModelConfig(name="join", engine="combine", file="f.json"), [LaneInfo()], str(tmp_path))
    with pytest.raises(EngineError, match="make it with 'edgeserve profile --fit'"):
        engine.load()


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"outputs": np.zeros((60, 2, 3))}, "expected models and outputs"),
        ({"models": ["a", "b"], "outputs": np.zeros((60, 3, 3))}, "expected (records, models, values)"),
        ({"models": ["a"], "outputs": np.ones((60, 1, 3))}, "no probabilities"),
        ({"models": ["a"], "outputs": np.ones((5, 1, 1))}, "at least 50"),
        ({"models": ["a"], "outputs": np.ones((60, 1, 1)), "labels": np.full(60, 2)}, "from 0 to 0"),
        ({"models": ["a"], "outputs": np.ones((60, 1, 1)), "features": np.ones((59, 1))}, "59 rows for 60"),
        ({"models": ["a"], "outputs": np.full((60, 1, 1), np.nan)}, "not finite"),
        ({"models": ["a"], "outputs": np.ones((60, 1, 1)), "task": "ranking"}, "expected one of classification"),
        ({"models": ["a"], "outputs": np.ones((60, 1, 1)), "notes": [1]}, "may have task"),
    ],
)
def test_a_history_that_cannot_be_used_says_what(tmp_path: pathlib.Path, arrays: Dict[str, Any], said: str) -> None:
    path = str(tmp_path / "h.npz")
    np.savez(path, **{name: np.asarray(value) for name, value in arrays.items()})
    with pytest.raises(ConfigError, match="h.npz") as refused:
        load_history(path)
    assert said in str(refused.value)


def test_a_file_that_is_no_history(tmp_path: pathlib.Path) -> None:
    (tmp_path / "h.npz").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="no .npz file"):
        load_history(str(tmp_path / "h.npz"))
    with pytest.raises(ConfigError, match="No such file"):
        load_history(str(tmp_path / "other.npz"))


def test_halves_are_split_by_group_and_halve_the_groups() -> None:
    made = history(200)
    first, second = made.halves(3)
    assert made.groups is not None and len(first) == len(second) == 100
    assert not set(made.groups[first]) & set(made.groups[second])
