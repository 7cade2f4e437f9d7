"""The memory that sequences really hold in the simulated world: slots of their lane and bytes of its device.

Part of the reference model: a rule that is broken is said in words, and the reference model raises.
"""

from __future__ import annotations

from typing import Dict, Mapping, NamedTuple, Sequence, Tuple

from edgeserve.config.schema import Config
from edgeserve.sched.protocol.events import JobId


class _SequenceState(NamedTuple):
    """The state of one sequence."""

    model: str
    lane: str
    bytes: int


class ReferenceSequences:
    """Follows the sequences of the models in ``facts`` (what their engines say: tokens of the context, bytes per token,
    slots). Verbs answer ``""``, or which rule does not hold."""

    def __init__(self, config: Config, facts: Mapping[str, Tuple[int, ...]]) -> None:
        self._slots = {name: config.models[name].slots or told[2] for name, told in facts.items()}
        self._bounds = {name: config.models[name].state_memory_bytes for name in facts}
        self._device_of = {name: lane.device for name, lane in config.lanes.items()}
        self._states: Dict[JobId, _SequenceState] = {}

    @property
    def count(self) -> int:
        """Sequences that hold something."""
        return len(self._states)

    def begins(self, model: str, lane: str, jobs: Sequence[JobId]) -> str:
        """A lane begins a batch."""
        if model not in self._slots:
            return ""
        for job in jobs:
            before = self._states.get(job, _SequenceState(model, lane, 0))
            if before.lane != lane:
                return f"{job} goes on on lane {lane}, and lane {before.lane} holds its state, which was not released"
            self._states[job] = before
        count = sum(state.lane == lane and state.model == model for state in self._states.values())
        if count > self._slots[model]:
            return f"{count} sequences of model {model} are on lane {lane}, which has {self._slots[model]} slots"
        return ""

    def grows(self, bytes_by_job: Mapping[JobId, int]) -> str:
        """Sequences that run have states of these sizes now."""
        for job, bytes in bytes_by_job.items():
            if job in self._states:
                self._states[job] = self._states[job]._replace(bytes=bytes)
        for job in bytes_by_job:
            if job in self._states:
                return self._within(self._states[job])
        return ""

    def gone(self, job: JobId) -> None:
        """A sequence is over, or its state was released."""
        self._states.pop(job, None)

    def lane_lost(self, lane: str) -> None:
        """No state of a lane can be used any more."""
        self._states = {job: held for job, held in self._states.items() if held.lane != lane}

    def _within(self, one: _SequenceState) -> str:
        device, bound = self._device_of[one.lane], self._bounds[one.model]
        used = sum(
            held.bytes
            for held in self._states.values()
            if held.model == one.model and self._device_of[held.lane] == device
        )
        if bound and used > bound:
            return f"the states of model {one.model} occupy {used} bytes of device {device}, and may occupy {bound}"
        return ""
