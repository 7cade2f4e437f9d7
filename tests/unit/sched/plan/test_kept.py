"""What the plan keeps until something changes decides as if it were made anew at each step."""

from __future__ import annotations

import json

import pytest
from cores import run_interpreted

WORLDS = """
import json, sys
from edgeserve.sched.plan.members import Looked
from edgeserve.testing.soak.run import soak
def digests():
    return [soak(seed, policies=("plan",), **{kwargs}).digest for seed in range({first}, {first} + {count})]
kept = digests()
asked = []
def always(self, board):
    asked.append(board.now_ns)
    return True
Looked.is_over = always
print(json.dumps([kept, digests(), len(asked)]))
"""


@pytest.mark.worlds
@pytest.mark.parametrize("kwargs", [{"pair": True}, {"deep": True}, {"hardware": True}], ids=str)
def test_the_requests_of_ensembles_are_looked_at_whenever_that_matters(kwargs):
    code = WORLDS.replace("{kwargs}", repr(kwargs)).replace("{first}", "300").replace("{count}", "12")
    kept, fresh, asked = json.loads(run_interpreted(code))
    assert kept == fresh
    assert asked
