"""Measuring what this machine and the server's loop take beside the models' own times, for ``machine.toml``.

A small server runs in this process, its loop watched turn by turn, and a process of its own asks it over the bus. Its
one model multiplies a matrix that is larger than most caches, so that the loop finds them as a network leaves them.
What the loop's thread does is processor time: other programs on the machine do not count. Waits are taken from clocks.
"""

from __future__ import annotations

import bisect
import contextlib
import datetime
import logging
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve import __version__
from edgeserve.commands.measure_decisions import measure_decisions
from edgeserve.config.files import file_sha256
from edgeserve.config.loading import parse_config
from edgeserve.config.machine import device_name
from edgeserve.config.machine_costs import LockUse, MachineCosts, Spread, read_machine, write_machine
from edgeserve.config.profiles import QUANTILES
from edgeserve.config.schema import Config, ModelConfig
from edgeserve.device.host import busy_time, others_busy
from edgeserve.engines import lane_info, make_engine
from edgeserve.engines.base import Batch, Engine, Footprint, Result, run_whole
from edgeserve.errors import EdgeServeError, EngineError, ProfileError
from edgeserve.live.request import request_validators
from edgeserve.live.runtime_core import RuntimeCore
from edgeserve.live.world import StopAsked
from edgeserve.loop.drive import drive
from edgeserve.offload.pin import allowed_cores
from edgeserve.sched.protocol.actions import FinishRequest, RunBatch
from edgeserve.sched.protocol.events import RequestArrived, WorkFinished
from edgeserve.units import NS_PER_S, format_duration

WIDTH = 2048
"""The bytes of the matrix: 16 MiB, twice the caches of the boards that this was written for. One product takes 1 to 5
ms."""

BURST = 8
"""Requests that come together in every second round: what one more event costs beside what one more turn does."""

PAUSE_S = 0.004
"""Mean pause between two rounds: the loop and the lane fall asleep."""

SENDS_NS_MAX = 1_000_000
"""After so long in its wait the loop has sent its answers and is asleep."""

STALL_NS_MIN = 200_000
"""The shortest pause of a running thread that counts as a stall. The clock is read every 50 to 100 ns."""

CONTENTION_TURNS = 5
BUSY = "print(flush=True)\nwhile True: sum(range(1000))"
"""A program that prints a line and then keeps a core busy."""

PROBE_S = 0.001
"""The time that the probing thread sleeps, in the mean, before it wants the interpreter lock again."""

PROBES_MAX = 400
WAITS_MIN = 10
"""Wake-ups on the idle machine, and the ones that must have met a function for its waits to count."""

WAIT_NS_MIN = 50_000
"""A thread that wakes up later than usual by more than this has waited."""

BETWEEN_CALLS_S = 0.0005
"""The time for which the lock is free between two calls of a function, as on a lane that waits for its next work."""

CLIENT_S_MAX = 120.0

OTHERS_BUSY_MAX = 0.25
"""Cores: while others keep more busy, waits and stalls are theirs."""


class Product(Engine):
    """The model of the measurement: one product of a vector and a large matrix, outside the interpreter lock."""

    def __init__(self, model: Any, lanes: Sequence[Any], directory: str) -> None:
        self._weights = np.zeros((0, 0), np.float32)

    def load(self) -> Footprint:
        self._weights = np.ones((WIDTH, WIDTH), np.float32)
        return Footprint(self._weights.nbytes)

    def unload(self) -> None:
        self._weights = np.zeros((0, 0), np.float32)

    def example(self) -> Dict[str, Any]:
        return {"x": np.ones(WIDTH, np.float32)}

    def run(self, batch: Batch) -> List[Result]:
        if not self._weights.size:
            raise EngineError("the product is not loaded; call load() before it is run")
        together = self._weights @ np.stack([item["x"] for item in batch.items], axis=1)
        return [Result({"y": together[:1, index]}) for index in range(len(batch.items))]


