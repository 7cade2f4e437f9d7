"""Import paths of the tests, the profiles of Hypothesis, and the assignment of tests to processes.

``tests/lib`` holds worlds, servers and models made for tests; ``scripts`` and ``research`` what is
tested there or shared with a replication.

Several tests run at once (``make test``: ``pytest -n``). Tests of the live side measure time, start servers and load
real networks once per module: two processes have all of them, one after the other, and then other tests that wait. The
other processes simulate, at a lower priority: what has to happen in time happens first, and no core idles while those
two wait. What else shares something is named in ``TOGETHER``.

Each process has a temporary directory of its own, removed at the end. A file of tests that leaves an entry there fails.
"""

from __future__ import annotations

import contextlib
import gc
import getpass
import os
import shutil
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any, DefaultDict, Dict, Iterator, List, Optional

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a third of numpy's import, which every child process repeats
TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS / "lib"), *(str(TESTS.parent / name) for name in ("research", "scripts"))]

# The same examples on every run, and no limit on time: that belongs to the machine. `make nightly` takes many examples.
for name, examples in {"ci": 25, "nightly": 400}.items():
    settings.register_profile(
        name, max_examples=examples, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile("ci")


TOGETHER = ("tests/live/", "tests/hostile/", "tests/sim/test_soak.py", "tests/sim/test_tune.py", "tests/test_layout")
"""The tests of what begins with one of these run in one process, in order."""

CLASSES_TOGETHER = "tests/conformance/test_policies.py"
"""Here the tests of a class run in one process: they share worlds."""

WORLDS = ("test_rules_hold", "test_its_records_hold", "test_decisions_do_not_depend_on_the_order")
"""Tests of the conformance suite that this project's own policies pass in whole simulated worlds (the marker
``worlds``): the suite is also for users' policies and marks nothing itself."""

WALL_TIME = (
    "tests/live/",
    "tests/hostile/",
    "tests/test_docs.py",
    "tests/unit/commands/test_measure_machine.py",
    "tests/unit/commands/test_profile.py",
)  # the first two processes take these first
PROCESSES = (
    "tests/jetson/",
    "tests/unit/offload/",
    "tests/unit/device/",
    "tests/unit/engines/",
    "tests/unit/fronts/ray/",
    "tests/unit/testing/",
    "tests/unit/live/",
    "tests/unit/test_cli.py",
    "tests/unit/config/test_profile_match.py",
    "tests/unit/commands/test_doctor_device.py",
)
"""Tests that start processes and wait for them, or measure times, on machines that others share: a failure counts when
it comes twice in a row. Tests that passed at the second time are counted in pytest's closing line (``rerun``) and named
with ``-rR``."""

MOSTLY_WAIT = (*WALL_TIME, "tests/jetson/", "tests/unit/offload/")
"""The first two processes run these first, in this order; the others run them last."""

WAITING = ("gw0", "gw1")
"""The first two processes."""

NICE = 5
"""The lower priority of the other processes: a third of the share of a core."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory with a short path: that of a socket may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="es") as path:
        yield Path(path)


@pytest.fixture(scope="module")
def module_folder() -> Iterator[Path]:
    """The same for what the tests of a file share."""
    with tempfile.TemporaryDirectory(prefix="es") as path:
        yield Path(path)


@pytest.fixture
def context() -> Iterator[Any]:
    """A context of libzmq. It ends also when the test failed: an open socket would block its end for ever."""
    import zmq

    one: Any = zmq.Context()
    yield one
    one.destroy(0)


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0") not in WAITING:
        os.nice(NICE)
    # ``tmp_path`` stays where it was: a failed test's directory is kept
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="es")  # the child processes' too
    os.chmod(tempfile.tempdir, 0o711)  # another user reaches what a test opens to all
    config.add_cleanup(lambda path=tempfile.tempdir: shutil.rmtree(path, ignore_errors=True))
    if config.getoption("--hypothesis-profile") != "nightly":
        draw_no_constants()


def draw_no_constants() -> None:
    """Hypothesis draws constants of the modules that are imported by then, which depends on the tests that ran before;
    and it parses all of them first."""
    with contextlib.suppress(ImportError, AttributeError):  # older ones draw none
        from hypothesis.internal.conjecture import providers

        none = providers._local_constants
        providers._get_local_constants = lambda: none


LEFT_BY: Dict[str, str] = {
    f"edgeserve-{getpass.getuser()}": "the default endpoint",
    ".ses": "ONNX Runtime",
    f"torchinductor_{getpass.getuser()}": "torch, from 2.14 on",
}
"""Entry of the temporary directory -> what left it there: a file of tests, or what may."""


def check_nothing_is_left(path: str) -> None:
    left = [name for name in sorted(os.listdir(tempfile.gettempdir())) if LEFT_BY.setdefault(name, path) == path]
    assert not left, f"{path} leaves {left} in the temporary directory: end it with `tempfile.TemporaryDirectory`"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> Optional[bool]:
    """Tests that are nightly as a whole are not even read in between: they import scikit-learn."""
    return True if collection_path == TESTS / "research" and "not nightly" in config.option.markexpr else None


def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith((*WALL_TIME, *PROCESSES)):
            item.add_marker(pytest.mark.flaky(reruns=1))
        if item.nodeid.startswith("tests/research/"):
            item.add_marker(pytest.mark.nightly)
        if item.nodeid.startswith(CLASSES_TOGETHER) and item.name.startswith(WORLDS):
            item.add_marker(pytest.mark.worlds)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    keep_what_is_here()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path != item.path:
        keep_what_is_here()  # the parsed sources of a file of tests, and what it imported
        check_nothing_is_left(str(item.path.relative_to(TESTS.parent)))


def keep_what_is_here() -> None:
    """A collection of garbage need not walk through what stays until the end, ten thousand collected tests above all:
    the collections of the profiler took ten times as long as the measured code."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Any:
    """A passed test's three reports need no words to select it by: they are most of what goes to the first process."""
    data = yield
    if data is not None and data.get("outcome") == "passed":
        data["keywords"] = {}
    return data


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Not ``--dist loadgroup``: pytest 9.2 keeps ids where pytest-xdist 3.8 does not write the names of its groups, and
    every test runs anywhere without a word."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(CLASSES_TOGETHER) and nodeid.count("::") > 1:
                return "::".join(nodeid.split("::")[:2])
            return next((place for place in TOGETHER if nodeid.startswith(place)), nodeid.split("::")[0])

        def schedule(self) -> None:
            self.is_ordered = self.collection is not None
            super().schedule()

        def _assign_work_unit(self, node: Any) -> None:
            """The first two processes take from the queue's end, where the tests are that mostly wait, the others from
            its beginning."""
            if not self.is_ordered:
                self.is_ordered = True
                for place in reversed(MOSTLY_WAIT):
                    for scope in [scope for scope in self.workqueue if scope.startswith(place)]:
                        self.workqueue.move_to_end(scope)
            if node.gateway.id in WAITING:
                self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
            super()._assign_work_unit(node)

        def _pending_of(self, workload: Dict[str, Dict[str, bool]]) -> int:
            """Finished work is removed: a search through all of it after each test would take ever longer."""
            for scope in [scope for scope, tests in workload.items() if all(tests.values())]:
                del workload[scope]
            return super()._pending_of(workload)

    return Together(config, log)


FILES_SHOWN = 12


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The files that took longest: where a run's minutes went."""
    seconds: DefaultDict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.split("::")[0]] += report.duration
    if sum(seconds.values()) >= 60.0:
        longest = sorted(seconds, key=seconds.__getitem__, reverse=True)[:FILES_SHOWN]
        terminalreporter.write_line(
            f"{sum(seconds.values()):.0f} s in tests: " + ", ".join(f"{path} {seconds[path]:.0f}" for path in longest)
        )
