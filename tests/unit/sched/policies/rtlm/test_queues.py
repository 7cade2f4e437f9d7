"""A task that waits: what is left of it."""

from __future__ import annotations

from hand_world import MS, app_of, job

from edgeserve.sched.policies.rtlm.lengths import Length
from edgeserve.sched.policies.rtlm.queues import Waiting


def test_what_a_model_said_of_its_answer_is_certain():
    waits = Waiting(job(1, app_of("lm")), Length(3.0, 0.5), None, 100 * MS)
    assert 0.0 < waits.chance(20.0) < 1.0
    waits.job.steps_total, waits.job.steps = 30, 10
    assert [waits.chance(steps) for steps in (19.0, 20.0)] == [0.0, 1.0]
    assert [waits.chance(15.0, more) for more in (4, 5)] == [0.0, 1.0]
    assert [waits.remaining(more) for more in (0, 5, 20)] == [20.0, 15.0, 1.0]
