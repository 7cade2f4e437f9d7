"""Lines of tegrastats that were constructed for these tests, after the forms that boards and releases print, each with
what it says; and seeded mutations of lines."""

from __future__ import annotations

import random
from typing import Any, Dict, List, NamedTuple, Sequence


class Case(NamedTuple):
    """A board's line, and the quantities of a DeviceState that it must give."""

    board: str
    line: str
    says: Dict[str, Any]


MIB = 1 << 20

CASES: Sequence[Case] = (
    Case(
        "nano, R32, root",
        "RAM 1000/4000MB (lfb 100x4MB) SWAP 5/2000MB (cached 1MB) IRAM 0/252kB(lfb 252kB) "
        "CPU [10%@204,20%@204,30%@204,40%@204] EMC_FREQ 5%@408 GR3D_FREQ 50%@76 APE 25 PLL@25.5C CPU@29C PMIC@50C "
        "GPU@27.5C AO@34.5C thermal@28.25C POM_5V_IN 3000/2900 POM_5V_GPU 400/300 POM_5V_CPU 600/500",
        {
            "power_w": 3.0,
            "power_gpu_w": 0.4,
            "gpu_load": 0.5,
            "gpu_clock_hz": 76_000_000,
            "cpu_load": 0.25,
            "cpu_cores_online": 4,
            "temperature_zone": "cpu",
            "temperature_c": 29.0,
            "emc_load": 0.05,
            "memory_available_bytes": 3000 * MIB,
            "largest_free_block_bytes": 4 * MIB,
            "free_blocks": 100,
            "swap_free_bytes": 1995 * MIB,
        },
    ),
    Case(
        "tx1, R28",
        "RAM 500/3983MB (lfb 60x4MB) IRAM 0/252kB(lfb 252kB) CPU [1%@102,4%@102,0%@102,0%@102] "
        "EMC_FREQ 7%@408 GR3D_FREQ 0%@76 APE 25 AO@42.5C CPU@37.5C GPU@39C PMIC@100C VDD_IN 2500/2600 VDD_CPU 70/170 "
        "VDD_GPU 20/19",
        {"power_w": 2.5, "power_gpu_w": 0.02, "swap_free_bytes": None, "temperature_zone": "gpu"},
    ),
    Case(
        "tx2, R28: bare names of rails",
        "RAM 900/7852MB (lfb 1000x4MB) CPU [1%@345,off,off,1%@345,0%@345,2%@345] "
        "EMC_FREQ 4%@1600 GR3D_FREQ 0%@624 APE 150 MCPU@37.5C PMIC@100C GPU@35C BCPU@37.5C VDD_IN 3100/3056 "
        "CPU 150/152 GPU 160/152 SOC 690/687 WIFI 0/0 DDR 880/883",
        {
            "power_w": 3.1,
            "power_gpu_w": 0.16,
            "cpu_cores_online": 4,
            "cpu_cores": 6,
            "cpu_load": 0.01,
            "cpu_clocks_hz": {"cpu0": 345_000_000, "cpu3": 345_000_000, "cpu4": 345_000_000, "cpu5": 345_000_000},
        },
    ),
    Case(
        "tx2, R32, MTS",
        "RAM 3276/7859MB (lfb 5x4MB) SWAP 1626/12122MB (cached 181MB) CPU [44%@1421,49%@2031] "
        "EMC_FREQ 1%@1866 GR3D_FREQ 0%@114 APE 150 MTS fg 1% bg 2% PLL@42.5C VDD_SYS_GPU 182/182 VDD_SYS_SOC 730/730 "
        "VDD_4V0_WIFI 0/0 VDD_IN 5297/5297 VDD_SYS_CPU 1917/1917 VDD_SYS_DDR 1241/1241",
        {"power_w": 5.297, "power_gpu_w": 0.182, "temperature_c": None},
    ),
    Case(
        "agx xavier, R32: rails named like zones",
        "RAM 700/31927MB (lfb 7000x4MB) SWAP 0/15963MB (cached 0MB) "
        "CPU [2%@1190,0%@1190,0%@1190,0%@1190,off,off,off,off] EMC_FREQ 0%@665 GR3D_FREQ 95%@1377 APE 150 "
        "MTS fg 0% bg 10% AO@37.5C GPU@54.5C PMIC@100C CPU@49C GPU 18000/18100 CPU 2300/2330 SOC 4600/4602 CV 0/0 "
        "VDDRQ 2900/2911 SYS5V 4600/4620",
        {
            "power_w": 32.4,
            "power_gpu_w": 18.0,
            "gpu_load": 0.95,
            "temperature_zone": "gpu",
            "cpu_cores_online": 4,
            "cpu_load": 0.005,
        },
    ),
    Case(
        "xavier nx, R32, no root: no rails, no clocks",
        "RAM 2130/7774MB (lfb 1004x4MB) SWAP 0/3887MB (cached 0MB) "
        "CPU [11%@1190,2%@1190,1%@1190,1%@1190,1%@1190,2%@1190] EMC_FREQ 0% GR3D_FREQ 0% AO@31C GPU@31.5C PMIC@100C "
        "CPU@33C thermal@31.95C",
        {
            "power_w": None,
            "power_gpu_w": None,
            "gpu_clock_hz": None,
            "emc_clock_hz": None,
            "gpu_load": 0.0,
            "rails_w": {},
        },
    ),
    Case(
        "agx orin, R35: gated zones, NC rails",
        "10-16-2023 10:59:22 RAM 1205/30623MB (lfb 6429x4MB) SWAP 0/15311MB "
        "(cached 0MB) CPU [0%@729,1%@729] EMC_FREQ 0%@204 GR3D_FREQ 0%@114 GR3D2_FREQ 0%@114 NVJPG1 729 VIC_FREQ 729 "
        "APE 233 CV0@-256C CPU@43.5C SOC0@40.5C CV1@-256C GPU@38.156C tj@44C VDD_GPU_SOC 4788mW/4700mW "
        "VDD_CPU_CV 798mW/798mW VIN_SYS_5V0 3842mW/3842mW NC 0mW/0mW VDDQ_VDD2_1V8AO 707mW/707mW NC 0mW/0mW",
        {
            "power_w": 9.428,
            "power_gpu_w": 4.788,
            "temperature_zone": "tj",
            "temperatures_c": {"cpu": 43.5, "soc0": 40.5, "gpu": 38.156, "tj": 44.0},
        },
    ),
    Case(
        "agx orin, R36: two GPU clusters, one gated",
        "10-26-2025 05:12:20 RAM 6885/62841MB (lfb 8x4MB) "
        "CPU [0%@729,off] EMC_FREQ 0%@2133 GR3D_FREQ 31%@[305,0] NVENC 79%@166 NVDEC off VIC off NVDLA0_FREQ @1600 "
        "PVA0_FREQ off APE 174 cpu@48.093C tj@48.093C VDD_GPU_SOC 2801mW/3203mW VDD_CPU_CV 400mW/1663mW "
        "VIN_SYS_5V0 4536mW/5229mW VDDQ_VDD2_1V8AO 603mW/1045mW",
        {"power_w": 7.737, "gpu_clock_hz": 305_000_000, "gpu_load": 0.31, "cpu_cores_online": 1, "cpu_load": 0.0},
    ),
    Case(
        "orin nano, R36, an average without its unit",
        "12-23-2024 22:54:11 RAM 3162/7620MB (lfb 4x2MB) SWAP 0/3810MB "
        "(cached 0MB) CPU [1%@729,0%@729,off,off] GR3D_FREQ 1% cpu@62.843C gpu@61.687C tj@62.843C "
        "VDD_IN 3913mW/3922mW VDD_CPU_GPU_CV 598mW/598 VDD_SOC 1238mW/1237mW",
        {
            "power_w": 3.913,
            "power_gpu_w": None,
            "gpu_load": 0.01,
            "emc_load": None,
            "largest_free_block_bytes": 2 * MIB,
        },
    ),
    Case(
        "orin nano, empty list of clocks",
        "RAM 3162/7620MB (lfb 512x512kB) CPU [1%@729] GR3D_FREQ 7%@[] tj@50C",
        {"gpu_load": 0.07, "gpu_clock_hz": None, "largest_free_block_bytes": MIB // 2},
    ),
    Case(
        "thor, R38: no GPU load",
        "05-17-2026 10:00:33 RAM 4280/125773MB (lfb 29x4MB) SWAP 0/2048MB (cached 0MB) "
        "CPU [0%@972,17%@2601] EMC_FREQ 0%@665 GR3D_FREQ @[0,0,0] NVENC0_FREQ @0 VIC off OFA_FREQ @0 APE 300 "
        "cpu@35.25C tj@36.031C soc012@36.062C soc345@34.5C VDD_GPU 0mW/0mW VDD_CPU_SOC_MSS 4923mW/4544mW "
        "VIN_SYS_5V0 4327mW/4227mW",
        {"power_w": 9.25, "power_gpu_w": 0.0, "gpu_load": None, "gpu_clock_hz": None},
    ),
    Case(
        "thor, R39: three values, running maxima, no engines",
        "07-02-2026 13:45:44 RAM 36529/125749MB (lfb 12x4MB) "
        "CPU [2%@972,1%@972] cpu@60.406C/61C tj@63.281C/-256C gpu@62.906C VDD_GPU 37528mW/37528mW/37528mW "
        "VDD_CPU_SOC_MSS 18961mW/18961mW/18961mW VIN_SYS_5V0 18331mW/18331mW/18331mW VIN 87426mW/43713mW/87426mW",
        {"power_w": 74.82, "power_gpu_w": 37.528, "gpu_load": None, "emc_load": None, "temperature_c": 63.281},
    ),
    Case(
        "a sum that lacks a rail is no total",
        "RAM 1/2MB (lfb 1x4MB) VDD_GPU_SOC 2801mW/3203mW VDD_CPU_CV 400mW/1663mW",
        {"power_w": None, "power_gpu_w": 2.801},
    ),
    Case(
        "an old form: one clock for all cores",
        "RAM 1000/3994MB (lfb 347x4MB) cpu [0%,off,10%,20%]@102 EMC 8%@408 AVP 0%@80 VDE 0 GR3D 3%@76 EDP limit 1734",
        {
            "gpu_load": 0.03,
            "gpu_clock_hz": 76_000_000,
            "cpu_load": 0.1,
            "cpu_cores": 4,
            "cpu_clocks_hz": {"cpu0": 102_000_000, "cpu2": 102_000_000, "cpu3": 102_000_000},
        },
    ),
    Case(
        "other units, other order",
        "VDD_IN 5W/4.5W SWAP 0/2GB (cached 0kB) GR3D_FREQ 5%@1.3GHz CPU [1%@1.2GHz] RAM 1/4GB (lfb 3x4MB) tj@323.15K",
        {
            "power_w": 5.0,
            "gpu_clock_hz": 1_300_000_000,
            "memory_available_bytes": 3 << 30,
            "swap_free_bytes": 2 << 30,
            "temperature_c": 50.0,
        },
    ),
    Case(
        "units that went away",
        "RAM 1000/4000 SWAP 1/5 CPU [1%] VDD_IN 5000 tj@50",
        {"memory_available_bytes": 3000 * MIB, "power_w": 5.0, "swap_free_bytes": 4 * MIB, "temperature_c": 50.0},
    ),
    Case("nothing", "", {"power_w": None, "gpu_load": None, "cpu_load": None, "memory_available_bytes": None}),
)

NOISE = "0123456789%@/[](),.:-+ \t\r\x00\x0b\x85\u2028\u00b0\uffffABCxyz_offMBkWmC"


def mutated(lines: Sequence[str], count: int, seed: int) -> List[str]:
    """``count`` lines with one to eight changes each: characters replaced, put in and taken out, words swapped, lines
    cut and glued together."""
    draw = random.Random(f"{seed}/mutations")
    found = []
    for _ in range(count):
        line = draw.choice(lines)
        for _ in range(draw.randint(1, 8)):
            line = _changed(line, lines, draw)
        found.append(line)
    return found


def _changed(line: str, lines: Sequence[str], draw: random.Random) -> str:
    at = draw.randint(0, len(line))
    kind = draw.randrange(6)
    if kind == 0:
        return line[:at] + draw.choice(NOISE) + line[at + 1 :]
    if kind == 1:
        return line[:at] + "".join(draw.choice(NOISE) for _ in range(draw.randint(1, 6))) + line[at:]
    if kind == 2:
        return line[:at] + line[at + draw.randint(1, 12) :]
    if kind == 3:
        words = line.split(" ")
        one, other = draw.randrange(len(words)), draw.randrange(len(words))
        words[one], words[other] = words[other], words[one]
        return " ".join(words)
    if kind == 4:
        return line[:at]
    other_line = draw.choice(lines)
    return line[:at] + other_line[draw.randint(0, len(other_line)) :]
