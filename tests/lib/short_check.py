"""``edgeserve check`` with few requests, two seeds and three loads: enough where its figures are not the subject."""

from __future__ import annotations

import pytest

from edgeserve.commands import check

SHORT = {"REQUESTS_WANTED": 200, "REQUESTS_MAX": 400, "DURATION_S_MIN": 0.5, "SEEDS": 2, "STEPS": 3}


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SHORT.items():
        monkeypatch.setattr(check, name, value)
