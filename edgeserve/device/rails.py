"""Power by rail: the INA3221 and INA238 sensors in hwmon (JetPack 5 and later), the INA3221 in iio (JetPack 4)."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Tuple

from edgeserve.device.boards import NOT_CONNECTED, gpu_power_w, total_power_w
from edgeserve.device.files import listing, read_text
from edgeserve.device.source import SLOW_NS, FileSource
from edgeserve.device.state import DeviceState

CHIPS = ("ina3221", "ina238", "ina237", "ina226", "ina219")
SUM_LABEL = "sum of shunt voltages"  # a channel that the chip adds up; it has no current

ALARM = "power_alarm"


class Rail(NamedTuple):
    """The files of one rail's numbers: ``power`` alone, or ``volts`` and ``amps``; ``scale`` makes watts of them.
    ``alarms`` are files that hold 1 while the rail's current or power is over a limit."""

    label: str
    power: str
    volts: str
    amps: str
    scale: float
    alarms: Tuple[str, ...]


class RailsSource(FileSource):
    """Every rail that has a label and a sensor."""

    name = "power rails"
    every_ns = SLOW_NS

    def __init__(self, root: str = "/") -> None:
        super().__init__(root)
        self.rails = hwmon_rails(root) or iio_rails(root)

    def read(self, now_ns: int) -> DeviceState:
        """Watts per rail, their total by the table of boards, and the alarms that are raised."""
        watts: Dict[str, float] = {}
        for rail in self.rails:
            now_w = self._watts(rail)
            if now_w is not None:
                watts.setdefault(rail.label, now_w)
        return DeviceState(
            rails_w=watts, power_w=total_power_w(watts), power_gpu_w=gpu_power_w(watts), throttles=self._alarms()
        )

    def _watts(self, rail: Rail) -> Optional[float]:
        if rail.power:
            value = self._files.integer(rail.power)
            return None if value is None else round(value * rail.scale, 6)
        millivolts, milliamps = self._files.integer(rail.volts), self._files.integer(rail.amps)
        if millivolts is None or milliamps is None:
            return None
        return round(millivolts * milliamps * rail.scale, 6)

    def _alarms(self) -> Optional[Tuple[str, ...]]:
        seen, raised = False, []
        for rail in self.rails:
            states = [self._files.integer(path) for path in rail.alarms]
            seen = seen or any(state is not None for state in states)
            if any(state == 1 for state in states):
                raised.append(f"{ALARM}:{rail.label}")
        return tuple(raised) if seen else None


def hwmon_rails(root: str) -> List[Rail]:
    """The rails of hwmon. The class folder has them all; the driver's is for kernels that do not fill it."""
    folders = [
        folder
        for folder in listing(root, "sys/class/hwmon/hwmon*")
        if read_text(root, f"{folder}/name").strip().startswith(CHIPS)
    ]
    folders = folders or listing(root, "sys/bus/i2c/drivers/ina3221/*/hwmon/hwmon*")
    return [rail for folder in folders for rail in _hwmon_folder(root, folder)]


def _hwmon_folder(root: str, folder: str) -> List[Rail]:
    found = []
    for path in listing(root, f"{folder}/in*_label"):
        number = path[len(folder) + len("/in") : -len("_label")]
        label = read_text(root, path).strip()
        if not label or label == NOT_CONNECTED or label.lower() == SUM_LABEL:
            continue
        alarms = tuple(f"{folder}/curr{number}_{kind}_alarm" for kind in ("max", "crit"))
        found.append(Rail(label, "", f"{folder}/in{number}_input", f"{folder}/curr{number}_input", 1e-6, alarms))
    if not found:  # one channel, which measures power itself: microwatts
        label = (read_text(root, f"{folder}/label") or read_text(root, f"{folder}/power1_label")).strip()
        if label and label != NOT_CONNECTED and read_text(root, f"{folder}/power1_input"):
            alarms = tuple(f"{folder}/power1_{kind}_alarm" for kind in ("max", "crit"))
            found.append(Rail(label, f"{folder}/power1_input", "", "", 1e-6, alarms))
    return found


def iio_rails(root: str) -> List[Rail]:
    """The rails of JetPack 4, in milliwatts. There are no alarms."""
    found = []
    for path in listing(root, "sys/bus/i2c/drivers/ina3221x/*/iio*device*/rail_name_*"):
        folder, number = path.rsplit("/", 1)[0], path.rsplit("_", 1)[1]
        label = read_text(root, path).strip()
        if label and label != NOT_CONNECTED:
            found.append(Rail(label, f"{folder}/in_power{number}_input", "", "", 1e-3, ()))
    return found