class LoopWatch:
    """Stands between the loop and a live world, and notes times. Belongs to the loop's thread.

    ``waits``: (processor time of one wait, answers sent in it, requests read in it); ``turns``: (processor time from
    the end of a wait to the beginning of the next, events of the turn).
    """

    def __init__(self, world: Any) -> None:
        self._world = world
        self.waits: List[Tuple[int, int, int]] = []
        self.turns: List[Tuple[int, int]] = []
        self.arrive_ns: List[int] = []
        self.wake_ns: List[int] = []
        self.start_ns: List[int] = []
        self._given_ns: Dict[int, int] = {}
        self._answers = 0  # the next wait sends them
        self._turn = (0, 0)  # processor time at its beginning, events

    @property
    def stopped(self) -> bool:
        """As the world says."""
        return bool(self._world.stopped)

    def perform(self, action: Any) -> None:
        """Begin an action, and note when a lane was given a batch."""
        self._answers += isinstance(action, FinishRequest)
        self._world.perform(action)
        if isinstance(action, RunBatch):
            self._given_ns[action.work_id] = time.monotonic_ns()

    def wait(self, until_ns: Optional[int]) -> Tuple[int, List[Any]]:
        """The turn before is over; wait for the next one's events."""
        begun_ns, asleep_ns = time.thread_time_ns(), time.monotonic_ns() + SENDS_NS_MAX
        answers, self._answers = self._answers, 0
        if self._turn[1]:
            self.turns.append((begun_ns - self._turn[0], self._turn[1]))
        now_ns, events = self._world.wait(until_ns)
        ended_ns = time.thread_time_ns()
        self._turn = (ended_ns, len(events))
        read = sum(type(event) is RequestArrived for event in events)
        self.waits.append((ended_ns - begun_ns, answers, read))
        for event in events:
            if isinstance(event, WorkFinished):
                given_ns = self._given_ns.pop(event.work_id, event.started_ns)
                self.start_ns.append(max(0, event.started_ns - given_ns))
        if len(events) == 1:
            self._woken(now_ns, events[0], asleep_ns)
        return now_ns, events

    def _woken(self, now_ns: int, event: Any, asleep_ns: int) -> None:
        """Note how long the news was on its way to the loop, if the loop was asleep."""
        if isinstance(event, RequestArrived) and event.request.arrival_ns > asleep_ns:
            self.arrive_ns.append(max(0, now_ns - event.request.arrival_ns))
        elif isinstance(event, WorkFinished) and event.finished_ns > asleep_ns:
            self.wake_ns.append(max(0, now_ns - event.finished_ns))


# --- the loop and the bus ---------------------------------------------------------------------------------------------


def measure_loop(seconds: float) -> MachineCosts:
    """Ask a small server of this process for so long, and say what its loop and its wake-ups took."""
    with tempfile.TemporaryDirectory(prefix="edgeserve-") as folder:
        config = parse_config(
            {
                "server": {"endpoint": f"ipc://{folder}/bus", "profiles": "none"},
                "model": {"product": {"engine": f"{__name__}:Product", "batch": [1, 2, 4, BURST]}},
                "app": {"probe": {"model": "product", "slo": "10s", "inputs": {"x": {"shape": [WIDTH]}}}},
            },
            folder,
        )
        with _quiet():  # this model exists for the measurement alone: no warning about its times
            watch = _watched(config, lambda endpoint: _ask_for(endpoint, seconds))
    return costs_of_loop(watch)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the server's own log, but for errors."""
    log = logging.getLogger("edgeserve")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _watched(config: Config, use: Callable[[str], None]) -> LoopWatch:
    """Serve ``config`` while ``use(endpoint)`` runs, and watch the loop."""
    core = RuntimeCore(config, request_validators(config), True, lambda: False)
    ready, watches, errors = threading.Event(), [], []

    def live() -> None:
        try:
            core.open()
            watches.append(LoopWatch(core.world))
            ready.set()
            drive(core.scheduler, watches[0])
        except BaseException as error:  # noqa: BLE001 raised again below, on the thread that waits
            errors.append(error)
        finally:
            ready.set()
            core.close(EdgeServeError("the measurement is over"))  # type: ignore[arg-type]

    thread = threading.Thread(target=live, name="edgeserve-loop", daemon=True)
    thread.start()
    ready.wait()
    try:
        if not errors:
            use(config.server.endpoint)
    finally:
        core.mailbox.post(StopAsked(0))
        thread.join(CLIENT_S_MAX)
    if errors:
        raise errors[0]
    return watches[0]


