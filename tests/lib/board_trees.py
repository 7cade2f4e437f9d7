"""Root directories of boards, constructed: the files that the kernel and JetPack put there, with chosen numbers, and
what the sources must make of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

Files = Dict[str, str]

MIB = 1 << 20


class BoardTree(NamedTuple):
    """A board's files by path, links by path, and what is expected: of the board, and of the state after one turn."""

    name: str
    files: Files
    links: Files
    board: Dict[str, Any]
    state: Dict[str, Any]

    def plant(self, root: Path) -> str:
        """Write the tree below a directory that exists or not; its path."""
        plant(root, self.files)
        for path, target in self.links.items():
            link = root / path
            link.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(target, link)
        return str(root)


def plant(root: Path, files: Files) -> str:
    """Write files by their paths below ``root``."""
    root.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return str(root)


# --- parts ------------------------------------------------------------------------------------------------------------


def jetson(model: str, compatible: Sequence[str], release: Optional[Tuple[int, str]]) -> Files:
    """The files that identify the board and its release; strings end with a NUL in the device tree."""
    files = {
        "proc/device-tree/model": f"{model}\0",
        "proc/device-tree/compatible": "\0".join(compatible) + "\0",
        "proc/sys/kernel/osrelease": "5.15.148-tegra\n",
    }
    if release is not None:
        files["etc/nv_tegra_release"] = (
            f"# R{release[0]} (release), REVISION: {release[1]}, GCID: 38968081, BOARD: "
            "generic, EABI: aarch64, DATE: Wed Jan  8 01:49:37 UTC 2025\n"
        )
    return files


def devfreq(
    folder: str,
    now_mhz: float,
    max_mhz: float,
    table_mhz: Sequence[float],
    min_mhz: Optional[float] = None,
    load: Optional[int] = None,
    node: str = "",
) -> Files:
    """A GPU's clocks in hertz, and its load in thousandths."""
    base = f"sys/class/devfreq/{folder}"
    files = {
        f"{base}/cur_freq": hertz(now_mhz),
        f"{base}/max_freq": hertz(max_mhz),
        f"{base}/min_freq": hertz(min(table_mhz) if min_mhz is None else min_mhz),
        f"{base}/available_frequencies": " ".join(hertz(clock).strip() for clock in table_mhz) + "\n",
        f"{base}/governor": "nvhost_podgov\n",
    }
    if load is not None:
        files[f"{base}/device/load"] = f"{load}\n"
    if node:
        files[f"{base}/device/of_node/name"] = f"{node}\0"
    return files


def hertz(megahertz: float) -> str:
    return f"{round(megahertz * 10**6)}\n"


def zones(items: Sequence[Tuple[str, str, Sequence[Tuple[str, int]]]]) -> Files:
    """(type, text of temp, (kind of trip, millidegrees)...) per thermal zone, numbered in order."""
    files: Files = {}
    for number, (kind, text, trips) in enumerate(items):
        base = f"sys/class/thermal/thermal_zone{number}"
        files[f"{base}/type"] = f"{kind}\n"
        files[f"{base}/temp"] = text
        for trip, (trip_kind, millidegrees) in enumerate(trips):
            files[f"{base}/trip_point_{trip}_type"] = f"{trip_kind}\n"
            files[f"{base}/trip_point_{trip}_temp"] = f"{millidegrees}\n"
    return files


def cooling(items: Sequence[Tuple[str, int]]) -> Files:
    """(type, state) per cooling device."""
    files: Files = {}
    for number, (kind, state) in enumerate(items):
        files[f"sys/class/thermal/cooling_device{number}/type"] = f"{kind}\n"
        files[f"sys/class/thermal/cooling_device{number}/cur_state"] = f"{state}\n"
        files[f"sys/class/thermal/cooling_device{number}/max_state"] = "3\n"
    return files


def bindings(items: Sequence[Tuple[int, int, int]]) -> Tuple[Files, Files]:
    """Files, and links, that bind (zone, cooling device, trip point), each by its number."""
    files: Files = {}
    links: Files = {}
    for zone, device, trip in items:
        base = f"sys/class/thermal/thermal_zone{zone}/cdev"
        number = sum(path.startswith(base) for path in links)
        files[f"{base}{number}_trip_point"] = f"{trip}\n"
        links[f"{base}{number}"] = f"../cooling_device{device}"
    return files, links


