"""Fitting a length model: it learns what is there, beats the simpler predictors, and refuses what it cannot use."""

from __future__ import annotations

import json
import pathlib
import random
from typing import List, Tuple

import pytest

from edgeserve.cli import main
from edgeserve.commands.fit.length import fit, read_history
from edgeserve.errors import ConfigError
from edgeserve.predict.length import load_length_model

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


@pytest.mark.nightly
def test_it_learns_what_is_there_and_beats_the_number_of_words(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "chat.npz")
    assert main(["profile", "--fit", f"chat={write(tmp_path / 'h.jsonl', history(200))}", "--out", out, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    model = told["errors"]["model"]
    assert model["spearman"] > told["errors"]["number of words"]["spearman"]
    assert model["mean"] == pytest.approx(1.0, abs=0.05) and 0.85 <= model["within_90"] <= 0.95
    fitted = load_length_model(out)
    plain, opened = [fitted.predict(form.format("bread glass")).mean() for form in (PLAIN, OPEN)]
    assert opened > 5 * plain


def test_whole_forms_are_held_out(tmp_path: pathlib.Path) -> None:
    """Texts whose form alone tells the length: what is predicted of an unseen form is worth nothing, and told so."""
    entries = [{"text": f"w{form} x", "tokens": 1 + 97 * form % 200, "form": form % 20} for form in range(60)]
    path = tmp_path / "h.jsonl"
    path.write_text("".join(json.dumps({**entry, "text": f"w{entry['form']} x"}) + "\n" for entry in entries))
    model = fit(read_history(str(path)))
    assert model.about["forms"] == 20
    assert model.about["errors"]["model"]["spearman"] < 0.3


def test_the_first_words_are_the_form_of_a_text_that_names_none(tmp_path: pathlib.Path) -> None:
    read = read_history(write(tmp_path / "h.jsonl", history(60)))
    assert set(read.forms) == {"tell me", "where is", "why do"}


def test_the_same_seed_fits_the_same_model(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "h.jsonl", history(60))
    means = []
    for name in "ab":
        main(["profile", "--fit", f"chat={path}", "--out", str(tmp_path / name)])
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
    assert main(["profile", "--fit", "chat=h.csv"]) == 2
    assert "expected a .jsonl file" in capsys.readouterr().err
    assert main(["profile", "--fit", "h.jsonl"]) == 2
    assert "expected APP=HISTORY" in capsys.readouterr().err
