"""Batches of sequence models while they run: what their engines tell between two steps, and what the loop tells them.

The engine's side is :class:`RunningBatch`, used on the lane's thread; it leaves what it is told in a queue and posts
itself to the mailbox, once for all that the loop has not seen yet. :class:`RunningBatches` is the loop's side.
"""

from __future__ import annotations

import collections
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Set, Tuple, Union

import numpy as np

from edgeserve.engines.base import ANSWERED, BatchControl, Result
from edgeserve.errors import EngineError
from edgeserve.live.hints import show
from edgeserve.live.loop_io import clock_ns
from edgeserve.live.request import LiveRequest
from edgeserve.live.values import RequestValues, are_values, item_error
from edgeserve.sched.protocol.actions import CutBatch, KeepWritten, LeaveOut, RunBatch
from edgeserve.sched.protocol.events import BatchProgress, Event, JobId, JobResult


class RunningBatch(BatchControl):
    """One batch's connection with its engine. ``listens``: whose clients want pieces. ``states``: from where items
    could go on, by their last pieces. ``over``: items whose end the scheduler knows. ``sent``: items of which pieces
    were sent on. ``asked``: items of which it is known whether they have written."""

    def __init__(self, action: RunBatch, listens: Sequence[bool], post: Callable[[Any], None]) -> None:
        self.action = action
        self.listens = listens
        self.states: Dict[int, Any] = {}
        self.over: Set[int] = set()
        self.sent: Set[int] = set()
        self.asked: Set[int] = set()
        self.closed = False
        self._stop = False
        self._post = post
        self._emitted: Deque[Tuple[int, Result]] = collections.deque()
        self._told = False  # the loop will look at what was emitted
        self._dropped = bytearray(len(action.jobs))

    # --- the engine's side --------------------------------------------------------------------------------------------

    def emit(self, index: int, result: Result) -> None:
        index = self._place(index)
        if not isinstance(result, Result):
            raise EngineError(f"model {self.action.model!r} emitted {show(result)}; expected a Result")
        if result.done is False and result.error is None:
            is_news = index not in self.states and hasattr(result.state, "written")
            if result.state is not None:
                self.states[index] = result.state
            if not is_news and not self.listens[index]:
                return
        self._emitted.append((index, result))
        if not self._told:
            self._told = True
            self._post(self)

    def _place(self, index: Any) -> int:
        """An item's place, which code of an engine says: another would end the loop, or answer another's request."""
        count = len(self.action.jobs)
        if not isinstance(index, (int, np.integer)) or not 0 <= index < count:
            raise EngineError(
                f"model {self.action.model!r} speaks of item {show(index)} of a batch of {count}; expected its place, "
                f"from 0 to {count - 1}"
            )
        return int(index)

    @property
    def stop(self) -> bool:
        return self._stop

    def dropped(self, index: int) -> bool:
        return bool(self._dropped[self._place(index)])

    # --- the loop's side ----------------------------------------------------------------------------------------------

    def take(self) -> List[Tuple[int, Result]]:
        """The pieces emitted since the last call, in order."""
        self._told = False  # before the queue is read: what comes later is told anew
        emitted, taken = self._emitted, []
        while emitted:
            taken.append(emitted.popleft())
        return taken

    def cut(self) -> None:
        """End it after its present step."""
        self._stop = True

    def drop(self, index: int) -> None:
        """Drop an item: its request has ended."""
        self._dropped[index] = 1


Reason = Callable[[Any, BaseException], str]
"""An engine's failure as the reason that a client reads."""

CancelRequest = Callable[[LiveRequest, List[Event], str], None]


