"""The policies by the name that a configuration's ``kind`` gives. A new one adds its line here."""

from __future__ import annotations

from typing import Dict, Type

from edgeserve.sched.policies.clipper import Clipper
from edgeserve.sched.policies.clockwork import Clockwork
from edgeserve.sched.policies.edf import Edf
from edgeserve.sched.policies.fifo import Fifo
from edgeserve.sched.policies.nexus import Nexus
from edgeserve.sched.policies.orloj.plus import OrlojPlus
from edgeserve.sched.policies.orloj.published import Orloj
from edgeserve.sched.policies.pard.policy import Pard, PardPlus
from edgeserve.sched.policies.pard_local.policy import PardLocal
from edgeserve.sched.policies.rtlm.plus import RtlmPlus
from edgeserve.sched.policies.rtlm.published import Rtlm
from edgeserve.sched.policies.schemble.baselines import EnsembleStatic
from edgeserve.sched.policies.schemble.plus import SchemblePlus
from edgeserve.sched.policies.schemble.schemble import Schemble
from edgeserve.sched.policy_api.policy import Policy

POLICIES: Dict[str, Type[Policy]] = {
    "fifo": Fifo,
    "edf": Edf,
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
