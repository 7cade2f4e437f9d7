"""The file of a growing history: what is kept, what is gone on with, what is moved aside."""

from __future__ import annotations

import contextlib
import pathlib
import random
from typing import Optional

import numpy as np
import pytest

from edgeserve.errors import ConfigError
from edgeserve.predict import recorded
from edgeserve.predict.history import load_history
from edgeserve.predict.recorded import RecordedHistory

MODELS = ("a", "b")


def record(number: int, values: int = 2) -> np.ndarray:
    row = np.zeros((2, values), np.float32)
    row[:, number % values] = 1
    return row


def filled(
    path: pathlib.Path, count: int, records_max: int = 100, features: Optional[int] = 3, values: int = 2
) -> RecordedHistory:
    made = RecordedHistory(str(path), MODELS, records_max)
    for number in range(count):
        assert (
            made.add(record(number, values), None if features is None else np.full(features, number, np.float32)) == ""
        )
    return made


def test_outputs_that_are_no_probabilities_are_a_regressions(tmp_path: pathlib.Path) -> None:
    made = RecordedHistory(str(tmp_path / "h.npz"), MODELS, 100)
    for number in range(50):
        made.add(np.full((2, 1), number, np.float32), None)
    made.write()
    history = load_history(str(tmp_path / "h.npz"))
    assert (history.task, history.features) == ("regression", None)


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("name", ["labels", "features", "groups", "models", "outputs"])
@pytest.mark.parametrize(
    "array",
    [
        np.array(1.0),
        np.zeros(0),
        np.zeros(7),
        np.full((60, 2), np.nan),
        np.array([["x", "y"]] * 60),
        np.zeros((60, 2, 0)),
        np.zeros((60, 3, 3)),
    ],
    ids=lambda array: f"{array.dtype.kind}{list(array.shape)}",
)
def test_an_array_of_another_form_is_a_typed_error(
    tmp_path: pathlib.Path, task: str, name: str, array: np.ndarray
) -> None:
    outputs = np.stack([record(number) for number in range(60)])
    arrays = {"models": np.array(MODELS), "outputs": outputs, "task": np.array(task), name: array}
    np.savez(tmp_path / "h.npz", **arrays)
    with pytest.raises(ConfigError, match=name):
        load_history(str(tmp_path / "h.npz"))


def test_a_damaged_file_is_a_typed_error_or_read(tmp_path: pathlib.Path) -> None:
    filled(tmp_path / "h.npz", 60, features=40).write()
    whole, draw = (tmp_path / "h.npz").read_bytes(), random.Random("damaged")
    for _ in range(400):
        damaged = bytearray(whole[: draw.choice((len(whole), draw.randrange(len(whole))))])
        for _ in range(3 if damaged else 0):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        (tmp_path / "h.npz").write_bytes(damaged)
        with contextlib.suppress(ConfigError):
            load_history(str(tmp_path / "h.npz"))


def test_a_folder_in_the_place_of_the_file_stays(tmp_path: pathlib.Path) -> None:
    (tmp_path / "h.npz").mkdir()
    made = filled(tmp_path / "h.npz", 1)
    assert made.load() == ""
    with pytest.raises(OSError):
        made.write()
    assert [path.name for path in tmp_path.iterdir()] == ["h.npz"]


def test_a_file_is_gone_on_with(tmp_path: pathlib.Path) -> None:
    filled(tmp_path / "h.npz", 10).write()
    again = RecordedHistory(str(tmp_path / "h.npz"), MODELS, 12)
    assert (again.load(), len(again), again.unwritten) == ("", 10, 0)
    for number in range(10, 14):
        again.add(record(number), np.full(3, number, np.float32))
    again.write()
    with np.load(tmp_path / "h.npz") as stored:
        assert stored["features"][:, 0].tolist() == list(range(2, 14))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"nothing", "no .npz file"),
        ({"models": np.array(["a", "c"]), "outputs": np.ones((3, 2, 2))}, "served are a, b"),
        ({"outputs": np.ones((3, 2, 2))}, "models"),
        ({"models": np.array(MODELS), "outputs": np.ones((3, 2, 2)), "labels": np.ones(3)}, "labels or groups"),
        (
            {"models": np.array(MODELS), "outputs": np.ones((3, 2, 2)), "features": np.ones((2, 2))},
            "2 rows of features",
        ),
    ],
)
def test_a_file_of_something_else_is_moved_aside(tmp_path: pathlib.Path, content: object, said: str) -> None:
    path = tmp_path / "h.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        assert isinstance(content, dict)
        np.savez(path, **content)
    before = path.read_bytes()
    made = RecordedHistory(str(path), MODELS, 10)
    assert said in made.load() and len(made) == 0
    assert not path.exists() and (tmp_path / "h.npz.old").read_bytes() == before


def test_records_of_other_sizes_begin_a_new_file(tmp_path: pathlib.Path) -> None:
    made = filled(tmp_path / "h.npz", 5)
    made.write()
    assert "of the sizes" in made.add(record(0, values=4), None)
    assert len(made) == 1 and (tmp_path / "h.npz.old").exists()


def test_the_numbers_of_all_records_are_bounded(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "BYTES_MAX", 10 * 16)  # ten records of two times two float32
    assert len(filled(tmp_path / "h.npz", 30, features=None)) == 10


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = filled(tmp_path / "h.npz", 5)
    made.write()
    before = (tmp_path / "h.npz").read_bytes()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    made.add(record(5), np.zeros(3, np.float32))
    with pytest.raises(OSError, match="No space"):
        made.write()
    assert (tmp_path / "h.npz").read_bytes() == before and made.unwritten == 1
    assert [path.name for path in tmp_path.iterdir()] == ["h.npz"]
