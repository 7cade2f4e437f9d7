"""``jetson/setup.sh`` and ``jetson/uninstall.sh`` on the file systems of four boards, and on this machine."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple

import pytest
from fake_boards import BOARDS, ROOT, Board, lay_board, lay_commands, listing, performed, run_script
from fake_chroot import package_that_needs

from edgeserve.config.files import cache_directory
from edgeserve.device.boards import JETPACK_OF_L4T, JETPACK_RELEASES, detect_board

PACKAGES = {
    "agx-xavier": "python3.8-venv nvidia-cuda python3-libnvinfer",
    "agx-orin": "python3.10-venv nvidia-cuda python3-libnvinfer",
    "orin-nano": "python3.10-venv nvidia-cuda python3-libnvinfer",
    "agx-thor": "python3.12-venv nvidia-cuda python3-libnvinfer",
}  # python3-pip is there

HOLDS = {
    "agx-xavier": "numpy<1.25",
    "agx-orin": "numpy<2",
    "orin-nano": "numpy<2",
    "agx-thor": "cuda-bindings>=13,<14",
}

BINDING = {
    "agx-xavier": "cuda-python",
    "agx-orin": "cuda-bindings",
    "orin-nano": "cuda-bindings",
    "agx-thor": "cuda-bindings nvidia-ml-py",  # NVML alone tells Thor's GPU load
}

FILES = [
    "/opt/edgeserve/constraints.txt (mode 644)",
    "/opt/edgeserve/installed (mode 644)",
    "/etc/edgeserve/environment (mode 644)",
    "/etc/edgeserve/edge.toml (mode 644)",
    "/etc/systemd/system/edgeserve.service (mode 644)",
    "/etc/systemd/system/edgeserve-clocks.service (mode 644)",
    "/opt/edgeserve/jetson/lib/common.sh (mode 644)",
    "/opt/edgeserve/jetson/power.sh (mode 755)",
    "/opt/edgeserve/jetson/restart_pause.sh (mode 755)",
    "/opt/edgeserve/as-service (mode 755)",
    "/opt/edgeserve/scripts/profile_device.py (mode 644)",
    "/opt/edgeserve/scripts/lib/__init__.py (mode 644)",
    "/opt/edgeserve/scripts/lib/plots.py (mode 644)",
]

DIRECTORIES = [
    "/opt (mode 755)",
    "/opt/edgeserve (mode 755)",
    "/etc/edgeserve (mode 755)",
    "/opt/edgeserve/jetson (mode 755)",
    "/opt/edgeserve/jetson/lib (mode 755)",
    "/opt/edgeserve/scripts (mode 755)",
    "/opt/edgeserve/scripts/lib (mode 755)",
]

pytestmark = pytest.mark.skipif(
    not shutil.which("bash") or not shutil.which("dpkg-query"), reason="needs bash and dpkg-query, as a board has them"
)


class Laid(NamedTuple):
    """A board's file system, and the directory of commands that act on it."""

    board: Board
    root: Path
    commands: Path

    def run(self, script: str, *words: str) -> List[str]:
        done = run_script(script, *words, root=self.root, commands=self.commands)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines() + done.stderr.splitlines()

    def refused(self, script: str, *words: str) -> str:
        done = run_script(script, *words, root=self.root, commands=self.commands)
        assert done.returncode != 0
        return done.stderr


NIGHTLY = ("orin-nano", "agx-thor", "agx-xavier")
"""Boards whose steps are those of the others but for versions."""


@pytest.fixture(
    params=[pytest.param(board, marks=[pytest.mark.nightly] * (board.name in NIGHTLY)) for board in BOARDS],
    ids=[board.name for board in BOARDS],
)
def laid(request: pytest.FixtureRequest, tmp_path: Path) -> Laid:
    return lay(request.param, tmp_path)


def lay(board: Board, place: Path) -> Laid:
    return Laid(board, lay_board(board, place / "board"), lay_commands(place / "commands"))


SetUp = Callable[[int, Path], Laid]


