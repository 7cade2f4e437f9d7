"""Time spent on a request before it came counts as lane time that its owner has."""

from __future__ import annotations

import random
from collections import Counter

from hand_world import MS, Driver


def answered(charged_ms: float) -> Counter[int]:
    """By user, where two ask for twice what the lane can do. So much was spent on each request of user 1."""
    driver = Driver({"m": {1: 10}}, {"a": {"model": "m", "slo": "300ms"}})
    asked, counts, chance = [0], Counter(), random.Random(1)
    for now in range(0, 3000, 10):
        for user in chance.sample([1, 1, 2, 2], 4):
            if chance.random() < 0.5:
                charged_ns = round(charged_ms * MS) if user == 1 else 0
                driver.arrive("a", at=now, client=f"uid:{user}/pid:1 #1", charged_ns=charged_ns)
                asked.append(user)
        for job in driver.work().jobs if driver.on_lane else ():
            counts[asked[job.request_id]] += 1
            driver.finish(at=now + 9.99, took=9.98)
    return counts


def test_an_owner_has_as_much_less_of_the_lanes_as_was_spent_on_its_requests_before_they_came():
    fair, charged = answered(0), answered(20)
    assert 0.8 * fair[2] < fair[1] < 1.25 * fair[2], fair
    assert 2 * charged[1] < charged[2] < 5 * charged[1], charged
    assert sum(charged.values()) == sum(fair.values()), "the lane has no pause"
