"""The header of a GGUF file: what it is, a language model's architecture, context and size. Weights and tokenizer are
skipped.

Many files of this format are no model that writes: parts, adapters, projectors, importance matrices, vocabularies,
models that make vectors or compare texts. :func:`kind_of` says what a file is, or why it is refused and which to take.

The format: magic ``GGUF``, a version, counts of tensors and of metadata entries, then the entries (name, type, value)
and the tensors (name, shape, type, place), little-endian (ggml's ``docs/gguf.md``). Every length is checked before it
is read, since the file may be damaged.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from typing import Any, BinaryIO, Dict, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from edgeserve.config.files import Remembered
from edgeserve.config.model_files import GGUF_PART, fault, gguf_parts
from edgeserve.engines.describe import FileDescription
from edgeserve.engines.port import Port
from edgeserve.errors import EngineError
from edgeserve.units import format_size

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ENTRIES_MAX = 100_000
TENSORS_MAX = 1_000_000
ITEMS_MAX = 4_000_000
"""Texts and arrays within all arrays of a header; the largest vocabularies have some 300,000 tokens and merges."""
NAME_BYTES_MAX = 65_536
TEXT_BYTES_MAX = 64 * 1024**2
"""A chat template or a licence is text; nothing in a header is longer."""

NUMBERS_MAX = 1024
"""A list of more numbers is one of the tokenizer's; one per layer is shorter."""

_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_TEXT, _ARRAY = 8, 9

ALIGNMENT = 32
"""Tensors begin at multiples of so many bytes, where ``general.alignment`` does not say another."""

BLOCKS = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
    16: (256, 66),
    17: (256, 74),
    18: (256, 98),
    19: (256, 50),
    20: (32, 18),
    21: (256, 110),
    22: (256, 82),
    23: (256, 136),
    24: (1, 1),
    25: (1, 2),
    26: (1, 4),
    27: (1, 8),
    28: (1, 8),
    29: (256, 56),
    30: (1, 2),
    34: (256, 54),
    35: (256, 66),
    39: (32, 17),
}
"""A tensor's type -> how many numbers a block has, and its bytes (``ggml.h``, and ``GGML_QUANT_SIZES`` of the ``gguf``
package). Sizes of other types are not checked."""

TEMPLATE = "tokenizer.chat_template"
"""The key of the template for conversations; a model without it continues texts."""

ENCODERS = ("t5", "t5encoder")
"""Architectures with an encoder (``llama_model_has_encoder``): llama.cpp ends the process where it decodes alone."""

CAUSAL = "attention.causal"
"""Key below the architecture's name: false where a token also sees the tokens behind it, as in BERT."""

POOLING = "pooling_type"
"""Key below the architecture's name: how the vectors of tokens become one of a text. A model that writes has none."""

POOLING_NONE, POOLING_RANK = 0, 4
"""llama.cpp's ``llama_pooling_type``: none, and that of a model that gives a number to a pair of texts."""

NO_TOKENIZER = ("none", "no_vocab")
"""Values of ``tokenizer.ggml.model`` of models that take no text."""

FACTS = ("context_length", "block_count", "embedding_length", "attention.head_count", "attention.head_count_kv")
"""Keys below the architecture's name that are kept."""

WRITES, EMBEDS = "lm", "sentence"
"""The engines of a file that is served: a model that writes, one that makes vectors of texts."""


class Gguf(NamedTuple):
    """A file's metadata: the entries that are numbers, texts or lists of at most :data:`NUMBERS_MAX` numbers; how many
    tensors it has; how many bytes it has when it is whole, as far as the types of its tensors are known; and the names
    of the other entries."""

    entries: Dict[str, Any]
    tensors: int
    bytes_min: int
    others: Tuple[str, ...] = ()