def _ask_for(endpoint: str, seconds: float) -> None:
    done = subprocess.run(
        [sys.executable, "-m", __name__, endpoint, str(seconds)],
        capture_output=True,
        text=True,
        timeout=seconds + CLIENT_S_MAX,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    if done.returncode:
        raise EdgeServeError(f"the client of the measurement failed:\n{done.stderr[-2000:]}")


def ask(endpoint: str, seconds: float) -> None:
    """Ask as the client's process does: one request alone and several at once, in turn, with pauses."""
    from edgeserve.client import Client

    draw, inputs = random.Random("machine/pauses"), {"x": np.ones(WIDTH, np.float32)}
    with Client(endpoint) as client:
        begun_s, rounds = time.monotonic(), 0
        while rounds < 4 or time.monotonic() < begun_s + seconds:
            futures = [client.submit("probe", inputs) for _ in range(BURST if rounds % 2 else 1)]
            for future in futures:
                future.result(CLIENT_S_MAX)
            rounds += 1
            time.sleep(draw.expovariate(1 / PAUSE_S))


def costs_of_loop(watch: LoopWatch) -> MachineCosts:
    """The watched turns as costs: straight lines through processor times, none negative; waits as they were."""
    turns = np.array(watch.turns, dtype=np.float64).reshape(-1, 2)
    step_ns, event_ns = _parts(turns[:, 0], turns[:, 1:])
    waits = np.array(watch.waits, dtype=np.float64).reshape(-1, 3)
    wait_ns, answer_ns, receive_ns = _parts(waits[:, 0], waits[:, 1:])
    wake_ns = spread_of(watch.wake_ns)
    # From the client's stamp until the loop is woken: the wake-up and the reading are counted by themselves.
    send_ns = tuple(
        max(0, total - wake - receive_ns - wait_ns) for total, wake in zip(spread_of(watch.arrive_ns), wake_ns)
    )
    return MachineCosts(
        step_ns=step_ns + wait_ns,
        event_ns=event_ns,
        receive_ns=receive_ns,
        answer_ns=answer_ns,
        send_ns=tuple(np.maximum.accumulate(send_ns).tolist()) if send_ns else (),
        wake_ns=wake_ns,
        start_ns=spread_of(watch.start_ns),
    )


def _parts(times: NDArray[Any], counts: NDArray[Any]) -> Tuple[int, ...]:
    """``times = c0 + sum(c[i] * counts[i])`` by least squares, what comes out negative left out."""
    columns = np.column_stack([np.ones(len(times)), counts])
    chosen = list(range(columns.shape[1]))
    found = np.zeros(columns.shape[1])
    while chosen and len(times):
        solution = np.linalg.lstsq(columns[:, chosen], times, rcond=None)[0]
        if (solution >= 0).all():
            found[chosen] = solution
            break
        chosen = [index for index, value in zip(chosen, solution) if value >= 0]
    return tuple(round(float(value)) for value in found)


def spread_of(samples_ns: Sequence[int]) -> Spread:
    """Samples as a distribution of the machine's file; none of none."""
    return tuple(int(value) for value in np.quantile(np.asarray(samples_ns), QUANTILES)) if len(samples_ns) else ()


# --- stalls -----------------------------------------------------------------------------------------------------------


def measure_stalls(seconds: float, clock_ns: Callable[[], int] = time.perf_counter_ns) -> Tuple[int, Spread]:
    """The stalls of a running thread: the mean time between two stalls (0 = there were none)
    and their lengths. Other threads of this process must be asleep."""
    begun_ns = last_ns = clock_ns()
    held: List[int] = []
    while last_ns < begun_ns + seconds * NS_PER_S:
        now_ns = clock_ns()
        if now_ns - last_ns > STALL_NS_MIN:
            held.append(now_ns - last_ns)
        last_ns = now_ns
    return ((last_ns - begun_ns - sum(held)) // len(held) if held else 0), spread_of(held)


# --- the interpreter lock ---------------------------------------------------------------------------------------------


def pure_python(rounds: int = 20_000) -> int:
    """Work that never lets go of the interpreter lock by itself."""
    total = 0
    for number in range(rounds):
        total += number * number
    return total


def measure_lock(seconds: float) -> Tuple[float, Spread]:
    """The factor by which two pure Python functions take longer at a time than one alone, and how long a thread that
    wakes up waits for one."""
    alone = _calls(pure_python, seconds)
    counts: List[int] = []
    threads = [
        threading.Thread(target=lambda: counts.append(_calls(pure_python, seconds)), daemon=True) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    factor = max(1.0, alone / max(1.0, sum(counts) / 2))
    return round(min(factor, 10.0), 3), lock_waits(pure_python, seconds)[0]


def _little() -> int:
    """Work of so little that many calls fit into a turn of the interpreter."""
    return pure_python(1000)


def measure_contention(seconds: float) -> float:
    """The factor by which work takes longer while another process keeps a core busy: more than once where cores share
    what computes (two hardware threads of one core), clocks or memory. The median of several turns, alone and beside
    it."""
    turns, turn_s = [], seconds / (2 * CONTENTION_TURNS)
    for _ in range(CONTENTION_TURNS):
        alone = _calls(_little, turn_s)
        with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as other:
            try:
                assert other.stdout is not None
                other.stdout.readline()
                beside = _calls(_little, turn_s)
            finally:  # an interrupted measurement must not leave a core busy
                other.kill()
        turns.append(alone / max(1, beside))
    return round(min(10.0, max(1.0, statistics.median(turns))), 3)


def measure_function(config: Config, model: str, seconds: float, function: str) -> LockUse:
    """A host function's use of the interpreter lock: how long threads that wake up while it runs wait, and how many of
    them do. :class:`EdgeServeError` where it cannot be run on its example."""
    lane = (config.models[model].lanes or tuple(config.lanes))[0]
    info = lane_info(config, lane)
    engine = make_engine(config.models[model], [info], config.directory)
    engine.load()
    try:
        session, size = engine.open(info), config.models[model].batch[0]
        item = engine.example()
        run_whole(session, Batch([item] * size, size))
        waits, share = lock_waits(lambda: run_whole(session, Batch([item] * size, size)), seconds)
    finally:
        engine.unload()
    return LockUse(round(share, 3), waits, function)


def lock_waits(call: Callable[[], Any], seconds: float) -> Tuple[Spread, float]:
    """The time by which threads wake up later than on an idle machine that are due while ``call`` runs on another one,
    and the share of them that wait because of it. As on a lane, the lock is free between two calls."""
    idle = [late_ns for _, late_ns in _wake_ups(seconds, PROBES_MAX)]
    ended = threading.Event()
    failures: List[BaseException] = []
    calls: List[Tuple[int, int]] = []

    def run() -> None:
        try:
            while not ended.is_set():
                begun_ns = time.monotonic_ns()
                call()
                calls.append((begun_ns, time.monotonic_ns()))
                time.sleep(BETWEEN_CALLS_S)
        except BaseException as error:  # noqa: BLE001 raised again below
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        found = _wake_ups(seconds, 4 * PROBES_MAX)
    finally:
        ended.set()
        thread.join(CLIENT_S_MAX)
    if failures:
        raise EngineError(f"failed on its example: {type(failures[0]).__name__}: {failures[0]}")
    return waits_of(idle, calls, found)


def waits_of(
    idle_ns: Sequence[int], calls: Sequence[Tuple[int, int]], wake_ups: Sequence[Tuple[int, int]]
) -> Tuple[Spread, float]:
    """From how late threads wake up without the function, when its calls began and ended, and when other threads were
    due and how late they were: by how much those due during a call are later, quantile by quantile (what is late on the
    machine anyhow is no wait for the lock), and the share that waited because of it. Too few of them, as with a
    function that is over at once: none."""
    usual_ns = sorted(idle_ns)[len(idle_ns) // 2]
    starts = [begun_ns for begun_ns, _ in calls]
    meanwhile = []
    for due_ns, late_ns in wake_ups:
        place = bisect.bisect_right(starts, due_ns) - 1
        if place >= 0 and due_ns < calls[place][1]:
            meanwhile.append(late_ns)
    if len(meanwhile) < WAITS_MIN:
        return (), 0.0
    idle_share = _share_above(idle_ns, usual_ns + WAIT_NS_MIN)
    share = (_share_above(meanwhile, usual_ns + WAIT_NS_MIN) - idle_share) / max(1e-9, 1.0 - idle_share)
    later = [max(0, busy - alone) for busy, alone in zip(spread_of(meanwhile), spread_of(idle_ns))]
    return tuple(np.maximum.accumulate(later).tolist()), max(0.0, share)


def _share_above(values: Sequence[int], bound: int) -> float:
    return sum(value > bound for value in values) / len(values)


def _wake_ups(seconds: float, most: int) -> List[Tuple[int, int]]:
    """When a sleeping thread was to wake up, and how much later it ran."""
    draw = random.Random("machine/probes")
    found: List[Tuple[int, int]] = []
    begun_s = time.monotonic()
    while len(found) < most and (len(found) < 10 or time.monotonic() < begun_s + seconds):
        pause_s = draw.uniform(0.5, 1.5) * PROBE_S
        due_ns = time.monotonic_ns() + round(pause_s * NS_PER_S)
        time.sleep(pause_s)
        found.append((due_ns, max(0, time.monotonic_ns() - due_ns)))
    return found


def _calls(call: Callable[[], Any], seconds: float) -> int:
    """The number of times that ``call`` ends in so many seconds."""
    count, begun_s = 0, time.monotonic()
    while time.monotonic() < begun_s + seconds:
        call()
        count += 1
    return count


# --- all of it --------------------------------------------------------------------------------------------------------


def circumstances() -> Dict[str, Any]:
    """The circumstances on which the numbers depend; ``same`` has to be equal for them to count."""
    return {
        "same": f"edgeserve {__version__}, python {platform.python_version()}, numpy {np.__version__}, "
        f"{os.cpu_count() or 1} cores, switch interval {sys.getswitchinterval() * 1000:g} ms",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device_name": device_name(),
        "system": platform.platform(),
        "others_busy": 0.0,
    }


def measure_machine(seconds: float) -> MachineCosts:
    """Everything that does not depend on a configuration; takes about six and a half times ``seconds``, and five for
    the decisions."""
    around, cores = circumstances(), range(os.cpu_count() or 1)
    begun_s, before = time.monotonic(), busy_time(cores)
    stall_every_ns, stall_ns = measure_stalls(seconds)
    factor, wait_ns = measure_lock(seconds / 2)
    around["others_busy"] = round(others_busy(before, busy_time(cores), time.monotonic() - begun_s), 2)
    contention = measure_contention(seconds / 2)
    return replace(
        measure_loop(2 * seconds),
        stall_every_ns=stall_every_ns,
        stall_ns=stall_ns,
        lock_factor=factor,
        lock_wait_ns=wait_ns,
        contention=contention,
        cores=len(allowed_cores()),
        decide=measure_decisions(),
        circumstances=around,
    )


def profile_machine(
    config: Config,
    models: Sequence[str],
    path: str,
    seconds: float,
    force: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> Tuple[MachineCosts, List[str]]:
    """Measure what the file at ``path`` lacks, and write it: all where there is none of the same versions, and the host
    functions among ``models`` that it does not know. Returns the costs, and what could not be measured and why."""
    costs = None if force else _found(path)
    if costs is None:
        progress("the machine and the loop")
        costs = measure_machine(seconds)
        write_machine(path, costs)
    lacking = []
    for name in models:
        model = config.models[name]
        if model.engine != "python" or model.options.get("process", False):
            continue
        function = f"{model.function} {_hash_of(model, config.directory)}"
        if name in costs.lock and costs.lock[name].function == function:
            continue
        progress(f"{name} and the interpreter lock")
        try:
            use = measure_function(config, name, seconds / 2, function)
        except EdgeServeError as error:
            lacking.append(f"how {name} uses the interpreter lock: {error}")
            continue
        costs = replace(costs, lock={**costs.lock, name: use})
        write_machine(path, costs)
    return costs, lacking


def _found(path: str) -> Optional[MachineCosts]:
    """The costs that are there, when they were measured with the same versions."""
    try:
        costs = read_machine(path) if os.path.isfile(path) else None
    except ProfileError:
        return None  # damaged or of another format: measuring it again is the mend that its message names
    return costs if costs is not None and costs.circumstances.get("same") == circumstances()["same"] else None


def _hash_of(model: ModelConfig, directory: str) -> str:
    file = os.path.join(directory, *model.function.partition(":")[0].split(".")) + ".py"
    return file_sha256(file)[:16] if os.path.isfile(file) else ""


def lines_of(costs: MachineCosts) -> List[str]:
    """The costs, for people."""
    lone_ns = 2 * (costs.step_ns + costs.event_ns) + costs.receive_ns + costs.answer_ns
    stalls = (
        "no stalls"
        if not costs.stall_every_ns
        else (
            f"a running thread is held up for {format_duration(_median(costs.stall_ns))} every "
            f"{format_duration(costs.stall_every_ns)}"
        )
    )
    lines = [
        f"the machine: a lone request takes the loop {format_duration(lone_ns)}, waking it up takes "
        f"{format_duration(_median(costs.wake_ns))} (p99 {format_duration(_p99(costs.wake_ns))}), starting a lane "
        f"{format_duration(_median(costs.start_ns))} (p99 {format_duration(_p99(costs.start_ns))}); {stalls}; two "
        f"Python functions at a time take {costs.lock_factor:.2g} times as long"
    ]
    busy = costs.circumstances.get("others_busy", 0.0)
    if busy > OTHERS_BUSY_MAX:
        lines.append(
            f"! other programs kept {busy:g} cores busy, which makes waits and stalls longer; measure again "
            "with --force in a quiet moment"
        )
    return lines + [
        f"{name} keeps {use.share:.0%} of the threads that wake up waiting, for "
        f"{format_duration(_median(use.wait_ns))} (p99 {format_duration(_p99(use.wait_ns))})"
        for name, use in sorted(costs.lock.items())
    ]


def _median(spread: Spread) -> int:
    return spread[QUANTILES.index(0.5)] if spread else 0


def _p99(spread: Spread) -> int:
    return spread[QUANTILES.index(0.99)] if spread else 0


if __name__ == "__main__":
    ask(sys.argv[1], float(sys.argv[2]))
