"""The time of the next critical request: sources, their periods, and how long other work may take until then."""

from __future__ import annotations

from typing import Any

import pytest
from hand_world import MS, app_of, job

from edgeserve.sched.requests.critical import CriticalArrivals
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import RequestRecord
from edgeserve.units import FOREVER_NS

APP, OTHER = app_of("m"), app_of("n", name="b")
SLACK = 16  # a request that has 20 ms and takes 4 alone
EARLY = 100 / 16  # by so much a request with a period of 100 ms may come before its time


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
            request = job(
                self._seq, app, arrival=at_ms, deadline=at_ms + slo, priority_class="critical", **fields
            ).request
            self.known.came(request, round(at_ms * MS), round(alone * MS))
            request.ended = not open
        return request

    def room(self, now_ms: float, *apps: App) -> float | None:
        """The time that a work which starts now may take, or None for any."""
        room_ns, _ = self.known.room_ns(apps or (APP,), round(now_ms * MS))
        return None if room_ns == FOREVER_NS else room_ns / MS

    def grows(self, now_ms: float) -> float | None:
        """The time at which the room grows although no request comes."""
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
    assert world.room(404) == 96 - EARLY + SLACK
    assert world.room(500 - EARLY - 1 / MS) == pytest.approx(SLACK + 1 / MS)
    assert [world.room(now) for now in (500, 550)] == [SLACK] * 2  # late: it may come now
    late_start = Arrivals()
    late_start.came(100, 200, 300, 400)
    assert late_start.room(404) == SLACK, "the time before the first is no interval"


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
    assert world.room(440, app) == 60 - EARLY + SLACK
    assert world.room(505, app) == SLACK, "the first is late and may come now"


def test_a_source_that_once_came_early_may_do_so_again():
    world = Arrivals()
    world.came(*range(0, 900, 100), 870)
    assert world.room(880) == pytest.approx(70 * 15 / 16 - 10 + SLACK)
    world = Arrivals()
    world.came(*range(0, 900, 100), 850)  # half a period: it may come at any time
    assert world.room(880) == SLACK


def test_rooms_count_open_requests_and_the_next_of_each_period():
    world = Arrivals()
    world.came(0, 100, 200, 300, 400)
    world.came(500, open=True)
    rooms = world.known.rooms((APP,), 505 * MS)
    assert rooms.opened == [11 * MS]  # due at 520, takes 4
    ((room_ns, period_ns),) = rooms.expected
    assert 90 * MS < room_ns <= (95 + SLACK) * MS and period_ns == 100 * MS
    assert [rooms.late_behind(ms * MS) for ms in (5, 11, 12, 150, 250)] == [0, 0, 1, 2, 3]
    assert rooms.most_ns == (100 + SLACK) * MS


def test_rooms_say_how_many_requests_without_a_period_may_be_late():
    world = Arrivals()
    world.came(0, 10, 400, 410, 900)
    rooms = world.known.rooms((APP,), 900 * MS)
    assert (rooms.opened, rooms.expected) == ([], [])
    assert rooms.late_behind(SLACK * MS) == 0
    assert rooms.late_behind((SLACK + 225) * MS) == pytest.approx(1)  # one in 225 ms
    assert rooms.most_ns == SLACK * MS


def test_rooms_forget_sources_and_requests_that_have_ended():
    world = Arrivals()
    ended = world.came(0, open=True)
    assert world.known.rooms((APP,), 1).opened
    assert not world.known.rooms((OTHER,), 1).opened
    ended.ended = True
    assert not world.known.rooms((APP,), 1).opened
    assert world.known.rooms((APP,), 10_000 * MS).irregular == []
    assert not world.known.any


def test_a_request_that_is_late_anyway_holds_nothing_back():
    world = Arrivals()
    world.came(0, open=True)
    assert world.known.rooms((APP,), 17 * MS).opened == []


def test_after_critical_requests_were_late_what_goes_before_them_ends_earlier_and_they_count_more():
    world = Arrivals()
    world.came(0, 10, 400, 410, 900)

    def late_behind(ms: float) -> float:
        return world.known.rooms((APP, OTHER), 900 * MS).late_behind(round(ms * MS))

    usual = late_behind(SLACK + 225)
    assert late_behind(SLACK) == 0
    for _ in range(3):
        world.known.ended(APP.name, False)
    assert late_behind(SLACK) > 0
    assert late_behind(SLACK + 225) > 3 * usual
    for _ in range(2000):
        world.known.ended(APP.name, True)
    assert late_behind(SLACK) == 0
    assert late_behind(SLACK + 225) == usual, "what is long ago is forgotten"


def test_what_one_app_has_learnt_holds_on_its_lanes_alone():
    world = Arrivals()
    world.came(0, 10, 400, 410, 900)
    world.known.ended(OTHER.name, False)
    assert world.known.rooms((APP,), 900 * MS).late_behind(SLACK * MS) == 0
