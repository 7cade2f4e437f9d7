"""The deadline that a refusal names is enough, and a nanosecond less is not: the same step is replayed with another
deadline. (With trials, less may be enough too: the request may become one.)"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import pytest
from scenarios import product_first

from edgeserve.loop.drive import drive
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.protocol.actions import FinishRequest, Shortfall
from edgeserve.sched.protocol.events import Event, Request, RequestArrived
from edgeserve.sim.run import make_world, setting_of
from edgeserve.taps.trace import RecordedStep
from edgeserve.testing.soak.run import draw_scenario

FOR_THE_DEADLINE = ("cannot_make_deadline", "proactive", "expired")
ASKED_MAX = 4  # refusals of one run that are asked again: each replays the run up to its step
ENOUGH, SEEDS_MAX = 8, 60


class Asked(NamedTuple):
    """One refusal at arrival: the steps before its own, and its own."""

    before: Sequence[RecordedStep]
    step: RecordedStep
    request: Request
    shortfall: Shortfall


def refusals_at_arrival(kind: str, seed: int, trials: bool) -> Tuple[Any, List[Asked]]:
    """The first of a drawn run that have numbers, and how to make the scheduler again."""
    scenario, drain = draw_scenario(seed, (kind,))
    policies = {
        name: replace(policy, options={**policy.options, "trials": trials})
        for name, policy in scenario.config.policies.items()
    }
    scenario = replace(scenario, config=replace(scenario.config, policies=policies))
    setting = setting_of(scenario.config)

    def make() -> Any:
        return build_scheduler(scenario.config, footprints=setting.footprints, resident=setting.resident)

    steps: List[RecordedStep] = []
    asked: List[Asked] = []

    def on_step(now_ns: int, events: Sequence[Event], actions: Sequence[Any]) -> None:
        step = RecordedStep(now_ns, tuple(events), tuple(actions))
        arrived = {event.request.id: event.request for event in events if isinstance(event, RequestArrived)}
        for action in actions:
            if (
                isinstance(action, FinishRequest)
                and action.shortfall is not None
                and action.request_id in arrived
                and action.shortfall.slo_ns_min is not None
                and len(asked) < ASKED_MAX
            ):
                asked.append(Asked(list(steps), step, arrived[action.request_id], action.shortfall))
        steps.append(step)

    drive(make(), make_world(scenario, seed, setting=setting, drain=drain), (on_step,))
    return make, asked


def reason_with(make: Any, asked: Asked, slo_ns: int) -> Optional[str]:
    """The reason why the same request ends in the same step with another deadline; None when it does not."""
    scheduler = make()
    for step in asked.before:
        scheduler.step(step.now_ns, step.events)
    events = []
    for event in asked.step.events:
        if isinstance(event, RequestArrived) and event.request.id == asked.request.id:
            fields = {name: getattr(asked.request, name) for name in Request.fields}
            event = RequestArrived(Request(**{**fields, "deadline_ns": asked.request.arrival_ns + slo_ns}))
        events.append(event)
    for action in scheduler.step(asked.step.now_ns, events):
        if isinstance(action, FinishRequest) and action.request_id == asked.request.id:
            return action.reason
    return None


@pytest.mark.worlds
@pytest.mark.parametrize(
    ("kind", "trials"),
    [
        *product_first(("edf", "clockwork", "nexus", "orloj", "plan", "pard", "pard+"), False),
        *product_first(("edf", "clockwork", "plan"), True),
    ],
)
def test_the_deadline_that_would_do_is_not_refused(kind: str, trials: bool) -> None:
    count = seed = 0
    while count < ENOUGH and seed < SEEDS_MAX:
        seed += 1
        make, refusals = refusals_at_arrival(kind, seed, trials)
        for asked in refusals:
            count += 1
            slo_ns = asked.shortfall.slo_ns_min
            assert slo_ns is not None
            where = f"seed {seed}, step {len(asked.before)}, request {asked.request}: {asked.shortfall}"
            assert reason_with(make, asked, slo_ns) not in FOR_THE_DEADLINE, where
    assert count >= ENOUGH, f"only {count} refusals with numbers: the test looked at nothing"