def ina3221(number: int, rails: Sequence[Tuple[str, int, int]], alarm: str = "", base: str = "") -> Files:
    """(label, millivolts, milliamperes) per channel, in hwmon; ``alarm`` names the rail whose maximum is exceeded."""
    base = base or f"sys/class/hwmon/hwmon{number}"
    files = {f"{base}/name": "ina3221\n", f"{base}/in7_label": "sum of shunt voltages\n", f"{base}/in7_input": "10\n"}
    for channel, (label, millivolts, milliamps) in enumerate(rails, 1):
        files.update(
            {
                f"{base}/in{channel}_label": f"{label}\n",
                f"{base}/in{channel}_input": f"{millivolts}\n",
                f"{base}/curr{channel}_input": f"{milliamps}\n",
                f"{base}/curr{channel}_max": "30000\n",
                f"{base}/curr{channel}_max_alarm": f"{int(label == alarm)}\n",
                f"{base}/curr{channel}_crit_alarm": "0\n",
            }
        )
    return files


def ina3221_iio(address: str, number: int, rails: Sequence[Tuple[str, int]]) -> Files:
    """(label, milliwatts) per channel, as JetPack 4 has it."""
    base = f"sys/bus/i2c/drivers/ina3221x/{address}/iio:device{number}"
    files: Files = {}
    for channel, (label, milliwatts) in enumerate(rails):
        files[f"{base}/rail_name_{channel}"] = f"{label}\n"
        files[f"{base}/in_power{channel}_input"] = f"{milliwatts}\n"
        files[f"{base}/crit_current_limit_{channel}"] = "32760\n"
    return files


def soctherm_oc(number: int, counts: Sequence[int]) -> Files:
    """The over-current counters."""
    base = f"sys/class/hwmon/hwmon{number}"
    return {
        f"{base}/name": "soctherm_oc\n",
        **{f"{base}/oc{index}_event_cnt": f"{count}\n" for index, count in enumerate(counts, 1)},
    }


def fan(number: int, drive: int, rpm: Optional[int] = None) -> Files:
    base = f"sys/class/hwmon/hwmon{number}"
    files = {f"{base}/name": "pwmfan\n", f"{base}/pwm1": f"{drive}\n"}
    if rpm is not None:
        files[f"sys/class/hwmon/hwmon{number + 1}/name"] = "pwm_tach\n"
        files[f"sys/class/hwmon/hwmon{number + 1}/rpm"] = f"{rpm}\n"
    return files


def nvpmodel(number: int, default: int, modes: Sequence[Tuple[int, str, int, int]]) -> Files:
    """(number, name, cores, GPU MHz or -1) per mode, and the one that is on."""
    lines = ["# nvpmodel.conf", "< PARAM TYPE=FILE NAME=GPU >", "MAX_FREQ /sys/class/devfreq/17000000.gpu/max_freq"]
    for mode, name, cores, gpu_mhz in modes:
        lines += [
            f"< POWER_MODEL ID={mode} NAME={name} >",
            *(f"CPU_ONLINE CORE_{core} {int(core < cores)}" for core in range(12)),
            f"GPU MAX_FREQ {gpu_mhz * 10**6 if gpu_mhz > 0 else -1}",
            "EMC MAX_FREQ 0",
            "",
        ]
    lines.append(f"< PM_CONFIG DEFAULT={default} >")
    return {"etc/nvpmodel.conf": "\n".join(lines) + "\n", "var/lib/nvpmodel/status": f"pmode:{number:04d}\n"}


def memory(
    total_mb: int,
    available_mb: int,
    swap_free_mb: int = 0,
    nvmap_mb: Optional[int] = None,
    buddy: Sequence[int] = (5, 4, 3, 2, 1, 0, 0, 0, 0, 0, 7),
) -> Files:
    lines = [
        f"MemTotal:       {total_mb * 1024} kB",
        "MemFree:           1000 kB",
        f"MemAvailable:   {available_mb * 1024} kB",
        f"SwapFree:       {swap_free_mb * 1024} kB",
    ]
    if nvmap_mb is not None:
        lines.append(f"NvMapMemUsed:   {nvmap_mb * 1024} kB")
    counts = " ".join(f"{count:6d}" for count in buddy)
    return {
        "proc/meminfo": "\n".join(lines) + "\n",
        "proc/buddyinfo": f"Node 0, zone   Normal {counts}\n",
        "proc/pressure/memory": "some avg10=12.50 avg60=0.00 avg300=0.00 total=0\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
    }


