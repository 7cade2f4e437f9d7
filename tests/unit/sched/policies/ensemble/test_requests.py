"""A request of an ensemble from its arrival to its answer: who is let in, what has begun, who is given up, and when."""

from __future__ import annotations

import pytest
from hand_world import MS, Driver, job, like

from edgeserve.sched.policies.ensemble.lanes import NEVER_NS
from edgeserve.sched.policies.ensemble.queries import Query
from edgeserve.sched.protocol.actions import LoadModel
from edgeserve.sched.requests.states import HELD

ROW = [0, 0.5, 0.4, 0.7, 0.3, 0.6, 0.5, 1]
TIMES = {"crop": 5, "scale": 7, "a": 40, "b": 75, "c": 85, "score": 3, "vote": 1, "send": 2, "side": 20}
LANES = {
    "crop": "k",
    "scale": "k",
    "a": "la",
    "b": "lb",
    "c": "lc",
    "score": "ls",
    "vote": "v",
    "send": "v",
    "side": "k",
}
NODES = [
    {"name": "crop", "after": []},
    {"name": "scale", "after": ["crop"]},
    {"name": "a", "after": ["scale"]},
    {"name": "b", "after": ["crop"]},
    {"name": "c", "after": ["crop"]},
    {"name": "score", "after": []},
    {"name": "vote", "after": ["a", "b", "c", "score"], "join": "policy"},
    {"name": "send", "after": ["vote"]},
]
PLAIN = [*({"name": name, "after": []} for name in "abc"), {"name": "vote", "after": ["a", "b", "c"], "join": "policy"}]


def make(kind="schemble", nodes=PLAIN, options=None, models=None, trials=False, resident=None, device=None, **app):
    """Three models on lanes of their own; with NODES behind two others, and another app on the lane of those."""
    table = {name: {1: time, "lanes": [LANES[name]], **((models or {}).get(name, {}))} for name, time in TIMES.items()}
    fitted = {"models": ["a", "b", "c"], "agreement": [ROW]}
    more = {"device": device} if device else {}
    return Driver(
        table,
        {
            "q": {"node": nodes, "slo": "400ms", "ensemble": fitted, **app},
            "other": {"model": "side", "slo": "500ms"},
            "third": {"model": "send", "slo": "500ms"},
        },
        policy={kind: options or {}},
        lane={lane: {} for lane in sorted(set(LANES.values()))},
        resident=resident,
        **more,
    )


def policy_of(world):
    return world.scheduler.policies[0]


def on(world, *lanes):
    return sorted(item.model for item in world.on_lane.values() if item.lane in lanes or not lanes)


def sets(world, number=1):
    query = policy_of(world)._queries[number]
    return query.answered, query.running, query.gone, query.waiting()


# --- who is let in ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "slo", "comes"),
    [(PLAIN, 41, True), (PLAIN, 40.9999, False), (NODES, 40 + 12 + 3, True), (NODES, 40 + 12 + 2.9999, False)],
)
def test_a_request_is_let_in_if_its_fastest_model_and_all_around_it_could_end_in_time(nodes, slo, comes):
    world = make(nodes=nodes)
    world.arrive("q", slo=slo)
    assert (world.ends.get(1) is None or world.outcome(1) != "rejected") is comes
    assert comes or world.reason(1) == "cannot_make_deadline"


def test_a_request_that_is_answered_however_late_is_always_let_in():
    world = make(on_late="answer")
    world.arrive("q", slo=5)
    assert world.ends == {}


def test_without_a_lane_for_any_model_nobody_is_let_in():
    world = make()
    for lane in ("la", "lb"):
        world.lane(lane, up=False)
    world.arrive("q", slo=86)
    assert not world.ends or world.outcome(1) != "rejected"
    world.arrive("q", slo=85.9)
    assert world.outcome(2) == "rejected"
    world.lane("lc", up=False)
    world.arrive("q", slo=400)
    assert world.outcome(3) == "rejected"


# --- what has begun ---------------------------------------------------------------------------------------------------


def test_models_run_answer_fail_and_come_back():
    world = make()
    world.arrive("q")
    assert sets(world) == (0, 0b111, 0, 0)
    world.finish("la", at=40)
    assert sets(world) == (0b001, 0b110, 0, 0)
    world.finish("lb", at=75, status="failed")
    assert sets(world) == (0b001, 0b100, 0b010, 0)
    world.finish("lc", at=85)
    assert on(world) == ["vote"]
    assert policy_of(world)._queries == {}


