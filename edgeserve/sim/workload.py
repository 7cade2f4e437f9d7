"""Workloads: the arrivals of requests and their declared hints, drawn by seed or read from a trace.

A source knows no scheduler and no lane. Everything it draws comes from generators of its own name, so that the same
seed gives the same arrivals to all compared policies.
"""

from __future__ import annotations

import csv
import datetime
import math
import os
import random
from dataclasses import replace
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from edgeserve.config.schema import Config
from edgeserve.config.text_files import regular_file
from edgeserve.errors import ConfigError
from edgeserve.owners import CONNECTION_MARK
from edgeserve.sched.protocol.events import Request
from edgeserve.sim.scenario import Scenario, WorkloadConfig
from edgeserve.units import NS_PER_MS, NS_PER_S, format_duration

TRACE_ROWS_MAX = 5_000_000
"""Rows read from one trace: a wrong file must not fill the memory."""


REQUESTS_MAX = 5_000_000
"""Requests of one workload in a run, as many as the rows of a trace: each stays in memory until the run's end."""


class Arrival(NamedTuple):
    """One arrival of a source: when, for which of its apps (an index), declared numbers, how long after it its client
    cancels (``None``: never), and the deadline that a refusal said would do, where it asks again with that (else 0)."""

    at_ns: int
    app_index: int = 0
    hints: Optional[Mapping[str, float]] = None
    cancel_after_ns: Optional[int] = None
    slo_ns: int = 0


def owner_of(request: Request) -> str:
    """The client whose share of places and lane time a request counts to; ``""`` where no connection is known."""
    owner, mark, _ = request.client.partition(CONNECTION_MARK)
    return owner if mark else ""


def changed(request: Request, **fields: Any) -> Request:
    """A copy of a request in which these fields differ."""
    return Request(**{name: fields[name] if name in fields else getattr(request, name) for name in Request.fields})


