"""The replication of Orloj: its traces are what they claim, and its small world ends requests as the simulator does."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from replicate.orloj import cases, systems
from replicate.orloj import run as script

from edgeserve.loop.drive import drive
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.protocol.actions import Outcome
from edgeserve.sched.requests.graph import App
from edgeserve.sim.host import IdealHost
from edgeserve.sim.reference_model import ReferenceModel
from edgeserve.sim.run import setting_of
from edgeserve.sim.scenario import parse_scenario
from edgeserve.sim.truth import TrueResults, TrueTimes
from edgeserve.sim.workload import Arrival
from edgeserve.sim.world import SimWorld

pytestmark = pytest.mark.nightly

TWO_MODAL = cases.modes(2)


# --- traces ---------------------------------------------------------------------------------------------------------


def test_arrivals_have_exactly_the_rate_and_come_in_order():
    times = cases.arrivals(random.Random("a"), 20.0, 0.2, 3000)
    assert len(times) == 3000 and times == sorted(times)
    assert times[-1] == 150 * 10**9


def test_rates_have_a_gamma_marginal_and_follow_the_last_window():
    quantiles = cases.gamma_quantiles(0.4)
    assert statistics.fmean(quantiles) == pytest.approx(1.0, abs=0.002)
    assert statistics.pstdev(quantiles) == pytest.approx(0.4, abs=0.005)
    assert quantiles[len(quantiles) // 2] == pytest.approx(0.947, abs=0.003)  # the median of Gamma(6.25) over 6.25
    drawn = cases.rates(random.Random("b"), 0.2)
    rates = [next(drawn) for _ in range(20_000)]
    assert statistics.fmean(rates) == pytest.approx(1.0, abs=0.02)
    assert statistics.pstdev(rates) == pytest.approx(0.2, abs=0.01)
    products = [(a - 1.0) * (b - 1.0) for a, b in zip(rates, rates[1:])]
    assert statistics.fmean(products) / 0.04 == pytest.approx(0.8, abs=0.05)


def test_the_cases_are_those_of_the_tables():
    assert {case.name for case in cases.CASES} == {case for case, _ in cases.paper_rates(2, 3)["orloj"]}
    assert [item.mean for item in cases.modes(3).classes] == [50.0, 75.0, 100.0]
    assert all(sum(item.weight for item in case.classes) == pytest.approx(1.0) for case in cases.CASES)


def test_another_rate_changes_arrivals_alone():
    law = cases.LAWS["PB"]
    trace, faster = cases.make_trace(law, TWO_MODAL, 901), cases.make_trace(law, TWO_MODAL, 901, rate=24.0)
    assert (trace.lengths_ns, trace.classes, trace.alone_ns) == (faster.lengths_ns, faster.classes, faster.alone_ns)
    assert faster.at_ns[-1] == pytest.approx(trace.at_ns[-1] / 2)
    assert min(trace.lengths_ns) == 10**6  # u = l - 40 would be negative for some


def test_the_deadline_is_counted_from_the_time_alone():
    trace = cases.make_trace(cases.LAWS["PA"], TWO_MODAL, 901)
    alone_ms = sorted(60.0 + ns / 1e6 for ns in trace.lengths_ns)
    assert trace.p99_alone_ns() / 1e6 == pytest.approx(alone_ms[2969])
    assert 80.0 < alone_ms[2969] < 84.0  # 60 + 0.2 * (100 + two deviations of 5)


def test_the_profile_says_c0_plus_k_times_the_mean_length_and_no_quantiles():
    case = cases.two_peaks("x", 0.75, 1, 1)
    trace = cases.make_trace(cases.LAWS["PD"], case, 901)
    lane = cases.profile_of(trace).lanes[cases.LANE]
    mean_ms = 10.0 + 1.8 * (0.75 * 50 + 0.25 * 100 - 50)
    for size in (1, 4, 16):
        assert lane.timings[size].mean_ns / 1e6 == pytest.approx(10.0 + size * mean_ms, rel=0.03)
        assert lane.timings[size].quantiles_ns == ()
    assert sorted(lane.alone) == ["class0", "class1"] and len(lane.alone["class0"]) == 1500
    assert lane.fixed_ns == 10 * 10**6


def test_measured_lengths_are_read(tmp_path):
    path = tmp_path / "alone.csv"
    path.write_text("# a comment\ncase,class,alone_ms\nx,short,10\nx,short,12\nx,long,40\ny,any,20\n")
    laws = cases.measured_laws(str(path))
    assert [(law.name, law.fixed_ms) for law in laws] == [("x", 5.0), ("y", 10.0)]
    assert [round(item.weight, 3) for item in laws[0].cases[0].classes] == [0.667, 0.333]
    trace = cases.make_trace(laws[0], laws[0].cases[0], 901)
    assert {ns / 1e6 for ns in trace.lengths_ns} == {5.0, 7.0, 35.0}
    assert laws[1].rate == pytest.approx(0.9 / 20.0 * 1000)
    (tmp_path / "alone.json").write_text('{"cases": {"x": {"short": [10, 12]}}, "laws": {"x": {"fixed_ms": 3}}}')
    assert cases.measured_laws(str(tmp_path / "alone.json"))[0].fixed_ms == 3


# --- runs -----------------------------------------------------------------------------------------------------------


class Replayed:
    """The requests of a trace as a source of the simulator's world."""

    name = kind = "trace"
    again = 0.0

    def __init__(self, requests):
        self.config, self.serial, self._requests = self, 0, requests

    def next_open(self):
        following = self._requests[self.serial : self.serial + 1]
        return Arrival(following[0].arrival_ns) if following else None

    def first(self):
        return [(self.next_open(), "trace")]

    def request(self, request_id, arrival, client):
        self.serial += 1
        return self._requests[self.serial - 1]


