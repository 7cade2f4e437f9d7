"""A language model and a voice detector on one lane: how many 32 ms frames are in time while the model is saturated.

In virtual time, so that what else a machine does is not in it: the real scheduler and the real loop of steps, with a
back end that computes nothing and takes as long as SmolLM2 was measured to (docs/research/language-models.md). Twelve
clients always wait for an answer, two rooms send sound. *Whole prompts* is how prompts were read before turns were
bounded. With the auction, words and voices have a policy each; without, one policy serves both.
"""

from __future__ import annotations

import heapq
import itertools
import random
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from edgeserve.config.loading import parse_config
from edgeserve.engines.base import ANSWERED, Batch, BatchControl, Result, release_state
from edgeserve.engines.lm.backend import ModelFacts, TokenRow
from edgeserve.engines.lm.constraint import Grammars
from edgeserve.engines.lm.generation import Generation
from edgeserve.engines.lm.prefixes import Prefixes
from edgeserve.engines.lm.sampling import Sampling
from edgeserve.engines.lm.slots import Slots
from edgeserve.engines.lm.step_loop import Language, StepLoop
from edgeserve.engines.lm.turns import tokens_within
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.protocol.actions import CutBatch, FinishRequest, ReleaseState, RunBatch
from edgeserve.sched.protocol.events import BatchProgress, JobResult, Request, RequestArrived, WorkFinished

MS = 10**6
FRAME_NS, SLO_NS, VOICE_NS = 32 * MS, 60 * MS, 1 * MS
ROOMS, CLIENTS, SLOTS = 2, 12, 8
TOKEN_BYTES, CONTEXT = 46_080, 1024
FACTS = ModelFacts(CONTEXT, 256, TOKEN_BYTES, 0)

STEPS_MS = {
    "float32": (19.6, 24.0, 23.7, 29.1, 30.5, 33.7, 41.0, 37.7),
    "int8": (9.9, 13.9, 13.4, 15.9, 17.4, 20.9, 21.2, 23.8),
}
READ_32_MS = {"float32": 60.6, "int8": 43.9}
"""CPU milliseconds of a step by number of sequences, and of reading 32 tokens, on one thread
(docs/research/language-models.md)."""


class Case(NamedTuple):
    """``weights``, the sequences that make steps together, the tokens that a turn reads (0: whole prompts), and whether
    words and voices have a policy each."""

    weights: str
    together: int
    turn_ns: int
    auction: bool

    @property
    def name(self) -> str:
        how = f"turns of {self.turn_ns // MS} ms" if self.turn_ns else "whole prompts"
        return f"{self.weights}, {self.together} together, {how}, {'auction' if self.auction else 'one policy'}"


class TimedBackend:
    """A session that only takes time: ``clock.now_ns`` moves."""

    def __init__(self, clock: Any, weights: str) -> None:
        self.slots, self.mixes, self.turn_ns_max = SLOTS, False, 0
        self._clock = clock
        self._steps_ms = STEPS_MS[weights]
        self._token_ms = (READ_32_MS[weights] - self._steps_ms[0]) / 31

    def prefill(self, rows: Sequence[TokenRow]) -> List[np.ndarray]:
        begun = [row for row in rows if row.start]
        fresh = [row for row in rows if not row.start]
        runs = [len(row.tokens) for row in begun]
        if fresh:
            runs.append(len(fresh) * max([len(row.tokens) for row in fresh]))
        return self._took(rows, sum([self._steps_ms[0] + self._token_ms * (count - 1) for count in runs]))

    def decode(self, rows: Sequence[TokenRow]) -> List[np.ndarray]:
        return self._took(rows, self._steps_ms[len(rows) - 1])

    def _took(self, rows: Sequence[TokenRow], ms: float) -> List[np.ndarray]:
        self._clock.now_ns += round(ms * MS)
        self.turn_ns_max = max(self.turn_ns_max, round(ms * MS))
        return [np.zeros(2, np.float32) for _ in rows]

    def free(self, slot: int) -> None:
        pass

    def lost(self) -> bool:
        return False

    def close(self) -> None:
        pass


