"""``edgeserve init model.onnx [...]``: a configuration that serves these model files as it stands.

The files are read for inputs, shapes, types, batch axis and recurrent state (``roles``), each model is run a few times
on this machine (``trial``), and the result is written with a comment per choice (``text``). Nothing is overwritten.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from typing import Dict, List, Optional, Sequence, Tuple

from edgeserve.commands.init.batch_axis import try_roles
from edgeserve.commands.init.bounded import READ_S, run_bounded
from edgeserve.commands.init.compute import machine_lanes
from edgeserve.commands.init.images import propose_image
from edgeserve.commands.init.roles import model_names
from edgeserve.commands.init.slo import read_rates, read_slo_ns
from edgeserve.commands.init.text import configuration_text, summary
from edgeserve.commands.init.trial import FoundModel
from edgeserve.config.files import CACHE_PREFIX, cache_directory, resolve_path
from edgeserve.config.json_schema import config_schema
from edgeserve.config.loading import parse_config
from edgeserve.config.model_files import is_later_part
from edgeserve.config.plain_text import one_line
from edgeserve.config.text_files import write_file
from edgeserve.config.toml_files import parse_toml
from edgeserve.engines.describe import READERS, SAVED, SAVED_HOW, check_file, describe
from edgeserve.errors import ConfigError, EdgeServeError
from edgeserve.front.registry import own_settings

OUT = "edge.toml"
"""The configuration that is written when no file is named."""

CHILD = (
    "from edgeserve.child import end_with, take_lifeline; end_with(take_lifeline()); "
    "from edgeserve.cli import main; raise SystemExit(main())"
)
"""The command in the child process, which ends with its parent."""

FILES_MAX = 64
"""Models of one folder; more are a mistake in the path."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help=f"model files ({', '.join(READERS)}), or a folder that holds some"
    )
    parser.add_argument(
        "--out", default="", metavar="FILE", help="what to write (default: edge.toml; with --keys the folder keys)"
    )
    parser.add_argument(
        "--rate",
        action="append",
        default=[],
        metavar="[APP=]N",
        help="requests per second: the deadline is then the time between two",
    )
    parser.add_argument(
        "--slo",
        default="",
        metavar="TIME",
        help="deadline of every app, such as 50ms (default: by --rate, else from a quick measurement)",
    )
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="INPUT=3,640,640",
        help="lengths of one item, without the batch axis, for an input whose file leaves them open",
    )
    parser.add_argument(
        "--batch-axis",
        choices=("yes", "no"),
        help="whether the first axis of the inputs is a batch (default: a run shows whether one item changes another)",
    )
    parser.add_argument("--cpu", action="store_true", help="use no GPU, even where there is one")
    parser.add_argument("--schema", action="store_true", help="write nothing: print the JSON schema of configurations")
    parser.add_argument("--force", action="store_true", help="write over the file that is there")
    parser.add_argument(
        "--here", action="store_true", help="read the files in this process, without bounds on time and memory"
    )
    parser.add_argument(
        "--keys",
        default="",
        metavar="NAME",
        help="make CURVE keys instead, for a bus that other machines reach: the server's own (server), or a client's",
    )


def main(args: argparse.Namespace) -> int:
    """Write the configuration; 0 when it serves every file that was named."""
    if args.schema:
        print(json.dumps(config_schema(own_settings()), indent=1))
        return 0
    if args.keys:
        return _keys(args)
    args.out = args.out or OUT
    if not args.models:
        raise ConfigError("no model is named; give model files, or a folder that holds some")
    if not args.here:
        return run_bounded(["-c", CHILD, "init", "--here", *_again(args)])
    paths = model_files(args.models)
    for path in paths:
        check_file(path)
    if os.path.exists(args.out) and not args.force:
        raise ConfigError(f"{args.out} is there already; give another name with --out, or --force to write over it")
    if os.path.realpath(args.out) in map(os.path.realpath, paths):
        raise ConfigError(f"--out {args.out} is a model file; expected the name of a configuration, such as {OUT}")
    directory = os.path.dirname(os.path.abspath(args.out))
    if not os.path.isdir(directory):
        raise ConfigError(f"--out {args.out}: there is no directory {directory}")
    shapes, slo_ns = read_shapes(args.shape), read_slo_ns(args.slo)
    names = model_names(paths)
    rates = read_rates(args.rate, names)
    found: List[FoundModel] = []
    gpu: Optional[bool] = False if args.cpu else None
    for name, path in zip(names, paths):
        print(f"reading {one_line(path)} ...", file=sys.stderr, flush=True)
        said = args.batch_axis and args.batch_axis == "yes"
        signal.alarm(READ_S)  # its default action ends the process, even where C code holds the interpreter
        description = describe(path)
        signal.alarm(0)
        roles, tried = try_roles(name, path, description, shapes, said, gpu)
        image = propose_image(path, roles, tried.shapes)
        found.append(FoundModel(name, _told_path(path, directory), roles, tried, image))
    _check_shapes_used(shapes, found)
    lanes = machine_lanes([item.tried.device for item in found])
    text = configuration_text(found, lanes, rates, slo_ns)
    _check_text(text, args.out)
    write_file(args.out, text)
    print(summary(found, args.out, rates, slo_ns))
    return 0


