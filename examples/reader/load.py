"""The reader demo's clients: pages to be read and voices to be listened to, at the same time, over the bus.

Pages are asked for in a closed loop (a new one as soon as one is answered); sound comes in real time, a frame of 32 ms
per stream whether or not the last one was answered. Prints each text as it comes, then a table per app.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
import struct
import sys
import time
import wave
from collections import Counter, defaultdict
from typing import Any, Coroutine, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import cv2
import numpy as np
from rich.console import Console
from rich.table import Table

import edgeserve
from edgeserve.commands.console import PlainConsole
from edgeserve.config.files import resolve_path
from edgeserve.errors import DeadlineExpired, Dropped, Rejected, RequestError

PAGE = "cache:scikit-image-0.26.0/page.png"
SPEECH = "cache:pyannote.audio-3.3.2/speech.wav"
SPEECH_NOTES = "cache:pyannote.audio-3.3.2/speech.rttm"

FRAME = 512  # samples, 32 ms at 16 kHz
CONTEXT = 64  # samples of the frame before, which the network wants to see again
FRAME_S = FRAME / 16000

LONGER_S_MAX = 30.0  # a busy or slow machine may take this much longer to read every page once
AGREE_MIN = 0.85  # it was 0.97 on an idle machine; saying "voice" all the time would be right in 0.75

REFUSALS = (Rejected, Dropped, DeadlineExpired)
"""What a server answers instead of an answer that would be late. All other errors are failures."""

NOTICE = ["Gate 4 is closed today.", "Parcels go to the office", "behind the main building."]
NOTE = ["Back at three"]


class Page(NamedTuple):
    """A page to send, and words that a right reading has in this order (spaces and case do not count)."""

    name: str
    image: np.ndarray
    words: Tuple[str, ...]


class Tally:
    """What became of one app's requests, as the client saw it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sent = 0
        self.late = 0
        self.times_ms: List[float] = []  # of the answers
        self.breakdown_ms: Dict[str, float] = Counter()
        self.refused: Dict[str, List[float]] = defaultdict(list)  # what happened and why -> ms until its client knew
        self.failed: Dict[str, List[float]] = defaultdict(list)
        self.words: Dict[str, str] = {}

    def answered(self, answer: Any, time_ms: float) -> None:
        self.late += answer.late
        self.times_ms.append(time_ms)
        for key, value in answer.breakdown_ms.items():
            self.breakdown_ms[key] += value

    def not_answered(self, error: RequestError, time_ms: float) -> None:
        """Counted by what happened and why; the words of the first of each kind are kept."""
        why = f"{error.code} ({error.reason})" if isinstance(error, (Rejected, Dropped)) else error.code
        (self.refused if isinstance(error, REFUSALS) else self.failed)[why].append(time_ms)
        self.words.setdefault(why, str(error))

    def row(self) -> List[str]:
        finished = len(self.times_ms)
        refused, failed = sum(self.refused.values(), []), sum(self.failed.values(), [])
        spent = [self.breakdown_ms[key] / max(1, finished) for key in ("queue", "batch", "execute")]
        return [
            self.name,
            *(str(count) for count in (self.sent, finished, self.late, len(refused), len(failed))),
            *(shown_ms(self.times_ms, share) for share in (50, 99)),
            shown_ms(refused, 50),
            *(shown_ms([mean_ms] if finished else [], 50) for mean_ms in spent),
        ]


def shown_ms(times_ms: Sequence[float], percent: float) -> str:
    """The time within which so many of a hundred were."""
    if not times_ms:
        return "-"
    time_ms = float(np.percentile(times_ms, percent))
    return f"{time_ms:.0f}" if time_ms >= 100 else f"{time_ms:.1f}"


# --- pages ------------------------------------------------------------------------------------------------------------


def pages() -> List[Page]:
    """A photographed book page, the same upside down, and two drawn notes: seven, seven, three and one line."""
    with open(resolve_path(PAGE, ""), "rb") as file:
        book = without_profile(file.read())
    pixels = cv2.imdecode(book, cv2.IMREAD_COLOR)
    words = ("Region-based segmentation", "histogram of grey values")
    return [
        Page("a book page", book, words),
        Page("a drawn notice", encoded(drawn(NOTICE)), tuple(NOTICE)),
        Page("the book page, upside down", encoded(np.ascontiguousarray(pixels[::-1, ::-1])), words),
        Page("a drawn note", encoded(drawn(NOTE)), tuple(NOTE)),
    ]