def simulated(system, trace, factor):
    """The same run in ``edgeserve/sim``, with its reference model."""
    slo_ns = round(factor * trace.p99_alone_ns())
    scenario = parse_scenario(systems.scenario_table(system, trace, slo_ns))
    config, profiles = scenario.config, [cases.profile_of(trace)]
    setting = setting_of(config, profiles)
    requests = cases.requests_of(trace, slo_ns, "answer" if system.answers_late else "drop")
    draw = random.Random(f"{trace.law.name}/{trace.case.name}/{trace.at_ns[-1]}/times")
    world = SimWorld(
        config,
        [Replayed(requests)],
        TrueTimes(config, scenario.truths, profiles, 0.0, draw),
        TrueResults(config, scenario.truths, 0),
        ReferenceModel(config, setting.footprints, setting.resident),
        duration_ns=trace.at_ns[-1] + 1,
        host=IdealHost(scenario.run.step_cost_ns, scenario.run.event_cost_ns),
    )
    drive(build_scheduler(config, profiles, measured={}), world)
    world.reference_model.closed(world.now_ns)
    ended = {}
    for item in world.ended:
        late = item.end_ns > item.request.deadline_ns
        reason = ("late" if late else "in time") if item.outcome == Outcome.COMPLETED else item.reason
        ended[reason] = ended.get(reason, 0) + 1
    return ended, world.lanes[cases.LANE].works


LAWS = [cases.LAWS["PA"], cases.LAWS["PD"], cases.static_law("resnet-imagenet", "resnet50_v2")]
SYSTEMS = [
    system
    for system in systems.SYSTEMS
    if system.name in ("Clipper", "Nexus, early drop", "Clockwork, fixed mean", "edf")
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_the_small_world_ends_requests_as_the_simulator_does(law, system):
    trace = cases.make_trace(law, law.cases[0], 901, count=200)
    result = systems.simulate(system, trace, cases.profile_of(trace), 2.0)
    ended = {**result.ended, "in time": result.in_time, "late": result.late}
    ours = {reason: count for reason, count in ended.items() if count}
    assert (ours, result.batches) == simulated(system, trace, 2.0)
    assert sum(ended.values()) == 200


def test_no_hint_of_a_trace_is_clipped():
    trace = cases.make_trace(cases.LAWS["PD"], TWO_MODAL, 901, count=50)
    table = systems.scenario_table(systems.SYSTEMS[0], trace, 10**9)
    app = App(parse_scenario(table).config.apps[cases.app_name(0)], "p")
    for request in cases.requests_of(trace, 10**9):
        assert app.bounded(request.hints) is request.hints


# --- what is made of them -------------------------------------------------------------------------------------------


def rows(**rates):
    """system -> rates of the traces (1, 2, ...) at two deadlines each."""
    return [
        script.Row("PA", "two-modal", seed, name.replace("_", " "), factor, rate, 0.0, 1.0)
        for name, values in rates.items()
        for seed, pair in enumerate(values)
        for factor, rate in zip((1.5, 2.0), pair)
    ]


def test_differences_are_paired_by_trace():
    # Traces differ by more than systems do: +2, +4 and +3 points, each the mean of two deadlines.
    found = rows(a=[(0.5, 0.6), (0.9, 0.9), (0.2, 0.4)], b=[(0.48, 0.58), (0.86, 0.86), (0.15, 0.39)])
    mean, half = script.paired(found, "a", "b")
    assert mean == pytest.approx(3.0)
    assert half == pytest.approx(1.96 / math.sqrt(3))
    assert math.isnan(script.paired(rows(a=[(0.5, 0.6)]), "a", "b")[0])
