"""The policies by the name that a configuration's ``kind`` gives. A new one adds its line here.

``plan`` is the default. Those as published (``sched/published``) are named in words: they are imported when a
configuration asks for one.
"""

from __future__ import annotations

from edgeserve.sched.policies.registry import Registry

POLICIES = Registry(
    {
        "fifo": "edgeserve.sched.published.baselines.fifo:Fifo",
        "edf": "edgeserve.sched.published.common.edf:Edf",
        "plan": "edgeserve.sched.plan.lane_plan:LanePlan",
        "clockwork": "edgeserve.sched.published.clockwork.clockwork:Clockwork",
        "clipper": "edgeserve.sched.published.baselines.clipper:Clipper",
        "nexus": "edgeserve.sched.published.baselines.nexus:Nexus",
        "orloj": "edgeserve.sched.published.orloj.orloj:Orloj",
        "pard": "edgeserve.sched.published.pard.pard:Pard",
        "pard+": "edgeserve.sched.published.pard.pard:PardPlus",
        "schemble": "edgeserve.sched.published.schemble.schemble:Schemble",
        "ensemble_static": "edgeserve.sched.published.schemble.ensemble_static:EnsembleStatic",
        "rtlm": "edgeserve.sched.published.rtlm.rtlm:Rtlm",
    }
)

REPLACED = ("auto", "orloj+", "rtlm+", "schemble+", "pard_local")
"""Kinds of earlier versions, which ``plan`` stands for."""
