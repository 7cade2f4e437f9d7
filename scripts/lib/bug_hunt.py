"""Plant bugs one at a time and see whether the tests notice: what ``scripts/dev/plant_bugs.py`` does with its list.

Works on a temporary copy of the package and its tests, never on the working tree. The tests that a bug names run
against the copy; a bug that all of them let through is reported as MISSED, one whose line is no longer there as STALE.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import TYPE_CHECKING, List, Sequence, Tuple

from lib.changed_tree import ChangedTree, in_copies

if TYPE_CHECKING:
    from dev.plant_bugs import Bug

CPU_S_MAX = 90
"""A bug that makes the tests need more CPU time than this is noticed: they hang."""
PARALLEL = 2
MANY_EXAMPLES = "--hypothesis-profile=nightly"


def plant(bug: Bug, tree: ChangedTree) -> str:
    """Put the bug into the copy; returns why that is not possible, or ``""``."""
    path = path_of(bug)
    try:
        text = tree.read(path)
    except OSError as error:
        return f"{path}: {error.strerror}"
    if text.count(bug.old) != 1:
        return f"{path} holds this {text.count(bug.old)} times, expected once: {bug.old!r}"
    tree.write(path, text.replace(bug.old, bug.new))
    return ""


def path_of(bug: Bug) -> str:
    """The file that the bug changes."""
    return os.path.normpath(f"edgeserve/sched/{bug.file}")


def hunt(bugs: Sequence[Bug], clean: ChangedTree, parallel: int = PARALLEL) -> List[Tuple[Bug, str, str]]:
    """Plant each bug in turn; (bug, "noticed" | "MISSED" | "STALE", by what) in the order in which they were done."""
    found: List[Tuple[Bug, str, str]] = []

    def one(bug: Bug, tree: ChangedTree) -> None:
        problem = plant(bug, tree)
        if problem:
            row = (bug, "STALE", problem)
        else:
            passed, said = tree.run([MANY_EXAMPLES, *bug.tests], CPU_S_MAX)
            row = (bug, "MISSED", "by " + ", ".join(bug.tests)) if passed else (bug, "noticed", said)
            tree.restore(path_of(bug))
        found.append(row)
        print(f"{row[1]:8} {bug.name:42} {row[2]}", flush=True)

    in_copies(bugs, one, clean, parallel)
    return found


def main(planted: Sequence[Bug], about: str, argv: Sequence[str] | None = None) -> int:
    """Exit status 0: every bug was noticed; 1: some were missed or no longer fit; 2: the tests fail without any."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--only", metavar="NAME", help="only bugs whose name contains this")
    parser.add_argument("--list", action="store_true", help="name the bugs and stop")
    parser.add_argument("--parallel", type=int, default=PARALLEL, help="how many at a time (default %(default)s)")
    args = parser.parse_args(argv)
    bugs = [bug for bug in planted if args.only is None or args.only in bug.name]
    if not bugs:
        print(f"no bug is called like {args.only!r}; --list names them")
        return 2
    if args.list:
        print("\n".join(f"{bug.name:42} {bug.file}" for bug in bugs))
        return 0
    began = time.monotonic()
    with ChangedTree() as clean:
        if not clean.is_imported():
            print("an installed edgeserve hides the copy; run this in an environment with an editable installation")
            return 2
        tests = sorted({test for bug in bugs for test in bug.tests})
        passed, said = clean.run([MANY_EXAMPLES, *tests], 10 * CPU_S_MAX)
        if not passed:
            print(f"the tests fail without any bug: {said}")
            return 2
        rows = hunt(bugs, clean, args.parallel)
    noticed = sum(row[1] == "noticed" for row in rows)
    print(f"{noticed} of {len(rows)} planted bugs noticed in {time.monotonic() - began:.0f} s")
    return 0 if noticed == len(rows) else 1
