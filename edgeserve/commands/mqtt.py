"""``edgeserve front mqtt``: a running server on an MQTT broker, for Home Assistant and others."""

from __future__ import annotations

import argparse
from typing import Dict, Sequence, Tuple
from urllib.parse import urlsplit

from edgeserve.commands.fronts import add_front_arguments, serve_front
from edgeserve.errors import ConfigError
from edgeserve.front import lines_of

PORTS = {"mqtt": 1883, "mqtts": 8883}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``edgeserve front mqtt``."""
    add_front_arguments(parser)
    parser.add_argument(
        "--broker",
        default="",
        metavar="URL",
        help="mqtt:// or mqtts://HOST[:PORT] (default: mqtt://127.0.0.1)",
    )
    parser.add_argument("--user", default="", help="who this front is to the broker")
    parser.add_argument("--password-file", default="", metavar="FILE", help="its password, alone in a file")
    parser.add_argument(
        "--name",
        default="",
        help="of this server on the broker: topics edgeserve/NAME/... (default: this host's name)",
    )
    parser.add_argument("--discovery", metavar="PREFIX", help="of Home Assistant's discovery; '' for none")
    parser.add_argument(
        "--ask", action="append", default=[], metavar="APP", help="may be asked by topic; again for more"
    )
    parser.add_argument(
        "--asker",
        action="append",
        default=[],
        metavar="WHO",
        help="has a share of its own for ask/APP/WHO, which the broker keeps for it; again for more",
    )
    parser.add_argument(
        "--publish",
        action="append",
        default=[],
        metavar="FILTER",
        help="answers with a topic and a payload may be published to such topics; again for more",
    )
    parser.add_argument(
        "--camera", action="append", default=[], metavar="NAME=TOPIC", help="pictures (JPEG) on a topic; again for more"
    )
    parser.add_argument("--detect", default="", metavar="APP", help="the app that looks at the pictures")
    parser.add_argument("--form", default="", metavar="FORM", help="how it answers, as for edgeserve front frigate")
    parser.add_argument("--score", type=float, metavar="SHARE", help="the least score (default: 0.4)")
    parser.add_argument("--labels", default="", metavar="FILE", help="the names of the classes, one a line")
    parser.add_argument(
        "--watch", action="append", default=[], metavar="LABEL", help="that has a sensor of its own; again for more"
    )
    parser.add_argument("--every", type=float, metavar="S", help="between two states (default: 10)")
    parser.add_argument("--may-reload", action="store_true", help="the broker may have the configuration read again")


def main(args: argparse.Namespace) -> int:
    """Serve until a signal; the exit status is 0 after a clean end."""
    host, port, tls = _broker(args.broker) if args.broker else (None, None, False)
    return serve_front(
        args,
        "mqtt",
        host=host,
        port=port,
        tls=tls,
        user=args.user or None,
        password_file=args.password_file or None,
        name=args.name or None,
        discovery=None if args.discovery is None else args.discovery.strip("/"),
        ask=tuple(args.ask),
        askers=tuple(args.asker),
        publish=tuple(args.publish),
        cameras=_cameras(args.camera),
        detect=args.detect or None,
        form=args.form or None,
        score_min=args.score,
        labels=tuple(line.strip() for line in lines_of("--labels", args.labels) if line.strip()),
        watch=tuple(args.watch),
        every_s=args.every,
        may_reload=args.may_reload,
    )


def _broker(url: str) -> Tuple[str, int, bool]:
    try:
        parts = urlsplit(url if "//" in url else f"//{url}", "mqtt")
        port = parts.port or PORTS[parts.scheme]
    except (ValueError, KeyError):
        port = 0
    if not port or not parts.hostname or parts.username or parts.path.strip("/"):
        raise ConfigError(f"--broker {url!r}: expected such as mqtt://192.0.2.1:1883; a user goes to --user")
    return parts.hostname, port, parts.scheme == "mqtts"


def _cameras(given: Sequence[str]) -> Dict[str, str]:
    pairs = [each.partition("=") for each in given]
    wrong = [each for each, (name, _, topic) in zip(given, pairs) if not name or not topic]
    if wrong:
        raise ConfigError(f"--camera {wrong[0]!r}: expected NAME=TOPIC, such as door=cameras/door/image")
    return {name: topic for name, _, topic in pairs}
