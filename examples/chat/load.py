"""The hub's clients: people who ask for long answers, switches that want one word, and rooms whose sound is heard.

    python examples/chat/load.py                            # against a running server
    python examples/chat/load.py --compare rtlm:fifo,plan   # in this process: the same arrivals under each policy

First one long question and, while it is answered, ten short ones. Then ``--seconds`` of mixed questions that arrive
whether or not earlier ones were answered. Prints mean and 95th percentile of response times, by kind, and the share of
the sound's frames that were answered in time. ``--record FILE`` writes what ``edgeserve profile --fit`` learns from.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
import wave
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

import edgeserve
from edgeserve.config.files import resolve_path
from edgeserve.config.loading import parse_config
from edgeserve.config.toml_files import read_toml
from edgeserve.errors import Dropped, Rejected, RequestError

HERE = os.path.dirname(os.path.abspath(__file__))
SPEECH = "cache:pyannote.audio-3.3.2/speech.wav"
FRAME, CONTEXT, RATE = 512, 64, 16000
FRAME_S = FRAME / RATE
FRAME_SLO_S = 0.06
SHORT_BESIDE = 10
LONG_TOKENS = 160

LONG = (
    "Why is the sky blue?",
    "Tell me about the history of bread.",
    "How does a heat pump work?",
    "Explain how plants make sugar from light.",
    "What should I cook with rice, beans and tomatoes?",
    "Write a short story about a lighthouse.",
    "What are the causes of inflation?",
    "Give me advice for growing tomatoes on a balcony.",
)
BRIEF = ("What is the capital of France?", "What is two plus three?", "Who wrote Hamlet?", "How many days has a week?")
SAID = (
    ("I can't see anything, make some light.", "light"),
    ("Play my favourite song.", "music"),
    ("Turn the heating down.", "heating"),
    ("Open the blinds in the bedroom.", "blinds"),
    ("Turn off the lamp on the desk.", "light"),
    ("Be quiet, no more music.", "music"),
    ("I am freezing.", "heating"),
    ("Close the shutters.", "blinds"),
)


class Question(NamedTuple):
    """``kind`` "long" or "short", sent ``at_s`` after the start to ``app`` with ``inputs``; ``thing`` is the right
    answer of an intent."""

    at_s: float
    kind: str
    app: str
    inputs: Dict[str, Any]
    thing: str = ""


class Times:
    """Response times by kind, what was lost, intents that were found, frames in time, and lengths for ``--record``."""

    def __init__(self) -> None:
        self.seconds: Dict[str, List[float]] = {"long": [], "short": []}
        self.lost: Dict[str, int] = {}
        self.intents = self.right = 0
        self.recorded: List[Dict[str, Any]] = []
        self.frames_sent = self.frames_in_time = 0

    def lose(self, app: str, error: RequestError) -> None:
        """Count a request without an answer."""
        why = f"{app} {error.code}" + (f" ({error.reason})" if isinstance(error, (Dropped, Rejected)) else "")
        self.lost[why] = self.lost.get(why, 0) + 1

    def line(self, kind: str) -> str:
        """Mean and 95th percentile of one kind."""
        times = self.seconds[kind]
        if not times:
            return f"{kind}: none answered"
        return f"{kind}: {len(times)} answered, mean {np.mean(times):.2f} s, p95 {np.percentile(times, 95):.2f} s"


# --- questions --------------------------------------------------------------------------------------------------------


def long_question(at_s: float, number: int) -> Question:
    """An open question, whose answer goes on until the bound."""
    return Question(at_s, "long", "assistant", {"prompt": LONG[number % len(LONG)], "max_tokens": LONG_TOKENS})


def short_question(at_s: float, number: int) -> Question:
    """An intent, or every third time a question with a brief answer."""
    if number % 3 == 2:
        return Question(at_s, "short", "assistant", {"prompt": BRIEF[number // 3 % len(BRIEF)], "max_tokens": 16})
    said, thing = SAID[number % len(SAID)]
    return Question(at_s, "short", "intents", {"said": said}, thing)


def mixed(seconds: float, rate: float, long_share: float, seed: int) -> List[Question]:
    """Poisson arrivals at ``rate`` a second; the same for the same seed."""
    draw = random.Random(seed)
    questions: List[Question] = []
    at_s = draw.expovariate(rate)
    while at_s < seconds:
        make = long_question if draw.random() < long_share else short_question
        questions.append(make(at_s, len(questions)))
        at_s += draw.expovariate(rate)
    return questions


async def ask(bus: Any, question: Question, start_s: float, times: Times) -> None:
    """Wait for the question's time, then for its answer."""
    await asyncio.sleep(max(0.0, start_s + question.at_s - time.monotonic()))
    asked_s = time.monotonic()
    try:
        answer = await bus.infer(question.app, question.inputs, timeout_ms=120_000)
    except RequestError as error:
        times.lose(question.app, error)
        return
    times.seconds[question.kind].append(time.monotonic() - asked_s)
    if question.thing:
        times.intents += 1
        times.right += answer["thing"] == question.thing
        return
    tokens = int(answer["completion_tokens"])
    times.recorded.append({"text": question.inputs["prompt"], "tokens": tokens})