def _again(args: argparse.Namespace) -> List[str]:
    """The arguments again."""
    words = [f"--out={args.out}"]
    for option in ("rate", "shape"):
        words += [f"--{option}={value}" for value in getattr(args, option)]
    words += [f"--slo={args.slo}"] if args.slo else []
    words += [f"--batch-axis={args.batch_axis}"] if args.batch_axis else []
    words += [f"--{option}" for option in ("cpu", "force") if getattr(args, option)]
    return [*words, "--", *args.models]


def _keys(args: argparse.Namespace) -> int:
    if args.models:
        raise ConfigError(f"--keys {args.keys} takes no model files; run it once without {' '.join(args.models)}")
    from edgeserve.commands.keys import FOLDER, write_keys

    print(write_keys(args.keys, args.out or FOLDER))
    return 0


def model_files(names: Sequence[str]) -> List[str]:
    """The model files that the arguments name, ``cache:NAME/FILE`` too; a folder stands for those in it."""
    paths: List[str] = []
    for name in names:
        if name.startswith(CACHE_PREFIX) and not os.path.exists(name):
            name = resolve_path(name, ".")
        if not os.path.isdir(name):
            paths.append(name)
            continue
        try:
            items = os.listdir(name)
        except OSError as error:
            raise ConfigError(f"{name}: this folder cannot be read ({error.strerror}); name model files") from None
        inside = sorted(
            os.path.join(name, item)
            for item in items
            if os.path.splitext(item)[1].lower() in READERS and not is_later_part(item)
        )
        if not inside:
            how = SAVED_HOW if os.path.isfile(os.path.join(name, SAVED)) else ""
            raise ConfigError(
                f"{name}: there is no model file in this folder; expected one that ends in {', '.join(READERS)}{how}"
            )
        paths += inside
    if len(paths) > FILES_MAX:
        raise ConfigError(f"{len(paths)} model files; expected at most {FILES_MAX}: name the ones to be served")
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise ConfigError(f"{twice} is named twice")
    return paths


def read_shapes(words: Sequence[str]) -> Dict[str, Tuple[int, ...]]:
    """``INPUT=3,640,640`` by input."""
    shapes: Dict[str, Tuple[int, ...]] = {}
    for word in words:
        name, mark, text = word.partition("=")
        lengths = [item.strip() for item in text.split(",")] if text else []
        if not mark or not name or not all(item.isdecimal() and int(item) > 0 for item in lengths):
            raise ConfigError(f"--shape {word!r}: expected INPUT=LENGTHS of one item, such as images=3,640,640")
        shapes[name] = tuple(int(item) for item in lengths)
    return shapes


def _told_path(path: str, directory: str) -> str:
    """The file as the configuration names it: relative to it, unless it lies elsewhere or in the asset cache."""
    relative = os.path.relpath(path, directory)
    in_cache = os.path.relpath(os.path.realpath(path), os.path.realpath(cache_directory()))
    if not in_cache.startswith(os.pardir):
        return CACHE_PREFIX + in_cache
    if relative.startswith(os.path.join("..", "..")):
        return os.path.abspath(path)
    # A name that the configuration would take for a place: the asset cache, a user's home.
    return os.path.join(".", relative) if relative.startswith((CACHE_PREFIX, "~")) else relative


def _check_shapes_used(shapes: Dict[str, Tuple[int, ...]], found: Sequence[FoundModel]) -> None:
    inputs = [port.name for item in found for port in item.roles.description.inputs]
    for name in shapes:
        if name not in inputs:
            raise ConfigError(f"--shape {name}: no model has an input of that name (inputs: {', '.join(inputs)})")


def _check_text(text: str, path: str) -> None:
    """Raise for a text that is no configuration: a mistake of this command, better found now than when serving."""
    try:
        parse_config(parse_toml(text), os.path.dirname(os.path.abspath(path)), path)
    except EdgeServeError as error:
        raise ConfigError(f"{path}: {error}. This is a fault of 'edgeserve init'; nothing was written") from None
