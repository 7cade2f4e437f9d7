"""``edgeserve front bag FILE --app detect``: a recorded bag of ROS through an app, at the bag's own times.

Live, against a running server (:mod:`edgeserve.fronts.bag`), or with ``--simulate`` in virtual time: the same
scheduler, the same configuration and measured times, and no server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import logging
import os
import sys
import tempfile
from typing import Any, Dict, Mapping

from edgeserve.client import AsyncClient
from edgeserve.commands.connection import add_connection_arguments
from edgeserve.commands.fronts import add_setting_arguments, settings_with
from edgeserve.commands.image_front import DETECTOR, table_of, text_of
from edgeserve.commands.report_tables import print_reports
from edgeserve.commands.simulate import print_json, wide_console
from edgeserve.config.plain_text import log_to
from edgeserve.config.schema import Config
from edgeserve.errors import ConfigError
from edgeserve.front.runner import LOG_FORMAT, run_connected
from edgeserve.fronts.bag import BagReader, BagRun, BagWriter, arrivals_ms
from edgeserve.fronts.camera_front import CameraFront, CameraSettings, detector_of
from edgeserve.live.own_policies import import_policies
from edgeserve.live.stats import percentiles_ms
from edgeserve.python_file import CONFIG_HELP, config_at, sections_of
from edgeserve.sim.report import report_of
from edgeserve.sim.run import machine_to_simulate, profiles_to_simulate, simulate
from edgeserve.sim.scenario import EDGE_SECTIONS, Scenario, parse_scenario


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``edgeserve front bag``."""
    parser.add_argument("bag", help="an .mcap file, a folder with metadata.yaml, or a .bag file of ROS 1")
    parser.add_argument("config", nargs="?", default="", help=f"for its endpoint, and to simulate: {CONFIG_HELP}")
    add_connection_arguments(parser, "this front's own keys")
    add_setting_arguments(parser, CameraSettings, DETECTOR)
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="TOPIC",
        help="several times for several (default: the only one)",
    )
    parser.add_argument("--out", default="", metavar="FOLDER", help="write the detections to a new bag")
    parser.add_argument(
        "--outputs", action="store_true", help="with --out: write the app's outputs as std_msgs, not detections"
    )
    parser.add_argument(
        "--simulate", action="store_true", help="in virtual time, with the configuration's times: needs no server"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def main(args: argparse.Namespace) -> int:
    """Run the bag to its end or a signal; the exit status is 0 when what was sent has ended."""
    settings = settings_with(args, CameraSettings())
    if not settings.app:
        raise ConfigError("no app is named: set --app")
    with BagReader(args.bag, args.topic) as reader:
        if args.simulate:
            return _simulate(args, settings.app, reader)
        log_to(sys.stderr, logging.INFO, LOG_FORMAT)
        endpoint = args.endpoint or (config_at(args.config).server.endpoint if args.config else "")
        keys = {"server_key": args.server_key, "client_key": args.client_key}
        serve = functools.partial(_play, args, settings, reader)
        table = run_connected(serve, endpoint, name="bag", timeout_ms=CameraFront.timeout_ms, **keys)
    if args.json:
        print_json(table)
        return 0
    print(text_of(table))
    if args.out:
        print(f"{table['boxes']} boxes written to {args.out}" if not args.outputs else f"written to {args.out}")
    return 0


async def _play(
    args: argparse.Namespace, settings: CameraSettings, reader: BagReader, client: AsyncClient, stopped: asyncio.Event
) -> Dict[str, Any]:
    detector = detector_of(client, settings)
    await detector.look("a bag")
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(BagWriter(args.out)) if args.out else None
        run = BagRun(reader, detector, writer, args.outputs)
        await run.play(stopped)
    loop = f"{', '.join(reader.topics)} at the bag's times ({run.span_s:.1f} s)"
    table = table_of(run.tally, settings.app, loop, detector.input.slo_ms, run.span_s)
    return {**table, "sent_late_p99_ms": percentiles_ms(run.lags_ns).get("p99", 0.0)}


def _simulate(args: argparse.Namespace, app: str, reader: BagReader) -> int:
    if not args.config:
        raise ConfigError(
            "--simulate needs the server's configuration: edgeserve front bag FILE edge.toml --app APP --simulate"
        )
    if args.out:
        raise ConfigError("--out and --simulate: virtual time runs no model, so there are no answers to write")
    times_ms = arrivals_ms(reader)
    with tempfile.TemporaryDirectory(prefix="edgeserve-bag-") as folder:
        scenario = scenario_of(config_at(args.config), app, times_ms, folder)
        import_policies(scenario.config)
        measured = machine_to_simulate(scenario.config)
        world = simulate(scenario, scenario.run.seed, profiles_to_simulate(scenario.config), measured=measured).world
    report = report_of([world], 0, scenario.run.duration_ns)
    if args.json:
        print_json(report.as_table())
    else:
        print_reports({"virtual time": report}, wide_console())
    return 0


def scenario_of(config: Config, app: str, times_ms: Mapping[str, Any], folder: str) -> Scenario:
    """The configuration with a trace per topic, whose times keep their distances. Files are written to ``folder``."""
    workloads: Dict[str, Any] = {}
    for index, (topic, times) in enumerate(sorted(times_ms.items())):
        path = os.path.join(folder, f"{index}.csv")
        with open(path, "w", encoding="utf-8") as file:
            file.write("arrival_ms\n" + "".join([f"{json.dumps(at_ms)}\n" for at_ms in times]))
        name = topic.strip("/").replace("/", "-")
        workloads[name] = {"app": app, "kind": "trace", "file": path, "axis": "bag"}
    last_ms = max((times[-1] for times in times_ms.values() if times), default=0.0)
    table = {
        **{name: table for name, table in sections_of(config).items() if name in EDGE_SECTIONS},
        "run": {"duration": f"{last_ms / 1000 + 1:.3f}s", "seeds": 1},
        "workload": workloads,
    }
    return parse_scenario(table, config.directory, config.source)
