"""A recording as a world: the same requests, durations that were learnt, results as recorded."""

from __future__ import annotations

from statistics import median

import pytest
from common import recorded
from common.history import read_history
from common.recorded import learn, run_recorded
from recordings import recording_of

from edgeserve.config.loading import parse_config
from edgeserve.sched.protocol.actions import FinishRequest, RunBatch
from edgeserve.sched.protocol.events import JobId, RequestArrived
from edgeserve.sim.host import Lags
from edgeserve.sim.run import setting_of, simulate
from edgeserve.taps.trace import RecordedStep, Recording, start_of
from edgeserve.testing.soak.run import draw_scenario

MS = 10**6

PLAIN = """
[lane.cpu0]
[model.m]
engine = "synthetic"
batch = [1, 2, 4, 8]
expected = { 1 = "10ms", 2 = "13ms", 4 = "20ms", 8 = "34ms" }
[app.a]
model = "m"
slo = "60ms"
[app.b]
model = "m"
slo = "150ms"
class = "background"
[run]
duration = "4s"
step_cost = "50us"
noise = 0.05
[workload.a]
app = "a"
rate = 90.0
value = 2.0
[workload.b]
app = "b"
rate = 60.0
"""

GRAPH = """
[lane.cpu0]
[model.find]
engine = "synthetic"
expected = { 1 = "4ms" }
[model.read]
engine = "synthetic"
batch = [1, 4]
expected = { 1 = "3ms", 4 = "6ms" }
[model.sign]
engine = "synthetic"
expected = { 1 = "2ms" }
[truth.find]
parts = [1, 4]
says = ["difficulty"]
[truth.read]
routes = { sign = 0.5, end = 0.5 }
[app.page]
slo = "90ms"
[[app.page.node]]
name = "find"
fan_out = true
[[app.page.node]]
name = "read"
route = "one"
[[app.page.node]]
name = "sign"
after = ["read"]
[[app.page.node]]
name = "end"
model = "sign"
after = ["read"]
[run]
duration = "4s"
[workload.w]
app = "page"
rate = 30.0
hints = { difficulty = [1, 9] }
"""


def learnt(scenario, seed=0):
    parsed, recording = recording_of(scenario, seed)
    return parsed, learn(parsed.config, recording)


def shares(truth, counted):
    found = {}
    for item in counted:
        found.setdefault(truth.history.requests[item.place].request.app, []).append(item.in_time)
    return {app: sum(ends) / len(ends) for app, ends in found.items()}


def recorded_shares(truth):
    found = {}
    for past in truth.history.requests:
        found.setdefault(past.request.app, []).append(past.in_time)
    return {app: sum(ends) / len(ends) for app, ends in found.items()}


def replayed(truth, config, monkeypatch):
    """The steps of a run made of a recording, and what was in time in it."""
    steps = []
    original = recorded.drive

    def watched(scheduler, world, taps):
        def note(now_ns, events, actions):
            steps.append(RecordedStep(now_ns, tuple(events), tuple(actions)))

        original(scheduler, world, (note, *taps))

    monkeypatch.setattr(recorded, "drive", watched)
    ended = shares(truth, run_recorded(truth, config, 0))
    monkeypatch.undo()
    return steps, ended


# --- the past ---------------------------------------------------------------------------------------------------------


def test_the_past_is_what_was_recorded():
    _, recording = recording_of(PLAIN)
    history = read_history(recording.steps)
    arrived = [event.request for step in recording.steps for event in step.events if isinstance(event, RequestArrived)]
    batches = [action for step in recording.steps for action in step.actions if isinstance(action, RunBatch)]
    ends = [action for step in recording.steps for action in step.actions if isinstance(action, FinishRequest)]
    assert [past.request for past in history.requests] == arrived
    assert [len(item.members) for item in history.batches] == [len(item.jobs) for item in batches]
    assert sum(past.outcome == "completed" for past in history.requests) == sum(
        action.outcome == "completed" for action in ends
    )
    assert 0 < sum(past.in_time for past in history.requests) <= len(arrived)
    assert set(history.starts_ns["cpu0"]) == {65_000}  # a step's cost and an event's, on lanes that were idle


# --- the same configuration again -------------------------------------------------------------------------------------


