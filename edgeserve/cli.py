"""The ``edgeserve`` command: one verb per module of ``edgeserve.commands`` (and ``server`` for ``serve``).

Each verb's module has ``add_arguments(parser)`` and ``main(args) -> exit status``; it is imported only when its verb
is named, so that ``edgeserve --help`` stays quick.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import select
import signal
import sys
import threading
from contextlib import contextmanager
from typing import Iterator, Sequence

from edgeserve import __version__
from edgeserve.config.gone import GONE
from edgeserve.config.plain_text import PlainOutput
from edgeserve.errors import ConfigError, EdgeServeError

VERBS = {
    "init": ("edgeserve.commands.init", "write a configuration for model files, with what they say of themselves"),
    "serve": ("edgeserve.server", "serve the apps of a configuration file on the bus"),
    "http": ("edgeserve.commands.http", "let clients of HTTP, gRPC and OpenAI's protocol ask a running server"),
    "frigate": (
        "edgeserve.commands.frigate",
        "let Frigate, the network video recorder, ask an app of a running server",
    ),
    "camera": ("edgeserve.commands.camera", "ask an app about a camera's frames, and show its boxes"),
    "bag": ("edgeserve.commands.bag", "run a recorded bag of ROS through an app, at the bag's own times"),
    "wyoming": ("edgeserve.commands.wyoming", "let Home Assistant's voice assistant ask apps of a running server"),
    "mqtt": (
        "edgeserve.commands.mqtt",
        "tell a broker, and Home Assistant, what a running server sees, and ask by topic",
    ),
    "chat": (
        "edgeserve.commands.talk",
        "talk with a language model in the terminal: a file, or an app of a running server",
    ),
    "infer": ("edgeserve.commands.infer", "send one request from the shell"),
    "story": ("edgeserve.commands.story", "ask a running server what happened to a request"),
    "top": ("edgeserve.commands.top", "watch a running server: apps, lanes, models, device"),
    "stats": ("edgeserve.commands.stats", "what a running server has done since its start, as tables or JSON"),
    "trace": ("edgeserve.commands.trace", "what a running server decides, as a timeline for Perfetto"),
    "reload": ("edgeserve.commands.reload", "have a running server read its configuration again, or load a model anew"),
    "profile": ("edgeserve.commands.profile", "measure models on this device and write their profiles"),
    "check": ("edgeserve.commands.check", "say whether apps will meet their rates here, and what breaks first"),
    "simulate": ("edgeserve.commands.simulate", "run the same scheduler in virtual time"),
    "fit": ("edgeserve.commands.fit", "learn from a history what predicts the cost of a request"),
    "bench": ("edgeserve.commands.bench", "load a running server: finish rate, percentiles, drop reasons"),
    "monitor": (
        "edgeserve.commands.monitor",
        "show clocks, load, heat, power and memory of this device as they change",
    ),
    "keys": ("edgeserve.commands.keys", "make CURVE keys for a bus that other machines reach"),
    "doctor": ("edgeserve.commands.doctor", "look at this machine and say what is wrong and what mends it"),
}


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The disk is full, or the user's share of it, or the file may not grow further."""

INTERRUPTED = 130
"""The exit status of a command that Ctrl-C ended, as shells give it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the ``edgeserve`` command. Returns the exit status: 0 done, 1 fell short, 2 wrong usage."""
    with _plain_outputs():
        return _run(list(sys.argv[1:] if argv is None else argv))


def _run(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="edgeserve", description="Many models on one device, under deadlines.")
    parser.add_argument("--version", action="version", version=f"edgeserve {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    chosen = next((word for word in arguments if not word.startswith("-")), "")
    try:
        if f"edgeserve {chosen}" in GONE:
            raise ConfigError(f"{chosen}: there is no such command any more; {GONE[f'edgeserve {chosen}']}")
        for verb, (home, what) in VERBS.items():
            verb_parser = verbs.add_parser(verb, help=what, description=what[0].upper() + what[1:] + ".")
            if verb == chosen:
                with _ending_at_once():
                    module = importlib.import_module(home)
                module.add_arguments(verb_parser)
                verb_parser.set_defaults(main=module.main)
        args = parser.parse_args(arguments)
        status = int(args.main(args))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        if not _has_no_reader():
            raise
        return 141  # what a shell says of a program that SIGPIPE ended
    except EdgeServeError as error:
        print(f"edgeserve: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        print(f"edgeserve: {error.filename or 'the output'} cannot be written ({error.strerror})", file=sys.stderr)
        if error.filename is None:
            _throw_rest_away()
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


@contextmanager
def _ending_at_once() -> Iterator[None]:
    """Have Ctrl-C end the process while modules are imported: a library's own start may take the exception of Python's
    handler for another error, or print it."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield  # another context handles it
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _plain_outputs() -> Iterator[None]:
    """Print without the control sequences that names in model files, answers or paths may hold."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (PlainOutput(stream) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _has_no_reader() -> bool:
    """True if the output's reader has gone, as ``head`` goes. The rest of the output is then discarded."""
    output = sys.stdout.fileno()
    look = select.poll()
    look.register(output, 0)
    if not any(events & select.POLLERR for _, events in look.poll(0)):
        return False
    _throw_rest_away()
    return True


def _throw_rest_away() -> None:
    """Discard the buffered output: Python flushes it at exit, and a failure of that would be reported twice."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
