"""``pard_local`` under noise: what it believes of times, and the room it leaves for what it cannot know."""

from __future__ import annotations

import random
from statistics import pstdev

from test_policy_pard_local import MS, Device, ask, fan, model

from edgeserve.sched.latency import ModelLatency, timing_constant
from edgeserve.sched.policies.pard_local_cost import Split


def learnt(sizes=32, truth=lambda size: 1.0, noise=0.0, batches=600, seed="noise"):
    """A split after so many batches of random size, whose profile says ``10 + size`` ms."""
    profile = {size: (10 + size) * MS for size in range(1, sizes + 1)}
    latency = ModelLatency("m", "l", {size: timing_constant(time_ns) for size, time_ns in profile.items()},
                           list(profile))
    split, draw = Split(latency), random.Random(seed)
    split.refresh()
    for number in range(batches):
        size = draw.randrange(1, sizes + 1)
        took_ns = round(profile[size] * truth(size) * draw.gauss(1.0, noise))
        latency.observe(number, size, took_ns)
        split.saw(size, took_ns)
    return {size: split.time_ns(size * 1000) / profile[size] for size in profile}, latency


def test_noise_does_not_carry_the_sizes_apart():
    ratios, latency = learnt(noise=0.1)
    shared = [latency.typical_ns(size) / ((10 + size) * MS) for size in ratios]
    assert pstdev(ratios.values()) < 0.5 * pstdev(shared) and abs(sum(ratios.values()) / len(ratios) - 1) < 0.03


def test_a_size_that_really_is_slower_is_learnt():
    ratios, _ = learnt(sizes=4, truth=lambda size: 1.3 if size == 3 else 1.0, noise=0.05)
    assert 1.2 < ratios[3] / ratios[1] < 1.4 and 0.9 < ratios[1] < 1.1


def test_a_pace_that_changed_by_half_is_followed_at_once_and_exact_times_stay_exact():
    ratios, _ = learnt(batches=100)
    assert set(ratios.values()) == {1.0}
    ratios, _ = learnt(sizes=4, truth=lambda size: 1.5, batches=12)
    assert all(abs(ratio - 1.5) < 0.05 for ratio in ratios.values())


def test_a_second_cohort_leaves_those_in_flight_room_for_more_parts():
    def play(margin):
        table = fan(margin=margin)
        table["lane"] = {"l": {}, "host": {}}
        table["model"] = {"look": model(5, 0, lanes=["l"]), "cut": model(3, 0, lanes=["host"]),
                          "part": model(0, 4, 4, lanes=["l"]), "end": model(1, 0, lanes=["host"])}
        table["app"]["app"]["node"] = [{"name": "look"}, {"name": "cut", "fan_out": True}, {"name": "part"},
                                       {"name": "end", "gather": True}]
        device = Device(table)
        line = device.scheduler.policies[0]._line_of["app"]
        for count in (2, 6) * 20:
            line.saw_parts(line.nodes[1], count)
        device.ask(ask(1, 34))  # 5 + 3 + 4 * 4 + 1 = 25; with two parts more 33
        device.now_ns = 1 * MS
        device.ask(ask(2, 90))  # looking at it while the host cuts takes two of the milliseconds that are left
        device.advance(5)
        return sorted(batch[1:] for batch in device.batches if batch[0] > 0)
    assert play(0.0) == [("cut", [1]), ("look", [2])]
    assert play(0.02) == [("cut", [1])]
