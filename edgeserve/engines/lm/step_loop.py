"""The steps of a batch of answers, the same for every back end.

A turn of the loop reads some tokens of prompts (*prefill*; the last of them bring the first token of an answer), or
makes one token for each of the others (*decode*), or both where the back end computes them in one run. An answer that
is over leaves at once, between two turns; so does one whose request has ended. When the batch is cut, the rest comes
back with its state. A turn reads no more than a bounded number of tokens, so it has a bound in time, too. A source is
read by an encoder whole, at the beginning of the turn that makes the first token of its answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Hashable, List, NamedTuple, Optional, Tuple
from typing import Sequence as Several

import numpy as np
from numpy.typing import NDArray

from edgeserve.engines.base import ANSWERED, Batch, BatchControl, Result, Values, own_failure
from edgeserve.engines.lm.backend import EncoderPrompt, Tokenizer, TokenRow
from edgeserve.engines.lm.constraint import Grammars
from edgeserve.engines.lm.generation import Generation, TextReader, told_chances
from edgeserve.engines.lm.sampling import Best, Scores, choose, enough, log_chances, weighed
from edgeserve.engines.lm.sequence import Sequence
from edgeserve.engines.lm.slots import Slots
from edgeserve.errors import EngineError

PREFILL, DECODE = "prefill", "decode"
"""The phases that ``batch.variant`` may ask for alone."""

PREFILL_TOKENS_MAX = 512
"""Tokens, padding included, that a turn reads where nothing bounds turns, and that are read before the other answers of
the batch make a step: they wait for that."""


@dataclass(eq=False)
class BatchItem:
    """One item of the batch while it runs."""

    index: int
    sequence: Sequence
    steps: int = 0  # made by this call


class Language(NamedTuple):
    """The facts of the model for the loop: its name, tokenizer, grammars, the reader of items, the bytes that a token
    adds to the memory in use, the start of the draws of answers without a seed of their own, how many tokens of
    prompts a turn reads at most (0: :data:`PREFILL_TOKENS_MAX`), and the files that it is ``of``."""

    name: str
    tokenizer: Tokenizer
    grammars: Grammars
    reader: TextReader
    bytes_per_token: int
    seed: str
    prefill_tokens: int = 0
    of: Hashable = None


class StepLoop:
    """Runs the batches of one session, one after the other, on the lane's thread."""

    def __init__(self, language: Language, slots: Slots) -> None:
        self._language = language
        self._slots = slots
        self._stops = frozenset(language.tokenizer.stops)
        self._begun = 0  # answers without a seed of their own: each draws from another
        self._read = 0  # tokens of prompts since the others made a step; kept over cuts, so that these come to it

    @property
    def name(self) -> str:
        """The model's name in messages."""
        return self._language.name

    def run(self, batch: Batch) -> List[Result]:
        """One result per item, :data:`ANSWERED` where the control was told already. Raises what fails the batch."""
        run = _Run(batch)
        self._slots.forget_lost()
        for index in range(len(batch.items)):
            try:
                run.jobs.append(BatchItem(index, self._sequence(batch, index)))
            except BaseException as error:  # noqa: BLE001 it is this item's
                run.over(index, Result({}, error=own_failure(self.name, error)))
        try:
            self._seat(run)
            self._turns(run)
        except BaseException:
            for job in run.jobs:
                job.sequence.release()  # its memory is in an unknown state
            raise
        for job in run.jobs:
            run.results[job.index] = self._unfinished(run, job)
        return [run.results[index] for index in range(len(batch.items))]

    # --- parts of a batch ---------------------------------------------------------------------------------------------

    def _sequence(self, batch: Batch, index: int) -> Sequence:
        """The item's answer as far as it is, or a new one."""
        state = batch.states[index]
        if state is None:
            asked = self._language.reader.read(batch.items[index])
            self._begun += 1
            owner = batch.owners[index] if index < len(batch.owners) else None
            sequence = Sequence(asked, f"{self._language.seed}/{self._begun}", owner, self._language.of)
            sequence.constraint(self._language.grammars)  # what cannot be compiled is refused before a step
            return sequence
        if not isinstance(state, Sequence):
            raise EngineError(
                f"model {self._language.name!r}: the item's state is a {type(state).__name__}; expected "
                "what an earlier result of this model left"
            )
        if state.of != self._language.of:
            raise EngineError(f"model {self.name!r}: its files were replaced within the answer; ask again")
        return state if state.holds(self._slots) else state.moved()

    def _seat(self, run: _Run) -> None:
        """A slot for every sequence of the batch."""
        busy = {job.sequence.slot for job in run.jobs if job.sequence.holds(self._slots)}
        for job in run.jobs:
            sequence = job.sequence
            if sequence.holds(self._slots):
                self._slots.touch(sequence.slot)
                continue
            taken = self._slots.take(sequence, busy)
            if taken is None:
                raise EngineError(
                    f"model {self.name!r}: a batch of {len(run.batch.items)} sequences does not fit into "
                    f"{self._slots.session.slots} slots; raise [model.{self.name}] slots to the largest "
                    "batch size"
                )
            sequence.hold(self._slots, *taken)
            busy.add(sequence.slot)

    def _turns(self, run: _Run) -> None:
        """Make turns until every answer is over, or the batch is to end."""
        phase, most = run.batch.variant, run.batch.steps_max
        while run.jobs:
            ready = [job for job in run.jobs if most is None or job.steps < most]
            filling = [job for job in ready if len(job.sequence.waiting) > 1 or job.sequence.cached == 0]
            decoding = [job for job in ready if job not in filling]
            if phase == PREFILL:
                decoding = []
            if not filling and not decoding:
                return
            self._turn(run, filling, decoding)
            for job in list(run.jobs):
                if run.dropped(job.index):
                    self._leave(run, job, Result({}, steps=max(1, job.steps), turns=run.turns))
            if run.stop:
                return

    def _turn(self, run: _Run, filling: Several[BatchItem], decoding: Several[BatchItem]) -> None:
        """Read a part of the prompts, or make a step of the others; both where that is one run."""
        run.turns += 1
        mixes = self._slots.session.mixes
        most = self._language.prefill_tokens or PREFILL_TOKENS_MAX
        parts = parts_of(filling, most, mixes)
        tokens = sum([count + job.sequence.to_encode for job, count in parts])
        if decoding and (not parts or mixes or (self._read and self._read + tokens > PREFILL_TOKENS_MAX)):
            parts = [*parts, *[(job, 1) for job in decoding]] if mixes else [(job, 1) for job in decoding]
            self._read = 0
        else:
            self._read += tokens if decoding else 0
            run.turns += max(0, tokens - 1) // most  # a long source takes as long as so many turns
        self._step(run, [job for job, _ in parts], [count for _, count in parts])

    def _step(self, run: _Run, jobs: Several[BatchItem], counts: Several[int]) -> None:
        """Give the back end so many of each sequence's waiting tokens, and before them what its encoder is to read;
        choose the next of each where none is left."""
        fresh = [job.sequence for job in jobs if job.sequence.to_encode]
        sources = [EncoderPrompt(sequence.slot, sequence.asked.source) for sequence in fresh]
        rows = [
            TokenRow(job.sequence.slot, job.sequence.waiting[:count], job.sequence.cached, _read_of(job.sequence.asked))
            for job, count in zip(jobs, counts)
        ]
        decode = all(len(row.tokens) == 1 and row.start > 0 for row in rows)
        with self._slots.using() as session:
            if sources:
                session.encode(sources)
            scores = session.decode(rows) if decode else session.prefill(rows)
        for sequence in fresh:
            sequence.encoded = True
        for job, row, found in zip(jobs, rows, scores):
            job.sequence.cached += len(row.tokens)
            if job.sequence.cached == len(job.sequence.tokens):
                job.steps += 1
                self._choose(run, job, found)

    def _choose(self, run: _Run, job: BatchItem, scores: Scores) -> None:
        """The next token of one answer, what may be sent of it, and whether the answer is over."""
        sequence = job.sequence
        try:
            text, answer = self._next(sequence, scores)
        except BaseException as error:  # noqa: BLE001 it is this item's: how it draws, its form, its text, its calls
            failure = own_failure(self.name, error)
            self._leave(run, job, Result({}, error=failure, steps=job.steps, turns=run.turns))
            return
        if text or answer is not None or sequence.count == 1:  # from its first token on it does not end without that
            run.tell(job, text)
        if answer is not None:
            self._leave(run, job, Result(answer, steps=job.steps, turns=run.turns, cached=sequence.reused))

    def _next(self, sequence: Sequence, scores: Scores) -> Tuple[str, Optional[Values]]:
        """Choose a token: the text that may be sent now, and the outputs of an answer that is over with it."""
        asked, said = sequence.asked, scores
        scores = weighed(scores, asked.sampling, asked.prompt, sequence.generated)
        constraint = sequence.constraint(self._language.grammars)
        if constraint is not None and not isinstance(scores, Best):
            scores = constraint.allowed(scores)
        token = choose(scores, asked.sampling, sequence.draw())
        if token in self._stops and not asked.ignore_eos:
            return sequence.finish(), sequence.answer("stop", sequence.count + 1)
        chance = None
        if asked.logprobs >= 0 and not isinstance(said, Best):
            chance = self._chance(said, token, asked.logprobs)
        begins = bool(asked.source) and not sequence.count
        text = sequence.append(token, self._language.tokenizer.piece(token, begins), chance)
        complete = sequence.text.stopped or (constraint is not None and constraint.took(token))
        if complete or sequence.count >= asked.max_tokens:
            text += sequence.finish()
            return text, sequence.answer("stop" if complete else "length", sequence.count)
        return text, None

    def _chance(self, scores: NDArray[Any], token: int, count: int) -> Dict[str, Any]:
        """The probability of a token and of the ``count`` most likely ones, as OpenAI's API has them."""
        of_token, likely = log_chances(scores, token, count)
        return {**self._told(token, of_token), "top_logprobs": [self._told(*each) for each in likely]}

    def _told(self, token: int, chance: float) -> Dict[str, Any]:
        piece = self._language.tokenizer.piece(token)
        return {"token": piece.decode("utf-8", "replace"), "logprob": round(chance, 6), "bytes": list(piece)}

    def _leave(self, run: _Run, job: BatchItem, result: Result) -> None:
        job.sequence.end()
        run.jobs.remove(job)
        run.over(job.index, result)

    def _unfinished(self, run: _Run, job: BatchItem) -> Result:
        sequence = job.sequence
        return Result(
            {},
            state=sequence,
            state_bytes=sequence.kept_tokens * self._language.bytes_per_token,
            done=False,
            steps=job.steps,
            turns=run.turns,
        )


