"""Answers of an app that writes text, as OpenAI's clients read them: whole or in pieces, and errors.

Such an app answers ``text``, and optionally ``prompt_tokens``, ``completion_tokens`` (or ``tokens``: how many, or
which), ``cached_tokens``, ``finish_reason``, ``tool_calls`` (JSON text of a list of objects with ``name`` and
``arguments``) and ``logprobs`` (JSON text of a list with an object per token, as OpenAI has them).
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np

from edgeserve.answers import Answer
from edgeserve.errors import Failed
from edgeserve.front import rest_of
from edgeserve.fronts.http.failures import details_of, message_of, status_of


class _Choice:
    """The part of one choice that was sent."""

    __slots__ = ("text", "chances", "place", "begun")

    def __init__(self) -> None:
        self.text = ""
        self.chances = 0  # tokens whose probabilities were sent
        self.place = 0  # where the next of them begins: its text may come in a later piece
        self.begun = False


class Completion:
    """The answer to one request, in the protocol's words. ``created_s`` is the time of day, ``n`` the choices per
    prompt. ``chat``: choices are messages; else plain texts, as of ``/v1/completions``."""

    def __init__(self, request_id: str, model: str, created_s: int, n: int = 1, chat: bool = True) -> None:
        self._head = {"id": request_id, "created": created_s, "model": model}
        self._n = n
        self._chat = chat
        self._choices: Dict[int, _Choice] = defaultdict(_Choice)
        self._usages: Dict[int, Dict[str, Any]] = {}

    def whole(self, answers: Sequence[Answer]) -> Dict[str, Any]:
        """The completion of a request's answers, one per choice."""
        for index, answer in enumerate(answers):
            self._usages[index] = usage_of(answer.outputs)
        return {
            **self._head,
            "object": "chat.completion" if self._chat else "text_completion",
            "usage": self._usage(),
            "edgeserve": about_answers(answers),
            "choices": [self._whole(index, answer.outputs) for index, answer in enumerate(answers)],
        }

    def _whole(self, index: int, outputs: Mapping[str, Any]) -> Dict[str, Any]:
        text = text_of(outputs)
        said: Dict[str, Any] = {"text": text}
        if self._chat:
            calls = self._calls(outputs)
            message: Dict[str, Any] = {"role": "assistant", "content": text or None if calls else text, "refusal": None}
            said = {"message": {**message, "tool_calls": calls} if calls else message}
        chances = self._chances(index, outputs, whole=True)
        return {"index": index, **said, "finish_reason": finish_of(outputs), "logprobs": chances}

    def piece(self, index: int, outputs: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
        """A chunk with the text of a piece; None for one with nothing in it."""
        text, chances = text_of(outputs), self._chances(index, outputs, whole=False)
        if not text and not chances:
            return None
        self._choices[index].text += text
        return self._chunk(index, {"content": text}, chances=chances)

    def last(self, index: int, outputs: Mapping[str, Any]) -> List[Dict[str, Any]]:
        """The chunks that end a choice: what of the whole text no piece had, and why it ended."""
        self._usages[index] = usage_of(outputs)
        choice, text, chunks = self._choices[index], text_of(outputs), []
        chances = self._chances(index, outputs, whole=True)
        rest = rest_of(text, choice.text)
        if rest or chances or not choice.begun:
            chunks.append(self._chunk(index, {"content": rest}, chances=chances))
        calls = self._calls(outputs) if self._chat else []
        if calls:
            delta = {"tool_calls": [{"index": place, **call} for place, call in enumerate(calls)]}
            chunks.append(self._chunk(index, delta))
        chunks.append(self._chunk(index, {}, finish_of(outputs)))
        return chunks

    def ended(self, index: int, answer: Answer) -> List[Dict[str, Any]]:
        """The last events of a choice, as :meth:`last`; a late answer, or one that is not whole, is marked so."""
        chunks = self.last(index, answer.outputs)
        chunks[-1].update(marks_of(answer))
        return chunks

    def counts(self) -> Dict[str, Any]:
        """The last chunk of a stream that asked for counts."""
        return {**self._head, "object": self._piece_object, "choices": [], "usage": self._usage()}

    @property
    def _piece_object(self) -> str:
        return "chat.completion.chunk" if self._chat else "text_completion"

    def _usage(self) -> Dict[str, Any]:
        """The counts of all choices; a prompt is counted once."""
        total: Dict[str, Any] = {}
        for index, usage in sorted(self._usages.items()):
            if not total:
                total = dict(usage)
                continue
            prompt = usage["prompt_tokens"] if index % self._n == 0 else 0
            total["prompt_tokens"] += prompt
            total["completion_tokens"] += usage["completion_tokens"]
            total["total_tokens"] += prompt + usage["completion_tokens"]
        return total

    def _calls(self, outputs: Mapping[str, Any]) -> List[Dict[str, Any]]:
        """The calls of an answer, each with a number of its own."""
        head = self._head["id"]
        return [
            {"id": f"call_{head}_{place}", "type": "function", "function": call}
            for place, call in enumerate(calls_of(outputs))
        ]

    def _chances(self, index: int, outputs: Mapping[str, Any], whole: bool) -> Optional[Dict[str, Any]]:
        """The probabilities of the tokens that were not told yet; None where there are none. ``whole``: the outputs
        are those of the whole answer, not of a piece."""
        entries = objects_of(outputs, "logprobs", "token", *(() if self._chat else ("logprob", "top_logprobs")))
        choice = self._choices[index]
        entries = entries[choice.chances :] if whole else entries
        choice.chances += len(entries)
        if not entries:
            return None
        if self._chat:
            return {"content": entries, "refusal": None}
        listed = _listed(entries, choice.place)
        choice.place += sum([len(token) for token in listed["tokens"]])
        return listed

    def _chunk(
        self,
        index: int,
        delta: Dict[str, Any],
        finish: Optional[str] = None,
        chances: Optional[Mapping[str, Any]] = None,
    ) -> Dict[str, Any]:
        choice = self._choices[index]
        said: Dict[str, Any] = {"text": delta.get("content", "")}
        if self._chat:
            said = {"delta": delta if choice.begun else {"role": "assistant", **delta}}
        choice.begun = True
        shown = {"index": index, **said, "finish_reason": finish, "logprobs": chances}
        return {**self._head, "object": self._piece_object, "choices": [shown]}


def about_answers(answers: Sequence[Answer]) -> Dict[str, Any]:
    """Facts that OpenAI's form has no field for: whether an answer is late, and why one is not whole."""
    reasons = [answer.reason for answer in answers if answer.reason]
    return {"late": any(answer.late for answer in answers), **({"reason": "; ".join(reasons)} if reasons else {})}


def marks_of(answer: Answer) -> Dict[str, Any]:
    """What the last event of an answer says besides: that it is late, or not whole and why."""
    return {"edgeserve": about_answers([answer])} if answer.late or answer.reason else {}


def _listed(entries: Sequence[Mapping[str, Any]], place: int) -> Dict[str, Any]:
    """Probabilities in the older form of ``/v1/completions``; so many characters are in the tokens before."""
    offsets = []
    try:
        for entry in entries:
            offsets.append(place)
            place += len(entry["token"])
        return {
            "tokens": [entry["token"] for entry in entries],
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": [{each["token"]: each["logprob"] for each in entry["top_logprobs"]} for entry in entries],
            "text_offset": offsets,
        }
    except (TypeError, KeyError) as error:
        raise Failed(f"the app's output 'logprobs' is none of OpenAI's form: {error!r}") from None


def calls_of(outputs: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """The functions that an answer calls: ``name``, and ``arguments`` as JSON text."""
    calls = objects_of(outputs, "tool_calls", "name", "arguments")
    return [
        call
        if isinstance(call["arguments"], str)
        else {**call, "arguments": json.dumps(call["arguments"], ensure_ascii=False)}
        for call in calls
    ]


def objects_of(outputs: Mapping[str, Any], name: str, *keys: str) -> List[Dict[str, Any]]:
    """An output that is the JSON text of a list of objects with these keys; none where there is no such output. Raises
    :class:`Failed` for anything else: an app may answer what it likes."""
    text = outputs.get(name)
    if text is None or isinstance(text, str) and not text:
        return []
    try:
        found = json.loads(text)
        if isinstance(found, list) and all(isinstance(each, dict) and each.keys() >= {*keys} for each in found):
            return found
    except (TypeError, ValueError, RecursionError):
        pass
    raise Failed(f"the app's output {name!r} is no JSON list of objects with {', '.join(keys)}: {str(text)[:80]!r}")


def text_of(outputs: Mapping[str, Any]) -> str:
    """The text of an answer or a piece. Raises :class:`Failed` where the app answers something else."""
    text = outputs.get("text", "")
    if isinstance(text, str):
        return text
    if isinstance(text, np.ndarray) and text.dtype.kind in "OU" and all(isinstance(part, str) for part in text.flat):
        return "".join(text.flat)
    raise Failed(f"the app's output 'text' is {type(text).__name__}; expected text")


def finish_of(outputs: Mapping[str, Any]) -> str:
    """The reason why the text ended: what the app says, else ``tool_calls`` or ``stop``."""
    reason = outputs.get("finish_reason")
    return reason if isinstance(reason, str) and reason else "tool_calls" if calls_of(outputs) else "stop"


def usage_of(outputs: Mapping[str, Any]) -> Dict[str, Any]:
    """Counts of tokens; 0 where the app does not tell them. Of the prompt's, how many were in memory already, where it
    tells that."""
    prompt = count_of(outputs.get("prompt_tokens"))
    completion = count_of(outputs.get("completion_tokens", outputs.get("tokens")))
    usage: Dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if "cached_tokens" in outputs:
        usage["prompt_tokens_details"] = {"cached_tokens": count_of(outputs["cached_tokens"])}
    return usage


def count_of(tokens: Any) -> int:
    """The number of tokens, given as a number or as a list of tokens; 0 of anything else."""
    array = np.asarray(0 if tokens is None or isinstance(tokens, str) else tokens)
    try:
        return int(array.size) if array.ndim else int(array)
    except (TypeError, ValueError, OverflowError):
        return 0


def error_body(error: BaseException) -> Dict[str, Any]:
    """An error as OpenAI's clients read it."""
    status, details = status_of(error), details_of(error)
    kind = (
        "invalid_request_error"
        if status < 500 and status not in (401, 429)
        else {401: "authentication_error", 429: "rate_limit_error"}.get(status, "server_error")
    )
    return {"error": {"message": message_of(error), "type": kind, "param": getattr(error, "param", None), **details}}
