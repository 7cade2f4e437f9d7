"""The taps of the package keep the contract of taps."""

from __future__ import annotations

from typing import Any

import pytest

from edgeserve.config.loading import parse_config
from edgeserve.live.plug_ins import plug_in
from edgeserve.live.taps import TapPlace
from edgeserve.sched.protocol.actions import ACTION_KINDS
from edgeserve.sched.protocol.events import EVENT_KINDS
from edgeserve.tap import Tap
from edgeserve.testing.tap_conformance import ACTIONS, EVENTS, TapConformance


def place_of(folder: Any, provider: Any = None) -> TapPlace:
    config = parse_config({"server": {"record": "run.jsonl"}}, str(folder))
    return TapPlace(config, True, provider, lambda request_id: None)


class TestRecording(TapConformance):
    def tap(self, place: Any) -> Any:
        return plug_in("recording")(place_of(place))


class TestSpans(TapConformance):
    def tap(self, place: Any) -> Any:
        sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="pip install -e '.[otel]'")
        return plug_in("spans")(place_of(place, sdk.TracerProvider()))


@pytest.mark.parametrize("fault", ["changes", "raises"])
def test_a_tap_that_breaks_it_is_noticed(fault: str, tmp_path: Any) -> None:
    class Bad(Tap):
        def tap(self, now_ns: int, events: Any, actions: Any) -> None:
            if fault == "raises":
                raise ValueError("a full disk")
            events.clear()

    class Suite(TapConformance):
        def tap(self, place: Any) -> Any:
            return Bad()

    with pytest.raises((AssertionError, ValueError)):
        Suite().test_it_hears_of_steps_and_changes_none(tmp_path)


def test_the_contract_brings_every_kind_of_event_and_action() -> None:
    assert {type(event).__name__ for event in EVENTS} == set(EVENT_KINDS)
    assert {type(action).__name__ for action in ACTIONS} == set(ACTION_KINDS)
