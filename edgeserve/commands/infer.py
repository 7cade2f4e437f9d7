"""``edgeserve infer APP --in x=img.npy --slo 200ms``: one request to a running server from the shell.

Prints the outputs and where the time went; what cannot be answered ends with the typed error and status 1.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from typing import Any, Dict, List, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.answers import BREAKDOWN_KEYS, Answer
from edgeserve.client import Client
from edgeserve.commands.connection import add_connection_arguments, connected, same_connection
from edgeserve.commands.inputs import example_inputs, images_as_declared, read_image
from edgeserve.config.arrays import array_of_npy
from edgeserve.config.plain_text import one_line
from edgeserve.config.schema import ON_LATE_NAMES
from edgeserve.config.text_files import read_json, regular_file, write_file
from edgeserve.errors import REFUSAL_NUMBERS, BadInput, RequestError
from edgeserve.priority_class import CLASSES
from edgeserve.texts import is_text, text_array
from edgeserve.units import ns_to_ms, parse_duration_ns

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
EXAMPLE_STREAM = "example"
SHOWN_VALUES_MAX = 8  # of a tensor, on a line
SHOWN_CHARS_MAX = 2000  # of a text


ZIP = b"PK"
"""The first bytes of a ``.npz`` file."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``edgeserve infer``."""
    parser.add_argument("app", metavar="APP", help="the app to ask")
    add_request_arguments(
        parser,
        "a tensor from a .npy file, an image (needs pillow) as uint8 height x width x 3, or texts from .json",
    )
    parser.add_argument(
        "--example", action="store_true", help="make up what is not given, as the app declares its inputs"
    )
    parser.add_argument(
        "--stream",
        metavar="ID",
        help="the stream that this request continues (with --example, where the app needs one: example)",
    )
    parser.add_argument("--reset", action="store_true", help="begin the stream anew: forget what it left behind")
    parser.add_argument(
        "--out",
        metavar="NAME=FILE",
        action="append",
        default=[],
        help="write an output to a .npy file (a text to any file, an array of texts as JSON)",
    )
    parser.add_argument("--timeout", metavar="TIME", default="30s", help="wait at most this long (default 30s)")
    add_connection_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def add_request_arguments(parser: argparse.ArgumentParser, tensors: str) -> None:
    """Add what a request is sent with: inputs (``tensors`` says where they come from), deadline, class, and what to do
    when it is late."""
    parser.add_argument("--in", dest="inputs", metavar="NAME=FILE", action="append", default=[], help=tensors)
    parser.add_argument("--text", dest="texts", metavar="NAME=TEXT", action="append", default=[], help="a text input")
    parser.add_argument("--slo", metavar="TIME", help="deadline, such as 200ms (default: the app's own)")
    parser.add_argument("--class", dest="priority_class", choices=CLASSES, help="urgency (default: the app's own)")
    parser.add_argument("--on-late", choices=ON_LATE_NAMES, help="what to do when it is late (default: the app's own)")


def main(args: argparse.Namespace) -> int:
    """Exit status: 0 answered in time, 1 an error or a late answer."""
    inputs = read_inputs(args.inputs, args.texts)
    slo_ms = None if args.slo is None else _milliseconds("--slo", args.slo)
    outs = dict(_pair("--out", text) for text in args.out)
    try:
        with connected(args) as client:
            _complete(client, args, inputs)
            answer = client.infer(
                args.app,
                inputs,
                slo_ms=slo_ms,
                priority_class=args.priority_class,
                on_late=args.on_late,
                stream=args.stream,
                reset=args.reset or None,
                timeout_ms=_milliseconds("--timeout", args.timeout),
            )
    except RequestError as error:
        reason = getattr(error, "reason", "")
        if args.json:
            numbers = {name: getattr(error, name) for name in REFUSAL_NUMBERS if getattr(error, name, None) is not None}
            print(json.dumps({"error": error.code, "message": str(error), "reason": reason, "id": error.id, **numbers}))
        else:
            print(f"{error.code}{f' ({reason})' if reason else ''}: {error}{why(error.id, args)}", file=sys.stderr)
        return 1
    for name, path in outs.items():
        write_output(answer, name, path)
    print(json.dumps(as_json(answer)) if args.json else as_text(answer) + (why(answer.id, args) if answer.late else ""))
    return int(answer.late)


def _complete(client: Client, args: argparse.Namespace, inputs: Dict[str, Any]) -> None:
    """Ask the server what the app takes, where that is needed: for made-up inputs and for images. In place."""
    images = [name for name, path in (_pair("--in", text) for text in args.inputs) if is_image(path)]
    if not args.example and not images:
        return
    app = client.apps().get(args.app)
    if app is None:
        return  # the request itself is answered with what there is
    for line in images_as_declared(app["inputs"], inputs, images):
        print(line, file=sys.stderr)
    if args.example:
        if args.stream is None and app.get("needs_stream"):
            args.stream = EXAMPLE_STREAM
        made = example_inputs(args.app, app["inputs"], inputs, 0, guess=True)
        for name in made.keys() - inputs.keys():
            inputs[name] = made[name]


