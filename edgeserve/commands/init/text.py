"""The configuration as text, with a comment per choice, and what the command says at its end. Pure."""

from __future__ import annotations

import shlex
from typing import Any, Dict, List, Mapping, Sequence

import numpy as np

from edgeserve.commands.init.compute import CPU, LaneText
from edgeserve.commands.init.images import image_lines
from edgeserve.commands.init.slo import Slo, choose_slo
from edgeserve.commands.init.trial import FoundModel, engine_options
from edgeserve.config.plain_text import one_line, toml_file, toml_key, toml_string, toml_value
from edgeserve.engines.port import Port
from edgeserve.units import counted, format_duration, format_size

COMMENT_COLUMN = 40


def configuration_text(
    found: Sequence[FoundModel], lanes: Sequence[LaneText], rates: Mapping[str, float], slo_ns: int
) -> str:
    """The whole file."""
    slos = slos_of(found, rates, slo_ns)
    lines = [
        "# Written by 'edgeserve init'. It serves as it stands; the comments say what was chosen, and why.",
        "# What each key means, and the others: docs/reference/configuration.md.",
        "",
    ]
    if any(lane.device == "gpu" for lane in lanes):
        shared = _commented('headroom = "auto"', "memory for everything else: 512 MB on a board, whose GPU shares it")
        lines += ["[device.gpu]", 'kind = "cuda"', shared, ""]
        if any(lane.device == "cpu" for lane in lanes):
            lines += ["[device.cpu]", ""]
    for lane in lanes:
        lines += [
            f"[lane.{lane.name}]",
            f'device = "{lane.device}"',
            _commented(f"threads = {lane.threads}", lane.comment),
            "",
        ]
    for item in found:
        lines += _model(item, lanes)
        lines += _app(item, slos[item.name])
    return toml_file(lines)


def slos_of(found: Sequence[FoundModel], rates: Mapping[str, float], slo_ns: int) -> Dict[str, Slo]:
    """The deadline of each app. Models of one lane wait for each other: the longest of the others counts."""
    slos = {}
    for item in found:
        others = [
            other.tried.times_ns[min(other.tried.times_ns)]
            for other in found
            if other is not item and other.tried.device == item.tried.device and other.tried.times_ns
        ]
        times = item.tried.times_ns
        slos[item.name] = choose_slo(
            times[min(times)] if times else None, max(others, default=0), rates.get(item.name, 0.0), slo_ns
        )
    return slos


def _model(item: FoundModel, lanes: Sequence[LaneText]) -> List[str]:
    roles, tried = item.roles, item.tried
    lines = [f"[model.{toml_key(item.name)}]", f'engine = "{tried.engine}"', f"file = {toml_string(item.file)}"]
    if len(lanes) > 1:
        lines.append(f'lanes = ["{"cpu0" if tried.device == CPU else "gpu0"}"]')
    if roles.description.engine == "lm":
        return [*lines, *_language_options(roles.description.facts), ""]
    if tried.why:
        lines.append(f"# Not {_first_way(item)}: {' '.join(tried.why.split())[:160]}")
    lines.append(_commented(f"batch = {sorted(tried.times_ns)}", _batch_comment(item)))
    if tried.shapes:
        is_known = roles.shapes_given or not roles.is_open
        lines.append(
            _commented(
                f"shapes = {toml_value(tried.shapes)}",
                "of one item, for warm-up"
                if is_known
                else "of one item, for warm-up: tried, since the file leaves them open",
            )
        )
    if roles.state:
        lines.append(
            _commented(f"state = {toml_value(roles.state)}", "recurrent state: input = the output that replaces it")
        )
    options = engine_options(roles, tried.shapes)
    if options:
        lines.append(f"options = {toml_value(options)}")
    if tried.engine == "tensorrt" and roles.description.engine == "onnx":
        with_fp16 = toml_value({**options, "precision": "fp16"})
        lines += [
            "# Up to TensorRT 10: with this line it may compute in float16, faster on most GPUs; compare the answers.",
            f"# options = {with_fp16}",
        ]
    lines += image_lines(item.image, bool(tried.shapes))
    if item.image is not None and not item.image.why:
        lines.append(f"# options = {toml_value({**options, 'image': item.image.options})}")
    return [*lines, *(f"# {note}" for note in roles.notes), ""]


def _first_way(item: FoundModel) -> str:
    """The inputs that were tried first and did not run the model."""
    return "with TensorRT" if item.roles.description.engine == "onnx" and item.tried.device != CPU else "on the GPU"


def _batch_comment(item: FoundModel) -> str:
    times = ", ".join(f"{size} in {format_duration(taken)}" for size, taken in sorted(item.tried.times_ns.items()))
    if not item.roles.batch_axis:
        return f"the file has no batch axis; {times} here"
    if item.roles.settings:
        return f"{', '.join(item.roles.settings)}: without a batch axis; {times} here"
    if item.roles.fixed_batch is not None:
        return f"fixed by the file; {times} here"
    if item.roles.is_open:
        return f"{times} here; items of different lengths cannot share a batch"
    return f"sizes that may run together: {times} here"


