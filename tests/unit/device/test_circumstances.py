"""The state of the device that a measurement records: power mode, governors, locked clocks, temperature; from files of
boards."""

from __future__ import annotations

from pathlib import Path
from typing import Dict

import pytest

from edgeserve.config.profile_record import Clocks
from edgeserve.device.circumstances import circumstances, clocks_locked, governors, gpu_clocks, power_mode


def lay(root: Path, files: Dict[str, str]) -> str:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return str(root)


CONF = "< POWER_MODEL ID=0 NAME=MAXN >\nCPU_ONLINE CORE_0 1\n< POWER_MODEL ID=2 NAME=MODE_30W >\n"


def core(number: int, governor: str, low: int, high: int) -> Dict[str, str]:
    folder = f"sys/devices/system/cpu/cpu{number}/cpufreq"
    return {
        f"{folder}/scaling_governor": f"{governor}\n",
        f"{folder}/scaling_min_freq": f"{low}\n",
        f"{folder}/scaling_max_freq": f"{high}\n",
    }


def test_the_power_mode_is_known_by_its_name(tmp_path: Path) -> None:
    root = lay(tmp_path, {"etc/nvpmodel.conf": CONF, "var/lib/nvpmodel/status": "pmode:0002\nfmode:quiet\n"})
    assert power_mode(root) == "MODE_30W"
    lay(tmp_path, {"var/lib/nvpmodel/status": "pmode:0007\n"})
    assert power_mode(root) == ""  # a number without a name means nothing
    assert power_mode(str(tmp_path / "absent")) == ""


@pytest.mark.parametrize(
    ("cores", "locked"),
    [
        ((), None),
        ((("performance", 1, 2),), True),
        ((("schedutil", 1, 2),), False),
        ((("schedutil", 2, 2),), True),
        ((("performance", 1, 2), ("schedutil", 1, 2)), False),
    ],
)
def test_clocks_are_locked_where_no_core_can_change_its_clock(tmp_path: Path, cores: tuple, locked: object) -> None:
    files = {path: text for number, values in enumerate(cores) for path, text in core(number, *values).items()}
    root = lay(tmp_path, files)
    assert clocks_locked(root) is locked
    assert governors(root) == sorted({values[0] for values in cores})


def test_what_is_not_known_is_left_out_and_never_zero(tmp_path: Path) -> None:
    assert not set(circumstances(str(tmp_path))) & {"power_mode", "governors", "clocks_locked", "temperature_c"}
    zones = {"tj-thermal": "51500\n", "gpu-thermal": "-256000\n", "cpu-thermal": "", "PMIC-Die": "100000\n"}
    root = lay(
        tmp_path, {"etc/nvpmodel.conf": CONF, "var/lib/nvpmodel/status": "pmode:0000\n", **core(0, "schedutil", 1, 2)}
    )
    for number, (kind, text) in enumerate(zones.items()):
        folder = f"sys/class/thermal/thermal_zone{number}"
        lay(tmp_path, {f"{folder}/type": f"{kind}\n", f"{folder}/temp": text})
    found = circumstances(root)
    assert found["power_mode"] == "MAXN" and found["governors"] == ["schedutil"] and found["clocks_locked"] is False
    assert (found["temperature_c"], found["temperature_zone"]) == (51.5, "tj")
    assert "gpu_clock_hz" not in found and "power_w" not in found


def test_a_gpu_whose_clock_can_vary_is_not_locked_by_the_cpu(tmp_path: Path) -> None:
    root = lay(tmp_path, core(0, "performance", 1, 2))
    assert clocks_locked(root) is True and clocks_locked(root, gpu=False) is False


@pytest.mark.parametrize(("load", "working"), [("100", 1300.5), ("990", 918.0), (None, 1300.5)])
def test_the_working_clock_is_the_allowed_one_but_where_the_gpu_is_busy_at_a_lower_one(
    tmp_path: Path, load: object, working: float
) -> None:
    folder = "sys/class/devfreq/17000000.gpu"
    files = {
        "proc/device-tree/compatible": "nvidia,tegra234\0",
        "etc/nv_tegra_release": "# R36 (release), REVISION: 4.3\n",
    }
    files.update({f"{folder}/cur_freq": "918000000\n", f"{folder}/max_freq": "1300500000\n"})
    files[f"{folder}/min_freq"] = "306000000\n"
    if load:
        files[f"{folder}/device/load"] = f"{load}\n"
    files["etc/nvpmodel.conf"] = "< POWER_MODEL ID=1 NAME=MODE_15W >\nEMC MAX_FREQ 2133000000\n"
    files["var/lib/nvpmodel/status"] = "pmode:0001\n"
    assert gpu_clocks(lay(tmp_path, files)) == Clocks(working, 2133.0)
    lay(tmp_path, {f"{folder}/cur_freq": "0\n", f"{folder}/max_freq": "0\n"})
    assert gpu_clocks(str(tmp_path)) == Clocks(0.0, 2133.0), "a GPU that is switched off has no clock"
