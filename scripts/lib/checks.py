"""Parts of every script with a result: its first options, and the table of checks that it ends with.

A check has two sides (:meth:`Checks.between`, :meth:`Checks.near`), or one and a reason why one will do. What is known
to fall short stands in a list that is given to :class:`Checks`, with the band in which it does and a reason: a value
outside the band fails, be it worse or better, and so does a check that holds although it stands in the list.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from typing import Any, Dict, List, Mapping, NamedTuple, Optional


def arguments(doc: str | None, quick: str = "") -> argparse.ArgumentParser:
    """A parser with ``--json``, and ``--quick`` where ``quick`` says what that does; ``doc`` is the script's page."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write rows and checks there")
    if quick:
        parser.add_argument("--quick", action="store_true", help=quick)
    return parser


class Known(NamedTuple):
    """A shortfall that is known: the band in which the value lies, both ends included, and why it falls short."""

    low: float
    high: float
    why: str


class Check(NamedTuple):
    """One row. ``one_side``: why it has one side alone; ``known``: the reason of a shortfall that is known and in its
    band; ``wrong``: what is wrong with the list of those, where the value is not what it says."""

    name: str
    value: float
    bound: str
    holds: bool
    one_side: str = ""
    known: str = ""
    wrong: str = ""

    @property
    def passes(self) -> bool:
        """True if this row lets the command end with status 0."""
        return not self.wrong and (self.holds or bool(self.known))

    @property
    def said(self) -> str:
        """The row's last word."""
        if self.wrong:
            return "NOT AS KNOWN"
        return "holds" if self.holds else "known" if self.known else "FALLS SHORT"


class Checks:
    """Collects rows; :meth:`finish` prints them and gives the exit status: 1 when one falls short that is not known to,
    and when there is none.

    ``script`` is the path below the project's root, ``known`` the shortfalls by the name of their check; with
    ``strict`` a check of one side must say why, unless ``one_side`` says it for all."""

    def __init__(
        self, script: str, known: Optional[Mapping[str, Known]] = None, strict: bool = False, one_side: str = ""
    ) -> None:
        self.script = script
        self.known = known or {}
        self.strict = strict
        self.one_side = one_side
        self.about: Dict[str, Any] = {}
        """Circumstances of every run: versions, and the machine."""

        self.rows: List[Check] = []

    def at_least(self, name: str, value: float, bound: float, one_side: str = "") -> None:
        """The value must reach the bound."""
        self._add(name, value, f">= {bound:.3g}", value >= bound, one_side)

    def at_most(self, name: str, value: float, bound: float, one_side: str = "") -> None:
        """The value must not exceed the bound."""
        self._add(name, value, f"<= {bound:.3g}", value <= bound, one_side)

    def between(self, name: str, value: float, low: float, high: float) -> None:
        """The value must lie in a band, ends included."""
        self._add(name, value, f"{low:.4g} to {high:.4g}", low <= value <= high, "both")

    def near(self, name: str, value: float, stated: float, tolerance: float) -> None:
        """The value must be what is stated, give or take the tolerance."""
        self.between(f"{name} (stated: {stated:g})", value, stated - tolerance, stated + tolerance)

    def is_true(self, name: str, holds: bool) -> None:
        """A statement that must hold."""
        self._add(name, float(holds), "holds", holds, "both")

    def _add(self, name: str, value: float, bound: str, holds: bool, one_side: str) -> None:
        one_side = one_side or self.one_side
        if self.strict and not one_side:
            raise ValueError(f"{name!r} has one side and no reason: give it another, or say why one will do")
        known, why, wrong = self.known.get(name), "", ""
        if known is not None:
            why = known.why
            if holds:
                wrong = "holds, though it is listed as falling short: take it off the list"
            elif not known.low <= value <= known.high:
                wrong = f"known to lie between {known.low:.4g} and {known.high:.4g}"
        self.rows.append(Check(name, value, bound, bool(holds), "" if one_side == "both" else one_side, why, wrong))

    def finish(self, path: str | None, circumstances: Mapping[str, Any], **more: Any) -> int:
        """Print the table; write it and the other results to ``path`` as JSON. Returns the exit status."""
        circumstances = {**self.about, **circumstances}
        width = max([len(row.name) for row in self.rows] + [5])
        wide = max([len(row.bound) for row in self.rows] + [9])
        print("\n" + ", ".join(f"{key} {value}" for key, value in circumstances.items()))
        print(f"{'check':{width}}  {'value':>9}  {'must':>{wide}}")
        for row in self.rows:
            print(f"{row.name:{width}}  {row.value:9.3f}  {row.bound:>{wide}}  {row.said}")
        for row in self.rows:
            if row.known or row.wrong or not row.holds:
                print(_told(row))
        if not self.rows:
            print("no check was made: nothing of what these options run has one")
        if path:
            with open(path, "w", encoding="utf-8") as file:
                command = shlex.join(["python", self.script, *sys.argv[1:]])
                json.dump(
                    {
                        "script": self.script,
                        "circumstances": {"command": command, **circumstances},
                        "checks": [_stored(row) for row in self.rows],
                        **more,
                    },
                    file,
                    indent=1,
                )
                file.write("\n")
        return 0 if self.rows and all(row.passes for row in self.rows) else 1


def _told(row: Check) -> str:
    """A line on a row that falls short, or is not as known."""
    what = "holds" if row.holds else "falls short"
    line = f"{what}: {row.name}: {row.value:.4g} where {row.bound}"
    if row.wrong:
        line += f"; {row.wrong}"
    return f"{line} (known: {row.known})" if row.known else line


def _stored(row: Check) -> Dict[str, Any]:
    """A row for a file, without what it does not have."""
    return {key: value for key, value in row._asdict().items() if value != "" or key in ("name", "bound")}
