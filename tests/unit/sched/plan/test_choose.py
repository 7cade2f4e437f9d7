"""Which candidate starts: dense ones enter a schedule, the most pressing of it goes first, critical ones are guarded by
count."""

from __future__ import annotations

import random
from typing import List

import pytest
from exact_device import Device, ask, model
from hand_world import Driver, app_of, job

from edgeserve.sched.plan.candidate import Behind, Candidate, Kind
from edgeserve.sched.plan.choose import choose, weigh
from edgeserve.sched.protocol.events import RequestArrived
from edgeserve.sched.requests.critical import NO_ROOMS, Rooms
from edgeserve.units import NS_PER_MS

APP = app_of("m")


def made(
    model: str,
    takes: float,
    gain: float,
    slack: float,
    priority_class: str = "normal",
    jobs: int = 1,
    slo: float = 100.0,
    careful: float = 0.0,
) -> Candidate:
    """A candidate; times in milliseconds, the gain in milliseconds of lane time."""
    ms = NS_PER_MS
    return Candidate(
        Kind(),
        model,
        [job(number, APP, deadline=slo) for number in range(1, jobs + 1)],
        jobs,
        round(takes * ms),
        round(max(takes, careful) * ms),
        gain * ms,
        round(slack * ms),
        round(0.4 * slo * ms),
        priority_class,
    )


def first_of(
    candidates: List[Candidate],
    rooms: Rooms = NO_ROOMS,
    gap: float = 0.0,
    price: float = 0.0,
    saves: float = 0.0,
    full: float = 1000.0,
) -> str:
    """The model of the one that goes first; the first candidate would save so many milliseconds by waiting, and its
    jobs take so many in ``full`` batches."""
    gap_ns = round(gap * NS_PER_MS)
    for item in candidates:
        if item is candidates[0]:
            item.saves_ns, item.full_ns = round(saves * NS_PER_MS), round(full * NS_PER_MS)
        weigh(item, rooms, gap_ns, price)
    found = choose(candidates, gap_ns)
    return "" if found is None else found.model


def test_the_urgent_one_goes_before_the_dense_one_that_can_wait():
    assert first_of([made("dense", 10, 20, 80), made("urgent", 10, 10, 5)]) == "urgent"


def test_of_two_that_exclude_each_other_the_dense_one_goes():
    assert first_of([made("dense", 30, 60, 5), made("urgent", 30, 15, 2)]) == "dense"


@pytest.mark.parametrize(("waits", "first"), [(25, "urgent"), (18, "dense")])
def test_nothing_goes_before_dense_work_that_would_be_late_behind_it(waits, first):
    candidates = [made("dense", 10, 100, 15), made("urgent", 10, 1, 5)]
    for item in candidates:
        weigh(item, NO_ROOMS, 0)
    ms = NS_PER_MS
    found = choose(candidates, 0, lambda item: [Behind(10 * ms, waits * ms)] if item.model == "dense" else [])
    assert found is not None and found.model == first


@pytest.mark.parametrize("waiting", [2, 5])
@pytest.mark.parametrize(("spare_ms", "ends"), [(4, "dropped"), (8, "completed")])
def test_what_brings_little_does_not_go_before_the_last_of_a_queue(waiting, spare_ms, ends):
    """From 6 on they need 10 ms each, one after the other; the other app needs 7 and brings a tenth."""
    apps = {name: {"slo": "100ms", "model": name} for name in ("before", "queued", "other")}
    models = {"before": model(6, 0), "queued": model(0, 10, limit=1), "other": model(7, 0)}
    device = Device({"lane": {"l": {}}, "model": models, "app": apps, "policy": {"p": {"kind": "plan"}}})
    last_ms = 6 + 10 * waiting + spare_ms
    device.ask(ask(8, 100, app="before"))
    queued = [ask(number, last_ms - number, app="queued") for number in range(waiting - 1)]
    device.ask(*queued, ask(9, last_ms, app="queued"), ask(10, 14, app="other", value=0.1))
    device.advance()
    assert device.ends[10][0] == ends
    assert {device.ends[number][0] for number in (*range(waiting - 1), 9)} == {"completed"}


@pytest.mark.parametrize("priority_class", ["normal", "critical"])
def test_a_batch_that_may_be_slow_is_put_off_for_less(priority_class):
    def goes_first(careful: float) -> str:
        return first_of([made("dense", 10, 100, 12, priority_class, careful=careful), made("urgent", 10, 1, 5)])

    assert goes_first(11) == "urgent" and goes_first(13) == "dense"


def test_of_one_model_the_batch_of_most_index_stands_for_all():
    assert first_of([made("a", 10, 5, 50), made("a", 20, 40, 50), made("b", 10, 1, 500)]) == "a"


def test_a_critical_batch_enters_the_schedule_before_denser_ones():
    assert first_of([made("dense", 40, 400, 1), made("loop", 5, 5, 10, "critical")]) == "loop"