def drawn(lines: Sequence[str]) -> np.ndarray:
    """Black text on white."""
    page = np.full((60 * len(lines) + 40, 560, 3), 255, np.uint8)
    for row, line in enumerate(lines):
        cv2.putText(page, line, (30, 60 + 60 * row), cv2.FONT_HERSHEY_SIMPLEX, 1.1, (0, 0, 0), 2, cv2.LINE_AA)
    return page


def encoded(pixels: np.ndarray) -> np.ndarray:
    """The bytes of a PNG file."""
    return np.asarray(cv2.imencode(".png", pixels)[1]).reshape(-1)


def without_profile(png: bytes) -> np.ndarray:
    """A PNG file without its colour profile: the book page's is faulty, and the decoder would complain each time."""
    kept, at = [png[:8]], 8
    while at < len(png):
        length = struct.unpack(">I", png[at : at + 4])[0]
        if png[at + 4 : at + 8] != b"iCCP":
            kept.append(png[at : at + 12 + length])
        at += 12 + length
    return np.frombuffer(b"".join(kept), np.uint8)


def letters(text: str) -> str:
    """What counts when a reading is compared: the network often loses a space."""
    return "".join(character for character in text.lower() if character.isalnum())


def reads(text: str, words: Sequence[str]) -> bool:
    """Whether a text has all these words, in this order."""
    rest = letters(text)
    for wanted in map(letters, words):
        _, found, rest = rest.partition(wanted)
        if not found:
            return False
    return True


async def read_pages(
    bus: Any,
    tally: Tally,
    pages: Sequence[Page],
    turns: Iterator[Page],
    until_s: float,
    console: Console,
    read: Set[str],
) -> None:
    """Ask for one page after the other until the time is up and each was read right, or really too much time has
    passed; ``read`` collects the names of those read right."""
    for page in turns:
        now_s = time.monotonic()
        if now_s >= until_s and (len(read) == len(pages) or now_s >= until_s + LONGER_S_MAX):
            return
        answer, time_ms = await ask(bus, tally, "reader", {"image": page.image})
        if answer is None:
            continue
        text = answer["text"]
        if page.name not in read:
            console.print(f"\n[bold]{page.name}[/bold], read in {time_ms:.0f} ms")
            console.print("\n".join(f"    {line}" for line in text.split("\n")), markup=False, highlight=False)
        if reads(text, page.words):
            read.add(page.name)


# --- voices -----------------------------------------------------------------------------------------------------------