@pytest.fixture(scope="module")
def set_up(tmp_path_factory: pytest.TempPathFactory) -> SetUp:
    """A board on which setup.sh has run: it runs once for each board, and the tests get copies."""
    done: Dict[int, Path] = {}

    def copy(number: int, place: Path) -> Laid:
        if number not in done:
            done[number] = tmp_path_factory.mktemp("set_up")
            lay(BOARDS[number], done[number]).run("setup.sh")
        shutil.copytree(done[number], place / "copy", symlinks=True)
        return Laid(BOARDS[number], place / "copy" / "board", place / "copy" / "commands")

    return copy


def commands_of(board: Board) -> List[str]:
    """The commands of setup.sh on a fresh board, in order."""
    groups = [
        f"usermod --append --groups {name} edgeserve"
        for name in ("video", "render", "gpio", "i2c")
        if name in board.groups
    ]
    return [
        "apt-get update",
        f"env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends {PACKAGES[board.name]}",
        "useradd --system --user-group --home-dir /var/lib/edgeserve --no-create-home --shell /usr/sbin/nologin "
        "edgeserve",
        *groups,
        f"/usr/bin/python{board.python} -m venv --system-site-packages /opt/edgeserve/venv",
        "/opt/edgeserve/venv/bin/python -m pip --disable-pip-version-check install --quiet "
        f"--constraint /opt/edgeserve/constraints.txt /opt/edgeserve/source[onnx] {BINDING[board.name]}",
        "systemctl enable edgeserve.service",
    ]


def said(lines: List[str], word: str) -> List[str]:
    return [line[len(word) + 1 :] for line in lines if line.startswith(f"{word} ")]


def unquoted(lines: List[str], root: Path) -> List[str]:
    return [line.replace(f"chroot {root} ", "").replace("'", "") for line in said(lines, "+") if "chroot" in line]


# --- what it would do, what it does -----------------------------------------------------------------------------------


def test_a_run_does_what_the_dry_run_says_a_second_one_nothing_and_uninstall_leaves_nothing(laid: Laid) -> None:
    before = listing(laid.root)
    lines = laid.run("setup.sh", "--dry-run")
    assert lines[0] == f"board: {laid.board.model} ({laid.board.compatible.rpartition(',')[2]})"
    assert lines[1].endswith(f", JetPack {laid.board.jetpack}")
    assert unquoted(lines, laid.root) == commands_of(laid.board)
    assert said(lines, "file") == FILES
    assert said(lines, "directory") == DIRECTORIES
    assert any("jtop (jetson-stats)" in line for line in lines) == laid.board.jtop
    assert "dry run: nothing was changed" in lines
    assert listing(laid.root) == before and performed(laid.root) == []

    done = laid.run("setup.sh")
    assert performed(laid.root) == commands_of(laid.board)
    assert [said(done, kind) for kind in ("+", "file", "directory")] == [
        said(lines, kind) for kind in ("+", "file", "directory")
    ]
    assert HOLDS[laid.board.name] in (laid.root / "opt/edgeserve/constraints.txt").read_text().splitlines()
    after = listing(laid.root)
    assert "nothing to do: everything is set up" in laid.run("setup.sh")
    assert listing(laid.root) == after and performed(laid.root) == commands_of(laid.board)

    laid.run("uninstall.sh", "--dry-run")
    assert listing(laid.root) == after
    laid.run("uninstall.sh", "--purge")
    assert listing(laid.root) == before
    assert "nothing to remove" in laid.run("uninstall.sh")[0]


@pytest.mark.nightly
def test_what_options_add_goes_too(tmp_path: Path) -> None:
    laid = lay(BOARDS[1], tmp_path)
    before = listing(laid.root)
    laid.run("setup.sh", "--client", "robot", "--hold")
    assert "apt-mark hold nvidia-l4t-core" in performed(laid.root)  # nvidia-l4t-init is held already
    assert "apt-mark hold nvidia-l4t-init" not in performed(laid.root)
    assert "edgeserve:x:997:robot" in (laid.root / "etc/group").read_text()
    laid.run("uninstall.sh", "--purge")
    assert listing(laid.root) == before
    assert performed(laid.root).count("apt-mark unhold nvidia-l4t-core") == 1
    assert "apt-mark unhold nvidia-l4t-init" not in performed(laid.root)


