"""The lexicon: the packaged one, one of the user's own, and files that cannot be used."""

from __future__ import annotations

import pathlib

import pytest

from edgeserve.errors import ConfigError
from edgeserve.predict.lexicon import load
from edgeserve.predict.rules import RuleScorer


def test_the_packaged_lexicon_has_every_list() -> None:
    lexicon = load()
    assert (len(lexicon.determiners), len(lexicon.prepositions), len(lexicon.pronouns)) == (20, 26, 15)
    assert (len(lexicon.auxiliaries), len(lexicon.question_words), len(lexicon.past_verbs)) == (31, 9, 25)
    assert (len(lexicon.multipos), len(lexicon.poly), len(lexicon.vague_words)) == (210, 228, 81)
    assert len(lexicon.open_patterns) == 12 and lexicon.vague_phrases is not None
    assert {"to", "please", "the", "why"} <= lexicon.stop_words


def test_a_lexicon_of_ones_own_scores(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("list,entry,value\nPOLY,Gizmo,8\nVAGUE,blurry,\n")
    scores = RuleScorer(load(str(path))).scores("gizmo blurry")
    assert (scores.semantic, scores.vague, scores.open_ended) == (3.0, 1.5, 0.0)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("POLY,word,many", "'many', expected a number"),
        ("NOUNS,word,", "'NOUNS' of 'word' is unknown"),
        ("OPEN_PATTERN,(,1", "no regular expression"),
        ("POLY,,3", "is no entry"),
    ],
)
def test_a_bad_row_is_named(tmp_path: pathlib.Path, row: str, said: str) -> None:
    path = tmp_path / "own.csv"
    path.write_text(f"list,entry,value\n{row}\n")
    with pytest.raises(ConfigError, match="own.csv") as refused:
        load(str(path))
    assert said in str(refused.value)


def test_a_missing_file_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.csv.*No such file"):
        load(str(tmp_path / "none.csv"))
