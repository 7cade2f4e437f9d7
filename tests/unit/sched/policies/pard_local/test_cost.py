"""When cohorts end: of which nothing else shares the lanes, batch by batch, and among others."""

from __future__ import annotations

from edgeserve.sched.policies.pard_local.cost import AtNode, LaneSchedule, Schedule, Stage, forecast, one_by_one, staged


def test_stages_follow_each_other_when_lane_and_model_are_there():
    assert one_by_one([("a", 10, 30), ("b", 7, 5), ("a", 1, 30)], 20) == 30 + 10 + 7 + 1
    assert one_by_one([("b", 10, 5), ("b", 7, 90)], 20) == 90 + 7
    assert one_by_one([], 20) == 20


def chain(*nodes):
    """Nodes one after the other: (lane, batches), or with the jobs that are ready."""
    return [AtNode(node[0], node[1], [place - 1] if place else [], *node[2:]) for place, node in enumerate(nodes)]


def test_a_batch_begins_as_soon_as_its_jobs_are_there():
    eight = chain(("gpu", [(4, 40), (4, 40)]), ("host", [(1, 3)] * 8), ("gpu", [(8, 60)]))
    free = {"gpu": 0, "host": 0}
    # the function has the first four from 40 on and the others from 80 on
    assert forecast([Schedule(staged(eight), 0)], free) == [80 + 12 + 60]
    small = chain(("gpu", [(4, 40), (4, 40)]), ("host", [(1, 3)] * 8), ("gpu", [(4, 30), (4, 30)]))
    assert forecast([Schedule(staged(small), 0)], free) == [110 + 30]  # the first four go on at 80


def test_functions_are_put_together_where_nothing_begins_or_ends_in_between():
    nodes = chain(("gpu", [(6, 50)]), ("host", [(1, 3)] * 6), ("gpu", [(4, 30), (2, 20)]))
    assert [list(stage.batches) for stage in staged(nodes)] == [[50], [12, 6], [30, 20]]
    assert [list(stage.needs) for stage in staged(nodes)] == [[[]], [[(0, 1)], [(0, 1)]], [[(1, 1)], [(1, 2)]]]


def test_jobs_that_run_or_are_ready_count_for_what_follows():
    # two of six are over, three run until 25, and one waits
    nodes = [AtNode("gpu", [(1, 10)], [], 1, 3, 0), AtNode("host", [(1, 5)] * 6, [0], 2)]
    stages = staged(nodes)
    assert forecast([Schedule(stages, 0, [25])], {"gpu": 25, "host": 0}) == [25 + 15 + 5]
    only = staged([AtNode("gpu", [], [], 0, 2, 0), AtNode("gpu", [(2, 8)], [0])])
    assert forecast([Schedule(only, 0, [25])], {"gpu": 25}) == [33]


def test_parts_wait_for_their_share_of_the_batches_before():
    fan = [AtNode("gpu", [(2, 10), (2, 10)], []), AtNode("host", [(1, 1)] * 12, [0]), AtNode("gpu", [(4, 9)], [1])]
    assert forecast([Schedule(staged(fan), 0)], {"gpu": 0, "host": 0}) == [20 + 6 + 9]


def test_a_model_of_steps_begins_when_all_of_its_jobs_are_there():
    nodes = chain(("gpu", [(2, 10), (2, 10)]), ("other", [(2, 5), (2, 5)] * 3, 0, 0, -1, True))
    assert forecast([Schedule(staged(nodes), 0)], {"gpu": 0, "other": 0}) == [20 + 30]


def test_branches_run_beside_each_other_on_lanes_of_their_own():
    nodes = [AtNode("gpu", [(2, 10)], []), AtNode("host", [(2, 30)], [0]), AtNode("gpu", [(2, 12)], [0]),
             AtNode("gpu", [(2, 5)], [1, 2])]
    assert forecast([Schedule(staged(nodes), 0)], {"gpu": 0, "host": 0}) == [10 + 30 + 5]


def test_a_follower_begins_when_the_one_before_has_left_the_lane():
    stages = [Stage("gpu", [10]), Stage("host", [4]), Stage("gpu", [6])]
    first, second = Schedule(stages, 0, home="gpu"), Schedule(stages, 0, after=0, home="gpu")
    planned = LaneSchedule([first, second], {"gpu": 0, "host": 0})
    assert planned.run() == [20, 40]
    assert planned.left_ns == [20, 40] and planned.home_over_ns("gpu") == 40 and planned.home_over_ns("dsp") == 0
    together = LaneSchedule([first, Schedule(stages, 0, home="gpu")], {"gpu": 0, "host": 0})
    assert together.run() == [26, 32]  # the second's first batch fills the gap, and delays the first by 6


def test_a_join_waits_for_all_of_its_parts():
    join = [AtNode("gpu", [(2, 10), (2, 10)], []), AtNode("host", [(1, 4)], [0])]
    assert forecast([Schedule(staged(join), 0)], {"gpu": 0, "host": 0}) == [20 + 4]
