"""Draw ``docs/reference/command-line.md``: every command with its arguments, from the parsers themselves."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Dict, List

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/

from lib import drawn

from edgeserve import cli

PAGE, SCRIPT = "docs/reference/command-line.md", "scripts/draw/command_line.py"


def parts() -> Dict[str, str]:
    """The page's parts by name."""
    return {"commands": "\n\n".join(command(verb) for verb in cli.VERBS)}


def command(verb: str) -> str:
    """One command: what it does, then a row per argument."""
    home, what = cli.VERBS[verb]
    parser = argparse.ArgumentParser(prog=f"edgeserve {verb}", add_help=False)
    importlib.import_module(home).add_arguments(parser)
    lines = [f"## edgeserve {verb}", "", f"{what[0].upper()}{what[1:]}.", "", "| argument | means |", "| --- | --- |"]
    return "\n".join(lines + [f"| {_name(action)} | {_meaning(parser, action)} |" for action in parser._actions])


def _name(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else str(action.metavar or (action.dest.upper() if action.option_strings else ""))
    names: List[str] = [f"{name} {value}".strip() for name in action.option_strings] or [value or action.dest]
    return ", ".join(f"`{name}`" for name in names).replace("|", "\\|")


def _meaning(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    text = " ".join(parser._get_formatter()._expand_help(action).split()) if action.help else ""
    if action.choices is not None:
        text += f" (one of {', '.join(map(str, action.choices))})"
    return text.strip().replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.exit(drawn.main(PAGE, parts(), SCRIPT))
