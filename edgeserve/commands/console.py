"""The consoles that the commands draw tables and bars on."""

from __future__ import annotations

from typing import IO, Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from edgeserve.config.plain_text import printable


class PlainConsole(Console):
    """A console whose colours and moves of the cursor are its own alone: what names and texts hold of such sequences is
    shown (:func:`~edgeserve.config.plain_text.printable`). It writes to the stream itself, past any wrapper."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))

    @property
    def file(self) -> IO[str]:
        file = super().file
        while hasattr(file, "rich_proxied_file"):
            file = file.rich_proxied_file
        return file

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file
