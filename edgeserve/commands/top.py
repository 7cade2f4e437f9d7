"""``edgeserve top``: what a running server does now, as tables that are refreshed or as JSON; or this device alone."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from edgeserve.client import Client
from edgeserve.commands.connection import add_connection_arguments, connected
from edgeserve.commands.intervals import read_interval_ns
from edgeserve.errors import ConfigError
from edgeserve.units import format_size, ns_to_s

INTERVAL_NS_MIN = 10**8  # 0.1 s: more often, the questions themselves are what is seen
REASONS_SHOWN = 3
MISSING = "-"
WEB_PLACE = "127.0.0.1:0"

Stats = Mapping[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_connection_arguments(parser)
    parser.add_argument("--interval", default="1s", help="between two looks (default: 1s)")
    parser.add_argument(
        "--web",
        nargs="?",
        const=WEB_PLACE,
        metavar="HOST:PORT",
        help="serve it as a page for a browser of this machine instead (default: any free port)",
    )
    parser.add_argument(
        "--count",
        type=int,
        metavar="N",
        help="looks until it ends; 0: until Ctrl-C (default: 0, of --json 1)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object a look instead, with all that is known"
    )
    parser.add_argument(
        "--device",
        nargs="?",
        type=int,
        const=0,
        metavar="GPU",
        help="only this device's clocks, load, heat, power and memory: needs no server (of several GPUs: which)",
    )
    parser.add_argument(
        "--replay",
        metavar="FILE",
        default="",
        help="what recorded lines of tegrastats say ('-': standard input): one line each, or a tab-separated table "
        "with a column 'line'",
    )
    parser.add_argument("--root", default="/", help="with --device: read the files of a recorded machine below here")


def main(args: argparse.Namespace) -> int:
    """Show tables until interrupted. The first look shows what happened since the server's start."""
    count = (1 if args.json else 0) if args.count is None else args.count
    if count < 0:
        raise ConfigError(f"--count {count}: expected 0 or more")
    of_device = args.device is not None or bool(args.replay)
    if args.web and not of_device:
        return _web(args)
    try:
        if of_device:
            from edgeserve.commands.device_readings import show_device

            show_device(args, count)
        else:
            interval_s = ns_to_s(read_interval_ns(args.interval, INTERVAL_NS_MIN))
            with connected(args) as client:
                _show(_looks(client, interval_s, count), args.json)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has seen enough
    return 0


def _show(looks: Iterator[Tuple[Stats, Optional[Stats]]], as_json: bool) -> None:
    if as_json:
        for now, _ in looks:
            print(json.dumps(now), flush=True)
        return
    from rich.console import Group
    from rich.live import Live

    from edgeserve.commands.console import PlainConsole

    console = PlainConsole()
    if not console.is_terminal:
        for now, before in looks:
            console.print(Group(*_tables(now, before)))
        return
    with Live(console=console, auto_refresh=False, screen=False) as live:
        for now, before in looks:
            live.update(Group(*_tables(now, before)), refresh=True)


def _web(args: argparse.Namespace) -> int:
    """The page of a front of its own, until interrupted."""
    from edgeserve.front.runner import run_front
    from edgeserve.fronts.http.front import HttpFront
    from edgeserve.fronts.http.settings import HttpConfig

    settings = HttpConfig(listen=args.web, server_key=args.server_key, client_key=args.client_key)

    def tell(endpoint: str, *places: str) -> None:
        print(f"{places[0]}/ shows the server at {endpoint}", flush=True)

    run_front(HttpFront, settings, args.endpoint, "http", tell)
    return 0


def _looks(client: Client, interval_s: float, count: int) -> Iterator[Tuple[Stats, Optional[Stats]]]:
    """Each answer of ``stats`` with the one before."""
    before: Optional[Stats] = None
    made = 0
    while True:
        now = client.stats()
        yield now, before
        before = now
        made += 1
        if made == count:
            return
        time.sleep(interval_s)


# --- tables -----------------------------------------------------------------------------------------------------------


def _tables(now: Stats, before: Optional[Stats]) -> List[Any]:
    from rich.text import Text

    span_s = now["uptime_s"] - (before["uptime_s"] if before else 0.0)
    head = f"up {_span(now['uptime_s'])}, {now['open']} of at most {now['pending_max']} requests open; " + (
        f"the last {span_s:.1f} s" if before else "since the start"
    )
    why = [Text(line) for line in _why_not(now, before)]
    tables = [Text(head + "; times in ms"), _apps(now, before, span_s), *why, _lanes(now, before, span_s), _models(now)]
    device = _device(now)
    return tables + ([Text(device)] if device else [])


