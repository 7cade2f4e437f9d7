"""The fan: how far it is driven and how fast it turns."""

from __future__ import annotations

from typing import Optional

from edgeserve.device.files import listing, read_text
from edgeserve.device.source import SLOW_NS, FileSource
from edgeserve.device.state import DeviceState

FULL_DRIVE = 255  # pwm1 counts to this
DRIVES, SPEEDS = ("pwm1",), ("rpm", "fan1_input")


class FanSource(FileSource):
    """The fan of hwmon (``pwmfan``, ``pwm_tach``, a desktop's board) or of JetPack 4's ``pwm-fan`` folder."""

    name = "fan"
    every_ns = SLOW_NS

    def __init__(self, root: str = "/") -> None:
        super().__init__(root)
        folders = listing(root, "sys/class/hwmon/hwmon*")
        self.drive = next(
            (f"{folder}/{name}" for folder in folders for name in DRIVES if read_text(root, f"{folder}/{name}")), ""
        )
        self.speed = next(
            (f"{folder}/{name}" for folder in folders for name in SPEEDS if read_text(root, f"{folder}/{name}")), ""
        )
        if not self.drive and read_text(root, "sys/devices/pwm-fan/cur_pwm"):
            self.drive = "sys/devices/pwm-fan/cur_pwm"
            self.speed = self.speed or "sys/devices/generic_pwm_tachometer/hwmon/hwmon1/rpm"

    def read(self, now_ns: int) -> DeviceState:
        """Drive as a share, and revolutions a minute."""
        drive = self._files.integer(self.drive) if self.drive else None
        speed: Optional[int] = self._files.integer(self.speed) if self.speed else None
        return DeviceState(fan=None if drive is None else max(0.0, min(1.0, drive / FULL_DRIVE)), fan_rpm=speed)
