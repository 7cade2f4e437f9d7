"""The doctor's checks, each on a machine made of a few files; and that every finding that is not good has a mend."""

from __future__ import annotations

import glob
import json
import os
import re
from typing import Dict, List

import pytest
import zmq.auth

from edgeserve.cli import main as edgeserve_main
from edgeserve.commands import doctor
from edgeserve.commands.doctor.finding import GOOD, NOTE, WRONG, Finding
from edgeserve.commands.doctor.profile_files import check_profiles
from edgeserve.config.loading import load_config
from edgeserve.config.machine import device_slug
from edgeserve.config.profile_match import identity, lane_settings
from edgeserve.config.profiles import LaneProfile, Profile, Timing, profile_path, write_profile
from edgeserve.engines.versions import engine_versions

ORIN = {
    "proc/device-tree/model": "NVIDIA Jetson AGX Orin Developer Kit\0",
    "etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 1, BOARD: generic\n",
    "var/lib/nvpmodel/status": "pmode:0002",
    "etc/nvpmodel.conf": "< POWER_MODEL ID=0 NAME=MAXN >\n< POWER_MODEL ID=2 NAME=MODE_30W >\n",
}


@pytest.fixture
def machine(tmp_path):
    """Write files below a root directory, by path; returns the root."""

    def make(files: Dict[str, str]) -> str:
        for path, text in files.items():
            target = tmp_path / "root" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        (tmp_path / "root").mkdir(exist_ok=True)
        return str(tmp_path / "root")

    return make


def statuses(found: List[Finding]) -> List[str]:
    for finding in found:
        assert bool(finding.mend) == (finding.status != GOOD), finding
    return [finding.status for finding in found]


# --- the machine ---


def test_a_jetson_is_named_with_its_jetpack_and_its_power_mode_by_name(machine):
    found = doctor.check_board(machine(ORIN), (3, 10))
    assert statuses(found) == [GOOD, NOTE]
    assert found[0].text == "NVIDIA Jetson AGX Orin Developer Kit, L4T 36.4.3 (JetPack 6.2)"
    assert found[1].text.startswith("MODE_30W")
    assert found[1].mend == "sudo nvpmodel -m 0"


def test_the_strongest_power_mode_is_good(machine):
    files = {**ORIN, "var/lib/nvpmodel/status": "pmode:0000"}
    assert statuses(doctor.check_board(machine(files), (3, 10))) == [GOOD, GOOD]


@pytest.mark.parametrize(
    ("release", "python", "status"),
    [
        ("R36 (release), REVISION: 4.3", (3, 12), NOTE),  # TensorRT is there for 3.10 only
        ("R32 (release), REVISION: 7.1", (3, 8), WRONG),  # JetPack 4 has Python 3.6
        ("R99 (release), REVISION: 1.0", (3, 12), NOTE),  # newer than known: never a failure
    ],
)
def test_releases(machine, release, python, status):
    files = {"etc/nv_tegra_release": f"# {release}, GCID: 1"}
    assert statuses(doctor.check_board(machine(files), python)) == [status]


def test_no_jetson_is_no_trouble(machine):
    assert doctor.check_board(machine({}), (3, 11)) == [Finding("board", GOOD, "no Jetson")]


def cpufreq(count: int, governor: str, allowed: int = 2000, possible: int = 2000) -> Dict[str, str]:
    files = {}
    for core in range(count):
        folder = f"sys/devices/system/cpu/cpu{core}/cpufreq"
        files.update(
            {
                f"{folder}/scaling_governor": governor,
                f"{folder}/scaling_max_freq": str(allowed),
                f"{folder}/cpuinfo_max_freq": str(possible),
            }
        )
    return files


def test_a_sleepy_governor_is_named_with_the_command(machine):
    found = doctor.check_processor(machine(cpufreq(4, "schedutil\n")), 4)
    assert statuses(found) == [GOOD, NOTE]
    assert "schedutil on 4 cores" in found[1].text
    assert "scaling_governor" in found[1].mend


def test_on_a_jetson_the_command_is_jetson_clocks(machine):
    found = doctor.check_processor(machine({**cpufreq(2, "schedutil"), **ORIN}), 2)
    assert found[1].mend == "sudo jetson_clocks"