@pytest.mark.nightly
def test_the_configuration_outlives_uninstall_and_the_next_setup(tmp_path: Path, set_up: SetUp) -> None:
    laid = set_up(2, tmp_path)
    config = laid.root / "etc/edgeserve/edge.toml"
    config.write_text("# mine\n")
    lines = laid.run("uninstall.sh", "--keep-packages")
    assert "kept: /etc/edgeserve/edge.toml (--purge removes it)" in lines
    assert not any("apt-get remove" in line for line in performed(laid.root))
    assert not (laid.root / "opt/edgeserve").exists()
    laid.run("setup.sh")
    assert config.read_text() == "# mine\n"
    laid.run("uninstall.sh", "--purge", "--keep-packages")
    assert not config.parent.exists()


@pytest.mark.nightly
def test_files_that_were_changed_are_kept_with_a_word(tmp_path: Path, set_up: SetUp) -> None:
    laid = set_up(1, tmp_path)
    unit = laid.root / "etc/systemd/system/edgeserve.service"
    unit.write_text(unit.read_text() + "# mine\n")
    assert any("edgeserve.service was changed" in line for line in laid.run("uninstall.sh"))
    assert unit.exists()
    laid.run("uninstall.sh", "--purge")
    assert not unit.exists()


@pytest.mark.nightly
def test_packages_that_others_need_by_now_are_kept_and_named(tmp_path: Path, set_up: SetUp) -> None:
    laid = set_up(1, tmp_path)
    status = laid.root / "var/lib/dpkg/status"
    status.write_text(
        status.read_text()
        + package_that_needs("tensorrt", "python3-libnvinfer")
        + package_that_needs("nvidia-jetpack", "tensorrt, nvidia-cuda")
        + package_that_needs("deepstream", "tensorrt")
    )
    dry = laid.run("uninstall.sh", "--dry-run")
    lines = laid.run("uninstall.sh")
    for name, others in (
        ("nvidia-cuda", "nvidia-jetpack"),
        ("python3-libnvinfer", "tensorrt nvidia-jetpack deepstream"),
    ):
        word = f"kept: package {name}, since apt would remove {others} with it"
        assert word in lines and word in dry
    removed = [line for line in performed(laid.root) if "apt-get remove" in line]
    assert removed == ["env DEBIAN_FRONTEND=noninteractive apt-get remove --yes python3.10-venv"]
    assert "Package: deepstream" in status.read_text()


@pytest.mark.nightly
def test_an_uninstall_comes_to_its_end_where_the_power_mode_of_before_needs_a_restart(tmp_path: Path) -> None:
    laid = lay(BOARDS[1]._replace(mode=3), tmp_path)  # MODE_50W needs a restart
    laid.run("setup.sh")
    laid.run("power.sh", "--mode", "MAXN", "--fan", "cool")
    lines = laid.run("uninstall.sh", "--purge")
    assert any(line.startswith("left: the power mode") and "--undo --reboot" in line for line in lines)
    assert not (laid.root / "opt/edgeserve").exists() and not (laid.root / "var/lib/edgeserve-setup/manifest").exists()
    assert "FAN_DEFAULT_PROFILE quiet" in (laid.root / "etc/nvfancontrol.conf").read_text()
    laid.run("power.sh", "--undo", "--reboot")
    assert "pmode:0003" in (laid.root / "var/lib/nvpmodel/status").read_text()


