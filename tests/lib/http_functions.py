"""Host functions for the tests of the front."""

from __future__ import annotations

import json
from typing import Any, Dict

import numpy as np
from live_functions import GATE_S_MAX, entered, gate


def example_pair() -> Dict[str, Any]:
    return {"INPUT0": np.zeros((1, 16), np.int32), "INPUT1": np.zeros((1, 16), np.int32)}


def pair(item: Dict[str, Any]) -> Dict[str, Any]:
    """The computation of Triton's example model."""
    return {"OUTPUT0": item["INPUT0"] + item["INPUT1"], "OUTPUT1": item["INPUT0"] - item["INPUT1"]}


def example_text() -> Dict[str, Any]:
    return {"text": "x"}


def shout(item: Dict[str, Any]) -> Dict[str, Any]:
    return {"loud": item["text"].upper(), "words": item["text"].split()}


def example_image() -> Dict[str, Any]:
    return {"image": np.zeros((4, 6, 3), np.uint8)}


def colour(item: Dict[str, Any]) -> Dict[str, Any]:
    return {"mean": item["image"].mean(axis=(0, 1)).astype(np.float32)}


def example_chat() -> Dict[str, Any]:
    return {"messages": json.dumps([{"role": "user", "content": "hi"}])}


def chat(item: Dict[str, Any]) -> Dict[str, Any]:
    """Repeats the last message, at most ``max_tokens`` words of it. Waits at the gate when told to wait."""
    words = json.loads(item["messages"])[-1]["content"].split()
    if words == ["wait"]:
        entered.set()
        gate.wait(GATE_S_MAX)
    limit = int(item.get("max_tokens", 100))
    said = words[:limit]
    return {
        "text": " ".join(said),
        "tokens": np.int32(len(said)),
        "prompt_tokens": np.int32(len(words)),
        "finish_reason": "length" if len(words) > limit else "stop",
    }


def embed(item: Dict[str, Any]) -> Dict[str, Any]:
    """A vector that tells the text: its length and its first character."""
    text = item["text"]
    return {"embedding": np.float32([len(text), ord(text[:1] or " ")]), "prompt_tokens": np.int32(len(text.split()))}


def call_lamp(item: Dict[str, Any]) -> Dict[str, Any]:
    """Calls the first of the ``tools``, for the room that the last message names."""
    name = json.loads(item.get("tools", '[{"function": {"name": "none"}}]'))[0]["function"]["name"]
    room = json.loads(item["messages"])[-1]["content"]
    calls = [{"name": name, "arguments": json.dumps({"room": room})}]
    return {"text": "", "finish_reason": "tool_calls", "tool_calls": json.dumps(calls)}


def example_prompt() -> Dict[str, Any]:
    return {"prompt": "x"}


def exclaim(item: Dict[str, Any]) -> Dict[str, Any]:
    return {"text": item["prompt"] + "!"}


def recite(item: Dict[str, Any]) -> Dict[str, Any]:
    """The conversation, as it came."""
    return {"text": item.get("messages", "")}