def test_capped_clocks_and_active_cooling_are_noted(machine):
    cooling = {
        "sys/class/thermal/cooling_device0/type": "pwm-fan\n",
        "sys/class/thermal/cooling_device0/cur_state": "3\n",
        "sys/class/thermal/cooling_device1/type": "cpufreq-cpu0\n",
        "sys/class/thermal/cooling_device1/cur_state": "1\n",
    }
    found = doctor.check_processor(machine({**cpufreq(2, "performance", 1200), **cooling}), 2)
    assert statuses(found) == [GOOD, GOOD, NOTE, NOTE]
    assert "2 cores capped" in found[2].text
    assert "cpufreq-cpu0" in found[3].text
    assert "fan" not in found[3].text


def test_one_core_is_noted_and_hidden_clocks_are_not(machine):
    assert statuses(doctor.check_processor(machine({}), 1)) == [NOTE, GOOD]


def test_a_containers_quota_counts(machine):
    assert doctor.usable_cores(machine({"sys/fs/cgroup/cpu.max": "100000 100000\n"})) == 1
    assert doctor.usable_cores(machine({"sys/fs/cgroup/cpu.max": "max 100000\n"})) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("kilobytes", "status"), [(100_000, WRONG), (600_000, NOTE), (8_000_000, GOOD)])
def test_memory(machine, kilobytes, status):
    root = machine({"proc/meminfo": f"MemTotal: 9000000 kB\nMemAvailable:    {kilobytes} kB\n"})
    assert statuses(doctor.check_memory(root)) == [status]


# --- Python ---


@pytest.mark.parametrize(("python", "status"), [((3, 7), WRONG), ((3, 8), GOOD), ((3, 13), GOOD), ((3, 14), NOTE)])
def test_the_interpreters_version(python, status):
    assert statuses(doctor.check_python(python, {})) == [status]


def test_a_package_that_cannot_be_imported_is_named_as_pip_knows_it():
    found = doctor.check_python((3, 11), {"numpy": "2.0", "zmq": None})
    assert statuses(found) == [GOOD, WRONG]
    assert found[1].mend.endswith("-m pip install pyzmq")


def test_onnxruntime():
    check = doctor.check_onnxruntime
    both = check({"onnxruntime": "1.19", "onnxruntime-gpu": "1.19"}, ["CPUExecutionProvider"], False)
    assert statuses(both) == [WRONG]
    assert "uninstall -y onnxruntime onnxruntime-gpu" in both[0].mend
    assert statuses(check({}, None, False)) == [NOTE]
    assert statuses(check({"onnxruntime": "1.19"}, ["CPUExecutionProvider"], False)) == [GOOD]
    assert statuses(check({"onnxruntime": "1.19"}, ["CPUExecutionProvider"], True)) == [NOTE]
    assert statuses(check({"onnxruntime-gpu": "1.19"}, ["CUDAExecutionProvider"], True)) == [GOOD]


# --- the bus ---


def test_the_buss_directory_must_be_closed_to_others(tmp_path):
    endpoint = f"ipc://{tmp_path}/bus.d/bus"
    assert statuses(doctor.check_bus(endpoint, os.getuid())) == [GOOD]  # will be made
    directory = tmp_path / "bus.d"
    directory.mkdir(mode=0o700)
    assert statuses(doctor.check_bus(endpoint, os.getuid())) == [GOOD]
    directory.chmod(0o755)
    assert statuses(doctor.check_bus(endpoint, os.getuid())) == [NOTE]
    directory.chmod(0o777)
    found = doctor.check_bus(endpoint, os.getuid())
    assert statuses(found) == [WRONG]
    assert found[0].mend == f"chmod 700 {directory}"
    assert statuses(doctor.check_bus(endpoint, os.getuid() + 1)) == [WRONG]


def test_the_users_own_bus_is_held_to_more(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "edgeserve").mkdir(mode=0o755)
    assert statuses(doctor.check_bus(f"ipc://{tmp_path}/edgeserve/bus", os.getuid())) == [WRONG]
    assert statuses(doctor.check_bus(f"ipc://{tmp_path}/edgeserve/bus", os.getuid() + 1)) == [WRONG]


@pytest.mark.parametrize("endpoint", ["ipc:///" + "x" * 120, "tcp://nowhere", "http://localhost:80", "ipc://@name"])
def test_an_endpoint_that_the_bus_does_not_speak(endpoint):
    assert statuses(doctor.check_bus(endpoint, os.getuid())) == [WRONG]


