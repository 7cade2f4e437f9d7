"""Boards and their sources on constructed root directories: what is detected, and what one turn of the monitor
reads."""

from __future__ import annotations

import errno
import os
import random
from dataclasses import replace

import psutil
import pytest
from board_trees import (
    AGX_ORIN,
    AGX_XAVIER,
    ORIN_NX,
    THOR,
    TREES,
    BoardTree,
    bindings,
    cooling,
    jetson,
    plant,
    zones,
)

from edgeserve.device.boards import detect_board, jetpack_of, l4t_of
from edgeserve.device.cpu import CpuSource
from edgeserve.device.gpu_clock import GpuClockSource
from edgeserve.device.memory import largest_block, meminfo_bytes
from edgeserve.device.monitor import Monitor
from edgeserve.device.power_mode import PowerModeSource, parse_conf
from edgeserve.device.rails import RailsSource
from edgeserve.device.sources import sources_for
from edgeserve.device.state import QUANTITIES, DeviceState, merged
from edgeserve.device.thermal import ThermalSource, judge, zone_name
from edgeserve.device.throttling import ThrottlingSource
from edgeserve.units import NS_PER_S


def turn_of(root, turns=1, board=None):
    now_ns = [0]
    monitor = Monitor("here", sources_for(board, root), lambda state: None, lambda: now_ns[0], lambda: 0)
    for _ in range(turns):
        state = monitor.turn()
        now_ns[0] += NS_PER_S
    monitor.stop()
    return state


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.name)
def test_boards_are_detected(tree, tmp_path):
    board = detect_board(tree.plant(tmp_path / "root"))
    assert (board.kind.slug, board.l4t, board.jetpack) == (tree.board["slug"], tree.board["l4t"], tree.board["jetpack"])
    assert board.system_python == tree.board["python"]
    assert board.container == tree.board.get("container", False)


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.name)
def test_one_turn_reads_what_the_files_say(tree, tmp_path):
    state = turn_of(tree.plant(tmp_path / "root"))
    for name, value in tree.state.items():
        assert getattr(state, name) == (pytest.approx(value) if isinstance(value, (float, dict)) else value), name


NONSENSE = (None, "", "junk\n", "9" * 400, "\xff\xfe")
"""The new content of a file: None takes it away."""


@pytest.mark.parametrize("tree", [AGX_XAVIER, AGX_ORIN, THOR], ids=lambda tree: tree.name)
def test_what_loses_its_files_is_unknown_and_never_zero(tree, tmp_path):
    """Each file in its turn is taken away or made nonsense: no exception, and no zero appears from nothing."""
    root = tmp_path / "root"
    tree.plant(root)
    whole = turn_of(str(root))
    board = detect_board(str(root))
    zeros = {name for name in QUANTITIES if getattr(whole, name) == 0}
    for turn, (path, text) in enumerate(tree.files.items()):
        if path.startswith("sys/devices/system/cpu/cpu") or "CORE" in text:
            continue  # as many as there are cores, all alike
        nonsense = NONSENSE[turn % len(NONSENSE)]
        if nonsense is None:
            (root / path).unlink()
        else:
            (root / path).write_text(nonsense, encoding="latin-1")
        state = turn_of(str(root), board=board)
        assert {name for name in QUANTITIES if getattr(state, name) == 0} <= zeros, path
        (root / path).write_text(text)


NUMBERS = ("", "-1", "-5000000", "0", "2147483647", str(2**64 - 1), "N/A", "1 2", "1.5", "²", "0-99999")
GARBAGE = ("", "\0\0", *(f"{number}\n" for number in NUMBERS))
SHARES = ("gpu_load", "emc_load", "cpu_load", "memory_pressure", "fan")
CLOCKS = [name for name in QUANTITIES if name.endswith("clock_hz") or name.endswith(("clock_max_hz", "clock_top_hz"))]
COUNTS = [name for name in QUANTITIES if name.endswith("_bytes")] + ["power_w", "power_gpu_w", "free_blocks"]


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.name)
def test_a_file_with_garbage_tells_nothing_that_cannot_be(tree, tmp_path):
    draw = random.Random(f"{tree.name}/garbage")
    root = tree.plant(tmp_path / "root")
    files = [path for path in (tmp_path / "root").rglob("*") if path.is_file() and not path.is_symlink()]
    for path in draw.sample(files, min(30, len(files))):
        before, garbage = path.read_bytes(), draw.choice(GARBAGE)
        path.write_text(garbage)
        state = turn_of(root, 2)
        known = {name: getattr(state, name) for name in QUANTITIES if getattr(state, name) is not None}
        assert all(0.0 <= known.get(name, 0.0) <= 1.0 for name in SHARES), (path, garbage)
        assert all(known.get(name, 1) > 0 for name in CLOCKS), (path, garbage)
        assert all(known.get(name, 0) >= 0 for name in COUNTS), (path, garbage)
        assert -40 <= known.get("temperature_c", 0.0) <= 200, (path, garbage)
        path.write_bytes(before)


