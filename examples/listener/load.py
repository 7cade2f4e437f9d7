"""The listener's clients: several rooms, each sending its last two seconds of sound again and again, in real time.

Prints how many looks were answered in time, which words were heard (none is said in this recording, so a word is a
false alarm), and where the time went. The exit status is 0 when most looks were answered and no word was heard.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import wave
from collections import Counter
from typing import Dict, List, Optional, Sequence

import numpy as np

import edgeserve
from edgeserve.config.files import resolve_path
from edgeserve.errors import Dropped, Rejected, RequestError

SPEECH = "cache:pyannote.audio-3.3.2/speech.wav"
SAMPLES = 31840  # of one look
RATE = 16000
ANSWERED_MIN = 0.5  # of the looks, on a machine that is overloaded too


def sound() -> np.ndarray:
    """The recording in the range of 16 bit integers."""
    with wave.open(resolve_path(SPEECH, "")) as file:
        return np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32)


async def room(
    bus: edgeserve.AsyncClient, number: int, seconds: float, every_s: float, ends: Counter, times_ms: List[float]
) -> None:
    """Look at the sound every so often, whether or not the last look was answered."""
    samples = sound()
    start_s = time.monotonic()

    async def look(index: int) -> None:
        first = (number * 3 * RATE + round(index * every_s * RATE)) % (len(samples) - SAMPLES)
        asked_s = time.monotonic()
        try:
            answer = await bus.infer("listener", {"sound": samples[first : first + SAMPLES]})
        except RequestError as error:
            ends[f"{error.code} ({error.reason})" if isinstance(error, (Rejected, Dropped)) else error.code] += 1
            return
        times_ms.append((time.monotonic() - asked_s) * 1000)
        ends[answer["word"] or "no word"] += 1

    looks = []
    for index in range(int(seconds / every_s)):
        await asyncio.sleep(max(0.0, start_s + index * every_s - time.monotonic()))
        looks.append(asyncio.ensure_future(look(index)))
    await asyncio.gather(*looks)


async def run(endpoint: Optional[str], rooms: int, seconds: float, every_s: float) -> int:
    """All rooms at once."""
    ends: Counter = Counter()
    times_ms: List[float] = []
    async with edgeserve.AsyncClient(endpoint) as bus:
        await asyncio.gather(*(room(bus, number, seconds, every_s, ends, times_ms) for number in range(rooms)))
    return report(dict(ends), times_ms)


def report(ends: Dict[str, int], times_ms: Sequence[float]) -> int:
    """Print what came of the looks; 0 when it is what this recording should give."""
    asked = sum(ends.values())
    p50, p99 = np.percentile(times_ms, [50, 99]) if times_ms else (float("nan"), float("nan"))
    print(f"{asked} looks, {len(times_ms)} answered, p50 {p50:.0f} ms, p99 {p99:.0f} ms")
    for what, count in sorted(ends.items()):
        print(f"  {what}: {count}")
    quiet = ends.get("no word", 0) == len(times_ms)
    return 0 if quiet and asked and len(times_ms) >= ANSWERED_MIN * asked else 1


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Load a running server."""
    parser = argparse.ArgumentParser(description="Send sound of several rooms to a running listener.")
    parser.add_argument("--endpoint", default="", help="where the server listens (default: this user's own bus)")
    parser.add_argument("--rooms", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--every-ms", type=float, default=250.0, help="a look of each room so often")
    args = parser.parse_args(argv)
    return asyncio.run(run(args.endpoint or None, args.rooms, args.seconds, args.every_ms / 1000))


if __name__ == "__main__":
    sys.exit(main())