def test_a_critical_batch_that_can_wait_lets_others_go_first():
    assert first_of([made("short", 5, 10, 4), made("loop", 5, 5, 50, "critical")]) == "short"


def test_a_critical_batch_waits_its_part_of_the_path_and_half_of_it_after_a_late_one():
    def goes_first(slack: float, stages: int, over: float) -> str:
        loop = made("loop", 5, 5, slack, "critical")
        loop.stages = stages
        return first_of([made("short", 20, 40, 25), loop], Rooms([], [], [(10**12, 0.0)], over))

    assert goes_first(30, 1, 0.0) == "short" and goes_first(30, 2, 0.0) == "loop"
    assert goes_first(50, 2, 0.0) == "short" and goes_first(50, 3, 0.0) == "loop"
    assert goes_first(30, 1, 1.0) == "loop" and goes_first(50, 1, 1.0) == "short"
    assert goes_first(50, 1, 4.0) == "short"  # several late ones: not less than half


def test_a_critical_batch_waits_as_its_job_with_the_longest_way_to_go():
    loop = made("loop", 5, 5, 30, "critical")
    chain = app_of([{"name": "m"}, {"name": "n", "after": ["m"]}])
    for jobs, first in (([job(1, APP)], "short"), ([job(1, APP), job(2, chain, node="m")], "loop")):
        critical = Candidate(
            Kind(), "loop", jobs, 2, loop.takes_ns, loop.careful_ns, loop.gain, loop.slack_ns, loop.k_ns, "critical"
        )
        assert first_of([made("short", 20, 40, 25), critical]) == first


def test_critical_requests_are_counted_not_weighed():
    rooms = Rooms([20 * NS_PER_MS], [], [])
    long = made("long", 30, 300, 0, jobs=2)  # however much its two requests are worth
    assert first_of([long], rooms) == ""
    assert first_of([made("long", 30, 300, 0, jobs=8)], rooms) == "long"  # eight requests at their last moment
    assert first_of([made("long", 30, 300, 500, jobs=8)], rooms) == ""  # that have time for a gap
    assert first_of([made("short", 15, 1, 0)], rooms) == "short"  # it ends before


def test_what_is_as_slow_as_the_slowest_lately_counts_for_critical_requests():
    rooms = Rooms([], [(20 * NS_PER_MS, 100 * NS_PER_MS)], [])
    assert first_of([made("long", 15, 30, 50, careful=25)], rooms) == ""
    assert first_of([made("long", 15, 30, 50, careful=18)], rooms) == "long"
    assert first_of([made("long", 15, 30, 50, careful=18)], rooms, gap=3) == "", "the lane pauses between batches"


def test_requests_that_follow_no_period_count_as_many_as_are_likely_to_come():
    often = Rooms([], [], [(10 * NS_PER_MS, 1.0 / NS_PER_MS)])  # one each millisecond, that can wait for ten
    seldom = Rooms([], [], [(10 * NS_PER_MS, 0.001 / NS_PER_MS)])
    assert first_of([made("long", 30, 60, 0)], often) == ""
    assert first_of([made("long", 30, 60, 0)], seldom) == "long"


def test_background_work_goes_where_nothing_else_is_there():
    idle = made("index", 10, 1000, 0, "background")
    assert first_of([idle, made("a", 10, 1, 500)]) == "a"
    assert first_of([idle]) == "index"
    assert first_of([]) == ""


@pytest.mark.parametrize(
    ("slack", "full", "brings", "first"),
    [(60, 6, 20, "dense"), (10, 6, 20, "partial"), (60, 12, 20, "partial"), (60, 6, 2, "partial")],
    ids=["it can wait", "it would be late", "it is nearly full", "the other brings less"],
)
def test_a_batch_that_could_be_fuller_lets_others_go_first_while_it_can_wait(slack, full, brings, first):
    """One of 10 ms would save 5; its jobs take 6 or 12 in full batches."""
    assert first_of([made("partial", 10, 9, slack), made("dense", 20, brings, 500)], saves=5, full=full) == first
    assert first_of([made("partial", 10, 9, slack)], saves=5, full=full) == "partial", "nothing else waits"


@pytest.mark.parametrize("priority_class", ["normal", "critical"])
def test_of_two_alike_the_one_that_would_save_time_by_waiting_goes_later(priority_class):
    both = [made("partial", 10, 10, 30, priority_class), made("full", 10, 10, 30, priority_class)]
    assert first_of(both) == "partial"
    assert first_of(both, saves=5) == "full"