def _read_of(asked: Generation) -> int:
    """The number of best tokens whose scores the next choice reads; 0: all."""
    return 0 if asked.grammar or asked.logprobs >= 0 else enough(asked.sampling)


class _Run:
    """One batch: the open jobs, the results of the ended ones, and the turns so far."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.control: Optional[BatchControl] = batch.control
        self.jobs: List[BatchItem] = []
        self.results: Dict[int, Result] = {}
        self.turns = 0

    @property
    def stop(self) -> bool:
        return self.control is not None and self.control.stop

    def dropped(self, index: int) -> bool:
        return self.control is not None and self.control.dropped(index)

    def tell(self, job: BatchItem, text: str) -> None:
        """Send a piece of an answer: its text, and the tokens since the last piece."""
        if self.control is not None:
            tokens = job.sequence.take_unsent()
            if text or tokens:
                chances = job.sequence.chances
                told = told_chances(None if chances is None else chances[len(chances) - len(tokens) :])
                piece = {"text": text, "tokens": np.array(tokens, np.int32), **told}
                self.control.emit(job.index, Result(piece, state=job.sequence, done=False, steps=job.steps))

    def over(self, index: int, result: Result) -> None:
        """End an item: report it now where the batch has a listener, else with the batch."""
        if self.control is not None:
            self.control.emit(index, result)
            result = ANSWERED
        self.results[index] = result


def parts_of(jobs: Several[BatchItem], most: int, mixes: bool) -> List[Tuple[BatchItem, int]]:
    """The prompts that a turn reads, and the number of tokens of each: ``most`` in all, padding included.

    A part ends where a multiple of ``most`` tokens is in memory, or the prompt ends: the arithmetic of an answer does
    not depend on the other prompts. Rows of one run are padded to the longest and all begin, unless the back end mixes.
    The tokens for the encoder count with the tokens behind them; one longer than ``most`` is read alone.
    """
    parts: List[Tuple[BatchItem, int]] = []
    total = longest = 0
    for job in jobs:
        cached = job.sequence.cached
        count = min(len(job.sequence.waiting), most - cached % most)
        reads = count + job.sequence.to_encode
        wide = max(longest, reads)
        if parts and (total + reads if mixes else wide * (len(parts) + 1)) > most:
            continue
        if parts and not mixes and (cached or parts[0][0].sequence.cached):
            continue
        parts.append((job, count))
        total, longest = total + reads, wide
    return parts
