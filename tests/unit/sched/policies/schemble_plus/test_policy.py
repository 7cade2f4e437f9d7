"""What schemble+ weighs before a plan: who came lately, who else uses the lanes, who is in time, and who has enough."""

from __future__ import annotations

import pytest
from hand_world import MS, Driver, job

from edgeserve.sched.policies.ensemble.lanes import places_of
from edgeserve.sched.policies.ensemble.queries import Query
from edgeserve.sched.policies.schemble_plus.backlog import Demand, surcharges
from edgeserve.sched.policies.schemble_plus.others import OtherApp, charges, dearness
from edgeserve.sched.policies.schemble_plus.policy import Arrivals, Surroundings, _guard_ns

ROW = [0, 0.5, 0.4, 0.7, 0.3, 0.6, 0.5, 1]
TIMES = {"a": 40, "b": 75, "c": 85, "d": 20, "e": 30, "frames": 4}
LANES = {"a": ["l"], "b": ["m"], "c": ["m"], "d": ["m"], "e": ["n"], "frames": ["m"]}


def make(options=None, models=None, row=ROW, **app):
    """The ensemble q has a alone on its lane, b and c on another; r has d on that one, e alone; so has the camera."""
    table = {name: {1: time, "lanes": LANES[name], **(models or {})} for name, time in TIMES.items()}
    table["vote"] = {1: 1, "lanes": ["v"]}
    nodes = {"q": "abc", "r": "de"}
    fitted = {"q": list(row), "r": [0, 0.6, 0.7, 1]}
    apps = {
        name: {
            "node": [
                *({"name": branch, "after": []} for branch in branches),
                {"name": "vote", "after": list(branches), "join": "policy"},
            ],
            "slo": "400ms",
            "ensemble": {"models": list(branches), "agreement": [fitted[name]]},
            **app,
        }
        for name, branches in nodes.items()
    }
    world = Driver(
        table,
        {**apps, "camera": {"model": "frames", "slo": "90ms"}},
        policy={"schemble+": {"price": 0.1, "lone": "plan", **(options or {})}},
        lane={name: {} for name in "lmnv"},
    )
    world.step(at=0)
    policy, board = world.scheduler.policies[0], world.scheduler.state.board
    policy._places += places_of(list(policy._ensembles.values()), board, policy._cells_max)
    for name, cost_ns in (("q", 100), ("r", 25)):
        policy._arrivals[name] = Arrivals(1.0)
        policy._arrivals[name].cost_ns = cost_ns
    (places,) = policy._places
    return policy, places, board


def held(policy, number, due, bits=(0, 1, 2), app="q", answered=0, running=0, last=0, **request):
    """A request whose models are to end by ``due`` and must by ``last``, if that is later; some have begun."""
    ensemble = policy._ensembles[app]
    jobs = {
        bit: job(
            10 * number + bit, ensemble.app, node=ensemble.nodes[bit].name, id=number, **{"deadline": 400, **request}
        )
        for bit in bits
    }
    query = Query(jobs[bits[0]].request, ensemble, round(max(due, last) * MS), round(max(0, last - due) * MS))
    for bit, each in jobs.items():
        each.request = query.request
        query.jobs[bit] = each
    query.answered, query.running = answered, running
    policy._queries[number] = query
    return query


def see(policy, places, board, others=(), dear=(1.0, 1.0, 1.0)):
    """Say who else uses the lanes of b, c and d, and how dear each place is."""
    policy._seen[places.apps] = Surroundings(board.now_ns, [[], list(others), []], list(dear))


# --- who came ---------------------------------------------------------------------------------------------------------