@pytest.mark.parametrize(
    ("happens", "begun"),
    [(lambda world: world.refuse("lb", at=10), True), (lambda world: world.lane("lb", up=False, at=10), False)],
)
def test_models_that_a_lane_did_not_run_wait_again_or_are_gone(happens, begun):
    world = make()
    world.arrive("q")
    happens(world)
    _, running, gone, waiting = sets(world)
    assert (running & 0b101, gone | running | waiting) == (0b101, 0b111)
    assert [running & 0b010, gone & 0b010].count(0b010) <= 1
    assert (on(world, "lb") == ["b"]) is begun


def test_a_model_that_is_left_out_is_gone():
    world = make("schemble+", options={"lone": "fastest"})
    world.arrive("q")
    policy, board = policy_of(world), world.scheduler.state.board
    query = policy._queries[1]
    assert (query.running, query.waiting()) == (0b001, 0b110)
    policy.on_gone(query.jobs[2], board)
    assert (query.gone, query.waiting(), query.running) == (0b100, 0b010, 0b001)
    policy.on_gone(query.jobs[1], board)
    assert (query.gone, query.waiting()) == (0b110, 0)


def test_what_stands_before_the_models_and_beside_them_runs_by_itself():
    world = make(nodes=NODES)
    world.arrive("q")
    assert on(world) == ["crop", "score"]
    assert policy_of(world)._queries == {}
    world.finish("k", at=5)
    assert on(world, "k", "la", "lb", "lc") == ["b", "c", "scale"]
    world.finish("k", at=12)
    assert sets(world) == (0, 0b110, 0, 0b001)  # for it came when the others were committed


# --- joins that wait --------------------------------------------------------------------------------------------------


def test_what_a_join_waited_for_its_lane_is_remembered():
    world = make(nodes=[*PLAIN, {"name": "send", "after": ["vote"]}])
    world.arrive("q")
    world.finish("la", at=40)
    world.finish("lb", at=75)
    world.arrive("third", at=84)
    latency = world.scheduler.state.board.latency("vote", "v")
    latency.typical_ns, latency.likely_ns = {1: 1 * MS}, {1: 4 * MS}
    world.finish("lc", at=85)
    assert policy_of(world)._waits == {}
    world.finish("v", at=90)
    assert on(world) == ["vote"]
    assert list(policy_of(world)._waits["q"]) == [(90 - 85 + 3) * MS]


def test_a_join_that_is_given_up_waited_until_its_lane_would_have_been_free():
    world = make()
    world.arrive("third", at=10)
    policy, board = policy_of(world), world.scheduler.state.board
    vote = job(9, policy._ensembles["q"].app, node="vote", id=7)
    vote.ready_ns = 4 * MS
    policy._join_waited(vote, 3 * MS)
    policy.on_ready(vote, board)
    policy.on_gone(vote, board)
    assert list(policy._waits["q"]) == [3 * MS, (12 - 4) * MS]
    policy._join_waited(vote, -1)
    assert policy._waits["q"].pop() == 0
    for wait in range(40):
        policy._join_waited(vote, wait)
    assert list(policy._waits["q"]) == list(range(8, 40))


# --- who is given up --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slo", "reason"), [(66, ""), (65.9999, "overloaded"), (46, "overloaded"), (45.9999, "cannot_make_deadline")]
)
def test_a_request_before_its_models_is_given_up_when_there_is_no_time_behind_its_node(slo, reason):
    """Its first node takes 5 ms on a lane that is taken for 20; then come 40 of the fastest model and 1 of the vote."""
    nodes = [{"name": "crop", "after": []}, *({"name": name, "after": ["crop"]} for name in "abc"), PLAIN[3]]
    world = make(nodes=nodes)
    world.arrive("other")
    world.arrive("q", slo=slo)
    assert (world.reason(2) if 2 in world.ends else "") == reason


def test_a_request_that_is_over_for_its_policy_is_neither_answered_nor_given_up():
    world = make()
    world.arrive("q")
    policy, board = policy_of(world), world.scheduler.state.board
    board.now_ns = 500 * MS
    (places,) = policy._places
    query = policy._queries[1]
    query.request.state = HELD
    query.answered, query.running = 1, 0
    policy._settle_all(board, places)
    assert query.request.state == HELD


def test_ensembles_on_different_lanes_hold_their_own_requests():
    nodes = [
        {"name": "crop", "after": []},
        {"name": "scale", "after": []},
        {"name": "send", "after": ["crop", "scale"], "join": "policy"},
    ]
    table = {name: {1: time, "lanes": [LANES[name]]} for name, time in TIMES.items()}
    world = Driver(
        table,
        {"q": {"node": PLAIN, "slo": "400ms"}, "r": {"node": nodes, "slo": "400ms"}},
        policy={"schemble": {}},
        lane={lane: {} for lane in sorted(set(LANES.values()))},
    )
    for app in "qrq":
        world.arrive(app)
    policy = policy_of(world)
    assert [[query.request.id for query in policy._of_places(places)] for places in policy._places] == [[1, 3], [2]]
    assert [places.apps for places in policy._places] == [{"q"}, {"r"}]


