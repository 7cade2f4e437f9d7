"""Which settings a front has: the arguments of its command go before its table, where they are given."""

from __future__ import annotations

import pytest

from edgeserve import cli
from edgeserve.commands import fronts

TABLE = """
[model.m]
engine = "synthetic"
[app.a]
model = "m"
[front.camera]
source = "test"
app = "a"
score = 0.3
rate = 7
lines = "boxes.json"
[front.frigate]
app = "a"
score = 0.3
"""


@pytest.fixture
def settings_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edge.toml").write_text(TABLE)

    class Stop(Exception):
        pass

    def settings_of(*words):
        found = []

        def run_front(made, settings, *rest):
            found.append(settings)
            raise Stop

        monkeypatch.setattr(fronts, "run_front", run_front)
        with pytest.raises(Stop):
            cli.main(["front", *words])
        return found[0]

    return settings_of


def test_what_no_argument_says_is_the_tables(settings_of):
    settings = settings_of("camera", "test", "edge.toml", "--app", "a")
    assert (settings.score, settings.rate) == (0.3, 7)
    assert settings_of("frigate", "edge.toml").score == 0.3


def test_an_argument_goes_first_and_zero_and_nothing_are_values(settings_of):
    settings = settings_of("camera", "test", "edge.toml", "--app", "a", "--score", "0", "--rate", "0", "--lines", "")
    assert (settings.score, settings.rate, settings.lines) == (0.0, 0.0, "")
    assert settings_of("frigate", "edge.toml", "--score", "0").score == 0.0
