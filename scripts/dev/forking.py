"""A pytest plugin for ``mutants.py``: collects the tests once, then runs some of them as often as asked, in forks.

Starting pytest and importing everything takes longer than most tests that notice a mutant. So a mutant inside a
function is not read from a file: in the fork the function gets its changed code. ``MUTANTS_PIPE`` is the file
descriptor of the pipe to ``mutants.py``.
"""

from __future__ import annotations

import gc
import importlib
import math
import os
import pickle
import resource
import select
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from types import CodeType, FrameType, FunctionType
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Set, Tuple

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import Phase, settings

PLACE = os.path.join("edgeserve", "sched") + os.sep
WALL_S_MAX = 1800
"""Tests that use no CPU time either have until then."""
MONITORING: Any = getattr(sys, "monitoring", None)
"""From Python 3.12 on calls are noted at hardly any cost; tracing makes tests a few times slower."""


class Job(NamedTuple):
    """Tests to run in a fork until one fails, each with the CPU time that it may need. ``file`` and ``text``: what is
    changed, or "". ``record``: note what each test calls."""

    tests: Sequence[Tuple[str, int]]
    file: str = ""
    text: str = ""
    record: bool = False


class Answer(NamedTuple):
    """The first test that failed, or what else went wrong, or ""; and per test how long it took and what it called."""

    failed: str
    record: Dict[str, Dict[str, Any]] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Hypothesis need not look for the smallest example: any will do."""
    settings.register_profile("mutants", settings(), phases=(Phase.explicit, Phase.generate))
    settings.load_profile("mutants")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Answer one job after the other, in place of running all tests."""
    items = {item.nodeid: item for item in session.items}
    with Connection(int(os.environ["MUTANTS_PIPE"])) as connection:
        connection.send(list(items) if not session.testsfailed else [])
        while True:
            try:
                job = connection.recv()
            except EOFError:
                return True
            connection.send(_in_a_fork(job, items))


def _in_a_fork(job: Job, items: Dict[str, pytest.Item]) -> Answer:
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = _run(job, items)
        except BaseException as error:  # noqa: BLE001 any effect of a change
            answer = Answer(f"{type(error).__name__}: {error}")
        with os.fdopen(writable, "wb") as file:
            pickle.dump(answer, file)
        os._exit(0)
    os.close(writable)
    data, due_s = b"", time.monotonic() + WALL_S_MAX
    with os.fdopen(readable, "rb", buffering=0) as file:
        while select.select([file], [], [], max(0.0, due_s - time.monotonic()))[0]:
            more = file.read(1 << 16)
            if not more:
                break
            data += more
        else:
            os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        hangs = os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
        return Answer("a hang" if hangs else f"the process's end by signal {os.WTERMSIG(status)}")
    return pickle.loads(data) if data else Answer("the process's end")


def _run(job: Job, items: Dict[str, pytest.Item]) -> Answer:
    if job.file:
        change(job.file, job.text)
    rows: Dict[str, Dict[str, Any]] = {}
    for name, cpu_s_max in job.tests:
        began_s = time.process_time()
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(began_s) + cpu_s_max, resource.RLIM_INFINITY))
        called: Set[CodeType] = set()
        if job.record:
            _note_calls(called)
        reports = runtestprotocol(items[name], log=False, nextitem=None)
        if job.record:
            _note_no_calls()
        if any(report.failed for report in reports):
            return Answer(name)
        if job.record:
            functions = {
                f"{code.co_filename.rpartition(PLACE)[2]}:{code.co_name}"
                for code in called
                if PLACE in code.co_filename
            }
            rows[name] = {"seconds": time.process_time() - began_s, "functions": sorted(functions)}
    return Answer("", rows)


def _note_calls(called: Set[CodeType]) -> None:
    if MONITORING is not None:
        _monitor(called)
        return

    def note(frame: FrameType, event: str, _: Any) -> None:
        called.add(frame.f_code)

    threading.settrace(note)
    sys.settrace(note)


def _monitor(called: Set[CodeType]) -> None:
    """Report the first call of each function; the others cost nothing."""

    def note(code: CodeType, _: int) -> Any:
        called.add(code)
        return MONITORING.DISABLE

    tool = MONITORING.COVERAGE_ID
    if MONITORING.get_tool(tool) is None:
        MONITORING.use_tool_id(tool, "mutants")
    MONITORING.register_callback(tool, MONITORING.events.PY_START, note)
    MONITORING.set_events(tool, MONITORING.events.PY_START)
    MONITORING.restart_events()


def _note_no_calls() -> None:
    if MONITORING is None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
    else:
        MONITORING.set_events(MONITORING.COVERAGE_ID, 0)


# --- a function gets other code ---------------------------------------------------------------------------------------


def change(file: str, text: str) -> None:
    """Give the functions of a file the code of its changed text. Raises where a change is outside functions."""
    importlib.import_module(file[: -len(".py")].replace(os.sep, "."))  # policies are loaded when they are asked for
    path = os.path.abspath(file)
    with open(path, encoding="utf-8") as opened:
        old = compile(opened.read(), path, "exec", dont_inherit=True)
    changed = dict(_changed(old, compile(text, path, "exec", dont_inherit=True)))
    if not changed:
        raise ValueError(f"{file}: no function is changed")
    gc.unfreeze()  # what tests/conftest.py took out of the collector's sight
    functions = [item for item in gc.get_objects() if isinstance(item, FunctionType)]
    mutated = [one for one in functions if one.__code__.co_filename == path and one.__code__ in changed]
    for function in mutated:
        function.__code__ = changed[function.__code__]


def _changed(old: CodeType, new: CodeType) -> Iterator[Tuple[CodeType, CodeType]]:
    """The functions whose code differs, also by an inner function."""
    for one, other in zip(_inner(old), _inner(new)):
        if one != other:
            if one.co_flags & 1:  # CO_OPTIMIZED: a function, no class
                yield one, other
            yield from _changed(one, other)


def _inner(code: CodeType) -> List[CodeType]:
    return [item for item in code.co_consts if isinstance(item, CodeType)]
