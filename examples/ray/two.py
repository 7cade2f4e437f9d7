"""Two replicas on one machine: images by the hundred, one replica is killed on the way, and every request ends.

    python examples/ray/two.py [--requests 400] [--address auto]

Starts a local Ray cluster (or uses the one at ``--address``), deploys ``edge.toml`` twice, asks, kills one of the two
processes when half of the requests have ended, and prints who answered what. Exit status 1 when a request got
neither an answer nor a refusal.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Tuple

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import numpy as np
import ray
from ray import serve

from edgeserve.errors import RequestError, ServerGone
from edgeserve.fronts.ray.client import ClusterClient
from edgeserve.fronts.ray.deployment import RayDevice, run

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = "two-replicas"
WAIT_S_MAX = 90.0


def images(count: int) -> List[np.ndarray[Any, Any]]:
    """Images from blurred to sharp."""
    random = np.random.default_rng(1)
    return [(random.random((480, 640)) * 255 * (number + 1) / count).astype(np.uint8) for number in range(count)]


def ask(client: ClusterClient, image: Any) -> Tuple[str, int]:
    """How one request ended, and in which process."""
    try:
        answer = client.infer("focus", {"image": image})
    except ServerGone:
        return "lost", 0
    except RequestError as error:
        return f"refused: {getattr(error, 'reason', '') or error.code}", 0
    return "late" if answer.late else "in time", answer["process"]


def both_answer(client: ClusterClient) -> Dict[str, Any]:
    """Wait for both replicas; the dispatcher's table."""
    end_s = time.monotonic() + WAIT_S_MAX
    while True:
        table: Dict[str, Any] = client.stats()["dispatcher"]
        if all(row["up"] for row in table.values()):
            return table
        if time.monotonic() > end_s:
            sys.exit(f"not every replica answers after {WAIT_S_MAX:g} s: {table}")
        time.sleep(0.1)


def load(client: ClusterClient, count: int, victim: int) -> Counter[str]:
    """Ask ``count`` times, at most 16 at a time; kill ``victim`` when half of them have ended."""
    ends: Counter[str] = Counter()
    pictures = images(min(count, 32))
    with ThreadPoolExecutor(16) as threads:
        asked = [threads.submit(ask, client, pictures[number % len(pictures)]) for number in range(count)]
        asked[count // 2].result()
        os.kill(victim, signal.SIGKILL)
        for future in asked:
            end, process = future.result()
            ends[end] += 1
            if process:
                ends[f"process {process}"] += 1
    return ends


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--address", default=None, help="of a cluster that runs (auto: the one on this machine)")
    args = parser.parse_args()
    cpus = {} if args.address else {"num_cpus": 2}
    ray.init(address=args.address, include_dashboard=False, log_to_driver=False, logging_level="error", **cpus)
    try:
        device = RayDevice(os.path.join(HERE, "edge.toml"), {"num_cpus": 1})
        client = run({"first": device, "second": device}, name=NAME)
        both_answer(client)
        victim = client.infer("focus", {"image": images(1)[0]})["process"]
        ends = load(client, args.requests, victim)
        for name, count in sorted(ends.items()):
            print(f"{name:40} {count:6}" + ("   (killed on the way)" if name == f"process {victim}" else ""))
        lost = ends["lost"]
        print(f"{args.requests} requests, one of two replicas killed: {lost or 'none'} lost")
        end_s = time.monotonic() + WAIT_S_MAX
        while not sum(row["returns"] for row in both_answer(client).values()) and time.monotonic() < end_s:
            time.sleep(0.1)
        print(f"both replicas answer again: {', '.join(sorted(both_answer(client)))}")
        return 1 if lost else 0
    finally:
        serve.delete(NAME)
        if not args.address:
            serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
