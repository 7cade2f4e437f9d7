"""A temporary copy of the project in which one file at a time is changed, and the tests that run against the copy.

``bug_hunt.py`` plants listed bugs with it, ``mutants.py`` drawn ones. The working tree is never changed.
"""

from __future__ import annotations

import os
import queue
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Callable, Mapping, NamedTuple, Sequence, Type, TypeVar

Item = TypeVar("Item")

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COPIED = ("edgeserve", "tests", "scripts", "research", "examples", "docs", "profiles", "jetson")
"""The folders that tests read. Bytecode goes along: rewriting every assertion takes longer than most tests."""

BYTES_MAX = 4 << 30
"""Address space of a test run: a change that allocates without end fails, and the machine goes on."""

WALL_S_MAX = 3600
"""Tests that use no CPU time either have until then."""


class Verdict(NamedTuple):
    """The result of the tests: whether all passed, and the first failure, the hang, or the closing line."""

    passed: bool
    said: str


class ChangedTree:
    """A copy of the project below a temporary directory, removed at the end of the ``with`` block.

    ``source`` is what is copied: the working tree, or another copy, which is not edited meanwhile. It does not know
    what is changed or why.
    """

    def __init__(self, source: str = ROOT) -> None:
        self.home = tempfile.mkdtemp(prefix="edgeserve-changed-")
        self._source = source
        for name in COPIED:
            shutil.copytree(
                os.path.join(source, name),
                os.path.join(self.home, name),
                ignore=shutil.ignore_patterns("node_modules", "*.so"),
            )
        for name in ("pyproject.toml", "setup.py", "README.md", "Makefile", "CHANGELOG.md"):
            shutil.copy2(os.path.join(source, name), self.home)

    def __enter__(self) -> ChangedTree:
        return self

    def __exit__(
        self, kind: Type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.home, ignore_errors=True)  # a killed test may still write

    def read(self, path: str) -> str:
        """The text of a file, by its path from the root."""
        with open(os.path.join(self.home, path), encoding="utf-8", newline="") as file:
            return file.read()

    def write(self, path: str, text: str) -> None:
        """Change a file. Its bytecode is older from now on, so Python reads the new text."""
        with open(os.path.join(self.home, path), "w", encoding="utf-8", newline="") as file:
            file.write(text)

    def restore(self, path: str) -> None:
        """Put a file back as it was, with its time: the bytecode is valid again."""
        shutil.copy2(os.path.join(self._source, path), os.path.join(self.home, path))

    def is_imported(self) -> bool:
        """True if Python imports this copy, and not an installed package."""
        done = subprocess.run(
            [sys.executable, "-c", "import edgeserve; print(edgeserve.__file__)"],
            cwd=self.home,
            env={**os.environ, "PYTHONPATH": self.home},
            capture_output=True,
            text=True,
        )
        return os.path.realpath(done.stdout.strip()).startswith(os.path.realpath(self.home) + os.sep)

    def run(self, tests: Sequence[str], cpu_s_max: int) -> Verdict:
        """Run the tests until one fails. Tests that need more CPU time than ``cpu_s_max`` hang: a busy machine makes
        no difference."""
        process = self.pytest("-x", *tests, preexec_fn=lambda: _limit(cpu_s_max), stdout=subprocess.PIPE)
        try:
            said, _ = process.communicate(timeout=WALL_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return Verdict(False, f"the tests wait for something (more than {WALL_S_MAX} s)")
        if process.returncode == -signal.SIGXCPU:
            return Verdict(False, f"the tests hang (more than {cpu_s_max} s of CPU time)")
        lines = said.splitlines() or [""]
        failures = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        first = (failures or lines[-1:])[0].split(" - ")[0]
        return Verdict(process.returncode == 0, first.replace("FAILED ", "").replace("ERROR ", ""))

    def pytest(
        self, *arguments: str, environment: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Start pytest in the copy, without time limits of its own. It leaves no bytecode of changed files behind."""
        path = os.pathsep.join(
            (self.home, os.path.join(self.home, "research"), os.path.join(self.home, "scripts"))
        )  # pytest's plugins lie there
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "timeout=0", *arguments]
        variables = {
            **os.environ,
            "EDGESERVE_CORE": "interpreted",
            **(environment or {}),
            "PYTHONPATH": path,
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return subprocess.Popen(command, cwd=self.home, text=True, env=variables, stderr=subprocess.STDOUT, **options)


def _limit(cpu_s_max: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (BYTES_MAX, BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s_max, cpu_s_max + 1))


def in_copies(items: Sequence[Item], judge: Callable[[Item, ChangedTree], None], clean: ChangedTree, jobs: int) -> None:
    """Call ``judge`` with every item and a copy of ``clean``, ``jobs`` at a time, each with a copy of its own."""
    waiting: queue.Queue[Item] = queue.Queue()
    for item in items:
        waiting.put(item)

    def work() -> None:
        with ChangedTree(clean.home) as tree:
            while True:
                try:
                    item = waiting.get_nowait()
                except queue.Empty:
                    return
                judge(item, tree)

    with ThreadPoolExecutor(max(1, min(jobs, len(items)))) as pool:
        for done in [pool.submit(work) for _ in range(max(1, min(jobs, len(items))))]:
            done.result()
