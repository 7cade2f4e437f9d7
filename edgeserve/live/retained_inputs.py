"""Inputs that are kept so that their jobs can be run again alone: what the online profiler's probes run on.

They are references to what the jobs were gathered from: only their memory is held for longer. Arrays that a caller
in this process handed in are copied, since it may write into them once it has its answer; those of the bus are
read-only. What a probe returns is thrown away. Belongs to the loop's thread."""

from __future__ import annotations

import sys
from typing import Any, Dict, Optional, Set, Tuple

from edgeserve.engines.base import Result, Values
from edgeserve.live.values import RequestValues
from edgeserve.offload.lane_thread import LaneWork, WorkNotStarted
from edgeserve.sched.protocol.actions import ReleaseInputs, RetainInputs, RunBatch
from edgeserve.sched.protocol.events import JobId, JobResult

KEPT_BYTES_MAX = 64 * 2**20
"""Bytes that all kept inputs may hold together: ten full-HD colour frames, and little beside a model on the smallest
boards. An input that does not fit is not kept, and its probe is refused."""

DEPTH_MAX = 8
"""The depth of nested lists to which the bytes of values are counted."""


class RetainedInputs:
    """The inputs by job, bounded by ``bytes_max``. ``launch`` and ``returned`` have the signatures of those of
    ``RequestValues``: they stand in for them when a batch is a probe."""

    def __init__(self, values: RequestValues, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self.bytes = 0
        self._values = values
        self._bytes_max = bytes_max
        self._inputs: Dict[JobId, Tuple[Values, int]] = {}

    def __len__(self) -> int:
        return len(self._inputs)

    def retain(self, action: RetainInputs) -> None:
        """Hold the inputs of a ready job, if there is room."""
        inputs = self._values.inputs(action.job)
        size = bytes_of(inputs)
        if self.bytes + size <= self._bytes_max:
            given = {id(value) for value in self._values.requests[action.job.request_id].inputs.values()}
            inputs = {name: value.copy() if _may_change(value, given) else value for name, value in inputs.items()}
            self._inputs[action.job] = (inputs, size)
            self.bytes += size

    def release(self, action: ReleaseInputs) -> None:
        """Let go of them; nothing happens when there was no room for them."""
        self.bytes -= self._inputs.pop(action.job, ({}, 0))[1]

    def refusal(self, action: RunBatch) -> Optional[WorkNotStarted]:
        """The answer to a probe whose inputs found no room; ``None`` for any other batch."""
        if not action.probe or action.jobs[0] in self._inputs:
            return None
        return WorkNotStarted(
            LaneWork(action.work_id, 0, 0, None, None, action),
            f"its inputs were not kept: all together would hold more than {self._bytes_max} bytes",
        )

    def launch(self, job: JobId, files: Tuple[Any, ...] = ()) -> Tuple[Values, Any]:
        """The inputs of a job, which the batch holds from now on; a probe has no state."""
        inputs, size = self._inputs.pop(job)
        self.bytes -= size
        return inputs, None

    def returned(self, job: JobId, result: Optional[Result], reason: str = "") -> JobResult:
        """The part of a probe's result that the scheduler uses; the rest is dropped."""
        if result is None:
            return JobResult(job, "failed", reason=reason)
        return JobResult(job, "done" if result.done else "unfinished")


def bytes_of(value: Any, depth: int = 0) -> int:
    """About how much memory a value holds. An array that is a view holds all of what it looks into."""
    if isinstance(value, dict):
        return sum(bytes_of(item, depth + 1) for item in value.values())
    if isinstance(value, (list, tuple)) and depth < DEPTH_MAX:
        return sum(bytes_of(item, depth + 1) for item in value)
    found = getattr(value, "nbytes", None)
    if not isinstance(found, int):
        return sys.getsizeof(value)
    base = getattr(value, "base", None)
    while base is not None:
        below = getattr(base, "nbytes", None)
        found = max(found, below if isinstance(below, int) else sys.getsizeof(base, 0))
        base = getattr(base, "base", None)
    return found


def _may_change(value: Any, given: Set[int]) -> bool:
    """True if a value is a writable array that shares memory with one of the arrays ``given`` (by their ids)."""
    if not getattr(getattr(value, "flags", None), "writeable", False):
        return False
    below = value
    while below is not None and id(below) not in given:
        below = getattr(below, "base", None)
    return below is not None