def test_without_noise_it_ends_every_request_alike():
    parsed, truth = learnt(PLAIN.replace("noise = 0.05", ""))
    ends = {item.place: item.in_time for item in run_recorded(truth, parsed.config, 0)}
    assert ends == {place: past.in_time for place, past in enumerate(truth.history.requests)}


def test_graphs_return_what_they_returned(monkeypatch):
    parsed, truth = learnt(GRAPH)
    steps, simulated = replayed(truth, parsed.config, monkeypatch)
    again = read_history(steps)
    both = [(past.told, other.told) for past, other in zip(truth.history.requests, again.requests)]
    compared = 0
    for past, other in both:
        for key in set(past) & set(other):
            assert (past[key].parts, past[key].route, past[key].hints) == (
                other[key].parts,
                other[key].route,
                other[key].hints,
            ), key
            compared += 1
    assert compared > 300
    assert {told.parts for told, _ in [(past.get(("find", ())), 0) for past, _ in both] if told} == {1, 2, 3, 4}
    assert simulated["page"] == pytest.approx(recorded_shares(truth)["page"], abs=0.02)
    told = [event.request.hints for step in steps for event in step.events if isinstance(event, RequestArrived)]
    assert told and not any(told)  # neither what nodes will say nor the place in the recording


def test_what_was_not_recorded_is_drawn_from_what_was():
    parsed, truth = learnt(GRAPH)
    requests = truth.history.requests
    past = next(item for item in requests if item.told[("find", ())].parts == 2)
    dropped = requests[-1]
    dropped.told.clear()  # as if it had been refused
    results = [recorded.RecordedResults(parsed.config, requests, seed) for seed in range(40)]

    def drawn(one):
        job = JobId(requests.index(one) + 1, "find", ())
        return [(found.parts("page", "", job), found.said("page", job, {})["difficulty"]) for found in results]

    assert drawn(past) == [(2, past.told[("find", ())].hints["difficulty"])] * 40
    assert {parts for parts, _ in drawn(dropped)} == {1, 2, 3, 4}
    others = {(item.told[("find", ())].parts, item.told[("find", ())].hints["difficulty"]) for item in requests[:-1]}
    assert set(drawn(dropped)) <= others  # what one result said stays together
    assert drawn(dropped) == drawn(dropped)
    assert results[0].parts_mean("page", "find") == pytest.approx(2.5, abs=0.3)
    assert run_recorded(truth, parsed.config, 0) == run_recorded(truth, parsed.config, 0)


# --- durations --------------------------------------------------------------------------------------------------------


HINTED = (
    PLAIN.replace(
        "[run]",
        """[truth.m]
fixed = "2ms"
per_unit = "2ms"
hint = "length"
[run]""",
    )
    + """hints = { length = [1, 9] }
[workload.c]
app = "a"
rate = 20.0
hints = { length = [1, 9], noise = [1, 9] }
"""
)


def test_a_hint_that_explains_durations_is_found():
    text = HINTED.replace("rate = 90.0\nvalue = 2.0", "rate = 20.0\nvalue = 2.0\nhints = { length = [1, 9] }")
    text = text.replace("rate = 60.0", "rate = 20.0")
    _, truth = learnt(text)
    found = truth.times.explanations["m"]
    assert (found.hint, found.largest) == ("length", True)
    assert found.share > 0.6
    short = [place for place, past in enumerate(truth.history.requests) if past.request.hints["length"] == 1][:1]
    long = [place for place, past in enumerate(truth.history.requests) if past.request.hints["length"] == 9][:1]
    base_ns = truth.times.base_ns("m", "cpu0", 1)
    assert base_ns * truth.times.factor("m", short) == pytest.approx(4 * MS, rel=0.25)
    assert base_ns * truth.times.factor("m", long) == pytest.approx(20 * MS, rel=0.15)
    assert truth.times.factor("m", short + long) == truth.times.factor("m", long)


