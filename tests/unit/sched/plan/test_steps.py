"""The language models of the plan: who shares a batch, who joins between two steps, who goes to a slower lane."""

from __future__ import annotations

import math
import statistics

import pytest
from hand_world import MS, Driver, ids, like, ran
from scenarios import scenario_of

from edgeserve.sched.protocol.actions import CutBatch
from edgeserve.sim.run import simulate

STEPS = {1: 10, 2: 10, 3: 10, 4: 10}  # four fill the device
LINEAR = {1: 10, 2: 19, 3: 28, 4: 36}  # four at once bring hardly more per time, and all of them late
TOKEN_BYTES = 10


def world_of(
    slots=4,
    state_memory="",
    lm=None,
    turn_tokens=0,
    models=None,
    apps=None,
    lane=None,
    device=None,
    policy="plan",
    **app,
):
    keys = {"state_memory": state_memory} if state_memory else {}
    if device is not None:
        keys["lanes"] = list(lane)
    return Driver(
        {"lm": {**(lm or STEPS), **keys}, **(models or {})},
        {"chat": {"model": "lm", "slo": "100s", "on_late": "answer", **app}, **(apps or {})},
        policy=policy,
        lane=lane or {"gpu": {}},
        **({} if device is None else {"device": device}),
        sequences={"lm": (10_000, TOKEN_BYTES, slots, turn_tokens)},
    )


def ask(world, *steps, at=None, **fields):
    """Requests whose answers are predicted to have so many steps, each in a step of its own at the same time."""
    done = []
    for count in steps:
        done += world.arrive("chat", at=at, hints={"steps": float(count), "tokens": 10.0}, **fields)
    return done


def batch_of(world, lane="gpu"):
    work = [work for work in world.on_lane.values() if work.lane == lane]
    return ids(work[0].jobs) if work else []


def goes_on(world, at, steps=1, **fields):
    """The batch ends after so many steps, and its answers are not whole."""
    return world.finish(at=at, status="unfinished", steps=steps, state_bytes=100 + 10 * steps, **fields)


def figures(world):
    return world.scheduler.policies[0].figures()


# --- who joins --------------------------------------------------------------------------------------------------------


def test_the_shortest_of_equal_worth_go_first():
    world = world_of()
    ask(world, 5)
    ask(world, 50, 10, 90, 20, 30, at=1)
    world.finish(at=50, steps=5)
    assert batch_of(world) == [3, 5, 6, 2]


def test_a_more_urgent_class_goes_first_whatever_its_length():
    world = world_of(slots=1)
    ask(world, 5)
    ask(world, 10, at=1)
    ask(world, 50, at=1, priority_class="critical")
    world.finish(at=50, steps=5)
    assert batch_of(world) == [3]


def test_an_answer_of_more_value_goes_first():
    world = world_of(slots=1)
    ask(world, 5)
    ask(world, 10, at=1)
    ask(world, 20, at=1, value=5.0)
    world.finish(at=50, steps=5)
    assert batch_of(world) == [3]


def test_where_prompts_are_read_in_turns_no_group_is_waited_for():
    whole, turns = world_of(), world_of(turn_tokens=8)
    for world in (whole, turns):
        ask(world, 20)
        ask(world, 20, 20, at=5)
        goes_on(world, at=10)
        assert len(batch_of(world)) == 3
    assert ask(whole, 20, at=15) == []
    assert ask(turns, 20, at=15) == [like(CutBatch)]


def test_clients_take_turns_and_what_runs_counts():
    world = world_of()
    ask(world, 20, client="flood")
    ask(world, 20, 20, at=5, client="flood")
    ask(world, 20, 20, 20, at=5, client="other")
    goes_on(world, at=10)
    assert sorted(batch_of(world)) == [1, 2, 4, 5]  # one of the flood's runs, so two of the other's go first


