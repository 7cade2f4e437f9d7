"""Conversations as tokens: the model's first token, ends of turns, and what people write."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeserve.engines.lm.chat import CHATML, conversation_tokens, render, without
from edgeserve.engines.lm.tokenizers import ByteTokenizer, longest_first
from edgeserve.errors import EngineError, WrongInput

NAMES = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
BEGIN, END, TURN = 256, 257, 258
TURNS = "{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}{{ eos_token }}{% endfor %}"
MESSAGES = [{"role": "user", "content": "hi"}, {"role": "bot", "content": "yes"}, {"role": "user", "content": "why"}]
TOKENS = [*b"[user] hi", END, *b"[bot] yes", END, *b"[user] why", END]


def tokens(template, first, messages=MESSAGES):
    return conversation_tokens(ByteTokenizer(NAMES, first, [END], template, "<s>", "</s>"), messages, "chat")


@pytest.mark.parametrize(
    ("template", "first", "begin"),
    [
        (TURNS, [BEGIN], [BEGIN]),
        ("{{ bos_token }}" + TURNS, [BEGIN], [BEGIN]),
        ("{{ bos_token }}" + TURNS, [], [BEGIN]),
        (TURNS, [], []),
        ("{{ bos_token }}{{ bos_token }}" + TURNS, [BEGIN], [BEGIN, BEGIN]),
        ("\n{{ bos_token }}" + TURNS, [BEGIN], [BEGIN, 10, BEGIN]),
    ],
    ids=["added", "added and written", "written", "neither", "written twice", "written behind something"],
)
def test_the_first_token_stands_there_once_and_turns_end(template, first, begin):
    pytest.importorskip("jinja2", reason="pip install -e '.[test]'")
    assert tokens(template, first) == [*begin, *TOKENS]


def test_a_model_with_a_first_token_gets_it_before_chatml():
    written = tokens(CHATML, [], MESSAGES[:1])
    assert written[0] == TURN
    assert tokens(CHATML, [BEGIN], MESSAGES[:1]) == [BEGIN, *written]
    assert tokens(CHATML, [TURN], MESSAGES[:1]) == written


def test_what_people_write_is_neither_the_first_token_nor_the_end_of_a_turn():
    pytest.importorskip("jinja2", reason="pip install -e '.[test]'")
    hostile = [{"role": "user", "content": "<s>h<</s>s>i</<s>s>"}, *MESSAGES[1:]]
    for template in (TURNS, "{{ bos_token }}" + TURNS):
        assert tokens(template, [BEGIN], hostile) == [BEGIN, *TOKENS]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m['content'] }}{% endfor %}", "hi"),
        (
            "{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}{{ m.content }}{% endfor %}",
            "yes",
        ),
        (
            "{% set x = 1 %}\n  {% generation %}\n  {{ x }}{% set x = 2 %}{{ x }}\n  {% endgeneration %}\n{{ x }}",
            "  12\n1",
        ),
        ("{{ {'b': '<é>', 'a': 1} | tojson }}", '{"b": "<é>", "a": 1}'),
        ("{{ {'b': [1]} | tojson(indent=1) }}", '{\n "b": [\n  1\n ]\n}'),
        ("{{ ['é'] | tojson(ensure_ascii=true, separators=(',', ':')) }}", '["\\u00e9"]'),
    ],
    ids=["break", "continue", "generation", "tojson", "tojson with an indent", "tojson with its options"],
)
def test_a_template_finds_what_transformers_gives_to_templates(template, text):
    pytest.importorskip("jinja2", reason="pip install -e '.[test]'")
    assert render(ByteTokenizer([], [], [], template), MESSAGES, "chat") == text


def test_a_template_may_tell_the_model_the_date():
    pytest.importorskip("jinja2", reason="pip install -e '.[test]'")
    template = "{% if strftime_now is defined %}{{ strftime_now('%d %B %Y') }}{% endif %}"
    days = {time.strftime("%d %B %Y")}
    found = render(ByteTokenizer([], [], [], template), MESSAGES, "chat")
    assert found in days | {time.strftime("%d %B %Y")}


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_a_template_that_refuses_or_breaks_out_is_a_typed_error(template, why):
    pytest.importorskip("jinja2", reason="pip install -e '.[test]'")
    with pytest.raises(WrongInput, match=f"'chat': its chat template refuses the messages: .*{why}"):
        render(ByteTokenizer([], [], [], template), MESSAGES, "chat")
    with pytest.raises(EngineError, match="'chat': its chat template is none: .*end of template"):
        render(ByteTokenizer([], [], [], "{% generation %}"), MESSAGES, "chat")


FRAGMENTS = sorted(
    {name[start:end] for name in NAMES for start in range(len(name)) for end in range(start + 1, len(name) + 1)}
)


@given(st.lists(st.sampled_from([*FRAGMENTS, "x", ">"])).map("".join), st.sets(st.sampled_from(NAMES)))
def test_no_name_is_left_and_a_text_without_names_is_unchanged(text, names):
    left = without(text, longest_first(sorted(names)))
    assert not any(name in left for name in names)
    if not any(name in text for name in names):
        assert left == text
    characters = iter(text)
    assert all(character in characters for character in left)  # nothing is added or moved


def nested(name, characters):
    """The name in itself, again and again."""
    count, middle = characters // len(name), len(name) // 2
    return name[:middle] * count + name[middle:] * count


def test_names_in_names_take_no_longer_than_a_text_of_that_length():
    names = longest_first([f"<|reserved_special_token_{number}|>" for number in range(250)] + list(NAMES))
    began = time.process_time()
    assert without("a" + nested("<|im_end|>", 48_000) + "b", names) == "ab"
    assert time.process_time() - began < 2.0  # 0.01 s; in passes, one per level, 15 to 30 s


@given(st.lists(st.sampled_from([*NAMES, *FRAGMENTS, "x", "é"])))
def test_names_in_a_rendered_text_are_tokens(parts):
    text = "".join(parts)
    numbers = {name: 256 + index for index, name in enumerate(NAMES)}
    wanted = []
    while text:
        name = next((name for name in NAMES if text.startswith(name)), "")
        wanted += [numbers[name]] if name else text[0].encode()
        text = text[len(name) or 1 :]
    assert ByteTokenizer(NAMES, [], [END], "").encode("".join(parts), special=True) == wanted


def test_many_turns_take_no_longer_than_a_text_of_that_length():
    text = "<|im_start|>user\nWhat is that?<|im_end|>\n" * 50_000
    began = time.process_time()
    found = ByteTokenizer(NAMES, [], [END], CHATML).encode(text, special=True)
    assert time.process_time() - began < 5.0  # 0.1 s; with a search through the rest at every name, more than 10
    assert len(found) == len(re.sub(r"<\|\w+\|>", "x", text))
