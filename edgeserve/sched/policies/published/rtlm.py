"""``rtlm``: static batches, in the order of priority, of answers about equally long (RT-LM, Sections IV and V).

A batch goes on until all its answers are whole; the next one begins then. Where the engine answers each sequence when
it ends, so does this policy's batch (early exit), but nobody is admitted meanwhile.
"""

from __future__ import annotations

from edgeserve.compiled import mypyc_attr
from edgeserve.sched.policies.language.base import LanguagePolicy
from edgeserve.sched.policies.language.consolidation import consolidate, window_len
from edgeserve.sched.policies.language.queues import ModelTasks
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.policy import Bid
from edgeserve.sched.resources.lanes import Lane


@mypyc_attr(allow_interpreted_subclasses=True)
class Rtlm(LanguagePolicy):
    """Options: those of :class:`LanguagePolicy`."""

    def _batch(self, tasks: ModelTasks, lane: Lane, board: Board) -> Bid | None:
        latency = board.latency(tasks.model, lane.name)
        begun = tasks.bound_to(lane.name) or [
            waiting for waiting in self._loose_for(tasks, lane, board) if waiting.job.steps
        ]
        if begun:
            return self._bid_of(tasks, begun[: latency.size_max], lane, board)
        batch = self._batch_of(latency)
        fresh = self._fresh_for(tasks, lane, board, window_len(self._paper.b, batch))
        if not fresh:
            return None
        if self._is_side(tasks.model, lane, board):
            return self._bid_of(tasks, fresh[:batch], lane, board)
        window = fresh[: window_len(self._paper.b, batch)]
        places = consolidate(self._rule, [waiting.steps for waiting in window], batch, self._paper.ratio)
        return self._bid_of(tasks, [window[place] for place in places[: latency.size_max]], lane, board)