class Workload:
    """One workload. Open ones are an iterator of arrivals; a closed one is asked when each client comes next."""

    def __init__(
        self,
        config: WorkloadConfig,
        edge: Config,
        seed: Any,
        duration_ns: int,
        directory: str = ".",
        origin_ns: Optional[int] = None,
    ) -> None:
        self.config = config
        self.serial = 0
        self._phases = phases_of(config)
        self._apps = [edge.apps[name] for name in config.apps or (config.app,)]
        self._hints = random.Random(f"{seed}/hints/{config.name}")
        self._stop_ns = min(config.stop_ns, duration_ns)
        self._draw = random.Random(f"{seed}/arrivals/{config.name}")
        self._again = random.Random(f"{seed}/again/{config.name}")
        self._open: Optional[Iterator[Arrival]] = None
        if config.kind == "trace":
            self._open = _trace(config, self._draw, self._stop_ns, directory, origin_ns)
        elif config.kind != "closed":
            self._open = self._arrivals(_OPEN[config.kind])

    def _arrivals(self, kind: Callable[[WorkloadConfig, random.Random, int], Iterator[Arrival]]) -> Iterator[Arrival]:
        """One phase after the other, each at its own rate from its beginning on."""
        for index, phase in enumerate(self._phases):
            last = index + 1 == len(self._phases)
            stop_ns = self._stop_ns if last else min(self._stop_ns, self._phases[index + 1].start_ns)
            if phase.rate <= 0 or phase.start_ns >= stop_ns:
                continue
            for arrival in kind(phase, self._draw, stop_ns):
                if arrival.at_ns >= stop_ns:
                    break
                yield arrival

    def first(self) -> List[Tuple[Arrival, str]]:
        """The arrivals that start it, each with its client's name: the next one when open, one per client when
        closed (spread over a millisecond, as no two machines speak at once)."""
        name = f"{self.config.client}{CONNECTION_MARK}{self.config.name}" if self.config.client else self.config.name
        if self._open is not None:
            arrival = self.next_open()
            return [(arrival, name)] if arrival is not None else []
        return [
            (
                Arrival(self.config.start_ns + self._draw.randrange(NS_PER_MS), index % len(self._apps)),
                f"{name}-{index}",
            )
            for index in range(self.config.clients)
        ]

    def next_open(self) -> Optional[Arrival]:
        """The next arrival of an open source, or ``None`` at its end."""
        if self._open is None:
            return None
        arrival = next(self._open, None)
        return arrival if arrival is not None and arrival.at_ns < self._stop_ns else None

    def next_closed(self, now_ns: int, app_index: int, answered: bool) -> Optional[Arrival]:
        """When the client whose request has just ended asks again; ``None`` when the run is over, or when open."""
        if self._open is not None:
            return None
        at_ns = now_ns + (self.config.think_ns if answered else max(1, self.config.retry_ns))
        return Arrival(at_ns, app_index) if at_ns < self._stop_ns else None

    def asks_again(self, now_ns: int, arrival: Arrival, slo_ns: int) -> Optional[Arrival]:
        """When the client of an open source asks again that was told by a refusal which deadline would do, once;
        ``None`` where it does not."""
        if arrival.slo_ns or self._again.random() >= self.config.again:
            return None
        return Arrival(now_ns + max(1, self.config.retry_ns), arrival.app_index, arrival.hints, None, slo_ns)

    def request(self, request_id: int, arrival: Arrival, client: str) -> Request:
        """The request of an arrival, with the app's defaults where the workload says nothing."""
        config = self.config
        app = self._apps[arrival.app_index % len(self._apps)]
        serial = self.serial
        if serial >= REQUESTS_MAX:
            raise _too_many(config.name, serial + 1)
        self.serial += 1
        hints: Optional[Dict[str, float]] = dict(arrival.hints) if arrival.hints else None
        spreads = self._hints_at(arrival.at_ns)
        if spreads:
            hints = hints or {}
            for name, spread in spreads.items():
                hints[name] = spread.pick(self._hints.random())
        stream = None
        if app.keeps_streams or config.streams:
            stream = f"{config.name}-{serial % max(1, config.streams)}"
        return Request(
            request_id,
            app.name,
            arrival.at_ns,
            arrival.at_ns + (arrival.slo_ns or config.slo_ns or app.slo_ns),
            client,
            config.priority_class or app.priority_class,
            config.value if config.value >= 0 else app.value,
            stream,
            config.on_late or app.on_late,
            hints,
        )

    def _hints_at(self, at_ns: int) -> Mapping[str, Any]:
        phases = self._phases
        if len(phases) == 1:
            return phases[0].hints
        return next((phase for phase in reversed(phases) if phase.start_ns <= at_ns), phases[0]).hints


def phases_of(config: WorkloadConfig) -> List[WorkloadConfig]:
    """The workload as it is at first and after each of its changes, each with its own start."""
    phases = [config]
    for change in config.changes:
        before = phases[-1]
        phases.append(
            replace(
                before,
                start_ns=max(change.at_ns, config.start_ns),
                rate=before.rate if change.rate < 0 else change.rate,
                hints={**before.hints, **change.hints},
            )
        )
    return phases


