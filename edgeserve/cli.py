"""The ``edgeserve`` command: one verb per module of ``edgeserve.commands`` (and ``server`` for ``serve``), and the
verbs that other packages install (entry points).

Each verb's module has ``add_arguments(parser)`` and ``main(args) -> exit status``; it is imported only when its verb
is named, so that ``edgeserve --help`` stays quick, and a module that cannot be imported breaks no other verb.
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
from typing import Any, Callable, Dict, Iterator, Mapping, NamedTuple, Sequence, Tuple

from edgeserve import __version__
from edgeserve.commands.parser import Parser, exit_status
from edgeserve.config.gone import GONE
from edgeserve.config.installed import Installed, installed
from edgeserve.config.plain_text import PlainOutput
from edgeserve.errors import ConfigError, EdgeServeError, nearest, told


class Verb(NamedTuple):
    """A command: the module that has it, what it does, and what its own exit statuses mean."""

    module: str
    what: str
    ends: Mapping[int, str] = {}


VERBS = {
    "init": Verb("edgeserve.commands.init", "write what a server needs: a configuration for model files, or keys"),
    "serve": Verb(
        "edgeserve.server",
        "serve the apps of a configuration file on the bus",
        {70: "a second signal had to end it by force", 75: "a device is lost; start it again"},
    ),
    "front": Verb("edgeserve.commands.front", "let clients of another system or protocol ask a running server"),
    "chat": Verb(
        "edgeserve.commands.talk",
        "talk with a language model in the terminal: a file, or an app of a running server",
        {1: "the last question had no answer"},
    ),
    "infer": Verb("edgeserve.commands.infer", "send one request from the shell", {1: "an error, or a late answer"}),
    "story": Verb(
        "edgeserve.commands.story",
        "ask a running server what happened to a request",
        {1: "the server does not remember that request"},
    ),
    "top": Verb("edgeserve.commands.top", "watch a running server, or this device alone"),
    "record": Verb(
        "edgeserve.commands.record",
        "record what a running server decides, also as a timeline for Perfetto",
        {1: "the server decided nothing in that time"},
    ),
    "reload": Verb(
        "edgeserve.commands.reload",
        "have a running server read its configuration again, or load a model anew",
        {1: "a device goes on with what it had"},
    ),
    "profile": Verb(
        "edgeserve.commands.profile",
        "measure models on this device and write their profiles, or learn what a request costs from a history",
        {1: "something that was asked for could not be measured"},
    ),
    "check": Verb(
        "edgeserve.commands.check",
        "say whether apps will meet their rates here, and what breaks first",
        {1: "an app falls short at these rates"},
    ),
    "simulate": Verb(
        "edgeserve.commands.simulate", "run the same scheduler in virtual time", {1: "a replayed decision differs"}
    ),
    "bench": Verb(
        "edgeserve.commands.bench",
        "load a running server: finish rate, percentiles, drop reasons",
        {1: "fewer answers in time than --finish-min"},
    ),
    "doctor": Verb(
        "edgeserve.commands.doctor",
        "look at this machine, a configuration or profiles, and say what is wrong and what mends it",
        {1: "something is wrong"},
    ),
}


GROUP = "edgeserve.commands"
"""The group of entry points by which a package installs a verb: ``misses = "my_package.misses"``, a module."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The disk is full, or the user's share of it, or the file may not grow further."""

INTERRUPTED = 130
"""The exit status of a command that Ctrl-C ended, as shells give it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the ``edgeserve`` command. Returns the exit status: 0 done, 1 fell short, 2 wrong usage."""
    with _plain_outputs():
        return _run(list(sys.argv[1:] if argv is None else argv))


def _run(arguments: Sequence[str]) -> int:
    try:
        verb = arguments[0] if arguments else ""
        if verb not in VERBS and (verb.startswith("-") or verb not in installed_verbs()):
            return _without_verb(arguments, verb)
        parser, run = verb_parser(verb)
        status = int(run(parser.parse_args(arguments[1:])) or 0)
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


def installed_verbs() -> Dict[str, Installed]:
    """The verbs that other packages install. A name of ours, and of a command that went, stays ours."""
    found = installed(GROUP)
    return {verb: place for verb, place in found.items() if verb not in VERBS and f"edgeserve {verb}" not in GONE}


def verb_parser(verb: str) -> Tuple[Parser, Callable[[argparse.Namespace], Any]]:
    """The parser of a verb with all its arguments, and what runs it. Raises :class:`ConfigError` where another
    package's module is no verb's."""
    with _ending_at_once():
        module, what, ends = _own(verb) if verb in VERBS else _others(verb)
    parser = Parser(prog=f"edgeserve {verb}", description=what, epilog=exit_status(ends))
    module.add_arguments(parser)
    return parser, module.main


def _own(verb: str) -> Tuple[Any, str, Mapping[int, str]]:
    name, what, ends = VERBS[verb]
    return importlib.import_module(name), f"{what[0].upper()}{what[1:]}.", ends


def _others(verb: str) -> Tuple[Any, str, Mapping[int, str]]:
    """The module of a verb that is installed, the first paragraph of its docstring, and its ``ENDS``."""
    name, package = installed_verbs()[verb]
    wrong = ""
    try:
        module: Any = importlib.import_module(name)
    except (Exception, SystemExit) as error:  # another package's module may raise anything while it is imported
        module, wrong = None, f" cannot be imported: {told(error)}"
    if not (callable(getattr(module, "add_arguments", None)) and callable(getattr(module, "main", None))):
        raise ConfigError(
            f"{verb}: {name!r} of the package {package}{wrong or ' is no command'}; expected a module with "
            "add_arguments(parser) and main(args) (docs/guide/write-a-command.md)"
        )
    what = str(module.__doc__ or f"A command of the package {package}.").strip()
    return module, what.split("\n\n")[0], getattr(module, "ENDS", {})


def _without_verb(arguments: Sequence[str], word: str) -> int:
    """``--help``, ``--version``, or a first word that is no verb."""
    gone = f"edgeserve {word}"
    if gone in GONE:
        raise ConfigError(f"{word}: there is no such command any more; {GONE[gone]}")
    parser = Parser(prog="edgeserve", description="Many models on one device, under deadlines.")
    parser.add_argument("--version", action="version", version=f"edgeserve {__version__}")
    verbs = parser.add_subparsers(metavar="VERB", parser_class=argparse.ArgumentParser)
    known = {verb: what for verb, (_, what, _) in VERBS.items()}
    known.update((verb, f"of the package {found.package}") for verb, found in sorted(installed_verbs().items()))
    for verb, what in known.items():
        verbs.add_parser(verb, help=what)
    if word and not word.startswith("-"):
        parser.error(f"{word}: there is no such verb{nearest(word, known)}")
    parser.parse_args(arguments)
    parser.error(f"a verb is missing: one of {', '.join(known)}")


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
    """Print without the control sequences that names in model files, answers or paths may hold. An output that was
    closed before the start, as some supervisors do, takes everything."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (
        PlainOutput(stream or open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 closed with the process
        for stream in before
    )
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
