"""When the next critical request may come: sources, their periods, and how long other work may take until then."""

from __future__ import annotations

from typing import Any

import pytest
from hand_world import MS, app_of, job

from edgeserve.sched.requests.critical import NO_BOUND_NS, CriticalArrivals, apps_on
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import RequestRecord

APP, OTHER = app_of("m"), app_of("n", name="b")
SLACK = 16  # a request that has 20 ms and takes 4 alone


class Arrivals:
    """Critical requests in milliseconds; each has 20 ms and takes 4 alone, unless said. They end at once, unless
    ``open``."""

    def __init__(self) -> None:
        self.known = CriticalArrivals()
        self._seq = 0

    def came(
        self, *times_ms: float, app: App = APP, slo: float = 20, alone: float = 4, open: bool = False, **fields: Any
    ) -> RequestRecord:
        for at_ms in times_ms:
            self._seq += 1
            request = job(self._seq, app, arrival=at_ms, deadline=at_ms + slo, klass="critical", **fields).request
            self.known.came(request, round(at_ms * MS), round(alone * MS))
            request.ended = not open
        return request

    def room(self, now_ms: float, *apps: App) -> float | None:
        """How long a work may take that starts now, or None for as long as it likes."""
        room_ns, _ = self.known.room_ns(apps or (APP,), round(now_ms * MS))
        return None if room_ns == NO_BOUND_NS else room_ns / MS

    def grows(self, now_ms: float) -> float | None:
        """When the room grows although no request comes."""
        _, grows_ns = self.known.room_ns((APP,), round(now_ms * MS))
        return None if grows_ns is None else grows_ns / MS


def test_without_critical_requests_nobody_is_waited_for():
    world = Arrivals()
    assert (world.room(0), world.grows(0), world.known.any) == (None, None, False)


def test_who_may_come_at_any_time_leaves_as_much_room_as_its_request_could_wait():
    world = Arrivals()
    world.came(100)
    assert world.known.any
    assert [world.room(now) for now in (100, 150, 900)] == [SLACK] * 3
    world.came(950, slo=3)  # less than it takes
    assert world.room(960) == 0


def test_open_requests_leave_less_the_longer_they_wait():
    world = Arrivals()
    first = world.came(0, open=True)
    second = world.came(2, open=True, slo=30, alone=5)
    third = world.came(4, open=True)
    assert world.room(6) == 10  # the first: due at 20, and the last takes 4
    first.ended = True
    assert world.room(6) == 14  # the third
    third.ended = True
    assert world.room(6) == SLACK  # the second has 22
    assert world.room(14) == 14
    assert world.room(40) == -12  # late already
    second.ended = True
    assert world.room(40) == SLACK


def test_four_equal_intervals_are_a_period():
    world = Arrivals()
    world.came(0, 100, 200, 300)
    assert world.room(304) == SLACK
    world.came(400)
    assert world.room(404) == 96 + SLACK
    assert world.room(500 - 1 / MS) == pytest.approx(SLACK + 1 / MS)
    assert [world.room(now) for now in (500, 550)] == [SLACK] * 2  # late: it may come now
    late_start = Arrivals()
    late_start.came(100, 200, 300, 400)
    assert late_start.room(404) == SLACK, "the time before the first is no interval"


def test_intervals_may_differ_by_an_eighth_of_the_shortest():
    for longest, room in ((108, 96 - 4 + SLACK), (108 + 1 / MS, SLACK)):
        world = Arrivals()
        world.came(0, 100, 200, 200 + longest, 296 + longest)
        assert world.room(300 + longest) == pytest.approx(room)


def test_the_last_eight_intervals_decide():
    world = Arrivals()
    world.came(0, 500)
    world.came(*range(600, 1300, 100))
    assert world.room(1204) == SLACK, "seven of them, and one of 500 before"
    world.came(1300)
    assert world.room(1304) == 96 + SLACK


def test_who_has_not_come_for_a_second_or_two_of_its_periods_is_not_waited_for():
    world = Arrivals()
    world.came(100)
    assert (world.room(1100 - 1 / MS), world.grows(1099)) == (SLACK, 1100)
    assert (world.room(1100), world.grows(1100), world.known.any) == (None, None, False)
    world = Arrivals()
    world.came(0, 500, 1300)  # 800 is the longest
    assert (world.room(2899), world.grows(2899)) == (SLACK, 2900)
    assert (world.room(2900), world.known.any) == (None, False)


@pytest.mark.parametrize(
    ("one", "other"), [({}, {"client": "x"}), ({}, {"stream": "left"}), ({"stream": "left"}, {"stream": "right"})]
)
def test_each_client_and_each_stream_has_a_period_of_its_own(one, other):
    app = app_of("m", stream="in_order")
    world = Arrivals()
    for turn in range(5):
        world.came(100 * turn, app=app, **one)
        world.came(100 * turn + 30, app=app, slo=24, **other)
    assert world.room(440, app) == 60 + SLACK
    assert world.room(505, app) == SLACK, "the first is late and may come now"


def test_the_source_with_the_least_room_counts_and_the_first_that_is_forgotten():
    world = Arrivals()
    world.came(0, client="x", slo=10)
    world.came(50, client="y")
    assert (world.room(60), world.grows(60)) == (6, 1000)
    assert (world.room(1000), world.grows(1000)) == (SLACK, 1050)


def test_of_more_than_64_sources_the_least_recent_is_forgotten():
    world = Arrivals()
    world.came(1, client="0", slo=10)
    world.came(1, client="1", slo=8)
    for number in range(2, 64):
        world.came(2, client=str(number))
    world.came(3, client="0", slo=10)
    assert world.room(4) == 4
    world.came(5, client="new")
    assert world.room(6) == 6, "0 came after 1, although it was there first"


def test_only_apps_that_use_the_lane_count():
    world = Arrivals()
    world.came(0, app=OTHER, slo=9)
    assert (world.room(1), world.known.any) == (None, True)
    world.came(0)
    assert world.room(1) == SLACK
    assert world.room(1, APP, OTHER) == world.room(1, OTHER, APP) == 5
    assert world.room(1500) is None
    assert world.known.any, "nobody asked for the other app"
    assert world.room(1500, OTHER) is None
    assert not world.known.any


def test_the_apps_on_a_lane_are_those_of_which_any_node_may_run_there():
    chain = app_of([{"name": "x"}, {"name": "m"}], name="c")
    apps = {app.name: app for app in (APP, OTHER, chain)}
    assert apps_on(apps, {"m": 1}) == (APP, chain)
    assert apps_on(apps, {"x": 1, "n": 1}) == (OTHER, chain)
    assert apps_on(apps, {}) == ()
