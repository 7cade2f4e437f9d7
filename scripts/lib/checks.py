"""What every script with a result has: its first options, and the table of checks that it ends with."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from typing import Any, List, Mapping, NamedTuple


def arguments(doc: str | None, quick: str = "") -> argparse.ArgumentParser:
    """A parser with ``--json``, and ``--quick`` where ``quick`` says what that does; ``doc`` is the script's page."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write rows and checks there")
    if quick:
        parser.add_argument("--quick", action="store_true", help=quick)
    return parser


class Check(NamedTuple):
    """One row."""

    name: str
    value: float
    bound: str
    holds: bool


class Checks:
    """Collects rows; :meth:`finish` prints them and gives the exit status: 1 when one falls short.

    ``script`` is the path below the project's root."""

    def __init__(self, script: str) -> None:
        self.script = script
        self.rows: List[Check] = []

    def at_least(self, name: str, value: float, bound: float) -> None:
        """The value must reach the bound."""
        self.rows.append(Check(name, value, f">= {bound:.3g}", value >= bound))

    def at_most(self, name: str, value: float, bound: float) -> None:
        """The value must not exceed the bound."""
        self.rows.append(Check(name, value, f"<= {bound:.3g}", value <= bound))

    def is_true(self, name: str, holds: bool) -> None:
        """A statement that must hold."""
        self.rows.append(Check(name, float(holds), "holds", holds))

    def finish(self, path: str | None, circumstances: Mapping[str, Any], **more: Any) -> int:
        """Print the table; write it, and whatever else is given, to ``path`` as JSON. Returns the exit status."""
        width = max([len(row.name) for row in self.rows] + [5])
        print("\n" + ", ".join(f"{key} {value}" for key, value in circumstances.items()))
        print(f"{'check':{width}}  {'value':>9}  {'must':>9}")
        for row in self.rows:
            print(f"{row.name:{width}}  {row.value:9.3f}  {row.bound:>9}  {'holds' if row.holds else 'FALLS SHORT'}")
        if path:
            with open(path, "w", encoding="utf-8") as file:
                command = shlex.join(["python", self.script, *sys.argv[1:]])
                json.dump(
                    {
                        "script": self.script,
                        "circumstances": {"command": command, **circumstances},
                        "checks": [row._asdict() for row in self.rows],
                        **more,
                    },
                    file,
                    indent=1,
                )
                file.write("\n")
        return 0 if all(row.holds for row in self.rows) else 1
