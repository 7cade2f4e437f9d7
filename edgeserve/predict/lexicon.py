"""The word lists and patterns behind the rule scores, read from a CSV file so that a user can replace them.

The columns are ``list,entry,value``. The packaged file has closed word classes, words
with several parts of speech or senses, vague words, and weighted patterns of open-ended questions.
"""

from __future__ import annotations

import csv
import os
import re
from typing import Dict, FrozenSet, List, NamedTuple, Optional, Pattern, Tuple

from edgeserve.config.text_files import regular_file
from edgeserve.errors import ConfigError

PACKAGED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lexicon.csv")

CLOSED_CLASSES = ("DET", "PREP", "PRON", "AUX", "CONJ", "WH")
WORD_LISTS = CLOSED_CLASSES + ("PASTV", "VAGUE", "VAGUE_PHRASE", "CLOSED_PATTERN")
NUMBER_LISTS = ("MULTIPOS", "POLY", "OPEN_PATTERN")
MORE_STOP_WORDS = ("to", "not", "there", "if", "then", "than", "as", "very", "too", "also", "just", "please", "let")


class Lexicon(NamedTuple):
    """Every entry in lower case. ``multipos`` maps a word to its number of parts of speech, ``poly`` to its number of
    senses."""

    determiners: FrozenSet[str]
    prepositions: FrozenSet[str]
    pronouns: FrozenSet[str]
    auxiliaries: FrozenSet[str]
    question_words: FrozenSet[str]
    stop_words: FrozenSet[str]
    past_verbs: FrozenSet[str]
    multipos: Dict[str, int]
    poly: Dict[str, int]
    vague_words: FrozenSet[str]
    vague_phrases: Optional[Pattern[str]]
    open_patterns: Tuple[Tuple[Pattern[str], float], ...]
    closed_question: Optional[Pattern[str]]


def load(path: str = PACKAGED) -> Lexicon:
    """The lexicon of a file. Raises ``ConfigError`` with file and line for what cannot be used."""
    words: Dict[str, List[str]] = {name: [] for name in WORD_LISTS}
    numbers: Dict[str, Dict[str, float]] = {name: {} for name in NUMBER_LISTS}
    try:
        with open(path, newline="", encoding="utf-8", opener=regular_file) as file:
            for row in csv.DictReader(file):
                _add(row, words, numbers)
    except OSError as error:
        raise ConfigError(f"lexicon {path!r} cannot be read: {error.strerror or error}") from None
    except (_BadRow, csv.Error, UnicodeDecodeError) as error:
        raise ConfigError(
            f"lexicon {path!r}: {error}; expected the columns list,entry,value as in {PACKAGED!r}"
        ) from None
    return _lexicon(words, numbers)


class _BadRow(ValueError):
    pass


def _add(row: Dict[str, Optional[str]], words: Dict[str, List[str]], numbers: Dict[str, Dict[str, float]]) -> None:
    name, entry, value = row.get("list"), row.get("entry"), row.get("value")
    if name is None or not entry:
        raise _BadRow(f"{dict(row)!r} is no entry")
    if name.endswith("PATTERN"):
        try:
            re.compile(entry)
        except re.error as error:
            raise _BadRow(f"{entry!r} is no regular expression: {error}") from None
    else:
        entry = entry.lower()
    if name in words:
        words[name].append(entry)
    elif name in numbers:
        try:
            numbers[name][entry] = float(value or "")
        except ValueError:
            raise _BadRow(f"{name} {entry!r} has the value {value!r}, expected a number") from None
    else:
        raise _BadRow(f"the list {name!r} of {entry!r} is unknown; known are {', '.join(WORD_LISTS + NUMBER_LISTS)}")


def _lexicon(words: Dict[str, List[str]], numbers: Dict[str, Dict[str, float]]) -> Lexicon:
    stop = frozenset(MORE_STOP_WORDS).union(*(words[name] for name in CLOSED_CLASSES))
    phrases = "|".join(re.escape(phrase) for phrase in words["VAGUE_PHRASE"])
    closed = "|".join(f"(?:{pattern})" for pattern in words["CLOSED_PATTERN"])
    return Lexicon(
        determiners=frozenset(words["DET"]),
        prepositions=frozenset(words["PREP"]),
        pronouns=frozenset(words["PRON"]),
        auxiliaries=frozenset(words["AUX"]),
        question_words=frozenset(words["WH"]),
        stop_words=stop,
        past_verbs=frozenset(words["PASTV"]),
        multipos={word: int(count) for word, count in numbers["MULTIPOS"].items()},
        poly={word: int(count) for word, count in numbers["POLY"].items()},
        vague_words=frozenset(words["VAGUE"]),
        vague_phrases=re.compile(rf"\b(?:{phrases})\b") if phrases else None,
        open_patterns=tuple((re.compile(pattern), weight) for pattern, weight in numbers["OPEN_PATTERN"].items()),
        closed_question=re.compile(closed) if closed else None,
    )
