"""Tables and bars keep their colours and moves of the cursor; what names and texts hold of such is shown."""

from __future__ import annotations

import contextlib
import io

from rich.live import Live
from rich.progress import Progress
from rich.table import Table

from edgeserve.commands.console import PlainConsole
from edgeserve.config.plain_text import PlainOutput

NAME = "cam\x1b[2J\x9b\x07era"
SHOWN = r"cam\x1b[2"


@contextlib.contextmanager
def screen():
    """The terminal of a command, as ``edgeserve.cli`` has it."""
    out = io.StringIO()
    with contextlib.redirect_stdout(PlainOutput(out)):
        yield out


def table():
    made = Table("app")
    made.add_row(f"[bold]{NAME}[/bold]", style="red")
    return made


def test_a_table_has_its_colours_and_names_have_none():
    with screen() as out:
        PlainConsole(force_terminal=True, width=60).print(table())
    assert "31m" in out.getvalue() and SHOWN in out.getvalue()
    assert "\x1b[2J" not in out.getvalue() and "\x9b" not in out.getvalue()


def test_a_picture_that_changes_moves_the_cursor_and_what_is_printed_beside_it_does_not():
    with screen() as out:
        console = PlainConsole(force_terminal=True, width=60)
        with Live(table(), console=console, auto_refresh=False) as live:
            print("beside", NAME)
            live.update(table(), refresh=True)
    assert "\x1b[1A" in out.getvalue() and SHOWN in out.getvalue() and "\x1b[2J" not in out.getvalue()


def test_a_bar_is_drawn_and_taken_away():
    with screen() as out:
        with Progress(
            console=PlainConsole(force_terminal=True, width=60), transient=True, auto_refresh=False
        ) as progress:
            progress.add_task(NAME, total=3)
            progress.refresh()
    assert "\x1b[?25l" in out.getvalue() and SHOWN in out.getvalue() and "\x1b[2J" not in out.getvalue()


def test_a_console_of_a_stream_of_its_own_writes_there():
    with screen() as out:
        own = io.StringIO()
        PlainConsole(file=own, width=60).print(NAME)
    assert SHOWN in own.getvalue() and not out.getvalue()
