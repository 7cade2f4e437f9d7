"""Six scores of a text's linguistic uncertainty, from rules (RT-LM, Section III-B, RULEGEN).

The higher a score, the more the answer may say: ambiguous structure, ambiguous parts of speech, words of many senses,
vague words, open-ended questions, and questions of several parts. A plain sentence scores 0 on all six.
"""

from __future__ import annotations

import math
import re
from typing import List, NamedTuple, Optional, Sequence

from edgeserve.predict.lexicon import Lexicon, load

TOKEN = re.compile(r"[a-z]+(?:'[a-z]+)?|\d+|[?.!,;:()]")
COORDINATED = re.compile(r"\b(?:old|young|big|small|rich|poor|new|tall|short|good|bad)\s+[a-z]+s\s+and\s+[a-z]+s\b")
RELATIVE = re.compile(r"\bof\s+(?:the|a|an|my|his|her|their|our)\s+[a-z]+\s+(?:who|that|which)\b")
LISTED = re.compile(r"\b(?:first|firstly|second|secondly|third|finally|also)\b|\bas well as\b|(?:^|\s)\d\)")
COMPARED = re.compile(r"\b(?:compare|differ)\b|\bdifferences?\s+between\b")
PUNCTUATION = frozenset("?.!,;:()")

PARTICLE_SENSES = 3
"""A word of so many parts of speech ("like", "back", "down") is ambiguous only behind another ambiguous word."""

TEXT_MAX = 20_000
"""Characters that are scored. A longer prompt's rest adds nothing but time."""


class Scores(NamedTuple):
    """The six rule scores, each at least 0, and the number of words (RT-LM's input length, the seventh feature)."""

    structural: float
    syntactic: float
    semantic: float
    vague: float
    open_ended: float
    multi_part: float
    words: int


class RuleScorer:
    """Scores texts by one lexicon. Immutable, so several threads may share a scorer."""

    def __init__(self, lexicon: Optional[Lexicon] = None) -> None:
        self._lexicon = load() if lexicon is None else lexicon
        closed = self._lexicon.auxiliaries | self._lexicon.prepositions | self._lexicon.determiners
        self._ambiguous = {
            word: count for word, count in self._lexicon.multipos.items() if word not in closed and count > 1
        }

    def scores(self, text: str) -> Scores:
        """The scores of ``text`` (English; any other text scores by its punctuation and length)."""
        lowered = text[:TEXT_MAX].lower().replace("’", "'")
        tokens = TOKEN.findall(lowered)
        words = [token for token in tokens if token not in PUNCTUATION]
        content = [word for word in words if not self._is_stop(word)]
        joined = " ".join(words)
        return Scores(
            self._structural(words, joined),
            self._syntactic(words),
            self._semantic(content),
            self._vague(words, len(content), joined),
            self._open_ended(lowered),
            self._multi_part(lowered, tokens, words),
            len(words),
        )

    def _is_stop(self, word: str) -> bool:
        stop = self._lexicon.stop_words
        if word in stop:
            return True
        head, apostrophe, _ = word.partition("'")
        return bool(apostrophe) and head in stop

    def _structural(self, words: Sequence[str], joined: str) -> float:
        """Prepositional phrases behind the first verb that could belong to more than one word, and shared modifiers."""
        score = float(len(COORDINATED.findall(joined)) + len(RELATIVE.findall(joined)))
        verb = self._first_verb(words)
        if verb is None:
            return score
        phrases, behind_content = 0, False
        for word in words[verb + 1 :]:
            if word in self._lexicon.prepositions and word not in ("of", "about"):
                phrases += behind_content
            elif not self._is_stop(word):
                behind_content = True
        has_object = verb + 1 < len(words) and words[verb + 1] in self._lexicon.determiners
        return score + (phrases if phrases >= 2 or (phrases == 1 and has_object) else 0)

    def _first_verb(self, words: Sequence[str]) -> Optional[int]:
        lexicon = self._lexicon
        for index, word in enumerate(words):
            after_pronoun = index > 0 and words[index - 1] in lexicon.pronouns
            inflected = index > 0 and len(word) > 4 and word.endswith(("ed", "ing"))
            if word in lexicon.past_verbs or ((inflected or after_pronoun) and not self._is_stop(word)):
                return index
        return None

    def _syntactic(self, words: Sequence[str]) -> float:
        """Words of several parts of speech that no word on their left settles."""
        lexicon = self._lexicon
        score, seen, settled_somewhere = 0.0, False, False
        before = ""
        for word in words:
            if word in lexicon.determiners or word in lexicon.auxiliaries:
                settled_somewhere = True
            senses = self._ambiguous.get(word)
            if senses is not None:
                settled = before in lexicon.determiners or before in lexicon.auxiliaries or before in ("of", "to")
                if not settled and (senses < PARTICLE_SENSES or seen):
                    score += 1.0
                seen = True
            before = word
        if score and not settled_somewhere:
            score += 0.5
        return score if score >= 1.5 else score / 2

    def _semantic(self, content: Sequence[str]) -> float:
        """Bits of doubt about the senses of the words; a long context settles part of them."""
        poly = self._lexicon.poly
        bits, counted = 0.0, set()
        for word in content:
            root = lemma(word)
            senses = max(poly.get(word, 0), poly.get(root, 0))
            if senses > 1 and root not in counted:
                counted.add(root)
                bits += math.log2(senses)
        return bits * min(1.0, 4 / len(content)) if bits else 0.0

    def _vague(self, words: Sequence[str], content: int, joined: str) -> float:
        vague = self._lexicon.vague_words
        score = float(sum(1 for word in words if word in vague or lemma(word) in vague))
        if self._lexicon.vague_phrases is not None:
            score += len(self._lexicon.vague_phrases.findall(joined))
        return score + 0.5 if score and content <= 3 else score

    def _open_ended(self, lowered: str) -> float:
        score = 0.0
        for pattern, weight in self._lexicon.open_patterns:
            if pattern.search(lowered):
                score += weight
        closed = self._lexicon.closed_question
        if score < 1 and closed is not None and closed.search(lowered):
            return 0.0
        return score

    def _multi_part(self, lowered: str, tokens: Sequence[str], words: Sequence[str]) -> float:
        questions, commas = tokens.count("?"), tokens.count(",")
        asked = [index for index, word in enumerate(words) if self._asks(word)]
        score = 1.5 * max(0, questions - 1) + (commas if commas >= 2 else 0) + max(0, len(asked) - 1)
        score += 0.7 * len(LISTED.findall(lowered)) + 0.7 * (COMPARED.search(lowered) is not None)
        if len(asked) > 1 and "and" in words[asked[0] : asked[-1]]:
            score += 1.0
        return score

    def _asks(self, word: str) -> bool:
        return word.partition("'")[0] in self._lexicon.question_words


def lemma(word: str) -> str:
    """The singular of a plural, by its ending; any other word as it is."""
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "ches", "shes", "xes")):
        return word[:-2]
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us")):
        return word[:-1]
    return word


def features(scores: Sequence[Scores]) -> List[List[float]]:
    """One row of seven numbers a text, in the order of :class:`Scores`."""
    return [[float(value) for value in row] for row in scores]
