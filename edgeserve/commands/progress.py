"""The progress of a command that takes more than a moment: steps that are done, and how long the rest may take."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from edgeserve.units import format_duration, s_to_ns


class TimeLeft(ProgressColumn):
    """The time that the steps to come may take: as long as the finished ones, and before the first is, the task's
    field ``step_s`` each (at most)."""

    def render(self, task: Task) -> Text:
        """``about 12s left``; nothing where there is nothing to say."""
        elapsed_s, total, step_s = task.elapsed or 0.0, task.total or 0.0, task.fields.get("step_s", 0.0)
        if task.finished or not (task.completed or step_s):
            return Text("")
        left_s = (elapsed_s / task.completed if task.completed else step_s) * (total - task.completed)
        if not task.completed:
            left_s -= elapsed_s
        return Text(
            f"{'about' if task.completed else 'at most'} {format_duration(s_to_ns(max(1.0, round(left_s))))} left"
        )


def progress(console: Console, disable: bool = False) -> Progress:
    """A line per task on a terminal, which is taken away at the end; nothing where there is none."""
    columns: Any = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeLeft())
    return Progress(*columns, console=console, transient=True, disable=disable or not console.is_terminal)
