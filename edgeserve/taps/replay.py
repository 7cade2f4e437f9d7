"""Replaying a recording into a fresh scheduler: what it decides is compared action by action.

The first difference is reported with both sides.
"""

from __future__ import annotations

from typing import Any, Iterable, NamedTuple, Optional, Sequence

from edgeserve.sched.protocol.actions import Action
from edgeserve.taps.trace import RecordedStep


class Difference(NamedTuple):
    """The first place where a replay decided otherwise. ``step_index`` counts steps from 0; a missing action is
    ``None``."""

    step_index: int
    now_ns: int
    recorded: Optional[Action]
    replayed: Optional[Action]

    def __str__(self) -> str:
        return (
            f"step {self.step_index} at {self.now_ns} ns differs:\n  recorded: {self.recorded}\n"
            f"  replayed: {self.replayed}"
        )


def replay(scheduler: Any, steps: Iterable[RecordedStep]) -> Optional[Difference]:
    """Feed every step's events to a fresh scheduler; the first difference, or ``None`` when it decides the same."""
    for index, step in enumerate(steps):
        actions = scheduler.step(step.now_ns, step.events)
        difference = compare(index, step, actions)
        if difference is not None:
            return difference
    return None


def compare(index: int, step: RecordedStep, actions: Sequence[Action]) -> Optional[Difference]:
    """The first action in which a step's replay differs from the recording."""
    for position in range(max(len(actions), len(step.actions))):
        recorded = step.actions[position] if position < len(step.actions) else None
        replayed = actions[position] if position < len(actions) else None
        if recorded != replayed:
            return Difference(index, step.now_ns, recorded, replayed)
    return None