def test_a_hint_that_explains_nothing_is_not_believed():
    text = PLAIN.replace("value = 2.0", "value = 2.0\nhints = { length = [1, 9] }") + "hints = { length = [1, 9] }\n"
    _, truth = learnt(text)
    assert truth.times.explanations == {}
    spread = [truth.times.deviation("m", "cpu0", [place], 0.3) for place in range(len(truth.history.requests))]
    assert median(spread) == pytest.approx(1.0, abs=0.02)
    assert 0.8 < min(spread) < 0.95 and 1.05 < max(spread) < 1.2  # a deviation of 5 %


# --- what the loop and the threads cost -------------------------------------------------------------------------------


@pytest.mark.worlds
def test_late_news_of_a_lane_are_late_again_and_are_no_part_of_its_durations(monkeypatch):
    parsed, quick = learnt(PLAIN.replace('"4s"', '"12s"'))
    late = quick._replace(lags={"cpu0": Lags([1 * MS], [3 * MS, 5 * MS])})
    steps, slower = replayed(late, parsed.config, monkeypatch)
    again = learn(parsed.config, Recording(quick.start, steps))
    assert median(again.lags["cpu0"].news_ns) == pytest.approx(4 * MS, abs=1.1 * MS)
    assert median(again.lags["cpu0"].start_ns) == pytest.approx(1 * MS, rel=0.1)
    assert again.costs.step_ns == pytest.approx(quick.costs.step_ns, rel=0.1)
    assert again.times.base_ns("m", "cpu0", 8) == pytest.approx(quick.times.base_ns("m", "cpu0", 8), rel=0.03)
    assert shares(quick, run_recorded(quick, parsed.config, 0))["a"] > slower["a"] + 0.03
    assert shares(again, run_recorded(again, parsed.config, 1))["a"] == pytest.approx(slower["a"], abs=0.03)


HOST = """
[lane.host]
[lane.cpu0]
[model.parse]
engine = "python"
function = "parsing:parse"
lanes = ["host"]
expected = { 1 = "10ms" }
[model.other]
engine = "synthetic"
lanes = ["cpu0"]
expected = { 1 = "3ms" }
[app.a]
model = "parse"
slo = "90ms"
[app.b]
model = "other"
slo = "90ms"
[run]
duration = "10s"
[machine]
step = "1ms"
[workload.a]
app = "a"
rate = 60.0
[workload.b]
app = "b"
rate = 120.0
"""


@pytest.mark.worlds
def test_what_the_loop_takes_from_a_host_function_is_in_its_durations_and_not_taken_again(monkeypatch):
    parsed, truth = learnt(HOST)
    was = [ran.duration_ns for ran in truth.history.batches if ran.lane == "host"]
    assert sum(was) / len(was) > 10.2 * MS, "the loop took nothing: this tests nothing"
    steps, _ = replayed(truth, parsed.config, monkeypatch)
    now = [ran.duration_ns for ran in read_history(steps).batches if ran.lane == "host"]
    assert sum(now) / len(now) == pytest.approx(sum(was) / len(was), rel=0.02)


# --- any recording ----------------------------------------------------------------------------------------------------


@pytest.mark.worlds
@pytest.mark.parametrize("seed", [0, 1, 15, pytest.param(22, marks=pytest.mark.nightly)])
def test_any_recording_is_a_world_for_any_policy(seed):
    """Scenarios of the soak: graphs, streams, budgets, several lanes, and trouble of every kind. No rule breaks."""
    scenario, drain = draw_scenario(seed)
    steps = []
    simulate(
        scenario,
        seed,
        (),
        drain=drain,
        on_step=lambda now_ns, events, actions: steps.append(RecordedStep(now_ns, tuple(events), tuple(actions))),
    )
    setting = setting_of(scenario.config)
    truth = learn(scenario.config, Recording(start_of(setting.footprints, setting.resident), steps))
    count = len(truth.history.requests)
    recorded_rate = sum(past.in_time for past in truth.history.requests) / count
    assert count > 50
    again = run_recorded(truth, scenario.config, 0)
    assert sum(item.in_time for item in again) / count == pytest.approx(recorded_rate, abs=0.15)
    for kind in ("fifo", "plan"):
        apps = {name: {**app, "policy": kind} for name, app in scenario.edge["app"].items()}
        config = parse_config({**scenario.edge, "policy": {kind: {}}, "app": apps}, scenario.config.directory)
        assert sorted(item.place for item in run_recorded(truth, config, 0)) == list(range(count))
