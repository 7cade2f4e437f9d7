"""One currency: requests of an app count alike, or by their size where the app says ``worth = "work"``."""

from __future__ import annotations

import pytest
from scenarios import scenario_of

from edgeserve.sim.report import report_of
from edgeserve.sim.run import simulate

SECONDS = 4
LONGER = 8
READ = {1: 3}
WRITE = {1: 4, 2: 5, 4: 6, "slots": 4}

LENGTHS = ({"hint": "length", "fixed": "0ms", "per_unit": "1ms"}, 3, 3.0)
WORKS = ({"hint": "work", "fixed": "0ms", "per_unit": "3ms"}, 1, 3.0)
STEPS = (
    {"steps_hint": "need", "batching": "continuous", "predict": {"rho": 1.0, "median": 8.0, "sigma": 0.7}},
    5,
    7.5,
)
"""The time of a request; the hint of a short one; the lane time that it takes, in ms."""


def served(worth, load, hint, truth, unit, short_ms, model=READ, slo="200ms"):
    """The report of one app of short requests and long ones, each half of the load, and the parts of both that are in
    time."""
    scenario = scenario_of(
        {"read": model},
        {"read": {"model": "read", "slo": slo, "worth": worth}},
        {
            "read": {
                "kind": "poisson",
                "rate": load * 1000.0 / (2 * LONGER * short_ms) * (LONGER + 1),
                "hints": {hint: {str(unit): LONGER, str(LONGER * unit): 1}},
            }
        },
        "plan",
        seconds=SECONDS,
        truth={"read": truth},
        run={"noise": 0.03},
    )
    world = simulate(scenario, 1, ()).world
    parts = {}
    for name, size in {"short": unit, "long": LONGER * unit}.items():
        in_time = [item.in_time for item in world.ended if item.request.hints[hint] == size]
        parts[name] = sum(in_time) / len(in_time)
    return report_of([world], 0, SECONDS * 10**9).apps["read"], parts


@pytest.mark.parametrize(
    ("hint", "law", "keys"),
    [
        ("length", LENGTHS, {}),
        pytest.param("work", WORKS, {}, marks=pytest.mark.worlds),
        pytest.param("need", STEPS, {"model": WRITE, "slo": "600ms"}, marks=pytest.mark.worlds),
    ],
)
def test_under_overload_short_requests_go_first_and_long_ones_have_their_part_where_size_counts(hint, law, keys):
    _, alike = served("request", 2.5, hint, *law, **keys)
    assert alike["short"] > 0.65 and alike["long"] < 0.1, alike
    _, by_size = served("work", 2.5, hint, *law, **keys)
    assert by_size["long"] > 0.15 and by_size["long"] / by_size["short"] > 0.35, by_size


def test_a_report_counts_requests_as_the_scheduler_does():
    alike, parts = served("request", 2.5, "length", *LENGTHS)
    assert alike.value_share == pytest.approx(alike.finish_rate, abs=1e-6)
    by_size, parts = served("work", 2.5, "length", *LENGTHS)
    assert by_size.value_share == pytest.approx((parts["short"] + parts["long"]) / 2, abs=0.03)
    assert by_size.value_share != pytest.approx(by_size.finish_rate, abs=0.01)