def test_no_more_answers_join_than_bring_most_in_time():
    for slo, found in (("300ms", [2]), ("100s", [2, 3, 4, 5])):
        world = world_of(on_late="drop", slo=slo, lm=LINEAR)
        ask(world, 5)
        ask(world, 20, 20, 20, 20, at=1)
        world.finish(at=50, steps=5)
        assert batch_of(world) == found


def test_a_batch_is_not_cut_for_answers_that_would_make_its_own_late():
    for slo, cut in (("300ms", []), ("100s", [like(CutBatch)])):
        world = world_of(on_late="drop", slo=slo, lm=LINEAR, turn_tokens=8)
        ask(world, 20)
        assert [action for action in ask(world, 20, at=1) if isinstance(action, CutBatch)] == cut


def test_nothing_is_cut_where_others_would_find_no_slot_or_no_memory():
    world = world_of(slots=1)
    ask(world, 20)
    assert ask(world, 20, at=5) == []
    small = world_of(state_memory="500B")  # a sequence of 30 tokens takes 300 bytes
    ask(small, 20)
    assert ask(small, 20, at=5) == []
    small.finish(at=200, steps=20)
    assert batch_of(small) == [2]


def test_what_finds_no_memory_does_not_keep_the_lane_from_others():
    world = world_of(
        state_memory="500B",
        models={"m": {1: 10}},
        apps={"frames": {"model": "m", "slo": "10s"}},
        lane={"gpu": {}, "gpu1": {}},
    )
    ask(world, 20)
    ask(world, 20)
    assert world.arrive("frames") == [ran("m", 3)]


# --- beside others ----------------------------------------------------------------------------------------------------


def beside(turn_tokens=0, **frames):
    return world_of(
        turn_tokens=turn_tokens, models={"m": {1: 10}}, apps={"frames": {"model": "m", "slo": "100ms", **frames}}
    )


def test_a_batch_goes_on_while_nothing_else_waits_and_is_cut_when_something_comes():
    world = beside()
    ask(world, 20)
    assert world.work().steps_max == 20
    assert world.arrive("frames", at=5) == [like(CutBatch)]
    goes_on(world, at=10)
    assert batch_of(world) == [2]


def test_a_step_at_a_time_runs_while_others_of_its_class_wait():
    world = beside(slo="100s")
    ask(world, 20, slo=320)
    world.arrive("frames", at=5)
    goes_on(world, at=10)
    assert batch_of(world) == [1] and world.work().steps_max == 1, "the frame has time, the answer has not"


@pytest.mark.parametrize(("slo", "begun"), [("60ms", [12, 13, 14]), ("400ms", [12, 13, 14, 15])])
def test_fewer_prompts_are_read_at_once_beside_critical_requests(slo, begun):
    """Four answers begin with 108 ms, three with 84; a critical request every 30 ms takes 2."""
    loop = {"loop": {"model": "loop", "slo": slo, "class": "critical"}}
    world = world_of(lm=LINEAR, models={"loop": {1: 2}}, apps=loop)
    for at in range(0, 300, 30):
        world.arrive("loop", at=at)
        world.finish(at=at + 2)
    world.arrive("loop", at=300)
    ask(world, 20, 20, 20, 20, at=301)
    world.finish(at=302)
    assert batch_of(world) == begun


@pytest.mark.parametrize(("breaks", "goes_first"), [(0, "patient"), (3, "chat")])
def test_an_answer_that_others_interrupt_cannot_wait_as_long(breaks, goes_first):
    """Twelve steps, each followed by so many urgent requests of 10 ms; then one that has time."""
    world = world_of(
        on_late="drop",
        models={"now": {1: 10}, "m": {1: 10}},
        apps={"now": {"model": "now", "slo": "25ms"}, "patient": {"model": "m", "slo": "400ms"}},
    )
    ask(world, 40, slo=1200)
    at = 0
    for _ in range(12):
        at += 10
        for place in range(breaks):
            world.arrive("now", at=at - 1, slo=12 + 10 * place)
        goes_on(world, at=at)
        while batch_of(world) != [1]:
            at += 10
            world.finish(at=at)
    world.arrive("patient", at=at + 9)
    goes_on(world, at=at + 10)
    assert world.work().model == {"patient": "m", "chat": "lm"}[goes_first]