async def ask_all(bus: Any, questions: Sequence[Question], times: Times) -> None:
    """All questions, each at its time."""
    start_s = time.monotonic()
    await asyncio.gather(*(ask(bus, question, start_s, times) for question in questions))


# --- sound ------------------------------------------------------------------------------------------------------------


def sound() -> np.ndarray:
    """The recording in -1..1."""
    with wave.open(resolve_path(SPEECH, "")) as file:
        return np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768


async def room(bus: Any, number: int, work: asyncio.Future[Any], times: Times) -> None:
    """Send a room's sound in real time until the questions are answered. A frame is in time when its answer is here
    60 ms after it was due to be sent, so that a client which is held up itself counts, too."""
    samples = np.concatenate([np.zeros(CONTEXT, np.float32), sound()])
    frames = (len(samples) - CONTEXT) // FRAME
    first = number * frames // 3

    async def send(frame: int, due_s: float) -> None:
        window = samples[frame * FRAME : (frame + 1) * FRAME + CONTEXT]
        times.frames_sent += 1
        try:
            await bus.infer("ears", {"input": window}, stream=f"room {number}")
        except RequestError as error:
            times.lose("ears", error)
            return
        times.frames_in_time += time.monotonic() - due_s <= FRAME_SLO_S

    sent, count, start_s = [], 0, time.monotonic()
    while not work.done():
        due_s = start_s + count * FRAME_S
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        sent.append(asyncio.ensure_future(send((first + count) % frames, due_s)))
        count += 1
    await asyncio.gather(*sent)


# --- all of it --------------------------------------------------------------------------------------------------------


async def beside_one_long(bus: Any, rooms: int, times: Times) -> None:
    """One long question, and ten short ones half a second later."""
    questions = [long_question(0.0, 0)] + [short_question(0.5, number) for number in range(SHORT_BESIDE)]
    await with_rooms(bus, questions, rooms, times)


async def with_rooms(bus: Any, questions: Sequence[Question], rooms: int, times: Times) -> None:
    """The questions while rooms are heard."""
    work = asyncio.ensure_future(ask_all(bus, questions, times))
    await asyncio.gather(work, *(room(bus, number, work, times) for number in range(rooms)))


async def load(bus: Any, args: argparse.Namespace, name: str) -> Times:
    """Both parts, and the sound before by itself; prints what came of them. Returns the times of the last."""
    await ask_all(bus, [short_question(0.0, 0), short_question(0.0, 2)], Times())  # first runs are slower
    if args.rooms and args.alone:
        silence = Times()
        work = asyncio.ensure_future(asyncio.sleep(args.alone))
        await asyncio.gather(work, *(room(bus, number, work, silence) for number in range(args.rooms)))
        report(f"{name}: no question is asked", silence)
    beside = Times()
    await beside_one_long(bus, args.rooms, beside)
    report(f"{name}: one long answer, ten short ones after half a second", beside)
    times = Times()
    questions = mixed(args.seconds, args.rate, args.long_share, args.seed)
    start_s = time.monotonic()
    await with_rooms(bus, questions, args.rooms, times)
    took_s = time.monotonic() - start_s
    report(f"{name}: {len(questions)} questions in {args.seconds:g} s, all answered after {took_s:.1f} s", times)
    return times


