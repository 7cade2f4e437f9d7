"""Apps that cannot make their deadline even alone are named at start, with what to change."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hand_world import MS, Driver

from edgeserve.config.loading import parse_config
from edgeserve.live.estimates import AppFit, ContradictionLog, app_fit, log_fits
from edgeserve.units import format_duration

CONFIG = parse_config({}, source="edge.toml")

CHAIN = [{"name": "first", "model": "m"}, {"name": "then", "model": "n", "after": ["first"]}]
MODELS = {"m": {1: 12, 2: 14}, "n": {1: 30}}


def world(policy: Any = "edf", **apps: Any) -> Driver:
    return Driver(MODELS, apps, policy)


def test_one_line_per_app_and_a_warning_where_it_cannot_fit(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "edgeserve")
    log_fits(world(short={"model": "m", "slo": "12ms"}, pipe={"node": CHAIN, "slo": "33ms"}).scheduler.state)
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "app short: expected 12ms alone on cpu0, slo 12ms"),
        (
            "WARNING",
            "app pipe: expected 42ms alone on cpu0, more than its slo of 33ms allows: unless it turns out "
            'faster, no request of it can be in time; set [app.pipe] slo = "42ms" or more, or, where that time is '
            "wrong, mend [model.*] expected or run 'edgeserve profile'",
        ),
    ]


def test_a_fan_out_says_what_a_part_takes_and_later_how_many_there_are(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "edgeserve")
    lines = [{"name": "split", "model": "n", "fan_out": True}, {"name": "read", "model": "m", "after": ["split"]}]
    made = world(a={"node": lines, "slo": "1s"})
    state = made.scheduler.state
    log_fits(state)
    one = "one takes 12ms alone and 7ms in full batches"
    assert caplog.messages == [f"app a: expected 42ms alone on cpu0 with 1 part of split ({one}), slo 1s"]
    log = ContradictionLog(CONFIG, {}, state)
    log.look()
    costs = state.costs["a"]
    for parts in (4, 5):
        costs.observe_parts(costs.app.by_name["split"], parts)
    costs.refresh(10**9)
    log.look()
    log.look()
    assert len(caplog.messages) == 2
    assert caplog.messages[1] == f"app a: now expected 70ms alone on cpu0 with 5 parts of split ({one})"


def test_what_the_policy_asks_for_counts(caplog: pytest.LogCaptureFixture) -> None:
    made = world({"clockwork": {"margin_ms": 5.0}}, a={"model": "m", "slo": "15ms"})
    log_fits(made.scheduler.state)
    assert 'slo = "17ms" or more' in caplog.text
    state = made.scheduler.state
    assert app_fit(state, state.apps["a"]).fits  # by the shared estimate, which questions are answered by


def test_loading_is_told_and_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "edgeserve")
    made = Driver(
        {"m": {1: 12, "memory": "1MB", "load": "300ms"}},
        {"a": {"model": "m", "slo": "50ms"}},
        resident={"cpu": []},
        device={"cpu": {"memory": "10MB"}},
    )
    log_fits(made.scheduler.state)
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "app a: expected 12ms alone on cpu0, after 300ms of loading, slo 50ms")
    ]


def test_without_a_lane_nothing_is_expected(caplog: pytest.LogCaptureFixture) -> None:
    made = world(a="m")
    made.lane("cpu0", up=False)
    log_fits(made.scheduler.state)
    assert "app a: no lane can run it now" in caplog.text
    assert app_fit(made.scheduler.state, made.scheduler.state.apps["a"]) == AppFit("a", 100 * MS)
    assert AppFit("a", 100 * MS).table() == {"slo_ms": 100.0, "expected_ms": None, "expected_on": ""}


@pytest.mark.parametrize("busy", [False, True])
def test_the_table_has_the_time_alone_whatever_runs(busy: bool) -> None:
    made = world(a={"node": CHAIN})
    if busy:
        made.arrive("a")
    state = made.scheduler.state
    assert app_fit(state, state.apps["a"]).table() == {"slo_ms": 100.0, "expected_ms": 42.0, "expected_on": "cpu0"}


@pytest.mark.parametrize("policy", ["plan", "rtlm", "fifo", "edf"])
def test_a_start_says_what_an_answer_takes_and_a_refusal_says_the_same(
    caplog: pytest.LogCaptureFixture, policy: str
) -> None:
    caplog.set_level(logging.INFO, "edgeserve")
    app = {"model": "lm", "slo": "5s", "on_late": "drop"}
    made = Driver({"lm": {1: 10, 2: 10}}, {"a": app}, policy, sequences={"lm": (1000, 10, 8)})
    state = made.scheduler.state
    for usual in ({}, {"steps": 30.0, "steps_sd": 0.5}):
        state.apps["a"].usual = usual
        caplog.clear()
        log_fits(state)
        fit = app_fit(state, state.apps["a"], by_policy=True)
        assert fit.alone_ns is not None and fit.alone_ns >= (usual.get("steps", 64)) * 10 * MS, "not of a step"
        (told,) = caplog.messages
        steps = round(usual.get("steps", 64))
        assert told.startswith(f"app a: expected {format_duration(fit.alone_ns)} alone on cpu0 for an answer (usually")
        assert f"{steps} steps of 10ms)" in told
        made.arrive("a", slo=0.5, hints=usual or None)
        refused = [end for end in made.ends.values() if end.shortfall is not None]
        if refused:  # fifo refuses nothing
            assert refused[-1].shortfall.expected_ns == fit.alone_ns
    assert bool(refused) is (policy != "fifo")


@pytest.mark.parametrize(("on_late", "says"), [("partial", "with what they have written"), ("answer", "end late")])
def test_an_answer_that_is_longer_than_its_deadline_is_no_request_that_cannot_be_in_time(
    caplog: pytest.LogCaptureFixture, on_late: str, says: str
) -> None:
    app = {"model": "lm", "slo": "50ms", "on_late": on_late}
    made = Driver({"lm": {1: 10, 2: 10}}, {"a": app}, "plan", sequences={"lm": (1000, 10, 8)})
    log_fits(made.scheduler.state)
    if on_late == "partial":
        assert says in caplog.text and "no request of it can be in time" not in caplog.text
    else:
        assert "no request" not in caplog.text