def check_counts(scenario: Scenario) -> None:
    """Raise :class:`ConfigError` for a workload, a fault or a monitor of more than :data:`REQUESTS_MAX` events in a
    run, which would end neither soon nor within the memory."""
    duration_ns = scenario.run.duration_ns
    every = [(f"[faults] {key[:-3]}", value) for key, value in vars(scenario.faults).items() if "_every_" in key]
    every += [(f"[hardware.{name}] every", device.every_ns) for name, device in scenario.hardware.items()]
    for where, every_ns in every:
        if every_ns and duration_ns / every_ns > REQUESTS_MAX:
            raise ConfigError(
                f"{where} = {format_duration(every_ns)!r} in a run of {format_duration(duration_ns)}: expected at most "
                f"{REQUESTS_MAX} times in a run; give a longer time, or a shorter duration of [run]"
            )
    for item in scenario.workloads:
        phases = phases_of(item)
        ends_ns = [phase.start_ns for phase in phases[1:]] + [min(item.stop_ns, duration_ns)]
        count = 0.0
        for phase, end_ns in zip(phases, ends_ns):
            span_ns = max(0, min(end_ns, duration_ns) - phase.start_ns)
            if item.kind in _OPEN:
                count += span_ns / NS_PER_S * phase.rate
            step_ns = {"gamma": item.window_ns, "onoff": item.on_ns + item.off_ns}.get(item.kind, span_ns)
            count += span_ns / max(1, step_ns)
        if count > REQUESTS_MAX:
            raise _too_many(item.name, round(count))


def _too_many(name: str, count: int) -> ConfigError:
    return ConfigError(
        f"[workload.{name}] makes {count} requests or phases in this run: expected at most {REQUESTS_MAX}; lower its "
        "rate (or clients, or raise window, on, off, think or retry) or the duration of [run]"
    )


def origins(workloads: Sequence[WorkloadConfig], seed: Any, directory: str = ".") -> Dict[str, int]:
    """The beginning of each axis of time: at the first row of all its traces, in the traces' own time. Raises
    :class:`ConfigError` when the traces of one axis do not count time alike."""
    found: Dict[str, Tuple[int, WorkloadConfig, str]] = {}
    for item in workloads:
        if not item.axis:
            continue
        rows, clock = _rows_of(_path_of(item, directory), random.Random(f"{seed}/axis/{item.name}"), None)
        begins_ns = min((row.at_ns for row in rows), default=0)
        if item.axis not in found:
            found[item.axis] = (begins_ns, item, clock)
            continue
        first_ns, other, other_clock = found[item.axis]
        where = f"[workload.{item.name}] axis = {item.axis!r}"
        if clock != other_clock:
            raise ConfigError(
                f"{where}: its trace counts time by {clock}, that of [workload.{other.name}] by "
                f"{other_clock}; traces on one axis need the same kind of time"
            )
        if item.scale != other.scale:
            raise ConfigError(
                f"{where}: scale = {item.scale:g}, and {other.scale:g} in [workload.{other.name}]; an "
                "axis is stretched as a whole"
            )
        found[item.axis] = (min(first_ns, begins_ns), other, clock)
    return {axis: first_ns for axis, (first_ns, _, _) in found.items()}


def exponential_ns(draw: random.Random, mean_ns: float) -> int:
    """An exponential gap, in whole nanoseconds and at least one."""
    return max(1, round(-math.log(1.0 - draw.random()) * mean_ns))


def _any_app(config: WorkloadConfig, draw: random.Random) -> int:
    return draw.randrange(len(config.apps)) if len(config.apps) > 1 else 0


def _poisson(config: WorkloadConfig, draw: random.Random, stop_ns: int) -> Iterator[Arrival]:
    at_ns, mean_ns = config.start_ns, NS_PER_S / config.rate
    while True:
        at_ns += exponential_ns(draw, mean_ns)
        yield Arrival(at_ns, _any_app(config, draw))


def _periodic(config: WorkloadConfig, draw: random.Random, stop_ns: int) -> Iterator[Arrival]:
    index = 0
    while True:
        jitter_ns = draw.randrange(config.jitter_ns + 1)
        yield Arrival(config.start_ns + round((index + 0.5) * NS_PER_S / config.rate) + jitter_ns, index)
        index += 1


