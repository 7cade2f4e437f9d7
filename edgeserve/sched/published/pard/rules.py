"""When a request is dropped: PARD's test and the ones it is compared with (section 4 of the specification).

Every rule is asked once per module, at ``t_b``, just before a request would join a forming batch that starts at
``t_e``. With ``d`` the module's batch time and ``t_r`` the request's arrival at the module:

| rule | drops when |
| --- | --- |
| ``pard`` | ``t_e + d`` + queues, batches and a low quantile of the waits still to come > deadline (Eq. 3) |
| ``lower``, ``upper`` | the same with no waits, with the longest waits |
| ``sf`` | ``t_e + d`` + batches still to come > deadline |
| ``back`` | ``t_e + d`` > deadline |
| ``oc`` | the same; and an overloaded module, and the first, turn requests away at random |
| ``split``, ``wcl`` | ``t_e + d - t_r`` > the module's fixed share of the SLO, by batch times or by worst latencies |
| ``clipper++`` | ``t_b - t_r`` > its share, by batch times |
| ``nexus`` | it stands before the first window of a full batch in which every request satisfies ``back`` |
| ``naive`` | never |
"""

from __future__ import annotations

from typing import Mapping, NamedTuple

END_TO_END, STAY, WAIT, NEVER = "end to end", "stay in the module", "wait in the module", "never"


class Rule(NamedTuple):
    """``test`` is what is compared, ``rest`` what counts behind the module (:class:`Planner`), ``order`` the order that
    the rule was published with. ``scan`` looks at whole windows, ``worst`` makes shares of worst latencies,
    ``lottery`` turns requests away at random."""

    test: str
    rest: str = "none"
    order: str = "adaptive"
    scan: bool = False
    worst: bool = False
    lottery: bool = False


RULES: Mapping[str, Rule] = {
    "pard": Rule(END_TO_END, "qdw"),
    "lower": Rule(END_TO_END, "qd"),
    "upper": Rule(END_TO_END, "qdd"),
    "sf": Rule(END_TO_END, "d"),
    "back": Rule(END_TO_END),
    "oc": Rule(END_TO_END, lottery=True),
    "split": Rule(STAY),
    "wcl": Rule(STAY, worst=True),
    "clipper++": Rule(WAIT, order="fcfs"),
    "nexus": Rule(END_TO_END, order="fcfs", scan=True),
    "naive": Rule(NEVER, order="fcfs"),
}

ORDERS = ("published", "adaptive", "fcfs", "hbf", "lbf", "instant")
COLLECTS = ("ahead", "just_in_time")
ACROSS = ("round_robin", "edf", "least_slack", "fullest", "fifo", "downstream")
PATHS = ("longest", "expected")
ESTIMATORS = ("uniform", "empirical", "joint")
BATCH_TIMES = ("auto", "full", "measured")
