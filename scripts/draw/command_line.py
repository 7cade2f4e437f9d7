"""Draw ``docs/reference/command-line.md``: every command with its arguments, from the parsers themselves."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Dict, List

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/

from lib import drawn

from edgeserve import cli
from edgeserve.commands import front

PAGE, SCRIPT = "docs/reference/command-line.md", "scripts/draw/command_line.py"


def parts() -> Dict[str, str]:
    """The page's parts by name."""
    verbs = [command(verb) for verb in cli.VERBS]
    return {"commands": "\n\n".join(verbs), "fronts": "\n\n".join(front_command(name) for name in front.FRONTS)}


def command(verb: str) -> str:
    """One command: what it does, its exit status, and a row per argument."""
    return _section(cli.verb_parser(verb)[0], "##")


def front_command(name: str) -> str:
    """The command of one front, likewise."""
    parser, _ = front.front_parser(name)
    return _section(parser, "###")


def _section(parser: argparse.ArgumentParser, heading: str) -> str:
    lines = [f"{heading} {parser.prog}", "", str(parser.description), *([parser.epilog] if parser.epilog else [])]
    rows = [f"| {_name(action)} | {_meaning(parser, action)} |" for action in parser._actions if action.dest != "help"]
    return "\n".join([*lines, "", "| argument | means |", "| --- | --- |", *rows])


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