def _gamma(config: WorkloadConfig, draw: random.Random, stop_ns: int) -> Iterator[Arrival]:
    """Poisson arrivals whose rate is drawn anew for each window: gamma with mean ``rate`` and variation ``cv``."""
    window_ns, start_ns = config.window_ns, config.start_ns
    shape = 1.0 / (config.cv * config.cv) if config.cv > 0 else 0.0
    while start_ns < stop_ns:
        rate = config.rate * (draw.gammavariate(shape, 1.0 / shape) if shape else 1.0)
        at_ns = start_ns
        while rate > 1e-9:
            at_ns += exponential_ns(draw, NS_PER_S / rate)
            if at_ns >= start_ns + window_ns:
                break  # memoryless: the rest of this gap may be drawn again at the next window's rate
            yield Arrival(at_ns, _any_app(config, draw))
        start_ns += window_ns


def _onoff(config: WorkloadConfig, draw: random.Random, stop_ns: int) -> Iterator[Arrival]:
    """Busy and silent phases of exponential length; ``rate`` is the mean over both."""
    busy_rate = config.rate * (config.on_ns + config.off_ns) / max(1, config.on_ns)
    start_ns = config.start_ns
    while start_ns < stop_ns:
        end_ns = start_ns + exponential_ns(draw, config.on_ns)
        at_ns = start_ns + exponential_ns(draw, NS_PER_S / busy_rate)
        while at_ns < end_ns:
            yield Arrival(at_ns, _any_app(config, draw))
            at_ns += exponential_ns(draw, NS_PER_S / busy_rate)
        start_ns = end_ns + exponential_ns(draw, config.off_ns)


def _path_of(config: WorkloadConfig, directory: str) -> str:
    return os.path.join(directory, os.path.expanduser(config.file))


def _trace(
    config: WorkloadConfig, draw: random.Random, stop_ns: int, directory: str, origin_ns: Optional[int]
) -> Iterator[Arrival]:
    """Replay of a CSV: recorded times, stretched by ``scale`` (or to ``rate``), never resampled."""
    rows = read_trace(
        _path_of(config, directory), draw, stop_ns if not config.rate and origin_ns is None else None, origin_ns
    )
    scale = config.scale
    if config.rate and len(rows) > 1 and rows[-1].at_ns > 0:
        scale = len(rows) / config.rate * NS_PER_S / rows[-1].at_ns
    for row in rows:
        yield Arrival(config.start_ns + round(row.at_ns * scale), row.app_index, row.hints)


_OPEN: Dict[str, Callable[[WorkloadConfig, random.Random, int], Iterator[Arrival]]] = {
    "poisson": _poisson,
    "periodic": _periodic,
    "gamma": _gamma,
    "onoff": _onoff,
}


# --- traces -----------------------------------------------------------------------------------------------------------


def read_trace(
    path: str, draw: random.Random, stop_ns: Optional[int] = None, origin_ns: Optional[int] = None
) -> List[Arrival]:
    """Arrivals of a CSV trace, sorted, starting at 0, or at ``origin_ns`` of the trace's own time. The header decides
    the format:

    * ``TIMESTAMP, ContextTokens, GeneratedTokens`` (Azure LLM): hints ``input_tokens``, ``output_tokens``;
    * ``timestamp_ms, input_tokens, output_tokens, ...`` (Mooncake): every further column becomes a hint;
    * ``app, func, end_timestamp, duration`` in seconds (Azure functions): arrival = end - duration, hint
      ``duration_ms``, one app index per function in order of appearance;
    * ``arrival_s`` or ``arrival_ms`` and further numeric columns as hints (our own);
    * no header (ServeGen): windows of start, rate, cv, family and two parameters, from which gaps are drawn.
    """
    ordered = sorted(_rows_of(path, draw, stop_ns)[0], key=lambda item: (item.at_ns, item.app_index))
    start_ns = origin_ns if origin_ns is not None else ordered[0].at_ns if ordered else 0
    return [Arrival(item.at_ns - start_ns, item.app_index, item.hints) for item in ordered]


