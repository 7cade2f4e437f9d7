"""Tokenizers: bytes as tokens, for models made here, and ``tokenizer.json`` of the ``tokenizers`` library.

llama.cpp and transformers bring their own; their back ends wrap them.
"""

from __future__ import annotations

import functools
import json
import os
import re
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from edgeserve.config.files import file_sha256
from edgeserve.config.text_files import regular_file
from edgeserve.errors import EngineError

BYTES = "bytes"
"""The tokenizer of that name: token 0 to 255 is that byte, the control tokens follow."""


class ByteTokenizer:
    """A byte is a token; ``specials`` are the names of the control tokens from 256 on."""

    def __init__(
        self,
        specials: Sequence[str],
        first: Sequence[int],
        stops: Sequence[int],
        chat_template: str,
        bos_token: str = "",
        eos_token: str = "",
    ) -> None:
        self.first = tuple(first)
        self.stops = tuple(stops)
        self.chat_template = chat_template
        self.bos_token = bos_token
        self.eos_token = eos_token
        self.last: Tuple[int, ...] = ()
        self._numbers = {name: 256 + index for index, name in enumerate(specials)}
        self.special_texts = longest_first(specials)
        self._names = re.compile("({})".format("|".join(map(re.escape, self.special_texts)) or "(?!)"))

    def encode(self, text: str, special: bool = False) -> List[int]:
        if not special:
            return list(text.encode("utf-8"))
        tokens: List[int] = []
        for index, part in enumerate(self._names.split(text)):
            tokens += [self._numbers[part]] if index % 2 else part.encode("utf-8")
        return tokens

    def piece(self, token: int, begins: bool = False) -> bytes:
        return bytes([token]) if token < 256 else b""


class FileTokenizer:
    """The text of a ``tokenizer.json`` with byte-level BPE, as GPT-2 and most models since have it, or with words that
    begin with U+2581, as sentencepiece writes them (T5). The library's tokenizers keep a switch for control tokens, so
    there are two: threads share them without changing them."""

    def __init__(
        self,
        text: str,
        first: Sequence[int],
        stops: Sequence[int],
        chat_template: str,
        model: str,
        bos_token: str = "",
        eos_token: str = "",
        last: Sequence[int] = (),
    ) -> None:
        self.first = tuple(first)
        self.last = tuple(last)
        self.stops = tuple(stops)
        self.chat_template = chat_template
        self.bos_token = bos_token
        self.eos_token = eos_token
        self._plain = _opened(text, model)
        self._plain.encode_special_tokens = True
        self._special = _opened(text, model)
        added = _added(self._special)
        self._marks_words = WORD_MARK in json.dumps(json.loads(text).get("decoder"), ensure_ascii=False)
        self._pieces = _pieces(self._special, added, self._marks_words)
        self.special_texts = longest_first(list(added.values()))

    def encode(self, text: str, special: bool = False) -> List[int]:
        text.encode()  # half of a character raises UnicodeError, as with other tokenizers; the library a TypeError
        tokens: List[int] = (self._special if special else self._plain).encode(text, add_special_tokens=False).ids
        return tokens

    def piece(self, token: int, begins: bool = False) -> bytes:
        piece = self._pieces.get(token, b"")
        return piece[1:] if begins and self._marks_words and piece[:1] == b" " else piece


def longest_first(names: Sequence[str]) -> Sequence[str]:
    """The names, so ordered that of two that begin alike the longer one is found."""
    return tuple(sorted(names, key=lambda name: (-len(name), name)))


def open_tokenizer(facts: Mapping[str, Any], directory: str, model: str) -> Any:
    """The tokenizer that a model's description names (``tokenizer``, ``specials``, ``first``, ``stops``,
    ``chat_template``, and ``bos_token`` and ``eos_token`` where there are any); files lie in ``directory``."""
    about = (tuple(facts["first"]), tuple(facts["stops"]), str(facts["chat_template"]))
    texts = (str(facts.get("bos_token", "")), str(facts.get("eos_token", "")))
    if facts["tokenizer"] == BYTES:
        return ByteTokenizer(list(facts["specials"]), *about, *texts)
    path = os.path.join(directory, str(facts["tokenizer"]))
    try:
        return _from_file(path, file_sha256(path), *about, model, *texts)
    except OSError as error:
        raise EngineError(
            f"model {model!r}: the tokenizer {path} cannot be read: {error}; make the model's files "
            "again (docs/guide/language-back-ends.md)"
        ) from error


@functools.lru_cache(maxsize=4)
def _from_file(
    path: str,
    sha256: str,
    first: Tuple[int, ...],
    stops: Tuple[int, ...],
    chat_template: str,
    model: str,
    bos_token: str,
    eos_token: str,
) -> FileTokenizer:
    """The same tokenizer for all who use a file of one content: opening one takes a third of a second."""
    with open(path, encoding="utf-8", opener=regular_file) as file:
        return FileTokenizer(file.read(), first, stops, chat_template, model, bos_token, eos_token)


def around(whole: List[int], inner: List[int]) -> Tuple[List[int], List[int]]:
    """The tokens before and behind ``inner`` in a longer list."""
    place = next((at for at in range(len(whole)) if whole[at : at + len(inner)] == inner), 0)
    return whole[:place], whole[place + len(inner) :]


def _opened(text: str, model: str) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise EngineError(
            f"model {model!r}: its tokenizer needs a library that cannot be imported ({error}); "
            "pip install 'edgeserve-runtime[lm]'"
        ) from None
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:
        raise EngineError(
            f"model {model!r}: its tokenizer.json is none that tokenizers {tokenizers.__version__} can read: {error}"
        ) from error


def _added(tokenizer: Any) -> Dict[int, str]:
    """The control tokens."""
    return {token: added.content for token, added in tokenizer.get_added_tokens_decoder().items() if added.special}


WORD_MARK = "\u2581"
"""Stands for the space before a word in the vocabularies of sentencepiece."""

BYTE_NAME = re.compile("<0x([0-9A-F]{2})>")
"""There a byte of a character that the vocabulary lacks."""


def _pieces(tokenizer: Any, added: Mapping[int, str], marks_words: bool) -> Dict[int, bytes]:
    """The bytes of every token but the control tokens."""
    bytes_of = byte_characters()
    pieces = {}
    for text, token in tokenizer.get_vocab(with_added_tokens=True).items():
        if token in added:
            continue
        if marks_words:
            byte = BYTE_NAME.fullmatch(text)
            pieces[token] = bytes([int(byte[1], 16)]) if byte else text.replace(WORD_MARK, " ").encode("utf-8")
            continue
        known = all(character in bytes_of for character in text)
        pieces[token] = bytes(bytes_of[character] for character in text) if known else text.encode("utf-8")
    return pieces


def byte_characters() -> Dict[str, int]:
    """The characters that stand for bytes in byte-level vocabularies: printable Latin-1 as it is, the other bytes by
    their order from U+0100 on (Radford et al., 2019, GPT-2's encoder)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    rest = [byte for byte in range(256) if byte not in set(plain)]
    return {**{chr(byte): byte for byte in plain}, **{chr(256 + index): byte for index, byte in enumerate(rest)}}