# --- what runs as the service -----------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_what_is_built_by_hand_lies_where_the_service_looks_for_it(tmp_path: Path, set_up: SetUp) -> None:
    laid = set_up(2, tmp_path)
    unit = (laid.root / "etc/systemd/system/edgeserve.service").read_text().splitlines()
    environment = [laid.root / line.split("=/")[1] for line in unit if line.startswith("EnvironmentFile=")]
    with open(environment[0], "a") as file:
        file.write('# odd-name=1\n\nNOTE=two words of $HOME\nQUOTED="two words"\nLAST=`false`')
    of_unit = dict(
        line.split("=", 1) for path in environment for line in path.read_text().splitlines() if line[:1] not in "#"
    )
    of_unit["QUOTED"] = "two words"
    for name, text in (("setpriv", 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"'), ("install", ":")):
        (laid.commands / name).write_text(f"#!/bin/sh\n{text}\n")
        (laid.commands / name).chmod(0o755)
    wrapper = laid.root / "opt/edgeserve/as-service"
    text = wrapper.read_text()
    for place in ("etc/edgeserve", "var/lib/edgeserve"):
        (laid.root / place).mkdir(exist_ok=True, parents=True)
        text = text.replace(f" /{place}", f" {laid.root}/{place}")
    wrapper.write_text(text)
    shown = subprocess.run(
        [str(wrapper), sys.executable, "-c", "import os; print(dict(os.environ))"],
        env={"PATH": f"{laid.commands}:{os.environ['PATH']}", "HOME": "/root"},
        text=True,
        stdout=subprocess.PIPE,
        timeout=20,
        check=True,
    )
    of_wrapper = ast.literal_eval(shown.stdout)
    assert of_unit.items() <= of_wrapper.items()
    assert cache_directory({**of_unit, "HOME": "/var/lib/edgeserve"}) == cache_directory(of_wrapper)


@pytest.mark.nightly
def test_an_environment_that_was_changed_stays(tmp_path: Path, set_up: SetUp) -> None:
    laid = set_up(2, tmp_path)
    path = laid.root / "etc/edgeserve/environment"
    path.write_text("XDG_CACHE_HOME=/mnt/nvme\n")
    laid.run("setup.sh")
    assert path.read_text() == "XDG_CACHE_HOME=/mnt/nvme\n"


@pytest.mark.nightly
def test_the_profiler_runs_from_where_it_is_installed(tmp_path: Path, set_up: SetUp) -> None:
    laid = set_up(2, tmp_path)
    script = laid.root / "opt/edgeserve/scripts/profile_device.py"
    shown = subprocess.run(
        [sys.executable, "-B", str(script), "--help"], cwd=tmp_path, text=True, capture_output=True, timeout=60
    )
    assert shown.returncode == 0 and "--rounds" in shown.stdout, shown.stderr


# --- what it reads ----------------------------------------------------------------------------------------------------


def test_the_unit_has_this_machines_paths(tmp_path: Path) -> None:
    laid = lay(BOARDS[0], tmp_path)
    laid.run("setup.sh", "--prefix", "/srv/edge", "--config", "/srv/edge.toml")
    text = (laid.root / "etc/systemd/system/edgeserve.service").read_text()
    assert "ExecStart=/srv/edge/venv/bin/edgeserve serve /srv/edge.toml\n" in text and "@" not in text
    assert (laid.root / "srv/edge.toml").exists()
    clocks = (laid.root / "etc/systemd/system/edgeserve-clocks.service").read_text()
    assert "ExecStart=/srv/edge/jetson/power.sh --clocks\n" in clocks


@pytest.mark.nightly
def test_a_gpu_build_of_onnxruntime_takes_the_place_of_the_cpu_build(tmp_path: Path) -> None:
    laid = lay(BOARDS[1], tmp_path)
    laid.run("setup.sh", "--onnxruntime", "/tmp/onnxruntime_gpu-1.19-cp310-linux_aarch64.whl", "--no-apt")
    pip = next(line for line in performed(laid.root) if " pip " in line)
    assert pip.endswith("/opt/edgeserve/source /tmp/onnxruntime_gpu-1.19-cp310-linux_aarch64.whl cuda-bindings")
    assert not any("apt-get" in line for line in performed(laid.root))
    other = lay(BOARDS[1], tmp_path / "other")
    other.run("setup.sh", "--index", "https://example.invalid/jp6/cu126")
    first, then = [line for line in performed(other.root) if " pip " in line]
    assert first.endswith("--no-deps --index-url https://example.invalid/jp6/cu126 onnxruntime-gpu")
    assert "index" not in then and "/opt/edgeserve/source onnxruntime-gpu" in then, "it is there already"


ARCHITECTURES = {"agx-xavier": "72-real", "agx-orin": "87-real", "orin-nano": "87-real", "agx-thor": "110-real"}


@pytest.mark.nightly
def test_llama_cpp_is_built_for_the_boards_gpu_and_once(laid: Laid) -> None:
    laid.run("setup.sh", "--language")
    done = performed(laid.root)
    (build,) = [line for line in done if " wheel " in line]
    assert build.startswith(
        "env CUDACXX=/usr/local/cuda/bin/nvcc CMAKE_ARGS=-DGGML_CUDA=on "
        f"-DCMAKE_CUDA_ARCHITECTURES={ARCHITECTURES[laid.board.name]} -DGGML_CUDA_NO_VMM=ON "
        "/opt/edgeserve/venv/bin/python"
    )
    assert build.endswith("wheel --quiet --no-deps --wheel-dir /opt/edgeserve/wheels llama-cpp-python>=0.3.30")
    (install,) = [line for line in done[done.index(build) :] if " pip " in line and " install " in line]
    assert "--find-links /opt/edgeserve/wheels --only-binary llama-cpp-python" in install
    assert "/opt/edgeserve/source[onnx,lm-llama]" in install
    assert any("apt-get install" in line and "build-essential" in line for line in done)
    (laid.root / "opt/edgeserve/wheels/llama_cpp_python-0.3.36-py3-none-linux_aarch64.whl").write_text("")
    (laid.root / "opt/edgeserve/installed").unlink()  # as after a change of the program
    laid.run("setup.sh", "--language")
    assert [line for line in performed(laid.root) if " wheel " in line] == [build], "the wheel is kept"


def test_on_a_workstation_llama_cpp_needs_the_compiler_of_cuda(tmp_path: Path) -> None:
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n")
    words = ["--dry-run", "--prefix", "/edge", "--python", sys.executable, "--language"]
    commands = lay_commands(tmp_path / "commands")
    refused = run_script("setup.sh", *words, root=tmp_path, commands=commands)
    assert refused.returncode != 0 and "no /usr/local/cuda/bin/nvcc" in refused.stderr
    compiler = tmp_path / "usr/local/cuda/bin/nvcc"
    compiler.parent.mkdir(parents=True)
    compiler.write_text("")
    compiler.chmod(0o755)
    done = run_script("setup.sh", *words, root=tmp_path, commands=commands)
    assert "-DCMAKE_CUDA_ARCHITECTURES=native'" in done.stdout and "NO_VMM" not in done.stdout


def change(root: Path, path: str, text: str) -> None:
    (root / path).write_text(text)


@pytest.mark.parametrize(
    ("release", "says"),
    [
        ("# R32 (release), REVISION: 7.1, GCID: 1", "JetPack 4 has Python 3.6"),
        ("# R28 (release), REVISION: 2.1, GCID: 1", "L4T 28.2.1 is not known"),
        ("", "L4T of this board is not known"),
    ],
)
def test_a_release_that_cannot_serve_is_refused_with_the_mend(tmp_path: Path, release: str, says: str) -> None:
    laid = lay(BOARDS[0], tmp_path)
    change(laid.root, "etc/nv_tegra_release", release)
    change(laid.root, "var/lib/dpkg/status", "")
    assert says in laid.refused("setup.sh", "--dry-run")


def test_a_release_that_is_newer_than_the_script_counts_as_the_newest(tmp_path: Path) -> None:
    laid = lay(BOARDS[3], tmp_path)
    change(laid.root, "etc/nv_tegra_release", "# R41 (release), REVISION: 1.0, GCID: 1\n")
    lines = laid.run("setup.sh", "--dry-run")
    assert any("L4T 41.1.0 is newer than this script knows; going on as with JetPack 7" in line for line in lines)


FACTS = """set -eu
. "$1"
ROOT="$2"
while read -r major rest; do
    echo "# R$major (release), REVISION: $rest, GCID: 1" > "$ROOT/etc/nv_tegra_release"
    detect
    echo "$L4T|$JETPACK|$FAMILY|$(python_of "$FAMILY")"
done
"""


def test_the_scripts_and_the_package_say_the_same_of_each_release(tmp_path: Path) -> None:
    laid = lay(BOARDS[0], tmp_path)
    asked = [release.split(".", 1) for release in sorted(JETPACK_RELEASES)]
    asked += [[str(major), rest] for major in range(28, 41) for rest in ("0", "1", "1.1", "2", "4.5", "9.9")]
    command = ["bash", "-c", FACTS, "facts", str(ROOT / "jetson" / "lib" / "common.sh"), str(laid.root)]
    lines = "".join(f"{major} {rest}\n" for major, rest in asked)
    told = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=60, check=True).stdout
    expected = []
    for major, rest in asked:
        (laid.root / "etc/nv_tegra_release").write_text(f"# R{major} (release), REVISION: {rest}, GCID: 1\n")
        board = detect_board(str(laid.root))
        family, python = JETPACK_OF_L4T.get(int(major), ("", ()))
        if not family:  # where the package says nothing, the script goes on as with the newest, or refuses
            family, python = ("7", (3, 12)) if int(major) > max(JETPACK_OF_L4T) else ("unknown", ())
        expected.append(f"{board.l4t}|{board.jetpack}|{family}|{'.'.join(map(str, python))}")
    assert told.splitlines() == expected


def test_without_its_file_the_release_is_the_packages_version(tmp_path: Path) -> None:
    laid = lay(BOARDS[1], tmp_path)
    (laid.root / "etc/nv_tegra_release").unlink()
    status = laid.root / "var/lib/dpkg/status"
    status.write_text(status.read_text().replace("Version: 1.0", "Version: 36.4.3-20250107174145", 1))
    assert "L4T: 36.4.3, JetPack 6.2" in laid.run("setup.sh", "--dry-run")


@pytest.mark.parametrize("runs", [True, False])
def test_the_general_gpu_build_is_kept_on_jetpack_7_where_a_kernel_runs(tmp_path: Path, runs: bool) -> None:
    laid = lay(BOARDS[3], tmp_path)
    if not runs:
        (laid.root / "dev").mkdir()
        (laid.root / "dev/no-kernel").write_text("")
    lines = laid.run("setup.sh", "--onnxruntime", "try")
    pip = [line.partition(" pip ")[2] for line in performed(laid.root) if " pip " in line]
    assert pip[0].endswith("/opt/edgeserve/source onnxruntime-gpu cuda-bindings nvidia-ml-py")
    back = [
        "uninstall --quiet --yes onnxruntime-gpu",
        "install --quiet --constraint /opt/edgeserve/constraints.txt onnxruntime",
    ]
    assert [line.replace("--disable-pip-version-check ", "") for line in pip[1:]] == ([] if runs else back)
    assert any("back to the CPU build" in line for line in lines) != runs
    assert "nothing to do" in " ".join(laid.run("setup.sh", "--onnxruntime", "try"))


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    laid = lay(BOARDS[1], tmp_path)
    assert "unknown option --pefix" in laid.refused("setup.sh", "--pefix", "/x")
    assert "--prefix needs a value" in laid.refused("setup.sh", "--prefix")
    assert "exclude each other" in laid.refused("setup.sh", "--index", "x", "--onnxruntime", "y")
    assert "is for JetPack 7, this is JetPack 6" in laid.refused("setup.sh", "--onnxruntime", "try")
    assert "no such user" in laid.refused("setup.sh", "--client", "nobody-here")
    (laid.root / "usr/bin/python3.10").unlink()
    assert "apt-get install python3.10" in laid.refused("setup.sh", "--dry-run")


@pytest.mark.parametrize("option", ["--prefix", "--config"])
@pytest.mark.parametrize("path", ["/srv/my edge", "edge", "/srv/50%", "/srv/a|b"])
def test_a_path_that_the_manifest_or_a_unit_would_cut_is_refused(tmp_path: Path, option: str, path: str) -> None:
    laid = lay(BOARDS[1], tmp_path)
    assert f"{option} {path}: expected a path from / on" in laid.refused("setup.sh", option, path)
    assert performed(laid.root) == []


def test_a_checkout_and_a_root_may_have_spaces(tmp_path: Path) -> None:
    laid = lay(BOARDS[1], tmp_path / "my boards")
    before = listing(laid.root)
    laid.run("setup.sh")
    laid.run("uninstall.sh", "--purge")
    assert listing(laid.root) == before


@pytest.mark.nightly
def test_a_setup_that_failed_halfway_goes_on(tmp_path: Path) -> None:
    laid = lay(BOARDS[1], tmp_path)
    before = listing(laid.root)
    change(laid.root, "usr/bin/no-ensurepip", "")
    assert "this command failed" in laid.refused("setup.sh")
    (laid.root / "usr/bin/no-ensurepip").unlink()
    laid.run("setup.sh")
    assert (laid.root / "opt/edgeserve/venv/bin/pip").exists()
    laid.run("uninstall.sh", "--purge")
    assert listing(laid.root) == before


@pytest.mark.nightly
def test_an_uninstall_that_failed_halfway_goes_on(tmp_path: Path, set_up: SetUp) -> None:
    laid = set_up(1, tmp_path)
    change(laid.root, "var/lib/dpkg/taken", "")
    assert "this command failed" in laid.refused("uninstall.sh", "--purge")
    (laid.root / "var/lib/dpkg/taken").unlink()
    laid.run("uninstall.sh", "--purge")
    assert not (laid.root / "opt/edgeserve").exists()
    assert "nothing to remove" in laid.run("uninstall.sh")[0]


# --- workstations -----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.path.exists("/proc/device-tree/model"), reason="this is a board, not a workstation")
@pytest.mark.parametrize(
    ("files", "installs", "says"),
    [
        ({}, "/source[onnx]", ""),
        ({"sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n"}, "/source[onnx]", "sudo ubuntu-drivers install"),
        (
            {"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12\n"},
            "cuda-bindings<13 /source[onnx,gpu]",
            "pip install tensorrt",
        ),
        (
            {
                "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  "
                "Release Build\n"
            },
            "/source[onnx,gpu]",
            "pip install 'onnxruntime-gpu[cuda,cudnn]'",
        ),
        ({"dev/dxg": "", "usr/lib/wsl/lib/libcuda.so.1": ""}, "/source[onnx,gpu]", "GPU: NVIDIA, driver wsl"),
    ],
)
def test_a_workstation_with_a_gpu_gets_cuda_or_the_command_that_brings_it(
    tmp_path: Path, files: Dict[str, str], installs: str, says: str
) -> None:
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    words = ["--dry-run", "--prefix", "/edge", "--python", sys.executable]
    done = run_script("setup.sh", *words, root=tmp_path, commands=lay_commands(tmp_path / "commands"))
    assert done.returncode == 0, done.stderr
    pip = next(line for line in done.stdout.splitlines() if " pip " in line).replace("'", "")
    assert pip.endswith(f"--constraint /edge/constraints.txt {installs.replace('/source', '/edge/source')}")
    assert says in done.stdout + done.stderr


# --- this machine -----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(
    os.environ.get("EDGESERVE_SLOW") != "1", reason="installs from the package index, about 10 s: set EDGESERVE_SLOW=1"
)
@pytest.mark.skipif(os.path.exists("/proc/device-tree/model"), reason="this is a board, not a workstation")
def test_a_workstation_is_set_up_in_a_clean_directory_serves_and_is_clean_again(tmp_path: Path, folder: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(folder), "PYTHONPATH": ""}

    def run(*words: str) -> str:
        done = subprocess.run(
            words,
            env=environment,
            cwd=tmp_path,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    prefix = tmp_path / "edge"
    words = [str(ROOT / "jetson" / "setup.sh"), "--prefix", str(prefix), "--python", sys.executable]
    assert "dry run" in run(*words, "--dry-run") and not prefix.exists()
    run(*words)
    assert "nothing to do" in run(*words)
    program, config = str(prefix / "venv" / "bin" / "edgeserve"), str(prefix / "edge.toml")
    assert "0 wrong" in run(program, "doctor", config)
    server = subprocess.Popen([program, "serve", config], env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        while "ready on" not in server.stderr.readline():
            assert server.poll() is None
        assert '"outcome": "completed"' in run(program, "infer", "hello", "--json")
    finally:
        server.terminate()
        assert server.wait(20) == 0
        assert server.stderr is not None
        server.stderr.close()
    run(str(ROOT / "jetson" / "uninstall.sh"), "--prefix", str(prefix), "--purge")
    assert not prefix.exists()
