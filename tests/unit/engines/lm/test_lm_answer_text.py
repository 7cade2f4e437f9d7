"""Bytes of tokens to text: characters cut by tokens, stop strings cut by tokens."""

from __future__ import annotations

import pytest

from edgeserve.engines.lm.answer_text import AnswerText


def fed(data, sizes, stops=()):
    """The pieces of an answer whose bytes come in tokens of these sizes."""
    text, pieces = AnswerText(stops), []
    while data:
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text.add(data[:size]))
        data = data[size:]
    pieces.append(text.finish())
    return text, pieces


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_characters_that_tokens_cut_arrive_whole(size):
    said = "naïve 東京 🙂 end"
    text, pieces = fed(said.encode(), [size])
    assert "".join(pieces) == said == text.text
    assert all("\ufffd" not in piece for piece in pieces)


def test_what_is_no_utf8_is_replaced_and_an_unfinished_end_too():
    text, _ = fed(b"ab\xff\xfecd\xe6\x9d", [1])
    assert text.text == b"ab\xff\xfecd\xe6\x9d".decode("utf-8", "replace")


@pytest.mark.parametrize("size", [1, 2, 4, 100])
def test_the_answer_ends_before_a_stop_string_and_none_of_it_was_sent(size):
    text, pieces = fed(b"one two STOP three", [size], ("STOP", "never"))
    assert text.stopped
    assert "".join(pieces) == text.text == "one two "


def test_of_several_stop_strings_the_first_in_the_text_counts():
    assert fed(b"a.\nUser: b", [100], ("\n", "."))[0].text == "a"


def test_what_only_begins_like_a_stop_string_is_sent_as_soon_as_that_is_known():
    text = AnswerText(("</end>",))
    assert text.add(b"x </e") == "x "
    assert text.add(b"m> y") == "</em> y"
    assert text.add(b"</en") == ""
    assert text.finish() == "</en"
    assert not text.stopped


def test_nothing_follows_a_stop_string():
    text = AnswerText(("!",))
    assert text.add(b"a!b") == "a"
    assert text.add(b"c") == text.finish() == ""


def test_a_copy_goes_on_by_itself():
    text = AnswerText(("END",))
    text.add("東".encode()[:2])
    copy = text.copy()
    assert text.add("東".encode()[2:]) == "東"
    assert copy.text == ""
    assert copy.add("東".encode()[2:] + b"EN") == "東"
    assert copy.add(b"D") == ""
    assert copy.stopped
    assert not text.stopped
