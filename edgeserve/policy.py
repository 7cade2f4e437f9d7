"""The names that a policy of your own imports.

Begin with the contract: subclass :class:`Policy`, and subclass
``edgeserve.testing.policy_conformance.PolicyConformance`` in a test file with ``kind = "my_module:MyPolicy"``. Pytest
then reports each missing part. A configuration names the class in ``[policy.NAME] kind``, in the same form. The page
*Write a policy* is the tutorial, *The interface of a policy* the reference.

* :class:`Policy` with the hooks, :class:`Bid` as what ``bid`` returns, :class:`ExpectedEnd` as what ``expected_end``
  returns, :class:`PolicyOptions` with :func:`option` for the keys of its section, :data:`POLICIES` as the registry by
  kind.
* The arguments of the hooks, for annotations: :class:`Board`, :class:`RequestRecord`, :class:`Job`, :class:`Lane`,
  :class:`Work`, :class:`Change`, :class:`App`, :class:`Node`, :class:`Branch`, :class:`BatchTime`.
* Functions that all policies share, so that every policy counts value and time alike: :class:`JobQueue`, :func:`take`,
  :func:`bid_for`, :func:`choose`, :func:`best_class`, :func:`refusal`, :func:`expected_end`,
  :func:`droppable`, :func:`give_up_late`, :func:`keeps_written`, :func:`postpone`,
  :func:`look_at_bound`,
  :data:`CANNOT_MAKE_DEADLINE`, :func:`ms_to_ns`, :func:`ns_to_ms`.

Imports the scheduler and the configuration; no engine, no socket and no thread.
"""

from __future__ import annotations

from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policies.common.bidding import (
    best_class,
    bid_for,
    droppable,
    give_up_late,
    look_at_bound,
    postpone,
    refusal,
    take,
)
from edgeserve.sched.policies.common.job_queue import JobQueue
from edgeserve.sched.policy_api.arbiter import choose
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.expected_end import ExpectedEnd, expected_end
from edgeserve.sched.policy_api.options import PolicyOptions, option
from edgeserve.sched.policy_api.policy import CANNOT_MAKE_DEADLINE, Bid, Change, Policy
from edgeserve.sched.requests.graph import App, Node
from edgeserve.sched.requests.joins import Branch
from edgeserve.sched.requests.states import Job, RequestRecord, keeps_written
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.units import ms_to_ns, ns_to_ms

__all__ = [
    "CANNOT_MAKE_DEADLINE",
    "POLICIES",
    "App",
    "Bid",
    "Board",
    "Branch",
    "Change",
    "ExpectedEnd",
    "Job",
    "JobQueue",
    "Lane",
    "BatchTime",
    "Node",
    "Policy",
    "PolicyOptions",
    "RequestRecord",
    "Work",
    "best_class",
    "bid_for",
    "choose",
    "droppable",
    "give_up_late",
    "expected_end",
    "keeps_written",
    "look_at_bound",
    "ms_to_ns",
    "ns_to_ms",
    "option",
    "postpone",
    "refusal",
    "take",
]
