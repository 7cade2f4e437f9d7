"""The parser of a command's arguments: options have one spelling, and a wrong one is answered with the nearest."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Callable, Mapping, Sequence

from edgeserve.config.gone import GONE
from edgeserve.errors import nearest


def exit_status(ends: Mapping[int, str]) -> str:
    """The last paragraph of a command's help; ``ends`` says what its own exit statuses mean."""
    meanings = {0: "done", 2: "wrong usage, a wrong file, or no server that answers", **ends}
    return f"Exit status: {'; '.join(f'{status}: {meanings[status]}' for status in sorted(meanings))}."


class Parser(argparse.ArgumentParser):
    """A parser that takes whole option names only, so that a new option never changes what an old command means."""

    more: Callable[[], str] = str
    """Makes the end of the help when that is printed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def format_help(self) -> str:
        """As argparse, with what :attr:`more` adds."""
        return super().format_help() + self.more()

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """As argparse; an unknown option is reported before anything else, with the nearest that exists."""
        words = list(sys.argv[1:] if args is None else args)
        if not any(action.nargs == argparse.REMAINDER for action in self._actions):
            self._refuse_unknown(words)
        return super().parse_args(words, namespace)

    def _refuse_unknown(self, words: Sequence[str]) -> None:
        for word in words:
            option = word.partition("=")[0]
            if word == "--":
                return
            if option.startswith("--") and " " not in option and option not in self._option_string_actions:
                if f"{self.prog} {option}" in GONE:
                    self.error(f"{option}: there is no such option any more; {GONE[f'{self.prog} {option}']}")
                known = [name for name in self._option_string_actions if name.startswith("--")]
                self.error(f"{option}: there is no such option{nearest(option, known)}")
