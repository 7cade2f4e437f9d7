"""The number of tokens of prompts that a turn may read within its bound on time: measured when a lane opens a model.

Pure but for the clock and the session, which are handed in.
"""

from __future__ import annotations

from typing import Callable

from edgeserve.engines.lm.backend import BackendSession, EncoderPrompt, ModelFacts, TokenRow

FEW, MANY = 8, 64
"""Tokens of the two runs from which the time of a turn is reckoned."""

TOKENS_MIN = 8
"""The least that a turn reads: fewer cost nearly the same, since a run reads all weights."""

RUNS = 3


def tokens_within(
    session: BackendSession, bound_ns: int, most: int, facts: ModelFacts, clock_ns: Callable[[], int]
) -> int:
    """The largest power of two of tokens, up to ``most``, whose run is believed to take at most ``bound_ns``; never
    below :data:`TOKENS_MIN`. Uses slot 0 of an unused session."""
    encodes = facts.encoder is not None
    many = min(MANY, facts.encoder.source_tokens if facts.encoder is not None else facts.context_tokens - 1)
    few = min(FEW, many - 1)
    if few < 1:
        return most
    few_ns, many_ns = (_run_ns(session, count, encodes, clock_ns) for count in (few, many))
    token_ns = max(0.0, (many_ns - few_ns) / (many - few))
    found = TOKENS_MIN
    while found * 2 <= most and few_ns + (found * 2 - few) * token_ns <= bound_ns:
        found *= 2
    return min(found, most)


def _run_ns(session: BackendSession, count: int, encodes: bool, clock_ns: Callable[[], int]) -> int:
    """The fastest of a few runs: the first ones make buffers, and what else runs on the machine only slows."""
    took = []
    for _ in range(RUNS):
        begun_ns = clock_ns()
        if encodes:
            session.encode([EncoderPrompt(0, [0] * count)])
        session.prefill([TokenRow(0, [0] * (1 if encodes else count), 0)])
        took.append(clock_ns() - begun_ns)
        session.free(0)
    return min(took)