def sound() -> Tuple[np.ndarray, np.ndarray]:
    """The recording in -1..1, and for each frame whether its publisher's notes say that a person speaks."""
    with wave.open(resolve_path(SPEECH, "")) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768
    spoken = np.zeros(len(samples) // FRAME, bool)
    middles_s = (np.arange(len(spoken)) + 0.5) * FRAME_S
    with open(resolve_path(SPEECH_NOTES, ""), encoding="utf-8") as notes:
        for line in notes:
            start_s, length_s = (float(word) for word in line.split()[3:5])
            spoken |= (middles_s >= start_s) & (middles_s < start_s + length_s)
    return samples, spoken


async def listen(bus: Any, tally: Tally, stream: str, first: int, seconds: float) -> List[Tuple[int, bool]]:
    """Send the recording from frame ``first`` on, in real time; (frame, was a voice heard) for each answer."""
    samples, spoken = sound()
    samples = np.concatenate([np.zeros(CONTEXT, np.float32), samples])
    heard: List[Tuple[int, bool]] = []

    async def send(frame: int) -> None:
        window = samples[frame * FRAME : (frame + 1) * FRAME + CONTEXT]
        answer, _ = await ask(bus, tally, "ears", {"input": window}, stream=stream)
        if answer is not None:
            heard.append((frame, bool(answer["output"][0] > 0.5)))

    sent = []
    start_s = time.monotonic()
    for count in range(int(seconds / FRAME_S)):
        await asyncio.sleep(max(0.0, start_s + count * FRAME_S - time.monotonic()))
        sent.append(asyncio.ensure_future(send((first + count) % len(spoken))))
    await asyncio.gather(*sent)
    return heard


async def ask(
    bus: Any, tally: Tally, app: str, inputs: Dict[str, np.ndarray], stream: Optional[str] = None
) -> Tuple[Any, float]:
    """One request: the answer or ``None``, and the milliseconds until then, counted."""
    tally.sent += 1
    start_s = time.monotonic()
    try:
        answer = await bus.infer(app, inputs, stream=stream)
    except RequestError as error:
        time_ms = (time.monotonic() - start_s) * 1000
        tally.not_answered(error, time_ms)
        return None, time_ms
    time_ms = (time.monotonic() - start_s) * 1000
    tally.answered(answer, time_ms)
    return answer, time_ms


# --- both -------------------------------------------------------------------------------------------------------------


async def run(endpoint: Optional[str], seconds: float, streams: int, in_flight: int, console: Console) -> int:
    """The whole load; 0 when every page was read right at least once and voices were heard where there are some."""
    reader, ears = Tally("reader"), Tally("ears")
    read: Set[str] = set()
    wanted = pages()
    turns = itertools.cycle(wanted)
    _, spoken = sound()
    async with edgeserve.AsyncClient(endpoint) as bus:
        until_s = time.monotonic() + seconds
        results = await asyncio.gather(
            *(read_pages(bus, reader, wanted, turns, until_s, console, read) for _ in range(in_flight)),
            *(
                listen(bus, ears, f"room {number + 1}", number * len(spoken) // streams, seconds)
                for number in range(streams)
            ),
        )
    heard = [item for result in results[in_flight:] for item in result]
    agree = sum(voice == spoken[frame] for frame, voice in heard) / max(1, len(heard))
    console.print(
        f"\n{streams} streams of sound: {len(heard)} frames answered; where a voice is, the network and the "
        f"notes of the recording's publisher agree on {agree:.1%} of them\n",
        highlight=False,
    )
    console.print(table([reader, ears]))
    for tally in (reader, ears):
        for why, told_ms in sorted({**tally.refused, **tally.failed}.items()):
            console.print(
                f"{tally.name}: {len(told_ms)} {why}, told after {shown_ms(told_ms, 50)} ms "
                f"({shown_ms(told_ms, 100)} at worst), such as: {tally.words[why]}",
                highlight=False,
                markup=False,
            )
    unread = [page.name for page in wanted if page.name not in read]
    if unread:
        console.print(f"not read right: {', '.join(unread)}", highlight=False)
    return 0 if not unread and agree >= AGREE_MIN else 1


def run_interruptible(work: Coroutine[Any, Any, int]) -> int:
    """``work``, cancelled in good order by Ctrl-C, also by one that comes while asyncio sets up its loop.

    What asyncio does by itself differs between versions of Python, and none of them takes a ``KeyboardInterrupt`` in
    the middle of making a loop. Raises ``CancelledError`` when it was interrupted.
    """
    early: List[int] = []

    async def cancellable() -> int:
        task = asyncio.ensure_future(work)
        asyncio.get_event_loop().add_signal_handler(signal.SIGINT, task.cancel)  # removed when the loop closes
        if early:
            task.cancel()
        return await task

    before = signal.signal(signal.SIGINT, lambda number, frame: early.append(number))
    try:
        return asyncio.run(cancellable())
    finally:
        signal.signal(signal.SIGINT, before)


def table(tallies: Sequence[Tally]) -> Table:
    """A row per app; where the time went is the mean over the answers, in milliseconds."""
    shown = Table(
        "app",
        "sent",
        "done",
        "late",
        "refused",
        "failed",
        "p50",
        "p99",
        "told",
        "queue",
        "batch",
        "run",
        padding=0,  # 80 columns in all
        caption="ms at the client: p50 and p99 of the answers; told: p50 of the refusals; queue to run: "
        "where an answer's time went, mean ms along its last branch",
    )
    for column in shown.columns[1:]:
        column.justify = "right"
    for tally in tallies:
        shown.add_row(*tally.row())
    return shown


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Load a running server."""
    parser = argparse.ArgumentParser(description="Send the reader demo's pages and sound to a running server.")
    parser.add_argument("--endpoint", default="", help="where the server listens (default: this user's own bus)")
    parser.add_argument("--seconds", type=float, default=12.0, help="how long to send (default: 12)")
    parser.add_argument("--streams", type=int, default=4, help="streams of sound at a time (default: 4)")
    parser.add_argument("--in-flight", type=int, default=2, help="pages asked for at a time (default: 2)")
    args = parser.parse_args(argv)
    console = PlainConsole()
    work = run(args.endpoint or None, args.seconds, args.streams, args.in_flight, console)
    try:
        return run_interruptible(work)
    except asyncio.CancelledError:
        console.print("\ninterrupted")
        return 130


if __name__ == "__main__":
    sys.exit(main())
