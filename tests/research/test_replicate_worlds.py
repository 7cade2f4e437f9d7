"""Drawn worlds for ``plan``: what cohorts take, the oracle against trying everything, and the plain node of 34 +
6b ms that was once served worse by cohorts than by ``edf``."""

from __future__ import annotations

import itertools
import random

import pytest
from common.pard_oracle import most_in_time
from replicate.pard import worlds
from replicate.pard.cases import poisson_ns
from replicate.pard.worlds import Case, Costs, Pipeline, Stage

pytestmark = pytest.mark.nightly

MS = 1_000_000
NODE, HOST = Stage(False, 34_000, 6000, 8), Stage(True, 0, 4000, 1)


def test_a_cohort_takes_its_batches_and_the_functions_that_nothing_hides():
    costs = Costs([HOST, Stage(False, 10_000, 1000, 4), HOST, Stage(False, 5000, 1000, 32), HOST])
    assert costs.device_ns(6) == (14 + 12 + 11) * MS and costs.host_ns(6) == 72 * MS and costs.before_ns() == 4 * MS
    # The first batch is over at 14, the sixth function at 14 + 24 = 38, the last batch at 49, its functions at 73.
    assert costs.takes_ns(6) == 73 * MS
    assert Costs([NODE]).groups(18) == [(0, (82 + 46) * MS), (8, 46 * MS), (16, 0)]


def best_by_trying(arrivals, slo, cost, limit):
    """Single requests of one model, every order of batches: how many can be in time."""

    def can(rest, free):
        if not rest:
            return True
        return any(
            can(rest[count:], ends)
            for count in range(1, min(limit, len(rest)) + 1)
            for ends in [max(free, rest[count - 1]) + cost(count)]
            if ends <= rest[0] + slo
        )

    return next(
        count
        for count in range(len(arrivals), -1, -1)
        if any(can(served, 0) for served in itertools.combinations(arrivals, count))
    )


@pytest.mark.parametrize("seed", range(20))
def test_answers_batch_by_batch_are_the_best_that_a_single_model_can_do(seed):
    draw = random.Random(f"batches {seed}")
    arrivals = sorted(draw.randrange(0, 60) * MS for _ in range(7))
    slo, costs = draw.randrange(12, 50) * MS, Costs([Stage(False, 6000, 4000, draw.randrange(1, 4))])
    got = most_in_time(arrivals, slo, costs.device_ns, MS, None, costs.groups)
    assert got == best_by_trying(arrivals, slo, costs.device_ns, costs.stages[0].limit)


@pytest.mark.parametrize("stages", [(NODE,), (HOST, NODE)], ids=["plain", "function at the entry"])
def test_plan_serves_a_single_node_as_well_as_the_best_rule(stages):
    pipeline = Pipeline("one", stages, 250)
    arrivals = poisson_ns([1.2 * 8 / 0.082] * 6, 5)
    lost = {row: worlds.run(Case(pipeline, 5, 1.2, row, arrivals)) for row in ("plan", "edf", worlds.OPTIMUM)}
    assert lost["plan"] <= lost[worlds.OPTIMUM] + 1.0
    assert lost["plan"] <= lost["edf"] + 0.1
