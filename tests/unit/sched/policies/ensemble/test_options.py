"""What the policies of ensembles offer a plan, what they charge for it, and how they bid for the models of one."""

from __future__ import annotations

import pytest
from hand_world import MS, Driver, ids, job

from edgeserve.config.ensemble_profile import monotone
from edgeserve.sched.policies.ensemble.base import PlanParameters
from edgeserve.sched.policies.ensemble.lanes import places_of
from edgeserve.sched.policies.ensemble.planner import BOUNDED, EXACT
from edgeserve.sched.policies.ensemble.problem import REWARD_UNIT, Asked, Lanes, Option, Plan
from edgeserve.sched.policies.ensemble.queries import Query

ROW = [0, 0.5, 0.4, 0.7, 0.3, 0.6, 0.5, 1]
TIMES = {"a": 40, "b": 75, "c": 85}
LANES = {"a": ["l"], "b": ["m"], "c": ["m"]}


def make(kind="schemble", row=ROW, names="abc", options=None, models=None, **app):
    """Models a on a lane of its own, b and c on another; or those of other names, each on a lane of its own."""
    table = {name: {1: TIMES.get(name, 10), "lanes": LANES.get(name, [f"l{name}"]), **(models or {})} for name in names}
    nodes = [{"name": name, "after": []} for name in names]
    nodes.append({"name": "vote", "after": list(names), "join": "policy"})
    fitted = {"models": list(names), "agreement": [list(row)]}
    lanes = {lane: {} for name in names for lane in table[name]["lanes"]}
    return Driver(
        {**table, "vote": {1: 1, "lanes": ["v"]}},
        {"q": {"node": nodes, "slo": "400ms", "ensemble": fitted, **app}},
        policy={kind: options or {}},
        lane={**lanes, "v": {}},
    )


def parts(world):
    """The policy, its places and the board of a world in which nothing has happened."""
    world.step(at=0)
    policy, board = world.scheduler.policies[0], world.scheduler.state.board
    policy._places += places_of(list(policy._ensembles.values()), board, 20_000)
    return policy, policy._places[0], board


def held(world, number, bits, due=300, **request):
    """A request of which the jobs of some models are ready, for the policy to hold."""
    policy = world.scheduler.policies[0]
    ensemble = policy._ensembles["q"]
    jobs = {
        bit: job(10 * number + bit, ensemble.app, node=ensemble.nodes[bit].name, id=number, **request)
        for bit in bits or (0,)
    }
    query = Query(next(iter(jobs.values())).request, ensemble, round(due * MS))
    for bit in bits:
        jobs[bit].request = query.request
        query.jobs[bit] = jobs[bit]
    policy._queries[number] = query
    return query


# --- what a request is offered ----------------------------------------------------------------------------------------

BEHIND = Lanes((0, 0, 1, 2, 2), (9, 9, 40, 75, 85), ((0,), (0,), (0,)), (1,) * 5)
"""The models of the requests are the last three."""

CHEAP, DEAR = (0.0, 0.001, 0.002), (0.1, 0.2, 0.3)
"""Prices by which the models cost 0.04, 0.15 and 0.17, and surcharges."""


@pytest.mark.parametrize(
    ("answered", "least", "value", "surcharges", "brings"),
    [
        (0, 0.0, 2.0, (), [0.46, 0.25, 0.51, 0.13, 0.39, 0.18, 0.64]),
        (0, 0.0, 2.0, DEAR, [0.46, 0.15, 0.31, -0.07, 0.09, -0.22, 0.14]),  # but for the least that answers
        (0, 0.6, 2.0, DEAR, [-0.04, -0.15, 0.51, -0.17, 0.29, -0.52, 0.34]),  # which is two models here
        (0, 0.0, 0.1, DEAR, [-0.115, -0.33, -0.455, -0.455, -0.58, -0.795, -0.91]),  # nothing pays: none is the least
        (0b001, 0.0, 2.0, DEAR, [-0.15, -0.37, -0.32]),
        (0b001, 0.5, 2.0, DEAR, [-0.15, -0.37, -0.32]),
        (0b001, 0.51, 2.0, DEAR, [0.55, 0.33, 0.38]),
        (0b001, 0.51, 2.0, (), [0.55, 0.43, 0.68]),
    ],
)
def test_a_subset_brings_its_gain_less_prices_and_surcharges(answered, least, value, surcharges, brings):
    world = make()
    policy, _, _ = parts(world)
    bits = [bit for bit in range(3) if not answered >> bit & 1]
    query = held(world, 2, bits, quality_min=least, value=value)
    query.answered = answered
    offered = policy._options(query, bits, BEHIND, (2, 3, 4), PlanParameters(0.5, CHEAP, surcharges, 0))
    assert [option.subset for option in offered] == [subset << 2 for subset in range(1, 8) if not subset & answered]
    assert [option.reward / REWARD_UNIT for option in offered] == pytest.approx(brings, abs=1e-8)