def _rows_of(path: str, draw: random.Random, stop_ns: Optional[int]) -> Tuple[List[Arrival], str]:
    """The arrivals of a CSV trace in its own time, and what that counts from, for people."""
    try:
        with open(path, newline="", encoding="utf-8-sig", opener=regular_file) as file:
            rows = [row for _, row in zip(range(TRACE_ROWS_MAX), csv.reader(file)) if row]
    except OSError as error:
        raise ConfigError(f"{path}: the trace cannot be read ({error.strerror}); give the path of a CSV file") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the trace is no CSV file ({error})") from None
    if not rows:
        raise ConfigError(f"{path}: the trace is empty; expected a CSV with arrivals")
    header = rows[0]
    try:
        if "TIMESTAMP" in header:
            return [_azure_llm(header, row) for row in rows[1:]], "dates"
        if "end_timestamp" in header:
            return list(_azure_functions(header, rows[1:])), "seconds from its own beginning"
        for column, unit_ns in (("timestamp_ms", NS_PER_MS), ("arrival_ms", NS_PER_MS), ("arrival_s", NS_PER_S)):
            if column in header:
                return [_columns(header, row, column, unit_ns) for row in rows[1:]], "seconds from its own beginning"
        if len(header) == 6 and _is_number(header[0]):
            return list(_servegen(rows, draw, stop_ns)), "seconds from its own beginning"
    except (ValueError, IndexError) as error:
        raise ConfigError(f"{path}: is not a trace of its header's format ({error})") from None
    raise ConfigError(
        f"{path}: header {header!r} is of no known trace; expected a column TIMESTAMP, timestamp_ms, "
        "end_timestamp, arrival_s or arrival_ms"
    )


def _azure_llm(header: Sequence[str], row: Sequence[str]) -> Arrival:
    values = dict(zip(header, row))
    day, _, clock = values["TIMESTAMP"].strip().partition(" ")
    hours, minutes, seconds = clock.split(":")
    whole, _, fraction = seconds.partition(".")
    days = datetime.date(*(int(item) for item in day.split("-"))).toordinal()
    at_s = ((days * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(whole)
    at_ns = at_s * NS_PER_S + int((fraction + "0" * 9)[:9])
    return Arrival(
        at_ns, 0, {"input_tokens": int(values["ContextTokens"]), "output_tokens": int(values["GeneratedTokens"])}
    )


def _azure_functions(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[Arrival]:
    known: Dict[str, int] = {}
    for row in rows:
        values = dict(zip(header, row))
        duration_s = float(values["duration"])
        index = known.setdefault(values["func"], len(known))
        yield Arrival(
            round((float(values["end_timestamp"]) - duration_s) * NS_PER_S), index, {"duration_ms": duration_s * 1000}
        )


def _columns(header: Sequence[str], row: Sequence[str], column: str, unit_ns: int) -> Arrival:
    values = dict(zip(header, row))
    hints = {name: float(value) for name, value in values.items() if name != column and _is_number(value)}
    return Arrival(round(float(values[column]) * unit_ns), 0, hints or None)


def _servegen(rows: Sequence[Sequence[str]], draw: random.Random, stop_ns: Optional[int]) -> Iterator[Arrival]:
    starts_s = [float(row[0]) for row in rows]
    length_s = starts_s[1] - starts_s[0] if len(starts_s) > 1 else 600.0
    count = 0
    for start_s, row in zip(starts_s, rows):
        if stop_ns is not None and (start_s - starts_s[0]) * NS_PER_S >= stop_ns:
            return
        family, at_s = row[3].strip(), start_s
        while family:
            first, second = float(row[4]), float(row[5])
            gap_s = draw.gammavariate(first, second) if family == "Gamma" else draw.weibullvariate(second, first)
            at_s += max(gap_s, 1e-9)
            if at_s >= start_s + length_s:
                break
            count += 1
            if count > TRACE_ROWS_MAX:
                raise ValueError(f"its rows make more than {TRACE_ROWS_MAX} arrivals")
            yield Arrival(round(at_s * NS_PER_S))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
