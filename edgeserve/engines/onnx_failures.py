"""The meaning of ONNX Runtime's errors, in a sentence that says what to do; its own text stands behind it.

ONNX Runtime tells kinds of failures by texts alone, which name source files and types of its own. The ones that users
meet are in two tables, by the common parts of the texts since version 1.16.
"""

from __future__ import annotations

import os
import re
from typing import Any, Mapping, Optional, Sequence, Tuple

import onnxruntime
from numpy.typing import NDArray

from edgeserve.config.onnx_file import ends_within
from edgeserve.engines.cuda.status import OUT_OF_MEMORY, error_of, status_in
from edgeserve.errors import EngineError, OutOfMemory, WrongInput

TEXT_CHARS_MAX = 1000
"""The most characters of ONNX Runtime's own words; some texts hold a whole graph."""

PROTOBUF_BYTES_MAX = 2**31 - 1
"""No file of a protocol buffer message is larger."""

CUSTOM = (
    "the model uses the operator {1} of the domain {0}, which onnxruntime {version} does not have: name the library "
    "that has it, [model.NAME] options.custom_ops = ['PATH.so'] (for ai.onnx.contrib and com.microsoft.extensions "
    "'onnxruntime_extensions'), or export the model without it"
)

LOADING: Sequence[Tuple[str, str]] = (
    (
        r"[Oo]pset (\d+) is under development.*?domain (\S+) is till opset (\d+)",
        "its opset {0} of {1} is newer than onnxruntime {version}, which reads up to {2}: export it with opset {2}, "
        "convert it (onnx.version_converter), or install a newer onnxruntime",
    ),
    (
        r"(?:only \*guarantees\*|ValidateOpsetForDomain)",
        "its opset is newer than onnxruntime {version} reads: export it with a lower one, convert it "
        "(onnx.version_converter), or install a newer onnxruntime",
    ),
    (
        r"Unsupported model IR version: (\d+), max supported IR version: (\d+)",
        "its IR version {0} is newer than onnxruntime {version}, which reads up to {1}: set model.ir_version = {1} "
        "with the onnx package and save it again, or install a newer onnxruntime",
    ),
    (
        r"Failed to construct locale with name:\s*([^:\s]+)",
        "it compares texts by the rules of the locale {0}, which this system does not have: sudo locale-gen {0} "
        "(Debian and Ubuntu: package locales, which Docker images lack), and start again",
    ),
    (r"([\w.]+):(\w+)\(-?\d+\) is not a registered function/op", CUSTOM),
    (
        r'In Node, \("[^"]*", (?P<b>\w+), "(?P<a>[\w.]+)", -?\d+\).*?(?:No opset import|is not a registered)',
        CUSTOM,
    ),
    (
        r"No Op registered for (\w+) with domain_version of (\d+)",
        "the operator {0} is not in opset {1} of ONNX: if it is of a later one, export the model with that opset; if "
        "it is of a library, name that in options.custom_ops",
    ),
    (
        r"Could not find an implementation for (?:the node \S*:)?(\w+)\((\d+)\)",
        "onnxruntime {version} has no {0} (opset {1}) for the types in the model on the providers that are used: "
        "export it with float32 in place of float16 or bfloat16, with another opset, or use another provider",
    ),
    (
        r"Type '?tensor\((\w+)\)'? of input parameter \(([^)]*)\) of operator \((\w+)\)",
        "its operator {2} gets {1!r} as {0}, which that operator does not take: export it in another precision",
    ),
    (
        r"[Tt]ype parameter \(\w+\) of Optype \((\w+)\) bound to different types \(tensor\((\w+)\) and tensor\((\w+)\)",
        "its operator {0} gets a {1} and a {2} where both must be of one type: cast one before, and export it again",
    ),
    (
        r"(?:Node input|node input) '([^']*)' is not a graph input",
        "a node takes {0!r}, which nothing in the graph gives: the graph was cut or edited wrongly, export it again",
    ),
    (
        r"Unrecognized attribute: (\w+) for operator (\w+)",
        "its operator {1} has the attribute {0!r}, which belongs to another opset: export it with the opset that its "
        "exporter writes by default",
    ),
    (
        r"ShapeInferenceError|Incompatible dimensions|[Mm]ismatch between number of|existing shape differ",
        "the shapes within the graph contradict each other: export it again, with inputs of the shapes that it will "
        "get",
    ),
    (
        r"[Ee]xternal data|external_data|GetExtDataFromTensorProto|ReadExternalRawData",
        "weights that it has in other files cannot be read: copy all files of one export into one folder, with the "
        "names that they have",
    ),
)
"""A text when a model is loaded -> what it means. ``{0}`` and so on are the groups, ``{version}`` is ONNX Runtime's."""

RUNNING: Sequence[Tuple[str, str]] = (
    (
        r"cannot be reshaped to the requested shape.*?Input shape:\s*\{([^}]*)\}, requested shape:\s*\{([^}]*)\}",
        "a Reshape in the graph has the fixed shape [{1}] and got [{0}]: the model takes the batch size and the "
        "lengths alone that it was exported with. Set [model.{model}] batch = [1], or export it with open axes",
    ),
    (
        r"(?:Got|[Gg]ot) invalid dimensions for input: (\S+).*?Got: (\d+) Expected: (\d+)",
        "its input {0!r} has a length of {1} where {2} is expected: give it that length, or export the model with an "
        "open axis",
    ),
    (
        r"Invalid rank for input: (\S+) Got: (\d+) Expected: (\d+)",
        "its input {0!r} has {1} axes where {2} are expected",
    ),
    (
        r"Unexpected input data type\. Actual: \(tensor\((\w+)\)\)\s*, expected: \(tensor\((\w+)\)\)",
        "an input is {0} where {1} is expected",
    ),
    (
        r"running (\w+) node\. Name:\s*'([^']*)'.*?(?:dimension mismatch|must match|broadcast|kernel channels|"
        r"invalid expand shape|Invalid input shape|[Mm]ismatched|Incompatible dimensions)",
        "lengths do not fit each other at its operator {0} {1!r}: either two inputs contradict each other, or the "
        "model takes the lengths alone that it was exported with (give them in [model.{model}] shapes)",
    ),
)
"""A text when a model runs -> what it means."""