def report(title: str, times: Times) -> None:
    """Print one part."""
    print(title)
    for kind in ("short", "long") if times.seconds["short"] or times.seconds["long"] else ():
        print(f"  {times.line(kind)}")
    if times.frames_sent:
        share = times.frames_in_time / times.frames_sent
        print(f"  sound: {times.frames_sent} frames, {share:.1%} answered within {FRAME_SLO_S * 1000:.0f} ms")
    if times.intents:
        print(f"  intents: {times.right} of {times.intents} name the right thing")
    if times.lost:
        print("  lost: " + ", ".join(f"{count} {why}" for why, count in sorted(times.lost.items())))


async def against_server(args: argparse.Namespace) -> List[Times]:
    """The load on a running server."""
    async with edgeserve.AsyncClient(args.endpoint or None) as bus:
        return [await load(bus, args, "server")]


async def compare(args: argparse.Namespace) -> List[Times]:
    """The load on a runtime in this process, once for each policy of the language model."""
    done = []
    for name in args.compare.split(","):
        kind, _, method = name.partition(":")
        table = read_toml(args.config)
        if kind != "plan":  # that is the policy of apps that name none, and serves the ears in each case
            table["policy"] = {"words": {"kind": kind, "method": method} if method else {"kind": kind}}
            for app in table["app"]:
                table["app"][app]["policy"] = "plan" if app == "ears" else "words"
        if args.one_lane:
            chat = table["model"]["chat"]
            table["model"]["voice"]["lanes"] = chat["lanes"]
            chat["options"]["turn"] = args.turn
            chat["batch"] = [size for size in chat["batch"] if size <= args.together]
            del table["lane"]["cpu1"]
        if args.model:
            table["model"]["chat"]["file"] = args.model
        async with edgeserve.AsyncRuntime(parse_config(table, os.path.dirname(args.config))) as runtime:
            done.append(await load(runtime, args, name))
    return done


def main(argv: Optional[Sequence[str]] = None) -> int:
    """0 when most questions were answered."""
    parser = argparse.ArgumentParser(description="Ask the hub many things at once.")
    parser.add_argument("--endpoint", default="", help="where the server listens (default: this user's own bus)")
    parser.add_argument(
        "--compare",
        default="",
        metavar="KINDS",
        help="policies, such as rtlm:fifo,plan (kind, or kind:method); needs no server",
    )
    parser.add_argument("--one-lane", action="store_true", help="with --compare: voices on the language model's lane")
    parser.add_argument(
        "--turn",
        default="20ms",
        help="with --one-lane: how long reading prompts may take before the lane can serve others",
    )
    parser.add_argument("--together", type=int, default=4, help="with --one-lane: answers that make steps together")
    parser.add_argument("--model", default="", help="with --compare: another file of the language model")
    parser.add_argument("--config", default=os.path.join(HERE, "edge.toml"), help="what --compare serves")
    parser.add_argument("--seconds", type=float, default=20.0, help="of mixed questions")
    parser.add_argument("--rate", type=float, default=2.0, help="questions a second")
    parser.add_argument("--long-share", type=float, default=0.25, help="of the questions that are long")
    parser.add_argument("--alone", type=float, default=0.0, help="seconds of sound alone, before")
    parser.add_argument("--rooms", type=int, default=2, help="streams of sound")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", default="", metavar="FILE", help="append prompts and their numbers of tokens")
    args = parser.parse_args(argv)
    args.config = os.path.abspath(args.config)
    done = asyncio.run(compare(args) if args.compare else against_server(args))
    if args.record:
        with open(args.record, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(entry) + "\n" for times in done for entry in times.recorded)
    return 0 if all(len(times.seconds["short"]) > sum(times.lost.values()) for times in done) else 1


if __name__ == "__main__":
    sys.exit(main())
