"""What is left of a request: counted by hand for one request in the middle of its pipeline."""

from __future__ import annotations

from hand_world import Driver, app_of

from edgeserve.sched.policies.pard_local.remaining_work import Pipeline


def test_a_gather_inside_parts_runs_once_for_each_part_that_is_not_over():
    pipeline = Pipeline(app_of([{"name": "outer", "fan_out": True}, {"name": "inner", "fan_out": True},
                                {"name": "work"}, {"name": "close", "gather": True}, {"name": "end", "gather": True}]))
    # Three outer parts: two made inner parts, of which four are done and three run; one of the two is closed.
    left = pipeline.left(live=[0, 1, 3, 0, 0], done=[1, 2, 4, 1, 0], parts={0: 3, 1: 7}, hints={})
    assert left == [0, 1000, 3000 + 1000, (2 - 1) * 1000 + 1000, 1000]
    left = pipeline.left(live=[0, 1, 3, 1, 0], done=[1, 2, 4, 0, 0], parts={0: 3, 1: 7}, hints={"inner.parts": 2.5})
    assert left == [0, 1000, 3000 + 2500, 1000 + (2 - 1) * 1000 + 1000, 1000]
    assert pipeline.left([0, 0, 0, 0, 1], [1, 3, 7, 3, 0], {0: 3, 1: 7}, {}) == [0, 0, 0, 0, 1000]


def test_a_request_that_takes_no_branch_makes_both_seem_rarer():
    def shares(route):
        driver = Driver({name: {1: 1} for name in ("pick", "a", "b")}, {"app": [
            {"name": "pick", "route": "one"}, {"name": "a", "after": ["pick"]}, {"name": "b", "after": ["pick"]}]},
            policy="pard_local")
        driver.arrive("app")
        driver.finish(route=route, at=1)
        return driver.scheduler.policies[0]._pipeline_of["app"].template[1:3]
    assert shares("a") == [750, 250]  # one seen, and every branch once besides
    assert shares("") == [250, 250]