def test_a_bus_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    assert statuses(doctor.check_bus(f"ipc://{tmp_path}/file/bus", os.getuid())) == [WRONG]
    assert statuses(doctor.check_bus("tcp://127.0.0.1:5555", os.getuid())) == [GOOD]


def test_a_bus_for_other_machines_needs_a_key_that_can_be_read(tmp_path):
    found = doctor.check_bus("tcp://*:5555", os.getuid())
    assert statuses(found) == [WRONG] and "needs keys" in found[0].text
    found = doctor.check_bus("tcp://*:5555", os.getuid(), str(tmp_path / "absent"))
    assert statuses(found) == [WRONG] and "cannot be read as a CURVE certificate" in found[0].text
    _, secret = zmq.auth.create_certificates(tmp_path, "server")
    assert statuses(doctor.check_bus("tcp://*:5555", os.getuid(), secret)) == [GOOD]
    path = write_config(tmp_path, CONFIG + '[server]\nendpoint = "tcp://*:5555"\ncurve_secret_key_file = "absent"\n')
    assert [finding.status for finding in doctor.examine(path) if finding.subject == "bus"] == [WRONG]


# --- a configuration ---


CONFIG = """
[lane.cpu0]
[model.echo]
engine = "python"
function = "steps:echo"
batch = [1, 4]
[app.echo]
model = "echo"
"""


def write_config(tmp_path, text: str = CONFIG) -> str:
    path = tmp_path / "edge.toml"
    path.write_text(text)
    (tmp_path / "steps.py").write_text("def echo(item):\n    return item\n")
    return str(path)


@pytest.mark.parametrize(
    ("old", "new", "subject", "message"),
    [
        ('"python"', '"pythn"', "models", r"\[model.echo\] engine = 'pythn' is no engine; did you mean 'python'"),
        (
            "[app.echo]",
            "[policy.edff]\n[app.echo]",
            "policies",
            "has no kind, so that its name is its kind, and there is no policy 'edff'; did you mean 'edf'",
        ),
        ("[app.echo]", '[app.echo]\ninputs = { x = { dtype = "flot", shape = [1] } }', "inputs", "dtype = 'flot'"),
    ],
)
def test_what_the_server_would_not_start_with_is_wrong(tmp_path, old, new, subject, message):
    pytest.importorskip("onnxruntime", reason="the engine of networks")
    path = write_config(tmp_path, CONFIG.replace(old, new))
    wrong = [finding for finding in doctor.check_config_file(path, 2) if finding.status == WRONG]
    assert [finding.subject for finding in wrong] == [subject]
    assert re.search(message, wrong[0].text)
    assert path in wrong[0].mend


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('record = "absent/r"', "[server] record = 'absent/r': a recording cannot be written there"),
        ('record = "."', "[server] record = '.': a recording cannot be written there"),
        ('control_keys = ["a"]', "[server] control_keys = ['a'] names client keys"),
        ('curve_client_keys = "absent"', "is no folder"),
        ('record = "r"', None),
    ],
)
def test_a_server_section_with_which_none_would_start_is_wrong(tmp_path, line, message):
    found = doctor.check_config_file(write_config(tmp_path, f"[server]\n{line}\n{CONFIG}"), 2)
    told = [finding.text for finding in found if finding.subject == "server"]
    assert [message in text for text in told] == [True] * (message is not None)


def test_the_examples_would_start():
    examples = os.path.join(os.path.dirname(doctor.__file__), "..", "..", "..", "examples")
    paths = glob.glob(os.path.join(examples, "*", "edge.toml"))
    assert len(paths) > 2
    for path in paths:
        wrong = [finding for finding in doctor.check_config_file(path, 64) if finding.status == WRONG]
        assert {finding.subject for finding in wrong} <= {"models", "policies"}, wrong
        assert all(
            re.search("no (such )?file", finding.text) or "cannot be imported" in finding.text for finding in wrong
        ), wrong


