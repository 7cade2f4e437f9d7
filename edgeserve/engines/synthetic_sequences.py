"""Sequences of the ``synthetic`` engine: items that take many steps in one batch, and tell of each.

A step takes the stated time of a batch. After each, every item that goes on emits a piece (``step``: how many it has
made), and items that are over are answered. Everything that the contract of sequences asks for is done as a language
model does it, but nothing is computed: a state is a count, and computing a lost one again takes one step's time more.
"""

from __future__ import annotations

from typing import Callable, Dict, List, Optional

import numpy as np

from edgeserve.engines.base import (
    ANSWERED,
    Batch,
    BatchControl,
    Finished,
    Pending,
    Result,
    SequenceInfo,
    Session,
    with_failures,
)


class SyntheticState:
    """Where an item stands: steps made and still to make, and which session holds what it computed (None: no one)."""

    __slots__ = ("made", "left", "holder")

    def __init__(self, left: int) -> None:
        self.made = 0
        self.left = left
        self.holder: object = None

    def release(self) -> None:
        self.holder = None

    def __int__(self) -> int:
        return self.left


Planner = Callable[[Batch], "tuple[Batch, List[int], Dict[int, Exception], float]"]
"""Checks a batch: the items that may run, the steps that each needs, the failures of the others, seconds per step."""


class SequenceSession(Session):
    """A lane's session. ``plan`` checks a batch and draws its times, ``sleep`` lets time pass (seconds)."""

    def __init__(self, info: SequenceInfo, plan: Planner, sleep: Callable[[float], None]) -> None:
        self._info = info
        self._plan = plan
        self._sleep = sleep

    def launch(self, batch: Batch) -> Pending:
        batch, left, failed, step_s = self._plan(batch)
        return Finished(with_failures(self._run(batch, left, step_s), failed))

    def _run(self, batch: Batch, left: List[int], step_s: float) -> List[Result]:
        states = []
        for index, steps in enumerate(left):
            given = batch.states[index] if index < len(batch.states) else None
            states.append(given if isinstance(given, SyntheticState) else SyntheticState(steps))
        if any(state.made and state.holder is not self for state in states):
            self._sleep(step_s)  # what another session held, or none holds any more, is computed again
        results: Dict[int, Result] = {}
        before = [state.made for state in states]
        control, steps = batch.control, 0
        going = list(range(len(states)))
        most = 1 if batch.variant == "prefill" else batch.steps_max
        while going and (most is None or steps < most) and not (steps and control is not None and control.stop):
            self._sleep(step_s)
            steps += 1
            for index in list(going):
                state = states[index]
                state.holder = self
                if control is not None and control.dropped(index):
                    results[index] = _told(control, index, Result({}))
                    going.remove(index)
                    continue
                state.made += 1
                state.left -= 1
                if control is not None:
                    control.emit(index, Result({"step": np.int64(state.made)}, done=False, state=state))
                if state.left <= 0:
                    going.remove(index)
                    results[index] = _told(
                        control,
                        index,
                        Result({**batch.items[index], "steps": np.int64(state.made)}, steps=state.made - before[index]),
                    )
        for index in going:
            state = states[index]
            tokens = len(batch.items[index].get("tokens", ())) + state.made
            results[index] = Result(
                {},
                state=state,
                state_bytes=tokens * self._info.bytes_per_token,
                done=False,
                hints={"steps": state.left},
                steps=max(1, state.made - before[index]),
            )
        return [results[index] for index in range(len(states))]


def _told(control: Optional[BatchControl], index: int, result: Result) -> Result:
    """An item is over: tell of it now where somebody listens. What stands at its place in the results."""
    if control is None:
        return result
    control.emit(index, result)
    return ANSWERED
