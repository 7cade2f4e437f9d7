"""The promise, shown: twice the pages that the machine can read, once through a plain queue and once scheduled.

    python examples/reader/overload.py

Serves ``edge.toml`` twice, one after the other: with every app first come, first served and nothing given up, and with
the default policy. Both get the same pages at the same times, each page with a deadline. Prints
what was answered in time, late, and refused, and how long each sender waited for it, as a table and second by second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from load import REFUSALS, Page, pages, run_interruptible
from rich.console import Console
from rich.table import Table

import edgeserve
from edgeserve.config.loading import parse_config
from edgeserve.config.schema import Config
from edgeserve.errors import RequestError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
WAYS = {"plain queue": {"kind": "fifo"}, "scheduled": {"kind": "plan"}}
"""Name of a way to serve -> the policy of every app."""

OVERLOAD = 2.0  # times what the machine reads in a closed loop
SLO_PAGES = 4  # a page must be back within the time of so many
IN_FLIGHT = 3
READY_S_MAX = 120.0
SEED = 7
BAR = 24  # characters of the longest bar


class Ending(NamedTuple):
    """How one page ended: when it was sent, in seconds from the beginning, and one of ``FATES``; ``told_ms`` is how
    long its sender waited for the answer or for the refusal."""

    sent_s: float
    fate: str
    told_ms: float


FATES = ("in time", "late", "refused")
TOLD = {"answered after": ("in time", "late"), "refused after": ("refused",)}


def config_of(way: str, endpoint: str) -> Config:
    """``edge.toml`` with the policy of ``way`` for all its apps."""
    with open(os.path.join(HERE, "edge.toml"), "rb") as file:
        table: Dict[str, Any] = tomllib.load(file)
    table["server"] = {"endpoint": endpoint}
    table["policy"] = {"way": WAYS[way]}
    for app in table["app"].values():
        app["policy"] = "way"
    table["app"]["reader"].update(pending_max=4096, on_late="answer" if way == "plain queue" else "drop")
    return parse_config(table, HERE, "edge.toml")


@contextlib.contextmanager
def served(way: str) -> Iterator[str]:
    """A server in a process of its own; yields its endpoint once it is ready."""
    with tempfile.TemporaryDirectory(prefix="edgeserve-overload-") as folder:
        endpoint = f"ipc://{folder}/bus"
        with open(os.path.join(folder, "log"), "w+b") as log:
            server = subprocess.Popen(
                [sys.executable, os.path.abspath(__file__), "--serve", way, endpoint],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                if not wait_until_ready(server, endpoint):
                    log.seek(0)
                    raise RuntimeError(f"the server did not get ready. It said:\n{log.read().decode(errors='replace')}")
                yield endpoint
            finally:
                server.terminate()
                try:
                    server.wait(15)
                except subprocess.TimeoutExpired:
                    server.kill()
                    server.wait()


def wait_until_ready(server: subprocess.Popen, endpoint: str) -> bool:  # type: ignore[type-arg]
    end_s = time.monotonic() + READY_S_MAX
    while time.monotonic() < end_s and server.poll() is None:
        try:
            with edgeserve.Client(endpoint, timeout_ms=1000, connect_ms=1000) as bus:
                if bus.health()["ready"]:
                    return True
        except RequestError:
            time.sleep(0.1)
    return False


# --- load -------------------------------------------------------------------------------------------------------------


async def capacity(bus: Any, wanted: Sequence[Page], seconds: float) -> float:
    """Pages a second that are read when a new one is asked for as soon as one is answered."""
    done = 0
    end_s = time.monotonic() + seconds

    async def one_after_the_other(number: int) -> None:
        nonlocal done
        while time.monotonic() < end_s:
            await bus.infer("reader", {"image": wanted[(done + number) % len(wanted)].image}, on_late="answer")
            done += 1

    began_s = time.monotonic()
    await asyncio.gather(*(one_after_the_other(number) for number in range(IN_FLIGHT)))
    return done / (time.monotonic() - began_s)


async def overload(bus: Any, wanted: Sequence[Page], rate: float, slo_ms: float, seconds: float) -> List[Ending]:
    """Pages at drawn times, each with its deadline, independent of the pages before."""
    draw = random.Random(SEED)
    plan: List[Tuple[float, Page]] = []
    at_s = 0.0
    while True:
        at_s += draw.expovariate(rate)
        if at_s >= seconds:
            break
        plan.append((at_s, wanted[len(plan) % len(wanted)]))
    began_s = time.monotonic()

    async def ask(sent_s: float, page: Page) -> Ending:
        asked_s = time.monotonic()
        try:
            answer = await bus.infer("reader", {"image": page.image}, slo_ms=slo_ms, timeout_ms=120_000)
            fate = "late" if answer.late else "in time"
        except REFUSALS:
            fate = "refused"
        return Ending(sent_s, fate, (time.monotonic() - asked_s) * 1000)

    asked = []
    for sent_s, page in plan:
        await asyncio.sleep(max(0.0, began_s + sent_s - time.monotonic()))
        asked.append(asyncio.ensure_future(ask(sent_s, page)))
    return list(await asyncio.gather(*asked))


# --- what it shows ----------------------------------------------------------------------------------------------------


def table(found: Dict[str, List[Ending]], console: Console) -> None:
    """A row per way."""
    shown = Table("", "pages", *FATES, *TOLD, padding=0, caption="after: half of them within, (all of them within)")
    for column in shown.columns[1:]:
        column.justify = "right"
    for way, endings in found.items():
        counts = [sum(ending.fate == fate for ending in endings) for fate in FATES]
        shown.add_row(
            way,
            str(len(endings)),
            *(f"{count} ({count / max(1, len(endings)):.0%})" for count in counts),
            *(waited([ending.told_ms for ending in endings if ending.fate in fates]) for fates in TOLD.values()),
        )
    console.print(shown)


def waited(told_ms: Sequence[float]) -> str:
    """The median, and the longest."""
    told_s = sorted(each_ms / 1000 for each_ms in told_ms)
    return f"{told_s[len(told_s) // 2]:.2f} ({told_s[-1]:.2f}) s" if told_s else "-"


def bars(found: Dict[str, List[Ending]], seconds: float, console: Console) -> None:
    """Pages sent in each second: '#' in time, '-' late, '.' refused."""
    counts = {(way, second, fate): 0 for way in found for second in range(int(seconds)) for fate in FATES}
    for way, endings in found.items():
        for ending in endings:
            counts[way, min(int(ending.sent_s), int(seconds) - 1), ending.fate] += 1
    most = max([sum(counts[way, second, fate] for fate in FATES) for way, second, _ in counts], default=1)
    scale = min(1.0, BAR / max(1, most))
    console.print("sent in second   " + "".join(f"{way:<{BAR + 4}}" for way in found), highlight=False)
    for second in range(int(seconds)):
        cells = []
        for way in found:
            bar = "".join(sign * round(counts[way, second, fate] * scale) for sign, fate in zip("#-.", FATES))
            cells.append(f"{bar:<{BAR + 4}}")
        console.print(f"{second + 1:>14}   " + "".join(cells).rstrip(), markup=False, highlight=False)
    console.print("                 # in time   - late   . refused at once or given up", markup=False, highlight=False)


async def show(seconds: float, console: Console) -> int:
    """Measure, overload both servers, print; 0 when the scheduled one answered more pages in time."""
    wanted = pages()
    found: Dict[str, List[Ending]] = {}
    rate = slo_ms = 0.0
    for way in ("scheduled", "plain queue"):
        with served(way) as endpoint:
            async with edgeserve.AsyncClient(endpoint) as bus:
                if not rate:
                    own = await capacity(bus, wanted, 3.0)
                    rate, slo_ms = OVERLOAD * own, SLO_PAGES * 1000 / own
                    console.print(
                        f"\nthe machine reads {own:.1f} pages/s; now {rate:.1f} pages/s come for "
                        f"{seconds:.0f} s, each to be read within {slo_ms:.0f} ms",
                        highlight=False,
                    )
                found[way] = await overload(bus, wanted, rate, slo_ms, seconds)
    found = {way: found[way] for way in WAYS}
    table(found, console)
    bars(found, seconds, console)
    in_time = {way: sum(ending.fate == "in time" for ending in endings) for way, endings in found.items()}
    return 0 if in_time["scheduled"] > in_time["plain queue"] else 1


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Show it; the exit status is 1 when the scheduled server did no better."""
    parser = argparse.ArgumentParser(description="Twice as many pages as the machine can read, queued and scheduled.")
    parser.add_argument("--seconds", type=float, default=5.0, help="of overload for each way (default: 5)")
    parser.add_argument("--serve", nargs=2, metavar=("WAY", "ENDPOINT"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.serve:
        from edgeserve.server import serve

        return serve(config_of(*args.serve))
    console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 80)
    try:
        return run_interruptible(show(args.seconds, console))
    except asyncio.CancelledError:
        console.print("\ninterrupted")
        return 130
    except RequestError as error:
        console.print(f"\na page was neither answered nor refused: {error}", markup=False, highlight=False)
        return 1


if __name__ == "__main__":
    sys.exit(main())
