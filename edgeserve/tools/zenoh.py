"""``edgeserve zenoh edge.toml --app detect --topic /camera/image_raw``: images of ROS 2 over Zenoh to an app, and its
detections back."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import time
from typing import Any, Dict

from edgeserve.client import AsyncClient
from edgeserve.errors import ConfigError
from edgeserve.fronts.zenoh import KINDS, ROUTER, ZenohFront, open_session
from edgeserve.tools.fronts import run_front
from edgeserve.tools.image_front import add_image_arguments, detector_of, table_of, text_of

log = logging.getLogger("edgeserve")

DOMAIN_MAX = 232


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``edgeserve zenoh``."""
    add_image_arguments(parser)
    parser.add_argument(
        "--topic", required=True, metavar="TOPIC", help="the topic of images, such as /camera/image_raw"
    )
    parser.add_argument(
        "--kind", default="image", choices=sorted(KINDS), help="Image, CompressedImage or PointCloud2 (default: image)"
    )
    parser.add_argument("--out", default="/detections", metavar="TOPIC", help="default: %(default)s")
    parser.add_argument(
        "--connect", default=ROUTER, metavar="PLACE", help="ROS 2's Zenoh router (default: %(default)s)"
    )
    parser.add_argument("--domain", default="", metavar="N", help="ROS domain (default: $ROS_DOMAIN_ID, else 0)")


def main(args: argparse.Namespace) -> int:
    """Run until a signal; the exit status is 0 after a clean end."""
    domain = args.domain or os.environ.get("ROS_DOMAIN_ID", "") or "0"
    if not domain.isdigit() or int(domain) > DOMAIN_MAX:
        raise ConfigError(f"--domain {domain!r}: expected a number from 0 to {DOMAIN_MAX}")
    table = run_front(args, "zenoh", lambda client, stopped: _run(args, int(domain), client, stopped))
    print(text_of(table), file=sys.stderr)
    return 0


async def _run(args: argparse.Namespace, domain: int, client: AsyncClient, stopped: asyncio.Event) -> Dict[str, Any]:
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    detector = detector_of(args, client)
    await detector.look("a topic")
    session = await loop.run_in_executor(None, open_session, args.connect)
    try:
        front = ZenohFront(session, detector, args.topic, KINDS[args.kind], args.out, domain, time.time_ns)
        await front.run(stopped, lambda key: log.info("subscribed to %s, detections on %s", key, args.out))
    finally:
        session.close()
    return table_of(front.tally, args.app, args.topic, detector.input.slo_ms, loop.time() - begin_s)
