"""Where the stages of a cohort run, how long they take there, and how sure that is (``pard_local``)."""

from __future__ import annotations

import pytest
from exact_device import MS, Device, ask, model

from edgeserve.sched.policies.pard_local.remaining_work import NO_STEPS
from edgeserve.sched.protocol.events import LaneChanged

A, B, F = {"lanes": ["gpu", "dsp"]}, {"lanes": ["gpu"]}, {"lanes": ["host", "dsp"]}
WHOLE = [1000, 1000, 1000, 0, 0, 0]


class Stages(Device):
    """a (4 + 2 ms a job, up to 8) on gpu or dsp, b (3 ms a job) on the gpu alone, f (1 ms, one by one) on host or dsp,
    unless the models are others."""

    def __init__(self, **models):
        models = {"a": model(4, 2, **A), "b": model(0, 3, **B), "f": model(1, 0, 1, **F), **models}
        super().__init__(
            {
                "lane": {"host": {}, "gpu": {}, "dsp": {}},
                "model": models,
                "policy": {"p": {"kind": "pard_local", "margin": 0.0}},
                "app": {"app": {"slo": "500ms", "node": [{"name": name} for name in "abf"]}},
            }
        )
        self.board = self.scheduler.state.board
        self.lanes = self.scheduler.state.lanes
        self.costs = self.scheduler.policies[0]._stage_costs
        self.pipeline = self.scheduler.policies[0]._pipeline_of["app"]
        self.step()

    def change(self, lane, **fields):
        self.step(LaneChanged(lane, **fields))

    def lane_of(self, model, home):
        lane = self.costs.lane_of(model, home, self.board)
        return None if lane is None else lane.name

    def homes(self):
        return self.costs.homes(self.pipeline, self.board)


def test_a_stage_runs_at_home_or_else_where_it_is_fastest():
    device = Stages()
    assert [device.lane_of("a", home) for home in ("gpu", "dsp", "host")] == ["gpu", "dsp", "gpu"]
    assert device.lane_of("b", "dsp") == "gpu"
    assert device.lane_of("f", "gpu") == "host"  # of equally fast ones the first
    device.change("dsp", up=True, speed=2.0)
    assert [device.lane_of("f", home) for home in ("gpu", "host", "dsp")] == ["dsp", "host", "dsp"]
    assert device.lane_of("a", "host") == "dsp"
    device.change("dsp", up=False)
    assert [device.lane_of("f", "dsp"), device.lane_of("a", "dsp"), device.lane_of("b", "dsp")] == [
        "host",
        "gpu",
        "gpu",
    ]
    device.change("gpu", up=False)
    assert device.lane_of("a", "gpu") is None and device.costs.stage_plan("a", "gpu", device.board) is None
    assert device.costs.stages(device.pipeline, WHOLE, NO_STEPS, "gpu", device.board) is None


def test_a_home_runs_the_heaviest_model_whose_batches_save_time():
    device = Stages()
    assert device.homes() == ["gpu", "dsp"]  # b takes more for each job, and saves nothing
    device.change("gpu", up=False)
    assert device.homes() == ["dsp"]
    device.change("dsp", up=False)
    assert device.homes() == ["host"]  # what is left of a request may not need them
    device.change("host", up=False)
    assert device.homes() == []
    heavy = Stages(b=model(8, 2, **B))
    assert heavy.homes() == ["gpu"]
    assert Stages(b=model(4, 2, **B)).homes() == ["gpu", "dsp"]  # as heavy as a, which comes first
    assert Stages(a=model(0, 2, **A)).homes() == ["gpu"]  # none saves time: the heaviest is b


@pytest.mark.parametrize(("four_us", "homes"), [(36_000, ["gpu"]), (36_004, ["host", "dsp"])])
def test_a_tenth_less_in_the_largest_batch_is_what_counts_as_saving(four_us, homes):
    def sized(single, four, lanes):
        return {"engine": "synthetic", "batch": [1, 4], "expected": {"1": f"{single}us", "4": f"{four}us"}, **lanes}

    device = Stages(a=model(0, 2, **A), b=sized(10_000, four_us, B), f=sized(1000, 2000, F))
    assert device.homes() == homes


