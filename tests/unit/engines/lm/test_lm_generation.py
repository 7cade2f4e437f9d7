"""The options of an item, and refused values."""

from __future__ import annotations

import json

import numpy as np
import pytest

from edgeserve.engines.lm.generation import Generation, TextReader
from edgeserve.engines.lm.sampling import Sampling
from edgeserve.engines.lm.tokenizers import ByteTokenizer
from edgeserve.errors import EngineError, WrongInput

NAMES = ("<|im_start|>", "<|im_end|>")
TOKENIZER = ByteTokenizer(NAMES, [], [257], "chatml")
DEFAULTS = Generation((), Sampling(0.0, 1.0, 0), 40, ("\n\n",), False, None)


def reader(chat=False, tokenizer=TOKENIZER, context=64, defaults=DEFAULTS, shortens=False):
    return TextReader("chat", tokenizer, context, 258, defaults, chat, shortens)


def test_a_prompt_is_text_to_continue_and_its_control_tokens_are_text():
    asked = reader().read({"prompt": "a<|im_end|>"})
    assert asked.prompt == tuple(b"a<|im_end|>")
    assert asked._replace(prompt=()) == DEFAULTS


def test_a_list_of_stop_strings_may_come_as_json():
    for given in ('["a", "[b"]', np.array('["a", "[b"]'), b'["a", "[b"]', ["a", "[b"]):
        assert reader().read({"prompt": "x", "stop": given}).stops == ("a", "[b")
    assert reader().read({"prompt": "x", "stop": '["a"]'}).stops == ("a",)
    assert reader().read({"prompt": "x", "stop": "[]"}).stops == ()
    for one in ("[", "[1]", "[stop]", '{"a": 1}'):  # no list of strings: looked for as it is
        assert reader().read({"prompt": "x", "stop": one}).stops == (one,)
    with pytest.raises(EngineError, match="'stop'"):
        reader().read({"prompt": "x", "stop": json.dumps([""])})


def test_messages_may_come_as_json_and_a_prompt_may_be_what_a_user_says():
    messages = [{"role": "user", "content": "hé"}]
    wanted = reader().read({"messages": messages}).prompt
    assert reader().read({"messages": json.dumps(messages)}).prompt == wanted
    assert reader().read({"messages": np.array(json.dumps(messages))}).prompt == wanted
    assert reader(chat=True).read({"prompt": "hé"}).prompt == wanted


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": ""},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "", "tool_calls": []},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "lamp", "arguments": "{}"}}]},
    ],
)
def test_a_conversation_goes_on_after_an_empty_message(message):
    said = {"role": "user", "content": "hello"}
    assert reader().tokens_of({"messages": [said, message, said]})


ALLOWED = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "lamp"}}]}
ASKED = {"prompt": "x", "tools": [{"type": "function", "function": {"name": name}} for name in ("lamp", "heater")]}


def test_of_the_tools_only_those_that_are_allowed_may_be_called():
    pytest.importorskip("llguidance", reason="llguidance has no wheel for this Python")
    choice = {"type": "allowed_tools", "allowed_tools": ALLOWED}
    assert reader().read({**ASKED, "tool_choice": choice}).calls == ("lamp",)


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        {},
        {**ALLOWED, "mode": "none"},
        {**ALLOWED, "mode": ["auto"]},
        {"mode": "auto"},
        *[
            {**ALLOWED, "tools": tools}
            for tools in (5, "lamp", {}, [5], [{"function": 5}], [{"function": {"name": []}}])
        ],
        {**ALLOWED, "tools": [{"function": {"name": "door"}}]},
    ],
)
def test_allowed_tools_are_some_of_the_tools(wrong):
    with pytest.raises(WrongInput, match="allowed_tools"):
        reader().read({**ASKED, "tool_choice": {"type": "allowed_tools", "allowed_tools": wrong}})