def test_requests_that_came_are_forgotten_over_64_of_all_ensembles():
    policy, _, board = make()
    policy._arrivals.clear()
    for number, (app, value, worth) in enumerate((("q", 2.0, 10), ("r", 1.0, 20), ("q", 66.0, 30)), 1):
        ensemble = policy._ensembles[app]
        request = job(number, ensemble.app, node=ensemble.nodes[0].name, value=value, worth=worth).request
        for _ in range(2):  # the second model of a request counts it no more
            policy._query(request, ensemble, board)
    first, second = policy._arrivals["q"], policy._arrivals["r"]
    assert (first.count, first.cost_ns, first.value) == (pytest.approx((63 / 64) ** 2 + 1), 30 * MS, 3.0)
    assert (second.count, second.cost_ns, second.value) == (pytest.approx(63 / 64), 20 * MS, 1.0)


def test_a_request_that_costs_nothing_counts_a_nanosecond():
    seen = Arrivals(1.0)
    policy, _, _ = make()
    app = policy._ensembles["q"].app
    seen.came(job(1, app, node="a", worth=0).request)
    assert (seen.count, seen.cost_ns, seen.value) == (1.0, 1, 1.0)


def test_an_answer_counts_by_its_cost_beside_the_dearest_on_the_same_lanes():
    policy, places, board = make()
    policy._arrivals["elsewhere"] = Arrivals(1.0)
    policy._arrivals["elsewhere"].cost_ns = 1000
    policy._arrivals["r"].value = 3.0
    assert [policy._worth(app, places) for app in "qr"] == [1.0, 0.25]
    assert policy._demands({"r": 7.0, "q": 2.0}, places) == [Demand((3, 4), 0.75, 7.0), Demand((0, 1, 2), 1.0, 2.0)]
    policy._arrivals["q"].count, policy._arrivals["r"].count = 2.0, 4.0
    see(policy, places, board, dear=(1.0, 0.5, 0.25))
    both = (2 * 1.0 + 4 * 0.75) / (2 * 200 + 4 * 50)
    assert policy._prices(places.problem(board, {}), places, board) == pytest.approx(
        [0.1 * 1.0 / 200 / MS, 0.5 * 0.1 * both / MS, 0.25 * 0.1 * 0.75 / 50 / MS]
    )


# --- who else uses the lanes ------------------------------------------------------------------------------------------


def test_lane_time_is_as_dear_as_can_be_until_a_rate_is_known():
    policy, places, board = make()
    board.recent_arrivals("camera").unread += [(at * 20 * MS, 4.0 * MS, 2.0, 90.0 * MS) for at in range(11)]
    board.now_ns = 200 * MS
    found = policy._look(places, board)
    assert found.dear == [1.0, 1.0, 1.0]
    camera = OtherApp(pytest.approx(0.05 / MS), 4 * MS, pytest.approx(8 * MS), 86 * MS)
    assert found.others == [[], [camera], []]
    board.recent_arrivals("r").unread += [(at * 20 * MS, 5.0 * MS, 1.0, 90.0 * MS) for at in range(11)]
    assert policy._look(places, board) is found  # once per step
    board.now_ns = 400 * MS
    found = policy._look(places, board)
    assert found.dear == pytest.approx([dearness(0.0), dearness(0.025 * 4 + 0.025 * 20), dearness(0.025 * 30)])


def test_what_other_apps_lose_is_told_in_answers_of_the_dearest_ensemble():
    policy, places, board = make()
    camera = OtherApp(0.05 / MS, 4.0 * MS, 300.0, 10.0 * MS)
    see(policy, places, board, [camera])
    lost = charges([75 * MS, 85 * MS, 20 * MS], [(75 * MS, 1), (85 * MS, 1), (20 * MS, 1)], 1, 0.0, [camera])
    first, *shared, last = policy._charges_of_others(3, places, board)
    assert (first, last) == (0.0, 0.0)
    assert shared == pytest.approx([each / 100 for each in lost])
    assert shared[0] == pytest.approx(0.05 * 300 * 65 / 100)
    see(policy, places, board)
    assert policy._charges_of_others(3, places, board) == []


# --- what waiting requests cost ---------------------------------------------------------------------------------------


