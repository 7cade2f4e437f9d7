"""The present state of this device (clocks, load, heat, power, memory), or what recorded lines of tegrastats say:
``edgeserve top --device``."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import time
from typing import IO, Any, Dict, Iterator, Optional, Sequence, Tuple

from edgeserve.commands.intervals import read_interval_ns
from edgeserve.config.text_files import regular_file
from edgeserve.device.boards import Machine, detect_board
from edgeserve.device.monitor import Monitor
from edgeserve.device.replay import bounded_lines, line_table, recorded_lines
from edgeserve.device.sources import TEGRASTATS, sources_for
from edgeserve.device.state import DeviceState
from edgeserve.errors import ConfigError
from edgeserve.live.loop_io import clock_ns
from edgeserve.units import format_size, ns_to_s

INTERVAL_NS_MIN = 10**7  # 10 ms: more often, the monitor itself is what is measured


def show_device(args: argparse.Namespace, looks: int) -> None:
    """Print ``looks`` readings (0: until interrupted), or what ``--replay`` names."""
    if args.replay:
        _replay(args)
    else:
        _watch(args, looks)


# --- recorded lines ---------------------------------------------------------------------------------------------------


def _replay(args: argparse.Namespace) -> None:
    with _open(args.replay) as file:
        rows = (line_table(recorded) for recorded in recorded_lines(bounded_lines(file)))
        try:
            if args.json:
                for row in rows:
                    print(json.dumps(row))
            else:
                _print_replay(rows)
        except ValueError as error:
            raise ConfigError(f"--replay {args.replay}: {error}; expected a file of lines of tegrastats") from None


@contextlib.contextmanager
def _open(path: str) -> Iterator[IO[str]]:
    if path == "-":
        yield io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="replace", newline="\n")
        return
    try:
        file = open(path, encoding="utf-8", errors="replace", newline="\n", opener=regular_file)  # noqa: SIM115 closed below
    except OSError as error:
        raise ConfigError(
            f"--replay {path}: {error.strerror}; expected a file of lines of tegrastats, or - for what is piped in"
        ) from None
    with file:
        yield file


def _print_replay(rows: Iterator[Dict[str, Any]]) -> None:
    from rich.table import Table

    from edgeserve.commands.console import PlainConsole

    table = Table("line", "time", "GPU", "GPU clock", "CPU", "memory free", "lfb", "hottest", "power", "unparsed")
    for row in rows:
        known = row["readings"]
        block = known["largest_free_block_bytes"]
        table.add_row(
            str(row["number"]),
            row["time"] or "-",
            _share(known["gpu_load"]),
            _hertz(known["gpu_clock_hz"]),
            _share(known["cpu_load"]),
            _size(known["memory_available_bytes"]),
            "-" if block is None else f"{known['free_blocks']} x {format_size(block)}",
            _celsius(known["temperature_c"], known["temperature_zone"]),
            _watts(known["power_w"]),
            " ".join(row["unparsed"]) or "none",
        )
    PlainConsole().print(table)


# --- this machine -----------------------------------------------------------------------------------------------------


def _watch(args: argparse.Namespace, looks: int) -> None:
    interval_ns = read_interval_ns(args.interval, INTERVAL_NS_MIN)
    board = detect_board(args.root)
    monitor = Monitor(
        "here",
        sources_for(board, args.root, args.device or 0, TEGRASTATS[0]),
        lambda state: None,
        clock_ns,
        time.thread_time_ns,
        interval_ns,
    )
    try:
        states = _states(monitor, interval_ns, looks)
        if args.json:
            for state in states:
                print(json.dumps(_state_table(state, board)), flush=True)
        else:
            _live_table(states, monitor, board)
    finally:
        monitor.stop()


def _states(monitor: Monitor, interval_ns: int, count: int) -> Iterator[DeviceState]:
    """Readings at a steady rate; all of them, or ``count``."""
    made, due_ns = 0, clock_ns()
    while not count or made < count:
        time.sleep(max(0.0, ns_to_s(due_ns - clock_ns())))
        due_ns = max(due_ns, clock_ns() - interval_ns) + interval_ns
        made += 1
        yield monitor.turn()


def _state_table(state: DeviceState, board: Machine) -> Dict[str, Any]:
    """One reading for JSON, on the wall clock."""
    readings = state.table()
    del readings["at_ns"]
    return {
        "time_s": round(time.time(), 3),
        "board": board.kind.slug,
        "model": board.model,
        "l4t": board.l4t or None,
        "jetpack": board.jetpack or None,
        "readings": readings,
    }


def _live_table(states: Iterator[DeviceState], monitor: Monitor, board: Machine) -> None:
    from rich.live import Live

    from edgeserve.commands.console import PlainConsole

    console = PlainConsole()
    with Live(console=console, auto_refresh=False) as live:
        for state in states:
            live.update(_table(state, monitor, board), refresh=True)


def _table(state: DeviceState, monitor: Monitor, board: Machine) -> Any:
    from rich.table import Table

    title = " ".join(
        part
        for part in (
            board.model or board.kind.name,
            f"L4T {board.l4t}" if board.l4t else "",
            f"JetPack {board.jetpack}" if board.jetpack else "",
        )
        if part
    )
    costs = monitor.costs()
    table = Table("quantity", "now", "limit", title=title, caption=f"reading costs {costs['core_share']:.2%} of a core")
    for name, now, limit in rows_of(state):
        table.add_row(name, now, limit)
    return table


def rows_of(state: DeviceState) -> Sequence[Tuple[str, str, str]]:
    """(quantity, now, limit) as the live table shows them; ``-`` where nothing is known."""
    block = state.largest_free_block_bytes
    free = f"largest free blocks {state.free_blocks} x {format_size(block)}" if block is not None else ""
    cores = "-" if state.cpu_cores_online is None else f"{state.cpu_cores_online} of {state.cpu_cores or '?'} cores on"
    soft, hard = state.temperature_soft_c, state.temperature_hard_c
    rows = [
        ("GPU load", _share(state.gpu_load), ""),
        ("GPU clock", _hertz(state.gpu_clock_hz), _most(state.gpu_clock_max_hz, state.gpu_clock_top_hz)),
        (
            "memory controller",
            f"{_share(state.emc_load)} at {_hertz(state.emc_clock_hz)}",
            _hertz(state.emc_clock_max_hz),
        ),
        ("CPU load", _share(state.cpu_load), cores),
        (
            "memory available",
            _size(state.memory_available_bytes),
            " ".join(part for part in (f"of {_size(state.memory_total_bytes)}", free) if part),
        ),
        ("memory pressure", _share(state.memory_pressure), ""),
        ("GPU memory free", _size(state.gpu_memory_free_bytes), _size(state.gpu_memory_total_bytes)),
        (
            "hottest",
            _celsius(state.temperature_c, state.temperature_zone),
            "-" if soft is None or hard is None else f"soft {soft:.0f} C, hard {hard:.0f} C",
        ),
        ("power", _watts(state.power_w), _watts(state.power_cap_w)),
        ("power mode", state.power_mode or "-", _hertz(state.power_mode_gpu_clock_hz)),
        ("throttling", "-" if state.throttles is None else ", ".join(state.throttles) or "none", ""),
        ("fan", _share(state.fan), "" if state.fan_rpm is None else f"{state.fan_rpm} rpm"),
    ]
    zones = ", ".join(f"{zone} {value:.1f}" for zone, value in sorted(state.temperatures_c.items()))
    rails = ", ".join(f"{rail} {value:.2f}" for rail, value in sorted(state.rails_w.items()))
    rows += [("zones (C)", zones, "")] if zones else []
    rows += [("rails (W)", rails, "")] if rails else []
    return rows


def _share(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.0%}"


def _hertz(value: Optional[int]) -> str:
    return "-" if value is None else f"{value / 1e6:.0f} MHz"


def _most(allowed: Optional[int], top: Optional[int]) -> str:
    if allowed is None:
        return _hertz(top)
    return _hertz(allowed) if top is None or top == allowed else f"{_hertz(allowed)} (hardware {_hertz(top)})"


def _size(value: Optional[int]) -> str:
    return "-" if value is None else format_size(value)


def _watts(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.2f} W"


def _celsius(value: Optional[float], zone: Optional[str]) -> str:
    return "-" if value is None else f"{value:.1f} C ({zone})"