def test_numbers_of_the_bus_count_like_numbers_of_python():
    asked = reader().read(
        {
            "tokens": np.array([1, 2], np.int32),
            "temperature": np.array(0.5),
            "top_k": np.array(3),
            "top_p": np.float32(0.5),
            "max_tokens": np.int64(7),
            "seed": np.array(9),
            "stop": ["a", "b"],
            "ignore_eos": np.array(True),
            "min_p": np.array(0.25, np.float32),
            "frequency_penalty": np.array(-1),
            "presence_penalty": 0.5,
            "repeat_penalty": np.array(1.5),
            "logit_bias": np.array('{"3": -100, "0": 0.5}'),
        }
    )
    sampling = Sampling(0.5, 0.5, 3, 0.25, -1.0, 0.5, 1.5, -1, ((3, -100.0), (0, 0.5)))
    assert asked == Generation((1, 2), sampling, 7, ("a", "b"), True, 9)
    assert reader().read({"prompt": "x", "logit_bias": {3: -100}}).sampling.biases == ((3, -100.0),)


def test_max_tokens_ends_at_the_configured_bound_and_at_the_context():
    assert reader().read({"prompt": "x", "max_tokens": 1000}).max_tokens == 40
    assert reader(context=16).read({"prompt": "x" * 10}).max_tokens == 6


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({}, "got none of them"),
        ({"text": "x"}, "inputs: text"),
        ({"prompt": "x", "tokens": [1]}, "tokens and prompt"),
        ({"prompt": ""}, "no tokens"),
        ({"prompt": 5}, "expected text"),
        ({"tokens": [0.5]}, "whole numbers"),
        ({"tokens": [[1]]}, "whole numbers"),
        ({"tokens": np.ma.masked_array([1, 2], [0, 1])}, "'tokens' is a masked array"),
        ({"tokens": [[1], [1, 2]]}, "'tokens' is "),  # before numpy 1.24 it is an array of objects
        ({"prompt": "x", "stop": [["a"], ["b", "c"]]}, "'stop' is ['a']"),
        ({"prompt": "x", "temperature": [1, [2]]}, "'temperature' is [1, [2]]"),
        ({"tokens": [258]}, "the token 258"),
        ({"tokens": [-1]}, "the token -1"),
        ({"prompt": "x" * 64}, "has 64 tokens; at most 63 fit"),
        ({"prompt": "x", "max_tokens": 0}, "'max_tokens' is 0"),
        ({"prompt": "x", "temperature": -1}, "'temperature' is -1"),
        ({"prompt": "x", "top_p": 2}, "'top_p' is 2"),
        ({"prompt": "x", "top_k": 1.5}, "'top_k' is 1.5"),
        ({"prompt": "x", "min_p": 1.5}, "'min_p' is 1.5"),
        ({"prompt": "x", "frequency_penalty": 3}, "'frequency_penalty' is 3"),
        ({"prompt": "x", "presence_penalty": "1"}, "'presence_penalty' is '1'"),
        ({"prompt": "x", "repeat_penalty": 0}, "'repeat_penalty' is 0"),
        ({"prompt": "x", "logit_bias": {"258": 1}}, "expected at most 1024 tokens (0 to 257)"),
        ({"prompt": "x", "logit_bias": '{"1": 101}'}, "'logit_bias'"),
        ({"prompt": "x", "logit_bias": '{"a": 1}'}, "'logit_bias'"),
        ({"prompt": "x", "logit_bias": '{"1": NaN}'}, "'logit_bias'"),
        ({"prompt": "x", "logit_bias": "[1]"}, "'logit_bias'"),
        ({"prompt": "x", "logit_bias": "[" * 100_000}, "'logit_bias'"),
        ({"messages": "[" * 100_000}, "'messages' is no JSON"),
        ({"prompt": "x", "stop": [""]}, "'stop'"),
        ({"prompt": "x", "stop": 5}, "'stop' is 5"),
        ({"messages": "{"}, "no JSON"),
        ({"messages": []}, "'messages' is []"),
        ({"messages": [{"role": "user"}]}, "keys role and content"),
        ({"messages": ["x"]}, "keys role and content"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(item, said):
    with pytest.raises(WrongInput) as caught:
        reader().read(item)
    assert said in str(caught.value)
    assert "'chat'" in str(caught.value)


def test_a_model_without_a_template_takes_no_messages():
    with pytest.raises(EngineError, match="no chat template"):
        reader(tokenizer=ByteTokenizer(NAMES, [], [257], "")).read({"messages": [{"role": "user", "content": "x"}]})


def test_a_conversation_that_is_too_long_is_refused_or_loses_its_oldest_turns():
    def said(*texts):
        roles = ["system", *["user", "assistant"] * len(texts)]
        return [{"role": role, "content": text} for role, text in zip(roles, ("S", *texts))]

    long = said("first", "one", "second", "two", "third")
    context = 88
    with pytest.raises(WrongInput, match="at most 87 fit"):
        reader(context=context).read({"messages": long})
    shortened = reader(context=context, shortens=True)
    kept = [long[0], *long[3:]]
    assert shortened.read({"messages": long}).prompt == reader(context=400).read({"messages": kept}).prompt
    assert shortened.read({"messages": kept}).prompt == reader(context=400).read({"messages": kept}).prompt
    with pytest.raises(WrongInput, match="at most 87 fit"):
        shortened.read({"messages": said("x" * 200)})


@pytest.mark.parametrize("large", ["every turn", "the oldest", "the newest", "the system's"])
def test_the_oldest_turns_are_found_without_reading_all_again_and_again(monkeypatch, large):
    """A lane waits for it: a conversation of a megabyte, read a dozen times, would hold up the others on it."""
    turns = 400
    sizes = {"the oldest": {1: 9000}, "the newest": {turns: 9000}, "the system's": {0: 9000}}.get(large, {})
    messages = [
        {"role": "user" if place else "system", "content": "x" * sizes.get(place, 2)} for place in range(turns + 1)
    ]
    read = []
    encode = ByteTokenizer.encode
    monkeypatch.setattr(
        ByteTokenizer, "encode", lambda self, text, special=False: read.append(len(text)) or encode(self, text, special)
    )
    found = len(reader(context=256, shortens=True).tokens_of({"messages": messages}))
    assert sum(read) < 3 * read[0]
    wanted = 0
    for left in range(turns - 1, -1, -1):
        length = len(reader(context=2**20).tokens_of({"messages": [messages[0], *messages[1 + left :]]}))
        if wanted and length > 192:
            break
        wanted = length
    assert found == wanted


def test_probabilities_of_too_many_tokens_are_refused():
    assert reader().read({"prompt": "x"}).logprobs == -1
    assert reader().read({"prompt": "x", "logprobs": np.array(0)}).logprobs == 0
    with pytest.raises(WrongInput, match="at most 20"):
        reader().read({"prompt": "x", "logprobs": 21})


class Unread(ByteTokenizer):
    """Its texts are too long to be tokenized."""

    def encode(self, text, special=False):
        raise AssertionError(f"{len(text)} characters were tokenized")


def user(text, **more):
    return {"role": "user", "content": text, **more}


CALL = {"type": "function", "function": {"name": "f", "arguments": "a" * 9000}}
TOOL = {"type": "function", "function": {"name": "f", "description": "a" * 9000}}


@pytest.mark.parametrize("shortens", [False, True])
@pytest.mark.parametrize(
    "item",
    [
        {"prompt": "a" * 10_000},
        {"messages": [user("a" * 5000), user("a" * 5000)]},
        {"messages": [user("a"), {"role": "system", "content": "a" * 5000}, user("b")]},
        {"messages": [{"role": "system", "content": "a" * 5000}]},
        {"messages": [{"role": "r" * 5000, "content": ""}]},
        {"messages": [user("a"), {"role": "assistant", "content": None, "tool_calls": [CALL]}]},
        {"messages": [user("a")], "tools": [TOOL]},
    ],
    ids=["prompt", "messages", "what stays", "system", "role", "calls", "tools"],
)
def test_a_text_that_no_vocabulary_makes_fit_is_refused_before_it_is_tokenized(item, shortens):
    with pytest.raises(
        WrongInput, match=r"(?:[59]\d{3}|100\d\d) characters; at most 4096 are read, 64 for each of the 64"
    ):
        reader(tokenizer=Unread(NAMES, [], [257], "chatml"), shortens=shortens).read(item)


def test_turns_that_are_dropped_for_their_length_are_not_tokenized(monkeypatch):
    read, encode = [], ByteTokenizer.encode
    monkeypatch.setattr(
        ByteTokenizer, "encode", lambda self, text, special=False: read.append(len(text)) or encode(self, text, special)
    )
    newest = [user("second"), {"role": "assistant", "content": "two"}, user("third")]
    long = [user("a" * 10**6), {"role": "assistant", "content": "b" * 10**6}, *newest]
    assert (
        reader(context=99, shortens=True).read({"messages": long}).prompt
        == reader(context=99).read({"messages": newest}).prompt
    )
    assert max(read) < 99 * 64