class Letters:
    """A tokenizer whose every token is a letter."""

    first, last, stops, special_texts, chat_template = (), (), (), (), ""

    def encode(self, text: str, special: bool = False) -> List[int]:
        return [0] * len(text)

    def piece(self, token: int, begins: bool = False) -> bytes:
        return b"x"


class Reads:
    """Items are (tokens of the prompt, tokens of the answer)."""

    def read(self, item: Any) -> Generation:
        return Generation((0,) * item["prompt"], Sampling(), item["steps"], (), True, 1)


class World(BatchControl):
    """One lane in virtual time, and its clients. Also the control of the batch that runs: each look at ``stop`` lets
    the scheduler hear what has arrived until then."""

    def __init__(self, case: Case, seed: int, config: Any = None) -> None:
        self.now_ns = 0
        self._draw = random.Random(f"{seed}/{case.weights}")
        self._ids = itertools.count(1)
        self._arrivals: List[Tuple[int, int, Request]] = []
        self._items: Dict[int, Dict[str, int]] = {}
        self._states: Dict[int, Any] = {}
        self._sent: Dict[int, Request] = {}
        self._works: List[RunBatch] = []
        self._running: RunBatch | None = None
        self._cut: set[int] = set()
        self.ended: List[Tuple[Request, FinishRequest, int]] = []
        self.backend = TimedBackend(self, case.weights)
        tokens = tokens_within(self.backend, case.turn_ns, 512, FACTS, lambda: self.now_ns) if case.turn_ns else 0
        self.backend.turn_ns_max = self.now_ns = 0
        self.turn_tokens = tokens
        self._loop = StepLoop(
            Language(
                "chat",
                Letters(),
                Grammars("chat", Letters(), 1),
                Reads(),  # type: ignore[arg-type]
                TOKEN_BYTES,
                "",
                tokens,
            ),
            Slots(self.backend, Prefixes(0)),
        )
        self.scheduler = build_scheduler(
            config or config_of(case), sequences={"chat": (CONTEXT, TOKEN_BYTES, SLOTS, tokens)}
        )

    # --- the control --------------------------------------------------------------------------------------------------

    def emit(self, index: int, result: Result) -> None:
        if result.done and self._running is not None:
            job = self._running.jobs[index]
            self._tell(
                BatchProgress(
                    self._running.work_id, self.now_ns, (JobResult(job, steps=result.steps, turns=result.turns),)
                )
            )

    @property
    def stop(self) -> bool:
        self._hear()
        return self._running is not None and self._running.work_id in self._cut

    def dropped(self, index: int) -> bool:
        return False

    # --- time ---------------------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Clients ask and rooms send for so long; what is open then is left."""
        until_ns = round(seconds * 1e9)
        for room in range(ROOMS):
            for frame in range(until_ns // FRAME_NS):
                self._arrive(
                    "ears", frame * FRAME_NS + room * 13 * MS, SLO_NS, priority_class="critical", stream=f"room {room}"
                )
        for _ in range(CLIENTS):
            self._ask(self._draw.randrange(500) * MS)
        self.go_on(until_ns)

    def go_on(self, until_ns: int) -> None:
        """Until then, or until nothing is left to happen."""
        while self.now_ns < until_ns:
            self._hear()
            if self._works:
                self._perform(self._works.pop(0))
                continue
            wake_ns = self.scheduler.wake_ns
            times = [at for at in (self._arrivals[0][0] if self._arrivals else None, wake_ns) if at is not None]
            if not times:
                return
            self.now_ns = max(self.now_ns, min(times))
            self._tell()

    def _answered(self, request: Request) -> None:
        """The client sends its next request."""
        if request.app == "assistant":
            self._ask(self.now_ns + 10 * MS)

    def _ask(self, at_ns: int) -> None:
        """A client's next question: every third is long, others want a word after a long prompt."""
        long = self._draw.random() < 1 / 3
        prompt, steps = (30, 160) if long else (170, 3)
        self.ask(at_ns, prompt, steps)

    def ask(self, at_ns: int, prompt: int, steps: int) -> None:
        """A question of so many tokens, whose answer has so many."""
        number = self._arrive(
            "assistant", at_ns, 600 * 10**9, on_late="answer", hints={"tokens": float(prompt), "steps": float(steps)}
        )
        self._items[number] = {"prompt": prompt, "steps": steps}

    def _arrive(self, app: str, at_ns: int, slo_ns: int, **more: Any) -> int:
        request = Request(next(self._ids), app, at_ns, at_ns + slo_ns, **more)
        heapq.heappush(self._arrivals, (at_ns, request.id, request))
        return request.id

    def _hear(self) -> None:
        while self._arrivals and self._arrivals[0][0] <= self.now_ns:
            request = heapq.heappop(self._arrivals)[2]
            self._sent[request.id] = request
            self._tell(RequestArrived(request))

    def _tell(self, *events: Any) -> None:
        for action in self.scheduler.step(self.now_ns, events):
            if isinstance(action, RunBatch):
                self._works.append(action)
            elif isinstance(action, CutBatch):
                self._cut.add(action.work_id)
            elif isinstance(action, ReleaseState):
                release_state(self._states.get(action.job.request_id))
            elif isinstance(action, FinishRequest):
                request = self._sent.pop(action.request_id)
                self._states.pop(request.id, None)
                self.ended.append((request, action, self.now_ns))
                self._answered(request)

    def _perform(self, action: RunBatch) -> None:
        begun_ns, self._running = self.now_ns, action
        if action.model == "voice":
            self.now_ns += VOICE_NS
            results = tuple(JobResult(job) for job in action.jobs)
        else:
            batch = Batch(
                [self._items[job.request_id] for job in action.jobs],
                action.size,
                [self._states.get(job.request_id) for job in action.jobs],
                action.steps_max,
                control=self,
            )
            left = []
            for job, result in zip(action.jobs, self._loop.run(batch)):
                if result is not ANSWERED:
                    self._states[job.request_id] = result.state
                    left.append(
                        JobResult(
                            job, "unfinished", state_bytes=result.state_bytes, steps=result.steps, turns=result.turns
                        )
                    )
            results = tuple(left)
        self._running = None
        self._tell(WorkFinished(action.work_id, begun_ns, self.now_ns, results))


def config_of(case: Case) -> Any:
    """Words and voices on one lane."""
    sizes = [size for size in (1, 2, 4, 8) if size <= case.together]
    expected = {str(size): f"{STEPS_MS[case.weights][size - 1]}ms" for size in sizes}
    policies = {"words": {"kind": "plan"}, **({"voices": {"kind": "edf"}} if case.auction else {})}
    return parse_config(
        {
            "lane": {"cpu0": {}},
            "policy": policies,
            "model": {
                "chat": {"engine": "synthetic", "batch": sizes, "expected": expected, "slots": SLOTS},
                "voice": {"engine": "synthetic", "batch": [1, 2], "expected": {"1": "1ms", "2": "1ms"}},
            },
            "app": {
                "assistant": {"model": "chat", "policy": "words", "slo": "600s", "on_late": "answer"},
                "ears": {
                    "model": "voice",
                    "policy": "voices" if case.auction else "words",
                    "class": "critical",
                    "slo": "60ms",
                    "stream": "in_order",
                },
            },
        }
    )


def measure(case: Case, seconds: float, seed: int) -> Dict[str, float]:
    """One case: shares of frames in time and refused, answers, and the longest turn."""
    world = World(case, seed)
    world.run(seconds)
    frames = [(request, end, at_ns) for request, end, at_ns in world.ended if request.app == "ears"]
    in_time = [end.outcome == "completed" and at_ns <= request.deadline_ns for request, end, at_ns in frames]
    answers = [(at_ns - request.arrival_ns) / 1e9 for request, _, at_ns in world.ended if request.app == "assistant"]
    return {
        "frames": len(frames),
        "in_time": sum(in_time) / max(1, len(frames)),
        "turn_tokens": world.turn_tokens,
        "turn_ms_max": world.backend.turn_ns_max / MS,
        "answers_per_s": len(answers) / seconds,
        "answer_mean_s": float(np.mean(answers)) if answers else 0.0,
    }
