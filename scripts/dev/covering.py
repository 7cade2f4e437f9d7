"""A pytest plugin for ``mutants.py``: which tests call which functions of the scheduler, and then only those, in order.

``COVERING_RECORD`` names a folder: every process writes there, per test, how long the test took and what it called;
``COVERING_KNOWN`` a file with the ids of tests that need not run for that.
``COVERING_RUN`` names a file with test ids: they run in this order, and no others.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from types import CodeType, FrameType
from typing import Any, Dict, Iterator, List, Set

import pytest

PLACE = os.path.join("edgeserve", "sched") + os.sep
_rows: Dict[str, Dict[str, Any]] = {}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note what a test calls in its own threads."""
    if "COVERING_RECORD" not in os.environ:
        yield
        return
    called: Set[CodeType] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            called.add(frame.f_code)

    began_s = time.process_time()
    threading.setprofile(note)
    sys.setprofile(note)
    yield
    sys.setprofile(None)
    threading.setprofile(None)  # type: ignore[arg-type]
    functions = sorted({f"{code.co_filename.rpartition(PLACE)[2]}:{code.co_name}" for code in called
                        if PLACE in code.co_filename})
    _rows[_id(item)] = {"seconds": time.process_time() - began_s, "functions": functions}


def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    """Only the tests asked for, in the order in which they were asked; or only those not known."""
    if "COVERING_KNOWN" in os.environ:
        with open(os.environ["COVERING_KNOWN"], encoding="utf-8") as file:
            known = set(json.load(file))
        items[:] = [item for item in items if _id(item) not in known]
    if "COVERING_RUN" in os.environ:
        with open(os.environ["COVERING_RUN"], encoding="utf-8") as file:
            places = {name: place for place, name in enumerate(json.load(file))}
        items[:] = sorted((item for item in items if _id(item) in places), key=lambda item: places[_id(item)])


def pytest_sessionfinish() -> None:
    """Write the record of this process."""
    if _rows:
        with open(os.path.join(os.environ["COVERING_RECORD"], f"{os.getpid()}.json"), "w", encoding="utf-8") as file:
            json.dump(_rows, file)


def _id(item: pytest.Item) -> str:
    """The test's id without the name of its group, which pytest-xdist appends."""
    id, at, group = item.nodeid.rpartition("@")
    return id if at and "]" not in group else item.nodeid


def read_record(folder: str) -> Dict[str, Dict[str, Any]]:
    """What all processes wrote: test id -> seconds and ``file:name`` of each function called."""
    rows: Dict[str, Dict[str, Any]] = {}
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            rows.update(json.load(file))
    return rows
