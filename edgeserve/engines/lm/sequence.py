"""The state of an answer that is not finished: its tokens, how it goes on, and where its memory lies."""

from __future__ import annotations

import random
import threading
from typing import Any, Dict, Hashable, List, Optional
from typing import Sequence as Several

from edgeserve.engines.base import Values, Written
from edgeserve.engines.lm.answer_text import AnswerText
from edgeserve.engines.lm.constraint import Constraint, Grammars
from edgeserve.engines.lm.generation import Generation, answer_of
from edgeserve.engines.lm.prefixes import HeldTokens
from edgeserve.engines.lm.slots import Slots
from edgeserve.engines.lm.tools import beside_calls, calls_of
from edgeserve.units import counted


class Sequence:
    """One answer to an ``owner`` (``None``: it shares no memory with others). ``tokens`` are the prompt's and the
    generated ones; the first ``cached`` of them are in the slot's memory. So many of the prompt's were there before it
    began: ``reused``. With an encoder, the slot's memory also has what the decoder needs of the source: ``encoded``.

    ``release`` gives the memory back on any thread, as long as no batch runs the sequence; the rest can go on in any
    session of the same model, ``of`` the same files, which computes the memory again. A copy through pickle is
    released. ``written`` may be asked on any thread while a batch runs the sequence.
    """

    def __init__(self, asked: Generation, seed: str, owner: Optional[str], of: Hashable = None) -> None:
        self.asked = asked
        self.of = of
        self.owner = owner
        self.tokens: List[int] = list(asked.prompt)
        self.text = AnswerText(asked.stops, bool(asked.calls))
        self.cached = self.reused = 0
        self.encoded = False
        self.slot = -1
        self._slots: Optional[Slots] = None
        # Random drops a number's sign.
        self._random = random.Random(seed if asked.seed is None else asked.seed % 2**64)
        self._unsent: List[int] = []
        self.chances: Optional[List[Dict[str, Any]]] = None if asked.logprobs < 0 else []
        self._held_to: Optional[Constraint] = None
        self._growing = threading.Lock()  # while the tokens and their text are not those of one step

    @property
    def generated(self) -> List[int]:
        return self.tokens[len(self.asked.prompt) :]

    @property
    def count(self) -> int:
        """The number of generated tokens."""
        return len(self.tokens) - len(self.asked.prompt)

    @property
    def waiting(self) -> List[int]:
        """The tokens that are not in memory yet: one while it is decoded."""
        return self.tokens[self.cached :]

    @property
    def to_encode(self) -> int:
        """The number of tokens that the encoder must read before the next step."""
        return 0 if self.encoded else len(self.asked.source)

    @property
    def kept_tokens(self) -> int:
        """The number of tokens in memory, with the source's."""
        return self.cached + (len(self.asked.source) if self.encoded else 0)

    def draw(self) -> float:
        """The next random number of this answer; none is used up where the best token is taken."""
        return self._random.random() if self.asked.sampling.temperature > 0 else 0.0

    def constraint(self, grammars: Grammars) -> Optional[Constraint]:
        """The constraint of the answer, if any. Raises :class:`WrongInput` where it cannot be compiled."""
        if self._held_to is None and self.asked.grammar:
            asked = self.asked
            self._held_to = grammars.begun(asked.form, asked.grammar, self.owner, self.generated)
        return self._held_to

    def append(self, token: int, piece: bytes, chance: Optional[Dict[str, Any]] = None) -> str:
        """A token was chosen, with this ``chance``; the text that may be sent after it."""
        with self._growing:
            self.tokens.append(token)
            if self.chances is not None and chance is not None:
                self.chances.append(chance)
            self._unsent.append(token)
            return self.text.add(piece)

    def finish(self) -> str:
        """No token follows: the rest of the text, which may be sent now."""
        with self._growing:
            return _finished(self.text, self.asked.calls)

    def answer(self, reason: str, count: int) -> Values:
        """The outputs of the finished answer, which has so many tokens with the one that ended it."""
        return self._outputs(self.text, self.generated, self.chances, reason, count)

    def written(self) -> Optional[Written]:
        """The answer as it is if no token follows: it ends as one that has reached its length."""
        with self._growing:
            text, tokens = self.text.copy(), self.generated
            chances = None if self.chances is None else list(self.chances)
        if not tokens:
            return None
        _finished(text, self.asked.calls)
        return Written(self._outputs(text, tokens, chances, "length", len(tokens)), counted(len(tokens), "token"))

    def _outputs(
        self,
        text: AnswerText,
        tokens: Several[int],
        chances: Optional[List[Dict[str, Any]]],
        reason: str,
        count: int,
    ) -> Values:
        calls = calls_of(text.kept, self.asked.calls)
        prompt_tokens = len(self.asked.source or self.asked.prompt)
        return answer_of(text.text, tokens, reason, prompt_tokens, count, self.reused, calls, chances)

    def take_unsent(self) -> List[int]:
        """The tokens that no piece of the answer has carried yet."""
        unsent, self._unsent = self._unsent, []
        return unsent

    def holds(self, slots: Slots) -> bool:
        """True if its memory is in this session."""
        return self._slots is slots

    def hold(self, slots: Slots, slot: int, cached: int) -> None:
        """Its memory is in this slot from now on, and has so many of its tokens."""
        self._slots, self.slot, self.cached, self.encoded = slots, slot, cached, False
        if not self.count:
            self.reused = cached

    def end(self) -> None:
        """End the answer: its memory stays for other sequences of the owner, as long as there is room."""
        cached, slots = self.cached, self._left()
        if slots is not None and self.owner is not None:
            slots.keep(HeldTokens(self.slot, self.tokens[:cached], self.owner))
        elif slots is not None:
            slots.give_back(self.slot)

    def release(self) -> None:
        """Give the memory back. Idempotent, also of two threads at once: the lane's takes it while a request ends."""
        slots = self._left()
        if slots is not None:
            slots.give_back(self.slot)

    def _left(self) -> Optional[Slots]:
        """The slots that it held until now."""
        with self._growing:
            slots, self._slots = self._slots, None
        self.cached, self.encoded = 0, False
        return slots

    def moved(self) -> Sequence:
        """A released copy, for a session that goes on with what another one began; that one may not have ended."""
        copy = Sequence.__new__(Sequence)
        copy.__setstate__(
            {
                **self.__getstate__(),
                "tokens": list(self.tokens),
                "_unsent": list(self._unsent),
                "chances": None if self.chances is None else list(self.chances),
                "text": self.text.copy(),
                "_random": random.Random(),
            }
        )
        copy._random.setstate(self._random.getstate())
        self.release()
        return copy

    def __del__(self) -> None:
        self.release()

    def __getstate__(self) -> Dict[str, Any]:
        """All of it but what it holds in this process."""
        left = {"cached": 0, "encoded": False, "slot": -1, "_slots": None, "_held_to": None, "_growing": None}
        return {**self.__dict__, **left}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._growing = threading.Lock()


def _finished(text: AnswerText, names: Several[str]) -> str:
    """The remaining text when no token follows; kept text that is no call is part of it."""
    rest = text.finish()
    return rest + (text.leave(*beside_calls(text.kept)) if calls_of(text.kept, names) else text.give_up())
