"""The readable quantities of the device, from which source; and what heat, power and over-current say now."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from edgeserve.commands.doctor.finding import Finding, good, note, wrong
from edgeserve.device.boards import Machine
from edgeserve.device.files import read_integer
from edgeserve.device.parse import Line, parse_line
from edgeserve.device.source import DeviceSource
from edgeserve.device.sources import sources_for
from edgeserve.device.state import DeviceState, merged
from edgeserve.device.tegrastats import COMMAND
from edgeserve.device.throttling import over_current_counters
from edgeserve.units import NS_PER_S, format_size

OVER_CURRENT_S = 2.0  # between two looks at counters that tick several times a second when they tick
TEGRASTATS_S = 5.0  # its first line comes after its interval

QUANTITIES = (
    ("gpu_load", "GPU load"),
    ("gpu_clock_max_hz", "GPU clock"),
    ("temperature_c", "temperature"),
    ("power_w", "power"),
    ("memory_available_bytes", "memory"),
)
"""The names, as people call them, of what the scheduler can use."""


def check_telemetry(root: str, board: Machine) -> List[Finding]:
    """Each quantity with its value and the source that tells it; what nothing tells, with what would."""
    readings = _readings(root, board)
    told, silent = _told(readings)
    state = merged([reading for _, reading in readings])
    wanted = QUANTITIES if board.kind.slug != "cpu" else QUANTITIES[-1:]
    absent = [label for name, label in wanted if name in silent]
    text = "; ".join(
        f"{label} {_shown(name, getattr(state, name))} ({told[name]})" for name, label in QUANTITIES if name in told
    )
    if not absent:
        return good("telemetry", text)
    return note(
        "telemetry",
        f"nothing tells {', '.join(absent)}{'; ' if text else ''}{text}",
        _telemetry_mend(board, [source for source, _ in readings], absent),
    )


def _readings(root: str, board: Machine) -> List[Tuple[DeviceSource, DeviceState]]:
    sources = sources_for(board, root, tegrastats="never")
    try:
        return [(source, source.read(0)) for source in sources]
    finally:
        for source in sources:
            source.close()


def _told(readings: Sequence[Tuple[DeviceSource, DeviceState]]) -> Tuple[Dict[str, str], List[str]]:
    told: Dict[str, str] = {}
    for name, _ in QUANTITIES:
        source = next((source.name for source, state in readings if getattr(state, name) is not None), None)
        if source is not None:
            told[name] = source
    return told, [name for name, _ in QUANTITIES if name not in told]


def _telemetry_mend(board: Machine, sources: Sequence[DeviceSource], absent: Sequence[str]) -> str:
    trouble = next((str(getattr(source, "trouble", "")) for source in sources if getattr(source, "trouble", "")), "")
    if board.kind.slug == "thor" and "GPU load" in absent:
        mend = trouble or "pip install nvidia-ml-py (jetson/setup.sh does)"
        return f"{mend}: NVML alone tells Thor's GPU load, tegrastats does not"
    if board.is_jetson:
        return "run edgeserve as a user of the groups video and render"
    return trouble or "pip install 'edgeserve-runtime[gpu]', and the NVIDIA driver"


def _shown(name: str, value: Any) -> str:
    if name.endswith("_hz"):
        return f"{value / 1e6:.0f} MHz"
    if name.endswith("_bytes"):
        return format_size(value)
    return {"gpu_load": f"{value:.0%}", "temperature_c": f"{value:.1f} C", "power_w": f"{value:.2f} W"}[name]


def check_heat(root: str, board: Machine) -> List[Finding]:
    """The chip's distance from its limits, and power alarms that are raised."""
    state = merged([reading for _, reading in _readings(root, board)])
    found = []
    if state.temperature_c is not None and state.soft_margin_c is not None and state.hard_margin_c is not None:
        text = (
            f"{state.temperature_zone} {state.temperature_c:.1f} C (soft limit {state.temperature_soft_c:.0f} C, "
            f"hard limit {state.temperature_hard_c:.0f} C)"
        )
        if state.hard_margin_c <= 0:
            found += wrong(
                "heat",
                f"{text}: clocks are lowered, or will be",
                "improve the cooling (fan, heat sink, air), or choose a weaker power mode (sudo nvpmodel -q --verbose)",
            )
        elif state.soft_margin_c <= 0:
            found += note(
                "heat",
                f"{text}: near the point where clocks are lowered",
                "improve the cooling, or choose a weaker power mode",
            )
        else:
            found += good("heat", text)
    alarms = [flag for flag in state.throttles or () if flag.startswith("power_alarm")]
    if alarms:
        found += note(
            "power",
            f"over the limit now: {', '.join(alarms)}",
            "choose a weaker power mode, or a stronger power supply",
        )
    return found


def check_over_current(root: str, wait_s: float = OVER_CURRENT_S) -> List[Finding]:
    """Over-current events while this looks; the counters count since the board started."""
    counters = over_current_counters(root)
    if not counters:
        return []
    before = {kind: read_integer(root, path) for kind, path in counters}
    time.sleep(wait_s)
    after = {kind: read_integer(root, path) for kind, path in counters}
    grown = {kind: (now or 0) - (before[kind] or 0) for kind, now in after.items() if (now or 0) > (before[kind] or 0)}
    if grown:
        told = ", ".join(f"{kind} {count} times" for kind, count in grown.items())
        return note(
            "over-current",
            f"in {wait_s:g} s: {told}: the hardware lowers clocks for moments",
            "choose a weaker power mode, or a power supply that gives more (docs/guide/device.md)",
        )
    past = ", ".join(f"{kind} {count}" for kind, count in after.items() if count)
    return good("over-current", f"none now{f' (since start: {past})' if past else ''}")


def check_tegrastats(board: Machine, path: Optional[str] = None) -> List[Finding]:
    """One line of tegrastats, and what of it is not understood. ``path`` is the program's; by default it is looked
    for."""
    program = path if path is not None else shutil.which(COMMAND)
    if not program:
        if not board.is_jetson:
            return []
        return note(
            "tegrastats",
            "not found: what only it tells (with root: engines, EMC) is unknown",
            "in a container: docker run -v /usr/bin/tegrastats:/usr/bin/tegrastats ...",
        )
    line = one_line(program)
    if line is None:
        return note("tegrastats", f"{program} wrote no line within {TEGRASTATS_S:.0f} s", f"{program}, by hand")
    if line.unparsed:
        return note(
            "tegrastats",
            f"{program}: {len(line.tokens)} tokens, not understood: {' '.join(line.unknown)}",
            "update edgeserve-runtime, or report the line (edgeserve top --device "
            "--replay shows what is understood of it)",
        )
    return good("tegrastats", f"{program}: {len(line.tokens)} tokens, all understood")


def one_line(program: str) -> Optional[Line]:
    """The first line that the program writes; None when none comes in time. Our own child is ended."""
    try:
        process = subprocess.Popen(
            [program, "--interval", "500"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return None
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    text, due_ns = b"", time.monotonic_ns() + round(TEGRASTATS_S * NS_PER_S)
    try:
        while b"\n" not in text and time.monotonic_ns() < due_ns:
            try:
                got = os.read(process.stdout.fileno(), 1 << 16)
            except BlockingIOError:
                time.sleep(0.02)
                continue
            if not got:
                break
            text += got
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    line = parse_line(text.split(b"\n")[0].decode("utf-8", "replace"))
    return line if b"\n" in text and line.tokens else None
