"""An answer that a server writes: what arrived of it, and its stream."""

from __future__ import annotations

import threading
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np

from edgeserve.engines.base import Written
from edgeserve.engines.lm.generation import answer_of, told_chances
from edgeserve.engines.lm.server_stream import ServerStream
from edgeserve.errors import EngineError
from edgeserve.units import counted

EVENTS_MORE = 16
"""Events of an answer beside those of its tokens: its role, its calls' names, its end."""

ANOTHER = "asked again for an answer that it had begun, the server wrote another one"


class RemoteAnswer:
    """The state of an answer: what was asked, what arrived, and its stream while there is one. ``is_full``: the server
    wrote more than ``max_tokens``, so the answer ends with what came before. A released answer is
    asked for again; so is one that came through pickle. Its methods raise :class:`EngineError` where the server writes
    another text then: what was sent of the first is no part of it."""

    def __init__(self, path: str, body: Dict[str, Any]) -> None:
        self.path = path
        self.body = body
        self.text = ""
        self.steps = 0
        self.reason = ""
        self.is_full = False
        self._pieces = self._events = 0  # of this stream, with what is passed over
        self._calls: Dict[int, Dict[str, str]] = {}
        self._chances: Optional[List[Mapping[str, Any]]] = [] if "logprobs" in body else None
        self._waiting: List[Mapping[str, Any]] = []  # of tokens that end inside a character: its text comes later
        self._counts: Optional[Tuple[int, int, int]] = None  # tokens of the prompt, the answer, and from memory
        self.stream: Optional[ServerStream] = None
        self._passed_over = ""
        self._growing = threading.Lock()

    def took(self, event: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
        """An event arrived: the new piece of the answer, empty for one of a call, ``None`` where there is none."""
        with self._growing:
            self._counts = _counts_in(event.get("usage")) or self._counts
            choices = event.get("choices") or []
            if not choices:
                return None
            self._events += 1
            choice = choices[0]
            self.reason = choice.get("finish_reason") or self.reason
            delta = choice.get("delta") or {}
            calls = delta.get("tool_calls") or ()
            for call in calls:
                self._called(call)
            text = _whole(choice.get("text") or delta.get("content") or "")
            self._pieces += bool(text)
            most = int(self.body.get("max_tokens", self._pieces))
            if self._pieces > most or self._events > most + EVENTS_MORE:  # a piece has a token at least
                self.is_full, self.reason = True, "length"
                return None
            self._waiting += _chances_in(choice.get("logprobs") or {})
            if not text:
                return {} if calls else None
            chances, self._waiting = self._waiting, []
            return self._added(text, chances)

    def _called(self, call: Mapping[str, Any]) -> None:
        known = self._calls.setdefault(int(call.get("index", 0)), {"name": "", "arguments": ""})
        for key in known:
            known[key] += _whole(str((call.get("function") or {}).get(key) or ""))

    def _added(self, text: str, chances: List[Mapping[str, Any]]) -> Optional[Dict[str, Any]]:
        """The part of ``text`` that was not sent before the answer was asked for again."""
        old = min(len(text), len(self._passed_over))
        if old and text[:old] != self._passed_over[:old]:
            raise EngineError(ANOTHER)
        self._passed_over, text = self._passed_over[old:], text[old:]
        if not text:
            return None
        self.steps += 1
        self.text += text
        if self._chances is not None:
            self._chances += chances
        return {
            "text": text,
            "tokens": np.zeros(0, np.int32),
            **told_chances(None if self._chances is None else chances),
        }

    def outputs(self) -> Dict[str, Any]:
        """The outputs of the finished answer."""
        if self._passed_over:
            raise EngineError(ANOTHER)
        with self._growing:
            return self._as_it_is(self.reason or "stop")

    def written(self) -> Optional[Written]:
        with self._growing:
            if not self.text:
                return None
            return Written(self._as_it_is("length"), counted(self.steps, "piece"))

    def _as_it_is(self, reason: str) -> Dict[str, Any]:
        return answer_of(
            self.text,
            [],
            reason,
            *(self._counts or (0, self.steps, 0)),
            [self._calls[place] for place in sorted(self._calls)],
            self._chances,
        )

    def release(self) -> None:
        """End the stream. Idempotent, on any thread."""
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.close()

    def begin_again(self) -> None:
        """The next stream begins at the beginning: what was sent is passed over."""
        self._passed_over, self._calls, self._waiting = self.text, {}, []
        self._pieces = self._events = 0

    def __del__(self) -> None:
        self.release()

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "stream": None, "_growing": None}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._growing = threading.Lock()


def _whole(text: str) -> str:
    """The text without halves of characters, which cannot travel."""
    return text.encode(errors="replace").decode()


def _chances_in(said: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    """Probabilities with an object per token; vLLM's completions have lists, in the older form."""
    tokens, chances = said.get("tokens") or [], said.get("token_logprobs") or []
    likely = said.get("top_logprobs") or [{}] * len(tokens)
    listed = [
        {"token": token, "logprob": chance, "top_logprobs": [{"token": each, "logprob": top[each]} for each in top]}
        for token, chance, top in zip(tokens, chances, likely)
    ]
    return list(said.get("content") or listed)


def _counts_in(usage: Optional[Mapping[str, Any]]) -> Optional[Tuple[int, int, int]]:
    if not usage:
        return None
    details = usage.get("prompt_tokens_details") or {}
    written, cached = usage.get("completion_tokens") or 0, details.get("cached_tokens") or 0
    return int(usage.get("prompt_tokens") or 0), int(written), int(cached)