@pytest.mark.parametrize(
    ("after", "loop", "first"), [(4000, "90ms", "see"), (40, "90ms", "map"), (40, "23ms", "see")], ids=str
)
def test_on_a_crowded_lane_a_batch_that_can_be_joined_in_time_lets_others_go_first(after, loop, first):
    """Alone a frame brings more than the map does in the same time. Two frames take 24 ms, little longer than one:
    longer than critical requests of 23 ms allow."""
    world = Driver(
        {"see": {1: 20, 2: 24}, "map": {1: 20}, "loop": {1: 1}},
        {
            "see": {"model": "see", "slo": "200ms", "value": 2, "stream": "newest_wins"},
            "map": {"model": "map", "slo": "200ms"},
            "loop": {"model": "loop", "slo": loop, "class": "critical"},
        },
        policy="plan",
    )

    def both() -> None:
        world.step(RequestArrived(world.request("see", stream="left")), RequestArrived(world.request("map")))

    world.arrive("loop")
    world.finish(at=1)
    both()
    for at in (5, 15):  # the second one takes the place of the first: the lane has too little time
        world.arrive("see", stream="right", at=at)
    for at in (21, 41, 61):
        world.finish(at=at)
    world.pass_time(61 + after)
    both()
    assert world.work().model == first


def test_below_the_price_a_batch_waits_to_be_fuller_even_beyond_its_slack_where_others_can_go():
    partial, full = made("partial", 10, 8, 5), made("full", 40, 40, 1000)
    assert first_of([partial, full], price=0.7) == "partial"
    assert first_of([partial, full], price=0.7, saves=5) == "full"
    assert first_of([partial, full], price=0.5, saves=5) == "partial", "as it is, it brings more than the price"
    assert first_of([partial, made("least", 40, 4, 1000)], price=0.7, saves=5) == "partial", "the other brings less"
    assert first_of([partial], price=0.7, saves=5) == "partial", "nothing else waits"
    late = Rooms([20 * NS_PER_MS], [], [])
    assert first_of([partial, full], late, price=0.7, saves=5) == "partial", "the other would make a loop late"


@pytest.mark.parametrize("gain", [0, 1, 100])
def test_a_batch_waits_to_be_fuller_for_others_alone(gain):
    """The price falls only while something runs: what waited for a better price would wait for ever."""
    for slack in (-5, 0, 50, 10**6):
        assert first_of([made("partial", 10, gain, slack)], price=1.0, saves=5) == "partial"
        late = Rooms([], [], [(10**12, 0.0)])
        assert first_of([made("partial", 10, gain, slack)], late, price=1.0, saves=5) == "partial"


@pytest.mark.parametrize(("gain", "first"), [(4, "urgent"), (3, "dense")])
@pytest.mark.parametrize("waits", [50, 10**6])
def test_what_brings_less_than_half_of_the_price_goes_where_nothing_else_waits(gain, first, waits):
    both = [made("dense", 10, 100, waits, slo=10**6), made("urgent", 10, gain, 5)]
    assert first_of(both) == "urgent"
    assert first_of(both, price=0.7) == first
    assert first_of(both[1:], price=0.7) == "urgent"


def test_among_work_below_the_price_the_denser_keeps_its_place_in_the_schedule():
    assert first_of([made("dense", 30, 6, 5), made("least", 30, 3, 2)], price=1.0) == "dense"


def test_a_patient_batch_waits_for_those_of_near_deadlines():
    patient = made("patient", 10, 100, 50_000, slo=100_000)
    assert first_of([patient, made("near", 10, 10, 20)]) == "near"


@pytest.mark.parametrize("seed", range(200))
def test_a_lane_with_work_worth_doing_never_idles_without_critical_requests(seed):
    draw = random.Random(seed)
    items = [
        made(
            f"m{draw.randrange(4)}",
            draw.uniform(1, 50),
            draw.uniform(0.1, 100),
            draw.uniform(0, 200),
            draw.choice(("normal", "normal", "critical", "background")),
            draw.randrange(1, 9),
        )
        for _ in range(draw.randrange(1, 9))
    ]
    found = first_of(items)
    assert found, f"seed {seed}"
    if any(item.priority_class != "background" for item in items):
        chosen = [item for item in items if item.model == found]
        assert any(item.priority_class != "background" for item in chosen), f"seed {seed}"


@pytest.mark.parametrize("seed", range(100))
def test_no_critical_batch_is_made_late_by_one_that_could_go_after_it(seed):
    """A batch that starts before a critical one leaves it half of its slack at least, so that it is in time."""
    draw = random.Random(seed)
    loop = made("loop", draw.uniform(1, 10), 1, draw.uniform(0, 60), "critical")
    items = [
        made(f"m{index}", draw.uniform(1, 50), draw.uniform(1, 500), draw.uniform(0, 200), jobs=draw.randrange(1, 9))
        for index in range(draw.randrange(1, 6))
    ]
    name = first_of([*items, loop], Rooms([loop.slack_ns], [], []))
    if name != "loop":
        first = next(item for item in items if item.model == name)
        assert first.takes_ns <= loop.slack_ns, f"seed {seed}: {first} before {loop}"