def test_a_power_mode_that_is_set_meanwhile_is_seen_though_its_file_is_another(tmp_path):
    source = PowerModeSource(AGX_ORIN.plant(tmp_path / "root"))
    before = source.read(0).power_mode
    status = tmp_path / "root/var/lib/nvpmodel/status"
    number = next(mode.number for mode in source.modes.modes if mode.name != before)
    (tmp_path / "new").write_text(f"pmode:{number:04d}\n")
    os.replace(tmp_path / "new", status)
    assert source.read(1).power_mode == source.modes.by_number(number).name != before


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "too many open files"), TypeError("an empty /proc/stat")])
def test_a_processor_that_cannot_be_read_once_is_asked_again(monkeypatch, error):
    monitor = Monitor("here", [CpuSource()], lambda state: None, lambda: 0, lambda: 0)

    def fails():
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(psutil, "cpu_times", fails)
        assert monitor.turn().cpu_load is None
    assert "failed" not in monitor.costs()["sources"]["cpu"]
    monitor.stop()


def test_a_sum_that_lost_a_rail_is_unknown(tmp_path):
    root = tmp_path / "root"
    AGX_XAVIER.plant(root)
    (root / "sys/class/hwmon/hwmon2/curr3_input").unlink()
    assert turn_of(str(root)).power_w is None


@pytest.mark.parametrize(
    ("model", "compatible", "slug"),
    [
        ("NVIDIA Jetson Nano Developer Kit", "nvidia,p3449-0000-b00+p3448-0000-b00", "nano"),
        ("NVIDIA Jetson Xavier NX Developer Kit", "nvidia,p3509-0000+p3668-0000", "xavier-nx"),
        ("NVIDIA Orin Nano Developer Kit", "nvidia,p3768-0000+p3767-0003", "orin-nano"),
        ("a custom carrier", "vendor,board+p3767-0001", "orin-nx"),
        ("a custom carrier", "vendor,board", "agx-orin"),  # nothing but the SoC tells
        ("quill", "nvidia,p2597-0000+p3310-1000", "tx2"),
    ],
)
def test_boards_by_module_by_name_and_by_soc(tmp_path, model, compatible, slug):
    assert detect_board(plant(tmp_path / "a", jetson(model, [compatible, "nvidia,tegra234"], None))).kind.slug == slug


@pytest.mark.parametrize(
    ("module", "cores"), [("p3767-0000", 2), ("p3767-0001", 1), ("p3767-0005", 0), ("p3701-0005", 2)]
)
def test_the_smaller_orin_nx_has_one_dla_core(tmp_path, module, cores):
    root = plant(tmp_path / "a", jetson("NVIDIA", [f"nvidia,p3768-0000+{module}", "nvidia,tegra234"], None))
    assert detect_board(root).dla_cores == cores


def test_a_gpu_in_wsl2_is_one_where_windows_brings_nvidias_libraries(tmp_path):
    root = plant(tmp_path / "wsl", {"dev/dxg": "", "proc/sys/kernel/osrelease": "5.15.167.4-microsoft-standard-WSL2"})
    assert detect_board(root).kind.slug == "cpu", "it may be another maker's"
    plant(tmp_path / "wsl", {"usr/lib/wsl/lib/libcuda.so.1": ""})
    assert detect_board(root).kind.slug == "desktop-gpu"


def test_releases_are_data():
    assert l4t_of("# R99 (release), REVISION: 1.7, GCID: 1") == "99.1.7"
    assert l4t_of("# R36 (release), REVISION: 5, GCID: 1") == "36.5.0"
    assert l4t_of("36.4.7-20250918154033") == "36.4.7"
    assert l4t_of("R (release)") == l4t_of("") == ""
    assert (jetpack_of("36.9.9"), jetpack_of("99.1.7"), jetpack_of("")) == ("6", "", "")


def test_a_release_from_the_package_where_the_file_is_absent(tmp_path):
    root = plant(tmp_path / "a", jetson("NVIDIA Jetson AGX Orin", ["nvidia,tegra234"], None))
    assert detect_board(root, "36.4.3-20250107174145").jetpack == "6.2"


def test_a_clock_that_stays_low_under_full_load_is_held_after_three_readings(tmp_path):
    source = GpuClockSource(AGX_ORIN.plant(tmp_path / "root"))
    assert [source.read(turn * NS_PER_S).throttles for turn in range(3)] == [(), (), ("gpu_clock:held",)]
    (tmp_path / "root/sys/class/devfreq/17000000.gpu/cur_freq").write_text("714000000\n")
    assert source.read(3 * NS_PER_S).throttles == ()