def test_why_a_request_is_late():
    world = make()
    world.arrive("q")
    policy, board = policy_of(world), world.scheduler.state.board
    app = policy._ensembles["q"].app
    for last, why in ((50, "overloaded"), (49.999999, "cannot_make_deadline")):
        query = Query(job(1, app, node="a", arrival=10).request, policy._ensembles["q"], round(last * MS))
        assert policy._why_late(query, board) == why


def test_a_late_request_that_is_answered_anyway_gets_a_time_for_its_slowest_model_behind_its_fastest():
    world = make(on_late="answer")
    world.arrive("q")
    policy, board = policy_of(world), world.scheduler.state.board
    (places,) = policy._places
    query = policy._queries[1]
    lanes = places.problem(board, {})
    for bit in (1, 2):
        query.jobs[bit] = job(bit, query.ensemble.app, node=query.ensemble.nodes[bit].name)
    policy._is_stale = False
    for now, ends, due, wanted in (
        (0, (7, 90, 80), 80, 0),
        (95, (7, 90, 80), 95, 0),
        (5, (7, 20_000, 30_000), 10_005, 0),
        (5, (7, 10_004, 30_000), 10_004, 0),
        (5, (7, None, None), 10_005, 0b110),
    ):
        board.now_ns = now * MS
        policy._renew(query, lanes, [NEVER_NS if end is None else end * MS for end in ends], places, board)
        assert (query.due_ns, query.last_ns, query.wanted) == ((due + 85) * MS, (due + 85) * MS, wanted)
    assert policy._is_stale


def test_a_policy_wakes_when_the_next_of_its_requests_is_due():
    world = make()
    world.arrive("q", slo=300)
    world.arrive("q", slo=200)
    policy, board = policy_of(world), world.scheduler.state.board
    assert policy.next_wakeup_ns(board) == round(198.8 * MS)
    board.now_ns = round(198.8 * MS)
    assert policy.next_wakeup_ns(board) == round(298.8 * MS)
    board.now_ns = round(298.8 * MS)
    assert policy.next_wakeup_ns(board) is None


@pytest.mark.parametrize("kind", ["schemble", "schemble+"])
def test_while_nothing_happens_nothing_is_planned_again(kind):
    """Two models could end in time, which is not enough for an answer: the request waits beside idle lanes."""
    world = make(kind, options={"lone": "plan"} if kind == "schemble+" else {"fast": False})
    world.arrive("q", slo=80, quality_min=0.9)
    plans = policy_of(world).figures()["plans"]
    assert (on(world), plans > 0) == ([], True)
    world.step(at=1)
    assert policy_of(world).figures()["plans"] == plans
    world.arrive("q", slo=80, quality_min=0.9)
    assert policy_of(world).figures()["plans"] > plans


def test_a_policy_that_has_to_load_a_model_knows_it():
    for resident, must in (
        (["a", "b", "c", "vote", "send", "side", "crop", "scale", "score"], False),
        (["a", "b", "vote"], True),
    ):
        memory = {name: {"memory": "90MB", "load": "40ms"} for name in TIMES}
        world = make(models=memory, resident={"cpu": resident}, device={"cpu": {"memory": "2GB"}})
        assert policy_of(world)._must_load(world.scheduler.state.board) is must


def test_a_model_is_loaded_for_those_who_are_planned_to_have_it():
    memory = {"c": {"memory": "90MB", "load": "40ms"}}
    everything = {"resident": {"cpu": [name for name in TIMES if name != "c"]}, "device": {"cpu": {"memory": "2GB"}}}
    world = make("schemble+", models=memory, options={"lone": "plan"}, **everything)
    world.arrive("q")
    assert like(LoadModel, model="c") in world.actions
    world = make("schemble+", models=memory, **everything)
    world.arrive("q")  # the fastest alone, for now
    assert like(LoadModel, model="c") not in world.actions


def test_an_ensemble_says_how_many_answers_it_gave_and_what_is_open():
    world = make("ensemble_static", options={"pick": "static", "models": ["a", "b"]})
    world.arrive("q")
    assert policy_of(world).figures() == {"plans": 0, "plans cut short": 0, "open": 1, "answers by models": {}}
    world.finish("la", at=40)
    world.finish("lb", at=75)
    world.finish("v", at=76)
    assert policy_of(world).figures() == {"plans": 0, "plans cut short": 0, "open": 0, "answers by models": {2: 1}}