def describe(path: str) -> FileDescription:
    """The description by the header. ``facts`` has ``architecture``, ``name`` and the present ones of :data:`FACTS`,
    and ``chat`` where the file has a template for conversations."""
    kind, header = kind_of(path), read_header(path)
    architecture = header["general.architecture"]
    facts: Dict[str, Any] = {
        "architecture": architecture,
        "name": str(header.get("general.name", "")),
        "size_bytes": sum([os.path.getsize(part) for part in {path, *(part.path for part in gguf_parts(path))}]),
    }
    for key in FACTS:
        value = header.get(f"{architecture}.{key}")
        if isinstance(value, int):
            facts[key] = value
    if kind == EMBEDS:
        return FileDescription(kind, (Port("text", np.dtype(np.object_), (None,)),), facts=facts)
    if header.get(TEMPLATE):
        facts["chat"] = True
    return FileDescription(kind, facts=facts)


def kind_of(path: str) -> str:
    """The engine that serves a file: :data:`WRITES` or :data:`EMBEDS`. :class:`EngineError` says what another file is,
    and which file to take in its place."""
    found = read(path)
    why = _no_model(path, found) or _not_whole(path, found)
    if why:
        raise EngineError(f"{path} {why}")
    header = found.entries
    architecture = header["general.architecture"]
    pooling = header.get(f"{architecture}.{POOLING}", POOLING_NONE)
    if pooling == POOLING_RANK or f"{architecture}.classifier.output_labels" in found.others:
        raise EngineError(
            f"{path} is a model that compares texts (a reranker), which no engine serves: name a model that writes, or "
            "one that makes vectors of texts"
        )
    looks_ahead = header.get(f"{architecture}.{CAUSAL}") is False
    if architecture in ENCODERS or looks_ahead and not pooling and "bert" not in architecture:
        raise EngineError(f"{path} {not_a_decoder_alone(architecture)}")
    return EMBEDS if pooling or looks_ahead or "bert" in architecture else WRITES


def check_kind(path: str, wanted: str, model: str) -> None:
    """Raise :class:`EngineError` where the engine ``wanted`` cannot serve the file of ``model``. What writes can make
    vectors, too."""
    try:
        kind = kind_of(path)
    except EngineError as error:
        raise EngineError(f"model {model!r}: {error}") from None
    if kind != wanted and wanted == WRITES:
        raise EngineError(
            f"model {model!r}: {path} is a model that makes vectors of texts "
            f"({read_header(path)['general.architecture']}), and writes none: set engine = 'sentence', or name a "
            "model that writes"
        )


def _no_model(path: str, found: Gguf) -> str:
    """The kind of a file that is not made to be run, and the file to take instead, as text; ``""`` for a model."""
    header, others = found.entries, _others(path)
    architecture, kind = header.get("general.architecture"), str(header.get("general.type", "model"))
    part, count = header.get("split.no", 0), header.get("split.count", 0)
    named = GGUF_PART.fullmatch(os.path.basename(path))
    if part:
        first = f"{named['stem']}-00001-of-{named['count']}.gguf" if named else "the one that ends in -00001-of-..."
        return f"is part {part + 1} of {count} of a model: name its first part, {first}, with the others beside it"
    if count > 1 and (not named or int(named["part"]) != 1 or int(named["count"]) != count):
        return (
            f"is part 1 of {count} of a model, and llama.cpp finds the others by their names: call it and them "
            f"NAME-00001-of-{count:05d}.gguf and so on"
        )
    if kind == "adapter" or "adapter.type" in header:
        base = f" of architecture {architecture}" if architecture else ""
        return (
            f"is an adapter (LoRA) for a model{base}, and no model: merge it into that model (llama.cpp's "
            f"llama-export-lora), and name the merged file{others}"
        )
    if kind in ("mmproj", "clip-vision") or architecture == "clip":
        return f"is the projector of a model that sees or hears, and no language model: name the model's file{others}"
    if kind == "imatrix" or any(key.startswith("imatrix.") for key in header):
        return f"is an importance matrix, by which models are quantised: name a quantised model{others}"
    if not isinstance(architecture, str) or not architecture:
        return f"has no general.architecture in its header; expected a language model{others}"
    if not found.tensors:
        return f"has a vocabulary and no weights: name the model's file{others}"
    if not any(key.startswith((f"{architecture}.", "tokenizer.")) for key in header):
        return (
            f"is of architecture {architecture!r} and says nothing that a language model's file says; expected one. "
            "Models that make images run elsewhere"
        )
    if str(header.get("tokenizer.ggml.model", NO_TOKENIZER[0])) in NO_TOKENIZER:
        return f"has no tokenizer: llama.cpp cannot give it texts. Convert the model again with its tokenizer{others}"
    return ""