class RunningBatches:
    """All batches of sequence models that lanes have. Belongs to the loop's thread."""

    def __init__(
        self, values: RequestValues, post: Callable[[Any], None], reason: Reason, cancel: CancelRequest
    ) -> None:
        self.by_id: Dict[int, RunningBatch] = {}
        self._values = values
        self._post = post
        self._reason = reason
        self._cancel = cancel

    def begin(self, action: RunBatch) -> RunningBatch:
        """A batch is given to its lane. Pieces are those of the app's last nodes: what others say is no answer."""
        listens = []
        for job in action.jobs:
            request = self._values.requests[job.request_id]
            listens.append(request.pieces and not job.part and job.node in request.plan.exits)
        batch = self.by_id[action.work_id] = RunningBatch(action, listens, self._post)
        return batch

    def look(self, batch: RunningBatch, events: List[Event]) -> None:
        """Send on the pieces that a batch emitted, report items that have begun, and answer the ended ones."""
        over: List[JobResult] = []
        begun: List[JobId] = []
        for index, result in batch.take():
            if batch.closed or index in batch.over:
                continue
            if result.done is False and result.error is None:
                if index not in batch.asked and result.state is not None:
                    batch.asked.add(index)
                    if self._has_begun(batch.action.jobs[index], result.state):
                        begun.append(batch.action.jobs[index])
                if batch.listens[index]:
                    self._send_piece(batch, index, result, events)
                continue
            batch.over.add(index)
            over.append(self._returned(batch, index, result))
        if over or begun:
            events.append(BatchProgress(batch.action.work_id, clock_ns(), tuple(over), tuple(begun)))

    def _has_begun(self, job: JobId, state: Any) -> bool:
        """True if what an item has written is its answer if it ends now, which the scheduler is told once."""
        request = self._values.requests.get(job.request_id)
        if request is None or request.ended or request.on_late == "drop" or (job.node, job.part) in request.begun:
            return False
        if not self._values.has_written(job, state):
            return False
        request.begun = (*request.begun, (job.node, job.part))
        return True

    def ended(self, work_id: int, events: List[Event], results: Sequence[Any] = ()) -> Optional[RunningBatch]:
        """A batch has ended: what it emitted last comes first, and which of its ``results`` have begun."""
        batch = self.by_id.pop(work_id, None)
        if batch is None:
            return None
        self.look(batch, events)
        batch.closed = True  # what its engine still tells is too late
        begun = [
            job
            for index, (job, result) in enumerate(zip(batch.action.jobs, results))
            if index not in batch.over
            and isinstance(result, Result)
            and result.done is False
            and self._has_begun(job, result.state)
        ]
        if begun:
            events.append(BatchProgress(work_id, clock_ns(), (), tuple(begun)))
        return batch

    def keep_states(self, batch: RunningBatch) -> None:
        """Keep what the items of a failed batch had written with their requests, which may end with that."""
        for index, job in enumerate(batch.action.jobs):
            if index not in batch.over:
                self.keep_state(batch, job)

    def keep_state(self, batch: RunningBatch, job: JobId) -> None:
        """Keep what one item of a batch had written, as :meth:`keep_states` does."""
        state = batch.states.get(batch.action.jobs.index(job))
        if state is not None and job.request_id in self._values.requests:
            self._values.keep_emitted(job, state)

    def state_of(self, job: JobId) -> Any:
        """The state from which a running job could go on, by its last piece; None where it does not run, or reported
        none."""
        for batch in self.by_id.values():
            if job in batch.action.jobs and job.request_id in self._values.requests:
                index = batch.action.jobs.index(job)
                if index not in batch.over:
                    return batch.states.get(index)
        return None

    def rest(self, batch: RunningBatch, results: Sequence[Any]) -> Tuple[Tuple[JobId, ...], List[Any]]:
        """The jobs of a batch that were not over before it ended, and what the engine returned for them."""
        jobs, kept = batch.action.jobs, []
        for index, result in enumerate(results):
            if index not in batch.over:
                kept.append(
                    Result(
                        {},
                        error=EngineError(
                            f"model {batch.action.model!r} returned ANSWERED for an item that it did not emit as done"
                        ),
                    )
                    if result is ANSWERED
                    else result
                )
        return tuple([job for index, job in enumerate(jobs) if index not in batch.over]), kept

    def cut(self, action: CutBatch) -> None:
        """End a batch after its present step."""
        batch = self.by_id.get(action.work_id)
        if batch is not None:
            batch.cut()

    def drop(self, request_id: int) -> None:
        """Drop the items of a request that has ended."""
        for batch in self.by_id.values():
            for index, job in enumerate(batch.action.jobs):
                if job.request_id == request_id:
                    batch.drop(index)

    def leave_out(self, action: Union[LeaveOut, KeepWritten]) -> None:
        """Drop the item of one job: its further output is not used."""
        for batch in self.by_id.values():
            if action.job in batch.action.jobs:
                batch.drop(batch.action.jobs.index(action.job))

    def lane_down(self, lane: str, events: List[Event]) -> None:
        """Have the items of a lost lane go on elsewhere, from the states that came with their last pieces. An item
        whose pieces were sent on without a state fails, since its client would get them twice."""
        for batch in self.by_id.values():
            if batch.action.lane != lane:
                continue
            self.look(batch, events)
            batch.closed = True
            failed: List[JobResult] = []
            for index, job in enumerate(batch.action.jobs):
                if index in batch.over:
                    continue
                if index in batch.states:
                    self._values.keep_emitted(job, batch.states[index])
                elif index in batch.sent:
                    batch.over.add(index)
                    failed.append(
                        self._values.returned(
                            job, None, f"lane {lane} was lost after a part of the answer had been sent"
                        )
                    )
            if failed:
                events.append(BatchProgress(batch.action.work_id, clock_ns(), tuple(failed)))

    def _send_piece(self, batch: RunningBatch, index: int, result: Result, events: List[Event]) -> None:
        request = self._values.requests.get(batch.action.jobs[index].request_id)
        job = batch.action.jobs[index]
        if request is None or request.ended or not request.pieces or (job.node, job.part) in request.left_out:
            return
        if not are_values(result.outputs):
            problem = self._reason(
                batch.action,
                EngineError(f"model {batch.action.model!r} emitted a piece whose outputs are no dict of named values"),
            )
        else:
            batch.sent.add(index)
            problem = self._values.send_piece(request, job, result.outputs)
        if problem:
            request.pieces = False
            self._cancel(request, events, problem)

    def _returned(self, batch: RunningBatch, index: int, result: Result) -> JobResult:
        """An item is over: kept and answered as if its batch had ended."""
        action = batch.action
        job = action.jobs[index]
        error = item_error(action.model, result)
        if error is None:
            return self._values.returned(job, result)
        self.keep_state(batch, job)
        return self._values.returned(job, None, self._reason(action, self._values.fault(job, error)))
