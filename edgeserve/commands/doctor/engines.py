"""Engines that diagnose themselves: what only they know of their libraries, their plans and this device.

An engine's package may have a module ``diagnose`` with ``findings(config)``: it takes the configuration, or None, and
returns (subject, status, text, mend) per finding, with the statuses of :mod:`edgeserve.commands.doctor.finding`. An
engine that is not there, or has no such module, says nothing; one that fails is itself a finding.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import List, Optional, Sequence

from edgeserve.commands.doctor.finding import Finding, wrong
from edgeserve.config.schema import Config

DIAGNOSES = (
    "edgeserve.engines.cuda.diagnose",
    "edgeserve.engines.tensorrt.diagnose",
)


def check_engines(config: Optional[Config], modules: Sequence[str] = DIAGNOSES) -> List[Finding]:
    """The findings of each engine that has any."""
    found: List[Finding] = []
    for name in modules:
        if not _exists(name):
            continue
        try:
            found += [Finding(*item) for item in importlib.import_module(name).findings(config)]
        except Exception as error:  # noqa: BLE001 a library that is broken must not hide the other findings
            engine = name.split(".")[-2]
            found += wrong(
                engine,
                f"its check fails: {type(error).__name__}: {error}",
                f"install the libraries of the engine {engine} anew (docs/guide/engines.md)",
            )
    return found


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False  # the engine's package is absent
