"""``edgeserve serve``: a runtime with the bus in front, until a signal asks it to stop.

SIGTERM and SIGINT drain within ``[server] drain``; a second signal cancels the open requests, a third ends the process.
A service manager that listens (systemd, ``Type=notify``) hears when the apps can be asked, and the loop's heartbeat.
Wiring only.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

from edgeserve.config.loading import load_config
from edgeserve.config.plain_text import log_to
from edgeserve.config.schema import Config
from edgeserve.errors import ConfigError
from edgeserve.ipc.connections import check_files, raise_file_limit
from edgeserve.ipc.endpoints import remove_sockets
from edgeserve.live.service_manager import Heartbeat, started_by
from edgeserve.live.startup import StartInterrupted, naming_file
from edgeserve.live.world import LostDevice
from edgeserve.python_file import CONFIG_HELP, names_runtime, runtime_at
from edgeserve.runtime import STOP_GRACE_S, Runtime
from edgeserve.units import counted, format_duration

if TYPE_CHECKING:
    from edgeserve.front.processes import FrontProcesses

log = logging.getLogger("edgeserve")

LOG_FORMAT = "%(asctime)s %(levelname).1s %(message)s"

LOOK_S = 3600.0
"""Seconds of one wait for the loop's end: bounded, so that signals can interrupt it."""


DEVICE_LOST_STATUS = 75
"""Exit status of a server whose device is lost, for another process to try again: ``EX_TEMPFAIL`` in ``sysexits.h``."""