def test_a_load_is_the_mean_of_the_last_second(tmp_path):
    source = GpuClockSource(AGX_ORIN.plant(tmp_path / "root"))
    load = tmp_path / "root/sys/class/devfreq/17000000.gpu/device/load"
    seen = []
    for turn, thousandths in enumerate((0, 1000, 1000, 500)):
        load.write_text(f"{thousandths}\n")
        seen.append(source.read(turn * NS_PER_S // 2).gpu_load)
    assert seen == [0.0, 0.5, 1.0, 0.75]


def test_over_current_counts_only_what_was_added(tmp_path):
    source = ThrottlingSource(AGX_ORIN.plant(tmp_path / "root"))
    (tmp_path / "root/sys/class/thermal/cooling_device3/cur_state").write_text("0\n")
    counter = tmp_path / "root/sys/class/hwmon/hwmon3/oc3_event_cnt"
    assert source.read(0).throttles == ()
    counter.write_text("27400\n")
    assert source.read(1).throttles == ("over_current:oc3",)
    assert source.read(2).throttles == ()
    counter.write_text("0\n")  # the driver was loaded anew
    assert source.read(3).throttles == ()


def test_an_alarm_that_is_lowered_is_gone(tmp_path):
    source = RailsSource(AGX_ORIN.plant(tmp_path / "root"))
    assert source.read(0).throttles == ("power_alarm:VDD_GPU_SOC",)
    (tmp_path / "root/sys/class/hwmon/hwmon1/curr1_max_alarm").write_text("0\n")
    assert source.read(1).throttles == ()


@pytest.mark.parametrize("kind", ["max", "crit"])
def test_an_alarm_of_a_chip_that_measures_power_itself_is_told(tmp_path, kind):
    """INA238 and INA226, as on a Thor."""
    root = THOR.plant(tmp_path / "root")
    assert not RailsSource(root).read(0).throttles
    folder = next(path.parent for path in (tmp_path / "root/sys/class/hwmon").glob("*/power1_input"))
    (folder / f"power1_{kind}_alarm").write_text("1\n")
    (told,) = RailsSource(root).read(0).throttles
    assert told.startswith("power_alarm:")


def test_a_zone_that_wakes_up_is_read(tmp_path):
    source = ThermalSource(ORIN_NX.plant(tmp_path / "root"))
    assert source.read(0).temperature_zone == "soc1"
    (tmp_path / "root/sys/class/thermal/thermal_zone3/temp").write_text("58000\n")
    state = source.read(1)
    assert (state.temperature_zone, state.temperature_c, state.temperature_soft_c) == ("tj", 58.0, 91.0)


HOT = [("passive", 85000), ("critical", 104500), ("passive", 60000)]
"""A zone's trip points: what is bound to the last one differs."""


def hard_limit(root, trips, *bound, zone="cpu-thermal", others=()):
    """The hard limit where the first of the zones has these trip points, and a cooling device of each type is bound to
    the trip point beside it."""
    files, links = bindings([(0, device, trip) for device, (_, trip) in enumerate(bound)])
    tree = BoardTree(
        "",
        {**zones([(zone, "50000\n", trips), *others]), **files, **cooling([(kind, 0) for kind, _ in bound])},
        links,
        {},
        {},
    )
    return ThermalSource(tree.plant(root)).read(0).temperature_hard_c


@pytest.mark.parametrize(
    ("kind", "hard_c"),
    [
        ("hot-surface-alert", 83.0),
        ("pwm-fan", 83.0),
        ("TCC Offset", 83.0),
        ("cpufreq-cpu0", 58.0),
        ("devfreq-17000000.gpu", 58.0),
        ("cpu-throttle-alert", 58.0),
        ("Processor", 58.0),
        ("of a later kernel", 58.0),
    ],
)
def test_a_trip_counts_where_what_lowers_clocks_is_bound_to_it(tmp_path, kind, hard_c):
    assert hard_limit(tmp_path, HOT, ("thermal-cpufreq-0", 0), (kind, 2)) == hard_c


def test_a_trip_that_nothing_is_bound_to_does_not_count(tmp_path):
    assert hard_limit(tmp_path / "a", HOT, ("cpufreq-cpu0", 0)) == 83.0
    assert hard_limit(tmp_path / "b", HOT, ("cpufreq-cpu0", -1)) == 95.0  # bound to no trip point
    package = ("x86_pkg_temp", "50000\n", [("passive", 60000)])  # where a program wants to be told
    assert hard_limit(tmp_path / "c", HOT, ("Processor", 0), zone="acpitz", others=[package]) == 95.0


@pytest.mark.parametrize(
    ("trips", "hard_c"),
    [
        ([("passive", 99000), ("critical", 104500), ("passive", 70000)], 97.0),
        ([("passive", 70000), ("critical", 104500)], 95.0),
        ([("passive", 84400), ("critical", 104500)], 95.0),
        ([("passive", 84500), ("critical", 104500)], 82.5),
        ([("passive", 70000)], 68.0),
        ([("passive", 70000), ("critical", 1000000)], 68.0),
    ],
)
def test_without_bindings_trips_far_below_the_critical_one_do_not_count(tmp_path, trips, hard_c):
    assert hard_limit(tmp_path, trips) == hard_c


def test_bindings_whose_cooling_device_cannot_be_read_say_nothing(tmp_path):
    assert hard_limit(tmp_path, HOT, ("", 2)) == 83.0
    plant(tmp_path, {"sys/class/thermal/cooling_device0/type": "cpufreq-cpu0\n"})
    assert ThermalSource(str(tmp_path)).read(0).temperature_hard_c == 58.0


@pytest.mark.parametrize(("now_c", "level"), [(63.0, 0), (71.0, 0), (88.0, 0), (93.0, 1), (98.0, 2)])
def test_an_orin_is_hot_where_its_clocks_fall_and_not_where_its_surface_is_hot(tmp_path, now_c, level):
    root = tmp_path / "root"
    AGX_ORIN.plant(root)
    for zone in (0, 1, 4):
        (root / f"sys/class/thermal/thermal_zone{zone}/temp").write_text(f"{now_c * 1000:.0f}\n")
    state = ThermalSource(str(root)).read(0)
    assert (state.soft_margin_c <= 0) + (state.hard_margin_c <= 0) == level
    assert state.temperature_zone == "tj"  # without a passive trip point of its own: the limit is the other zones'


def test_constant_zones_and_those_of_the_board_never_count():
    assert judge({"pmic-die": 100.0, "tboard": 80.0, "aux": 90.0, "thermal": 85.0}, {}) is None
    limits = judge({"cpu": 60.0, "gpu": 70.0}, {"cpu": 70.0})
    assert limits is not None
    assert (limits.zone, limits.hard_c) == ("gpu", 68.0)  # above the only limit that is known
    assert [zone_name(kind) for kind in ("CPU-therm", "cpu-thermal", "CPU", "Tboard_tegra", "x86_pkg_temp")] == [
        "cpu",
        "cpu",
        "cpu",
        "tboard",
        "cpu",
    ]


def test_the_strongest_mode_of_a_super_configuration_and_of_nonsense():
    full = parse_conf("< POWER_MODEL ID=0 NAME=MAXN >\n< POWER_MODEL ID=2 NAME=MAXN_SUPER >").full
    assert full is not None
    assert full.name == "MAXN_SUPER"
    assert parse_conf("GPU MAX_FREQ 5\n# < POWER_MODEL ID=1 NAME=X >\n<POWER_MODEL>").modes == ()


def test_the_largest_free_block_is_of_all_zones():
    text = "Node 0, zone      DMA      1      0      1\nNode 0, zone   Normal      5      2      0\n"
    assert largest_block(text, 4096) == (16384, 1)
    assert largest_block("Node 0, zone      DMA      0      0\n", 4096) == (0, 0)
    assert largest_block("", 4096) == (None, None)
    assert meminfo_bytes("MemAvailable:  12 kB\nSwapFree: 0 kB\n") == {"MemAvailable": 12288, "SwapFree": 0}


def test_readings_are_merged_in_order_and_limits_stay_with_their_temperature():
    first = DeviceState(
        power_w=5.0, temperature_c=50.0, temperature_zone="tj", temperatures_c={"tj": 50.0}, throttles=("a",)
    )
    second = DeviceState(
        power_w=9.0,
        gpu_load=0.5,
        temperature_c=60.0,
        temperature_zone="cpu",
        temperature_soft_c=70.0,
        temperature_hard_c=80.0,
        temperatures_c={"tj": 51.0, "cpu": 60.0},
        throttles=("b", "a"),
    )
    state = merged([DeviceState(), first, second], at_ns=7)
    assert state == replace(
        first, at_ns=7, gpu_load=0.5, temperatures_c={"tj": 50.0, "cpu": 60.0}, throttles=("a", "b")
    )
    assert state.soft_margin_c is None
    assert second.hard_margin_c == 20.0


def test_a_sensor_that_reads_below_zero_is_data_and_no_power(tmp_path):
    root = AGX_ORIN.plant(tmp_path / "root")
    (tmp_path / "root/sys/class/hwmon/hwmon1/curr1_input").write_text("-4\n")
    state = RailsSource(root).read(0)
    assert min(state.rails_w.values()) < 0 and state.power_gpu_w is None
