"""When stages end that share their lanes with nothing new."""

from __future__ import annotations

from edgeserve.sched.policies.pard_local.cost import one_by_one


def test_stages_follow_each_other_when_lane_and_model_are_there():
    free_ns = {"a": 30, "b": 5}
    assert one_by_one([("a", 10, 0), ("b", 7, 0), ("a", 1, 0)], free_ns, 20) == 30 + 10 + 7 + 1
    assert one_by_one([("b", 10, 0), ("b", 7, 90)], free_ns, 20) == 90 + 7
    assert one_by_one([], free_ns, 20) == 20
