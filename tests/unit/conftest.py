"""Hypothesis for all unit tests: the same examples on every run, and no limit on time: that belongs to the machine."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("edgeserve", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("edgeserve")
