"""The contract of a command as tests: subclass once per command, give its verb, run pytest.

What a command does is its own tests' business; this suite asks whether a person or a script can rely on its options,
its exit status and its JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
from typing import Any, List, NamedTuple, Sequence, Set

import pytest

from edgeserve import cli
from edgeserve.errors import nearest

STATUS = re.compile(r"(?<![\w.])(\d+):")
"""An exit status in the last paragraph of a command's help: ``Exit status: 0: done; 2: wrong usage``."""


class Ran(NamedTuple):
    """The end of a run, and what it printed."""

    status: int
    out: str
    err: str


class CommandConformance:
    """A command that keeps its promises: ``edgeserve VERB``, of this package or installed by another one. ``words``
    are the arguments of a run that ends by itself."""

    verb = ""
    words: Sequence[str] = ()
    missing: Sequence[str] = ()
    """Arguments that name a file or a server ``absent``, which is not there; empty for a command that reads none."""

    figures = False
    """True if the command prints figures, which scripts read as JSON."""

    def parser(self) -> argparse.ArgumentParser:
        """The command's parser with all its arguments."""
        return cli.verb_parser(self.verb)[0]

    def command(self) -> List[str]:
        """The words before the arguments."""
        return [self.verb]

    def run(self, words: Sequence[str]) -> Ran:
        """Run the command with these arguments; a ``SystemExit`` is an end with its status."""
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            try:
                status = cli.main([*self.command(), *words])
            except SystemExit as end:
                status = int(end.code or 0)
        return Ran(status, out.getvalue(), err.getvalue())

    def options(self) -> List[str]:
        """The long names of the command's options, without ``--help``."""
        actions: Any = self.parser()._actions
        return [name for each in actions for name in each.option_strings if name.startswith("--") and name != "--help"]

    @pytest.fixture(autouse=True)
    def _in_an_empty_folder(self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    def test_help_explains_every_argument_and_the_exit_status(self) -> None:
        silent = [each.dest for each in self.parser()._actions if not each.help]
        ran = self.run(["--help"])
        assert (ran.status, ran.err, silent) == (0, "", [])
        assert not [name for name in self.options() if name not in ran.out]
        assert {0, 2} <= self._statuses()

    def test_an_unknown_option_is_refused_with_the_nearest_and_does_nothing(self) -> None:
        known = self.options()
        wrong = [f"{name}s" for name in known if f"{name}s" not in known] or ["--absent"]
        before = os.listdir()
        for name in wrong:
            ran = self.run([*self.words, name])
            assert (ran.status, ran.out) == (2, ""), name
            assert f"{name}: there is no such option{nearest(name, [*known, '--help'])}" in ran.err
        assert os.listdir() == before

    def test_a_run_ends_with_a_status_that_the_help_names(self) -> None:
        if self.words:
            ran = self.run(self.words)
            assert ran.status in self._statuses() - {2}, ran.err

    def test_figures_are_printed_as_json_too_with_the_same_status(self) -> None:
        if self.figures:
            assert "--json" in self.options()
        if not self.words or "--json" not in self.options():
            return
        plain, ran = self.run(self.words), self.run([*self.words, "--json"])
        assert ran.status == plain.status
        assert _objects(ran.out), ran.out

    def test_what_is_not_there_is_one_line_and_no_traceback(self) -> None:
        if not self.missing:
            return
        ran = self.run(self.missing)
        assert (ran.status, ran.out) == (2, "")
        assert "absent" in ran.err and "Traceback" not in ran.err

    def _statuses(self) -> Set[int]:
        last = " ".join(str(self.parser().epilog).split())
        return {int(number) for number in STATUS.findall(last)}


def _objects(out: str) -> List[Any]:
    """The JSON values of an output: one, or one a line."""
    try:
        return [json.loads(out)]
    except ValueError:
        return [json.loads(line) for line in out.splitlines()]