def _language_options(facts: Mapping[str, Any]) -> List[str]:
    context = facts.get("context_length")
    lines = [
        f"# {facts.get('name') or 'a language model'}: {facts['architecture']}, "
        f"{format_size(int(facts['size_bytes']))}" + (f", trained for {context} tokens" if context else "")
    ]
    tokens = min(4096, int(context)) if context else 4096
    lines += [
        _commented("batch = [1, 2]", "sequences that make a step together"),
        _commented("slots = 2", "sequences that keep their memory at once"),
        "# Tokens of a sequence with its answer, tokens of an answer"
        + (
            "; chat: the prompt is what a user says, written in the model's own template"
            if facts.get("chat")
            else "; the prompt is a text to continue, since the file has no template for conversations"
        ),
        f"options = {{ context = {tokens}, max_tokens = 256" + (", chat = true }" if facts.get("chat") else " }"),
    ]
    return lines


def _app(item: FoundModel, slo: Slo) -> List[str]:
    name = toml_key(item.name)
    lines = [
        f"[app.{name}]",
        f"model = {toml_string(item.name)}",
        _commented(f'slo = "{format_duration(slo.slo_ns)}"', slo.why),
    ]
    roles = item.roles
    if roles.description.engine == "lm":
        lines.append(_commented('on_late = "answer"', "finished, however late; without it: what is written by then"))
    if roles.state:
        lines.append(_commented('stream = "in_order"', "requests name their stream: each keeps a state of its own"))
    lines.append("")
    if roles.given:
        lines.append(_commented(f"[app.{name}.inputs]", "what a request must bring"))
        for port in roles.given:
            lines.append(
                f"{toml_key(port.name)} = {toml_value(app_input(port, item.tried.shapes, roles.shapes_given))}"
            )
            if item.image is not None and item.image.input == port.name:
                frame = {"dtype": "uint8", "shape": [*item.image.options["from"], 3]}
                lines.append(f"# {toml_key(port.name)} = {toml_value(frame)}")
    elif roles.description.engine == "lm":
        lines += [
            "# A request has prompt"
            + (" or messages" if item.roles.description.facts.get("chat") else "")
            + ", and what clients of OpenAI's and Ollama's APIs send besides.",
        ]
    if item.tried.outputs:
        lines.append(f"# It returns {', '.join(f'{name} ({form})' for name, form in item.tried.outputs)}.")
    return [*lines, ""]


def app_input(port: Port, shapes: Mapping[str, Sequence[int]], fixed: bool) -> Dict[str, Any]:
    """One line of ``[app.NAME.inputs]``: open axes stay open, unless the user gave their lengths."""
    dtype = "text" if np.dtype(port.dtype).kind == "O" else str(np.dtype(port.dtype))
    dims = shapes[port.name] if fixed and port.name in shapes else port.dims[1:]
    return {"dtype": dtype, "shape": [-1 if dim is None else int(dim) for dim in dims]}


def summary(found: Sequence[FoundModel], out: str, rates: Mapping[str, float], slo_ns: int) -> str:
    """The findings, and the next commands."""
    slos = slos_of(found, rates, slo_ns)
    lines = [f"{out}: {counted(len(found), 'app')}"]
    for item in found:
        slo, times = slos[item.name], item.tried.times_ns
        takes = (
            f"{format_duration(times[min(times)])} alone on the {'CPU' if item.tried.device == CPU else 'GPU'}, "
            if times
            else ""
        )
        inputs = (
            ", ".join(
                f"{port.name} {app_input(port, item.tried.shapes, item.roles.shapes_given)['dtype']} "
                f"{_shape_text(item, port)}"
                for port in item.roles.given
            )
            or "prompt"
        )
        lines.append(f"  {item.name}: {inputs}; {takes}slo {format_duration(slo.slo_ns)}")
        if not slo.fits:
            lines.append(f"    ! {slo.why}")
        lines += [f"    ! {note}" for note in item.roles.notes]
        if item.image is not None and not item.image.why:
            lines.append(
                f"    frames of a camera can be prepared in front of it ({item.image.mean:.2f} grey levels from "
                "numpy's on average): see its options in the file"
            )
    lines += [
        "Next:",
        f"  edgeserve serve {shlex.quote(out)}",
        f"  edgeserve infer {shlex.quote(found[0].name)} --example     "
        "(in another terminal; --in NAME=FILE sends your own)",
    ]
    return "\n".join(map(one_line, lines))


def _shape_text(item: FoundModel, port: Port) -> str:
    shape = app_input(port, item.tried.shapes, item.roles.shapes_given)["shape"]
    return "[" + ", ".join("any" if length < 0 else str(length) for length in shape) + "]"


def _commented(text: str, comment: str) -> str:
    return f"{text:{COMMENT_COLUMN}}  # {comment}"
