"""What is left of a request: counted by hand for one request in the middle of its pipeline."""

from __future__ import annotations

import pytest
from hand_world import Driver, app_of

from edgeserve.sched.policies.pard_local.remaining_work import Pipeline


def test_a_gather_inside_parts_runs_once_for_each_part_that_is_not_over():
    pipeline = Pipeline(
        app_of(
            [
                {"name": "outer", "fan_out": True},
                {"name": "inner", "fan_out": True},
                {"name": "work"},
                {"name": "close", "gather": True},
                {"name": "end", "gather": True},
            ]
        )
    )
    # Three outer parts: two made inner parts, of which four are done and three run; one of the two is closed.
    left = pipeline.left(live=[0, 1, 3, 0, 0], done=[1, 2, 4, 1, 0], parts={0: 3, 1: 7}, hints={})
    assert left == [0, 1000, 3000 + 1000, (2 - 1) * 1000 + 1000, 1000]
    left = pipeline.left(live=[0, 1, 3, 1, 0], done=[1, 2, 4, 0, 0], parts={0: 3, 1: 7}, hints={"inner.parts": 2.5})
    assert left == [0, 1000, 3000 + 2500, 1000 + (2 - 1) * 1000 + 1000, 1000]
    assert pipeline.left([0, 0, 0, 0, 1], [1, 3, 7, 3, 0], {0: 3, 1: 7}, {}) == [0, 0, 0, 0, 1000]


def test_a_request_that_takes_no_branch_makes_both_seem_rarer():
    def shares(route):
        driver = Driver(
            {name: {1: 1} for name in ("pick", "a", "b")},
            {
                "app": [
                    {"name": "pick", "route": "one"},
                    {"name": "a", "after": ["pick"]},
                    {"name": "b", "after": ["pick"]},
                ]
            },
            policy="pard_local",
        )
        driver.arrive("app")
        driver.finish(route=route, at=1)
        return driver.scheduler.policies[0]._pipeline_of["app"].template[1:3]

    assert shares("a") == [750, 250]  # one seen, and every branch once besides
    assert shares("") == [250, 250]


NESTED = [
    {"name": "outer", "fan_out": True},
    {"name": "left", "after": ["outer"]},
    {"name": "right", "after": ["outer"]},
    {"name": "both", "after": ["left", "right"]},
    {"name": "end", "gather": True, "after": ["both"]},
]


def test_a_join_inside_parts_runs_once_for_each_part_that_was_made_or_is_expected():
    pipeline = Pipeline(app_of(NESTED))
    # Of four parts, two have joined and one is at its join; of the fourth both branches run, so two flows lead to it.
    left = pipeline.left([0, 1, 1, 1, 0], [1, 3, 3, 2, 0], {0: 4}, {})
    assert left == [0, 1000, 1000, 1000 + 1000, 1000]
    # One branch of the last part has not begun its join and the other is over: the join still runs once.
    assert pipeline.left([0, 1, 0, 0, 0], [1, 3, 4, 3, 0], {0: 4}, {}) == [0, 1000, 0, 1000, 1000]
    # The fan-out itself runs still: as many parts as it is told, and each of them joins once.
    assert pipeline.left([1, 0, 0, 0, 0], [0, 0, 0, 0, 0], {}, {"outer.parts": 2.5}) == [1000, 2500, 2500, 2500, 1000]
    assert pipeline.left([0, 0, 0, 1, 0], [1, 4, 4, 3, 0], {0: 4}, {}) == [0, 0, 0, 1000, 1000]


def test_a_second_fan_out_multiplies_what_is_behind_it():
    pipeline = Pipeline(
        app_of(
            [
                {"name": "outer", "fan_out": True},
                {"name": "inner", "fan_out": True},
                {"name": "work"},
                {"name": "close", "gather": True},
                {"name": "end", "gather": True},
            ]
        )
    )
    hints = {"outer.parts": 3, "inner.parts": 2}
    assert pipeline.left([1, 0, 0, 0, 0], [0] * 5, {}, hints) == [1000, 3000, 6000, 3000, 1000]
    assert pipeline.left([0, 2, 1, 0, 0], [1, 1, 1, 0, 0], {0: 3, 1: 2}, hints) == [0, 2000, 1000 + 4000, 3000, 1000]
    assert pipeline.left([0, 0, 0, 0, 0], [1, 3, 6, 3, 1], {0: 3, 1: 6}, hints) == [0] * 5


def test_a_route_that_is_told_leaves_the_other_branch_out():
    pipeline = Pipeline(
        app_of([{"name": "pick", "route": "one"}, {"name": "a", "after": ["pick"]}, {"name": "b", "after": ["pick"]}])
    )
    assert [pipeline.left([1, 0, 0], [0, 0, 0], {}, {"pick.route": route}) for route in (0, 1, 2, -1)] == [
        [1000, 1000, 0],
        [1000, 0, 1000],
        [1000, 0, 0],
        [1000, 0, 0],
    ]


@pytest.mark.parametrize(("route", "expected"), [("own", 750), ("both", 500), ("", 500)])
def test_a_fork_whose_join_may_still_wait_for_another_branch_tells_nothing_without_a_job_behind_it(route, expected):
    driver = Driver(
        {name: {1: 1, "lanes": [name]} for name in ("pick", "slow", "own", "both")},
        {
            "app": [
                {"name": "pick", "route": "one", "after": []},
                {"name": "slow", "after": []},
                {"name": "own", "after": ["pick"]},
                {"name": "both", "after": ["pick", "slow"]},
            ]
        },
        policy="pard_local",
        lane={name: {} for name in ("pick", "slow", "own", "both")},
    )
    driver.arrive("app")
    driver.finish("pick", route=route, at=1)
    assert driver.scheduler.policies[0]._pipeline_of["app"].template[2] == expected
