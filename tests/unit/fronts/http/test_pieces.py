"""Over every protocol of texts: an answer in pieces is the answer as a whole, and a conversation keeps its order."""

from __future__ import annotations

import asyncio
import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeserve.answers import Answer
from edgeserve.errors import Failed
from edgeserve.fronts.http import chat
from edgeserve.fronts.http.completion import Completion
from edgeserve.fronts.http.kserve import InferRequest, OpenInference
from edgeserve.fronts.http.ollama import Lines, chat_body
from edgeserve.fronts.http.responses import Response, read_response

LEFT = {"queue": 0.0, "load": 0.0, "execute": 1.0}
TEXT = {"dtype": "text", "shape": []}
PARTS = st.lists(st.text(st.sampled_from("ab \n\u00e9\u540d\U0001f642\u200d"), max_size=3), max_size=5)
ARGUMENTS = st.dictionaries(st.sampled_from("xy"), st.integers(0, 3), max_size=2)


@st.composite
def answers(draw):
    """(pieces, the answer): the pieces are a part of it, from its beginning."""
    parts = draw(PARTS)
    told = draw(st.integers(0, len(parts)))
    outputs = {"text": "".join(parts), "prompt_tokens": np.array(3), "completion_tokens": np.array(len(parts))}
    if draw(st.booleans()):
        outputs["finish_reason"] = "length"
    pieces = [{"text": part} for part in parts[:told]]
    if draw(st.booleans()):
        chances = [{"token": part, "logprob": -1.0, "top_logprobs": []} for part in parts]
        outputs["logprobs"] = json.dumps(chances)
        pieces = [{**piece, "logprobs": json.dumps([chance])} for piece, chance in zip(pieces, chances)]
    calls = [
        {"name": f"f{place}", "arguments": each} for place, each in enumerate(draw(st.lists(ARGUMENTS, max_size=3)))
    ]
    if calls:
        as_text = draw(st.booleans())
        outputs["tool_calls"] = json.dumps(
            [{**call, "arguments": json.dumps(call["arguments"]) if as_text else call["arguments"]} for call in calls]
        )
    return pieces, Answer(outputs, breakdown_ms=LEFT)


def of_chat(pieces, answer, is_chat=True):
    def told(choice, said):
        chances = choice["logprobs"] or {}
        tokens = [each["token"] for each in chances.get("content", ())] or chances.get("tokens", [])
        calls = [call["function"] for call in said.get("tool_calls", ())]
        return [said.get("content" if is_chat else "text") or "", calls, tokens, choice["finish_reason"]]

    (choice,) = Completion("id", "m", 0, chat=is_chat).whole([answer])["choices"]
    whole = told(choice, choice["message"] if is_chat else choice)
    stream, found = Completion("id", "m", 0, chat=is_chat), ["", [], [], None]
    chunks = [stream.piece(0, piece) for piece in pieces] + stream.ended(0, answer)
    for chunk in filter(None, chunks):
        (part,) = chunk["choices"]
        text, calls, tokens, finish = told(part, part["delta"] if is_chat else part)
        found = [found[0] + text, found[1] + calls, found[2] + tokens, finish or found[3]]
    assert stream.counts()["usage"] == Completion("id", "m", 0, chat=is_chat).whole([answer])["usage"]
    return found, whole


def of_prompts(pieces, answer):
    return of_chat(pieces, answer, is_chat=False)


def of_responses(pieces, answer):
    def told(response):
        items = response["output"]
        text = "".join([part["text"] for item in items if item["type"] == "message" for part in item["content"]])
        return text, [(each["name"], each["arguments"]) for each in items if each["type"] == "function_call"]

    def made():
        return Response("id", 0, {"model": "m"})

    stream = made()
    events = [event for piece in pieces for event in stream.piece(piece)] + stream.last(answer)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    text = "".join([event["delta"] for event in events if event["type"] == "response.output_text.delta"])
    calls = [
        (event["name"], event["arguments"])
        for event in events
        if event["type"] == "response.function_call_arguments.done"
    ]
    last, whole = events[-1]["response"], made().whole(answer)
    assert told(last) == told(whole) and last["usage"] == whole["usage"] and last["status"] == whole["status"]
    return (text, calls), told(whole)