def _apps(now: Stats, before: Optional[Stats], span_s: float) -> Any:
    """One row an app; below it a line that says why requests had no answer."""
    table = _table("app", "/s", "in time", "late", "none", "open", "p50", "p99", "alone", "slo")
    for name, row in now["apps"].items():
        old = before["apps"].get(name) if before else None
        outcomes = {key: count - (old["outcomes"][key] if old else 0) for key, count in row["outcomes"].items()}
        ended = sum(outcomes.values())
        late = row["late"] - (old["late"] if old else 0)
        answered = outcomes["completed"]
        latency = row["latency_ms"]
        table.add_row(
            name,
            _rate(ended, span_s),
            _share(answered - late, ended),
            _share(late, ended),
            _share(ended - answered, ended),
            str(row["open"]),
            _ms(latency.get("p50")),
            _ms(latency.get("p99")),
            _ms(row.get("expected_ms")),
            _ms(row.get("slo_ms")),
        )
    return table


def _why_not(now: Stats, before: Optional[Stats]) -> List[str]:
    """Per app with requests that had no answer: the most frequent reasons of the span."""
    texts = []
    for name, row in now["apps"].items():
        reasons = _reasons(row["reasons"], before["apps"].get(name, {}).get("reasons", {}) if before else {})
        if reasons:
            texts.append(f" {name} without an answer: {reasons}")
    return texts


def _reasons(now: Stats, before: Stats) -> str:
    """The most frequent reasons of the span, each with its count."""
    counts: Dict[str, int] = {}
    for outcome, table in now.items():
        for reason, count in table.items():
            new = count - before.get(outcome, {}).get(reason, 0)
            if new > 0:
                counts[reason] = counts.get(reason, 0) + new
    often = sorted(counts.items(), key=lambda item: -item[1])
    shown = [f"{reason} {count}" for reason, count in often[:REASONS_SHOWN]]
    return ", ".join(shown + ([f"{len(often) - REASONS_SHOWN} more"] if len(often) > REASONS_SHOWN else []))


def _lanes(now: Stats, before: Optional[Stats], span_s: float) -> Any:
    table = _table("lane", "state", "busy", "batches/s", "jobs/batch", "in flight", "refused", "failed")
    for name, row in now["lanes"].items():
        old = before["lanes"].get(name) if before else None
        works = row["works"] - (old["works"] if old else 0)
        jobs = row["jobs"] - (old["jobs"] if old else 0)
        busy_s = row["busy"] * now["uptime_s"] - (old["busy"] * before["uptime_s"] if old and before else 0.0)
        table.add_row(
            name,
            row["state"],
            _share(max(0.0, busy_s), span_s),
            _rate(works, span_s),
            f"{jobs / works:.1f}" if works and jobs else MISSING,
            str(row["in_flight"]),
            str(row["refused"]),
            str(row["failed"]),
        )
    return table


def _models(now: Stats) -> Any:
    """Believed beside measured times, for batches of the smallest and of the largest size."""
    table = _table("model", "lane", "batch", "typical", "careful", "ratio", "known from", "in memory")
    places: Dict[str, List[str]] = {}
    for device, row in now["devices"].items():
        for model in row["models"]:
            places.setdefault(model, []).append(device)
    for model, row in now["models"].items():
        for lane, figures in row["latency"].items():
            sizes = list(figures["sizes"])
            for size in dict.fromkeys((sizes[0], sizes[-1])) if sizes else ():
                known = figures["sizes"][size]
                table.add_row(
                    model,
                    lane,
                    size,
                    _ms(known["typical_ms"]),
                    _ms(known["estimate_ms"]),
                    f"{figures['pace']:.2f}",
                    known["source"] or MISSING,
                    ", ".join(places.get(model, ())) or "no",
                )
    return table


def _device(now: Stats) -> str:
    """The readings of the device's monitors, and how much memory is taken, as sentences."""
    texts: List[str] = []
    for name, row in now["devices"].items():
        budget = f" of {format_size(row['budget_bytes'])}" if row["budget_bytes"] else ""
        limits = "".join(f", {limit} limit: {row[limit]}" for limit in ("thermal", "power") if row[limit] != "none")
        texts.append(f"{name}: {format_size(row['used_bytes'])}{budget} in use{limits}")
    for name, row in now.get("device", {}).get("monitors", {}).items():
        known = row["readings"] or {}
        parts = [
            f"GPU {known['gpu_load']:.0%}" if known.get("gpu_load") is not None else "",
            f"CPU {known['cpu_load']:.0%}" if known.get("cpu_load") is not None else "",
            f"{known['temperature_c']:.0f} C" if known.get("temperature_c") is not None else "",
            f"{known['power_w']:.1f} W" if known.get("power_w") is not None else "",
        ]
        texts.append(f"{name}: " + (", ".join(part for part in parts if part) or "nothing is known"))
    return "; ".join(texts)


def _table(first: str, *columns: str) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(first, overflow="fold")
    for column in columns:
        text = column in ("state", "lane", "known from", "in memory")
        table.add_column(column, justify="left" if text else "right", overflow="fold")
    return table


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole > 0 else MISSING


def _rate(count: int, span_s: float) -> str:
    return f"{count / span_s:.1f}" if span_s > 0 else MISSING


def _ms(value: Optional[float]) -> str:
    if value is None:
        return MISSING
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
