"""The first claim on a GPU: a runtime with deadlines beside a thread that runs all that waits in one batch, on the same
network and device. Closed loops, and loads around what the thread does at most, with a fifth of urgent requests."""

from __future__ import annotations

import queue
import random
import statistics
import threading
import time
from concurrent.futures import Future
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import numpy as np
import torch

from edgeserve import Runtime
from edgeserve.config.loading import parse_config
from edgeserve.errors import Rejected, RequestError
from lib.gpu_benches import SCRIPTS, SIZES, Resnet, items_of
from lib.lane_timing import Setting

LOOPS = (16, 32, 64)
LOADS = (0.7, 0.9, 1.2, 1.5)
URGENT_SHARE = 0.2
BATCHES_OF_TIME = 4
"""A deadline, in times of the largest batch."""

Ask = Callable[[Any, bool], "Future[Any]"]


class Ended(NamedTuple):
    """A request: whether it was urgent, how long it took, and whether it was accepted and answered."""

    urgent: bool
    took_s: float
    answered: bool
    accepted: bool


class Greedy:
    """A thread with a queue: all that waits runs together, up to the largest size."""

    def __init__(self, setting: Setting) -> None:
        self._device = torch.device("cuda", setting.index) if setting.kind == "cuda" else torch.device("cpu")
        self._network = Resnet().eval().to(self._device)
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def ask(self, image: Any, urgent: bool) -> Future[Any]:
        """The picture's answer."""
        future: Future[Any] = Future()
        self._waiting.put((image, future))
        return future

    def batch(self, images: Any) -> Any:
        """One batch, there and back."""
        with torch.inference_mode():
            return self._network(torch.from_numpy(np.stack(images)).to(self._device))["classes"].cpu().numpy()

    def close(self) -> None:
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            taken = [self._waiting.get()]
            while len(taken) < SIZES[-1] and not self._waiting.empty():
                taken.append(self._waiting.get())
            asked = [each for each in taken if each is not None]
            if asked:
                answers = self.batch([image for image, _ in asked])
                for (_, future), answer in zip(asked, answers):
                    future.set_result(answer)
            if None in taken:
                return


def serve(setting: Setting) -> Dict[str, Any]:
    """Answers in time by both, and what urgent requests and promises get."""
    images = [item["x"] for item in items_of(setting, 16)]
    greedy = Greedy(setting)
    for size in SIZES:
        largest_s = min(_took_s(lambda size=size: greedy.batch(images[:1] * size)) for _ in range(5))
    slo_s = max(0.02, BATCHES_OF_TIME * largest_s)
    seconds = 2.5 if setting.runs >= 100 else 0.4
    rows: List[Dict[str, Any]] = []
    try:
        with Runtime(_config(setting, slo_s)) as runtime:

            def ask(image: Any, urgent: bool) -> Any:
                return runtime.submit("urgent" if urgent else "usual", {"x": image})

            right = greedy.batch(images)
            wrong = sum(
                not np.allclose(runtime.infer("usual", {"x": image}, slo_ms=60_000)["classes"], answer, 0.02, 0.02)
                for image, answer in zip(images, right)
            )
            peak = 0.0
            for clients in LOOPS:
                mine, its = (_closed(one, images, clients, seconds) for one in (greedy.ask, ask))
                peak = max(peak, mine)
                rows.append({"load": f"{clients} in turn", "greedy_per_s": mine, "per_s": its, "ratio": its / mine})
            for load in LOADS:
                arrivals = _arrivals(load * peak, seconds)
                mine_, its_ = (_open(one, images, arrivals) for one in (greedy.ask, ask))
                rows.append({"load": f"{load:.0%} of its peak", **_compared(mine_, its_, slo_s, seconds)})
    finally:
        greedy.close()
    columns = ("load", "greedy_per_s", "per_s", "ratio", "urgent_in_time", "promises_kept")
    rows = [{name: row.get(name) for name in columns} for row in rows]
    return {"rows": rows, "wrong_answers": wrong, "slo_ms": 1e3 * slo_s}


def _config(setting: Setting, slo_s: float) -> Any:
    slo = f"{1e3 * slo_s:.0f}ms"
    return parse_config(
        {
            "device": {"here": {"kind": setting.kind}},
            "lane": {"lane": {"device": "here", "depth": 2 if setting.kind == "cuda" else 1}},
            "model": {
                "net": {
                    "engine": "torch",
                    "function": "lib.gpu_benches:Resnet",
                    "batch": list(SIZES),
                    "shapes": {"x": [3, setting.side, setting.side]},
                    "options": {"outputs": ["classes"]},
                }
            },
            "app": {
                "usual": {"model": "net", "slo": slo},
                "urgent": {"model": "net", "slo": slo, "class": "critical"},
            },
        },
        str(SCRIPTS),
    )


def _took_s(call: Callable[[], Any]) -> float:
    begun_s = time.monotonic()
    call()
    return time.monotonic() - begun_s


def _closed(ask: Ask, images: List[Any], clients: int, seconds: float) -> float:
    """Answers a second where each of so many clients asks again when it is answered."""
    done = [0] * clients
    until_s = time.monotonic() + seconds

    def client(number: int) -> None:
        while time.monotonic() < until_s:
            try:
                ask(images[number % len(images)], False).result()
                done[number] += 1
            except RequestError:
                pass

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / seconds


def _arrivals(per_s: float, seconds: float) -> List[Tuple[float, bool]]:
    draw, at_s, found = random.Random("serve"), 0.0, []
    while at_s < seconds:
        at_s += draw.expovariate(per_s)
        found.append((at_s, draw.random() < URGENT_SHARE))
    return found


def _open(ask: Ask, images: List[Any], arrivals: List[Tuple[float, bool]]) -> List[Ended]:
    """Send requests at these times, answered or not."""
    found: List[Ended] = []
    begun_s = time.monotonic()
    waiting = []

    def over(future: Future[Any], asked_s: float, urgent: bool) -> None:
        error = future.exception()
        found.append(Ended(urgent, time.monotonic() - asked_s, error is None, not isinstance(error, Rejected)))

    for number, (at_s, urgent) in enumerate(arrivals):
        time.sleep(max(0.0, begun_s + at_s - time.monotonic()))
        asked_s = time.monotonic()
        try:
            future = ask(images[number % len(images)], urgent)
        except RequestError:
            found.append(Ended(urgent, 0.0, False, False))
            continue
        future.add_done_callback(lambda future, asked_s=asked_s, urgent=urgent: over(future, asked_s, urgent))
        waiting.append(future)
    for future in waiting:
        try:
            future.result(60.0)
        except RequestError:
            pass
    return found


def _compared(greedy: List[Ended], ours: List[Ended], slo_s: float, seconds: float) -> Dict[str, float]:
    mine, its = (sum(each.answered and each.took_s <= slo_s for each in ended) / seconds for ended in (greedy, ours))
    urgent = [each.answered and each.took_s <= slo_s for each in ours if each.urgent]
    promised = [each.answered and each.took_s <= slo_s for each in ours if each.accepted]
    return {
        "greedy_per_s": mine,
        "per_s": its,
        "ratio": its / max(mine, 1e-9),
        "urgent_in_time": statistics.fmean(urgent) if urgent else 1.0,
        "promises_kept": statistics.fmean(promised) if promised else 1.0,
    }
