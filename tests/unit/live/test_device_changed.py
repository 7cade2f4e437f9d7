"""What a report of a device means for one device of the configuration."""

from __future__ import annotations

import pytest

from edgeserve.config.loading import parse_config
from edgeserve.device.boards import KINDS, Board
from edgeserve.device.state import DeviceReport, DeviceState
from edgeserve.live.device_watch import device_changed
from edgeserve.sched.protocol.events import DeviceChanged

ORIN, CARD, CPU = (Board(KINDS[slug]) for slug in ("agx-orin", "desktop-gpu", "cpu"))
STATE = DeviceState(memory_available_bytes=4 << 30, gpu_memory_free_bytes=1 << 30, temperature_c=50.0,
                    temperature_hard_c=100.0, power_w=12.0)
ALL = ("memory_available_bytes", "gpu_memory_free_bytes", "temperature_c", "power_w")


def config_of(**devices):
    return parse_config({"device": devices})


@pytest.mark.parametrize(("kind", "board", "free"), [
    ("cuda", CARD, 1 << 30), ("cuda", ORIN, 4 << 30), ("cpu", CARD, 4 << 30)])
def test_whose_memory_counts(kind, board, free):
    device = config_of(d={"kind": kind}).devices["d"]
    assert device_changed(DeviceReport("x", STATE, ALL), device, board) == DeviceChanged("d", free, 0.5, 12.0)


def test_what_did_not_change_is_not_told():
    device = config_of(d={}).devices["d"]
    assert device_changed(DeviceReport("x", STATE, ("power_w",)), device, CPU) == DeviceChanged("d", None, None, 12.0)
    assert device_changed(DeviceReport("x", STATE, ("gpu_clock_hz",)), device, CPU) is None
    gone = DeviceReport("x", DeviceState(), ALL)
    assert device_changed(gone, device, CPU) is None  # no longer known is no zero
