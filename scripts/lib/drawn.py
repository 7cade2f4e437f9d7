"""Drawn parts of pages: text that a script makes from the code or from results, between two marks in a page.

    <!-- drawn NAME: python scripts/draw/x.py -->
    ...
    <!-- end of NAME -->

The scripts in ``scripts/draw`` have ``parts() -> {NAME: text}`` and call :func:`main`; ``tests/test_docs.py`` holds the
pages against them. What stands outside the marks is written by hand and never touched.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from typing import Mapping, Sequence

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def filled(page: str, parts: Mapping[str, str], script: str) -> str:
    """``page`` with each part between its marks. ``ValueError`` when a mark is missing or a part is not known."""
    for name, text in parts.items():
        start, end = f"<!-- drawn {name}: python {script} -->", f"<!-- end of {name} -->"
        if page.count(start) != 1 or page.count(end) != 1 or page.index(start) > page.index(end):
            raise ValueError(f"the page needs the line {start!r} once and after it {end!r} once")
        head, rest = page.split(start)
        page = f"{head}{start}\n{text.strip()}\n{end}{rest.split(end)[1]}"
    strange = set(re.findall(rf"<!-- drawn ([\w ]+): python {re.escape(script)} -->", page)) - set(parts)
    if strange:
        raise ValueError(f"{script} draws no {sorted(strange)}, only {sorted(parts)}")
    return page


def stale(path: str, parts: Mapping[str, str], script: str) -> bool:
    """True if the page at ``path`` (relative to the root) differs from a new drawing."""
    page = _read(path)
    return filled(page, parts, script) != page


def main(path: str, parts: Mapping[str, str], script: str, argv: Sequence[str] | None = None) -> int:
    """Write the parts into the page; with ``--check`` only say whether it is up to date (exit status 1: it is not)."""
    parser = argparse.ArgumentParser(description=f"Draw parts of {path}.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 when the page is out of date")
    args = parser.parse_args(argv)
    page = _read(path)
    drawn = filled(page, parts, script)
    if args.check:
        if drawn != page:
            print(f"{path} is out of date: run python {script}", file=sys.stderr)
        return int(drawn != page)
    if drawn != page:
        with open(os.path.join(ROOT, path), "w", encoding="utf-8") as file:
            file.write(drawn)
    print(f"{path}: {'drawn anew' if drawn != page else 'up to date'}")
    return 0


def _read(path: str) -> str:
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()
