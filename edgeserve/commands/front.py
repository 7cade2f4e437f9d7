"""``edgeserve front NAME``: clients of another system or protocol ask a running server, through a process beside it."""

from __future__ import annotations

import argparse
import functools
import importlib
from typing import Any, Callable, Tuple

from edgeserve.commands.fronts import add_front_arguments, serve_front
from edgeserve.commands.parser import Parser, exit_status

FRONTS = {
    "http": ("edgeserve.commands.http", "HTTP, gRPC, and the APIs of KServe, OpenAI and Ollama"),
    "wyoming": ("edgeserve.commands.wyoming", "Home Assistant's voice assistant"),
    "mqtt": ("edgeserve.commands.mqtt", "an MQTT broker: states for Home Assistant, questions by topic"),
    "frigate": ("edgeserve.commands.frigate", "Frigate, the network video recorder, asks an app about its images"),
    "camera": ("edgeserve.commands.camera", "a camera's frames go through an app, and its boxes are shown"),
    "bag": ("edgeserve.commands.bag", "a recorded bag of ROS goes through an app, at the bag's own times"),
}
"""Name -> the module of its command, and whom it serves."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The name; the other arguments are the front's own."""
    shown = "; ".join(f"{name}: {what}" for name, (_, what) in FRONTS.items())
    parser.add_argument("name", metavar="NAME", help=shown)
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="of that front: edgeserve front NAME --help"
    )


def main(args: argparse.Namespace) -> int:
    """Run the front; the exit status is the front's."""
    parser, run = front_parser(args.name)
    return int(run(parser.parse_args(args.arguments)))


def front_parser(name: str) -> Tuple[Parser, Callable[[argparse.Namespace], Any]]:
    """The parser of a front's own arguments, and what runs it. A front of another package, or a class of one's own,
    has its table in the configuration: ``edgeserve front NAME CONFIG``."""
    home, what = FRONTS.get(name, ("", f"the front of the table [front.{name}]"))
    parser = Parser(prog=f"edgeserve front {name}", description=f"{what[0].upper()}{what[1:]}.", epilog=exit_status({}))
    if not home:
        add_front_arguments(parser)
        return parser, functools.partial(serve_front, kind=name)
    module = importlib.import_module(home)
    module.add_arguments(parser)
    return parser, module.main
