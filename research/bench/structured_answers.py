"""Whether answers keep the form that was asked for, and what holding them to it costs: schemas, and calls of functions.

    python research/bench/structured_answers.py [--count 200] [--model cache:...] [--json FILE]

The chat example's model (135 million parameters: without a constraint it hardly keeps any form) answers questions of
``research/common/prompts.py`` with a JSON schema each, drawn (objects of texts, numbers, choices and lists), one half
greedily and one half drawn at temperature 1; and is to call one of two functions. An answer counts when it was ended by
its form within ``--tokens`` tokens and fits, checked here without the library that constrained it. The cost is the
processor time of the lane's thread within the library, beside all that the thread takes for the same answers.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

from common.prompts import prompts
from lib.checks import Checks

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo
from edgeserve.engines.lm.constraint import Constraint

MODEL = "cache:smollm2-135m-onnx/smollm2.onnx"
TOGETHER = 8
WORDS = ("name", "place", "kind", "size", "reason", "colour")


def schema_of(draw: random.Random) -> Dict[str, Any]:
    """An object with two to four parts, each bounded, so that an answer has an end."""
    kinds = (
        lambda: {"type": "string", "maxLength": 24},
        lambda: {"type": "integer", "minimum": 0, "maximum": draw.choice((9, 120, 5000))},
        lambda: {"type": "boolean"},
        lambda: {"enum": draw.sample(["red", "green", "blue", "small", "large"], 3)},
        lambda: {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 1, "maxItems": 3},
    )
    names = draw.sample(WORDS, draw.randint(2, 4))
    parts = {name: draw.choice(kinds)() for name in names}
    return {"type": "object", "properties": parts, "required": names, "additionalProperties": False}


def fits(value: Any, schema: Dict[str, Any]) -> bool:
    """Whether a value fits a schema of :func:`schema_of`."""
    if "enum" in schema:
        return value in schema["enum"]
    kind = schema["type"]
    if kind == "object":
        parts = schema["properties"]
        return (
            isinstance(value, dict)
            and set(value) == set(parts)
            and all(fits(value[name], parts[name]) for name in parts)
        )
    if kind == "array":
        return isinstance(value, list) and 1 <= len(value) <= 3 and all(fits(each, schema["items"]) for each in value)
    if kind == "string":
        return isinstance(value, str) and len(value) <= schema["maxLength"]
    if kind == "integer":
        return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
    return isinstance(value, bool)


LAMP = {
    "type": "object",
    "properties": {"room": {"enum": ["kitchen", "hall", "bedroom"]}, "on": {"type": "boolean"}},
    "required": ["room", "on"],
    "additionalProperties": False,
}
ASK = {
    "type": "object",
    "properties": {"topic": {"type": "string", "maxLength": 24}},
    "required": ["topic"],
    "additionalProperties": False,
}
SCHEMAS = {"set_lamp": LAMP, "look_up": ASK}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]


class Meter:
    """The thread's time within constraints, and how many tokens they were asked about."""

    def __init__(self) -> None:
        self.taken_s, self.tokens = 0.0, 0

    def listen(self) -> None:
        """Count every constraint of this process from now on."""
        for name in ("allowed", "took"):
            setattr(Constraint, name, self._timed(getattr(Constraint, name), name))

    def _timed(self, method: Any, name: str) -> Any:
        def timed(*given: Any) -> Any:
            begun = time.thread_time()
            try:
                return method(*given)
            finally:
                self.taken_s += time.thread_time() - begun
                self.tokens += name == "allowed"

        return timed


def main() -> int:
    """0 when every answer fits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=200, help="of an answer")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    lane = LaneInfo(threads=args.threads, name="cpu0")
    options = {"context": 1024, "max_tokens": args.tokens}
    model = ModelConfig(name="chat", engine="lm", file=args.model, batch=(1, TOGETHER), slots=TOGETHER, options=options)
    engine = make_engine(model, [lane], os.getcwd())
    engine.load()
    session = engine.open(lane)
    draw = random.Random(args.seed)
    questions = [prompt.text for prompt in prompts(args.count)]
    asked: List[Tuple[Dict[str, Any], Any]] = []
    for number, question in enumerate(questions):
        base = {"messages": [{"role": "user", "content": question}], "temperature": number % 2, "seed": number}
        schema = schema_of(draw)
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        asked.append(({**base, "response_format": form}, schema))
        asked.append(({**base, "tools": TOOLS, "tool_choice": "required"}, None))
    meter = Meter()
    meter.listen()
    right = {"schema": 0, "call": 0}
    turns, begun = 0, time.thread_time()
    for place in range(0, len(asked), TOGETHER):
        group = asked[place : place + TOGETHER]
        results = session.launch(Batch([item for item, _ in group], len(group), ())).result()
        turns += max(result.turns for result in results)
        for result, (_, schema) in zip(results, group):
            right["call" if schema is None else "schema"] += _is_right(result, schema)
        print(f"{place + len(group)} of {len(asked)}", end="\r", flush=True)
    whole_s = time.thread_time() - begun
    checks = Checks("research/bench/structured_answers.py")
    checks.at_least(f"answers of {args.count} that fit their schema", right["schema"], args.count)
    checks.at_least(f"calls of {args.count} with arguments that fit", right["call"], args.count)
    checks.at_most("of the lane's processor time for constraints", meter.taken_s / whole_s, 0.1)
    figures = {
        "us_per_token": round(1e6 * meter.taken_s / meter.tokens, 1),
        "tokens": meter.tokens,
        "turns": turns,
        "lane_thread_s": round(whole_s, 1),
    }
    print(f"{figures['us_per_token']} us per token, {meter.tokens} tokens in {turns} turns")
    return checks.finish(args.json, {"model": args.model, "threads": args.threads, "seed": args.seed}, figures=figures)


def _is_right(result: Any, schema: Any) -> bool:
    outputs = result.outputs
    if result.error is not None:
        return False
    if schema is not None:
        return outputs["finish_reason"] == "stop" and fits(json.loads(outputs["text"]), schema)
    if outputs["finish_reason"] != "tool_calls":
        return False
    (call,) = json.loads(outputs["tool_calls"])
    return fits(json.loads(call["arguments"]), SCHEMAS[call["name"]])


if __name__ == "__main__":
    sys.exit(main())
