"""Soak: many seeded simulations of drawn apps, policies, load and trouble, each held to every rule.

    python scripts/dev/soak.py               1000 seeds, and the longest gap in the worlds of every tenth
    python scripts/dev/soak.py --seed 4711   one of them again, exactly, with the story and a recording of it
    python scripts/dev/soak.py --policies pard plan    apps of these policies alone: other scenarios
    python scripts/dev/soak.py --recovery    wrong beliefs, slow phases and outliers: every app is soon served again
    python scripts/dev/soak.py --gaps        equal apps under overload: none is given up for longer than the bound

Exit status 1 when a rule was broken or something that should occur never did.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import List, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/

from lib.soak_gaps import bounded_gaps
from lib.soak_recovery import KINDS, recover

from edgeserve.config.schema import DEFAULT_POLICY
from edgeserve.testing.soak.run import ENSEMBLE_KINDS, POLICY_KINDS, SoakResult, missing_marks, soak

GAPS_EVERY = 20
"""Two of so many seeds have a world of the longest gap, too: one of a single policy, one of several."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="how many seeds (1000)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seed", type=int, help="run this seed alone and say what broke")
    parser.add_argument(
        "--policies",
        nargs="+",
        choices=tuple(dict.fromkeys((*POLICY_KINDS, *ENSEMBLE_KINDS, DEFAULT_POLICY))),
        default=POLICY_KINDS,
        metavar="KIND",
        help="draw from these policies alone (all: %(choices)s)",
    )
    parser.add_argument("--deep", action="store_true", help="lanes of depth 2 and 3, packing, contention")
    parser.add_argument("--hardware", action="store_true", help="clocks, heat, power and memory that change")
    parser.add_argument("--language", action="store_true", help="apps of language models among the others")
    parser.add_argument("--pair", action="store_true", help="two ensembles that share models among the others")
    parser.add_argument("--recovery", action="store_true", help="the soak of wrong beliefs and slow phases instead")
    parser.add_argument("--gaps", action="store_true", help="the soak of the longest gap instead")
    parser.add_argument("--record", default="", help="with --seed: write the recording here")
    args = parser.parse_args()
    if args.recovery:
        kinds = [kind for kind in KINDS if kind in args.policies] if args.policies is not POLICY_KINDS else KINDS
        return run_recovery([args.seed] if args.seed is not None else range(args.start, args.start + args.runs), kinds)
    if args.gaps:
        return run_gaps([args.seed] if args.seed is not None else range(args.start, args.start + args.runs))
    if args.seed is not None:
        print(f"seed {args.seed}", flush=True)
        result = soak(args.seed, args.record, tuple(args.policies), args.deep, args.hardware, args.language, args.pair)
        print(f"{result.requests} requests in {result.steps} steps, digest {result.digest}")
        print(", ".join(f"{name} {count}" for name, count in sorted(result.marks.items())))
        print_accounts([result])
        return 0
    return run_many(args.start, args.runs, tuple(args.policies), args.deep, args.hardware, args.language, args.pair)


def run_recovery(seeds: Sequence[int], kinds: Sequence[str]) -> int:
    """Run the seeds one after another; what was not served again is named with its seed and story."""
    failed, totals = 0, [0, 0, 0, 0]
    for seed in seeds:
        try:
            result = recover(seed, kinds)
        except Exception as error:  # noqa: BLE001 the others must run too
            failed += 1
            print(f"seed {seed}: {error}", flush=True)
            continue
        totals = [total + count for total, count in zip(totals, result[2:])]
    before, lost_before, after, lost_after = totals
    print(
        f"{len(seeds)} seeds, {failed} not served again; {lost_before} of {before} requests lost before recovery was "
        f"due, {lost_after} of {after} after"
    )
    return 1 if failed else 0


def run_gaps(seeds: Sequence[int]) -> int:
    """Run the seeds one after another; an app that was given up for too long is named with its seed."""
    failed, longest = 0, 0.0
    for seed in seeds:
        try:
            longest = max(longest, bounded_gaps(seed).share)
        except Exception as error:  # noqa: BLE001 the others must run too
            failed += 1
            print(f"seed {seed}: {error}", flush=True)
    print(f"{len(seeds)} seeds, {failed} with a gap beyond its bound; the longest of the others is {longest:.0%} of it")
    return 1 if failed else 0


def print_accounts(results: Sequence[SoakResult]) -> None:
    """Per policy kind: how many requests came, and how they ended."""
    for kind in sorted({kind for result in results for kind in result.accounts}):
        accounts = [result.accounts[kind] for result in results if kind in result.accounts]
        ends: Counter = Counter()
        for account in accounts:
            for name, count in account.ends.items():
                ends[name.split(":")[0]] += count
        print(
            f"{kind}: {sum(account.arrived for account in accounts)} came in {len(accounts)} runs; "
            + ", ".join(f"{name} {count}" for name, count in sorted(ends.items()))
        )


def run_many(
    start: int, runs: int, policies: Sequence[str], deep: bool, hardware: bool, language: bool, pair: bool
) -> int:
    """Run the seeds one after another; a broken one is named at once and the others go on."""
    some = "" if set(policies) == set(POLICY_KINDS) else f" --policies {' '.join(policies)}"
    some += (" --deep" if deep else "") + (" --hardware" if hardware else "") + (" --language" if language else "")
    some += " --pair" if pair else ""
    print(
        f"seeds {start} to {start + runs - 1}; a failing one again: python scripts/dev/soak.py --seed N{some}",
        flush=True,
    )
    results: List[SoakResult] = []
    failed: List[int] = []
    for seed in range(start, start + runs):
        try:
            results.append(soak(seed, policies=policies, deep=deep, hardware=hardware, language=language, pair=pair))
            if seed % GAPS_EVERY < 2 and not some:  # an even one, and an odd one
                bounded_gaps(seed)
        except Exception as error:  # noqa: BLE001 any exception is this seed's failure
            failed.append(seed)
            where = traceback.extract_tb(error.__traceback__)[-1]
            reason = (str(error).splitlines() or [f"{where.filename}:{where.lineno}"])[0]
            print(f"seed {seed}: {type(error).__name__}: {reason[:300]}", flush=True)
        done = seed - start + 1
        if done % 100 == 0:
            print(f"{done} of {runs}: {len(failed)} failed", flush=True)
    missing = [] if some else missing_marks(results)  # not every policy brings everything about
    print(
        f"{len(results)} runs kept every rule, {len(failed)} did not {failed or ''}; "
        f"{sum(item.requests for item in results)} requests, {sum(item.steps for item in results)} steps"
    )
    print_accounts(results)
    if missing and runs >= 100:
        print(f"never occurred: {', '.join(missing)}")
    return 1 if failed or (missing and runs >= 100) else 0


if __name__ == "__main__":
    sys.exit(main())
