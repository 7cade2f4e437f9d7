"""``edgeserve front NAME``: clients of another system or protocol ask a running server, through a process beside it."""

from __future__ import annotations

import argparse
import functools
import importlib
from typing import Any, Callable, Tuple

from edgeserve.commands.fronts import add_front_arguments, serve_front
from edgeserve.commands.parser import Parser, exit_status
from edgeserve.front.registry import installed_fronts, settings_class

FRONTS = {
    "http": "HTTP, gRPC, and the APIs of KServe, OpenAI and Ollama",
    "wyoming": "Home Assistant's voice assistant",
    "mqtt": "an MQTT broker: states for Home Assistant, questions by topic",
    "frigate": "Frigate, the network video recorder, asks an app about its images",
    "camera": "a camera's frames go through an app, and its boxes are shown",
    "bag": "a recorded bag of ROS goes through an app, at the bag's own times",
}
"""Name -> whom it serves."""

COMMANDS = {"camera": "edgeserve.commands.camera", "bag": "edgeserve.commands.bag"}
"""Name -> the module of a front that ends by itself and says what it did."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The name; the other arguments are the front's own."""
    shown = "; ".join(f"{name}: {what}" for name, what in FRONTS.items())
    parser.add_argument("name", metavar="NAME", help=shown)
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="of that front: edgeserve front NAME --help"
    )
    if isinstance(parser, Parser):
        parser.more = _others


def _others() -> str:
    """The fronts of other packages, for the help."""
    found = installed_fronts()
    shown = ", ".join(f"{name} (of the package {found[name].package})" for name in sorted(found))
    return f"\nInstalled as well: {shown}.\n" if shown else ""


def main(args: argparse.Namespace) -> int:
    """Run the front; the exit status is the front's."""
    parser, run = front_parser(args.name)
    return int(run(parser.parse_args(args.arguments)))


def front_parser(name: str) -> Tuple[Parser, Callable[[argparse.Namespace], Any]]:
    """The parser of a front's own arguments, and what runs it. A class of one's own has its table in the configuration
    alone: ``edgeserve front NAME CONFIG``."""
    what = FRONTS.get(name, f"the front of the table [front.{name}]")
    parser = Parser(prog=f"edgeserve front {name}", description=f"{what[0].upper()}{what[1:]}.", epilog=exit_status({}))
    if name in COMMANDS:
        module = importlib.import_module(COMMANDS[name])
        module.add_arguments(parser)
        return parser, module.main
    add_front_arguments(parser, settings_class(name))
    return parser, functools.partial(serve_front, kind=name)
