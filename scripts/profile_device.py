"""Profile every model of a configuration on this device: ``python scripts/profile_device.py CONFIG [CONFIG ...]``.

Each model is measured in a process of its own (``edgeserve profile CONFIG --model M``), so that one model's memory is
not counted as another's and a crash in a native library costs one profile, not all. Interrupted, it goes on where it
stopped. With ``--rounds N`` everything is measured N times, one round after the other, and what differs between the
rounds is shown; the round whose medians lie in the middle becomes the profile. On a Jetson ``--modes A,B`` measures in
several power modes (as root: ``jetson/power.sh``), a profile for each, and sets back the mode of before.

Power mode, clocks, governor and temperature are written into each profile. Ends with a table of checks; the exit
status is 1 when one falls short.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[0]))  # scripts/

from lib import plots

from edgeserve.config.loading import load_config
from edgeserve.config.machine import device_slug
from edgeserve.config.profiles import Profile, profile_path, read_profile, write_profile
from edgeserve.config.schema import Config
from edgeserve.device.circumstances import power_mode
from edgeserve.errors import EdgeServeError, ProfileError
from edgeserve.units import format_duration, ns_to_ms

DRIFT_MAX = 0.05  # a device that got slower by more than this was throttling, or not alone
ROUNDS_MAX = 0.10  # medians of two rounds that differ by more than this were measured on two devices, so to say
CPU_SHARE_MIN = 0.9  # below this the lane's thread waited for other programs
QUICK_SECONDS = 0.5
QUICK_DRIFT_MAX = 0.25  # half a second of runs says less about drift
POWER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "jetson", "power.sh")


class Check(NamedTuple):
    """One row of the final table."""

    name: str
    value: str
    must: str
    holds: bool


Medians = Dict[Tuple[str, int], List[int]]
"""(lane, batch size) -> the median of each round, in nanoseconds."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, check. 0 when every check holds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("configs", nargs="+", metavar="CONFIG")
    parser.add_argument("--out", default="", metavar="DIR", help="profiles directory (default: [server] profiles)")
    parser.add_argument("--device", default="", metavar="NAME", help="the device's name (default: from this machine)")
    parser.add_argument("--seconds", type=float, default=3.0, help="longest time per batch size (default: 3)")
    parser.add_argument("--rounds", type=int, default=1, help="measure it so many times, and compare (default: 1)")
    parser.add_argument("--modes", default="", metavar="A,B", help="in each of these power modes (Jetson, as root)")
    parser.add_argument("--power-script", default=POWER, help=argparse.SUPPRESS)
    parser.add_argument("--plot", default="", metavar="FILE.svg", help="latency against batch size (needs matplotlib)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SECONDS} s per batch size, wider tolerance")
    parser.add_argument("--force", action="store_true", help="measure again what is there already")
    parser.add_argument("--no-machine", action="store_true", help="only models: not what the machine itself costs")
    parser.add_argument("--json", default="", metavar="FILE", help="write the checks there too")
    args = parser.parse_args(argv)
    checks: List[Check] = []
    drawn: Dict[str, Profile] = {}
    try:
        if args.plot:
            plots.load_pyplot()  # before minutes of measuring
        for mode in args.modes.split(",") if args.modes else [""]:
            checks += in_mode(mode, args, drawn)
        if args.plot:
            draw_profiles(args.plot, drawn)
    except EdgeServeError as error:
        print(f"profile_device: {error}", file=sys.stderr)
        return 2
    print_checks(checks, args.quick)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump([check._asdict() for check in checks], file, indent=1)
    return 0 if all(check.holds for check in checks) else 1


def draw_profiles(path: str, profiles: Mapping[str, Profile]) -> None:
    """Latency against batch size: a panel per profile, by its title, with the median and the p99 of each lane."""
    panels = []
    for title, profile in profiles.items():
        lines = []
        for lane, known in sorted(profile.lanes.items()):
            sizes = sorted(known.timings)
            timings = [known.timings[size] for size in sizes]
            lines.append(plots.Line(lane, sizes, [ns_to_ms(timing.median_ns) for timing in timings], "o-"))
            lines.append(plots.Line(f"{lane}, p99", sizes, [ns_to_ms(timing.p99_ns) for timing in timings], "--"))
        panels.append(plots.Panel(title, "batch size", "ms", lines))
    plots.draw(os.path.abspath(path), panels, columns=3)