def is_image(path: str) -> bool:
    """True if a file is read as an image, by its name."""
    return path.lower().endswith(IMAGE_SUFFIXES)


def read_inputs(tensors: List[str], texts: List[str]) -> Dict[str, Any]:
    """``NAME=FILE`` and ``NAME=TEXT`` to named values; :class:`BadInput` names the argument that is wrong."""
    inputs: Dict[str, Any] = {}
    pairs = [_pair("--in", text) for text in tensors]
    words = [_pair("--text", text) for text in texts]
    for name, value in [(name, read_tensor(path)) for name, path in pairs] + words:
        if name in inputs:
            raise BadInput(f"input {name!r} is given twice")
        inputs[name] = value
    return inputs


def _pair(option: str, text: str) -> Tuple[str, str]:
    name, mark, value = text.partition("=")
    if not mark or not name:
        raise BadInput(f"{option} {text!r}: expected NAME=VALUE")
    return name, value


def _milliseconds(option: str, text: str) -> float:
    try:
        return ns_to_ms(parse_duration_ns(text))
    except ValueError as error:
        raise BadInput(f"{option}: {error}") from None


def read_tensor(path: str) -> NDArray[Any]:
    """A ``.npy`` file (never a pickle), an image, or texts in a JSON file."""
    try:
        if is_image(path):
            return read_image(path)
        if path.lower().endswith(".json"):
            return text_array(read_json(path))
        with open(path, "rb", opener=regular_file) as file:
            data = file.read()
        if data[: len(ZIP)] == ZIP:
            raise BadInput(f"--in {path}: holds several arrays; give a .npy file with one")
        return array_of_npy(data)
    except (OSError, ValueError) as error:
        raise BadInput(
            f"--in {path}: cannot be read ({error}); expected a .npy file, an image, or texts in a .json file"
        ) from None


def write_output(answer: Answer, name: str, path: str) -> None:
    """Write one output to a file."""
    if name not in answer:
        raise BadInput(f"--out {name}={path}: the answer has no output {name!r}, but {', '.join(sorted(answer))}")
    value = answer[name]
    if is_text(value) and not path.lower().endswith(".npy"):
        write_file(path, json.dumps(value.tolist(), ensure_ascii=False) + "\n")
    elif isinstance(value, np.ndarray):
        content = io.BytesIO()
        np.save(content, value.astype(str) if is_text(value) else value, allow_pickle=False)
        write_file(path, content.getvalue())
    else:
        write_file(path, value if isinstance(value, str) else "\n".join(value))


def as_json(answer: Answer) -> Dict[str, Any]:
    """The whole answer as plain values."""
    outputs = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in answer.items()}
    return {
        "outcome": answer.outcome,
        "late": answer.late,
        "reason": answer.reason,
        "outputs": outputs,
        "id": answer.id,
        "total_ms": answer.total_ms,
        "breakdown_ms": dict(answer.breakdown_ms),
    }


def as_text(answer: Answer) -> str:
    """The answer for people: outputs, then the time."""
    lines = [f"{one_line(name)}: {_shown(value)}" for name, value in sorted(answer.items())]
    late = ", late" if answer.late else ""
    reason = f" ({answer.reason})" if answer.reason else ""
    breakdown = ", ".join(f"{key} {answer.breakdown_ms[key]:.2f}" for key in BREAKDOWN_KEYS)
    lines.append(f"{answer.outcome}{late}{reason} in {answer.total_ms:.2f} ms: {breakdown}")
    return "\n".join(lines)


def why(request_id: int, args: argparse.Namespace) -> str:
    """A line that says where to ask what happened to a request; nothing where the server has not seen it."""
    return f"\nwhat happened: edgeserve story {request_id}{same_connection(args)}" if request_id else ""


def _shown(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        text = value if isinstance(value, str) else "\n  ".join(["", *value])
        return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}... ({len(text)} characters)"
    flat = value.reshape(-1)
    more = " ..." if flat.size > SHOWN_VALUES_MAX else ""
    kind = "text" if is_text(value) else value.dtype
    shown = flat[:SHOWN_VALUES_MAX]
    values = " ".join(
        f"{item:.6g}" if value.dtype.kind == "f" else repr(item) if kind == "text" else str(item) for item in shown
    )
    if len(values) > SHOWN_CHARS_MAX:
        values, more = values[:SHOWN_CHARS_MAX], " ..."
    return f"{kind} {list(value.shape)}  {values}{more}"
