"""``edgeserve record``: what a running server decides, as a recording to replay and as a timeline for Perfetto."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, Dict, List

from edgeserve.commands.connection import add_connection_arguments, connected
from edgeserve.config.text_files import write_file
from edgeserve.errors import ConfigError
from edgeserve.taps.timeline import timeline_of
from edgeserve.taps.trace import FORMAT, RecordedStep, dumps, read_recording, step_line, step_of
from edgeserve.units import counted, format_duration, s_to_ns

POLL_S = 0.25
"""Between two questions while it waits."""

OUT = "recording.jsonl"
"""The file of the steps when none is named."""

LOST = "edgeserve record: {lost} are missing: the server decided more between two questions than it keeps"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds",
        type=float,
        default=5.0,
        metavar="S",
        help="go on for so long (default: 5)",
    )
    parser.add_argument(
        "--out",
        default="",
        metavar="FILE",
        help="the steps as JSON lines (default: recording.jsonl, without --timeline)",
    )
    parser.add_argument("--timeline", default="", metavar="FILE", help="a timeline, for ui.perfetto.dev")
    parser.add_argument(
        "--from",
        dest="source",
        default="",
        metavar="FILE",
        help="take the steps of a recording (edgeserve serve --record) instead of asking a server",
    )
    add_connection_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Write the files; the exit status is 1 when there was nothing to record."""
    if not 0 < args.seconds <= 3600:
        raise ConfigError(f"--seconds {args.seconds:g}: expected a time above 0, 3600 at most")
    steps = read_recording(args.source).steps if args.source else _ask(args)
    if not steps:
        print("edgeserve record: the server decided nothing in that time", file=sys.stderr)
        return 1
    span = format_duration(max(0, steps[-1].now_ns - steps[0].now_ns))
    recorded = f"{counted(len(steps), 'step')} over {span}"
    out = args.out or ("" if args.timeline else OUT)
    if out:
        lines = [dumps({"format": FORMAT}), *(step_line(*step) for step in steps)]
        write_file(out, "\n".join(lines) + "\n")
        print(f"{out}: {recorded}; edgeserve record --from {out} --timeline FILE shows them")
    if args.timeline:
        timeline_of(steps).write(args.timeline)
        print(f"{args.timeline}: {recorded}; open it in https://ui.perfetto.dev")
    return 0


def _ask(args: argparse.Namespace) -> List[RecordedStep]:
    """The steps that the server remembers, and those of the next seconds."""
    steps: List[RecordedStep] = []
    after = lost = ends_ns = 0
    with connected(args) as client:
        while True:
            page: Dict[str, Any] = client.trace(after)
            ends_ns = ends_ns or page["now_ns"] + s_to_ns(args.seconds)
            lost += page["first"] - after - 1 if after else 0
            after = page["after"]
            steps += [step_of(line) for line in page["lines"]]
            if steps and steps[-1].now_ns >= ends_ns or not page["lines"] and page["now_ns"] >= ends_ns:
                break
            if not page["lines"]:
                time.sleep(POLL_S)
    if lost:
        print(LOST.format(lost=counted(lost, "step")), file=sys.stderr)
    return steps
