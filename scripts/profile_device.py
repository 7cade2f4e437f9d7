"""Profile every model of a configuration on this device: ``python scripts/profile_device.py CONFIG [CONFIG ...]``.

Each model is measured in a process of its own (``edgeserve profile CONFIG --model M``), so that one model's memory is
not counted as another's and a crash in a native library costs one profile, not all. Interrupted, it goes on where it
stopped. Ends with a table of checks; the exit status is 1 when one falls short.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any, Dict, List, NamedTuple, Sequence

from edgeserve.config.loading import load_config
from edgeserve.config.machine import device_slug
from edgeserve.config.profiles import Profile, profile_path, read_profile
from edgeserve.config.schema import Config
from edgeserve.errors import EdgeServeError, ProfileError

DRIFT_MAX = 0.05  # a device that got slower by more than this was throttling, or not alone
CPU_SHARE_MIN = 0.9  # below this the lane's thread waited for other programs
QUICK_SECONDS = 0.5
QUICK_DRIFT_MAX = 0.25  # half a second of runs says less about drift


class Check(NamedTuple):
    """One row of the final table."""

    name: str
    value: str
    must: str
    holds: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, check. 0 when every check holds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("configs", nargs="+", metavar="CONFIG")
    parser.add_argument("--out", default="", metavar="DIR", help="profiles directory (default: [server] profiles)")
    parser.add_argument("--device", default="", metavar="NAME", help="the device's name (default: from this machine)")
    parser.add_argument("--seconds", type=float, default=3.0, help="longest time per batch size (default: 3)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SECONDS} s per batch size, wider tolerance")
    parser.add_argument("--force", action="store_true", help="measure again what is there already")
    parser.add_argument("--json", default="", metavar="FILE", help="write the checks there too")
    args = parser.parse_args(argv)
    checks: List[Check] = []
    try:
        for path in args.configs:
            checks += profile_config(path, args)
    except EdgeServeError as error:
        print(f"profile_device: {error}", file=sys.stderr)
        return 2
    print_checks(checks, args.quick)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump([check._asdict() for check in checks], file, indent=1)
    return 0 if all(check.holds for check in checks) else 1


def profile_config(path: str, args: argparse.Namespace) -> List[Check]:
    """Measure every model of one configuration, each in its own process; what can be said of the profiles."""
    config = load_config(path)
    out = args.out or os.path.join(config.directory, config.server.profiles)
    device = args.device or device_slug()
    checks = []
    for name in config.models:
        command = [sys.executable, "-m", "edgeserve.cli", "profile", path, "--model", name, "--out", out,
                   "--device", device, "--seconds", str(QUICK_SECONDS if args.quick else args.seconds)]
        status = subprocess.run(command + ["--force"] * args.force, check=False).returncode
        checks += checks_of(config, name, profile_path(out, device, name), status,
                            QUICK_DRIFT_MAX if args.quick else DRIFT_MAX)
    return checks


def checks_of(config: Config, name: str, path: str, status: int, drift_max: float) -> List[Check]:
    """What must hold for one model: all its sizes measured on all its lanes, undisturbed."""
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


def _lane_checks(name: str, lane: str, profile: Profile, circumstances: Dict[str, Any],
                 drift_max: float) -> List[Check]:
    drift, share = circumstances["drift"], circumstances["cpu_share"]
    checks = [Check(f"{name} on {lane}: slower at the end", f"{drift:+.1%}", f"<= {drift_max:.0%}",
                    drift <= drift_max)]
    if circumstances["settings"]["device_kind"] == "cpu" and profile.circumstances["same"]["engine"] != "synthetic":
        checks.append(Check(f"{name} on {lane}: share of a core", f"{share:.0%}", f">= {CPU_SHARE_MIN:.0%}",
                            share >= CPU_SHARE_MIN))
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
