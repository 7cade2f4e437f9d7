"""Soak: many seeded simulations of drawn apps, policies, load and trouble, each held to every rule.

    python scripts/soak.py               1000 seeds
    python scripts/soak.py --seed 4711   one of them again, exactly, with the story and a recording of it

Exit status 1 when a rule was broken or something that should occur never did.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from typing import List

from edgeserve.errors import PolicyError
from edgeserve.sim.soak import SoakResult, missing_marks, soak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="how many seeds (1000)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seed", type=int, help="run this seed alone and say what broke")
    parser.add_argument("--record", default="", help="with --seed: write the recording here")
    args = parser.parse_args()
    if args.seed is not None:
        print(f"seed {args.seed}", flush=True)
        result = soak(args.seed, args.record)
        print(f"{result.requests} requests in {result.steps} steps, digest {result.digest}")
        print(", ".join(f"{name} {count}" for name, count in sorted(result.marks.items())))
        return 0
    return run_many(args.start, args.runs)


def run_many(start: int, runs: int) -> int:
    """Run the seeds one after another; a broken one is named at once and the others go on."""
    print(f"seeds {start} to {start + runs - 1}; a failing one again: python scripts/soak.py --seed N", flush=True)
    results: List[SoakResult] = []
    failed: List[int] = []
    for seed in range(start, start + runs):
        try:
            results.append(soak(seed))
        except (AssertionError, PolicyError) as error:
            failed.append(seed)
            where = traceback.extract_tb(error.__traceback__)[-1]
            reason = (str(error).splitlines() or [f"{where.filename}:{where.lineno}"])[0]
            print(f"seed {seed}: {type(error).__name__}: {reason[:300]}", flush=True)
        done = seed - start + 1
        if done % 100 == 0:
            print(f"{done} of {runs}: {len(failed)} failed", flush=True)
    missing = missing_marks(results)
    print(f"{len(results)} runs kept every rule, {len(failed)} did not {failed or ''}; "
          f"{sum(item.requests for item in results)} requests, {sum(item.steps for item in results)} steps")
    if missing and runs >= 100:
        print(f"never occurred: {', '.join(missing)}")
    return 1 if failed or (missing and runs >= 100) else 0


if __name__ == "__main__":
    sys.exit(main())
