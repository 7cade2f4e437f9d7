"""The orders of RT-LM: its priority (Eq. 3), as printed and corrected, and the baselines of the paper."""

from __future__ import annotations

from typing import Callable, Final, Mapping, Tuple

from edgeserve.sched.policies.language.priority import Key, PriorityParameters, Task, fifo, linear
from edgeserve.units import NS_PER_S

EPS_NS: Final = 50_000_000
"""Slack below this counts as this: overdue tasks are ordered by length alone."""

WEIGHT: Final = 0.95
"""How much of a task's weight its predicted length takes at ``tau`` (with ``alpha`` = 1)."""

WEIGHT_MIN: Final = 0.05
"""The weight of a task whose predicted length is ``tau`` or more: all of these go in order of arrival."""


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