def cores(present: str, online: str, mhz: Sequence[int] = ()) -> Files:
    files = {"sys/devices/system/cpu/present": f"{present}\n", "sys/devices/system/cpu/online": f"{online}\n"}
    for core, clock in enumerate(mhz):
        files[f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq"] = f"{clock * 1000}\n"
    return files


# --- boards -----------------------------------------------------------------------------------------------------------

XAVIER_MODES = [(0, "MAXN", 8, -1), (1, "MODE_10W", 2, 520), (2, "MODE_15W", 4, 670), (3, "MODE_30W_ALL", 8, 900)]
ORIN_MODES = [(0, "MAXN", 12, -1), (1, "MODE_15W", 4, 408), (2, "MODE_30W", 8, 612), (3, "MODE_50W", 12, 816)]

AGX_XAVIER = BoardTree(
    "AGX Xavier, JetPack 5: gv11b, INA3221 in hwmon, no parent rail",
    {
        **jetson("Jetson-AGX", ["nvidia,p2972-0000", "nvidia,tegra194"], (35, "4.1")),
        **devfreq("17000000.gv11b", 900, 900.15, [114.75, 522.75, 905.25, 1377.0]),
        "sys/devices/17000000.gv11b/load": "512\n",
        "sys/devices/17000000.gv11b/of_node/name": "gv11b\0",
        **zones(
            [
                ("CPU-therm", "45500\n", [("critical", 96000), ("passive", 86000)]),
                ("GPU-therm", "48000\n", [("passive", 88000), ("active", 51000)]),
                ("AUX-therm", "44000\n", []),
                ("PMIC-Die", "100000\n", [("passive", 120000)]),
                ("Tboard_tegra", "41000\n", []),
            ]
        ),
        **cooling([("pwm-fan", 3), ("gpu-balanced", 0)]),
        **ina3221(1, [("GPU", 19000, 400), ("CPU", 19000, 120), ("SOC", 19000, 200)]),
        **ina3221(2, [("CV", 19000, 0), ("VDDRQ", 19000, 100), ("SYS5V", 5000, 600)]),
        **fan(3, 51, 1500),
        **nvpmodel(3, 7, XAVIER_MODES),
        **memory(15692, 9000, 7800),
        **cores("0-7", "0-7", [1200] * 8),
    },
    {"sys/class/devfreq/17000000.gv11b/device": "../../../devices/17000000.gv11b"},
    {"slug": "agx-xavier", "l4t": "35.4.1", "jetpack": "5.1.2", "python": (3, 8)},
    {
        "gpu_load": 0.512,
        "gpu_clock_hz": 900_000_000,
        "gpu_clock_max_hz": 900_150_000,
        "gpu_clock_top_hz": 1_377_000_000,
        "power_w": 18.58,
        "power_gpu_w": 7.6,
        "temperature_zone": "gpu",
        "temperature_c": 48.0,
        "temperature_soft_c": 81.0,
        "temperature_hard_c": 86.0,
        "throttles": (),
        "power_mode": "MODE_30W_ALL",
        "power_mode_gpu_clock_hz": 900_000_000,
        "fan": 0.2,
        "fan_rpm": 1500,
        "cpu_cores_online": 8,
        "memory_available_bytes": 9000 * MIB,
        "largest_free_block_bytes": 4 * MIB,
        "free_blocks": 7,
        "memory_pressure": 0.125,
        "emc_load": None,
        "emc_clock_hz": None,
    },
)

AGX_XAVIER_JP4 = BoardTree(
    "AGX Xavier, JetPack 4: INA3221 in iio, GPU load by an alias",
    {
        **jetson("Jetson-AGX", ["nvidia,p2972-0000", "nvidia,tegra194"], (32, "7.1")),
        **devfreq("17000000.gv11b", 318.75, 1377, [114.75, 318.75, 1377.0]),
        "sys/devices/gpu.0/load": "0\n",
        **zones([("CPU-therm", "37500\n", []), ("GPU-therm", "37500\n", []), ("thermal-fan-est", "36900\n", [])]),
        **ina3221_iio("1-0040", 0, [("GPU", 0), ("CPU", 311), ("SOC", 932)]),
        **ina3221_iio("1-0041", 1, [("CV", 0), ("VDDRQ", 621), ("SYS5V", 1482)]),
        **nvpmodel(0, 7, XAVIER_MODES),
        **memory(31927, 31000),
        **cores("0-7", "0-3"),
    },
    {},
    {"slug": "agx-xavier", "l4t": "32.7.1", "jetpack": "4.6.1", "python": (3, 6)},
    {
        "gpu_load": 0.0,
        "power_w": 3.346,
        "power_gpu_w": 0.0,
        "temperature_soft_c": 85.0,
        "temperature_hard_c": 95.0,
        "power_mode": "MAXN",
        "power_mode_gpu_clock_hz": 1_377_000_000,
        "cpu_cores_online": 4,
        "cpu_cores": 8,
        "fan": None,
        "throttles": (),
    },
)

# As the kernel of L4T 36 has them: clocks fall at the first one, the last one is a notice of a hot surface.
ORIN_TRIPS = [("passive", 99000), ("critical", 104500), ("passive", 70000)]
ORIN_COOLING = [
    ("pwm-fan", 3),
    ("hot-surface-alert", 1),
    ("cpu-throttle-alert", 0),
    ("gpu-throttle-alert", 1),
    ("cpufreq-cpu0", 0),
    ("cpufreq-cpu4", 0),
    ("devfreq-17000000.gpu", 0),
]
ORIN_BOUND = bindings(
    [(0, 4, 0), (0, 5, 0), (0, 6, 0), (0, 2, 0), (0, 1, 2), (1, 4, 0), (1, 5, 0), (1, 6, 0), (1, 3, 0), (1, 1, 2)]
)

AGX_ORIN = BoardTree(
    "AGX Orin, JetPack 6: throttled, an alarm raised, gated zones, EMC readable (root)",
    {
        **jetson(
            "NVIDIA Jetson AGX Orin Developer Kit",
            ["nvidia,p3737-0000+p3701-0005", "nvidia,p3701-0005", "nvidia,tegra234"],
            (36, "4.3"),
        ),
        **devfreq("17000000.gpu", 306, 714, [306, 408, 510, 612, 714, 816, 930.75, 1300.5], load=998),
        "sys/kernel/debug/bpmp/debug/clk/emc/rate": hertz(3199),
        "sys/kernel/debug/bpmp/debug/clk/emc/max_rate": hertz(3199),
        "sys/kernel/actmon_avg_activity/mc_all": f"{round(0.43 * 3_199_000 * 100)}\n",
        **zones(
            [
                ("cpu-thermal", "97000\n", ORIN_TRIPS),
                ("gpu-thermal", "98000\n", ORIN_TRIPS),
                ("cv0-thermal", "-256000\n", []),
                ("soc0-thermal", "", []),
                ("tj-thermal", "98500\n", [("critical", 104500)]),
                ("tboard-thermal", "62000\n", []),
            ]
        ),
        **cooling(ORIN_COOLING),
        **ORIN_BOUND[0],
        **ina3221(
            1,
            [("VDD_GPU_SOC", 19000, 1000), ("VDD_CPU_CV", 19000, 500), ("VIN_SYS_5V0", 5000, 1000)],
            alarm="VDD_GPU_SOC",
        ),
        **ina3221(2, [("NC", 0, 0), ("VDDQ_VDD2_1V8AO", 5000, 200), ("NC", 0, 0)]),
        **soctherm_oc(3, [0, 0, 27390]),
        **fan(4, 255),
        **nvpmodel(0, 2, ORIN_MODES),
        **memory(62841, 55000, 31000, nvmap_mb=1500),
        **cores("0-11", "0-11", [2201] * 12),
    },
    ORIN_BOUND[1],
    {"slug": "agx-orin", "l4t": "36.4.3", "jetpack": "6.2", "python": (3, 10)},
    {
        "gpu_load": 0.998,
        "gpu_clock_hz": 306_000_000,
        "gpu_clock_max_hz": 714_000_000,
        "gpu_clock_top_hz": 1_300_500_000,
        "emc_clock_hz": 3_199_000_000,
        "emc_load": 0.43,
        "power_w": 33.5,
        "power_gpu_w": 19.0,
        "temperature_zone": "tj",
        "temperature_c": 98.5,
        "temperature_soft_c": 92.0,
        "temperature_hard_c": 97.0,
        "temperatures_c": {"cpu": 97.0, "gpu": 98.0, "tj": 98.5, "tboard": 62.0},
        "throttles": ("gpu_clock:capped", "power_alarm:VDD_GPU_SOC", "cooling:gpu-throttle-alert"),
        "power_mode": "MAXN",
        "power_mode_gpu_clock_hz": 1_300_500_000,
        "gpu_memory_used_bytes": 1500 * MIB,
        "gpu_memory_free_bytes": None,
        "swap_free_bytes": 31000 * MIB,
        "fan": 1.0,
        "fan_rpm": None,
    },
)

ORIN_NX_BOUND = bindings([(2, 1, 0), (2, 0, 1)])

ORIN_NX = BoardTree(
    "Orin NX, JetPack 5: ga10b, rails by the driver's folder, no junction zone, locked clocks",
    {
        **jetson("NVIDIA Orin NX Developer Kit", ["nvidia,p3768-0000+p3767-0000", "nvidia,tegra234"], (35, "6.1")),
        **devfreq("17000000.ga10b", 612, 612, [306, 408, 510, 612, 918], min_mhz=612, load=0),
        **zones(
            [
                ("CPU-therm", "56843\n", []),
                ("GPU-therm", "54375\n", []),
                ("SOC1-therm", "57468\n", [("passive", 98000), ("passive", 70000)]),
                ("tj-therm", "", []),
            ]
        ),
        **cooling([("hot-surface-alert", 0), ("thermal-cpufreq-0", 0)]),
        **ORIN_NX_BOUND[0],
        **ina3221(
            0,
            [("VDD_IN", 5000, 1200), ("VDD_CPU_GPU_CV", 5000, 300), ("VDD_SOC", 5000, 200)],
            base="sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon3",
        ),
        **soctherm_oc(1, [0, 0, 0]),
        **nvpmodel(2, 2, [(0, "MAXN", 8, -1), (1, "10W", 4, 612), (2, "15W", 4, 612), (3, "25W", 8, 408)]),
        **memory(15389, 14000, buddy=(9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0)),
        **cores("0-7", "0-3"),
    },
    ORIN_NX_BOUND[1],
    {"slug": "orin-nx", "l4t": "35.6.1", "jetpack": "5.1.5", "python": (3, 8)},
    {
        "gpu_load": 0.0,
        "clocks_locked": True,
        "power_w": 6.0,
        "power_gpu_w": None,
        "temperature_zone": "soc1",
        "temperature_c": 57.468,
        "temperature_soft_c": 91.0,
        "temperature_hard_c": 96.0,
        "throttles": (),
        "power_mode": "15W",
        "power_mode_gpu_clock_hz": 612_000_000,
        "largest_free_block_bytes": MIB,
        "free_blocks": 1,
        "cpu_cores_online": 4,
        "cpu_cores": 8,
    },
)

ORIN_NANO = BoardTree(
    "Orin Nano, in a container: no release, no bindings of trip points, an unknown mode, GPU power-gated",
    {
        **jetson(
            "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super",
            ["nvidia,p3768-0000+p3767-0005-super", "nvidia,tegra234"],
            None,
        ),
        ".dockerenv": "",
        **devfreq("17000000.gpu", 0, 1020, [306, 408, 510, 612, 1020], load=0),
        **zones([("cpu-thermal", "46531\n", ORIN_TRIPS), ("tj-thermal", "48843\n", [("critical", 104500)])]),
        **ina3221(0, [("VDD_IN", 5000, 1140), ("VDD_CPU_GPU_CV", 5000, 166), ("VDD_SOC", 5000, 324)]),
        "etc/nvpmodel.conf": "< POWER_MODEL ID=0 NAME=15W >\nGPU MAX_FREQ 612000000\n",
        "var/lib/nvpmodel/status": "pmode:0002\n",
        **memory(7620, 5000),
        **cores("0-5", "0-5"),
    },
    {},
    {"slug": "orin-nano", "l4t": "", "jetpack": "", "python": None, "container": True},
    {
        "gpu_clock_hz": None,
        "gpu_load": 0.0,
        "power_w": 5.7,
        "power_mode": "number 2",
        "power_mode_gpu_clock_hz": None,
        "temperature_zone": "tj",
        "temperature_soft_c": 92.0,
        "throttles": (),
    },
)

THOR_BOUND = bindings([(0, 0, 0), (0, 1, 0), (0, 2, 0)])

THOR = BoardTree(
    "AGX Thor, JetPack 7.2: no GPU load, EMC by devfreq, an INA238 for the board's input",
    {
        **jetson(
            "NVIDIA Jetson AGX Thor Developer Kit", ["nvidia,p4071-0000+p3834-0008", "nvidia,tegra264"], (39, "2.0")
        ),
        **devfreq("gpu-gpc-0", 1300, 1575, [315, 1300, 1575]),
        **devfreq("gpu-nvd-0", 1000, 1500, [315, 1500]),
        "sys/class/devfreq/bwmgr/cur_freq": hertz(665),
        "sys/class/devfreq/bwmgr/max_freq": hertz(4266),
        **zones(
            [
                ("cpu-thermal", "60406\n", [("passive", 109000), ("critical", 114500)]),
                ("tj-thermal", "63281\n", [("critical", 114500)]),
            ]
        ),
        **cooling([("pwm-fan", 1), ("cpufreq-cpu0", 0), ("devfreq-gpu-gpc-0", 0)]),
        **THOR_BOUND[0],
        **ina3221(0, [("VDD_GPU", 1000, 37500), ("VDD_CPU_SOC_MSS", 1000, 18900), ("VIN_SYS_5V0", 5000, 3600)]),
        "sys/class/hwmon/hwmon1/name": "ina238\n",
        "sys/class/hwmon/hwmon1/label": "VIN\n",
        "sys/class/hwmon/hwmon1/power1_input": "87426000\n",
        **soctherm_oc(2, [0, 0, 5]),
        **nvpmodel(0, 1, [(0, "MAXN", 12, -1), (1, "120W", 12, 1300)]),
        **memory(125749, 90000),
        **cores("0-13", "0-13"),
    },
    THOR_BOUND[1],
    {"slug": "thor", "l4t": "39.2.0", "jetpack": "7.2", "python": (3, 12)},
    {
        "gpu_load": None,
        "gpu_clock_hz": 1_300_000_000,
        "emc_clock_hz": 665_000_000,
        "emc_clock_max_hz": 4_266_000_000,
        "emc_load": None,
        "power_w": 74.4,
        "power_gpu_w": 37.5,
        "temperature_c": 63.281,
        "temperature_soft_c": 102.0,
        "temperature_hard_c": 107.0,
        "rails_w": {"VDD_GPU": 37.5, "VDD_CPU_SOC_MSS": 18.9, "VIN_SYS_5V0": 18.0, "VIN": 87.426},
        "throttles": (),
    },
)

DESKTOP = BoardTree(
    "a desktop with a discrete GPU: its files alone tell of the host",
    {
        "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: NVIDIA GPU\n",
        "dev/nvidia0": "",
        "proc/sys/kernel/osrelease": "6.8.0-45-generic\n",
        **zones([("acpitz", "27800\n", [("critical", 105000)]), ("x86_pkg_temp", "55000\n", [("passive", 0)])]),
        **cooling([("Processor", 0), ("TCC Offset", 10), ("Fan", 1)]),
        **memory(64000, 60000, 2000),
        **cores("0-15", "0-15", [4500] * 16),
    },
    {},
    {"slug": "desktop-gpu", "l4t": "", "jetpack": "", "python": None},
    {
        "gpu_load": None,
        "power_w": None,
        "temperature_zone": "cpu",
        "temperature_c": 55.0,
        "temperature_soft_c": 85.0,
        "throttles": (),
        "cpu_cores": 16,
        "memory_available_bytes": 60000 * MIB,
    },
)

BARE = BoardTree(
    "a machine that tells nothing",
    {"proc/sys/kernel/osrelease": "6.1.0-cloud-amd64\n"},
    {},
    {"slug": "cpu", "l4t": "", "jetpack": "", "python": None},
    {
        "gpu_load": None,
        "power_w": None,
        "temperature_c": None,
        "memory_available_bytes": None,
        "throttles": None,
        "fan": None,
        "cpu_cores": None,
        "largest_free_block_bytes": None,
    },
)

TREES: List[BoardTree] = [AGX_XAVIER, AGX_XAVIER_JP4, AGX_ORIN, ORIN_NX, ORIN_NANO, THOR, DESKTOP, BARE]