def test_another_lane_serves_a_stage_only_while_home_cannot():
    device = Stages()
    gpu, dsp, host = (device.lanes[name] for name in ("gpu", "dsp", "host"))

    def serves(lane, model, home):
        return device.costs.serves(lane, model, home, device.board)

    assert serves(gpu, "a", "gpu") and not serves(dsp, "a", "gpu")
    assert serves(host, "f", "gpu") and serves(dsp, "f", "gpu") and not serves(host, "f", "dsp")
    device.change("gpu", up=False)
    assert serves(dsp, "a", "gpu") and serves(host, "f", "gpu") and not serves(host, "f", "dsp")


def test_what_is_left_takes_its_time_from_when_the_lane_is_free():
    device = Stages()
    stages = device.costs.stages(device.pipeline, WHOLE, NO_STEPS, "gpu", device.board)
    assert [(lane, time_ns) for lane, time_ns, _ in stages] == [("gpu", 6 * MS), ("gpu", 3 * MS), ("host", 1 * MS)]
    stages = device.costs.stages(device.pipeline, [0, 1500, 0, 0, 2000, 0], {1: 3}, "gpu", device.board)
    assert stages == [("gpu", 3 * 10_500_000, 0)]  # (4.5 ms and 6 more) three times
    device.ask(ask(1, 400))
    device.now_ns = 2 * MS
    device.step()
    stages = device.costs.stages(device.pipeline, WHOLE, NO_STEPS, "gpu", device.board)
    assert [starts_ns for _, _, starts_ns in stages] == [6 * MS, 6 * MS, 2 * MS]
    ends_ns = device.costs.alone_ends_ns(device.pipeline, WHOLE, NO_STEPS, "gpu", 2 * MS, device.board)
    assert ends_ns == (6 + 6 + 3 + 1) * MS


def test_a_request_counts_as_its_share_of_full_batches():
    device = Stages()
    assert [device.costs.home_share_ns(device.pipeline, home, device.board) for home in ("gpu", "dsp", "host")] == [
        5_500_000,
        3_500_000,
        1 * MS,
    ]  # a 20 ms / 8, b 3, f 1

    def cost(*left):
        return device.costs.cost_share_ns(device.pipeline, left, device.board)

    assert cost(*WHOLE) == 6_500_000
    assert cost(2000, 1000, 500, 1000, 0, 0) == (5 + 2 + 3) * MS + 500_000
    assert cost(0, 0, 0, 1000, 0, 0) == 0
    assert cost(1000, 0, 0, -9000, 0, 0) == 0


def test_noise_adds_up_as_the_root_of_squares_and_steps_are_batches():
    device = Stages()

    def noise(left, steps=NO_STEPS):
        return device.costs.noise_ns(device.pipeline, left, steps, "gpu", device.board)

    assert noise([2000, 1000, 0, 0, 0, 0]) == 0
    for name in "ab":
        device.costs.usual(name, "gpu", device.board)._surprise_ppm = 10_000  # a tenth more or less
    assert noise([2000, 0, 1000, 0, 0, 0]) == 800_000
    assert noise([0, 1000, 0, 0, 0, 0]) == 300_000 and noise([0, 1000, 0, 0, 1000, 0]) == 600_000
    assert noise([2000, 1000, 0, 0, 0, 0], {1: 4}) == 1_000_000  # 0.64 + 4 * 0.09


def test_the_margin_is_what_the_worst_of_the_models_misses_by_and_no_more_than_asked_for():
    device = Stages()

    def margin(most_ppm, home="gpu"):
        return device.costs.margin_ppm(device.pipeline, home, most_ppm, device.board)

    usual = [device.costs.usual(name, lane, device.board) for name, lane in (("a", "gpu"), ("b", "gpu"), ("f", "host"))]
    assert margin(50_000) == 50_000  # nothing is known yet
    for item in usual[:2]:
        item._seen = 16
    assert margin(50_000) == 50_000
    usual[2]._seen = 16
    assert margin(50_000) == 0
    usual[0]._surprise_ppm, usual[1]._surprise_ppm = 400, 900
    assert margin(50_000) == 30_000 and margin(25_000) == 25_000
    usual[0]._surprise_ppm, usual[1]._surprise_ppm = 900, 400
    assert margin(50_000) == 30_000