def _others(path: str) -> str:
    """The names of other such files beside it, which may be the one that was meant."""
    folder, name = os.path.split(path)
    try:
        names = [item for item in sorted(os.listdir(folder or ".")) if item.lower().endswith(".gguf") and item != name]
    except OSError:
        return ""
    few = ", ".join(map(repr, names[:4]))
    return f" (beside it: {few}{' and others' if len(names) > 4 else ''})" if names else ""


def _not_whole(path: str, found: Gguf) -> str:
    """The missing parts of a model, as text; ``""`` where none is known to be missing."""
    missing = next(filter(None, map(fault, gguf_parts(path))), "")
    if missing:
        return f"is one part of a model: {missing}"
    size = os.path.getsize(path)
    if size < found.bytes_min:
        return (
            f"has {format_size(size)} of {format_size(found.bytes_min)}: its transfer was broken off; download or copy "
            "it again"
        )
    return ""


def kept_per_token(header: Mapping[str, Any]) -> Tuple[int, int]:
    """The count of numbers that a model keeps of each token, keys and values, of all layers together; 0 where the
    header does not say it. The size of a head is a fact of its own: with Qwen3 and Gemma it is twice the embedding's
    part."""
    below = f"{header.get('general.architecture')}."
    heads = header.get(below + "attention.head_count", 0)
    kept = header.get(below + "attention.head_count_kv", heads)
    layers = kept if isinstance(kept, list) else [kept] * header.get(below + "block_count", 0)
    part = header.get(below + "embedding_length", 0) // max(1, max(heads) if isinstance(heads, list) else heads)
    keys, values = [header.get(f"{below}attention.{of}_length", part) for of in ("key", "value")]
    return int(sum(layers) * keys), int(sum(layers) * values)


def not_a_decoder_alone(architecture: str) -> str:
    """The reason why a model is refused that cannot write token by token."""
    return (
        f"is of architecture {architecture!r}, which has an encoder or attention that is not causal; expected a "
        "decoder alone, which writes token by token, such as llama, qwen2 or gemma3. Choose another file"
    )


def read_header(path: str) -> Dict[str, Any]:
    """The metadata entries that are numbers, texts or lists of at most :data:`NUMBERS_MAX` numbers; other arrays (a
    tokenizer's tokens) are skipped."""
    return read(path).entries


