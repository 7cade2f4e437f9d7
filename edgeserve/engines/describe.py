"""The description of a model's file: the engine that runs it, its inputs and outputs, and its metadata.

For commands that write a configuration; an engine reads its own file again when it is loaded. Each kind's reader is
imported only when a file of that kind is described.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Dict, Mapping, NamedTuple, Tuple

from edgeserve.config.model_files import fault, own_parts
from edgeserve.engines.port import Port
from edgeserve.errors import NOT_IMPORTED, EngineError

READERS: Dict[str, str] = {
    ".onnx": "edgeserve.engines.onnx_ports",
    ".pt2": "edgeserve.engines.torch.describe",
    ".pt": "edgeserve.engines.torch.describe",
    ".torchscript": "edgeserve.engines.torch.describe",
    ".gguf": "edgeserve.engines.gguf",
    ".plan": "edgeserve.engines.tensorrt.plan_file",
    ".engine": "edgeserve.engines.tensorrt.plan_file",
    ".trt": "edgeserve.engines.tensorrt.plan_file",
}
"""A file's ending -> the module whose ``describe(path)`` reads it."""

SAVED = "config.json"
"""Names a folder that the ``transformers`` library saved."""

SAVED_HOW = (
    f". A folder that transformers saved, also of a model with an encoder (T5, BART), is served with engine = 'lm' and "
    f"file = 'FOLDER/{SAVED}' in [model.NAME] (docs/guide/language-back-ends.md)"
)

_INSTALL = {"onnxruntime": "pip install 'edgeserve-runtime[onnx]'", "torch": "pip install 'edgeserve-runtime[torch]'"}


class FileDescription(NamedTuple):
    """``inputs`` and ``outputs`` as the file declares them, batch axis included. ``usual``: lengths per item of inputs
    with open axes, where the file's metadata tells them. ``opaque``: the file knows the names of its inputs and neither
    their types nor their shapes. ``facts``: what else it says (a language model's architecture and context).
    ``batches``: smallest and largest batch size of each range that the file takes; empty where it does not say.
    ``notes``: what of the file is not served."""

    engine: str
    inputs: Tuple[Port, ...] = ()
    outputs: Tuple[Port, ...] = ()
    usual: Mapping[str, Tuple[int, ...]] = {}
    opaque: bool = False
    facts: Mapping[str, Any] = {}
    batches: Tuple[Tuple[int, int], ...] = ()
    notes: Tuple[str, ...] = ()


def check_file(path: str) -> str:
    """The ending of what may be a model file. Raises :class:`EngineError` where there is none, or it is of no kind."""
    ending = os.path.splitext(path)[1].lower()
    if ending not in READERS:
        how = SAVED_HOW if os.path.basename(path) == SAVED else ""
        raise EngineError(f"{path}: its ending is none of a model file; expected one of {', '.join(READERS)}{how}")
    if not os.path.isfile(path):
        raise EngineError(f"{path}: there is no such file")
    if not path.isascii() and path != os.fsencode(path).decode("utf-8", "replace"):
        raise EngineError(f"{path!r}: the name of the file, or of a folder that it is in, is no UTF-8; rename it")
    if os.path.getsize(path) == 0:
        raise EngineError(f"{path}: the file is empty; was its download interrupted?")
    wrong = next(filter(None, map(fault, own_parts(path))), "")
    if wrong:
        raise EngineError(wrong)
    return ending


def describe(path: str) -> FileDescription:
    """Read one model file. :class:`EngineError` when it is no model, or the library that reads it is missing."""
    ending = check_file(path)
    try:
        reader = importlib.import_module(READERS[ending])
    except NOT_IMPORTED as error:
        library = str(getattr(error, "name", None) or "").split(".")[0]
        raise EngineError(
            f"{path}: reading {ending} needs {library or 'a library'}, which cannot be imported ({error}); "
            f"{_INSTALL.get(library, f'install {library}' if library else 'edgeserve doctor says what is there')}"
        ) from None
    found: FileDescription = reader.describe(path)
    return found
