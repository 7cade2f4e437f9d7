"""Which answer goes first: a task, what an order is computed with, and the orders that both policies have.

A task is what is known of one answer that has not begun. An order is a function that makes a sort key of a task; the
smallest goes first. Pure: integers and floats in, tuples out. O(1) per task, so that a queue is ordered anew at every
batch: slack changes with time.
"""

from __future__ import annotations

from typing import NamedTuple, Tuple

Key = Tuple[float, int, int]
"""Smallest first; the last two are the arrival and the number of the job, so that the order is total."""


class Task(NamedTuple):
    """What an order knows of a task: predicted ``steps`` of its answer, when it arrived, its priority point (a
    deadline), and the number that breaks ties."""

    steps: float
    arrival_ns: int
    due_ns: int
    seq: int


class PriorityParameters(NamedTuple):
    """What an order is computed with: the time, nanoseconds per output token, ``tau`` (the length above which answers
    count as long), ``alpha`` (the weight of the length)."""

    now_ns: int
    step_ns: float
    tau: float
    alpha: float


def linear(task: Task, parameters: PriorityParameters) -> Key:
    """Time until the priority point and ``alpha`` times the answer's own time, added: 0 is ``hpf``, a large one
    ``luf``."""
    answer_ns = parameters.step_ns * task.steps
    return task.due_ns - parameters.now_ns + parameters.alpha * answer_ns, task.arrival_ns, task.seq


def fifo(task: Task, parameters: PriorityParameters) -> Key:
    """In order of arrival."""
    return 0.0, task.arrival_ns, task.seq