def test_only_models_that_could_end_in_time_are_offered_and_like_requests_share_their_options():
    world = make()
    policy, places, _ = parts(world)
    lanes, parameters = BEHIND._replace(lane_of=(0, 1, 1), times_ns=(40, 75, 85)), PlanParameters(1.0, CHEAP, (), 85)
    first, second, dear = held(world, 2, (0, 1, 2)), held(world, 3, (0, 1, 2)), held(world, 4, (0, 1, 2), value=3.0)
    known = {}
    asked = policy._asked(first, lanes, places, [86, 85, 84], parameters, known)
    assert asked.due_ns == 85
    assert [option.subset for option in asked.options] == [0b010, 0b100, 0b110]
    assert policy._asked(second, lanes, places, [86, 85, 84], parameters, known).options is asked.options
    for ends, query in (([85, 85, 84], second), ([86, 85, 84], dear)):
        other = policy._asked(query, lanes, places, ends, parameters, known)
        assert other.options == policy._asked(query, lanes, places, ends, parameters).options != asked.options
    second.answered = 0b001
    begun = policy._asked(second, lanes, places, [86, 85, 84], parameters, known)
    assert begun.options == policy._asked(second, lanes, places, [86, 85, 84], parameters).options != asked.options
    assert len(known) == 3


def test_of_many_models_singles_pairs_and_the_chain_of_the_best_are_offered():
    """Of eight models the second is not asked about; the last is the best, then the fifth and third at once."""
    points = [1, 90, 3, 2, 5, 4, 0.5, 8]
    row = [sum(point for bit, point in enumerate(points) if subset >> bit & 1) / 200 for subset in range(256)]
    world = make(row=monotone(row), names="abcdefgh")
    policy, _, _ = parts(world)
    query = held(world, 2, range(8))
    assert list(policy._subsets(query, [0, 2, 5])) == [1, 2, 3, 4, 5, 6, 7]
    assert list(policy._subsets(query, range(6))) == list(range(1, 64))
    pairs = {1 << one | 1 << other for one in range(7) for other in range(7)}
    order = [6, 3, 4, 1, 2, 0, 5]  # by place among those asked about
    chain = {sum(1 << place for place in order[:count]) for count in range(1, 8)}
    assert policy._subsets(query, [0, 2, 3, 4, 5, 6, 7]) == sorted(pairs | chain)


def test_among_equals_the_chain_takes_the_first_model():
    world = make(row=[bin(subset).count("1") / 7 for subset in range(128)], names="abcdefg")
    policy, _, _ = parts(world)
    found = policy._subsets(held(world, 2, range(7)), range(7))
    assert [subset for subset in found if bin(subset).count("1") > 2] == [0b111, 0b1111, 0b11111, 0b111111, 0b1111111]


# --- what a plan costs ------------------------------------------------------------------------------------------------


def test_a_plan_costs_its_cells_and_those_of_what_it_was_asked():
    """Eight options of 11 cells are more than the 80 of any request."""
    world = make()
    policy, _, board = parts(world)
    asked = [Asked(1, [Option(1, 1)] * count) for count in (0, 7, 8, 63)]
    policy._charge(Plan((), 0, EXACT, 7), [], asked, board)
    assert policy.thought_ns() == (7 + 80 + 80 + 88 + 693) * 150
    assert policy.thought_ns() == 0
    policy._charge(Plan((), 0, BOUNDED, 5), [], asked[:1], board)
    policy._charge(Plan((), 0, EXACT, 5), [], asked[:1], board)
    assert policy.thought_ns() == 2 * 85 * 150
    assert (policy.figures()["plans"], policy.figures()["plans cut short"]) == (3, 1)


def test_a_policy_that_has_done_nothing_says_so():
    policy = make().scheduler.policies[0]
    assert policy.figures() == {"plans": 0, "plans cut short": 0, "open": 0, "answers by models": {}}
    assert policy.thought_ns() == 0