def in_mode(mode: str, args: argparse.Namespace, drawn: Dict[str, Profile]) -> List[Check]:
    """Measure all configurations in a power mode, with its clocks locked; ``""``: as the device is now."""
    if not mode:
        return [check for path in args.configs for check in profile_config(path, args, drawn)]
    if subprocess.run([args.power_script, "--mode", mode, "--clocks"], check=False).returncode != 0:
        raise EdgeServeError(f"power mode {mode} could not be set: {args.power_script} --list shows the board's")
    try:
        return [check for path in args.configs for check in profile_config(path, args, drawn)]
    finally:
        subprocess.run([args.power_script, "--undo"], check=False)


def profile_config(path: str, args: argparse.Namespace, drawn: Dict[str, Profile]) -> List[Check]:
    """Measure every model of one configuration, each in its own process; what can be said of the profiles."""
    config = load_config(path)
    out = args.out or config.profiles_path
    device, mode = args.device or device_slug(), power_mode()
    checks = []
    for number, name in enumerate(config.models):
        final = profile_path(out, device, name, mode)
        status, medians = rounds(path, name, out, device, mode, args, machine=number == 0 and not args.no_machine)
        checks += checks_of(config, name, final, status, QUICK_DRIFT_MAX if args.quick else DRIFT_MAX)
        checks += _round_checks(name, medians)
        if os.path.exists(final):
            drawn[f"{name}{f', {mode}' if mode else ''}"] = read_profile(final)
    return checks


# --- rounds -----------------------------------------------------------------------------------------------------------


def rounds(
    path: str, name: str, out: str, device: str, mode: str, args: argparse.Namespace, machine: bool
) -> Tuple[int, Medians]:
    """Measure one model ``--rounds`` times and keep the round in the middle: the worst exit status, the medians."""
    final, status, found = profile_path(out, device, name, mode), 0, []
    for number in range(max(1, args.rounds)):
        with tempfile.TemporaryDirectory() as place:
            folder = out if number == 0 else place
            command = [
                sys.executable,
                "-m",
                "edgeserve.cli",
                "profile",
                path,
                "--model",
                name,
                "--out",
                folder,
                "--device",
                device,
                "--seconds",
                str(QUICK_SECONDS if args.quick else args.seconds),
            ]
            command += ["--force"] * args.force + ["--no-machine"] * (not machine or number > 0)
            status = max(status, subprocess.run(command, check=False).returncode)
            try:
                found.append(read_profile(profile_path(folder, device, name, mode)))
            except ProfileError:
                status = max(status, 1)
    medians = medians_of(found)
    if len(found) > 1:
        chosen = found[middle(found)]
        by_round = {f"{lane} {size}": times for (lane, size), times in medians.items()}
        write_profile(final, replace(chosen, circumstances={**chosen.circumstances, "rounds_median_ns": by_round}))
    return status, medians


def medians_of(found: Sequence[Profile]) -> Medians:
    """The medians of every lane and batch size, round by round."""
    medians: Medians = {}
    for profile in found:
        for lane, known in profile.lanes.items():
            for size, timing in known.timings.items():
                medians.setdefault((lane, size), []).append(timing.median_ns)
    return medians


