"""``jetson/power.sh`` on the file systems of four boards: modes by name, clocks, fan, and the way back."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Tuple

import pytest
from fake_boards import BOARDS, Board, lay_board, lay_commands, listing, performed, run_script

pytestmark = pytest.mark.skipif(not shutil.which("bash"), reason="needs bash, as a board has it")

XAVIER, ORIN, NANO, THOR = BOARDS


def lay(board: Board, place: Path) -> Tuple[Path, Path]:
    return lay_board(board, place / "board"), lay_commands(place / "commands")


def run(laid: Tuple[Path, Path], *words: str) -> str:
    done = run_script("power.sh", *words, root=laid[0], commands=laid[1])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def refused(laid: Tuple[Path, Path], *words: str) -> str:
    done = run_script("power.sh", *words, root=laid[0], commands=laid[1])
    assert done.returncode != 0
    return done.stderr


@pytest.mark.parametrize(
    ("board", "name", "number"),
    [(XAVIER, "MAXN", 0), (XAVIER, "mode_30w_all", 3), (ORIN, "MAXN", 0), (NANO, "MAXN_SUPER", 2), (THOR, "MAXN", 0)],
)
def test_a_mode_is_found_by_its_name(tmp_path: Path, board: Board, name: str, number: int) -> None:
    laid = lay(board, tmp_path)
    run(laid, "--mode", name)
    assert performed(laid[0]) == [f"nvpmodel -m {number}"]
    assert f"power mode: {board.modes[number]} " in run(laid, "--show")
    assert "already" in run(laid, "--mode", name) and len(performed(laid[0])) == 1


@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize(("board", "name"), [(XAVIER, "MAXN"), (ORIN, "MAXN"), (NANO, "MAXN_SUPER"), (THOR, "MAXN")])
def test_the_mode_with_the_most_power_is_found_under_any_name(
    tmp_path: Path, board: Board, name: str, capped: bool
) -> None:
    laid = lay(board, tmp_path)
    if capped:  # a board without such a mode
        conf = laid[0] / "etc/nvpmodel.conf"
        conf.write_text(re.sub(r"<[^>]*MAXN[^>]*>", "", conf.read_text()))
        watts = {mode: int(found.group(1)) for mode in board.modes for found in [re.search(r"(\d+)W", mode)] if found}
        name = max(watts, key=lambda mode: watts[mode])
    run(laid, "--mode", "max", "--reboot")
    assert f"power mode: {name} " in run(laid, "--show")


def test_of_modes_of_as_many_watts_the_one_with_the_most_cores_is_taken(tmp_path: Path) -> None:
    """As on a Xavier NX, which has no mode without a cap."""
    modes = [f"MODE_{watts}W_{cores}CORE" for watts in (15, 10, 20) for cores in (2, 4, 6)]
    laid = lay(XAVIER._replace(modes=modes, mode=0), tmp_path)
    run(laid, "--mode", "max", "--reboot")
    assert "power mode: MODE_20W_6CORE " in run(laid, "--show")


def test_undo_brings_everything_back(tmp_path: Path) -> None:
    laid = lay(ORIN, tmp_path)
    before = listing(laid[0])
    run(laid, "--mode", "MAXN", "--clocks", "--fan", "cool")
    assert performed(laid[0]) == [
        "nvpmodel -m 0",
        "jetson_clocks --store /var/lib/edgeserve-setup/power/clocks",
        "jetson_clocks",
        "systemctl stop nvfancontrol",
        "systemctl start nvfancontrol",
    ]
    assert "FAN_DEFAULT_PROFILE cool" in (laid[0] / "etc/nvfancontrol.conf").read_text()
    assert not (laid[0] / "var/lib/nvfancontrol/status").exists()  # it would bring the old profile back
    run(laid, "--mode", "MODE_15W")  # the first state of all is kept, not the last; clocks follow the mode
    assert performed(laid[0])[5:] == [
        "jetson_clocks --restore /var/lib/edgeserve-setup/power/clocks",
        "nvpmodel -m 1",
        "jetson_clocks",
    ]
    run(laid, "--undo")
    after = listing(laid[0])
    for where in ("var/lib/edgeserve-setup", "var/lib/nvfancontrol/status"):
        before.pop(where, None), after.pop(where, None)
    assert after == before
    assert "nothing to undo" in run(laid, "--undo")


def test_a_dry_run_says_it_and_changes_nothing(tmp_path: Path) -> None:
    laid = lay(ORIN, tmp_path)
    before = listing(laid[0])
    said = run(laid, "--dry-run", "--mode", "MAXN", "--clocks", "--fan", "cool")
    assert "+ nvpmodel -m 0   (MAXN)" in said and "jetson_clocks --store" in said and "FAN_DEFAULT_PROFILE" in said
    assert listing(laid[0]) == before and performed(laid[0]) == []


def test_a_mode_that_wants_a_restart_is_set_only_where_that_is_allowed(tmp_path: Path) -> None:
    laid = lay(ORIN, tmp_path)
    assert "MODE_50W needs a restart of the board" in refused(laid, "--mode", "MODE_50W")
    run(laid, "--mode", "MODE_50W", "--reboot")
    assert "power mode: MODE_50W" in run(laid, "--show")


def test_what_does_not_exist_is_refused_with_what_does(tmp_path: Path) -> None:
    laid = lay(NANO, tmp_path)
    assert "it has 15W 25W MAXN_SUPER 7W" in refused(laid, "--mode", "MAXN")
    assert "it has cool quiet" in refused(laid, "--fan", "loud")
    assert "unknown option --mod" in refused(laid, "--mod", "7W")
    (laid[0] / "etc/nvfancontrol.conf").unlink()
    assert "no nvfancontrol" in refused(laid, "--fan", "cool")
    (laid[0] / "etc/nvpmodel.conf").unlink()
    assert "this is no Jetson" in refused(laid, "--show")
    assert performed(laid[0]) == []


def test_the_clocks_alone_go_back_for_the_unit_that_pinned_them(tmp_path: Path) -> None:
    laid = lay(XAVIER, tmp_path)
    run(laid, "--clocks")
    run(laid, "--undo-clocks")
    assert performed(laid[0])[-1] == "jetson_clocks --restore /var/lib/edgeserve-setup/power/clocks"
    assert "clocks: not pinned by this script" in run(laid, "--show")


def test_what_fails_leaves_the_fan_turning_and_pinned_clocks_pinned(tmp_path: Path) -> None:
    laid = lay(ORIN, tmp_path)
    run(laid, "--clocks")
    assert "MODE_50W needs a restart" in refused(laid, "--mode", "MODE_50W")
    assert performed(laid[0])[-1] == "jetson_clocks"
    sed = laid[1] / "sed"
    sed.write_text('#!/bin/sh\ncase "$1" in -i) exit 4 ;; esac\nexec /bin/sed "$@"\n')  # a full disk
    sed.chmod(0o755)
    assert "this command failed" in refused(laid, "--fan", "cool")
    assert performed(laid[0]).count("systemctl stop nvfancontrol") == 0