def _read(path: str) -> Gguf:
    with open(path, "rb") as file:
        reader = _HeaderReader(file, os.path.getsize(path), path)
        if reader.take(4) != MAGIC:
            raise EngineError(f"{path}: does not begin with {MAGIC.decode()}; expected a GGUF file")
        _check_version(path, reader.number("<I"))
        tensors, entries = reader.number("<Q"), reader.number("<Q")
        for count, most, of in ((tensors, TENSORS_MAX, "tensors"), (entries, ENTRIES_MAX, "entries")):
            if count > most:
                raise EngineError(
                    f"{path}: its header names {count} {of}; expected at most {most}. Is the file damaged?"
                )
        found: Dict[str, Any] = {}
        for _ in range(entries):
            name = reader.text(NAME_BYTES_MAX)
            found[name] = reader.value(reader.number("<I"))
        others = tuple([name for name, value in found.items() if value is None])
        found = {name: value for name, value in found.items() if value is not None}
        end = max([reader.tensor() for _ in range(tensors)], default=0)
        step = found.get("general.alignment", ALIGNMENT)
        step = step if isinstance(step, int) and step > 0 else ALIGNMENT
        return Gguf(found, tensors, (-(-reader.at // step) * step if tensors else reader.at) + end, others)


read = Remembered(_read)
"""``read(path)``: the metadata of a file. :class:`EngineError` where it is damaged or none of this format."""


def _check_version(path: str, version: int) -> None:
    if version in VERSIONS:
        return
    known = ", ".join(map(str, VERSIONS))
    if int.from_bytes(version.to_bytes(4, "little"), "big") <= max(VERSIONS):
        raise EngineError(
            f"{path}: written in the other byte order (big-endian); take the usual file, or convert it with "
            "gguf-convert-endian of the gguf package"
        )
    older = version < min(VERSIONS)
    raise EngineError(
        f"{path}: GGUF version {version}; expected one of {known}. "
        + ("Convert the model again with a newer llama.cpp" if older else "It is newer than EdgeServe, or damaged")
    )


class _HeaderReader:
    """Reads within the file's size; anything beyond is a damaged file."""

    def __init__(self, file: BinaryIO, size_bytes: int, path: str) -> None:
        self._file = file
        self._left = size_bytes
        self._size = size_bytes
        self._items = 0
        self._path = path

    @property
    def at(self) -> int:
        """The number of bytes read."""
        return self._size - self._left

    def take(self, count: int) -> bytes:
        self._within(count)
        return self._file.read(count)

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self, bytes_max: int) -> str:
        count = self.number("<Q")
        if count > bytes_max:
            raise EngineError(
                f"{self._path}: a text of {count} bytes in its header; expected at most {bytes_max}. Is "
                "the file damaged?"
            )
        return self.take(count).decode("utf-8", "replace")

    def tensor(self) -> int:
        """The end of a tensor, in bytes behind the header; 0 where that is not known."""
        self.text(NAME_BYTES_MAX)
        count = self.number("<I")
        lengths = [self.number("<Q") for _ in range(self._counted(count, 8))]
        kind, begin = self.number("<I"), self.number("<Q")
        if kind not in BLOCKS:
            return int(begin)
        numbers, size = BLOCKS[kind]
        total = 1
        for length in lengths:
            total *= length
        return int(begin + total // numbers * size)

    def value(self, kind: int) -> Any:
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind == _TEXT:
            return self.text(TEXT_BYTES_MAX)
        if kind == _ARRAY:
            return self._array(0)
        raise EngineError(
            f"{self._path}: an entry of type {kind} in its header, which GGUF does not have. Is the file damaged?"
        )

    def _array(self, depth: int) -> Optional[List[Any]]:
        """A short list of numbers; ``None`` for any other array, which is skipped."""
        kind, count = self.number("<I"), self.number("<Q")
        if kind in _NUMBERS and count <= NUMBERS_MAX:
            return [self.number(_NUMBERS[kind]) for _ in range(count)]
        if kind in _NUMBERS:
            self._skip(count * struct.calcsize(_NUMBERS[kind]))
        elif kind == _TEXT:
            for _ in range(self._counted(count, 8)):
                self._skip(self.number("<Q"))
        elif kind == _ARRAY and depth < 4:
            for _ in range(self._counted(count, 12)):
                self._array(depth + 1)
        else:
            raise EngineError(f"{self._path}: an array of type {kind} in its header. Is the file damaged?")
        return None

    def _counted(self, count: int, least_bytes: int) -> int:
        if count * least_bytes > self._left:
            self._within(count * least_bytes)
        self._items += count
        if self._items > ITEMS_MAX:
            raise EngineError(
                f"{self._path}: arrays of more than {ITEMS_MAX} texts and arrays in its header. Is the file damaged?"
            )
        return int(count)

    def _skip(self, count: int) -> None:
        self._within(count)
        self._file.seek(count, os.SEEK_CUR)

    def _within(self, count: int) -> None:
        if count > self._left:
            raise EngineError(f"{self._path}: ends within its header; was its download interrupted?")
        self._left -= count


ASK_LLAMA_CPP = "import llama_cpp; print(int(llama_cpp.llama_supports_gpu_offload()))"
ASK_S = 60.0


def can_use_gpu() -> bool:
    """True if the installed llama.cpp was built for a GPU. Asked in a process of its own, which a library for another
    machine may end."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", ASK_LLAMA_CPP],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_S,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and done.stdout.strip().endswith("1")
