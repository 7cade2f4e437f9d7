"""The costs of a machine in a simulated run: each by itself, exactly; and the keys of a scenario for them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from relay import Relay
from scenarios import scenario_of

from edgeserve.commands.measure_decisions import measure_decisions
from edgeserve.config.machine_costs import (
    ASSUMED,
    MachineCosts,
    machine_path,
    read_machine,
    with_overrides,
    write_machine,
)
from edgeserve.config.profiles import QUANTILES, LaneProfile, Profile, Timing
from edgeserve.errors import ConfigError
from edgeserve.sched.protocol.events import RequestArrived
from edgeserve.sim.host import NOT_MEASURED, MachineHost, charged
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import parse_scenario
from edgeserve.sim.spreads import bend_of, value_at
from edgeserve.testing.soak.run import draw_scenario, hold

MS = 10**6
US = 1000
FREE = ("a test", MachineCosts())
NO_COSTS = dict.fromkeys(("step", "event", "receive", "answer", "send", "wake", "start", "stall_every"), "0us")


DURATION = {"duration": "1s"}


def scenario(machine=None, models=(("a", "10ms", "synthetic"),), **sections):
    """An app per model, each model on a lane of its own; every app is asked once, at the same time."""
    table = {
        "lane": {f"l{name}": {} for name, _, _ in models},
        "model": {
            name: {
                "engine": engine,
                "expected": {"1": time},
                "lanes": [f"l{name}"],
                **({"function": "m:f"} if engine == "python" else {}),
            }
            for name, time, engine in models
        },
        "app": {name: {"model": name, "slo": "1s"} for name, _, _ in models},
        "workload": {name: {"app": name, "kind": "periodic", "rate": 1.0} for name, _, _ in models},
        "run": DURATION,
        **({"machine": machine} if machine is not None else {}),
        **sections,
    }
    return parse_scenario(table)


def took_ms(made):
    """App -> how long its one request took."""
    world = simulate(made, 1, (), scheduler=Relay(made.config), measured=FREE).world
    return {item.request.app: (item.end_ns - item.request.arrival_ns) / MS for item in world.ended}


ONCE, TWICE = ("receive", "answer", "send", "start"), ("step", "event", "wake")
"""The number of times that a request alone pays each cost: a request that comes, one that goes, and what lies
between."""


@pytest.mark.parametrize("costs", [(), *[(cost,) for cost in (*ONCE, *TWICE)], (*ONCE, *TWICE)])
def test_a_lone_request_pays_each_cost_as_often_as_a_live_one(costs):
    expected_ms = 10 + sum(2 if cost in TWICE else 1 for cost in costs)
    assert took_ms(scenario(dict.fromkeys(costs, "1ms"))) == {"a": pytest.approx(expected_ms, abs=0.001)}


def test_answers_of_one_turn_are_sent_one_after_the_other_once_the_lanes_have_their_works():
    made = scenario({"answer": "1ms"}, [("a", "10ms", "synthetic"), ("b", "10ms", "synthetic")])
    assert sorted(took_ms(made).values()) == [pytest.approx(11.0, abs=0.001), pytest.approx(12.0, abs=0.001)]


def test_requests_that_come_together_are_read_one_after_the_other_before_anything_is_decided():
    made = scenario({"receive": "1ms"}, [("a", "10ms", "synthetic"), ("b", "10ms", "synthetic")])
    assert set(took_ms(made).values()) == {12.0}


def test_a_lane_that_still_has_work_is_not_woken():
    made = scenario(
        {"start": "1ms"},
        workload={"a": {"app": "a", "kind": "closed", "clients": 1, "stop": "95ms"}},
        run={"duration": "95ms"},
    )
    assert set(took_ms(made).values()) == {11.0}


# --- when messages are read -------------------------------------------------------------------------------------------


def seen_ms(tmp_path, arrivals_ms, costs):
    """The times at which the scheduler learns of requests that come while one of 40 ms runs, from time 0."""
    (tmp_path / "sent.csv").write_text("arrival_s\n" + "\n".join(f"{ms / 1000}" for ms in (0, *arrivals_ms)))
    sent = {"w": {"app": "a", "kind": "trace", "file": "sent.csv"}}
    made = scenario_of({"a": {1: 40}}, {"a": {"model": "a", "slo": "1s"}}, sent, directory=str(tmp_path))
    seen = []

    def on_step(now_ns, events, actions):
        seen.extend(now_ns // MS for event in events if isinstance(event, RequestArrived))

    simulate(made, 1, (), measured=costs and ("a test", costs), on_step=on_step)
    return seen[1:]


@pytest.mark.parametrize(("cores", "expected"), [(0, 10), (2, 10), (1, 20)])
def test_what_comes_while_no_lane_could_start_it_is_read_together_as_by_a_live_loop(cores, expected, tmp_path):
    assert seen_ms(tmp_path, (1, 2, 3), MachineCosts(cores=cores)) == [expected] * 3


def test_what_comes_is_read_at_the_latest_when_a_lane_is_back(tmp_path):
    assert seen_ms(tmp_path, (35, 38), MachineCosts(cores=2)) == [40, 40]


def test_a_request_that_comes_for_an_idle_lane_is_read_at_once(tmp_path):
    assert seen_ms(tmp_path, (50,), MachineCosts(cores=2)) == [50]


def test_without_a_machine_nothing_waits_to_be_read(tmp_path):
    assert seen_ms(tmp_path, (1, 2, 3), None) == [1, 2, 3]


# --- the interpreter lock ---------------------------------------------------------------------------------------------

TWO = [("a", "10ms", "python"), ("b", "10ms", "python")]


@pytest.mark.parametrize(("shares", "expected_ms"), [((1.0, 1.0), 20.0), ((0.5, 0.5), 12.5), ((1.0, 0.0), 10.0)])
def test_host_functions_slow_each_other_by_the_shares_that_they_need_of_the_lock(shares, expected_ms):
    machine = {"lock_factor": 2.0, "lock": {name: {"share": share} for name, share in zip("ab", shares)}}
    found = took_ms(scenario(machine, TWO))
    assert found == {"a": pytest.approx(expected_ms, abs=0.001), "b": pytest.approx(expected_ms, abs=0.001)}


def test_functions_in_processes_of_their_own_do_not_share_the_lock():
    made = scenario({"lock_factor": 2.0}, TWO)
    assert set(took_ms(made).values()) == {20.0}  # not measured: pure Python
    table = {"lock_factor": 2.0}
    apart = parse_scenario(
        {
            **table_of(made),
            "machine": table,
            "model": {name: {**keys, "options": {"process": True}} for name, keys in made.edge["model"].items()},
        }
    )
    assert set(took_ms(apart).values()) == {10.0}


def table_of(made):
    return {
        **made.edge,
        "run": {"duration": "1s"},
        "workload": {name: {"app": name, "kind": "periodic", "rate": 1.0} for name in made.config.apps},
    }


def test_a_thread_that_comes_back_from_its_device_waits_for_the_function_that_runs_but_not_beyond_its_end():
    models = [("a", "10ms", "synthetic"), ("b", "12ms", "python")]
    wait = {"lock_factor": 2.0, "lock_wait": "100us"}
    # The network is done after 10 ms; its thread takes the lock twice, the loop twice to hear of it and once to answer.
    # The loop has no earlier wait: both requests came together.
    assert took_ms(scenario(wait, models))["a"] == pytest.approx(10.5, abs=0.001)
    long = {"lock_factor": 2.0, "lock_wait": "50ms"}
    assert took_ms(scenario(long, models))["a"] == pytest.approx(12.0, abs=0.001)  # the function ends after 12
    assert took_ms(scenario(long, models))["b"] == pytest.approx(12.0, abs=0.001)


def test_the_loops_turns_hold_functions_up():
    models = [("a", "4ms", "synthetic"), ("b", "12ms", "python")]
    found = took_ms(scenario({"step": "1ms", "lock": {"b": {"share": 0.5}}}, models))
    # Both start after the first turn. That in which a's answer is decided takes half of its time from b.
    assert found["a"] == pytest.approx(6.0, abs=0.001)
    assert found["b"] == pytest.approx(1 + 12 + 0.5 + 1, abs=0.001)


def measured(*names, time_ns=10 * MS):
    timing = Timing(100, time_ns, time_ns, time_ns, 0, (time_ns,) * len(QUANTILES))
    return [Profile(name, "here", {f"l{name}": LaneProfile({1: timing})}) for name in names]


@pytest.mark.parametrize(
    ("models", "profiled", "more", "expected_ms"),
    [
        ((("a", "synthetic"), ("b", "synthetic")), "ab", {}, {"a": 15.0, "b": 15.0}),
        ((("a", "synthetic"), ("b", "synthetic"), ("c", "synthetic")), "abc", {}, {"a": 20.0, "b": 20.0, "c": 20.0}),
        (
            (("a", "synthetic"), ("b", "synthetic")),
            "a",
            {},
            {"a": 10.0, "b": 10.0},
        ),  # b's times are stated, not measured
        ((("a", "synthetic"), ("b", "synthetic")), "ab", {"run": {"contention": {"cpu": 1.2}}}, {"a": 12.0, "b": 12.0}),
        ((("a", "synthetic"), ("b", "synthetic")), "ab", {"device": {"cpu": {"kind": "cuda"}}}, {"a": 10.0, "b": 10.0}),
        # Of two functions one runs at a time, so that the lock, not the cores, is what they share.
        ((("a", "python"), ("b", "python")), "ab", {}, {"a": 20.0, "b": 20.0}),
    ],
)
def test_what_was_measured_alone_is_slower_beside_others_on_cores(models, profiled, more, expected_ms):
    made = scenario(
        {"contention": 1.5, "lock_factor": 2.0, "lock_wait": "0us"},
        [(name, "10ms", engine) for name, engine in models],
        **{section: {**DURATION, **table} if section == "run" else table for section, table in more.items()},
    )
    world = simulate(made, 1, measured(*profiled), scheduler=Relay(made.config), measured=FREE).world
    assert {item.request.app: (item.end_ns - item.request.arrival_ns) / MS for item in world.ended} == {
        name: pytest.approx(took, abs=0.001) for name, took in expected_ms.items()
    }


def test_of_a_step_that_starts_a_network_and_a_function_the_function_gets_the_lock_first():
    """However short the function, and no longer than the interpreter lets it keep the lock."""
    for function, wait, later_ms in (("2ms", "1500us", 1.5), ("1ms", "1500us", 1.0)):
        took = []
        for share in (0.0, 1.0):
            made = scenario(
                {**NO_COSTS, "step": "1ms", "lock": {"b": {"share": share, "wait": wait}}},
                [("a", "10ms", "synthetic"), ("b", function, "python")],
            )
            world = simulate(made, 1, (), measured=FREE).world
            took += [item.end_ns - item.request.arrival_ns for item in world.ended if item.request.app == "a"]
        assert (took[1] - took[0]) / MS == pytest.approx(later_ms, abs=0.001)


# --- stalls -----------------------------------------------------------------------------------------------------------


def test_stalls_come_as_often_as_was_measured_and_not_into_measured_times():
    costs = MachineCosts(stall_every_ns=100 * MS, stall_ns=(5 * MS,) * len(QUANTILES))
    machine = MachineHost(costs, scenario({}).config, 1)
    held_ns = sum(machine.stalls_ns(10 * MS) for _ in range(20_000))
    assert held_ns == pytest.approx(2000 * 5 * MS, rel=0.1)
    assert MachineHost(MachineCosts(), scenario({}).config, 1).stalls_ns(10**12) == 0
    made = scenario({"stall_every": "1ms", "stall": "2ms"})
    assert took_ms(made)["a"] > 15
    timing = Timing(10, 10 * MS, 10 * MS, 10 * MS, 0, (10 * MS,) * len(QUANTILES))
    profile = Profile("a", "here", {"la": LaneProfile({1: timing})})
    world = simulate(made, 1, [profile], scheduler=Relay(made.config), measured=FREE).world
    assert world.ended[0].end_ns - world.ended[0].request.arrival_ns == pytest.approx(10 * MS, abs=US)


# --- what is charged --------------------------------------------------------------------------------------------------


def test_what_was_measured_is_charged_else_what_is_assumed_and_a_scenario_overrides():
    measured = ("a file", MachineCosts(step_ns=7, answer_ns=3))
    plain = scenario()
    assert charged(plain, NOT_MEASURED).machine == ASSUMED
    assert "run 'edgeserve profile'" in charged(plain, NOT_MEASURED).source
    assert charged(plain)[:3] == (20 * US, 15 * US, None)  # the machine's costs are not given
    assert charged(scenario({"step": "1us"})).machine == replace(ASSUMED, step_ns=1000)
    assert charged(plain, measured) == (7, 0, measured[1], "a file")
    changed = charged(scenario({"step": "1us"}), measured)
    assert (changed.machine.step_ns, changed.machine.answer_ns) == (1000, 3)
    assert changed.source == "a file (but as [machine] says)"
    ideal = charged(scenario(run={"step_cost": "7us"}), measured)
    assert ideal[:3] == (7 * US, 15 * US, None)
    assert "[run]" in ideal.source


def test_the_costs_of_this_machine_are_found_beside_its_profiles(tmp_path):
    made = parse_scenario({**table_of(scenario()), "server": {"profiles": str(tmp_path)}})
    write_machine(machine_path(str(tmp_path), "orin"), MachineCosts(answer_ns=5 * MS))
    world = simulate(made, 1, scheduler=Relay(made.config)).world
    assert world.ended[0].end_ns - world.ended[0].request.arrival_ns == pytest.approx(15 * MS, abs=US)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"machine": {"stepp": "1us"}}, r"\[machine\] has no key 'stepp'; did you mean 'step'"),
        ({"machine": {"wake": ["1us", "2us"]}}, "expected one duration, or 15 rising ones"),
        ({"machine": {"lock": {"c": {"share": 0.5}}}}, r"\[machine.lock.c\]: there is no such model"),
        ({"machine": {"lock": {"a": {"share": 1.5}}}}, r"\[machine\] lock.a share = 1.5: expected a number from 0"),
        ({"machine": {"step": "1us"}, "run": {"step_cost": "1us"}}, "give step and event in"),
    ],
)
def test_a_wrong_machine_says_what_to_mend(sections, message):
    with pytest.raises(ConfigError, match=message):
        scenario(**sections)


def test_a_scheduler_is_told_a_deadline_that_leaves_room_for_the_answer():
    made = scenario({"answer": "4ms"}, workload={"a": {"app": "a", "kind": "closed", "clients": 1, "stop": "900ms"}})
    told = []

    class Listening(Relay):
        def step(self, now_ns, events=()):
            told.extend(
                event.request.deadline_ns - event.request.arrival_ns
                for event in events
                if isinstance(event, RequestArrived)
            )
            return super().step(now_ns, events)

    world = simulate(made, 1, (), scheduler=Listening(made.config), measured=FREE).world
    assert told[0] == 1000 * MS
    assert told[-1] == 996 * MS  # as a server, which measures what answers take
    assert {item.request.deadline_ns - item.request.arrival_ns for item in world.ended} == {1000 * MS}


# --- draws ------------------------------------------------------------------------------------------------------------


def test_draws_from_measured_quantiles_have_the_mean_that_was_measured():
    draw = random.Random(1)
    samples = sorted(10 * MS + draw.randrange(MS) for _ in range(2000))
    samples[-1] = 200 * MS  # one stall
    quantiles = tuple(samples[min(len(samples) - 1, int(q * len(samples)))] for q in QUANTILES)
    mean_ns = sum(samples) // len(samples)
    timing = Timing(len(samples), quantiles[7], quantiles[13], mean_ns, 0, quantiles)
    drawn = [value_at(quantiles, draw.random(), bend_of(timing)) for _ in range(50_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(mean_ns, rel=0.005)
    assert max(drawn) > 100 * MS
    assert sum(value_at(quantiles, draw.random()) for _ in range(50_000)) / 50_000 > 1.05 * mean_ns  # straight lines
    assert bend_of(Timing(1, 5, 5, 5, 0, (5,) * len(QUANTILES))) == 1.0
    assert bend_of(Timing(1, 5, 5, 5, 0)) == 1.0


@pytest.mark.worlds
@pytest.mark.parametrize("seed", range(12))
def test_the_rules_of_the_soak_hold_on_a_machine_that_costs(seed):
    made, drain = draw_scenario(seed)
    run, rng = made.run, random.Random(f"{seed}/machine costs")
    machine = {
        "step": f"{rng.choice((50, 500))}us",
        "receive": "50us",
        "answer": "30us",
        "event": "20us",
        "wake": f"{rng.choice((100, 3000))}us",
        "start": f"{rng.choice((50, 5000))}us",
        "send": "1ms",
        "stall_every": "20ms",
        "stall": "2ms",
        "lock_factor": 2.0,
        "lock_wait": "3ms",
        "lock": {name: {"share": rng.random(), "wait": "1ms"} for name in list(made.config.models)[:2]},
    }
    costly = replace(made, run=replace(run, step_cost_ns=-1, event_cost_ns=-1), machine=machine)
    assert hold(costly, seed, drain).digest == hold(costly, seed, drain).digest


# --- decisions --------------------------------------------------------------------------------------------------------

DECIDE = {"edf": {1: "20us", 100: "20us"}, "plan": {1: "60us", 100: "260us"}}


def test_what_a_policy_takes_beyond_the_measured_loops_is_on_a_line_between_the_measured_numbers():
    costs = with_overrides(ASSUMED, {"decide": DECIDE})
    assert [costs.decision_ns("plan", count) for count in (1, 34, 100, 5000)] == [
        40_000,
        106_667,
        240_000,
        240_000,
    ]
    assert costs.decision_ns("edf", 50) == costs.decision_ns("fifo", 50) == ASSUMED.decision_ns("edf", 1) == 0


@pytest.mark.parametrize(("kind", "more_us"), [("edf", 0), ("plan", 40)])
def test_decisions_are_charged_by_policy(kind, more_us):
    def ended_ns(machine):
        scenario = scenario_of(
            {"m": {1: 5}},
            {"a": {"model": "m", "slo": "100ms"}},
            {"a": {"rate": 2.0, "kind": "periodic"}},
            kind,
            machine={"step": "100us", **machine},
        )
        return [item.end_ns for item in simulate(scenario, 1).world.ended]

    pairs = zip(ended_ns({}), ended_ns({"decide": DECIDE}))
    assert [after - before for before, after in pairs] == [more_us * 1000] * 2


def test_decisions_are_measured_and_kept_in_the_machines_file(tmp_path):
    clock = iter(range(0, 10**9, 64_000))
    found = measure_decisions(["edf"], lambda: next(clock))
    assert sorted(found["edf"]) == [1, 10, 100, 1000]
    assert 0 < min(found["edf"].values()) <= max(found["edf"].values()) <= 1000  # a tick of 64 us for 64 requests
    path = str(tmp_path / "machine.toml")
    write_machine(path, replace(ASSUMED, decide=found))
    assert read_machine(path).decide == found