def of_ollama(pieces, answer):
    def told(lines):
        said = [line["message"] for line in lines]
        text = "".join([each["content"] for each in said])
        calls = [call["function"] for each in said for call in each.get("tool_calls", ())]
        tokens = [each["token"] for line in lines for each in line.get("logprobs", ())]
        return text, calls, tokens, lines[-1]["done_reason"], lines[-1]["eval_count"]

    stream = Lines("m", chat=True)
    lines = [stream.piece(piece, 0.0) for piece in pieces] + [stream.last(answer, 0.0)]
    assert [line["done"] for line in lines] == [False] * len(pieces) + [True]
    return told(lines), told([Lines("m", chat=True).last(answer, 0.0)])


class Backend:
    """A server whose one app answers so."""

    def __init__(self, pieces, answer):
        self.pieces, self.answer = pieces, answer

    async def apps(self):
        return {"m": {"pieces": True, "inputs": {}}}

    async def infer(self, *asked):
        return self.answer

    async def stream(self, *asked):
        for each in (*self.pieces, self.answer):
            yield each


def of_triton(pieces, answer):
    async def asked():
        service = OpenInference(Backend(pieces, answer))
        request = InferRequest("m", "", "", [], {"triton_enable_empty_final_response": True}, None)
        return [each async for each in service.stream(request)], await service.infer(request)

    responses, whole = asyncio.run(asked())
    assert [each.parameters["triton_final_response"] for each in responses] == [False] * len(pieces) + [True]
    found, expected = (
        "".join([output.value for each in told for output in each.outputs if output.name == "text"])
        for told in (responses, [whole])
    )
    return found, expected


@pytest.mark.parametrize("asked", [of_chat, of_prompts, of_responses, of_ollama, of_triton])
@given(drawn=answers())
def test_the_pieces_together_are_the_whole(asked, drawn):
    found, whole = asked(*drawn)
    assert found == whole


def test_a_call_says_so_and_one_whose_arguments_are_none_is_no_call_without_them():
    answer = Answer({"text": "", "tool_calls": '[{"name": "f", "arguments": "{broken"}]'}, breakdown_ms=LEFT)
    assert Completion("id", "m", 0).whole([answer])["choices"][0]["finish_reason"] == "tool_calls"
    with pytest.raises(Failed, match="no JSON object"):
        Lines("m", chat=True).last(answer, 0.0)


def by_openai(calls, results):
    said = [{"id": name, "function": {"name": name, "arguments": "{}"}} for name in calls]
    told = [{"role": "tool", "tool_call_id": name, "content": name} for name in results]
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": said}, *told]
    return chat.read_request(
        {"model": "m", "messages": [*messages, {"role": "user", "content": "y"}]}, {"messages": TEXT}
    )


def by_responses(calls, results):
    said = [{"type": "function_call", "call_id": name, "name": name, "arguments": "{}"} for name in calls]
    told = [{"type": "function_call_output", "call_id": name, "output": name} for name in results]
    begin, end = {"role": "user", "content": "x"}, {"role": "user", "content": "y"}
    return read_response({"model": "m", "input": [begin, *said, *told, end]}, {"messages": TEXT})


def by_ollama(calls, results):
    said = [{"id": name, "function": {"name": name, "arguments": {"x": "\u00e9"}}} for name in calls]
    told = [{"role": "tool", "tool_call_id": name, "content": name} for name in results]
    begin, end = {"role": "user", "content": "x"}, {"role": "user", "content": "y"}
    messages = [begin, {"role": "assistant", "content": "", "tool_calls": said}, *told, end]
    return chat.read_request(chat_body({"model": "m", "messages": messages}), {"messages": TEXT})


@pytest.mark.parametrize("asked", [by_openai, by_responses, by_ollama])
def test_results_stand_in_the_order_of_their_calls_and_name_them(asked):
    for results in itertools.permutations("abc"):
        (inputs,) = asked("abc", results).asks
        told = json.loads(inputs["messages"])
        assert [each["content"] for each in told] == ["x", "", "a", "b", "c", "y"]
        assert [each.get("tool_call_id") for each in told[2:5]] == ["a", "b", "c"]


def test_a_result_of_ollama_keeps_the_name_of_its_function():
    body = {"model": "m", "messages": [{"role": "tool", "tool_name": "f", "content": "1"}]}
    (inputs,) = chat.read_request(chat_body(body), {"messages": TEXT}).asks
    assert json.loads(inputs["messages"]) == [{"role": "tool", "content": "1", "name": "f"}]
