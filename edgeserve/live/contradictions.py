"""Says in the log when served batches contradict what a model's estimates began with: once per model and lane.

The judgement is the latency model's (``sched/latency/contradiction.py``). It belongs to the loop's thread, which asks
every few seconds and not per request.
"""

from __future__ import annotations

import logging
from typing import Mapping, Tuple

from edgeserve.config.profile_match import profile_command
from edgeserve.config.schema import Config
from edgeserve.sched.latency.confidence import EXPECTED, PROFILE
from edgeserve.sched.latency.contradiction import Contradiction
from edgeserve.sched.latency.model import ModelLatency
from edgeserve.units import NS_PER_S, format_duration

log = logging.getLogger("edgeserve")

LOOK_NS = 5 * NS_PER_S
"""How often the latency models are asked, at the end of a work."""


class ContradictionLog:
    """The latency models of which nothing was said yet."""

    def __init__(self, config: Config, latency: Mapping[Tuple[str, str], ModelLatency]) -> None:
        self._config = config
        self._quiet = dict(latency)

    def look(self) -> None:
        """Say what contradicts now. O(models on lanes)."""
        for key, latency in list(self._quiet.items()):
            found = latency.contradiction()
            if found is not None:
                del self._quiet[key]
                log.warning("%s", warning_text(self._config, latency.model, latency.lane, found))


def warning_text(config: Config, model: str, lane: str, found: Contradiction) -> str:
    """Both numbers, and what to do."""
    began, served = format_duration(found.began_ns), format_duration(found.served_ns)
    command = f"run '{profile_command(config, model, force=found.source == PROFILE)}'"
    if found.source == PROFILE:
        believed, mend = f"its profile says {began}", f"else {command}"
    elif found.source == EXPECTED:
        believed, mend = f"[model.{model}.expected] says {began}", f"else correct {config.source}, or {command}"
    else:
        believed, mend = f"the runs at start took {began}", f"else {command}, so that it need not measure at start"
    factor = max(found.served_ns, found.began_ns) / max(1, min(found.served_ns, found.began_ns))
    return (
        f"model {model} on lane {lane}: batches of {found.size} take {served}, {believed} (a factor of "
        f"{factor:.1f}, as most of the last {found.batches} batches looked at). Estimates follow what is served, "
        f"but fall back after a pause and at the next start. Look for throttling and other load; {mend}"
    )