def test_answers_that_begin_anew_after_a_break_were_not_kept_waiting():
    """The answer before was cancelled between two steps; then no request came for a minute."""
    world = world_of(on_late="drop", models={"m": {1: 10}}, apps={"patient": {"model": "m", "slo": "400ms"}})
    ask(world, 40, slo=2000)
    world.arrive("patient", at=9, slo=12)
    goes_on(world, at=10)
    world.cancel(1)
    world.finish(at=20)
    ask(world, 40, at=60_000, slo=1200)
    for at in range(60_010, 60_030, 10):
        goes_on(world, at=at)
    world.arrive("patient", at=60_035)
    goes_on(world, at=60_040)
    assert world.work().model == "m"


def test_frames_that_come_during_a_step_are_in_time_behind_it():
    """Answers of some 40 steps of 10 ms beside two cameras, one of them patient."""
    world = scenario_of(
        {"lm": {"batch": [1, 2, 4]}, "see": {1: 8, 2: 11, 4: 17}, "map": {1: 10, 4: 20}},
        {
            "chat": {"model": "lm", "slo": "1200ms"},
            "frames": {"model": "see", "slo": "60ms"},
            "maps": {"model": "map", "slo": "400ms"},
        },
        {
            "chat": {"rate": 4, "hints": {"words": {"lognormal": [40.0, 0.4]}}},
            "frames": {"rate": 40},
            "maps": {"rate": 40},
        },
        "plan",
        seconds=6,
        lane={"gpu": {}},
        truth={
            "lm": {
                "steps_hint": "words",
                "steps_max": 200,
                "batching": "continuous",
                "context": 2000,
                "told": True,
                "prefill_token": "0.1ms",
                "predict": {"rho": 0.9},
                "step": {"full": "10ms", "saturates": 4, "alone": 0.75},
            }
        },
    )
    ended = [end for seed in (1, 2) for end in simulate(world, seed, ()).world.ended]
    for app in ("chat", "frames", "maps"):  # 98, 99 and 100; 98, 63 and 71 if a step is expected to take as long as all
        found = [end.in_time for end in ended if end.request.app == app]
        assert 100.0 * sum(found) / len(found) > 90, app


def test_an_answer_begins_before_the_next_of_its_stream_is_expected():
    world = world_of(
        models={"m": {1: 20}, "long": {1: 90}},
        apps={"frames": {"model": "m", "slo": "250ms"}, "long": {"model": "long", "slo": "9s"}},
        on_late="drop",
        slo="1s",
        stream="newest_wins",
        value=3.0,
    )
    known = {"steps": 3.0, "steps_sd": 0.0, "tokens": 10.0}
    for at in range(0, 1200, 100):
        world.arrive("chat", at=at, stream="s", hints=known)
        world.finish(at=at + 40, steps=3)
    world.arrive("long", at=1195)
    world.arrive("chat", at=1200, stream="s", hints=known)
    world.arrive("frames", at=1201)
    world.finish(at=1285)
    assert world.work().model == "lm", "the next one is expected from 1294 on"


def test_background_work_cuts_nothing():
    world = beside(slo="10s", **{"class": "background"})
    ask(world, 20)
    assert world.arrive("frames", at=5) == []


def test_other_nodes_of_an_app_of_a_language_model_are_plain():
    world = Driver(
        {"find": {1: 10, 2: 12}, "lm": STEPS},
        {"help": {"slo": "10s", "node": [{"name": "find"}, {"name": "lm"}]}},
        policy="plan",
        lane={"gpu": {}},
        sequences={"lm": (1000, TOKEN_BYTES, 4)},
    )
    assert world.arrive("help", count=2) == [ran("find", 1, 2)]
    world.finish(at=12)
    assert batch_of(world) == [1, 2] and world.work().model == "lm"
    world.finish(at=300, steps=20)
    world.over()


