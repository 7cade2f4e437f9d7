"""The policies by the name that a configuration's ``kind`` gives. A new one adds its line here."""

from __future__ import annotations

from typing import Dict, Type

from edgeserve.sched.plan.lane_plan import LanePlan
from edgeserve.sched.policies.edf import Edf
from edgeserve.sched.policies.fifo import Fifo
from edgeserve.sched.policies.orloj_plus import OrlojPlus
from edgeserve.sched.policies.pard_local.pard_local import PardLocal
from edgeserve.sched.policies.published.clipper import Clipper
from edgeserve.sched.policies.published.clockwork import Clockwork
from edgeserve.sched.policies.published.nexus import Nexus
from edgeserve.sched.policies.published.orloj.orloj import Orloj
from edgeserve.sched.policies.published.pard.pard import Pard, PardPlus
from edgeserve.sched.policies.published.rtlm.rtlm import Rtlm
from edgeserve.sched.policies.published.schemble.baselines import EnsembleStatic
from edgeserve.sched.policies.published.schemble.schemble import Schemble
from edgeserve.sched.policies.rtlm_plus import RtlmPlus
from edgeserve.sched.policies.schemble_plus.schemble_plus import SchemblePlus
from edgeserve.sched.policy_api.policy import Policy

POLICIES: Dict[str, Type[Policy]] = {
    "fifo": Fifo,
    "edf": Edf,
    "plan": LanePlan,
    "clockwork": Clockwork,
    "clipper": Clipper,
    "nexus": Nexus,
    "orloj": Orloj,
    "orloj+": OrlojPlus,
    "pard": Pard,
    "pard+": PardPlus,
    "pard_local": PardLocal,
    "schemble": Schemble,
    "schemble+": SchemblePlus,
    "ensemble_static": EnsembleStatic,
    "rtlm": Rtlm,
    "rtlm+": RtlmPlus,
}
