"""``edgeserve bench``: load a running server; how many answers came in time, how long they took, what was dropped.

Open loop (``--rate``): requests are sent when they are due, whether or not earlier ones are answered, and times count
from when they were *due*, so that a server that holds up the client cannot hide it. Closed loop (``--in-flight``):
a fixed number of requests, each answer sends the next.
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional

from edgeserve.answers import BREAKDOWN_KEYS
from edgeserve.client import Client
from edgeserve.commands.connection import add_connection_arguments
from edgeserve.commands.infer import add_request_arguments, read_inputs
from edgeserve.commands.inputs import example_inputs
from edgeserve.errors import BadInput, RequestError, UnknownApp, nearest
from edgeserve.live.stats import percentiles_ms
from edgeserve.python_file import CONFIG_HELP, config_at
from edgeserve.sim.workload import REQUESTS_MAX, read_trace
from edgeserve.units import NS_PER_S, ns_to_ms, ns_to_s, parse_duration_ns, s_to_ns

CAPACITY_IN_FLIGHT = 32
"""Requests in flight while the capacity is measured: enough to fill batches and hide the client's own time."""

CAPACITY_S = 3.0

ANSWERS_S_MAX = 30.0
"""Seconds that the end of a run waits for the last answers."""

REASONS_SHOWN_MAX = 12

SENT_LATE_MS_MAX = 5.0
"""Beyond this the result says that the client itself was too slow (it sends about 2000 small requests a second)."""


class ResolvedOptions(NamedTuple):
    """The options that all requests of a run share."""

    app: str
    inputs: Mapping[str, Any]
    slo_ns: Optional[int] = None
    priority_class: Optional[str] = None
    on_late: Optional[str] = None
    streams: int = 0


