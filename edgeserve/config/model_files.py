"""The files of a model: the one that the configuration names, and the files that belong to it.

The one source for the identity of a model: its sha256, its profile, its plans and caches, its memory, and whether it
has changed. To a graph belong the weights that it names, to a language model its tokenizer, to a part of a GGUF model
the other parts. Reading them is the engine's business.
"""

from __future__ import annotations

import itertools
import os
import re
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from edgeserve.config.files import (
    CACHE_PREFIX,
    Remembered,
    Stamp,
    file_sha256,
    is_settled,
    resolve_path,
    sha256_of,
    stamp,
)
from edgeserve.config.schema import ModelConfig
from edgeserve.config.text_files import read_json
from edgeserve.errors import EngineError

ONNX = ".onnx"

GGUF_PART = re.compile(r"(?P<stem>.*)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
"""The name of one of several files that llama.cpp splits a model into; it finds the others by this form."""

GGUF_PARTS_MAX = 1024

HEARING = (
    "config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "vocabulary.json",
    "vocabulary.txt",
)
"""The files that ``ctranslate2`` reads beside ``model.bin``."""

SAVED_TEXTS = (".json", ".txt", ".model", ".jinja", ".tiktoken")
SAVED_WEIGHTS = (".safetensors", ".bin")
"""The endings of files of weights in a folder that ``transformers`` saved; of both kinds of weights it reads the
first."""

INDEX = ".index.json"
"""Ends the name of the table that tells which of several files each weight is in."""


Stamps = Tuple[Tuple[str, Stamp], ...]
"""Path and stamp of each file of a model."""


class Part(NamedTuple):
    """A file of a model. ``by`` is the file that names it, ``""`` for a file that may be missing; ``name`` is the name
    used there, relative to that file's folder. ``bytes_min`` is its least length, ``wrong`` why it is not read."""

    name: str
    path: str
    by: str = ""
    bytes_min: int = 0
    wrong: str = ""


def graph_parts(path: str) -> List[Part]:
    """An ONNX file, and what its graph names."""
    folder = os.path.dirname(path)
    named, wrong = {}, ""
    try:
        named = _named(path)
    except OSError:
        pass  # model_path says so
    except ValueError as error:
        wrong = str(error)
    beside = [Part(name, os.path.join(folder, name), path, size) for name, size in named.items()]
    return _in_order([Part(os.path.basename(path), path, wrong=wrong), *beside])


def _named_in(path: str) -> Dict[str, int]:
    from edgeserve.config.onnx_file import named_in  # where there is such a file

    return named_in(path)


_named = Remembered(_named_in)


def parts_of(model: ModelConfig, directory: str) -> List[Part]:
    """All files of a model, each once: the one that the configuration names, then the others by their paths. Whether
    they are there is :func:`model_path`'s question."""
    if not model.file:
        return []
    path = resolve_path(model.file, directory)
    own = graph_parts(path) if model.engine == "onnx" else own_parts(path)
    return _in_order([*own, *_beside(model, path, directory)])


def _in_order(parts: Sequence[Part]) -> List[Part]:
    """Each file once: the first one, then the others by their paths."""
    found: Dict[str, Part] = {}
    for part in sorted(parts, key=lambda part: -part.bytes_min):
        path = os.path.normpath(part.path)
        if path not in found or part.by and not found[path].by:
            found[path] = part._replace(path=path)
    first = found.pop(os.path.normpath(parts[0].path))
    return [first._replace(by=""), *[found[path] for path in sorted(found)]]


def own_parts(path: str) -> List[Part]:
    """A file, and the files that it names itself: the ending of its name tells its kind."""
    if path.lower().endswith(ONNX):
        return graph_parts(path)
    return [Part(os.path.basename(path), path), *gguf_parts(path)]


def gguf_parts(path: str) -> List[Part]:
    """The other files of a GGUF model in several; none where the name is not of one."""
    named = GGUF_PART.fullmatch(os.path.basename(path))
    if not named or not 1 <= int(named["count"]) <= GGUF_PARTS_MAX:
        return []
    names = [f"{named['stem']}-{part:05d}-of-{named['count']}.gguf" for part in range(1, int(named["count"]) + 1)]
    return [Part(name, os.path.join(os.path.dirname(path), name), path) for name in names]


def is_later_part(name: str) -> bool:
    """True if a file's name is that of a part behind the first: with the first one it is a model."""
    named = GGUF_PART.fullmatch(name)
    return named is not None and int(named["part"]) > 1


def _beside(model: ModelConfig, path: str, directory: str) -> List[Part]:
    """The files that the engine reads beside a model's own."""
    folder, name = os.path.split(path)
    if model.engine == "whisper":
        return _present(folder, HEARING)
    if model.engine == "sentence" and name.lower().endswith(ONNX):
        tokenizer = model.options.get("tokenizer")
        if isinstance(tokenizer, str) and tokenizer:
            return [Part(tokenizer, resolve_path(tokenizer, directory))]
        return _present(folder, ("tokenizer.json",))
    if model.engine != "lm":
        return []
    if name.lower() == "config.json":
        return _saved(folder)
    if name.lower().endswith(ONNX):
        about = os.path.splitext(name)[0] + ".json"
        return _present(folder, (about, _table(os.path.join(folder, about)).get("tokenizer")))
    return []


def _present(folder: str, names: Sequence[Any]) -> List[Part]:
    """The present ones of the files."""
    parts = [Part(name, os.path.join(folder, name)) for name in names if isinstance(name, str) and name]
    return [part for part in parts if os.path.isfile(part.path)]


def _saved(folder: str) -> List[Part]:
    """The files of a folder that ``transformers`` saved: texts, and weights of one kind, in one file or in the files of
    an index."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    found = _present(folder, [name for name in names if name.lower().endswith(SAVED_TEXTS)])
    for ending in SAVED_WEIGHTS:
        index = next((name for name in names if name.endswith(ending + INDEX)), "")
        weights = _table(os.path.join(folder, index)).get("weight_map") if index else None
        if isinstance(weights, dict):
            shards = sorted({str(name) for name in weights.values()})
            by = os.path.join(folder, index)
            return [*found, *[Part(name, os.path.join(folder, name), by) for name in shards]]
        whole = _present(folder, [name for name in names if name.lower().endswith(ending)])
        if whole:
            return [*found, *whole]
    return found


def _table(path: str) -> Dict[str, Any]:
    """A JSON file's table; empty for a file without one, which its engine reports."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


# --- what is asked of them --------------------------------------------------------------------------------------------


def model_path(model: ModelConfig, directory: str) -> str:
    """The existing file of a model, whose other files are there too; :class:`EngineError` says which is missing or is
    not what was meant, and what to do."""
    if not model.file:
        raise EngineError(
            f"model {model.name!r}: engine {model.engine!r} needs a file; set [model.{model.name}] file = '...'"
        )
    path = resolve_path(model.file, directory)
    if not os.path.isfile(path):
        mend = (
            "fetch the assets first (or point EDGESERVE_CACHE at the cache that has them)"
            if model.file.startswith(CACHE_PREFIX)
            else f"correct [model.{model.name}] file = {model.file!r}"
        )
        raise EngineError(f"model {model.name!r}: there is no file {os.path.abspath(path)}; {mend}")
    parts = parts_of(model, directory)
    wrong = next(filter(None, map(fault, parts)), "")
    if wrong:
        raise EngineError(f"model {model.name!r}: {wrong}")
    if model.sha256:
        found = content_sha256(parts)
        if found != model.sha256:
            files = path if len(parts) == 1 else f"{path} and its other files ({_listed(parts[1:])}) together"
            raise EngineError(
                f"model {model.name!r}: {files} {'has' if len(parts) == 1 else 'have'} sha256 {found}, expected "
                f"{model.sha256}: it is not the file that was meant. If it can be trusted, change "
                f"[model.{model.name}] sha256"
            )
    return path


def fault(part: Part) -> str:
    """The fault of a file of a model, and the fix; ``""`` without an evident one."""
    if part.wrong:
        return f"{part.path} is not read: {part.wrong}"
    if not part.by:
        wrong = no_model_file(part.path) if os.path.isfile(part.path) else ""
        return f"{part.path} {wrong}" if wrong else ""
    named = f"{part.by} names the file {part.name!r}"
    if _leads_out(part):
        return (
            f"{named}, which leads out of the model's folder {os.path.dirname(part.by) or '.'}: expected a plain name, "
            "or one below that folder, and no link that leads out. Move the file into the folder, and export or save "
            "the model again with that name"
        )
    if not os.path.isfile(part.path):
        return (
            f"{named}, which is not there: copy all files of the model into one folder, with the names that they have"
        )
    wrong = no_model_file(part.path)
    if wrong:
        return f"{named}, which {wrong}"
    size = os.path.getsize(part.path)
    if size < part.bytes_min:
        return (
            f"{named} with {part.bytes_min} bytes, and it has {size}: copy or download it again, and see that all "
            "files are of one export"
        )
    return ""


def _leads_out(part: Part) -> bool:
    """True if a name means a file outside the folder of the one that names it: by itself, or by a link. Where that file
    is a link itself, as in a cache of downloads, the folder that it leads to counts too."""
    name = part.name
    if not name or "\0" in name or os.path.isabs(name) or os.path.normpath(name).split(os.sep)[0] == os.pardir:
        return True
    real = os.path.realpath(part.path)
    folders = (os.path.realpath(os.path.dirname(part.by)), os.path.dirname(os.path.realpath(part.by)))
    return not any(os.path.commonpath([folder, real]) == folder for folder in folders)


def no_model_file(path: str) -> str:
    """The evident kind of a file that is no model, and the fix; ``""`` where that is not known."""
    try:
        with open(path, "rb") as file:
            start = file.read(128).lstrip().lower()
    except OSError as error:
        return f"cannot be read ({error.strerror}): let the user of this process read it"
    if start.startswith(b"version https://git-lfs"):
        return "is a pointer of git-lfs, not the model: fetch the model with 'git lfs install' and 'git lfs pull'"
    if start.startswith((b"<!doctype html", b"<html")):
        return "is a web page, not a model: take the address of the file itself ('raw', 'resolve' or 'download')"
    return ""


def weights_size_bytes(path: str) -> int:
    """Size of an ONNX file with the weights that it names."""
    return sum([os.path.getsize(part.path) for part in graph_parts(path) if os.path.isfile(part.path)])


def content_sha256(parts: Sequence[Part]) -> str:
    """Hex digest of the files that are there: of one file its sha256, of several the sha256 of theirs, one after the
    other."""
    digests = [file_sha256(part.path) for part in parts if os.path.isfile(part.path)]
    return digests[0] if len(digests) == 1 else sha256_of(["".join(digests).encode()])


def stamps(parts: Sequence[Part], lasting: bool = False) -> Stamps:
    """Values that change with every change of a file of the model; nothing is read. ``lasting``: to compare with later
    ones, equal to none of them where a file has just changed (:func:`~edgeserve.config.files.is_settled`)."""
    found = [(part.path, stamp(part.path)) for part in parts]
    if lasting and not all(is_settled(about) for _, about in found if about):
        found.append(("", (next(_count),)))
    return tuple(found)


_count = itertools.count()


def _listed(parts: Sequence[Part]) -> str:
    names = [part.name for part in parts[:4]]
    return ", ".join(names) + (f" and {len(parts) - 4} more" if len(parts) > 4 else "")