def test_works_that_are_lost_or_refused_begin_again():
    world = world_of(on_late="drop")
    ask(world, 20)
    world.refuse(at=1)
    assert batch_of(world) == [1]
    goes_on(world, at=100, steps=10)
    world.lane("gpu", up=False, at=110)
    world.lane("gpu", at=120)
    assert batch_of(world) == [1], "from its prompt on"
    world.finish(at=400, steps=10)
    world.over()


# --- lanes ------------------------------------------------------------------------------------------------------------

TWO = {"gpu": {"device": "gpu"}, "cpu": {"device": "host"}}
RTLM = {"rtlm": {"side_lanes": ["cpu"], "prefill_steps": 0.0, "tau": 30.0}}
both = pytest.mark.parametrize("policy", ["plan", RTLM], ids=["plan", "rtlm"])


def two_lanes(slower, lane=None, device=None, **app):
    world = world_of(lane=lane or TWO, device=device or {"gpu": {}, "host": {}}, slo="1000s", **app)
    world.scheduler.state.latency["lm", "cpu"].set_speed(1.0 / slower)
    return world


def crowd(world, at=10):
    """A full main lane, and a long answer that would end earlier on a side lane of half the speed."""
    ask(world, 20, 20, 20, 20, at=at)
    if world.of(CutBatch):
        goes_on(world, at=at + 1, lane="gpu")
    ask(world, *[25] * 12, at=at + 10)
    ask(world, 100, at=at + 11)


@both
def test_a_long_answer_goes_to_the_slower_lane_only_where_it_ends_there_earlier(policy):
    for slower, expected in ((2.0, True), (50.0, False)):
        world = two_lanes(slower, policy=policy)
        crowd(world)
        assert bool(batch_of(world, "cpu")) is expected, slower


def report(world, load, until, at):
    """A monitor reports every second."""
    for now in range(at, until + 1, 1000):
        world.device("host", load=load, at=now)


@both
def test_a_busy_processor_keeps_long_answers_on_the_main_lane_and_an_idle_one_takes_them_again(policy):
    for load, expected in ((0.0, True), (1.0, False)):
        world = two_lanes(
            2.0, policy=policy, lane={"gpu": TWO["gpu"], "cpu": {"device": "host", "threads": 4, "nice": 10}}
        )
        report(world, load, 3000, at=0)
        crowd(world, at=3001)
        assert bool(batch_of(world, "cpu")) is expected, load
        left = figures(world)["processor left to side lanes"]["cpu"]
        assert left == (1.0 if expected else pytest.approx(0.097, abs=0.01))
    report(world, 0.0, 10_000, at=4000)
    assert batch_of(world, "cpu")


@both
def test_little_memory_keeps_long_answers_on_the_main_lane_until_it_is_back(policy):
    world = two_lanes(2.0, policy=policy, device={"gpu": {}, "host": {"headroom": "1kB"}})
    world.device("host", free=2000, at=1)  # an answer of 110 tokens takes 1100 bytes
    crowd(world)
    assert not batch_of(world, "cpu")
    world.device("host", free=2200, at=30)
    assert batch_of(world, "cpu")


@pytest.mark.parametrize(("on_late", "sent"), [("drop", True), ("answer", False)])
def test_answers_of_one_length_go_to_the_slower_lane_where_only_it_is_in_time(on_late, sent):
    world = world_of(lane=TWO, device={"gpu": {}, "host": {}}, on_late=on_late, slo="500ms")
    world.scheduler.state.latency["lm", "cpu"].set_speed(0.5)
    ask(world, 20, 20, 20, 20)
    ask(world, 20, 20, 20, at=10)
    assert batch_of(world, "cpu") == [], "the main lane is in time for them"
    ask(world, *[20] * 12, at=11)
    assert bool(batch_of(world, "cpu")) is sent


