"""What keeps ``pard_local`` honest, one promise a test: each is broken by a planted bug (``dev/plant_bugs.py``)."""

from __future__ import annotations

import pytest
from cores import interpreted_only
from exact_device import MS, Device, ask, chain, model, with_host_function

from edgeserve.sched.protocol.events import JobResult, WorkFinished


def busy(device):
    """Request 1 (6 + 4 ms, alone) holds the lane; what comes at 1 ms is chosen from when it is over, at 10."""
    device.ask(ask(1, 1000))
    device.now_ns = 1 * MS


def test_a_join_runs_once_however_many_branches_lead_to_it():
    names = ("look", "left", "right", "end")
    table = {
        "lane": {"l": {}},
        "model": {name: model(2, 3) for name in names},
        "policy": {"p": {"kind": "pard_local"}},
        "app": {
            "app": {
                "slo": "100ms",
                "node": [
                    {"name": "look", "after": []},
                    {"name": "left", "after": ["look"]},
                    {"name": "right", "after": ["look"]},
                    {"name": "end", "after": ["left", "right"]},
                ],
            }
        },
    }
    device = Device(table)
    assert device.scheduler.policies[0]._pipeline_of["app"].template.jobs == [1000] * 4
    device.ask(ask(1, 20))  # four models of 5 ms, the join once
    device.advance()
    assert device.ends[1] == ("completed", 20.0)


def test_who_could_not_make_it_alone_is_dropped_before_the_deadline():
    device = Device(chain(admit=False))
    device.ask(ask(1, 100), ask(2, 9))  # alone it would end at 10
    assert device.ends == {2: ("dropped", 0.0)}


def test_a_second_cohort_waits_where_it_would_make_the_first_late():
    device = Device(with_host_function())
    device.ask(ask(1, 22))  # 19 alone; if another batch of a runs from 10 to 20, its last module ends at 24
    device.now_ns = 1 * MS
    device.ask(ask(2, 100))
    device.advance()
    assert device.batches[:4] == [(0.0, "a", [1]), (10.0, "f", [1]), (15.0, "b", [1]), (19.0, "a", [2])]
    assert device.ends[1] == ("completed", 19.0)


def test_declared_steps_count_as_often_as_they_run():
    table = {
        "lane": {"l": {}},
        "model": {"m": model(2, 3)},
        "policy": {"p": {"kind": "pard_local"}},
        "app": {"app": {"slo": "100ms", "model": "m"}},
    }
    device = Device(table)
    device.ask(ask(1, 14, hints={"steps": 3.0}), ask(2, 15, hints={"steps": 3.0}))
    assert device.ends == {1: ("rejected", 0.0)}


@interpreted_only
@pytest.mark.parametrize(("operations", "outcome"), [(0, "completed"), (1, "dropped")])
def test_nobody_is_tested_again_where_nothing_is_left_to_compute(operations, outcome, monkeypatch):
    device = Device(chain())
    busy(device)
    device.ask(ask(2, 24), ask(3, 60))
    device.advance(10)
    monkeypatch.setattr("edgeserve.sched.core.scheduler.OPERATIONS_MAX", operations)
    device.now_ns, work = 23 * MS, device.running.pop(0)[1]  # five late: 2 cannot be in time
    device.step(WorkFinished(work.work_id, 10 * MS, 23 * MS, tuple(JobResult(job) for job in work.jobs)))
    device.advance()
    assert device.ends[2][0] == outcome and device.ends[3][0] == "completed"
