"""Measuring the machine: the arithmetic on stated times, and the whole on this machine, where nothing is compared with
a clock."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from edgeserve.cli import main
from edgeserve.commands import measure_machine
from edgeserve.commands.measure_machine import (
    LoopWatch,
    costs_of_loop,
    lock_waits,
    measure_contention,
    measure_stalls,
    pure_python,
    spread_of,
    waits_of,
)
from edgeserve.config.machine import device_slug
from edgeserve.config.machine_costs import LockUse, MachineCosts, machine_path, read_machine, write_machine
from edgeserve.config.profiles import QUANTILES
from edgeserve.errors import EngineError
from edgeserve.sched.protocol.events import Request, RequestArrived, WorkFinished

MS = 10**6


class Scripted:
    """A world whose waits return what was prepared."""

    stopped = False

    def __init__(self, waits):
        self.waits = iter(waits)

    def wait(self, until_ns):
        return next(self.waits)

    def perform(self, action):
        pass


def watched(waits=(), turns=(), wake_ns=(), arrive_ns=(), start_ns=()):
    return SimpleNamespace(
        waits=list(waits), turns=list(turns), wake_ns=list(wake_ns), arrive_ns=list(arrive_ns), start_ns=list(start_ns)
    )


def test_the_parts_of_the_loops_time_are_found_exactly():
    turns = [(200 + 30 * events, events) for events in (1, 1, 8, 2, 1, 5)]
    waits = [
        (50 + 10 * answers + 25 * read, answers, read)
        for answers, read in ((0, 1), (1, 0), (8, 1), (1, 8), (0, 0), (3, 2))
    ]
    costs = costs_of_loop(watched(waits, turns, wake_ns=[70] * 9, arrive_ns=[400] * 9, start_ns=[20] * 9))
    assert (costs.step_ns, costs.event_ns, costs.answer_ns, costs.receive_ns) == (250, 30, 10, 25)
    assert set(costs.send_ns) == {400 - 70 - 25 - 50}  # what of the way is counted elsewhere is not counted again
    assert (set(costs.wake_ns), set(costs.start_ns)) == ({70}, {20})


def test_no_part_is_negative():
    turns = [(1000 - 10 * events, events) for events in (1, 2, 4, 8)]
    costs = costs_of_loop(watched([(5, 0, 1), (5, 1, 0), (4, 8, 8)], turns))
    assert costs.event_ns == 0
    assert costs.step_ns > 900
    assert min(costs.answer_ns, costs.receive_ns) >= 0
    assert costs.wake_ns == costs.send_ns == ()


def test_waits_count_only_where_the_loop_was_asleep(monkeypatch):
    now = [10 * MS]
    monkeypatch.setattr(measure_machine.time, "monotonic_ns", lambda: now[0])
    request = Request(1, "a", 12 * MS, 99 * MS)
    early = Request(2, "a", 10 * MS + 1, 99 * MS)  # came while the loop was still sending
    watch = LoopWatch(
        Scripted(
            [
                (13 * MS, [RequestArrived(request)]),
                (13 * MS, [RequestArrived(early)]),
                (15 * MS, [WorkFinished(7, 11 * MS, 14 * MS)]),
                (16 * MS, [RequestArrived(request), RequestArrived(early)]),
            ]
        )
    )
    for _ in range(4):
        watch.wait(None)
    assert watch.arrive_ns == [1 * MS]
    assert watch.wake_ns == [1 * MS]
    assert [events for _, events in watch.turns] == [1, 1, 1]
    assert [(answers, read) for _, answers, read in watch.waits] == [(0, 1), (0, 1), (0, 0), (0, 2)]


def test_stalls_are_the_gaps_of_a_thread_that_reads_the_clock():
    gaps = [100] * 5000 + [3 * MS] + [100] * 5000 + [5 * MS] + [100] * 10**5
    times = [0]
    for gap in gaps:
        times.append(times[-1] + gap)
    clock = iter(times)
    every_ns, lengths = measure_stalls(0.018, lambda: next(clock))
    assert (lengths[0], lengths[-1]) == (3 * MS, 5 * MS)
    assert every_ns == pytest.approx(5 * MS, rel=0.02)  # 10 ms of running, two stalls
    clock = iter(times[:5000])
    assert measure_stalls(0.0004, lambda: next(clock)) == (0, ())


def test_waits_for_the_lock_are_of_threads_that_were_due_during_a_call():
    calls = [(start, start + 2 * MS) for start in range(0, 100 * MS, 3 * MS)]
    idle = [60_000] * 9 + [500_000]  # a tenth is late anyhow
    during = [(start + MS, late) for (start, _), late in zip(calls, [60_000] * 11 + [1060_000] * 9)]
    between = [(start + 2 * MS + 1, 7 * MS) for start, _ in calls]
    waits, share = waits_of(idle, calls, during + between)
    assert len(waits) == len(QUANTILES) and list(waits) == sorted(waits)
    assert (waits[QUANTILES.index(0.5)], waits[QUANTILES.index(0.6)]) == (0, 1 * MS)
    assert share == pytest.approx((0.45 - 0.1) / 0.9)
    assert waits_of(idle, calls, during[:9] + between) == ((), 0.0)
    assert waits_of(idle, [], during) == ((), 0.0)
    noisy = [60_000 * (index + 1) for index in range(20)]  # as late without the function: none of it is the lock's
    alike = [(due, late) for (due, _), late in zip(during, noisy)]
    assert waits_of(noisy, calls, alike) == ((0,) * len(QUANTILES), 0.0)


def test_a_function_that_fails_on_its_example_says_so():
    waits, share = lock_waits(pure_python, 0.05)
    assert 0.0 <= share <= 1.0 and all(wait >= 0 for wait in waits)
    with pytest.raises(EngineError, match="failed on its example: ZeroDivisionError"):
        lock_waits(lambda: 1 // 0, 0.02)


def test_a_spread_has_the_quantiles_of_a_profile():
    spread = spread_of(list(range(101)))
    assert spread == tuple(int(100 * q) for q in QUANTILES)
    assert spread_of([]) == ()


CONFIG = """
[model.quick]
engine = "synthetic"
expected = { 1 = "1ms" }
[model.host]
engine = "python"
function = "hosts:work"
options = { example = "hosts:example" }
[model.blind]
engine = "python"
function = "hosts:work"
[model.apart]
engine = "python"
function = "hosts:work"
options = { example = "hosts:example", process = true }
[app.a]
model = "quick"
"""

HOSTS = "def example():\n    return {'x': 1}\n\n\ndef work(inputs):\n    return {'y': sum(range(2000))}\n"


@pytest.fixture
def config(tmp_path):
    (tmp_path / "edge.toml").write_text(CONFIG)
    (tmp_path / "hosts.py").write_text(HOSTS)
    return str(tmp_path / "edge.toml")


def test_profile_measures_the_machine_and_the_host_functions(config, tmp_path, capfd):
    status = main(["profile", config, "--model", "quick,host,blind", "--seconds", "0.05"])
    out, err = capfd.readouterr()
    assert status == 1  # blind has no example
    assert "not measured: how blind uses the interpreter lock" in err
    assert "the machine: a lone request takes the loop" in out
    costs = read_machine(machine_path(str(tmp_path / "profiles"), device_slug()))
    assert 10_000 < costs.step_ns < 100 * MS
    assert costs.wake_ns and costs.start_ns and costs.send_ns
    assert min(costs.wake_ns) > 0
    assert list(costs.lock) == ["host"]
    assert 1.0 <= costs.lock_factor <= 10.0
    assert 1.0 <= costs.contention <= 10.0
    assert costs.circumstances["device_name"]


def test_contention_is_by_how_much_a_busy_core_slows_another(monkeypatch):
    calls = iter([100, 80, 100, 50, 100, 80, 100, 80, 100, 90])
    monkeypatch.setattr("edgeserve.commands.measure_machine._calls", lambda call, seconds: next(calls))
    assert measure_contention(0.1) == 1.25  # the median: one turn met something else
    monkeypatch.setattr("edgeserve.commands.measure_machine._calls", lambda call, seconds: 100)
    assert measure_contention(0.1) == 1.0


def test_what_was_measured_is_kept_until_versions_or_functions_change(config, tmp_path, monkeypatch):
    measured = []

    def everything(seconds):
        measured.append("machine")
        return MachineCosts(step_ns=len(measured), circumstances=measure_machine.circumstances())

    def function(config, model, seconds, name):
        measured.append(model)
        return LockUse(0.5, (), name)

    monkeypatch.setattr(measure_machine, "measure_machine", everything)
    monkeypatch.setattr(measure_machine, "measure_function", function)
    from edgeserve.config.loading import load_config

    path = machine_path(str(tmp_path / "profiles"), device_slug())

    def again(**options):
        measured.clear()
        models = ["quick", "host", "apart"]
        costs, lacking = measure_machine.profile_machine(load_config(config), models, path, 1.0, **options)
        assert lacking == []
        assert read_machine(path) == costs
        return list(measured)

    assert again() == ["machine", "host"]
    assert again() == []
    (tmp_path / "hosts.py").write_text(HOSTS + "\n")
    assert again() == ["host"]
    assert again(force=True) == ["machine", "host"]
    found = read_machine(path)
    write_machine(path, MachineCosts(lock=found.lock, circumstances={**found.circumstances, "same": "another Python"}))
    assert again() == ["machine", "host"]
    with open(path, "w", encoding="utf-8") as file:
        file.write("damaged")
    assert again() == ["machine", "host"]
    os.remove(path)
    assert main(["profile", config, "--model", "quick", "--seconds", "0.01", "--no-machine", "--json"]) == 0
    assert not os.path.exists(path)