@both
def test_the_slower_lane_takes_everything_while_no_other_works_and_answers_go_on_there(policy):
    world = two_lanes(50.0, policy=policy)
    ask(world, 20)
    assert batch_of(world) == [1]
    world.lane("gpu", up=False, at=100)
    assert batch_of(world, "cpu") == [1]  # from its prompt on: its state can be computed again
    ask(world, 10, at=101)
    while world.on_lane:
        world.finish("cpu", at=world.now_ms + 5000, steps=20)
    assert world.outcome(1) == "completed" and world.outcome(2) == "completed"


# --- what is learnt, and what is given up -----------------------------------------------------------------------------


def test_batches_that_read_prompts_do_not_teach_what_a_step_takes():
    world = world_of()
    ask(world, 20)
    world.finish(at=1000, steps=20)  # 80 steps for the prompt
    assert world.scheduler.state.latency["lm", "gpu"].typical_ns[1] == 10 * MS
    assert figures(world)["prefill_steps"]["lm on gpu"] > 4.0
    for index in range(1, 24):  # but where nothing else tells, they do
        ask(world, 20, at=2000 * index)
        world.finish(at=2000 * index + 1000, steps=20)
    assert world.scheduler.state.latency["lm", "gpu"].typical_ns[1] == 50 * MS