def test_answers_are_counted_by_how_many_models_took_part():
    world = make("ensemble_static", options={"pick": "gating", "threshold": 0.5})
    for at, gates in ((0, {"a.gate": 1}), (200, {"a.gate": 1, "b.gate": 1}), (600, {"b.gate": 1})):
        world.arrive("q", at=at, hints={**{f"{name}.gate": 0.1 for name in "abc"}, **gates})
        while world.on_lane:
            work = next(iter(world.on_lane.values()))
            world.finish(work.lane, at=world.now_ms + TIMES.get(work.model, 1))
    assert world.scheduler.policies[0].figures()["answers by models"] == {1: 2, 2: 1}


# --- what is committed, idle and worth a lane -------------------------------------------------------------------------


def test_committed_models_that_wait_are_the_backlog_of_their_place():
    world = make()
    policy, places, board = parts(world)
    first, second = held(world, 2, (0, 1, 2)), held(world, 3, (1, 2))
    assert policy._backlog(places, board) == {}
    first.committed, second.committed = 0b111, 0b011  # a of the second does not wait
    assert policy._backlog(places, board) == {0: 40 * MS, 1: (75 + 85 + 75) * MS}
    assert ~policy._free_of_backlog(places) == 0b111
    second.committed = first.committed = 0b010
    assert ~policy._free_of_backlog(places) == 0b010


def test_the_models_that_could_start_now():
    world = make()
    policy, places, board = parts(world)
    assert policy._idle_models(board, places) == 0b111
    own, shared = places.lanes(0)[0], places.lanes(1)[0]
    own.up = False
    assert policy._idle_models(board, places) == 0b110
    own.up, shared.hung = True, True
    assert policy._idle_models(board, places) == 0b001


def test_the_subset_of_a_plan_names_the_models_of_a_request_that_wait():
    world = make()
    policy, places, _ = parts(world)
    query = held(world, 2, (0, 2))
    assert [policy._own(query, subset, places) for subset in (0, 1, 2, 4, 6, 7)] == [0, 1, 0, 4, 4, 5]


def test_models_share_evenly_what_they_add_together():
    world = make()
    policy, _, _ = parts(world)
    query = held(world, 2, (1, 2))
    query.planned = 0b010
    assert policy._share(query) == pytest.approx(0.4)
    query.committed = 0b110
    assert policy._share(query) == pytest.approx(0.25)
    query.answered, query.planned = 0b001, 0b111  # a does not wait
    assert policy._share(query) == pytest.approx(0.25)
    query.running = 0b010
    assert policy._share(query) == pytest.approx(0.15)


def test_only_uncommitted_requests_with_waiting_models_are_open_to_a_plan():
    world = make()
    policy, places, _ = parts(world)
    late, soon, committed, _ = [
        held(world, number, bits, due)
        for number, bits, due in ((2, (0,), 300), (3, (0,), 200), (4, (0,), 100), (5, (), 100))
    ]
    committed.committed = 1
    assert policy._in_order(places) == [soon, late]


# --- bids -------------------------------------------------------------------------------------------------------------


def bid_of(batch, dues, lane="l", planned=0b001):
    """The jobs of the bid of a lane whose model takes 40 ms for one, 60 for two and 90 for four."""
    world = make("schemble+", models={1: 40, 2: 60, 4: 90})
    policy, places, board = parts(world)
    places.size = batch
    for number, due in enumerate(dues):
        held(world, 2 + number, (0, 1, 2), due).planned = planned
    own = places.lanes(0)[0] if lane == "l" else places.lanes(1)[0]
    return policy._model_bid(own, board)


@pytest.mark.parametrize(
    ("batch", "dues", "requests", "size"),
    [
        (1, (300, 200, 250), [3], 1),
        (2, (300, 200, 250), [3, 4], 2),
        (4, (300, 200, 250), [3, 4, 2], 4),
        (4, (300, 200, 250, 280, 290), [3, 4, 5, 6], 4),
        (9, (300, 200, 250, 280, 290), [3, 4, 5, 6], 4),
        (4, (300, 90, 250), [3, 4, 2], 4),
        (4, (300, 89, 250), [3, 4], 2),
        (4, (300, 60, 250), [3, 4], 2),
        (4, (300, 59, 250), [3], 1),
        (4, (300, 10, 250), [3], 1),
        (0, (300, 200), [3], 1),
    ],
)
def test_a_bid_is_for_those_due_first_in_a_batch_that_does_not_make_the_first_late(batch, dues, requests, size):
    bid = bid_of(batch, dues)
    assert (ids([item.id for item in bid.jobs]), bid.size, bid.expected_ns) == (
        requests,
        size,
        {1: 40, 2: 60, 4: 90}[size] * MS,
    )


