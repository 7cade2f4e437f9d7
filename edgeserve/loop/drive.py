"""The loop: the only code that connects a scheduler to a world, live or simulated.

It knows neither sockets nor time. A :class:`World` tells it what happened and when, the scheduler says what to do.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Protocol, Sequence, Tuple

from edgeserve.sched.protocol.actions import Action
from edgeserve.sched.protocol.events import Event

OnStep = Callable[[int, Sequence[Event], Sequence[Action]], None]
"""Sees every step (now, events, actions) before the actions are performed: recording, timelines."""


class World(Protocol):
    """Everything the scheduler cannot see. The live one has lanes and a clock, the simulated one a heap of events."""

    @property
    def stopped(self) -> bool:
        """Nothing more will happen; the loop ends."""

    def perform(self, action: Action) -> None:
        """Begin an action. Each work is answered later by exactly one ``WorkFinished`` or ``WorkRefused``."""

    def wait(self, until_ns: Optional[int]) -> Tuple[int, List[Event]]:
        """Wait for events or until ``until_ns``, whichever comes first. Without events ``now >= until_ns`` unless the
        world stopped; ``until_ns`` of ``None`` waits for an event alone."""


def drive(scheduler: Any, world: World, taps: Sequence[OnStep] = ()) -> None:
    """Turn the loop until the world has stopped: wait, decide once for everything that happened, perform. ``taps`` may
    change meanwhile, by the loop's thread."""
    while not world.stopped:
        now_ns, events = world.wait(scheduler.wake_ns)
        actions = scheduler.step(now_ns, events)
        for tap in tuple(taps):
            tap(now_ns, events, actions)
        for action in actions:
            world.perform(action)
