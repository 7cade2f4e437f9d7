"""Slots of sequences that end on other threads than the lane's."""

from __future__ import annotations

import itertools
import sys
import threading
from typing import Any, Callable, List

import pytest

from edgeserve.engines.lm import sequence as sequence_module
from edgeserve.engines.lm.generation import Generation
from edgeserve.engines.lm.prefixes import Prefixes
from edgeserve.engines.lm.sampling import Sampling
from edgeserve.engines.lm.sequence import Sequence
from edgeserve.engines.lm.slots import Slots


class Memory:
    """A session that only says what was freed."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.freed: List[int] = []

    def free(self, slot: int) -> None:
        self.freed.append(slot)


def seated(slots: Slots, owner: Any = None) -> Sequence:
    sequence = Sequence(Generation((1, 2), Sampling(), 5, (), False, None), "seed", owner)
    sequence.hold(slots, *slots.take(sequence, ()))
    return sequence


def interrupted(call: Callable[[], Any], by: Callable[[], Any], step: int) -> bool:
    """Call both: ``by`` on another thread, when ``call`` is at a step of the interpreter in the sequences' module. True
    if it has so many."""
    other = threading.Thread(target=by)
    steps = iter(range(step, -1, -1))

    def trace(frame: Any, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_globals is vars(sequence_module) and next(steps, None) == 0:
            other.start()
            other.join(0.005)  # it may wait for this thread
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    if other.ident is None:
        return False
    other.join()
    return True


@pytest.mark.parametrize("first", ["release", "end"])
def test_two_threads_that_end_a_sequence_give_its_slot_back_once(first):
    """The lane's takes the memory of a sequence that waits while its request ends. Given back twice, the slot would
    have two conversations."""
    for step in itertools.count():
        memory = Memory(2)
        sequence = seated(Slots(memory, Prefixes(100)), "A")
        goes_on = interrupted(getattr(sequence, first), sequence.release, step)
        assert memory.freed == [0]
        if not goes_on:
            break
    assert step > 10


def test_a_slot_is_taken_while_another_sequence_ends():
    slots = Slots(Memory(2), Prefixes(0))
    ended, waiting = seated(slots), seated(slots)

    class Busy:
        def __contains__(self, slot):
            ended.release()  # on the loop's thread, at this moment
            return False

    new = Sequence(waiting.asked, "seed", None)
    assert slots.take(new, Busy()) is not None
