"""Plant bugs one at a time and see whether the tests notice: what ``scripts/dev/plant_bugs.py`` does with its list.

Works on a temporary copy of the package and its tests, never on the working tree. The tests that a bug names run
against the copy; a bug that all of them let through is reported as MISSED, one whose line is no longer there as STALE.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING, List, Sequence, Tuple

if TYPE_CHECKING:
    from dev.plant_bugs import Bug

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SECONDS_MAX = 90
"""A bug that makes the tests run longer than this is noticed: they hang."""
PARALLEL = 2


def plant(bug: Bug, home: str) -> str:
    """Put the bug into the copy at ``home``; returns why that is not possible, or ``""``."""
    path = os.path.join(home, "edgeserve", "sched", bug.file)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        return f"edgeserve/sched/{bug.file}: {error.strerror}"
    if text.count(bug.old) != 1:
        return f"edgeserve/sched/{bug.file} holds this {text.count(bug.old)} times, expected once: {bug.old!r}"
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace(bug.old, bug.new))
    return ""


def copy_to(home: str) -> None:
    """A copy of what the tests need."""
    for name in ("edgeserve", "scripts", "tests"):
        shutil.copytree(os.path.join(ROOT, name), os.path.join(home, name),
                        ignore=shutil.ignore_patterns("__pycache__", "*.pyc", "node_modules"))
    shutil.copy(os.path.join(ROOT, "pyproject.toml"), home)


def run_tests(tests: Sequence[str], home: str) -> Tuple[bool, str]:
    """Whether the tests pass against the copy, and the line that says what they said."""
    environment = {**os.environ, "PYTHONPATH": home, "PYTHONDONTWRITEBYTECODE": "1"}  # an old .pyc may look as new
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        return False, f"the tests hang (more than {SECONDS_MAX} s)"
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    last = (lines or done.stdout.splitlines() or done.stderr.splitlines() or [""])[0 if lines else -1]
    return done.returncode == 0, last.split(" - ")[0].replace("FAILED ", "").replace("ERROR ", "")


def is_copy_in_use(home: str) -> bool:
    """Whether Python imports the copy, not an installed package."""
    done = subprocess.run([sys.executable, "-c", "import edgeserve; print(edgeserve.__file__)"], cwd=home, text=True,
                          env={**os.environ, "PYTHONPATH": home}, capture_output=True)
    return os.path.realpath(done.stdout.strip()).startswith(os.path.realpath(home) + os.sep)


def hunt(bugs: Sequence[Bug], parallel: int = PARALLEL) -> List[Tuple[Bug, str, str]]:
    """Plant each bug in turn; (bug, "noticed" | "MISSED" | "STALE", by what) in the order in which they were done."""
    waiting: queue.Queue[Bug] = queue.Queue()
    for bug in bugs:
        waiting.put(bug)
    found: List[Tuple[Bug, str, str]] = []
    lock = threading.Lock()

    def work() -> None:
        with tempfile.TemporaryDirectory(prefix="edgeserve-bugs-") as home:
            copy_to(home)
            while True:
                try:
                    bug = waiting.get_nowait()
                except queue.Empty:
                    return
                clean = os.path.join(ROOT, "edgeserve", "sched", bug.file)
                problem = plant(bug, home)
                if problem:
                    row = (bug, "STALE", problem)
                else:
                    passed, said = run_tests(bug.tests, home)
                    row = (bug, "MISSED", "by " + ", ".join(bug.tests)) if passed else (bug, "noticed", said)
                    shutil.copy(clean, os.path.join(home, "edgeserve", "sched", bug.file))
                with lock:
                    found.append(row)
                    print(f"{row[1]:8} {bug.name:42} {row[2]}", flush=True)

    threads = [threading.Thread(target=work) for _ in range(max(1, min(parallel, len(bugs))))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
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
    with tempfile.TemporaryDirectory(prefix="edgeserve-bugs-") as home:
        copy_to(home)
        if not is_copy_in_use(home):
            print("an installed edgeserve hides the copy; run this in an environment with an editable installation")
            return 2
        passed, said = run_tests(sorted({test for bug in bugs for test in bug.tests}), home)
    if not passed:
        print(f"the tests fail without any bug: {said}")
        return 2
    rows = hunt(bugs, args.parallel)
    noticed = sum(row[1] == "noticed" for row in rows)
    print(f"{noticed} of {len(rows)} planted bugs noticed in {time.monotonic() - began:.0f} s")
    return 0 if noticed == len(rows) else 1
