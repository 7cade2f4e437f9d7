"""The header of a GGUF file: a language model's architecture, context and size. Weights and tokenizer are skipped.

The format: magic ``GGUF``, a version, counts of tensors and of metadata entries, then the entries (name, type, value),
little-endian (ggml's ``docs/gguf.md``). Every length is checked before it is read, since the file may be damaged.
"""

from __future__ import annotations

import os
import struct
from typing import Any, BinaryIO, Dict, List, Mapping, Optional, Tuple

from edgeserve.engines.describe import FileDescription
from edgeserve.errors import EngineError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ENTRIES_MAX = 100_000
ITEMS_MAX = 4_000_000
"""Texts and arrays within all arrays of a header; the largest vocabularies have some 300,000 tokens and merges."""
NAME_BYTES_MAX = 65_536
TEXT_BYTES_MAX = 64 * 1024**2
"""A chat template or a licence is text; nothing in a header is longer."""

NUMBERS_MAX = 1024
"""A list of more numbers is one of the tokenizer's; one per layer is shorter."""

_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_TEXT, _ARRAY = 8, 9

TEMPLATE = "tokenizer.chat_template"
"""How a conversation is written for the model; a model without it continues texts."""

ENCODERS = ("t5", "t5encoder")
"""Architectures with an encoder (``llama_model_has_encoder``): llama.cpp ends the process where it decodes alone."""

CAUSAL = "attention.causal"
"""Key below the architecture's name: false where a token also sees those that follow it, as in BERT."""

FACTS = ("context_length", "block_count", "embedding_length", "attention.head_count", "attention.head_count_kv")
"""Keys below the architecture's name that are kept."""


def describe(path: str) -> FileDescription:
    """What the header says. ``facts`` has ``architecture``, ``name`` and those of :data:`FACTS` that are there,
    and ``chat`` where the file has a template for conversations."""
    header = read_header(path)
    architecture = header.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise EngineError(f"{path}: its header has no general.architecture; expected a GGUF file of a language model")
    if architecture in ENCODERS or header.get(f"{architecture}.{CAUSAL}") is False:
        raise EngineError(f"{path} {not_a_decoder_alone(architecture)}")
    facts: Dict[str, Any] = {
        "architecture": architecture,
        "name": str(header.get("general.name", "")),
        "size_bytes": os.path.getsize(path),
    }
    for key in FACTS:
        value = header.get(f"{architecture}.{key}")
        if isinstance(value, int):
            facts[key] = value
    if header.get(TEMPLATE):
        facts["chat"] = True
    return FileDescription("lm", facts=facts)


def kept_per_token(header: Mapping[str, Any]) -> Tuple[int, int]:
    """How many numbers a model keeps of each token, keys and values, of all layers together; 0 where the header does
    not say it. The size of a head is a fact of its own: with Qwen3 and Gemma it is twice the embedding's part."""
    below = f"{header.get('general.architecture')}."
    heads = header.get(below + "attention.head_count", 0)
    kept = header.get(below + "attention.head_count_kv", heads)
    layers = kept if isinstance(kept, list) else [kept] * header.get(below + "block_count", 0)
    part = header.get(below + "embedding_length", 0) // max(1, max(heads) if isinstance(heads, list) else heads)
    keys, values = [header.get(f"{below}attention.{of}_length", part) for of in ("key", "value")]
    return int(sum(layers) * keys), int(sum(layers) * values)


def not_a_decoder_alone(architecture: str) -> str:
    """Why a model is refused that cannot write token by token."""
    return (
        f"is of architecture {architecture!r}, which has an encoder or attention that is not causal; expected a "
        "decoder alone, which writes token by token, such as llama, qwen2 or gemma3. Choose another file"
    )


def read_header(path: str) -> Dict[str, Any]:
    """The metadata entries that are numbers, texts or lists of at most :data:`NUMBERS_MAX` numbers; other arrays (a
    tokenizer's tokens) are skipped."""
    with open(path, "rb") as file:
        reader = _HeaderReader(file, os.path.getsize(path), path)
        if reader.take(4) != MAGIC:
            raise EngineError(f"{path}: does not begin with {MAGIC.decode()}; expected a GGUF file")
        version = reader.number("<I")
        if version not in VERSIONS:
            raise EngineError(
                f"{path}: GGUF version {version}; expected one of {', '.join(map(str, VERSIONS))}. "
                "Convert the model again with a newer llama.cpp"
            )
        reader.number("<Q")  # tensors
        entries = reader.number("<Q")
        if entries > ENTRIES_MAX:
            raise EngineError(
                f"{path}: its header names {entries} entries; expected at most {ENTRIES_MAX}. Is the file damaged?"
            )
        found: Dict[str, Any] = {}
        for _ in range(entries):
            name = reader.text(NAME_BYTES_MAX)
            value = reader.value(reader.number("<I"))
            if value is not None:
                found[name] = value
        return found


class _HeaderReader:
    """Reads within the file's size; anything beyond is a damaged file."""

    def __init__(self, file: BinaryIO, size_bytes: int, path: str) -> None:
        self._file = file
        self._left = size_bytes
        self._items = 0
        self._path = path

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