def waiting(policy):
    """Four that have not begun, of two ensembles, in order of their deadlines."""
    return [
        held(policy, 1, 100),
        held(policy, 2, 150, (0, 1), "r"),
        held(policy, 3, 200),
        held(policy, 4, 250, (0, 1), "r"),
    ]


def test_models_cost_what_those_who_wait_until_the_last_of_an_app_lose():
    policy, places, board = make()
    fresh = waiting(policy)
    lanes = places.problem(board, {}, 1, True)
    for name, typical, slowest in (("a", 40, 47), ("d", 20, 31), ("b", 75, 100)):
        latency = board.latency(name, LANES[name][0])
        latency.typical_ns, latency.slowest_ns = {1: typical * MS}, {1: slowest * MS}
    see(policy, places, board)
    found = policy._charges(fresh, fresh, [0, 0, 0], places, board)
    q, r = (0, 1, 2), (3, 4)
    until_third = surcharges(lanes, q, [Demand(q, 1.0, 2.0), Demand(r, 0.25, 1.0)], 200 * MS, 0.1)
    until_last = surcharges(lanes, r, [Demand(q, 1.0, 2.0), Demand(r, 0.25, 2.0)], 250 * MS, 0.1)
    assert found == {"q": (until_third, 7 * MS), "r": (until_last, 11 * MS)}
    assert min(until_third + until_last) > 0
    later = held(policy, 5, 50, answered=1, bits=(1,))
    own = policy._charges([later, *fresh[1::2]], fresh[1::2], [0, 0, 0], places, board)
    assert own["q"] == (surcharges(lanes, q, [Demand(r, 0.25, 2.0)], 250 * MS, 0.1), 7 * MS)  # until the last of all


def test_what_others_lose_is_on_top_and_counts_alone_where_one_request_waits():
    policy, places, board = make()
    fresh = waiting(policy)
    see(policy, places, board)
    calm = policy._charges(fresh, fresh, [0, 0, 0], places, board)
    assert policy._charges(fresh[:1], fresh[:1], [0, 0, 0], places, board) == {}
    see(policy, places, board, [OtherApp(0.05 / MS, 4.0 * MS, 300.0, 10.0 * MS)])
    lost = policy._charges_of_others(4, places, board)
    busy = policy._charges(fresh, fresh, [0, 0, 0], places, board)
    assert busy["q"][0] == pytest.approx([each + more for each, more in zip(calm["q"][0], lost)])
    assert busy["r"][0] == pytest.approx([each + more for each, more in zip(calm["r"][0], lost[3:])])
    lone = policy._charges(fresh[:2], fresh[1:2], [0, 0, 0], places, board)
    alone = policy._charges_of_others(1, places, board)
    assert lone == {"q": (alone[:3], 0), "r": (alone[3:], 0)}


def test_what_waiting_costs_is_that_of_batches_of_one():
    policy, places, board = make(models={1: 40, 2: 60})
    fresh = waiting(policy)
    see(policy, places, board)
    alone = places.problem(board, {}, 1, True)
    found = surcharges(alone, (0, 1, 2), [Demand((0, 1, 2), 1.0, 2.0), Demand((3, 4), 0.25, 1.0)], 200 * MS, 0.1)
    assert policy._charges(fresh, fresh, [0, 0, 0], places, board)["q"][0] == found


def test_handovers_lengthen_what_waiting_costs():
    policy, places, board = make()
    fresh = waiting(policy)
    see(policy, places, board)
    plain, apart = [policy._charges(fresh, fresh, [0, each, 0], places, board)["q"][0] for each in (0, 20 * MS)]
    assert apart[1] > plain[1]


