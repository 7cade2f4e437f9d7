"""The users of a device's energy: the reported power over time, charged to apps by the time that their batches ran.

Between two reports all energy goes to the apps whose batches ended meanwhile, in proportion to the lane time of these,
what the device draws when idle included. Floats, since no decision depends on them.
"""

from __future__ import annotations

from typing import Any, Dict

from edgeserve.units import NS_PER_S


class EnergyMeter:
    """The energy of one device in joules: in all, per app, and of times in which nothing ran. ``is_on``: some power was
    reported."""

    def __init__(self) -> None:
        self.is_on = False
        self.total_j = 0.0
        self.idle_j = 0.0
        self.by_app_j: Dict[str, float] = {}
        self._power_w: float | None = None
        self._since_ns = 0
        self._busy_ns: Dict[str, float] = {}

    def reported(self, now_ns: int, power_w: float) -> None:
        """The device draws so much from now on."""
        self.close(now_ns)
        self._power_w = power_w
        self.is_on = True

    def ran(self, app: str, took_ns: float) -> None:
        """So much lane time of an app's is over."""
        self._busy_ns[app] = self._busy_ns.get(app, 0.0) + took_ns

    def close(self, now_ns: int) -> None:
        """Charge what was used since the last report."""
        if self._power_w is not None and now_ns > self._since_ns:
            used_j = self._power_w * (now_ns - self._since_ns) / NS_PER_S
            self.total_j += used_j
            busy_ns = sum(list(self._busy_ns.values()), 0.0)
            if busy_ns > 0:
                for app, took_ns in self._busy_ns.items():
                    self.by_app_j[app] = self.by_app_j.get(app, 0.0) + used_j * took_ns / busy_ns
            else:
                self.idle_j += used_j
        self._busy_ns = {}
        self._since_ns = now_ns

    def figures(self, now_ns: int) -> Dict[str, Any]:
        """Joules so far, for people."""
        self.close(max(now_ns, self._since_ns))
        return {
            "power_w": self._power_w,
            "energy_j": round(self.total_j, 3),
            "idle_j": round(self.idle_j, 3),
            "energy_j_by_app": {app: round(used_j, 3) for app, used_j in sorted(self.by_app_j.items())},
        }
