"""What a lane's threads would get of the processor, by the load that a monitor reports."""

from __future__ import annotations

import pytest

from edgeserve.sched.resources.cpu_share import CpuShare
from edgeserve.sched.resources.lanes import Lane, Work

S = 10**9
SHARE_MIN = 0.05


def lane(name, threads=1, nice=0):
    return Lane(name, "host", threads=threads, nice=nice)


def told(*loads, lanes, cores=4):
    """A share to which a monitor tells a load each second; ``loads`` are (load, lanes that worked all the time)."""
    share = CpuShare(lanes)
    share.reported(0, 1.0, cores)
    for second, (load, working) in enumerate(loads, 1):
        for item in working:
            item.busy_ns += S
        share.reported(second * S, load, cores)
    return share


def test_where_nothing_was_told_everything_is_left():
    side = lane("side")
    assert CpuShare([side]).share(side, 5 * S) == 1.0
    assert told(lanes=[side]).share(side, S) == 1.0  # what came before the first report is not known


@pytest.mark.parametrize(
    ("threads", "nice", "load", "expected"),
    [
        (2, 0, 0.0, 1.0),
        (2, 0, 0.5, 1.0),  # two of four cores are left to two threads
        (2, 0, 1.0, 4 / 6),  # fair scheduling: two of six threads on four cores
        (4, 0, 0.75, 4 / 7),
        (2, 19, 1.0, SHARE_MIN),
    ],
)  # it yields to all others
def test_other_programs_leave_what_is_free_or_a_fair_part(threads, nice, load, expected):
    side = lane("side", threads, nice)
    assert told((load, []), lanes=[side]).share(side, S) == pytest.approx(expected)


def test_a_lane_does_not_take_its_own_work_for_a_busy_processor():
    side = lane("side", 4)
    assert told((1.0, [side]), (1.0, [side]), lanes=[side]).share(side, 2 * S) == 1.0


def test_work_that_goes_on_counts_before_it_is_over():
    side = lane("side", 4)
    share = CpuShare([side])
    share.reported(0, 0.0, 4)
    side.put(Work(1, "run", side, "lm", (), 1, 0, 100 * S, 0, None))
    share.reported(S, 1.0, 4)
    assert share.share(side, S) == 1.0


def test_other_lanes_keep_all_that_they_use():
    side, hosts = lane("side", 2), lane("hosts", 4)
    assert told((1.0, [hosts]), lanes=[side, hosts]).share(side, S) == SHARE_MIN
    side, hosts = lane("side", 2, nice=1), lane("hosts", 3)
    assert told((0.75, [hosts]), lanes=[side, hosts]).share(side, S) == pytest.approx(0.5)


def test_a_lane_that_does_not_yield_gets_nothing_unless_its_threads_fit_beside_those_that_work():
    for threads, nice, expected in ((2, 0, SHARE_MIN), (1, 0, 1.0), (2, 5, 0.5)):
        side, hosts, idle = lane("side", threads, nice), lane("hosts", 3), lane("idle", 4)
        assert told((0.75, [hosts]), lanes=[side, hosts, idle]).share(side, S) == pytest.approx(expected)


def test_a_lane_that_waits_for_something_else_than_the_processor_uses_none():
    side, reader = lane("side", 2), lane("reader", 4)
    assert told((0.0, [reader]), lanes=[side, reader]).share(side, S) == 1.0


@pytest.mark.parametrize(("share", "expected"), [(0.06, SHARE_MIN), (0.05, 1.0), (0.04, 1.0)])
def test_a_lane_works_that_used_more_than_a_twentieth_of_its_threads_time(share, expected):
    side, hosts = lane("side", 2), lane("hosts", 4)
    known = CpuShare([side, hosts])
    known.reported(0, 1.0, 4)
    hosts.busy_ns += round(share * S)
    known.reported(S, share, 4)
    assert known.share(side, S) == pytest.approx(expected)


def test_only_what_a_lane_worked_since_the_last_report_is_its_own():
    side = lane("side", 4)
    known = told((1.0, [side]), (1.0, []), lanes=[side])
    assert known.share(side, 2 * S) == pytest.approx(4 / 6), "the mean of none and four cores that others used"
    side.busy_ns += S // 2
    known.reported(3 * S, 1.0, 4)
    assert known.share(side, 3 * S) == pytest.approx(4 / 6), "two again, of the four that were used"


def test_the_mean_follows_readings_both_ways():
    side = lane("side", 4)
    share = told((0.0, []), (1.0, []), lanes=[side])
    busier = share.share(side, 2 * S)
    share.reported(3 * S, 1.0, 4)
    assert share.share(side, 3 * S) < busier < 1.0
    for second in range(4, 10):
        share.reported(second * S, 0.0, 4)
    assert share.share(side, 9 * S) > 0.95


def test_what_was_told_long_ago_says_nothing():
    side = lane("side", 4)
    share = told((1.0, []), lanes=[side])
    assert share.share(side, 20 * S) == 0.5
    assert share.share(side, 22 * S) == 1.0
    rare = CpuShare([side])
    rare.reported(0, 1.0, 4)
    rare.reported(60 * S, 1.0, 4)
    assert rare.share(side, 200 * S) == 0.5  # a monitor that reads once a minute is believed for four
    assert rare.share(side, 301 * S) == 1.0