@pytest.fixture
def profiled(tmp_path):
    """``write(timings, ...)``: the profile of model ``echo`` of CONFIG as it would be measured; ``path`` of the
    configuration."""
    path = write_config(tmp_path)

    def write(sizes=(1, 4), drift=0.0, config_text=CONFIG):
        config = load_config(write_config(tmp_path))
        same = identity(config.models["echo"], config.directory, engine_versions(config.models["echo"]))
        lanes = {"cpu0": {"settings": lane_settings(config, "cpu0"), "drift": 0.0}}
        timings = {size: Timing(10, 1000, 1500, 1100, 10, drift=drift) for size in sizes}
        write_profile(
            profile_path(str(tmp_path / "profiles"), device_slug(), "echo"),
            Profile(
                "echo", device_slug(), {"cpu0": LaneProfile(timings)}, circumstances={"same": same, "lanes": lanes}
            ),
        )
        write_config(tmp_path, config_text)
        found = [finding for finding in doctor.check_config_file(path, 2) if finding.subject == "profiles"]
        return [(finding.status, finding.text, finding.mend) for finding in found]

    return write


def test_a_model_is_called_measured_where_its_profile_matches(profiled):
    ((status, text, _),) = profiled()
    assert (status, text.partition(": ")[2]) == (GOOD, "measured: echo")


def test_unmeasured_batch_sizes_are_named(profiled, tmp_path):
    (echo, total) = profiled(sizes=(1,))
    assert echo[:2] == (
        NOTE,
        "the profile of model echo does not hold: no time was measured for batch 4 on cpu0 (measured: 1);"
        " it is measured a few times at start for the rest",
    )
    assert echo[2] == f"edgeserve profile {tmp_path / 'edge.toml'} --model echo"
    assert (total[0], total[1].partition(": ")[2]) == (NOTE, "measured at start: echo")


def test_a_profile_of_something_else_is_no_measurement(profiled, tmp_path):
    other = "batch = [1, 4]\noptions = { batched = true }"
    (echo, total) = profiled(config_text=CONFIG.replace("batch = [1, 4]", other))
    assert echo[0] == NOTE
    assert "options.batched is true now, it was not set when measured" in echo[1]
    assert "it is measured a few times at start instead" in echo[1]
    assert total[1].endswith("measured at start: echo")
    expected = '\nexpected = { 1 = "1ms", 4 = "3ms" }'
    (echo, total) = profiled(config_text=CONFIG.replace("batch = [1, 4]", other + expected))
    assert "[model.echo.expected] is used instead" in echo[1]
    assert (total[0], total[1].partition(": ")[2]) == (GOOD, "expected: echo")
    ((status, text, _),) = profiled(config_text=CONFIG.replace("batch = [1, 4]", "batch = [1, 4]" + expected))
    assert (status, text.partition(": ")[2]) == (GOOD, "measured: echo")


def test_a_profile_that_may_be_off_is_noted_and_measured_all_the_same(profiled):
    (echo, total) = profiled(drift=0.4)
    assert echo[0] == NOTE
    assert "the device got 40% slower" in echo[1]
    assert "--force" in echo[2]
    assert total[1].endswith("measured: echo")


@pytest.mark.parametrize(("content", "text"), [("{", "is not a profile"), ('{"format": 1}', "format 1, expected 2")])
def test_a_profile_that_cannot_be_read_is_noted(tmp_path, content, text):
    path = write_config(tmp_path)
    (tmp_path / "profiles" / device_slug()).mkdir(parents=True)
    (tmp_path / "profiles" / device_slug() / "echo.json").write_text(content)
    found = [finding for finding in doctor.check_config_file(path, 2) if finding.subject == "profiles"]
    assert statuses(found) == [NOTE, NOTE]  # the server starts without it
    assert f"echo.json: {text}" in found[0].text
    assert found[1].text.endswith("measured at start: echo")


def test_costs_of_the_machine_that_cannot_be_read_are_noted(tmp_path):
    """'check' and 'simulate' end with such a file."""
    path, folder = write_config(tmp_path), tmp_path / "profiles" / device_slug()
    folder.mkdir(parents=True)
    (folder / "machine.toml").write_text("x = 1")
    (folder / "other.json").write_text("{")
    found = [finding for finding in doctor.check_config_file(path, 2) if "machine.toml" in finding.text]
    assert statuses(found) == [NOTE] and "'check' and 'simulate' end with it" in found[0].text
    assert statuses([item for item in check_profiles(str(tmp_path)) if "machine.toml" in item.text]) == [WRONG]


