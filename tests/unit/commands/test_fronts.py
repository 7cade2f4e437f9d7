"""The settings of a front: from its table of the configuration, and from the command's arguments, which go first."""

from __future__ import annotations

import pytest

from edgeserve.commands import front, fronts


@pytest.fixture
def settings_of(tmp_path, monkeypatch):
    """The settings that ``edgeserve front`` serves with, given its arguments and its table."""

    def found(arguments, table):
        config = tmp_path / "edge.toml"
        config.write_text(f"[front.{arguments[0]}]\n{table}\n")
        parser, run = front.front_parser(arguments[0])
        served = []

        def note(made, settings, *more):
            served.append(settings)
            raise InterruptedError

        monkeypatch.setattr(fronts, "run_front", note)
        with pytest.raises(InterruptedError):
            run(parser.parse_args([*arguments[1:], str(config)]))
        return served[0]

    return found


@pytest.mark.parametrize("arguments", [["frigate", "--app", "a"], ["camera", "--app", "a", "test"]])
def test_a_table_counts_where_no_argument_does_and_a_zero_is_an_argument(settings_of, arguments):
    assert settings_of(arguments, "score = 0.2").score == 0.2
    assert settings_of([arguments[0], "--score", "0", *arguments[1:]], "score = 0.2").score == 0.0


def test_the_rate_of_a_camera_is_its_tables(settings_of):
    settings = settings_of(["camera", "--app", "a", "test"], "rate = 5\nframes = 7")
    assert (settings.rate, settings.frames) == (5, 7)
