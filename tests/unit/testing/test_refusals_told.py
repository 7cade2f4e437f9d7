"""The conformance suite notices a policy whose refusals name a deadline that would not have done."""

from __future__ import annotations

from typing import Any, Callable

import pytest

from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policies.common.bidding import refusal
from edgeserve.sched.policy_api.expected_end import expected_end
from edgeserve.sched.published.common.edf import Edf
from edgeserve.testing.policy_conformance import PolicyConformance


def twice_ns(latency: Any) -> int:
    """A policy's own belief: twice the likely time."""
    return 2 * int(latency.alone_likely_ns)


class Careful(Edf):
    """Refuses by a belief of its own, and tells the shared one."""

    def on_request(self, request: Any, board: Any) -> Any:
        return refusal(request, board, twice_ns)


class Honest(Careful):
    """Tells what it judges by."""

    def expected_end(self, request: Any, job: Any, board: Any) -> Any:
        return expected_end(request, job, board, twice_ns)


class Liar(Careful):
    """Names a deadline that it would refuse again."""

    def expected_end(self, request: Any, job: Any, board: Any) -> Any:
        found = expected_end(request, job, board, twice_ns)
        return None if found is None else found._replace(deadline_ns_min=found.deadline_ns_min - 1)


def suite(kind: type) -> Callable[[], None]:
    class Suite(PolicyConformance):
        pass

    Suite.kind = "p"
    POLICIES["p"] = kind
    return Suite().test_the_deadline_that_a_refusal_says_would_do_is_not_refused


@pytest.mark.parametrize(("kind", "fine"), [(Edf, True), (Honest, True), (Careful, False), (Liar, False)])
def test_a_policy_that_tells_another_belief_than_its_own_is_noticed(kind: type, fine: bool) -> None:
    try:
        test = suite(kind)
        if fine:
            test()
        else:
            with pytest.raises(AssertionError, match="given up: expected .* would do"):
                test()
    finally:
        del POLICIES["p"]