def middle(found: Sequence[Profile]) -> int:
    """The round whose medians, each over the median of all rounds, are on average in the middle."""
    medians = medians_of(found)
    usual = {key: statistics.median(times) for key, times in medians.items()}
    ratios = [
        statistics.fmean(
            [
                timing.median_ns / usual[lane, size]
                for lane, known in profile.lanes.items()
                for size, timing in known.timings.items()
                if usual[lane, size]
            ]
            or [1.0]
        )
        for profile in found
    ]
    return sorted(range(len(found)), key=lambda number: (ratios[number], number))[(len(found) - 1) // 2]


def _round_checks(name: str, medians: Medians) -> List[Check]:
    """The spread of the rounds, by the worst batch size of each lane; and in which direction they went."""
    checks = []
    for lane in sorted({lane for lane, _ in medians}):
        spreads = {
            size: max(times) / min(times) - 1
            for (where, size), times in medians.items()
            if where == lane and len(times) > 1 and min(times) > 0
        }
        if spreads:
            size = max(spreads, key=lambda key: (spreads[key], key))
            times = medians[lane, size]
            print(
                f"{name} on {lane}, batch {size}, round by round: {', '.join(map(format_duration, times))} "
                f"({times[-1] / times[0] - 1:+.1%} from the first to the last)"
            )
            checks.append(
                Check(
                    f"{name} on {lane}: rounds differ by",
                    f"{spreads[size]:.1%}",
                    f"<= {ROUNDS_MAX:.0%}",
                    spreads[size] <= ROUNDS_MAX,
                )
            )
    return checks


# --- checks -----------------------------------------------------------------------------------------------------------


def checks_of(config: Config, name: str, path: str, status: int, drift_max: float) -> List[Check]:
    """The checks of one model: all its sizes measured on all its lanes, undisturbed."""
    model = config.models[name]
    lanes = model.lanes or tuple(config.lanes)
    try:
        profile = read_profile(path)
    except ProfileError:
        return [Check(f"{name}: measured", f"no (exit status {status})", "yes", False)]
    have = sum(size in profile.lanes[lane].timings for lane in lanes if lane in profile.lanes for size in model.batch)
    want = len(lanes) * len(model.batch)
    checks = [Check(f"{name}: sizes x lanes", str(have), str(want), have == want and status == 0)]
    for lane in lanes:
        if lane in profile.lanes:
            checks += _lane_checks(name, lane, profile, profile.circumstances["lanes"][lane], drift_max)
    return checks


def _lane_checks(
    name: str, lane: str, profile: Profile, circumstances: Dict[str, Any], drift_max: float
) -> List[Check]:
    drift, share = circumstances["drift"], circumstances["cpu_share"]
    checks = [Check(f"{name} on {lane}: slower at the end", f"{drift:+.1%}", f"<= {drift_max:.0%}", drift <= drift_max)]
    if circumstances["settings"]["device_kind"] == "cpu" and profile.circumstances["same"]["engine"] != "synthetic":
        checks.append(
            Check(
                f"{name} on {lane}: share of a core", f"{share:.0%}", f">= {CPU_SHARE_MIN:.0%}", share >= CPU_SHARE_MIN
            )
        )
    return checks + _clock_checks(name, lane, circumstances.get("device", {}))


def _clock_checks(name: str, lane: str, device: Mapping[str, Mapping[str, Any]]) -> List[Check]:
    """Locked clocks and one power mode, where the device tells: before and after the lane was measured."""
    states = [device.get(when, {}) for when in ("before", "after")]
    locked = [state["clocks_locked"] for state in states if "clocks_locked" in state]
    modes = sorted({str(state["power_mode"]) for state in states if state.get("power_mode")})
    checks = []
    if locked:
        checks.append(Check(f"{name} on {lane}: clocks locked", "yes" if all(locked) else "no", "yes", all(locked)))
    if modes:
        checks.append(Check(f"{name} on {lane}: power mode", ", ".join(modes), "one", len(modes) == 1))
    return checks


def print_checks(checks: Sequence[Check], quick: bool) -> None:
    """The table of checks, one a row."""
    width = max((len(check.name) for check in checks), default=4)
    tolerance = "   (quick: wider tolerance)" if quick else ""
    print(f"\n{'check':{width}}  {'value':>22}  {'must be':>8}  result{tolerance}")
    for check in checks:
        print(f"{check.name:{width}}  {check.value:>22}  {check.must:>8}  {'holds' if check.holds else 'falls short'}")


if __name__ == "__main__":
    sys.exit(main())
