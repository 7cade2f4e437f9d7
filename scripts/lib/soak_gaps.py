"""The longest gap as an invariant: a seed draws apps of one class and value, all under ``edf`` or each under a policy
of its own, on a lane with a load of up to 2.5, and no app is given up for ever.

*The rule* (``docs/guide/sharing-a-device.md``): from the first of its requests that is given up on, one of an app
starts within ``PASSED_SLOS`` of its deadlines, the one more that a batch needs to be done, the batches of the others
that start before it, and the pause until its next request. Each app's deadline leaves room for one batch of any other
app and for its own: its requests could be served.
"""

from __future__ import annotations

import random
from typing import Any, Dict, List, NamedTuple, Sequence

from edgeserve.sched.policy_api.arbiter import PASSED_SLOS
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import Scenario, parse_scenario
from edgeserve.sim.world import Ended
from edgeserve.units import NS_PER_MS, NS_PER_S

RUN_S = 8
KINDS = ("edf", "plan")
"""The policies, one per app, of worlds that are not all under the same ``edf``."""


class GapError(AssertionError):
    """An app was without an answer in time for longer than the rule allows. The text has the seed that replays it."""


class GapResult(NamedTuple):
    """One run in which every gap was within its bound: the longest, as a share of its bound."""

    seed: int
    share: float


def bounded_gaps(seed: int) -> GapResult:
    """Run one seed. Raises :class:`GapError`, and any error of the simulator."""
    scenario = draw_gaps(seed)
    ended = simulate(scenario, seed, ()).world.ended
    shares = [0.0]
    for app in scenario.config.apps.values():
        gap_ns, bound_ns = longest_gap_ns(ended, app.name), bound_of_ns(scenario, app.name)
        shares.append(gap_ns / bound_ns)
        if gap_ns > bound_ns:
            raise GapError(
                f"seed {seed}: {app.name} was given up for {gap_ns / NS_PER_MS:.0f} ms in a row, and the bound is "
                f"{bound_ns / NS_PER_MS:.0f} ms: {PASSED_SLOS} deadlines of {app.slo_ns / NS_PER_MS:g} ms and its wait"
            )
    return GapResult(seed, max(shares))


def bound_of_ns(scenario: Scenario, app: str) -> int:
    """For how long an app's requests may be given up in a row."""
    config = scenario.config
    slowest_ns = sum(max(model.expected.values()) for model in config.models.values())
    rate = next(item.rate for item in scenario.workloads if item.app == app)
    return (PASSED_SLOS + 2) * config.apps[app].slo_ns + 2 * slowest_ns + round(2 * NS_PER_S / rate)


def longest_gap_ns(ended: Sequence[Ended], app: str) -> int:
    """From the arrival of a request of an app that was not in time to that of the last one in a row."""
    longest_ns, since_ns = 0, -1
    for item in sorted([item for item in ended if item.request.app == app], key=lambda item: item.request.arrival_ns):
        arrival_ns = item.request.arrival_ns
        if item.in_time:
            since_ns = -1
        elif since_ns < 0:
            since_ns = arrival_ns
        else:
            longest_ns = max(longest_ns, arrival_ns - since_ns)
    return longest_ns


def draw_gaps(seed: int) -> Scenario:
    """Two to four apps, each with a model of its own, some asked much more often than others. The least requested apps
    are requested evenly: a pause is no gap. Odd seeds give each app a policy of its own."""
    draw = random.Random(f"{seed}/gaps")
    count, load = draw.randrange(2, 5), draw.choice((1.0, 1.3, 1.6, 2.0, 2.5))
    shares = [draw.choice((1, 1, 2, 5, 20, 60)) for _ in range(count)]
    models: Dict[str, Any] = {}
    apart = seed % 2 == 1
    fulls_us: List[float] = []
    longest_us = 0
    for index in range(count):
        fixed_us, item_us = draw.randrange(500, 12000), draw.randrange(200, 2500)
        sizes = [1, 2, 4, 8, 16][: draw.choice((1, 3, 4, 5))]
        expected = {str(size): f"{fixed_us + item_us * size}us" for size in sizes}
        models[f"m{index}"] = {"engine": "synthetic", "batch": sizes, "expected": expected}
        fulls_us.append((fixed_us + item_us * sizes[-1]) / sizes[-1])
        longest_us = max(longest_us, fixed_us + item_us * sizes[-1])
    return parse_scenario(
        {
            "model": models,
            "policy": {f"p{index}": {"kind": draw.choice(KINDS)} for index in range(count)} if apart else {"plan": {}},
            "app": {
                f"a{index}": {
                    "model": f"m{index}",
                    "slo": f"{3 * longest_us + draw.randrange(60_000)}us",
                    "policy": f"p{index}" if apart else "plan",
                }
                for index in range(count)
            },
            "workload": {
                f"w{index}": {
                    "app": f"a{index}",
                    "kind": draw.choice(("poisson", "periodic")) if shares[index] > 2 else "periodic",
                    "rate": max(4.0, load * shares[index] / sum(shares) * 1e6 / fulls_us[index]),
                }
                for index in range(count)
            },
            "run": {"duration": f"{RUN_S}s", "noise": 0.03, "step_cost": "20us", "event_cost": "0us"},
        },
        source=f"(drawn by seed {seed})",
    )
