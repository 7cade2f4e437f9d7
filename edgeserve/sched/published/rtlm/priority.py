"""Which answer goes first: a task, what an order is computed with, and the orders of RT-LM: its priority (Eq. 3), as
printed and corrected, and the baselines of the paper.

An order is a function that makes a sort key of a task; the smallest goes first. Pure, O(1) per task, so that a queue is
ordered anew at every batch: slack changes with time.
"""

from __future__ import annotations

from typing import Callable, Final, Mapping, NamedTuple, Tuple

from edgeserve.units import NS_PER_S

Key = Tuple[float, int, int]
"""Smallest first; the last two are the arrival and the number of the job, so that the order is total."""


class Task(NamedTuple):
    """The facts of a task that an order uses: predicted ``steps`` of its answer, when it arrived, its priority point (a
    deadline), and the number that breaks ties."""

    steps: float
    arrival_ns: int
    due_ns: int
    seq: int


class PriorityParameters(NamedTuple):
    """The parameters of an order: the time, nanoseconds per output token, ``tau`` (the length above which answers
    count as long), ``alpha`` (the weight of the length)."""

    now_ns: int
    step_ns: float
    tau: float
    alpha: float


EPS_NS: Final = 50_000_000
"""Slack below this counts as this: overdue tasks are ordered by length alone."""

WEIGHT: Final = 0.95
"""The part of a task's weight that its predicted length takes at ``tau`` (with ``alpha`` = 1)."""

WEIGHT_MIN: Final = 0.05
"""The weight of a task whose predicted length is ``tau`` or more: all of these go in order of arrival."""


def linear(task: Task, parameters: PriorityParameters) -> Key:
    """Time until the priority point and ``alpha`` times the answer's own time, added: 0 is ``hpf``, a large one
    ``luf``."""
    answer_ns = parameters.step_ns * task.steps
    return task.due_ns - parameters.now_ns + parameters.alpha * answer_ns, task.arrival_ns, task.seq


def fifo(task: Task, parameters: PriorityParameters) -> Key:
    """First come, first served: the order of arrival."""
    return 0.0, task.arrival_ns, task.seq


def corrected(task: Task, parameters: PriorityParameters) -> Key:
    """Weight over slack, largest first. Length relative to ``tau``, slack from now on, both with floors."""
    steps, arrival_ns, due_ns, seq = task
    now_ns, step_ns, tau, alpha = parameters
    share = steps / tau
    weight = 1.0 - WEIGHT * alpha * (share if share < 1.0 else 1.0)
    slack_ns = due_ns - now_ns - step_ns * steps
    return (
        -(weight if weight > WEIGHT_MIN else WEIGHT_MIN) / (slack_ns if slack_ns > EPS_NS else EPS_NS),
        arrival_ns,
        seq,
    )


def printed(task: Task, parameters: PriorityParameters) -> Key:
    """Eq. 3 as printed: (1 - alpha * u) / (d - r - eta * u), largest first, in tokens and seconds. It has a pole where
    the slack changes its sign, prefers later tasks among those with slack, and no task ages."""
    slack_s = (task.due_ns - task.arrival_ns - parameters.step_ns * task.steps) / NS_PER_S
    if slack_s == 0.0:
        slack_s = 1e-9
    return -(1.0 - parameters.alpha * task.steps) / slack_s, task.arrival_ns, task.seq


def hpf(task: Task, parameters: PriorityParameters) -> Key:
    """Highest priority point first: the earliest."""
    return float(task.due_ns - parameters.now_ns), task.arrival_ns, task.seq


def luf(task: Task, parameters: PriorityParameters) -> Key:
    """Least uncertainty first: the shortest predicted answer."""
    return task.steps, task.arrival_ns, task.seq


def muf(task: Task, parameters: PriorityParameters) -> Key:
    """Most uncertainty first: the longest predicted answer."""
    return -task.steps, task.arrival_ns, task.seq


ORDERS: Final[Tuple[str, ...]] = ("corrected", "printed", "linear", "fifo", "hpf", "luf", "muf")


BY_ORDER: Final[Mapping[str, Callable[[Task, PriorityParameters], Key]]] = {
    "corrected": corrected,
    "printed": printed,
    "linear": linear,
    "fifo": fifo,
    "hpf": hpf,
    "luf": luf,
    "muf": muf,
}


METHODS: Final[Mapping[str, Tuple[str, str, str]]] = {
    "fifo": ("fifo", "none", "none"),
    "hpf": ("hpf", "none", "none"),
    "luf": ("luf", "none", "none"),
    "muf": ("muf", "none", "none"),
    "up": ("corrected", "none", "none"),
    "up+c": ("corrected", "seed", "none"),
    "rt-lm": ("corrected", "seed", "conditional"),
}
"""The systems of the paper's tables: order, consolidation and offloading of each."""
