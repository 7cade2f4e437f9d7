"""Text in pieces, cut into sentences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("wyoming", reason="the front needs wyoming: pip install '.[wyoming]'")

from edgeserve.fronts.wyoming_events import SENTENCE_END, TEXT_CHARS_MAX, Sentences


@given(st.text("ab.!? \n"), st.lists(st.integers(0, 40)))
def test_pieces_of_any_size_make_the_same_sentences(text, cuts):
    sentences, found = Sentences(), []
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(text)]):
        found += sentences.add(text[begin:end])
    found.append(sentences.rest)
    whole = [each.strip() for each in SENTENCE_END.split(text)]
    assert [each.strip() for each in found if each.strip()] == [each for each in whole if each]


def test_a_sentence_without_end_is_refused_and_forgotten():
    sentences = Sentences()
    with pytest.raises(ValueError, match="a sentence of"):
        for _ in range(TEXT_CHARS_MAX + 1):
            sentences.add("x")
    assert sentences.add("Yes. ") == ["Yes."]
