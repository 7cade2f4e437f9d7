"""When stages end that share their lanes with nothing new."""

from __future__ import annotations

from edgeserve.sched.policies.pard_local.cost import one_by_one


def test_stages_follow_each_other_when_lane_and_model_are_there():
    assert one_by_one([("a", 10, 30), ("b", 7, 5), ("a", 1, 30)], 20) == 30 + 10 + 7 + 1
    assert one_by_one([("b", 10, 5), ("b", 7, 90)], 20) == 90 + 7
    assert one_by_one([], 20) == 20