def test_a_guard_is_how_much_longer_the_slowest_took_than_typically_where_that_is_least():
    policy, _, board = make(models={"lanes": ["l", "m"]})
    for lane, typical, slowest in (("l", 40, 55), ("m", 45, 57)):
        latency = board.latency("a", lane)
        latency.typical_ns, latency.slowest_ns = {1: typical}, {1: slowest}
    assert _guard_ns("a", board) == 12
    board.latency("a", "l").slowest_ns = {1: 39}
    assert _guard_ns("a", board) == 0


# --- who is in time ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("early", "due", "last", "on_late", "dues"),
    [
        (0, 40, 40, "drop", [40]),
        (0, 39, 39, "drop", []),
        (0, 39, 40, "drop", [40]),
        (0, 39, 39.5, "drop", []),
        (9, 49, 49, "drop", [40]),
        (9, 48, 48, "drop", [48]),
        (9, 40, 45, "drop", [40]),
        (9, 200, 200, "answer", [200]),
        (9, 200, 200, "drop", [191]),
        (150, 200, 200, "drop", [100]),
        (100, 200, 200, "drop", [100]),
    ],
)
def test_models_end_with_the_guard_or_else_by_the_likely_times_or_else_just_in_time(early, due, last, on_late, dues):
    """The guard is a quarter of a request's 400 ms at most."""
    policy, places, board = make()
    query = held(policy, 1, due, last=last, on_late=on_late, arrival=100, deadline=500)
    see(policy, places, board)
    lanes = places.problem(board, {})
    charged = {"q": ([0.0, 0.0, 0.0], early * MS)}
    able, asked = policy._able([query], lanes, places.ends_ns(lanes, board), places, board, charged)
    assert [item.due_ns for item in asked] == [due * MS for due in dues]
    assert able == [query] * len(dues)


def test_models_end_when_they_are_due_where_nothing_is_charged():
    policy, places, board = make()
    see(policy, places, board)
    lanes = places.problem(board, {})
    _, (asked,) = policy._able([held(policy, 1, 90)], lanes, places.ends_ns(lanes, board), places, board, {})
    assert asked.due_ns == 90 * MS


def test_those_with_an_answer_wait_for_nobody_just_in_time():
    policy, places, board = make()
    see(policy, places, board)
    lanes = places.problem(board, {})
    ends = places.ends_ns(lanes, board)
    first, second = held(policy, 1, 74, (1, 2), last=90, answered=1), held(policy, 2, 39, last=90)
    assert policy._able([first, second], lanes, ends, places, board, {})[0] == [second]
    assert policy._able([first], lanes, ends, places, board, {}) == ([], [])
    both = [held(policy, 3, 75, (1, 2), last=90, answered=1), second]
    assert policy._able(both, lanes, ends, places, board, {})[0] == both[:1]


def test_no_more_requests_are_asked_about_than_a_plan_looks_ahead():
    policy, places, board = make()
    see(policy, places, board)
    lanes = places.problem(board, {})
    ends = places.ends_ns(lanes, board)
    late, *rest = queries = [held(policy, 1, 10), *(held(policy, number, 100 + number) for number in range(2, 30))]
    able, asked = policy._able(queries, lanes, ends, places, board, {})
    assert able == rest[:24]
    assert (len(asked), late in able) == (24, False)


@pytest.mark.parametrize(("counts", "planned"), [(1, [0]), (2, [1, 0])])
def test_one_request_is_planned_by_likely_times_and_several_by_typical_ones(counts, planned):
    """By 50 ms a model could typically end, not likely."""
    policy, places, board = make()
    board.latency("a", "l").typical_ns, board.latency("a", "l").likely_ns = {1: 40 * MS}, {1: 60 * MS}
    board.latency("a", "l").observed_ns = board.now_ns
    see(policy, places, board)
    queries = [held(policy, number, 50) for number in range(counts)]
    policy._decide(board, places)
    assert [query.planned for query in queries] == planned