STUCK_STATUS = 70
"""Exit status of a server that a second signal had to end by force: an internal error, in ``sysexits.h``."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", help=CONFIG_HELP)
    parser.add_argument(
        "--endpoint",
        default="",
        help="serve here instead of [server] endpoint, such as "
        "ipc:///run/user/1000/edgeserve/bus or tcp://127.0.0.1:5555",
    )
    parser.add_argument(
        "--record",
        default="",
        metavar="FILE",
        help="write every decision here (edgeserve simulate --replay)",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="log more")


def main(args: argparse.Namespace) -> int:
    """Serve until a signal; the exit status is 0 after a clean end."""
    log_to(sys.stderr, logging.DEBUG if args.verbose else logging.INFO, LOG_FORMAT)
    given = runtime_at(args.config) if names_runtime(args.config) else None
    config = load_config(args.config) if given is None else given.configuration
    if not config.apps:
        raise ConfigError(
            f"{args.config} has no [app.NAME]: there is nothing to serve; write one (docs/reference/configuration.md)"
            if given is None
            else f"{args.config} has no app: there is nothing to serve; give its Runtime apps={{...}}"
        )
    changes: Dict[str, Any] = {}
    if args.endpoint:
        changes["endpoint"] = args.endpoint
    if args.record:
        changes["record"] = os.path.abspath(args.record)
    if changes:
        from dataclasses import replace

        config = replace(config, server=replace(config.server, **changes))
    status = serve(config, given=given)
    if status == DEVICE_LOST_STATUS:
        logging.shutdown()
        os._exit(status)  # what CUDA's libraries do at the end of a process may never return
    return status


def serve(
    config: Config, signals: Sequence[int] = (signal.SIGTERM, signal.SIGINT), given: Optional[Runtime] = None
) -> int:
    """Serve ``config`` until one of ``signals``, a ``drain`` over the bus, or, under a service manager or as a
    container's first process, until a device is lost: another process begins then. From the main thread only.
    ``given``: a program's runtime, whose tracer, taps, listener and ``freeze`` the server's takes over."""
    manager = started_by()
    check_files(raise_file_limit())
    with naming_file(config.source):
        fronts = fronts_of(config)
    if given is None:
        runtime = Runtime(config, serve=True)
    else:
        runtime = Runtime(
            config, serve=True, tracer_provider=given.tracer_provider, taps=given.taps, freeze=given.freeze
        )
        runtime.on_device_lost = given.on_device_lost
    heartbeat = Heartbeat(manager, runtime.on_loop)
    lost: List[LostDevice] = []
    if manager.listens or os.getpid() == 1:
        runtime.on_device_lost = lambda device: end_without(device, lost, runtime, config)
    before, asked = handle(signals, runtime, heartbeat, config.server.drain_ns)
    try:
        log.info("loading %s ...", counted(len(config.models), "model"))
        manager.starting(f"loading {counted(len(config.models), 'model')}")
        try:
            runtime.start(manager.loading)
        except StartInterrupted as error:
            log.info("%s", error)
            return 0
        if fronts is not None:
            fronts.start(runtime.endpoints[0])
        log.info("ready on %s: %s", ", ".join(runtime.endpoints), ", ".join(config.apps) or "no apps")
        heartbeat.beat()
        while not runtime.wait(manager.interval_s if manager.listens else LOOK_S):
            heartbeat.beat()
        heartbeat.stopping()
        try:
            runtime.stop()
        except Exception:  # noqa: BLE001 the loop's thread has logged it, with its traceback
            return 2
        if lost:
            return DEVICE_LOST_STATUS
        if asked:
            log.info("stopped")
    finally:
        if fronts is not None:
            fronts.stop()
        for number, handler in before.items():
            signal.signal(number, handler)
        manager.close()
    return 0


def handle(
    signals: Sequence[int], runtime: Runtime, heartbeat: Heartbeat, drain_ns: int
) -> Tuple[Dict[int, Any], List[int]]:
    """Have ``signals`` stop a server, and SIGHUP read its configuration again. Returns the handlers that were there
    before, and a list that gets the signals that stop."""
    asked: List[int] = []

    def on_signal(number: int, frame: Any) -> None:
        asked.append(number)
        heartbeat.stopping()
        if len(asked) == 1:
            log.info(
                "stopping: what was accepted may end within %s; a second signal cancels it", format_duration(drain_ns)
            )
        else:
            for each in signals:  # a third ends the process, also one that hangs
                signal.signal(each, signal.SIG_DFL)
            log.info("stopping at once: what was accepted is cancelled; a third signal ends the process")
        runtime.ask_to_stop(drain=len(asked) == 1)
        if len(asked) == 2:
            threading.Thread(target=_end_by_force, args=(runtime,), name="edgeserve-end", daemon=True).start()

    handlers: Dict[int, Callable[[int, Any], None]] = dict.fromkeys(signals, on_signal)
    handlers[signal.SIGHUP] = lambda number, frame: read_again(runtime)
    return {number: signal.signal(number, handler) for number, handler in handlers.items()}, asked


def end_without(device: LostDevice, lost: List[LostDevice], runtime: Runtime, config: Config) -> None:
    """A device is lost: the other lanes may end what they have, and the process ends for another one."""
    lost.append(device)
    log.error(
        "stopping with status %d: what the other lanes have may end within %s",
        DEVICE_LOST_STATUS,
        format_duration(config.server.drain_ns),
    )
    runtime.ask_to_stop()


def read_again(runtime: Runtime) -> None:
    """Read the configuration again, on a thread of its own: a signal handler must not wait. The log says what became of
    it."""

    def work() -> None:
        try:
            log.info("reading the configuration again")
            runtime.reload()
            log.info("the configuration was read again")
        except Exception as error:  # noqa: BLE001 the server goes on with what it has
            log.error("the configuration has not changed: %s", error)

    threading.Thread(target=work, name="edgeserve-reload", daemon=True).start()


def fronts_of(config: Config) -> Optional[FrontProcesses]:
    """The fronts that ``[front.NAME]`` tables ask for, checked and not started."""
    if not config.fronts:
        return None
    from edgeserve.front.processes import FrontProcesses

    return FrontProcesses(config)


def _end_by_force(runtime: Runtime) -> None:
    """A second signal asks to stop at once: where the loop does not, it is stuck, and the process ends without it."""
    if not runtime.is_alive or runtime.wait(STOP_GRACE_S):
        return
    log.error(
        "the loop did not stop within %.0f s of the second signal: it is stuck, and the process ends; this is "
        "where its threads are:",
        STOP_GRACE_S,
    )
    faulthandler.dump_traceback(all_threads=True)
    remove_sockets(runtime.endpoints)
    logging.shutdown()
    os._exit(STUCK_STATUS)
