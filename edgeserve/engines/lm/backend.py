"""The contract of a back end: what computes the next token's scores for rows of tokens, and keeps what it computed.

A back end has one model. Each lane opens a :class:`BackendSession`, whose memory has a number of slots, one per
sequence. The step loop says which tokens go behind which slot; a back end knows no text, no request and no sampling.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Protocol, Sequence, Tuple

from edgeserve.engines.base import LaneInfo, check_count
from edgeserve.engines.lm.sampling import Scores


class Encoder(NamedTuple):
    """The encoder that a model's prompts go through: the most tokens of such a *source*, and the tokens with which the
    decoder begins every answer (one at least)."""

    source_tokens: int
    begin: Tuple[int, ...]


class ModelFacts(NamedTuple):
    """The facts of a loaded model: the longest sequence in tokens (of a model with an encoder: of its decoder), the
    number of different tokens, the bytes that one token of a sequence keeps in memory (of a source, too), and the bytes
    of the weights. ``reuses``: sessions can go on from the first tokens of a sequence, any number of them, and
    :meth:`BackendSession.copy` them. ``reserved_bytes``: of a session from its start on, for all that its sequences
    will keep and for what it computes; 0 where memory is taken as sequences grow."""

    context_tokens: int
    vocabulary: int
    bytes_per_token: int
    weights_bytes: int
    reuses: bool = False
    encoder: Optional[Encoder] = None
    reserved_bytes: int = 0


class TokenRow(NamedTuple):
    """Tokens to append to the sequence in ``slot`` behind its first ``start`` ones; others that it holds are
    forgotten. Of the scores behind them only the ``best`` ones are read; 0: all."""

    slot: int
    tokens: Sequence[int]
    start: int
    best: int = 0


class EncoderPrompt(NamedTuple):
    """A prompt for the encoder; what the decoder needs of it is kept with the sequence in ``slot``, which has none
    yet."""

    slot: int
    tokens: Sequence[int]


class BackendSession(ABC):
    """The base class of one lane's memory and computation. One thread at a time calls it; the step loop sees to that.

    The rows of one call are of different slots. Both calls return, per row, the scores of the token that follows its
    last one: float32 of the length of the vocabulary, or the best ones (:class:`~edgeserve.engines.lm.sampling.Best`)
    where the row asks for so many and that spares copies. They are read before the next call.

    ``mixes``: one call of ``prefill`` computes all its rows in one run, for any beginnings, so that a part of one
    prompt and the next tokens of others cost about what the longest alone does. Else rows run one after the other.
    """

    slots: int
    mixes: bool

    def encode(self, sources: Sequence[EncoderPrompt]) -> None:
        """Run the encoder, of models that have one: once for each sequence, before its first row. Sources may differ in
        length; a call takes about what that many of the longest do."""
        raise NotImplementedError(f"{type(self).__name__} has no encode(): a model with ModelFacts.encoder needs it")

    @abstractmethod
    def prefill(self, rows: Sequence[TokenRow]) -> List[Scores]:
        """Append one or several tokens per row; rows may differ in length and in ``start``."""

    @abstractmethod
    def decode(self, rows: Sequence[TokenRow]) -> List[Scores]:
        """Append exactly one token per row."""

    @abstractmethod
    def free(self, slot: int) -> None:
        """Forget the sequence in ``slot`` and give its memory back."""

    def keep(self, slot: int) -> None:
        """The sequence in ``slot`` makes no step until the slot is in a row again, but stays in memory."""
        raise NotImplementedError(f"{type(self).__name__} has no keep(): a model with ModelFacts.reuses needs it")

    def copy(self, source: int, target: int, count: int) -> None:
        """The sequence in the free slot ``target`` has the first ``count`` tokens of the one in ``source``."""
        raise NotImplementedError(f"{type(self).__name__} has no copy(): a model with ModelFacts.reuses needs it")

    def lost(self) -> bool:
        """True if all sequences are gone from memory since this was asked last: where it is a process's that ended.
        Asked before each batch."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Give all memory back; nothing is called afterwards."""


def in_groups(
    rows: Sequence[TokenRow], group_of: Callable[[TokenRow], Any], run: Callable[[List[TokenRow]], Iterable[Scores]]
) -> List[Scores]:
    """The rows of each group in one ``run``; their scores in the order of ``rows``."""
    groups: Dict[Any, List[TokenRow]] = {}
    for row in rows:
        groups.setdefault(group_of(row), []).append(row)
    scores: Dict[int, Scores] = {}
    for group in groups.values():
        found = list(run(group))
        check_count(found, len(group), "a step of several sequences")
        scores.update({row.slot: each for row, each in zip(group, found)})
    return [scores[row.slot] for row in rows]


def begun_alone(row: TokenRow) -> Any:
    """A group of :func:`in_groups`: rows of one length whose sequences begin run together, the others each alone."""
    return len(row.tokens), -1 if row.start == 0 else row.slot


class Tokenizer(Protocol):
    """Text to tokens and back, of one model. Called from several threads at once."""

    def encode(self, text: str, special: bool = False) -> List[int]:
        """The tokens of a text. ``special``: names of control tokens in it count as those tokens, as in a rendered
        chat template; else they are text like any other."""

    def piece(self, token: int, begins: bool = False) -> bytes:
        """The bytes that a token adds to a text: of some tokens a part of a character only, of control tokens none.
        ``begins``: of one that begins a text of its own, without the space that some vocabularies write before it."""

    @property
    def first(self) -> Sequence[int]:
        """The tokens that stand before each prompt and conversation; most models have none or one."""

    @property
    def last(self) -> Sequence[int]:
        """The tokens that stand behind each prompt: of models with an encoder one mostly, of others none."""

    @property
    def stops(self) -> Sequence[int]:
        """The tokens that end an answer."""

    @property
    def chat_template(self) -> str:
        """The template for conversations with the model: a Jinja template, ``"chatml"``, or empty where it has none."""

    @property
    def bos_token(self) -> str:
        """The text of the token that begins a sequence, for the template; empty where the model has none."""

    @property
    def eos_token(self) -> str:
        """The text of the token that ends a turn or a sequence, likewise."""

    @property
    def special_texts(self) -> Sequence[str]:
        """The names of the control tokens, longest first."""


class LmBackend(Protocol):
    """One model on one device, for its lanes. ``continues``: several tokens may follow a sequence that is in memory at
    the price of one run, so that prompts can be read in parts."""

    continues: bool

    def load(self) -> ModelFacts:
        """Make the model ready. Idempotent. Raises :class:`~edgeserve.errors.EngineError` with the mend."""

    def unload(self) -> None:
        """Give the memory back. Idempotent; sessions were closed before."""

    def open(self, lane: LaneInfo, slots: int) -> BackendSession:
        """A session for a lane, with memory for ``slots`` sequences; called on the lane's thread."""

    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. May be asked before ``load``."""
