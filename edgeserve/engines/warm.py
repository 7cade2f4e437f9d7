"""Warm-up: run every batch size before any request waits for an answer.

Used by the live world before it says *ready* and by the profiler. The clock is handed in.
"""

from __future__ import annotations

import statistics
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional

from edgeserve.engines.base import Batch, Session, Values, run_whole
from edgeserve.units import format_duration

REPETITIONS = 3
"""Runs per size: the first makes buffers and chooses kernels, the second may still allocate, the third is typical."""

REPETITIONS_MAX = 12

CHANGE_FACTOR_MAX = 2.0
"""A batch that takes more than so many times as long after one of another size is worth a line: a change of kernels
costs less, a plan that is made anew a hundred times as much (microsoft/onnxruntime#23006)."""


class SizeChange(NamedTuple):
    """The time of a batch after one of another size, and after one of its own."""

    changed_ns: int
    steady_ns: int


def warm_up(
    session: Session,
    example: Values,
    sizes: Iterable[int],
    clock_ns: Callable[[], int],
    repetitions: int = REPETITIONS,
    spend_ns: int = 0,
    seen: Optional[Dict[str, Any]] = None,
    sequences: bool = False,
) -> Dict[int, List[int]]:
    """Run each batch size ``repetitions`` times with one item; how long each run took, in nanoseconds. Short runs go
    on, up to :data:`REPETITIONS_MAX`, while a size has taken less than ``spend_ns``. ``seen`` gets the outputs of one
    item, and those of its first part. ``sequences``: of an engine that ``makes_sequences``, see :func:`batch_to_time`.

    The largest size goes first, so that memory grows once. Raises what the engine raises: a model that cannot run its
    example must not be called ready.
    """
    order = sorted(set(sizes), reverse=True)
    durations: Dict[int, List[int]] = {size: [] for size in order}
    # In rounds over the sizes: what disturbs the machine for a while then slows several sizes a little, instead of one
    # so much that it is thought a bad size for as long as the server runs.
    spent_ns = dict.fromkeys(order, 0)
    for round_ in range(max(repetitions, REPETITIONS_MAX if spend_ns else 0)):
        for size, runs in durations.items():
            if round_ < repetitions or spent_ns[size] < spend_ns:
                begun_ns = clock_ns()
                runs.append(time_run_ns(session, batch_to_time(example, size, sequences), clock_ns, seen))
                spent_ns[size] += clock_ns() - begun_ns
    return dict(sorted(durations.items()))


def time_changes(
    session: Session,
    example: Values,
    sizes: Iterable[int],
    clock_ns: Callable[[], int],
    sequences: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> Dict[int, SizeChange]:
    """The cost of changing the batch size, of a session that is warm: medians of :data:`REPETITIONS` rounds over the
    sizes, or of what was run of them before ``stopped()``, which is asked between sizes. Nothing for one size."""
    order = sorted(set(sizes))
    runs: Dict[int, List[SizeChange]] = {size: [] for size in order if len(order) > 1}
    for _ in range(REPETITIONS):
        for size, found in runs.items():
            if stopped():
                break
            batch = batch_to_time(example, size, sequences)
            found.append(SizeChange(*[time_run_ns(session, batch, clock_ns) for _ in SizeChange._fields]))
    return {
        size: SizeChange(*[int(statistics.median(each)) for each in zip(*found)])
        for size, found in runs.items()
        if found
    }


def dear_changes(changes: Mapping[int, SizeChange]) -> str:
    """The sizes to which a change costs more than :data:`CHANGE_FACTOR_MAX` allows, in words; empty for none."""
    dear = [
        f"{size} ({format_duration(change.changed_ns)}, else {format_duration(change.steady_ns)})"
        for size, change in sorted(changes.items())
        if change.changed_ns > CHANGE_FACTOR_MAX * change.steady_ns
    ]
    return f"slow after a batch of another size: batches of {', '.join(dear)}" if dear else ""


def batch_to_time(item: Values, size: int, sequences: bool) -> Batch:
    """A full batch of one item. One of ``sequences`` comes back when the prompts are read: the steps that follow are
    what such a model does nearly all the time, and all that its batches of different sizes have in common."""
    return Batch([item] * size, size, steps_max=1 if sequences else None)


def time_run_ns(
    session: Session, batch: Batch, clock_ns: Callable[[], int], seen: Optional[Dict[str, Any]] = None
) -> int:
    """The time of one batch: on the device where it can say, else from launch to result. Of a model of sequences
    that counts its turns, how long one of them took. A batch that ``steps_max`` leaves unfinished goes on to its end,
    and how long a turn or step took from then on counts."""
    started_ns = clock_ns()
    results, times = run_whole(session, batch)
    goes_on = batch.steps_max is not None and not all(result.done for result in results)
    if goes_on:
        rest = batch._replace(states=[result.state for result in results], steps_max=None)
        started_ns = clock_ns()
        results, times = run_whole(session, rest)
    if seen is not None and results:
        seen.update(results[0].outputs)
        seen.update((results[0].parts or [{}])[0])
    took_ns = times[1] - times[0] if times is not None else clock_ns() - started_ns
    return took_ns // max([1, *[result.turns or (result.steps if goes_on else 1) for result in results]])
