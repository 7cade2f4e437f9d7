"""The contract of taps (:class:`edgeserve.tap.Tap`), as a pytest class: subclass it, and say how yours is made.

A tap hears of every step of the scheduler on the loop's thread. So it may neither change what it hears of, nor raise,
nor wait; and it ends once.
"""

from __future__ import annotations

import copy
import itertools
import time
from typing import Any, Dict, List, Tuple

from edgeserve.config.loading import parse_config
from edgeserve.config.schema import Config
from edgeserve.sched.protocol import actions as done
from edgeserve.sched.protocol import events as heard
from edgeserve.sched.protocol.actions import Action, FinishRequest, LatencyBreakdown, Outcome
from edgeserve.sched.protocol.events import Event, JobId, JobResult, Request, RequestArrived, RequestCancelled

START: Dict[str, Any] = {"footprints": {}, "resident": {}, "measured": {}, "sequences": {}, "sizes": {}, "profiles": []}
"""The start of a recording without a model."""

JOB = JobId(71, "m", ())
EVENTS: List[Event] = [
    heard.BatchProgress(1, 0, (JobResult(JOB),)),
    heard.WorkFinished(2, 0, 1, (JobResult(JOB, "failed", reason="out of memory"),)),
    heard.WorkFinished(3, 0, 1, (), "the file is gone"),
    heard.WorkRefused(4, "its window has passed"),
    heard.LaneChanged("cpu", False, reason="it hangs"),
    heard.LaneChanged("cpu", speed=0.5),
    heard.DeviceChanged("cpu", 1 << 30),
    RequestArrived(Request(72, "a", 0, 50_000_000)),
    RequestCancelled(72),
    heard.DrainRequested(),
]
ACTIONS: List[Action] = [
    done.RunBatch(5, "cpu", "m", (JOB,), 1, 0, 1, 1_000_000),
    done.CutBatch(5, "cpu"),
    done.LoadModel(6, "copy:cpu", "m", 1, 1_000_000),
    done.EvictModel(7, "copy:cpu", "m"),
    done.DropState(JOB),
    done.ReleaseState(JOB),
    done.LeaveOut(JOB),
    done.KeepWritten(JOB),
    done.RetainInputs(JOB),
    done.ReleaseInputs(JOB),
    *(FinishRequest(71 + place, outcome, "a reason") for place, outcome in enumerate(done.OUTCOMES)),
]
"""One of each kind at least."""

STEPS = 2000
STEP_NS_MAX = 1_000_000
"""The most that a step may cost the loop in the mean: a batch of a small model takes as long."""


class TapConformance:
    """Subclass it, with a name that pytest collects, and override :meth:`tap`."""

    def tap(self, place: Any) -> Any:
        """A new tap; ``place`` is a folder for its files."""
        raise NotImplementedError

    def test_it_hears_of_steps_and_changes_none(self, tmp_path: Any) -> None:
        """Events and actions belong to the scheduler."""
        tap = self.tap(tmp_path)
        tap.begin(_config(), START)
        steps = [_step(number) for number in range(4)]
        before = copy.deepcopy(steps)
        for step in steps:
            assert tap.tap(*step) is None
        tap.close()
        assert steps == before

    def test_it_takes_every_kind_of_event_and_action(self, tmp_path: Any) -> None:
        """Requests and works that it has not heard of before, too."""
        tap = self.tap(tmp_path)
        tap.begin(_config(), START)
        for number, (event, action) in enumerate(itertools.zip_longest(EVENTS, ACTIONS)):
            tap.tap(1_000_000 * number, [event] if event else [], [action] if action else [])
        tap.close()

    def test_it_does_not_hold_up_the_loop(self, tmp_path: Any) -> None:
        """Disks and networks are for a thread of its own."""
        tap = self.tap(tmp_path)
        tap.begin(_config(), START)
        steps = [_step(number) for number in range(STEPS)]
        began_ns = time.thread_time_ns()
        for step in steps:
            tap.tap(*step)
        took_ns = time.thread_time_ns() - began_ns
        tap.close()
        assert took_ns < STEPS * STEP_NS_MAX

    def test_it_goes_on_under_another_configuration(self, tmp_path: Any) -> None:
        """A reload changes apps and models, not the taps."""
        tap = self.tap(tmp_path)
        tap.begin(_config(), START)
        tap.tap(*_step(1))
        tap.change(_config())
        tap.tap(*_step(2))
        tap.close()

    def test_it_may_end_before_it_has_begun_and_ends_once(self, tmp_path: Any) -> None:
        """A start that fails closes what was opened."""
        self.tap(tmp_path).close()
        tap = self.tap(tmp_path)
        tap.begin(_config(), START)
        tap.close()
        tap.close()


def _config() -> Config:
    return parse_config(
        {"model": {"m": {"engine": "synthetic", "expected": {"1": "1ms"}}}, "app": {"a": {"model": "m"}}}
    )


def _step(number: int) -> Tuple[int, List[Event], List[Action]]:
    now_ns = 1_000_000 * number
    request = Request(number, "a", now_ns, now_ns + 50_000_000)
    end = FinishRequest(number, Outcome.CANCELLED, "cancelled by its client", LatencyBreakdown(0, 0, 0, 0))
    return now_ns, [RequestArrived(request), RequestCancelled(number, "cancelled by its client")], [end]
