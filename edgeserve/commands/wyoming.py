"""``edgeserve front wyoming``: apps as Home Assistant's voice services, beside a running server."""

from __future__ import annotations

import argparse
import socket

from edgeserve.commands.fronts import add_front_arguments, serve_front

ROLES = {
    "wake": "the app that hears wake words",
    "vad": "the app that hears whether somebody speaks",
    "asr": "the app that makes text of sound",
    "intent": "the app that answers a sentence, or says what it intends",
    "tts": "the app that speaks",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``edgeserve front wyoming``."""
    add_front_arguments(parser)
    for role, what in ROLES.items():
        parser.add_argument(f"--{role}", default="", metavar="APP", help=what)
    parser.add_argument(
        "--listen",
        default="",
        metavar="HOST:PORT",
        help="where Home Assistant and satellites ask (default: 127.0.0.1:10300; port 0: any free one)",
    )
    parser.add_argument(
        "--zeroconf",
        nargs="?",
        const=socket.gethostname(),
        default="",
        metavar="NAME",
        help="let Home Assistant find this front, under this name (default: the machine's)",
    )
    parser.add_argument(
        "--language", action="append", metavar="CODE", help="that the apps understand, again for more (default: en)"
    )
    parser.add_argument(
        "--wake-word", action="append", metavar="WORD", help="that may be heard, again for more (default: any)"
    )
    parser.add_argument("--wake-every-ms", type=float, metavar="MS", help="between two looks (default: 250)")
    parser.add_argument("--wake-unit", action="store_true", help="the wake app's floats go from -1 to 1, not to 32768")
    parser.add_argument("--tts-rate", type=int, metavar="HZ", help="of speech whose app says none (default: 22050)")
    parser.add_argument(
        "--sorry", default="", metavar="TEXT", help="said for a refused answer (default: Sorry, not now.)"
    )


def main(args: argparse.Namespace) -> int:
    """Serve until a signal; the exit status is 0 after a clean end."""
    return serve_front(
        args,
        "wyoming",
        apps={role: getattr(args, role) for role in ROLES if getattr(args, role)},
        languages=tuple(args.language or ()),
        wake_words=tuple(args.wake_word or ()),
        wake_every_ms=args.wake_every_ms,
        wake_unit=args.wake_unit,
        tts_rate=args.tts_rate,
        sorry=args.sorry or None,
        listen=args.listen or None,
        zeroconf=args.zeroconf or None,
    )
