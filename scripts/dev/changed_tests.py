"""The tests of what changed since a commit, for ``make test-changed``: names of files, one a line.

    python scripts/dev/changed_tests.py [commit]     otherwise the commit at which this branch left main

A test file is named when it changed, or a file of data beside it, or when it imports something of a room that changed,
itself or by a helper of ``tests/lib``. What decides (``sched``, ``loop``) also brings the golden traces and the
simulations, a page its examples. The tests of the shape of the code are always named.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path
from typing import Iterable, List, Set

ROOT = Path(__file__).resolve().parents[2]
ALWAYS = ("tests/test_layout.py", "tests/test_imports.py")
LOOSE = ("edgeserve", "edgeserve/fronts")  # their files know nothing of each other
DECIDE = ("edgeserve/sched/", "edgeserve/loop/")
IMPORT = re.compile(r"(?m)^ *(?:from ([\w.]+) )?import (\([^)]*\)|.*)$")
LIB = ROOT / "tests" / "lib"
HELPERS = {path.stem for path in LIB.glob("*.py")}
HOMES = {path.stem: f"{home}/" for home in ("scripts", "research", "tests/lib") for path in (ROOT / home).iterdir()}
"""The folder of each name that tests import without its folder."""

DECIDED = ("tests/golden/", "tests/sim/", "tests/conformance/test_policies.py")


@functools.lru_cache(maxsize=None)
def imported(source: Path) -> Set[str]:
    """The imports of a test file, direct or by helpers, as paths from the root that end with a slash."""
    found: Set[str] = set()
    sources = [source]
    for one in sources:  # grows meanwhile
        for home, what in re.findall(IMPORT, one.read_text(encoding="utf-8")):
            names = [f"{home}.{name}".lstrip(".") for name in re.findall(r"[\w.]+", what)]
            first = names[0].split(".")[0] if names else ""
            found.update(f"{HOMES.get(first, '')}{name.replace('.', '/')}/" for name in names)
            helper = LIB / f"{first}.py"
            if first in HELPERS and helper not in sources:
                sources.append(helper)
    return found


def asked_by(changed: Iterable[str]) -> List[str]:
    """The test files that changed files need; both are paths from the root."""
    wanted = {*ALWAYS}
    modules, folders = set(), set()
    for path in changed:
        home = path.rpartition("/")[0]
        if path.startswith("edgeserve/") and home not in LOOSE:
            modules.add(f"{home}/")
        elif path.endswith(".py"):
            wanted.add(path)
            modules.add(path[: -len(".py")].replace("/__init__", "") + "/")
        elif home.startswith("tests/"):
            folders.add(f"{home}/")
        else:
            folders.add(f"tests/{path.split('/')[0]}/")  # jetson/
        if path.startswith(DECIDE):
            folders.update(DECIDED)
        if path.endswith(".md"):
            wanted.add("tests/test_docs.py")
    named = []
    for source in sorted((ROOT / "tests").rglob("test_*.py")):
        path = source.relative_to(ROOT).as_posix()
        if (
            path in wanted
            or path.startswith(tuple(folders))
            or any(name.startswith(tuple(modules)) for name in imported(source))
        ):
            named.append(path)
    return named


def git(*words: str) -> List[str]:
    """The lines that a command of git prints."""
    return subprocess.run(["git", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()


if __name__ == "__main__":
    since = sys.argv[1] if len(sys.argv) > 1 else git("merge-base", "main", "HEAD")[0]
    new = git("ls-files", "--others", "--exclude-standard")
    print("\n".join(asked_by([*git("diff", "--name-only", since), *new])))
