"""Progress: how long the rest may take, on a terminal alone."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from edgeserve.commands.progress import TimeLeft, progress


@pytest.mark.parametrize(
    ("elapsed_s", "completed", "step_s", "text"),
    [
        (0.0, 0, 3.0, "at most 30s left"),
        (2.0, 0, 3.0, "at most 28s left"),
        (8.0, 4, 3.0, "about 12s left"),
        (5.0, 0, 0.0, ""),  # nothing is known
        (20.0, 10, 3.0, ""),
    ],
)
def test_the_time_left_is_that_of_the_steps_to_come(elapsed_s, completed, step_s, text):
    now_s = [0.0]
    with progress(Console(file=io.StringIO(), force_terminal=True)) as bars:
        bars.get_time = lambda: now_s[0]
        bars.add_task("", total=10, step_s=step_s)
        task = bars.tasks[0]
        now_s[0] = elapsed_s
        bars.update(task.id, completed=completed)
        assert str(TimeLeft().render(task)) == text


def test_a_file_gets_no_progress():
    written = io.StringIO()
    with progress(Console(file=written)) as bars:
        bars.advance(bars.add_task("measuring", total=2))
    assert written.getvalue() == ""