def test_a_model_without_its_file_is_wrong_and_the_assets_command_mends_it(tmp_path):
    path = write_config(tmp_path, CONFIG.replace('engine = "python"', 'engine = "onnx"\nfile = "cache:no/such.onnx"'))
    (tmp_path / "assets.toml").write_text("")
    found = doctor.check_config_file(path, 2)
    assert statuses(found)[1] == WRONG
    assert found[1].mend.endswith(f"-m edgeserve.commands.assets {tmp_path / 'assets.toml'}")


def test_predictors_are_imported_as_the_server_will(tmp_path):
    (tmp_path / "guesses.py").write_text("def width(inputs):\n    return 1\n")
    path = write_config(tmp_path, CONFIG + '[app.echo.predict]\nlength = "guesses:width"\n')
    assert [finding.text for finding in doctor.check_config_file(path, 2) if finding.subject == "predictors"] == [
        "echo: length"
    ]
    path = write_config(tmp_path, CONFIG + '[app.echo.predict]\nlength = "guesses:wide"\n')
    found = [finding for finding in doctor.check_config_file(path, 2) if finding.subject == "predictors"]
    assert statuses(found) == [WRONG]
    assert "[app.echo.predict] 'length' = 'guesses:wide'" in found[0].text
    assert "[app.echo.predict]" in found[0].mend


def test_what_a_server_or_its_front_would_refuse_is_told(tmp_path):
    added = 'predict.steps = "x.npz"\n[front.http]\ntoken_file = "none"\n'
    found = doctor.check_config_file(write_config(tmp_path, CONFIG + added), 2)
    wrong = {finding.subject: finding.text for finding in found if finding.status == WRONG}
    assert "[front.http] token_file = 'none' cannot be read" in wrong["front http"]
    assert "[app.echo] predict.steps = 'x.npz' has no effect" in wrong["predictors"]


def test_a_missing_ensemble_file_is_wrong_unless_its_history_is_recorded(tmp_path):
    nodes = '[[app.two.node]]\nname = "echo"\n[[app.two.node]]\nname = "again"\nmodel = "echo"\nafter = []\n'
    nodes += '[[app.two.node]]\nname = "sum"\nmodel = "echo"\nafter = ["echo", "again"]\njoin = "policy"\n'
    for history, expected in (("", [WRONG]), ('history = "h.npz"\n', [])):
        path = write_config(tmp_path, CONFIG + '[app.two]\nensemble = "later.json"\n' + history + nodes)
        found = [finding for finding in doctor.check_config_file(path, 2) if "later.json" in finding.text]
        assert statuses(found) == expected
        assert not found or "'edgeserve profile --fit two=HISTORY.npz'" in found[0].text


def test_more_threads_than_cores_are_noted(tmp_path):
    path = write_config(tmp_path, CONFIG.replace("[lane.cpu0]", "[lane.cpu0]\nthreads = 3"))
    assert NOTE in statuses([finding for finding in doctor.check_config_file(path, 2) if finding.subject == "lanes"])


def test_a_configuration_that_does_not_load_is_wrong(tmp_path):
    found = doctor.check_config_file(write_config(tmp_path, CONFIG.replace("engine", "engin")), 2)
    assert statuses(found) == [WRONG]
    assert "did you mean 'engine'" in found[0].text


# --- the command ---


def test_the_command_ends_with_1_exactly_when_something_is_wrong(tmp_path, capsys, monkeypatch):
    path = write_config(tmp_path, CONFIG.replace("engine", "engin"))
    assert edgeserve_main(["doctor", path]) == 1
    out = capsys.readouterr().out
    assert "wrong  configuration" in out
    assert f"-> correct {path}" in out
    monkeypatch.setattr(
        doctor, "examine", lambda path, quick: [Finding("board", GOOD, "fine"), Finding("x", NOTE, "y", "z")]
    )
    assert edgeserve_main(["doctor", ""]) == 2  # a variable of a script that is not set
    assert "the name of the configuration is empty" in capsys.readouterr().err
    assert edgeserve_main(["doctor"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "0 wrong, 1 to improve"


def test_findings_as_json_on_this_machine(capsys):
    edgeserve_main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert {"board", "processor", "memory", "python", "packages", "onnxruntime", "bus"} <= {
        finding["subject"] for finding in found
    }
    assert set(found[0]) == {"subject", "status", "text", "mend"}
