"""The priority of tasks: the specification's worked example, the poles of the printed form, the baselines."""

from __future__ import annotations

import pytest

from edgeserve.sched.published.rtlm.priority import BY_ORDER, ORDERS, PriorityParameters, Task

S = 10**9
PHI, ETA, TAU = 0.08, 0.05, 35.0
EXAMPLE = {"A": (30, 10), "B": (10, 10), "C": (10, 15), "D": (10, 17), "E": (10, 40), "F": (40, 10)}  # tokens, steps


def tasks(table=EXAMPLE):
    return {
        name: Task(float(steps), 0, round(PHI * tokens * S), seq)
        for seq, (name, (tokens, steps)) in enumerate(table.items())
    }


def in_order(order, now_s=0.0, alpha=1.0, table=EXAMPLE):
    parameters = PriorityParameters(round(now_s * S), ETA * S, TAU, alpha)
    rows = tasks(table)
    return "".join(sorted(rows, key=lambda name: BY_ORDER[order](rows[name], parameters)))


def test_the_worked_example_as_printed_and_corrected():
    assert in_order("printed") == "DEFABC"
    assert in_order("corrected") == "CDBEAF"


def test_the_baselines():
    assert in_order("fifo") == "ABCDEF"
    assert in_order("hpf") == "BCDEAF"
    assert in_order("luf") == "ABFCDE"
    assert in_order("muf") == "EDCABF"


def test_tasks_age_in_the_corrected_form_and_not_in_the_printed_one():
    assert in_order("printed", now_s=60.0) == in_order("printed")
    assert in_order("corrected", now_s=60.0) == "ABFCDE"  # all are overdue: by length alone


def test_overdue_tasks_above_tau_keep_their_order_of_arrival():
    table = {"X": (1, 90), "Y": (1, 40), "Z": (1, 300), "S": (1, 20)}
    assert in_order("corrected", now_s=30.0, table=table) == "SXYZ"


def test_the_linear_form_lies_between_hpf_and_luf():
    assert in_order("linear", alpha=0.0) == in_order("hpf")
    assert in_order("linear", alpha=1000.0) == "BAFCDE"  # equal lengths go by their points


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_is_total(order):
    parameters = PriorityParameters(0, ETA * S, TAU, 1.0)
    same = [Task(10.0, 5, 7, seq) for seq in (3, 1, 2)]
    assert [task.seq for task in sorted(same, key=lambda task: BY_ORDER[order](task, parameters))] == [1, 2, 3]
