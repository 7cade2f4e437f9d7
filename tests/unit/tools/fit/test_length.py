"""Fitting a length model: it learns what is there, beats the simpler predictors, and refuses what it cannot use."""

from __future__ import annotations

import json
import pathlib
import random
from typing import List, Tuple

import pytest

from edgeserve.cli import main
from edgeserve.errors import ConfigError
from edgeserve.predict.length import load_length_model
from edgeserve.tools.fit.length import read_history

VAGUE = "Tell me something about {} and other things."
PLAIN = "Where is the {}?"
OPEN = "Why do people explain {} in several ways?"


def history(count: int, seed: int = 4) -> List[Tuple[str, int]]:
    """Prompts whose length is their kind's times their number of topics, with noise."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        kind, tokens = draw.choice([(VAGUE, 20), (PLAIN, 3), (OPEN, 60)])
        topics = [draw.choice(["paper", "rivers", "glass", "bread"]) for _ in range(draw.randint(1, 6))]
        made.append((kind.format(" ".join(topics)), max(1, round(tokens * len(topics) * draw.lognormvariate(0, 0.1)))))
    return made


def write(path: pathlib.Path, entries: List[Tuple[str, int]]) -> str:
    path.write_text("".join(json.dumps({"text": text, "tokens": tokens}) + "\n" for text, tokens in entries))
    return str(path)


def test_the_network_learns_and_beats_the_simpler_predictors(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn", reason="fitting needs scikit-learn")
    out = str(tmp_path / "chat.npz")
    assert (
        main(["fit", "chat", write(tmp_path / "h.jsonl", history(300)), "--out", out, "--epochs", "40", "--json"]) == 0
    )
    told = json.loads(capsys.readouterr().out)
    errors = told["errors"]
    assert errors["LW, seven features"]["mae"] < errors["weighted rules"]["mae"] < errors["input length"]["mae"]
    assert errors["LW, seven features"]["pearson"] > 0.9
    fitted = load_length_model(out)
    assert fitted.predict(PLAIN.format("bread")).mean() == pytest.approx(3, rel=0.5)
    assert fitted.predict(OPEN.format("bread " * 4)).mean() == pytest.approx(240, rel=0.3)
    assert 0.05 < fitted.sigma < 0.4
    assert 150 < fitted.about["tau"] < 450
    assert (fitted.about["trained_on"], fitted.about["held_out"]) == (240, 60)


def test_the_same_seed_fits_the_same_model(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("sklearn", reason="fitting needs scikit-learn")
    path = write(tmp_path / "h.jsonl", history(60))
    means = []
    for name in "ab":
        main(["fit", "chat", path, "--out", str(tmp_path / name), "--epochs", "5"])
        means.append(load_length_model(str(tmp_path / name)).predict("Why is glass clear?").mean())
    assert means[0] == means[1]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1"),
        ('{"text": "a"}', "expected {"),
        ('{"text": 1, "tokens": 2}', "expected a string"),
        ('{"text": "a", "tokens": 0}', "at least 1"),
        ('{"text": "a", "tokens": true}', "at least 1"),
        ("", "has 0 texts"),
    ],
)
def test_a_history_that_cannot_be_used_says_where(tmp_path: pathlib.Path, line: str, said: str) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ConfigError) as refused:
        read_history(str(path))
    assert said in str(refused.value)


def test_other_histories_are_refused(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "chat", "h.csv"]) == 2
    assert "expected a .jsonl file" in capsys.readouterr().err