def test_a_bid_is_for_one_model_of_those_that_share_the_lane():
    bid = bid_of(4, (200, 300), "m", 0b111)
    assert {item.node.name for item in bid.jobs} == {"b"}
    assert ids([item.id for item in bid.jobs]) == [2, 3]
    assert bid_of(4, (200, 300), "m") is None


def test_a_model_bids_on_the_lane_that_holds_its_state_and_where_it_is_in_memory():
    world = make()
    policy, places, board = parts(world)
    query = held(world, 2, (1,))
    query.committed = 0b010
    lane = places.lanes(1)[0]
    for holder, bids in (("", True), ("m", True), ("elsewhere", False)):
        query.jobs[1].lane = holder
        assert (policy._model_bid(lane, board) is not None) is bids
    assert policy._model_bid(places.lanes(0)[0], board) is None


# --- whole requests ---------------------------------------------------------------------------------------------------


def decided(dues, options=None, row=ROW, bits=(0, 1, 2), down=(), commit=(), **request):
    """What each request is given by schemble, what is to be in memory for it, and how many plans that took."""
    world = make(options=options, row=row)
    policy, places, board = parts(world)
    queries = [held(world, 2 + number, bits, due, **request) for number, due in enumerate(dues)]
    for query, own in zip(queries, commit):
        query.committed = own
    for lane in [lane for place in range(places.count) for lane in places.lanes(place)]:
        lane.up = lane.name not in down
    policy._decide(board, places)
    assert all(query.planned in (0, query.committed) for query in queries)
    return [query.committed for query in queries], [query.wanted for query in queries], policy.figures()["plans"]


SLOW = {"fast": False}


@pytest.mark.parametrize(
    ("dues", "options", "more", "committed", "wanted", "plans"),
    [
        ((300,), {}, {}, [0b111], [0], 0),
        ((300,), SLOW, {}, [0b111], [0b111], 1),
        ((79,), {}, {}, [0b011], [0], 0),
        ((39,), {}, {}, [0], [0], 1),
        ((39, 300), {}, {}, [0, 0b111], [0, 0b111], 1),
        ((300,), {}, {"down": "m"}, [0b001], [0], 0),
        ((300,), {}, {"down": "lm"}, [0], [0], 0),
        ((40, 300), {}, {}, [0b001, 0b111], [0b001, 0b111], 1),  # each for a model that is idle
        ((40, 300), {}, {"down": "m"}, [0b001, 0], [0b001, 0b001], 1),  # the lane of a is given to the first
        ((170, 1000), {}, {"bits": (1, 2)}, [0b110, 0], [0b110, 0b110], 1),
        ((300, 300), {}, {"commit": [0b001]}, [0b001, 0b110], [0, 0], 0),
    ],
)  # the second alone, but a is taken
def test_a_plan_commits_to_each_idle_model_the_first_request_that_it_gives_it(
    dues, options, more, committed, wanted, plans
):
    assert decided(dues, options, **more) == (committed, wanted, plans)


@pytest.mark.parametrize(
    ("pair", "options", "chosen"),
    [
        (0.515, {}, 0b011),
        (0.509, {}, 0b001),
        (0.509, {"delta": 0.001}, 0b011),
        (0.509, {"delta": 0.1}, 0b001),
        (0.5001, {"delta": 0.0}, 0b011),
        (0.509, {"planner": "greedy"}, 0b011),
        (0.515, {"planner": "published"}, 0b011),
        (0.509, {"planner": "published"}, 0b001),
        (0.6, {"price": 0.1}, 0b011),
        (0.6, {"price": 0.3}, 0b001),
    ],
)
def test_rewards_are_rounded_down_to_multiples_of_delta_and_less_the_price_of_lane_time(pair, options, chosen):
    """By 80 ms there is time for a and b alone, 40 and 75 of the 200 ms of all models."""
    row = [0, 0.5, 0, pair, 0, 0.6, 0.5, 1]
    assert decided((80,), {**SLOW, **options}, row)[0] == [chosen]


