"""Time spent on a request before it came, and each of its steps, count as lane time that its owner has."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hand_world import MS, Driver


def answered(charged_ms: float = 0.0, steps: int = 1) -> Counter[int]:
    """By user, where two ask for twice what the lane can do. So much was spent on each request of user 1, and it has so
    many steps."""
    driver = Driver({"m": {1: 10}}, {"a": {"model": "m", "slo": "300ms"}})
    asked, counts, chance, left = [0], Counter(), random.Random(1), 0
    for now in range(0, 3000, 10):
        for user in chance.sample([1, 1, 2, 2], 4):
            if chance.random() < 0.5:
                charged_ns = round(charged_ms * MS) if user == 1 else 0
                hints = {"steps": float(steps)} if user == 1 else {}
                driver.arrive("a", at=now, client=f"uid:{user}/pid:1 #1", charged_ns=charged_ns, hints=hints)
                asked.append(user)
        for job in driver.work().jobs if driver.on_lane else ():
            user = asked[job.request_id]
            left = left - 1 if left else (steps if user == 1 else 1) - 1
            if not left:
                counts[user] += 1
                driver.finish(at=now + 9.99)
    return counts


def test_an_owner_has_as_much_less_of_the_lanes_as_was_spent_on_its_requests_before_they_came():
    fair, charged = answered(), answered(charged_ms=20)
    assert 0.8 * fair[2] < fair[1] < 1.25 * fair[2], fair
    assert 2 * charged[1] < charged[2] < 5 * charged[1], charged
    assert sum(charged.values()) == sum(fair.values()), "the lane has no pause"


@pytest.mark.parametrize("steps", [3, 8])
def test_an_owner_has_as_many_fewer_answers_as_each_has_more_steps(steps):
    fair, long = answered(), answered(steps=steps)
    assert 0.7 * fair[2] < long[2] < 1.3 * fair[2], (fair, long)
    assert 0.7 * fair[1] < steps * long[1] < 1.3 * fair[1], (fair, long)
