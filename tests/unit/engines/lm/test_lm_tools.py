"""Tool calls: what the model is told, which text is a call, and what is kept of a stream until that is known."""

from __future__ import annotations

import json

import pytest

from edgeserve.engines.lm.answer_text import AnswerText
from edgeserve.engines.lm.generation import Generation
from edgeserve.engines.lm.sampling import Sampling
from edgeserve.engines.lm.sequence import Sequence
from edgeserve.engines.lm.tools import Tools, calls_of, described, tools_of, written

LAMP = {"name": "lamp", "description": "Switches a lamp", "parameters": {"type": "object"}}
TOOLS = tools_of([{"type": "function", "function": LAMP}], "auto")
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Light!"}]
CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "lamp", "arguments": '{"on": true}'}}],
}
DONE = {"role": "tool", "tool_call_id": "1", "content": "done"}


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "lamp", "arguments": {"on": true}}\n</tool_call>',
        '<tool_call>{"name": "lamp", "arguments": {"on": true}}',
        '<tool_call>[{"name": "lamp", "arguments": {"on": true}}]</tool_call>',
        '[TOOL_CALLS][{"name": "lamp", "arguments": {"on": true}}]',
        '[{"name": "lamp", "arguments": {"on": true}}]',
        ' {"name": "lamp", "parameters": {"on": true}}',
    ],
)
def test_calls_are_read_in_the_forms_of_several_families(text):
    assert calls_of(text, ["lamp"]) == [{"name": "lamp", "arguments": '{"on": true}'}]


def test_several_calls_are_read_in_order():
    text = "".join(f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>\n' for name in ("a", "b"))
    assert [call["name"] for call in calls_of(text, ["a", "b"])] == ["a", "b"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I do not know.",
        '{"name": "other", "arguments": {}}',
        '{"name": "lamp", "arguments": 3}',
        '{"name": "lamp", "arguments": {}} would switch it on.',
        "{",
        "[1]",
        "3",
        "[TOOL_CALLS]",
        "[TOOL_CALLS]3 lamps",
        '[TOOL_CALLS][{"name": "lamp"}] and [TOOL_CALLS] again',
    ],
)
def test_other_text_is_no_call(text):
    assert calls_of(text, ["lamp"]) == []


def test_arguments_are_json_that_travels():
    (call,) = calls_of('{"name": "say", "arguments": {"text": "\\ud83d, é"}}', ["say"])
    assert json.loads(call["arguments"].encode()) == {"text": "\ud83d, é"}
    for number in ("NaN", "1e999"):
        assert calls_of(f'{{"name": "say", "arguments": {{"loudness": {number}}}}}', ["say"]) == []


def test_a_template_that_knows_tools_gets_calls_as_objects():
    messages = written([*ASKED, CALLED, DONE], TOOLS, "{{ tools }}")
    assert messages[2]["tool_calls"][0]["function"] == {"name": "lamp", "arguments": {"on": True}}
    assert messages[3] == DONE
    assert described(TOOLS) == [{"type": "function", "function": LAMP}]


@pytest.mark.parametrize("asked", [ASKED, ASKED[1:]])
def test_another_template_is_told_in_a_system_message(asked):
    messages = written([*asked, CALLED, DONE], TOOLS, "chatml")
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert json.dumps({"type": "function", "function": LAMP}) in messages[0]["content"]
    assert messages[0]["content"].startswith("Be brief.") is (asked is ASKED)
    assert calls_of(messages[2]["content"], ["lamp"]) == [{"name": "lamp", "arguments": '{"on": true}'}]
    assert "done" in messages[3]["content"]


def test_tools_that_may_not_be_called_are_not_told():
    none = tools_of([{"type": "function", "function": LAMP}], "none")
    assert written(ASKED, none, "chatml") == ASKED and described(none) == [] and none.names == ()
    assert written(ASKED, Tools(), "chatml") == ASKED


def test_a_call_is_kept_to_the_end_and_what_was_none_is_said():
    said = AnswerText((), calls=True)
    parts = [said.add(part) for part in (b"I will. <too", b'l_call>{"name"', b": 1}")] + [said.finish()]
    assert parts == ["I will. ", "", "", ""] and said.kept == '<tool_call>{"name": 1}'
    copy = said.copy()
    assert copy.give_up() == said.kept and copy.text == 'I will. <tool_call>{"name": 1}'
    begun = AnswerText((), calls=True)
    assert [begun.add(part) for part in (b" ", b'{"name"', b": 1}")][1:] == ["", ""] and begun.kept == '{"name": 1}'
    assert AnswerText(()).add(b'{"a": 1}') == '{"a": 1}'


def test_a_stop_string_ends_what_is_kept():
    said = AnswerText(("END",), calls=True)
    for part in (b'{"name": "lamp"}', b"EN", b"D more"):
        said.add(part)
    assert said.stopped and said.kept == '{"name": "lamp"}'


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ((b'I will. <tool_call>{"name": "lamp"}</tool_call>', b"\nIt is", b" on."), "I will. \nIt is on."),
        ((b'<tool_call>{"name": "lamp"}</tool_call>\n<tool_call>{"name": "lamp"}</tool_call>\n',), ""),
        ((b'{"a": 1} <tool_call>{"name": "lamp"}</tool_call>',), '{"a": 1} '),
        ((b'I will. [TOOL_CALLS] [{"name": "lamp"}]', b"\nIt is", b" on."), "I will. \nIt is on."),
        ((b'[TOOL_CALLS][{"name": "lamp", "arguments": {"a": "[TOOL_CALLS]"}}] On.',), " On."),
        ((b'[TOOL_CALLS]{"name": "lamp"} and [TOOL_CALLS][{"name": "lamp"}]\n',), " and \n"),
        ((b'[TOOL_CALLS][{"name": "lamp"}]\n',), ""),
    ],
)
def test_text_beside_a_call_is_said(parts, said):
    """But behind a bare object: the text may speak of it."""
    sequence = Sequence(Generation((1,), Sampling(), 40, (), False, None, calls=("lamp",)), "", None)
    sent = "".join([sequence.append(1, part) for part in parts])
    sent += sequence.finish()
    for outputs in (sequence.answer("stop", 3), sequence.written().outputs):
        assert sent == outputs["text"] == said
        assert {call["name"] for call in json.loads(outputs["tool_calls"])} == {"lamp"}