def test_the_price_is_that_of_an_answer_by_all_models():
    policy, places, board = parts(make(options={"price": 0.4}))
    world = make()
    parameters = policy._parameters(held(world, 2, (0,), 77), places.problem(board, {}), places)
    assert parameters == (1.0, [pytest.approx(0.4 / (200 * MS))] * 2, (), 77 * MS)


@pytest.mark.parametrize(("order", "taking"), [("edf", [0, 1, 2, 3]), ("fifo", [2, 3, 0, 1]), ("sjf", [1, 3, 0, 2])])
def test_greedy_requests_take_in_the_order_of_deadlines_of_arrivals_or_of_difficulties(order, taking):
    world = make(options={"planner": "greedy", "order": order})
    policy, _, _ = parts(world)
    queries = [
        held(world, number, (0,), arrival=arrival, hints=hints)
        for number, arrival, hints in (
            (7, 5, {"difficulty": 0.4}),
            (8, 5, {}),
            (6, 2, {"difficulty": 0.4}),
            (9, 2, {"difficulty": 0.1}),
        )
    ]
    assert policy._taking(queries) == taking


def test_a_mean_request_stays_one_when_its_difficulty_comes():
    rows = {}
    for mean in (False, True):
        policy, _, board = parts(
            make(
                options={"mean": mean},
                ensemble={"models": ["a", "b", "c"], "edges": [0.5], "agreement": [ROW, [0, *[1] * 7]]},
            )
        )
        app = policy._ensembles["q"].app
        first = policy._query(job(1, app, node="a", hints={"difficulty": 0.9}).request, policy._ensembles["q"], board)
        rows[mean] = [first.row]
        late = policy._query(job(2, app, node="a").request, policy._ensembles["q"], board)
        late.request.hints = {"difficulty": 0.1}
        assert late.score_came()
        policy._scored(late)
        rows[mean].append(late.row)
    mean = policy._ensembles["q"].mean
    assert rows == {False: [(0, *[1] * 7), tuple(ROW)], True: [mean, mean]}


# --- baselines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "hints", "picked"),
    [
        ({}, {}, 0b111),
        ({"pick": "static"}, {}, 0),
        ({"pick": "static", "models": ["c", "a", "vote"]}, {}, 0b101),
        ({"pick": "gating"}, {"a.gate": 0.3, "b.gate": 0.29, "c.gate": 0.31}, 0b101),
        ({"pick": "gating"}, {"a.gate": 0.2, "b.gate": 0.1, "c.gate": 0.2}, 0b101),
        ({"pick": "gating"}, {"a.gate": 0.2, "b.gate": 0.3}, 0b110),
        ({"pick": "gating"}, {}, 0b111),
        ({"pick": "des"}, {"a.local": 0.5, "b.local": 0.9, "c.local": 0.9}, 0b110),
        ({"pick": "des"}, {"b.local": 0.99}, 0b101),
        ({"pick": "des", "margin": 0.25}, {"a.local": 0.5, "b.local": 0.75, "c.local": 0.49}, 0b011),
    ],
)
def test_what_each_baseline_picks_of_all_models(options, hints, picked):
    world = make("ensemble_static", options=options)
    policy, _, _ = parts(world)
    assert policy._picked(held(world, 2, (0, 1, 2), hints=hints)) == picked


@pytest.mark.parametrize(
    ("slo", "on_late", "models"),
    [(86.2, "drop", ["a", "c"]), (86.1999, "drop", []), (86.1999, "answer", ["a", "c"]), (86.1999, "partial", [])],
)
def test_a_baseline_gives_up_at_arrival_whom_its_subset_would_make_late(slo, on_late, models):
    """The slower model takes 85 ms; behind it are the vote and the margin of 0.2 ms."""
    world = make("ensemble_static", options={"pick": "static", "models": ["a", "c"]}, on_late=on_late)
    world.arrive("q", slo=slo)
    assert sorted(item.model for item in world.on_lane.values()) == models
    assert [world.reason(number) for number in world.ends] == ([] if models else ["overloaded"])


def test_a_baseline_counts_what_is_committed_before():
    world = make("ensemble_static", options={"pick": "static", "models": ["a"]})
    world.arrive("q", slo=300, count=2)
    world.arrive("q", slo=121.2, at=0)
    assert not world.ends  # the third ends at 120 ms
    world.arrive("q", slo=161.1, at=0)
    assert list(world.ends) == [4]