class BenchTally:
    """The outcomes of one run's requests. Written by the client's thread and the sender's, so behind one lock."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self.sent = 0
        self.ended = 0
        self.in_time = 0
        self.late = 0
        self.reasons: Dict[str, int] = {}
        self.latencies_ns: List[int] = []
        self.lags_ns: List[int] = []  # how long after it was due each request was sent
        self.breakdown_ms = dict.fromkeys(BREAKDOWN_KEYS, 0.0)

    def send(self, bus: Client, terms: ResolvedOptions, due_ns: int, then: Callable[[], None] | None = None) -> None:
        """Send one request that was due at ``due_ns``; ``then`` is called when it has ended."""
        with self._lock:
            number = self.sent
            self.sent += 1
        now_ns = time.monotonic_ns()
        self.lags_ns.append(now_ns - due_ns)
        slo_ms = None
        if terms.slo_ns is not None:  # the deadline counts from when it was due, not from when we got round to it
            slo_ms = max(1e-6, ns_to_ms(due_ns + terms.slo_ns - now_ns))
        stream = f"bench-{number % terms.streams}" if terms.streams else None
        try:
            future = bus.submit(
                terms.app,
                terms.inputs,
                slo_ms=slo_ms,
                priority_class=terms.priority_class,
                on_late=terms.on_late,
                stream=stream,
                copy=False,
            )
        except RequestError as error:
            self._end(error, None, due_ns, terms)
            if then is not None:
                then()
            return

        def done(ended: Any) -> None:
            error = ended.exception()
            self._end(error, None if error else ended.result(), due_ns, terms)
            if then is not None:
                then()

        future.add_done_callback(done)

    def _end(self, error: Any, answer: Any, due_ns: int, terms: ResolvedOptions) -> None:
        took_ns = time.monotonic_ns() - due_ns
        with self._lock:
            self.ended += 1
            if error is not None:
                code = getattr(error, "code", type(error).__name__)
                name = f"{code}: {getattr(error, 'reason', '') or '-'}"
                self.reasons[name] = self.reasons.get(name, 0) + 1
            else:
                late = took_ns > terms.slo_ns if terms.slo_ns is not None else answer.late
                self.late += late
                self.in_time += not late
                self.latencies_ns.append(took_ns)
                for key, breakdown in answer.breakdown_ms.items():
                    self.breakdown_ms[key] += breakdown
            self._lock.notify_all()

    def wait(self) -> int:
        """Wait until every sent request has ended. Returns the number still open at the bound."""
        with self._lock:
            self._lock.wait_for(lambda: self.ended == self.sent, ANSWERS_S_MAX)
            return self.sent - self.ended

    def table(self, run_s: float, unanswered: int) -> Dict[str, Any]:
        """The result as plain values. ``finish_rate`` is what came in time, of all that were sent."""
        count = max(1, len(self.latencies_ns))
        return {
            "sent": self.sent,
            "in_time": self.in_time,
            "late": self.late,
            "unanswered": unanswered,
            "finish_rate": self.in_time / max(1, self.sent),
            "offered_per_s": self.sent / run_s,
            "goodput_per_s": self.in_time / run_s,
            "ended_otherwise": dict(sorted(self.reasons.items())),
            "latency_ms": percentiles_ms(self.latencies_ns),
            "sent_late_p99_ms": percentiles_ms(self.lags_ns).get("p99", 0.0),
            "breakdown_ms": {key: total / count for key, total in self.breakdown_ms.items()},
        }


# --- the two loops ----------------------------------------------------------------------------------------------------


def open_loop(bus: Client, terms: ResolvedOptions, due_times_ns: Iterator[int]) -> Dict[str, Any]:
    """Send at the times given (from now on), wait for the answers."""
    tally = BenchTally()
    start_ns = time.monotonic_ns()
    last_ns = 0
    for at_ns in due_times_ns:
        wait_ns = start_ns + at_ns - time.monotonic_ns()
        if wait_ns > 0:
            time.sleep(ns_to_s(wait_ns))
        tally.send(bus, terms, start_ns + at_ns)
        last_ns = at_ns
    unanswered = tally.wait()
    return tally.table(max(ns_to_s(last_ns), 1e-3), unanswered)


def closed_loop(bus: Client, terms: ResolvedOptions, in_flight: int, run_s: float) -> Dict[str, Any]:
    """Keep ``in_flight`` requests open for ``run_s`` seconds."""
    tally = BenchTally()
    free = threading.Semaphore(in_flight)
    start_ns = time.monotonic_ns()
    stop_ns = start_ns + s_to_ns(run_s)
    while True:
        free.acquire(timeout=max(0.0, ns_to_s(stop_ns - time.monotonic_ns())))
        now_ns = time.monotonic_ns()
        if now_ns >= stop_ns:
            break
        tally.send(bus, terms, now_ns, free.release)
    unanswered = tally.wait()
    return tally.table(ns_to_s(time.monotonic_ns() - start_ns), unanswered)


def poisson(rate: float, run_s: float, seed: int) -> Iterator[int]:
    """Due times of independent arrivals, in nanoseconds from the start."""
    draw = random.Random(f"{seed}/arrivals")
    at_s = draw.expovariate(rate)
    while at_s < run_s:
        yield s_to_ns(at_s)
        at_s += draw.expovariate(rate)


def from_trace(path: str, rate: Optional[float], run_s: float, seed: int) -> Iterator[int]:
    """Due times of a recorded trace, stretched to ``rate`` on average if one is given."""
    times_ns = [arrival.at_ns for arrival in read_trace(path, random.Random(f"{seed}/trace"), s_to_ns(run_s))]
    scale = 1.0
    if rate is not None and times_ns and times_ns[-1] > 0:
        scale = len(times_ns) / rate * NS_PER_S / times_ns[-1]
    for at_ns in times_ns:
        if at_ns * scale >= s_to_ns(run_s):
            return
        yield round(at_ns * scale)


# --- what to send -----------------------------------------------------------------------------------------------------


def choose_app(apps: Mapping[str, Any], wanted: Optional[str]) -> str:
    """The app to load: the one that was named, or the only one."""
    if wanted is None and len(apps) == 1:
        return next(iter(apps))
    if wanted is None or wanted not in apps:
        raise UnknownApp(
            f"--app {wanted}: no such app is served{nearest(wanted, apps)}"
            if wanted
            else f"the server has several apps; give --app, one of {', '.join(sorted(apps))}"
        )
    return wanted


def rate_of(text: str, capacity: Callable[[], float]) -> float:
    """``"200"`` requests per second, or ``"120%"`` of the capacity that is measured first."""
    try:
        rate = float(text[:-1]) / 100 * capacity() if text.endswith("%") else float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e6:
        raise BadInput(
            f"--rate {text}: expected requests per second such as 200, or a share of the capacity such as 120%"
        )
    return rate


# --- the command ------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``edgeserve bench``."""
    parser.add_argument("config", nargs="?", help=f"of the running server, for its endpoint: {CONFIG_HELP}")
    add_connection_arguments(parser)
    parser.add_argument("--app", help="the app to ask (default: the only one)")
    parser.add_argument(
        "--rate", metavar="R", help="open loop: requests per second, or a share of the measured capacity such as 120%%"
    )
    parser.add_argument(
        "--arrivals",
        default="poisson",
        metavar="poisson|TRACE.csv",
        help="open loop: when requests are due (default poisson)",
    )
    parser.add_argument(
        "--in-flight",
        type=int,
        default=16,
        metavar="N",
        help="closed loop (without --rate): requests kept open (default 16)",
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to send (default 10)")
    parser.add_argument(
        "--streams",
        type=int,
        default=0,
        metavar="N",
        help="spread the requests over N streams (an app that needs one: --in-flight)",
    )
    add_request_arguments(
        parser, "a tensor from a .npy file or an image (default: drawn, where the app declares a shape)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of arrivals and drawn inputs (default 1)")
    parser.add_argument(
        "--finish-min",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="exit with status 1 when a smaller share came in time",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def main(args: argparse.Namespace) -> int:
    """Exit status: 0, or 1 when less than ``--finish-min`` came in time."""
    if not 1 <= args.in_flight <= 4096 or not 0 < args.seconds <= 86400:
        raise BadInput(f"--in-flight {args.in_flight}, --seconds {args.seconds}: expected 1 to 4096, and up to a day")
    if not 0 <= args.finish_min <= 1:
        raise BadInput(f"--finish-min {args.finish_min:g}: expected a share from 0 to 1, such as 0.99")
    endpoint = args.endpoint or (config_at(args.config).server.endpoint if args.config else "") or None
    try:
        slo_ns = parse_duration_ns(args.slo) if args.slo else None
    except ValueError as error:
        raise BadInput(f"--slo: {error}") from None
    with Client(endpoint, server_key=args.server_key, client_key=args.client_key) as bus:
        apps = bus.apps()
        app = choose_app(apps, args.app)
        inputs = example_inputs(app, apps[app]["inputs"], read_inputs(args.inputs, args.texts), args.seed)
        streams = args.streams or (args.in_flight if apps[app].get("needs_stream") else 0)
        terms = ResolvedOptions(app, inputs, slo_ns, args.priority_class, args.on_late, streams)
        table = run(bus, terms, args)
    print(json.dumps(table) if args.json else as_text(table))
    return int(table["finish_rate"] < args.finish_min)


def run(bus: Client, terms: ResolvedOptions, args: argparse.Namespace) -> Dict[str, Any]:
    """One run as the arguments say."""
    what: Dict[str, Any] = {"app": terms.app, "slo_ms": ns_to_ms(terms.slo_ns) if terms.slo_ns else None}

    def capacity() -> float:
        patient = terms._replace(slo_ns=600 * NS_PER_S)
        per_s = float(closed_loop(bus, patient, CAPACITY_IN_FLIGHT, CAPACITY_S)["goodput_per_s"])
        what["capacity_per_s"] = per_s
        return per_s

    if args.rate is None and args.arrivals == "poisson":
        return {
            **what,
            "loop": f"closed, {args.in_flight} in flight",
            **closed_loop(bus, terms, args.in_flight, args.seconds),
        }
    rate = rate_of(args.rate, capacity) if args.rate is not None else None
    if args.arrivals == "poisson":
        assert rate is not None, "without a rate the loop is closed"
        if rate * args.seconds > REQUESTS_MAX:
            raise BadInput(
                f"--rate {args.rate} for --seconds {args.seconds:g} are {rate * args.seconds:.0f} requests: expected "
                f"at most {REQUESTS_MAX}; lower one of them"
            )
        due = poisson(rate, args.seconds, args.seed)
    else:
        due = from_trace(args.arrivals, rate, args.seconds, args.seed)
    return {**what, "loop": f"open, {args.arrivals}", **open_loop(bus, terms, due)}


def as_text(table: Mapping[str, Any]) -> str:
    """The result for people."""
    slo = f"{table['slo_ms']:g} ms" if table["slo_ms"] else "the app's own"
    lines = [f"app {table['app']}: {table['loop']}, deadline {slo}"]
    if "capacity_per_s" in table:
        lines.append(f"  capacity       {table['capacity_per_s']:.1f} requests/s ({CAPACITY_IN_FLIGHT} in flight)")
    latency = ", ".join(f"{name} {value:.2f} ms" for name, value in table["latency_ms"].items())
    lines += [
        f"  sent           {table['sent']} ({table['offered_per_s']:.1f}/s)",
        f"  in time        {table['in_time']} ({table['finish_rate']:.1%}, {table['goodput_per_s']:.1f}/s)",
        f"  late           {table['late']}",
        f"  latency        {latency or '-'}",
        "  time went to   " + ", ".join(f"{name} {value:.2f} ms" for name, value in table["breakdown_ms"].items()),
    ]
    reasons = sorted(table["ended_otherwise"].items(), key=lambda item: (-item[1], item[0]))
    lines += [f"  {count:>7} x      {name}" for name, count in reasons[:REASONS_SHOWN_MAX]]
    if len(reasons) > REASONS_SHOWN_MAX:
        lines.append(f"  ... and {len(reasons) - REASONS_SHOWN_MAX} more reasons (--json has all)")
    if table["sent_late_p99_ms"] > SENT_LATE_MS_MAX:
        lag_ms = table["sent_late_p99_ms"]
        lines.append(
            f"  this client could not keep up: 1 % of the requests were sent {lag_ms:.1f} ms "
            "or more after they were due; part of the latency is its own"
        )
    if table["unanswered"]:
        lines.append(f"  {table['unanswered']} had no answer {ANSWERS_S_MAX:.0f} s after the last was sent")
    return "\n".join(lines)
