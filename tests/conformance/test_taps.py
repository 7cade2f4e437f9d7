"""The taps of the package keep the contract of taps."""

from __future__ import annotations

from typing import Any

import pytest

from edgeserve.config.loading import parse_config
from edgeserve.live.plug_ins import TapPlace, plug_in
from edgeserve.testing.tap_conformance import TapConformance


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
    class Bad:
        def begin(self, start: Any) -> None: ...

        def tap(self, now_ns: int, events: Any, actions: Any) -> None:
            if fault == "raises":
                raise ValueError("a full disk")
            events.clear()

        def close(self) -> None: ...

    class Suite(TapConformance):
        def tap(self, place: Any) -> Any:
            return Bad()

    with pytest.raises((AssertionError, ValueError)):
        Suite().test_it_hears_of_steps_and_changes_none(tmp_path)