OF_INPUT: Sequence[Tuple[str, str]] = (
    (
        r"idx=(-?\d+) must be within the inclusive range \[(-?\d+),\s*(-?\d+)\]",
        "an input has the index {0}, and the model's table goes from {1} to {2}",
    ),
)
"""The same of what only an input's value can bring about."""

BEGINNINGS: Sequence[Tuple[int, bytes, str]] = (
    (0, b"GGUF", "a GGUF file, which engine = 'lm' runs under a name that ends in .gguf"),
    (0, b"PK\x03\x04", "a zip archive, as torch.save writes: export the model with torch.onnx.export"),
    (0, b"\x80\x02", "a pickle, as old versions of torch.save write: export the model with torch.onnx.export"),
    (4, b"TFL3", "a TensorFlow Lite file: convert it to ONNX (tf2onnx)"),
    (4, b"ORTM", "in ONNX Runtime's own format: name the .onnx file that it was made from"),
    (0, b"\x89HDF", "an HDF5 file, as Keras writes: convert it to ONNX (tf2onnx)"),
    (8, b"{", "a file of safetensors, which has weights and no graph: export the model to ONNX"),
    (0, b"{", "JSON"),
)
"""The beginnings of files that are no ONNX: (place, bytes, description)."""


def not_loaded(path: str, error: Exception) -> str:
    """The reason why ONNX Runtime does not load a file: what its error means, where that is known, and its own text."""
    text = _own_text(error)
    meaning = (
        _of_bytes(path)
        if re.search(r"INVALID_PROTOBUF|Protobuf|protobuf|NO_MODEL|No graph|not have a graph", text)
        else ""
    )
    meaning = meaning or _meaning(LOADING, text)
    return f"{meaning}{'. ' if meaning else ''}{_told(text)}"


def _of_bytes(path: str) -> str:
    """The fault of a file that is no ONNX message."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        start = file.read(64)
    kind = next((kind for at, begins, kind in BEGINNINGS if start[at : at + len(begins)] == begins), "")
    if kind:
        return f"it is no ONNX file, but {kind}"
    if size > PROTOBUF_BYTES_MAX:
        return (
            f"it has {size} bytes, and no graph may be larger than 2 GB: save it with its weights in another file "
            "(onnx.save(model, path, save_as_external_data=True))"
        )
    if ends_within(path):
        return f"it ends in the middle, after {size} bytes: download or export it again, its transfer was broken off"
    return "it is damaged or no ONNX file: download or export it again, and compare its size"


NO_ROOM = (
    r"(?:[Ff]ailed to allocate memory for requested buffer of size|"
    r"Available memory of \d+ is smaller than requested bytes of) (\d+)"
)
"""The device has no room, or ``gpu_mem_limit`` leaves none; the bytes asked."""


def failed_on(model: str, error: Exception, feeds: Mapping[str, NDArray[Any]], items: int = 0) -> EngineError:
    """The error of ``model`` for an exception of a run of ONNX Runtime; one that the values of the only item caused is
    a :class:`WrongInput`."""
    shown = ", ".join(f"{name} {value.dtype}{list(value.shape)}" for name, value in feeds.items())
    of_device = failed_by_device(model, error, shown)
    if of_device is not None:
        return of_device
    text = _own_text(error)
    of_input = _meaning(OF_INPUT, text)
    meaning = of_input or _meaning(RUNNING, text, model)
    whole = f"model {model!r} failed on {shown}: {meaning}{'. ' if meaning else ''}{_told(text)}"
    return WrongInput(whole) if of_input and items == 1 else EngineError(whole)


def failed_by_device(model: str, error: Exception, on: str) -> Optional[EngineError]:
    """The error of ``model`` where the device was the reason, by the texts of ONNX Runtime, which carry CUDA's codes
    and the bytes asked; ``None`` where it was not. ``on``: what ran."""
    text = str(error)
    asked = re.search(NO_ROOM, text)
    status = status_in(text)
    if asked or status == OUT_OF_MEMORY:
        return OutOfMemory(
            f"model {model!r} found no room on the device for {on}: {text}. Load fewer models at a "
            f"time ([device.NAME] memory), use smaller batch sizes, or raise "
            f"[model.{model}] options.provider_options.cuda.gpu_mem_limit",
            int(asked.group(1)) if asked else None,
        )
    if status is None:
        return None
    kind = error_of("a CUDA call of ONNX Runtime", status, text)
    return type(kind)(f"model {model!r} on {on}: {kind}")


def _meaning(table: Sequence[Tuple[str, str]], text: str, model: str = "NAME") -> str:
    for pattern, meaning in table:
        found = re.search(pattern, text, re.DOTALL)
        if found:
            named = found.groupdict()
            groups = [named["a"], named["b"]] if named else list(found.groups())
            return meaning.format(*groups, version=onnxruntime.__version__, model=model)
    return ""


def _own_text(error: Exception) -> str:
    return " ".join(str(error).split())


def _told(text: str) -> str:
    short = text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]}..."
    return f"onnxruntime {onnxruntime.__version__} said: {short}"
