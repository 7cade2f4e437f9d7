"""``edgeserve wyoming``: apps as Home Assistant's voice services, beside a running server."""

from __future__ import annotations

import argparse
import asyncio
import logging
import socket

from edgeserve.client import AsyncClient
from edgeserve.config.addresses import host_and_port
from edgeserve.tools.fronts import add_front_arguments, front_module, run_front

log = logging.getLogger("edgeserve")

ROLES = {
    "wake": "the app that hears wake words",
    "vad": "the app that hears whether somebody speaks",
    "asr": "the app that makes text of sound",
    "intent": "the app that answers a sentence, or says what it intends",
    "tts": "the app that speaks",
}

PATIENCE_MS = 120_000.0
"""The apps' own deadlines are shorter; a language model's may be a minute."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``edgeserve wyoming``."""
    add_front_arguments(parser)
    for role, what in ROLES.items():
        parser.add_argument(f"--{role}", default="", metavar="APP", help=what)
    parser.add_argument(
        "--listen",
        default="127.0.0.1:10300",
        metavar="HOST:PORT",
        help="where Home Assistant and satellites ask (default: %(default)s; port 0: any free one)",
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
    parser.add_argument(
        "--wake-every-ms", type=float, default=250.0, metavar="MS", help="between two looks (default: 250)"
    )
    parser.add_argument("--wake-unit", action="store_true", help="the wake app's floats go from -1 to 1, not to 32768")
    parser.add_argument(
        "--tts-rate", type=int, default=22_050, metavar="HZ", help="of speech whose app says none (default: 22050)"
    )
    parser.add_argument(
        "--sorry", default="Sorry, not now.", metavar="TEXT", help="said for a refused answer (default: %(default)s)"
    )


def main(args: argparse.Namespace) -> int:
    """Serve until a signal; the exit status is 0 after a clean end."""
    wyoming = front_module("wyoming")
    host, port = host_and_port("--listen", args.listen, "127.0.0.1:10300")
    voice = wyoming.Voice(
        {role: getattr(args, role) for role in ROLES},
        tuple(args.language or ("en",)),
        tuple(args.wake_word or ()),
        args.wake_every_ms,
        args.wake_unit,
        args.tts_rate,
        args.sorry,
    )

    async def serve(client: AsyncClient, stopped: asyncio.Event) -> None:
        front = wyoming.WyomingFront(client, voice)
        await front.look()
        apps = ", ".join(f"{role} {app.name}" for role, app in front.apps.items())
        await front.serve(
            host,
            port,
            stopped,
            lambda place: log.info("ready on %s: %s of %s", place, apps, client.endpoint),
            args.zeroconf,
        )
        log.info("%s", ", ".join(f"{count} {what}" for what, count in sorted(front.counts.items())) or "nothing asked")

    run_front(args, "wyoming", serve, PATIENCE_MS)
    return 0
