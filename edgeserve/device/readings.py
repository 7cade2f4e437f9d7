"""The state of a device by a parsed line of tegrastats: a partial :class:`DeviceState`, units converted.

What a line lacks stays None. Names are matched without regard to case and to the suffix ``_FREQ``, which releases add
and drop.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from edgeserve.device.boards import NOT_CONNECTED, gpu_power_w, total_power_w
from edgeserve.device.parse import Line, Token, Value, is_gated
from edgeserve.device.state import DeviceState
from edgeserve.device.thermal import heat_state, zone_name

_BYTES = {
    "b": 1,
    "kb": 1 << 10,
    "mb": 1 << 20,
    "gb": 1 << 30,
    "tb": 1 << 40,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
"""tegrastats counts in powers of two: its total is /proc/meminfo's, shifted."""

_HZ = {"hz": 1, "khz": 10**3, "mhz": 10**6, "ghz": 10**9}
_W = {"w": 1.0, "mw": 1e-3, "uw": 1e-6}

GPU_ENGINES = ("gr3d", "gr3d2")
EMC_ENGINES = ("emc",)


def state_of_line(line: Line, at_ns: int = 0) -> DeviceState:
    """The quantities of one line."""
    values: Dict[str, Any] = {"at_ns": at_ns, **_memory(line), **_cores(line)}
    load, clock = _engine(line, GPU_ENGINES)
    values.update(gpu_load=load, gpu_clock_hz=clock)
    values["emc_load"], values["emc_clock_hz"] = _engine(line, EMC_ENGINES)
    values["rails_w"] = rails = rails_of(line)
    values.update(power_w=total_power_w(rails), power_gpu_w=gpu_power_w(rails))
    heat = heat_state(temperatures_of(line), {})
    values.update(
        {
            name: getattr(heat, name)
            for name in (
                "temperatures_c",
                "temperature_c",
                "temperature_zone",
                "temperature_soft_c",
                "temperature_hard_c",
            )
        }
    )
    return DeviceState(**values)


def bytes_of(value: Optional[Value]) -> Optional[int]:
    """A size in bytes; None where it or its unit is not known."""
    factor = _BYTES.get(value.unit.lower()) if value is not None else None
    if value is None or value.value is None or factor is None:
        return None
    return round(value.value * factor)


def hertz_of(value: Optional[Value]) -> Optional[int]:
    """A clock in hertz."""
    factor = _HZ.get(value.unit.lower()) if value is not None else None
    if value is None or value.value is None or factor is None:
        return None
    return round(value.value * factor)


def share_of(value: Optional[Value]) -> Optional[float]:
    """A load from 0.0 to 1.0. More than 100 % is no load: None."""
    if value is None or value.value is None or value.unit != "%" or not 0 <= value.value <= 100:
        return None
    return value.value / 100


def watts_of(value: Optional[Value]) -> Optional[float]:
    """A power in watts; None for volts and amperes."""
    factor = _W.get(value.unit.lower()) if value is not None else None
    if value is None or value.value is None or factor is None:
        return None
    return round(value.value * factor, 6)


def celsius_of(value: Optional[Value]) -> Optional[float]:
    """A temperature; None where the sensor is off."""
    if value is None or value.value is None or value.state:
        return None
    now = float(value.value)
    celsius = {"f": (now - 32) / 1.8, "k": now - 273.15}.get(value.unit.lower(), now)
    return None if is_gated(celsius) else celsius


def rails_of(line: Line) -> Dict[str, float]:
    """Watts per rail, by the first value of each: averages begin anew whenever tegrastats does."""
    found: Dict[str, float] = {}
    for token in line.of("rail"):
        watts = watts_of(token.values[0])
        if watts is not None and token.name.upper() != NOT_CONNECTED:
            found.setdefault(token.name, watts)
    return found


def temperatures_of(line: Line) -> Dict[str, float]:
    """Degrees per zone; zones that are off have none."""
    found: Dict[str, float] = {}
    for token in line.of("temperature"):
        celsius = celsius_of(token.get("now"))
        if celsius is not None:
            found.setdefault(zone_name(token.name), celsius)
    return found


def _token(line: Line, kind: str, name: str) -> Optional[Token]:
    return next((token for token in line.of(kind) if token.name.lower() == name), None)


def _memory(line: Line) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    ram, swap = _token(line, "memory", "ram"), _token(line, "memory", "swap")
    if ram is not None:
        used, total = bytes_of(ram.get("used")), bytes_of(ram.get("total"))
        found["memory_total_bytes"] = total
        if used is not None and total is not None:
            found["memory_available_bytes"] = max(0, total - used)
        found["largest_free_block_bytes"] = bytes_of(ram.get("lfb"))
        count = ram.get("lfb_count")
        found["free_blocks"] = count.value if count is not None else None
    if swap is not None:
        used, total = bytes_of(swap.get("used")), bytes_of(swap.get("total"))
        if used is not None and total is not None:
            found["swap_free_bytes"] = max(0, total - used)
    return found


def _cores(line: Line) -> Dict[str, Any]:
    """Cores that are off count among the cores and not in the load."""
    token = _token(line, "cores", "cpu")
    if token is None:
        return {}
    loads: List[Value] = token.all("load")
    shares = [share for share in map(share_of, loads) if share is not None]
    clocks = {f"cpu{value.index}": hertz_of(value) for value in token.all("clock") if value.index is not None}
    common = next((value for value in token.all("clock") if value.index is None), None)
    if common is not None:
        clocks = {f"cpu{value.index}": hertz_of(common) for value in loads if value.value is not None}
    return {
        "cpu_cores": len(loads),
        "cpu_cores_online": len(shares),
        "cpu_load": round(sum(shares) / len(shares), 4) if shares else None,
        "cpu_clocks_hz": {name: hertz for name, hertz in clocks.items() if hertz is not None},
    }


def _engine(line: Line, names: tuple[str, ...]) -> tuple[Optional[float], Optional[int]]:
    """Load and clock of the engine that has the first of the names. Of several clocks (one per cluster) the highest
    counts. 0 means power-gated, which is no clock that work would run at: None."""
    for name in names:
        token = _token(line, "engine", name) or _token(line, "engine", f"{name}_freq")
        if token is not None:
            clocks = [hertz for hertz in map(hertz_of, token.all("clock")) if hertz is not None]
            return share_of(token.get("load")), max(clocks, default=0) or None
    return None, None
