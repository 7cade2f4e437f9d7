"""The bound on a policy's computation in one step: counted operations, since the scheduler has no clock.

A decision whose cost depends on what requests declare (steps, parts) charges its operations. When the budget is spent
it takes the best result so far, or a simple rule. So it is the same on every machine and in every replay.
"""

from __future__ import annotations

OPERATIONS_MAX = 200_000
"""Per step. One operation takes about 30 ns where the scheduler is compiled and 100 where it is not (x86-64)."""


class Budget:
    """The operations of one step, for all policies together. The core renews it with each step."""

    def __init__(self) -> None:
        self.left = OPERATIONS_MAX

    def charge(self, operations: int) -> None:
        """So many are done."""
        self.left -= operations