def test_what_reading_prompts_takes_is_learnt():
    world = world_of()
    for index in range(9):
        ask(world, 20, at=1000 * index)
        assert index or world.work().expected_ns == (2 + 20) * 10 * MS
        world.finish(at=1000 * index + 200, steps=20)
    ask(world, 20, at=20_000)
    learnt = figures(world)["prefill_steps"]["lm on gpu"]
    assert 0.0 < learnt < 0.5
    assert world.work().expected_ns == pytest.approx((learnt + world.work().steps_max) * 10 * MS, abs=MS // 10)


def test_a_batch_that_is_longer_than_predicted_comes_back_to_be_predicted_again():
    world = world_of()
    ask(world, 10)
    assert world.work().steps_max == 10
    goes_on(world, at=100, steps=10)
    assert ids(world.work().jobs) == [1] and world.work().steps_max == 8
    for index in range(10):
        goes_on(world, at=180 + 80 * index, steps=8)
    assert world.work().steps_max > 8  # 90 steps: the longer it is, the longer it is expected to go on
    world.finish(at=2000, steps=5)
    world.over()


def test_answers_declared_too_long_are_served_and_their_lengths_learnt():
    world = world_of(on_late="drop", slo="400ms")
    for index in range(8):  # 60 steps of 10 ms would be late; they need 20
        ask(world, 60, at=1000 * index)
        world.finish(at=1000 * index + 200, steps=20)
        assert world.outcome(index + 1) == "completed"
    assert figures(world)["lengths"]["chat/lm"]["factor"] < 0.6


def test_answers_that_are_learnt_to_be_too_long_are_given_up_but_not_for_ever():
    world = world_of(on_late="drop", slo="400ms")
    for index in range(40):  # declared to be in time, and never so
        ask(world, 20, at=1000 * index)
        if world.on_lane:
            world.finish(at=1000 * index + 900, steps=90)
    outcomes = [world.outcome(index + 1) for index in range(40)]
    assert "dropped" in outcomes[-8:] and "completed" in outcomes[-10:]
    for index in range(40, 58):  # the cause is over
        ask(world, 20, at=1000 * index)
        if world.on_lane:
            world.finish(at=1000 * index + 100, steps=10)
    assert "completed" in [world.outcome(index + 1) for index in range(40, 58)][:9]


@pytest.mark.parametrize(
    ("answers", "at", "kept"),
    [(4, 200, True), (4, 201, False), (0, 201, True), (0, 290, True), (0, 290.01, False)],
)
def test_an_answer_that_has_begun_is_given_up_when_what_is_left_will_not_be_in_time(answers, at, kept):
    """Due at 300 ms, ten of 20 steps of 10 ms made: as believed until 200 ms, for certain when not a step fits."""
    world = world_of(on_late="drop", slo="1s")
    for index in range(answers):
        ask(world, 5, at=1000 * index)
        world.finish(at=1000 * index + 50, steps=5)
    start = world.now_ms = 1000 * answers
    world.arrive("chat", slo=300, hints={"steps": 20.0, "steps_sd": 0.0, "tokens": 10.0})
    world.step(
        world.finished(at=start + at, took=100, status="unfinished", steps=10, state_bytes=200, hints={"steps": 10.0})
    )
    assert bool(batch_of(world)) is kept


def test_what_is_written_counts_where_a_part_is_an_answer():
    world = world_of(on_late="partial", slo="1s")
    for index in range(4):
        ask(world, 5, at=1000 * index)
        world.finish(at=1000 * index + 50, steps=5)
    ask(world, 20, at=5000, slo=300)
    world.begin(5, at=5100)
    goes_on(world, at=5250, steps=10)  # five more steps fit
    assert batch_of(world) == [5]
    goes_on(world, at=5300, steps=5)
    world.pass_time(5400)
    assert world.outcome(5) == "completed"


def test_one_request_that_ends_with_several_parts_is_given_up_once():
    world = Driver(
        {"cut": {1: 1, "options": {"fan_out": [3, 3]}}, "lm": STEPS, "put": {1: 1}},
        {
            "book": {
                "slo": "200ms",
                "node": [{"name": "cut", "fan_out": True}, {"name": "lm"}, {"name": "put", "gather": True}],
            }
        },
        policy="plan",
        sequences={"lm": (1000, TOKEN_BYTES, 4)},
    )
    world.arrive("book")
    world.finish(at=1, parts=3)
    assert len(world.work().jobs) == 3
    goes_on(world, at=195, steps=2)
    assert world.outcome(1) == "dropped"
    world.over()


# --- the numbers of a refusal -----------------------------------------------------------------------------------------


def lacked(world, request_id):
    """The shortest deadline of which a refusal said that it would do, in milliseconds."""
    return world.ends[request_id].shortfall.slo_ns_min / MS


@pytest.mark.parametrize(("told", "middle"), [(True, math.log(20) - 0.5**2 / 2), (False, math.log(64))])
def test_the_deadline_that_would_do_is_that_of_an_answer_of_which_nine_of_ten_are_no_longer(told, middle):
    world = world_of(on_late="drop")
    world.arrive("chat", slo=9, hints={"tokens": 10.0, **({"steps": 20.0, "steps_sd": 0.5} if told else {})})
    steps = math.exp(middle + 0.5 * statistics.NormalDist().inv_cdf(0.9))
    assert lacked(world, 1) == pytest.approx((2 + steps) * 10, abs=0.1)


def test_the_deadline_that_would_do_counts_the_wait_for_a_place():
    world = world_of(on_late="drop")
    ask(world, 40, 40, 40, 40)
    ask(world, 30, 30, at=1)
    known = {"steps": 20.0, "steps_sd": 0.0, "tokens": 10.0}
    world.arrive("chat", at=2, slo=9, hints=known)
    assert lacked(world, 7) > (40 + 20) * 10  # four run and two wait
    world.arrive("chat", at=3, slo=lacked(world, 7), hints=known)
    world.finish(at=400, steps=40)
    assert 8 in batch_of(world)


@pytest.mark.parametrize(("takes", "first"), [(30, "dense"), (60, "lm")])
def test_a_critical_answer_leaves_the_node_behind_it_its_part_of_the_slack(takes, first):
    models = {"begun": {1: 5}, "lm": {1: 5}, "check": {1: 5}, "dense": {1: takes}}
    critical = {"node": [{"name": "lm"}, {"name": "check", "after": ["lm"]}], "class": "critical"}
    apps = {"begun": "begun", "chat": critical, "dense": {"model": "dense", "value": 10.0}}
    world = Driver(models, apps, policy="plan", sequences={"lm": (1000, TOKEN_BYTES, 4)})
    for app in apps:
        world.arrive(app, hints={"lm.steps": 1.0} if app == "chat" else {})
    world.finish(at=5)
    assert world.work().model == first