def test_the_idle_model_that_ends_first_by_the_due_time_is_the_fastest():
    policy, places, board = make()
    assert policy._fastest_idle(held(policy, 1, 100), board, places) == 0b001
    assert policy._fastest_idle(held(policy, 1, 40), board, places) == 0b001
    query = held(policy, 1, 39.999999)
    assert policy._fastest_idle(query, board, places) == 0
    places.lanes(0)[0].up = False
    for due, best in ((75, 0b010), (200, 0b010), (74.999999, 0)):
        assert policy._fastest_idle(held(policy, 1, due), board, places) == best
    assert policy._fastest_idle(held(policy, 1, 200, (0, 2)), board, places) == 0b100
    assert policy._fastest_idle(held(policy, 1, 200, (0, 1), "r"), board, places) == 0b01  # d, the fourth of all
    assert policy._fastest_idle(held(policy, 1, 200, (1,), "r"), board, places) == 0b10


# --- batches ----------------------------------------------------------------------------------------------------------

SIZES = {1: 40, 2: 60, 4: 90, 8: 170, 16: 300}


@pytest.mark.parametrize(
    ("sizes", "batch_max", "waiting", "planned"),
    [
        ((1, 2, 4, 8, 16), 32, 50, [1, 2, 4, 8]),
        ((1, 2, 4, 8, 16), 4, 50, [1, 2, 4]),
        ((1, 2, 4, 8), 32, 7, [1, 2, 4]),
        ((1, 2, 4, 8), 32, 1, [1]),
        ((1, 2, 4, 8), 32, 0, [1]),
        ((1,), 32, 9, [1]),
        ((2, 4), 32, 4, [1, 2, 4]),
    ],
)
def test_plans_are_made_for_batch_sizes_that_models_have_and_requests_could_fill(sizes, batch_max, waiting, planned):
    policy, places, board = make({"batch_max": batch_max})
    board.latency("c", "m").sizes = sizes
    assert policy._batches(board, places, waiting) == planned
    places.size = 3
    assert policy._batch(held(policy, 1, 90)) == 3


@pytest.mark.parametrize(
    ("cells_max", "due", "plans"), [(20_000, 100, 4), (1, 100, 1), (20_000, 8 * 400, 1)]
)  # in time, or with no time for more, or everybody has all
def test_larger_batches_are_planned_while_time_allows_and_somebody_lacks_something(cells_max, due, plans):
    policy, places, board = make({"cells_max": cells_max, "price": 0.0}, SIZES)
    see(policy, places, board, dear=(0.0, 0.0, 0.0))
    for number in range(8):
        held(policy, number, due)
    if plans == 1 and cells_max > 1:
        for query in policy._queries.values():
            query.jobs = {0: query.jobs[0]}
    policy._decide(board, places)
    assert policy.figures()["plans"] == plans


def test_a_plan_of_single_requests_goes_on_from_the_last_one():
    policy, places, board = make()
    see(policy, places, board)
    for number in range(3):
        held(policy, number, 80, (0,))
    policy._decide(board, places)
    first = policy.thought_ns()
    policy._decide(board, places)
    assert policy.thought_ns() == 3 * 80 * 150 < first  # no cell is written again


# --- who has enough ---------------------------------------------------------------------------------------------------

NEAR = [0, 0.9, 0.5, 0.93, 0.5, 0.91, 0.5, 1]


