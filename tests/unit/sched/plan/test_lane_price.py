"""The lane's price: work of short deadlines does not crowd out what brings more for the time and can wait."""

from __future__ import annotations

import json

import pytest
from cores import run_interpreted
from hand_world import Driver

from edgeserve.sched.plan.lane_price import LanePrices

ROBOTS = """
import json
from bench import heldout
from edgeserve.sched.plan import choose
from edgeserve.sched.plan.lane_price import LanePrices
from common.heldout_mixes import draw_mix
def run():
    found = heldout.run(draw_mix("robot", {seed}, {load}, {seconds}), "plan", {seconds})
    return found.value, found.apps, found.digest
priced = run()
LanePrices.of = lambda prices, lane: 0.0
choose.FULL *= {full}
print(json.dumps([priced, run()]))
"""
"""A robot's mix with the price, and where no lane's time costs anything; with ``full`` 0 no batch waits for more
either."""


ANSWERS = """
import json
from bench import heldout
from common.heldout_worlds import draw_any
from edgeserve.sched.plan.source import Source
from edgeserve.sched.plan.steps import Steps
def run():
    return heldout.run(draw_any("shapes", 47012, 1.0, 30.0), "plan", 30.0).apps
whole = run()
Steps.lacks_ns = Source.lacks_ns
print(json.dumps([whole, run()]))
"""
"""Answers of value 5 that can wait for four seconds, beside urgent work of less, where all steps of one that is given
up count in the price, and where one does."""


@pytest.mark.worlds
def test_answers_that_are_given_up_count_with_all_of_their_steps():
    whole, one_step = json.loads(run_interpreted(ANSWERS))
    assert whole["language1"] > one_step["language1"] + 5


def robots(seed, load, seconds, full=1):
    return json.loads(run_interpreted(ROBOTS.format(seed=seed, load=load, seconds=seconds, full=full)))


@pytest.mark.worlds
def test_what_a_robot_can_put_off_is_in_time_more_often_and_its_camera_is_not_given_up():
    found = [robots(seed, 1.0, 15.0, full=0) for seed in (11, 12, 13)]  # seeds to develop on
    priced, unpriced = ([run[with_price] for run in found] for with_price in (0, 1))
    print(priced, unpriced)

    def put_off(runs):
        return sum([apps["map"] + apps["chat"] for _, apps, _ in runs])

    assert put_off(priced) > put_off(unpriced) + 9
    assert sum([value for value, _, _ in priced]) > sum([value for value, _, _ in unpriced])
    for (_, apps, _), (_, others, _) in zip(priced, unpriced):
        assert apps["camera"] > 0.8 * others["camera"]


def test_without_overload_nothing_costs():
    (_, _, priced), (_, _, unpriced) = robots(11, 0.3, 6.0)
    assert priced == unpriced


def busy(*lanes):
    """Each lane runs a long work from 60 to 260, behind a batch of the map, which brings 1.5 for its time."""
    world = Driver(
        {"map": {1: 30}, "see": {1: 10}, "long": {1: 200}},
        {
            "map": {"model": "map", "slo": "300ms", "value": 1.5},
            "see": {"model": "see", "slo": "60ms"},
            "long": {"model": "long", "slo": "9s"},
        },
        policy="plan",
        lane={name: {} for name in lanes},
    )
    world.arrive("map", count=len(lanes), slo=60)
    world.arrive("map", count=len(lanes), slo=100)
    world.arrive("long", count=len(lanes))
    for at in (30, 60):
        for name in lanes:
            world.finish(name, at=at)
    assert [work.model for work in world.on_lane.values()] == ["long"] * len(lanes)
    return world


def test_what_clients_cancel_makes_no_others_wait():
    """A frame is urgent, and could just wait for a batch of the map."""
    world = busy("l")
    world.arrive("map", at=70, count=24)
    for request_id in range(4, 28):
        world.cancel(request_id, at=225)
    world.arrive("see", at=245)
    world.arrive("map", at=259)
    world.finish("l", at=260)
    assert world.work().model == "see"


def test_frames_that_gave_way_to_newer_ones_raise_the_price():
    """A lane that ran them in time would have served both, however long the older one could have waited yet."""
    app = {"model": "see", "slo": "9s", "stream": "newest_wins"}
    world = Driver({"see": {1: 30}}, {"see": app}, policy="plan")
    world.arrive("see", stream="left")
    world.arrive("see", stream="right", at=5)
    known, board = LanePrices(), world.scheduler.state.board
    lane = board.lanes[0]
    known.serves(lane.works[0], 1.0)
    (waiting,) = world.scheduler.policies[0].queued()
    world.arrive("see", stream="right", at=10)
    assert world.reason(waiting.request.id) == "superseded"
    known.gone(waiting, waiting.request.cost_share_ns, board)
    assert known.of(lane) > 0.0


@pytest.mark.parametrize("aside", [0, 2])
def test_a_batch_that_was_chosen_from_itself_alone_teaches_nothing(aside):
    """A long work ran alone, and others like it were given up. Whether or not requests wait for another lane, a frame
    is not put off for that, though the map brings twice as much for its time."""
    apps = {
        "map": {"model": "map", "slo": "300ms", "value": 2.0},
        "see": {"model": "see", "slo": "60ms"},
        "long": {"model": "long", "slo": "410ms", "value": 1.5},
        "aside": {"model": "aside", "slo": "9s"},
    }
    models = {name: {1: ms, "lanes": ["l"]} for name, ms in (("map", 30), ("see", 10), ("long", 200))}
    models["aside"] = {1: 900, "lanes": ["m"]}
    world = Driver(models, apps, policy="plan", lane={"l": {}, "m": {}})
    world.arrive("aside", count=aside)
    world.arrive("long")
    world.arrive("long", at=10, count=6)
    world.arrive("see", at=215)
    world.arrive("map", at=229)
    assert len(world.ends) == 6  # the first one took longer than expected
    world.finish("l", at=230)
    assert world.work("l").model == "see"


def test_what_lacked_is_shared_by_the_lanes_that_could_have_run_it():
    """Six requests of two lanes are given up, and three of one lane, or while the other one is down."""
    prices = []
    for count, lanes, down in ((6, ("l0", "l1"), ""), (3, ("l0",), ""), (3, ("l0", "l1"), "l1")):
        world = busy(*lanes)
        known, state = LanePrices(), world.scheduler.state
        by_name = {lane.name: lane for lane in state.board.lanes}
        for name in lanes:
            known.serves(by_name[name].works[0], 1.0)
        if down:
            world.lane(down, up=False, at=65)
        world.arrive("long", at=70, count=count, slo=450)
        waiting = list(world.scheduler.policies[0].queued())
        world.pass_time(600)
        assert {job.request.state for job in waiting} == {"dropped"}
        for job in waiting:
            known.gone(job, job.request.cost_share_ns, state.board)
        prices.append([known.of(by_name[name]) for name in lanes])
    both, alone, left = prices
    assert alone[0] > 0.0 and both == pytest.approx(2 * alone, rel=0.1)  # in smaller steps: a little less
    assert left == [*alone, 0.0]
