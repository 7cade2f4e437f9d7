"""Forms of answers that are expensive to compile or to follow delay only the requests that have them."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from typing import Any, Dict

import pytest

from edgeserve.client import Client
from edgeserve.config.loading import parse_config
from edgeserve.errors import RequestError
from edgeserve.runtime import Runtime

pytest.importorskip("llguidance", reason="llguidance has no wheel for this Python")

import lm_models

SECONDS = 1.0
SENDERS = 3


def schema(number: int, about: Dict[str, Any]) -> str:
    about = {"title": str(number), **about}  # none is the one before
    return json.dumps({"type": "json_schema", "json_schema": {"name": "x", "schema": about}})


def nested(number: int) -> str:
    depth = 400
    about = '{"type":"array","items":' * depth + '{"type":"integer"}' + "}" * depth
    return f'{{"type":"json_schema","json_schema":{{"name":"x{number}","schema":{about}}}}}'


def ambiguous(number: int) -> str:
    return json.dumps({"type": "grammar", "grammar": f'start: e\ne: e e | e e e | /./ | "{number}x"'})


HARD: Any = {
    "55 kB of names": lambda number: schema(number, {"properties": {f"{i:x}": {} for i in range(5000)}}),
    "one number": lambda number: schema(number, {"type": "integer", "multipleOf": 999983}),
    "nested arrays": nested,
    "an ambiguous grammar": ambiguous,
}


@pytest.mark.parametrize("kind", sorted(HARD))
def test_who_asks_for_hard_forms_delays_nobody_else(kind: str, tmp_path: Any) -> None:
    lm_models.tiny(str(tmp_path))
    config = {
        "server": {"endpoint": f"ipc://{tmp_path}/bus"},
        "model": {"tiny": {"engine": "lm", "file": "tiny.onnx", "batch": [1, 2, 4]}},
        "app": {"chat": {"model": "tiny", "slo": "5s"}},
    }
    ends: Counter[str] = Counter()
    with Runtime(parse_config(config, directory=str(tmp_path)), serve=True) as runtime:
        over = threading.Event()

        def send(first: int) -> None:
            with Client(runtime.endpoints[0]) as client:
                number = first
                while not over.is_set():
                    number += SENDERS
                    asked = {"prompt": "lamp", "max_tokens": 300, "response_format": HARD[kind](number)}
                    try:
                        answer = client.infer("chat", asked)
                        ends["cut" if answer.late else "answered"] += 1
                    except RequestError as error:
                        ends[error.code] += 1

        senders = [threading.Thread(target=send, args=(first,)) for first in range(SENDERS)]
        for sender in senders:
            sender.start()
        took = []
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            began = time.monotonic()
            answer = runtime.infer("chat", {"prompt": "lamp", "max_tokens": 40, "ignore_eos": True})
            took.append(time.monotonic() - began)
            assert answer["completion_tokens"] == 40 and not answer.late
        over.set()
        for sender in senders:
            sender.join(30)
    assert max(took) < 3.0 and sum(ends.values()) >= SENDERS, (took, ends)
    assert set(ends) <= {"bad_input", "rejected", "cut", "answered"}, ends