@pytest.mark.parametrize(
    ("answered", "running", "bits", "due", "least", "stop", "price", "enough"),
    [
        (0b001, 0b010, (2,), 400, 0.0, 0.03, 0.1, False),  # what runs adds 0.03
        (0b001, 0b010, (2,), 400, 0.0, 0.04, 0.1, False),  # it adds less, but all together 0.1
        (0b001, 0b010, (2,), 84, 0.0, 0.04, 0.1, True),  # for which there is no time
        (0b001, 0b010, (2,), 400, 0.0, 0.11, 0.1, True),
        (0b001, 0b010, (2,), 400, 0.95, 0.11, 0.1, False),
        (0b001, 0, (1, 2), 400, 0.0, 0.0, 0.01, False),  # both together pay
        (0b001, 0, (1, 2), 400, 0.0, 0.0, 0.5, True),
        (0b001, 0, (1, 2), 400, 0.95, 0.0, 0.5, False),
        (0b001, 0, (1, 2), 400, 0.9, 0.0, 0.5, True),
        (0b001, 0, (1, 2), 74, 0.0, 0.0, 0.0, True),
        (0b001, 0, (1, 2), 74, 0.95, 0.0, 0.0, True),
        (0b001, 0, (1,), 75, 0.0, 0.03, 0.0, False),
        (0b001, 0, (1,), 75, 0.0, 0.031, 0.0, True),
        (0b001, 0, (1,), 75, 0.0, 0.0, 0.0, False),
    ],
)
def test_an_answered_request_has_enough_when_nothing_adds_enough_to_it(
    answered, running, bits, due, least, stop, price, enough
):
    policy, places, board = make({"stop": stop, "price": price}, row=NEAR)
    see(policy, places, board)
    policy._arrivals["q"].count = 1.0
    query = held(policy, 1, due, bits, answered=answered, running=running, quality_min=least)
    assert policy._is_enough(query, places.problem(board, {}), places, board) is enough


# --- bids and joins ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slowest", "deadline", "early"),
    [
        (85, 400, 10),
        (75, 400, 0),
        (60, 400, 0),
        (475, 400, 100),
        (85, 86, 10),
        (85, 85, 0),
        (475, 100, 0),
        (475, 440, 100),
    ],
)
def test_a_bid_is_to_end_as_early_as_the_slowest_would_where_it_can(slowest, deadline, early):
    """The model takes 75 ms, and the vote behind it 1; early by a quarter of the request's time at most."""
    policy, places, board = make()
    board.latency("b", "m").slowest_ns = {1: slowest * MS}
    held(policy, 1, 390, (1,), deadline=deadline, arrival=max(0, deadline - 400)).planned = 0b010
    bid = policy._model_bid(places.lanes(1)[0], board)
    assert [due_ns for due_ns, _, _ in bid.utility.rows] == [(deadline - early) * MS]
    assert bid.remaining_ns == 76 * MS


def test_a_bid_carries_what_waits_behind_it_on_the_lane():
    policy, places, board = make()
    board.latency("b", "m").slowest_ns = {1: 75 * MS}
    held(policy, 1, 100, (1,), worth=30, value=2.0).planned = 0b010
    held(policy, 2, 300, (0, 2), last=310, worth=20, value=3.0).planned = 0b101
    held(policy, 3, 320, (0,), app="r", deadline=350).planned = 0b01
    bid = policy._model_bid(places.lanes(1)[0], board)
    first, second, third = bid.utility.rows
    assert first == (400 * MS, pytest.approx(30 * MS * 2.0 * 0.4), 0)
    assert second == ((400 - 10 - 85) * MS, pytest.approx(20 * MS * 3.0 * 0.3), 0)
    assert third == ((350 - 85 - 20) * MS, pytest.approx(10 * MS * 0.6), 0)
    assert bid.remaining_ns == (76 + 85 + 20) * MS


@pytest.mark.parametrize(
    ("waits", "on_late", "early"),
    [((), "drop", 0), ((3, 9, 5), "drop", 9), ((3, 120), "drop", 100), ((3, 9), "answer", 0), ((9,), "partial", 9)],
)
def test_models_are_to_end_before_the_longest_wait_of_a_join(waits, on_late, early):
    policy, _, _ = make()
    app = policy._ensembles["q"].app
    for wait in waits:
        policy._join_waited(job(1, app, node="vote"), wait * MS)
    policy._join_waited(job(1, app, node="a"), 200 * MS)  # no join
    request = job(2, app, node="a", arrival=100, deadline=500, on_late=on_late).request
    assert policy._join_wait_ns(request) == early * MS
