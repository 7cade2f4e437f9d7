"""The runs of a study: in several processes, and kept in a file from which an interrupted call goes on."""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from typing import Any, Callable, Dict, Iterator, Sequence, Tuple, TypeVar

J = TypeVar("J")
R = TypeVar("R")

SAID_S = 30.0
"""Seconds from one word on how far the runs are to the next."""


def done(
    run: Callable[[J], R], jobs: Sequence[J], processes: int = 1, keep: str = "", kind: Callable[..., R] = tuple
) -> Iterator[Tuple[J, R]]:
    """Each job (a named tuple) with its result, in the order of the jobs.

    Results are appended to the file ``keep``, one JSON line each, and what it has is not run again: ``kind`` makes a
    result of the items of a line. Delete the file when code changed."""
    kept = _kept(keep)
    left = [job for job in jobs if json.dumps(job) not in kept] if kept else jobs
    began = said = time.monotonic()
    with ExitStack() as ends:
        several = processes > 1 and len(left) > 1
        found = (ends.enter_context(ProcessPoolExecutor(processes)).map if several else map)(run, left)
        for count, job in enumerate(jobs, 1):
            items = kept.get(json.dumps(job)) if kept else None
            if items is not None:
                yield job, kind(*items)
                continue
            result = next(found)
            if keep:
                with open(keep, "a", encoding="utf-8") as file:
                    file.write(json.dumps([job, result]) + "\n")
            if time.monotonic() - said > SAID_S:
                said = time.monotonic()
                print(f"  {count} of {len(jobs)} runs, {said - began:.0f} s", file=sys.stderr, flush=True)
            yield job, result


def _kept(path: str) -> Dict[str, Any]:
    """The items of each result that a file has, by its job."""
    if not path or not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return {json.dumps(job): items for job, items in map(json.loads, file)}
