"""Which changes of a device matter: readings to reports, quantised and debounced, without a clock of its own.

A quantity is reported when it is at least one step away from what was reported last. Worse news (less memory, lower
clocks, more heat) is told at once where a step says so; other news must last for :data:`HOLD_NS`. A value that swings
within a step is never reported, and what was reported stays until something else is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from edgeserve.device.state import MAPPINGS, QUANTITIES, DeviceState
from edgeserve.units import NS_PER_S

HOLD_NS = NS_PER_S
"""The time that news must last before it is told, unless it is urgent. Clocks ramp up within a second of the first
work."""


class LeastChange(NamedTuple):
    """The least change that is told: ``relative`` to the reported value and ``absolute``, whichever is more; values are
    rounded to ``grid`` (0 = told exactly). ``worse``: -1 where less is worse, 1 where more is; such news is urgent."""

    relative: float = 0.0
    absolute: float = 0.0
    grid: float = 0
    worse: int = 0


MIB = 1 << 20

STEPS: Dict[str, LeastChange] = {
    # 8 %: a clock that jitters by 5 % is not told, each step of the frequency tables of Jetsons (12 to 20 %) is.
    "gpu_clock_hz": LeastChange(relative=0.08),
    "gpu_clock_min_hz": LeastChange(relative=0.08),
    "gpu_clock_max_hz": LeastChange(relative=0.04, worse=-1),
    "gpu_clock_top_hz": LeastChange(relative=0.01),
    "emc_clock_hz": LeastChange(relative=0.08),
    "emc_clock_max_hz": LeastChange(relative=0.04),
    "gpu_load": LeastChange(absolute=0.2, grid=0.05),
    "emc_load": LeastChange(absolute=0.2, grid=0.05),
    "cpu_load": LeastChange(absolute=0.2, grid=0.05),
    "cpu_cores_online": LeastChange(),
    "cpu_cores": LeastChange(),
    "memory_available_bytes": LeastChange(relative=0.1, absolute=64 * MIB, grid=16 * MIB, worse=-1),
    "memory_total_bytes": LeastChange(relative=0.01),
    "memory_pressure": LeastChange(absolute=0.1, grid=0.05, worse=1),
    "swap_free_bytes": LeastChange(relative=0.2, absolute=256 * MIB, grid=64 * MIB),
    "largest_free_block_bytes": LeastChange(relative=0.4),
    "free_blocks": LeastChange(relative=0.5, absolute=8),
    "gpu_memory_used_bytes": LeastChange(relative=0.1, absolute=64 * MIB, grid=16 * MIB),
    "gpu_memory_free_bytes": LeastChange(relative=0.1, absolute=64 * MIB, grid=16 * MIB, worse=-1),
    "gpu_memory_total_bytes": LeastChange(relative=0.01),
    "temperature_c": LeastChange(absolute=2.0, grid=1.0, worse=1),
    "temperature_zone": LeastChange(),
    "temperature_soft_c": LeastChange(absolute=0.5),
    "temperature_hard_c": LeastChange(absolute=0.5),
    "power_w": LeastChange(relative=0.1, absolute=0.5, grid=0.1),
    "power_gpu_w": LeastChange(relative=0.1, absolute=0.5, grid=0.1),
    "power_cap_w": LeastChange(absolute=0.5),
    "throttles": LeastChange(worse=1),
    "fan": LeastChange(absolute=0.1, grid=0.05),
    "fan_rpm": LeastChange(relative=0.25, absolute=200, grid=100),
    "power_mode": LeastChange(),
    "power_mode_gpu_clock_hz": LeastChange(relative=0.01),
    "power_mode_emc_clock_hz": LeastChange(relative=0.01),
}
"""Every quantity that is reported. Temperatures, rails and clocks by name go along and are no news by themselves."""

assert set(STEPS) | set(MAPPINGS) == set(QUANTITIES), "a quantity of DeviceState has no step"


class ChangeReport(NamedTuple):
    """A device changed enough to matter: ``state`` with the steady (quantised) values, ``changed`` names all that are
    not what the report before said, and ``before`` is what that said of them. The first report names everything that is
    known; before it, nothing was."""

    state: DeviceState
    changed: Tuple[str, ...]
    before: Mapping[str, Any]


class ChangeFilter:
    """Keeps what was reported last of one device. :meth:`update` is the only method, and changes it."""

    def __init__(self) -> None:
        self._reported: Dict[str, Any] = dict.fromkeys(STEPS)
        self._since_ns: Dict[str, int] = {}

    def update(self, state: DeviceState) -> Optional[ChangeReport]:
        """A report when something changed enough and for long enough, else None."""
        changed: List[str] = []
        for name, step in STEPS.items():
            value, before = getattr(state, name), self._reported[name]
            if not _differs(value, before, step):
                self._since_ns.pop(name, None)
                continue
            since_ns = self._since_ns.setdefault(name, state.at_ns)
            if before is None or _is_worse(value, before, step) or state.at_ns - since_ns >= HOLD_NS:
                changed.append(name)
        if not changed:
            return None
        past = {name: self._reported[name] for name in changed}
        for name in changed:
            self._reported[name] = _rounded(getattr(state, name), STEPS[name])
            self._since_ns.pop(name, None)
        return ChangeReport(replace(state, **self._reported), tuple(changed), past)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _differs(value: Any, before: Any, step: LeastChange) -> bool:
    if not _is_number(value) or not _is_number(before):
        return bool(value != before)
    least = max(step.relative * abs(before), step.absolute)
    return bool(value != before and abs(value - before) >= least)


def _is_worse(value: Any, before: Any, step: LeastChange) -> bool:
    """True if news cannot wait. Of flags, a new one cannot."""
    if isinstance(value, tuple):
        return bool(set(value) - set(before))
    return bool(step.worse and _is_number(value) and (value - before) * step.worse > 0)


def _rounded(value: Any, step: LeastChange) -> Any:
    """To the grid: in the worse direction, where there is one, so that never more is promised than there is."""
    if not step.grid or not _is_number(value):
        return value
    lower = int(value // step.grid)
    exact = value == lower * step.grid
    nearest = lower + (value - lower * step.grid >= step.grid / 2)
    count = lower if exact or step.worse < 0 else lower + 1 if step.worse > 0 else nearest
    return type(value)(count * step.grid) if isinstance(value, int) else round(count * step.grid, 6)
