"""The value of a batch of answers whose requests end one after the other."""

from __future__ import annotations

import math
from typing import List, Sequence, Tuple

from edgeserve.sched.policies.common.bidding import Utility
from edgeserve.sched.published.rtlm.queues import Waiting
from edgeserve.sched.requests.worth import worth_ns


class EachUtility:
    """The value of a batch whose requests end one after the other, as a function of when it starts: each request
    counts with the chance that its answer is whole in time. One that is answered late anyway counts as in
    :class:`~edgeserve.sched.policies.common.bidding.Utility`, with its expected end, and so does one of a stream.
    ``around_ns``: what passes before the first step, and after the last until requests end."""

    __slots__ = ("_each", "_likely", "_around_ns", "_step_ns")

    def __init__(self, chosen: Sequence[Waiting], around_ns: int, step_ns: int, now_ns: int) -> None:
        self._around_ns, self._step_ns = around_ns, max(1, step_ns)
        self._each: List[Utility] = []
        self._likely: List[Tuple[Waiting, float]] = []  # and what each is worth
        counted = set()
        for waiting in chosen:
            job = waiting.job
            request = job.request
            if job.part:
                if request.id in counted:
                    continue
                counted.add(request.id)
            if request.on_late == "answer" or request.successor_ns is not None:
                own_ns = around_ns + math.ceil(waiting.remaining() * step_ns)
                self._each.append(Utility((job,), own_ns, now_ns, (_share(waiting),)))
            else:
                self._likely.append((waiting, worth_ns(request) * _share(waiting)))

    def value(self, start_ns: int) -> float:
        """The value delivered if the work starts at ``start_ns``, in nanoseconds of lane time."""
        from_ns = start_ns + self._around_ns
        total = sum([utility.value(start_ns) for utility in self._each], 0.0)
        for waiting, worth in self._likely:
            total += worth * waiting.chance((waiting.job.request.deadline_ns - from_ns) / self._step_ns)
        return total


def _share(waiting: Waiting) -> float:
    """The worth of a request beside its ``cost_share_ns``, which counts the steps that it declares, or one: the steps
    that its answer is believed to need."""
    request = waiting.job.request
    return waiting.steps / max(1, int(request.hints.get("steps", 1))) if request.app.simple else 1.0
