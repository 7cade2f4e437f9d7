"""Shortfalls of the replications that are known: the one place where they are listed, each with its band and a reason.

A command ends with status 1 when a check falls short that does not stand here, when one that does has left its band
(to the worse or to the better), and when it holds. Bands are what runs on today's code showed, give or take what seeds
move; a reason says why the number of the paper or of the specification is not reached, or that nobody knows. Checks are
named as they are printed; quick runs have a list of their own, since they run something else.
"""

from __future__ import annotations

from typing import Dict, Mapping

from lib.checks import Checks, Known

AHEAD = "ahead has no limit: the source says which is better, not by how much"
GOAL = "the source states a bound, not a value: beyond it is as good"
LEAST = "the bound is the most or the least that can be"
OURS = "ours beside a simpler rule, with nothing published: more ahead is no fault"
COST = "a cost on this machine: less is better"

KNOWN: Mapping[str, Mapping[str, Known]] = {}
"""Script, with ``--quick`` behind it where that was given -> name of a check -> what is known of it."""


def checks_of(script: str, quick: bool = False) -> Checks:
    """The checks of a replication's command, by its path below the project's root: every one has two sides or a reason,
    and what stands in :data:`KNOWN` may fall short."""
    known: Dict[str, Known] = dict(KNOWN.get(f"{script} --quick" if quick else script, {}))
    return Checks(script, known, strict=True)
