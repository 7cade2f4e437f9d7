"""The check that a model keeps the items of a batch apart: row i of each output must equal item i's output alone.

No file says so. One list for the whole batch, a mean over the first axis, time as the first axis, a batch norm exported
in training mode, a range taken over the batch: each gives a client something of another. So before a model serves in
batches, drawn items run alone and then in each batch size: side by side, beside other neighbours, in other places,
beside rows that only fill up, with their states, beside longer items where inputs are padded, and on a CPU beside one
whose values are no numbers. Two questions are asked of every row:

* Does it stay as it is when its neighbours change? At one batch size the same kernels run, so that nearly the same bits
  are expected: :data:`STRICT`.
* Does it equal the item's output alone? Other kernels may add up in another order: :attr:`RowFacts.rounding`. Where
  rounding turns a decision inside the model (the order of two boxes), the same values in another order will do.

The first size that fails is the end of the sizes. A size costs four runs, a size that does not hold all drawn items
six, and the items alone twenty at most: about as much as the warm-up that follows. Knows sessions and values, no lane
and no clock.
"""

from __future__ import annotations

import logging
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from edgeserve.config.schema import ModelConfig
from edgeserve.engines.base import Batch, Engine, Result, RowFacts, Session, Values, run_whole
from edgeserve.engines.differences import SAME, RowBounds, RowDifference, difference
from edgeserve.engines.drawn_items import MARKS_MAX, SPARSE, STRANGE, drawn_item, items_of_numbers, longer_item
from edgeserve.errors import DeviceLost, EngineError, OutOfMemory, ProcessEnded, WrongRows

log = logging.getLogger("edgeserve")

SEED = 3
"""The seed of the drawn items: the same at every start."""

STRICT = 1e-4
"""The greatest change of an output, as a share of its value, when only the neighbours change. The same kernels run
then, so that this is room for a few sums that threads add up in the order in which they end."""

SMALL = 0.01
"""Values smaller than this share of an output's largest one are compared with that share."""

NOISE_MAX = 0.01
"""A model whose outputs move by more than this from run to run answers by chance."""

NOISE_FACTOR = 4.0
"""So much more than from run to run may an output move when neighbours change."""

DOUBTFUL_ITEMS = 8
"""The number of further items that are run alone where names say that an output has no rows of the batch: mostly zeros,
as a scene with a few things in it."""

CUTS = (0.5, 0.75, 1.0, 0.25)
"""Lengths of the drawn items along open axes, as shares of the example's."""

DEVICE_TROUBLE = (DeviceLost, OutOfMemory)
"""Says nothing about rows: it is raised."""


OWN_NUMBER_MAX = 1 << 31
"""A larger number in a graph is no input, but how exporters write "to the end"."""


def may_need_row_check(model: ModelConfig, engine: Engine) -> bool:
    """True if there may be batch sizes to look at: not of a model that runs one item at a time, of sequences, or where
    the user accepts what others change."""
    return model.batch[-1] > 1 and _is_asked_for(model, engine)


def _is_asked_for(model: ModelConfig, engine: Engine) -> bool:
    return not engine.makes_sequences and model.batch_tolerance < 1.0


def row_check_of(model: ModelConfig, engine: Engine) -> Optional[RowCheck]:
    """The check of a loaded model, its batch sizes and whether it remembers; ``None`` where there is nothing to
    check."""
    if not _is_asked_for(model, engine):
        return None
    facts = engine.rows()
    is_needed = facts.checked and (model.batch[-1] > 1 or facts.by_chance is False or bool(facts.longer))
    drawn = len(CUTS) if model.batch[-1] > 1 else 1  # two items tell whether a model remembers
    return RowCheck(model.batch, facts, model.batch_tolerance, drawn, model.name) if is_needed else None


class Remembers(EngineError):
    """A model keeps something of the items of one run for the next."""


class RowCase(NamedTuple):
    """An item with the state that it comes with, and what it gets alone."""

    values: Values
    state: Any
    alone: Result


class RowCheck:
    """Looks at one loaded model: ``begin``, ``stands_still``, then ``look`` at each batch size, all on the thread of
    its session.

    ``tolerance`` is the user's: as which share of its largest value others may change an item's outputs
    (``[model.NAME] batch_tolerance``). So many items are ``drawn``. ``mixing`` is how far they did, at most;
    ``wrong_rows`` what a drawn item alone raised, where an output has one row for some items only; ``other_rows``: a
    batch's outputs had not a row for each. ``name`` is the model's, for the log."""

    def __init__(
        self, sizes: Sequence[int], facts: RowFacts, tolerance: float = 0.0, drawn: int = len(CUTS), name: str = ""
    ) -> None:
        self.mixing = 0.0
        self.wrong_rows: Optional[WrongRows] = None
        self.other_rows = False
        self._name = name
        self._sizes = tuple(sorted(sizes))
        self._facts = facts
        self._cuts = CUTS[:drawn]
        self._strict = RowBounds(STRICT, SMALL, tolerance, flips=0.0)
        self._rounding = RowBounds(facts.rounding, 1.0, tolerance)
        self._ends: Dict[int, str] = {}
        self._reason = ""  # why no size will do
        self._unsure = ""  # why a size that mixes nothing will not do either
        self._cases: List[RowCase] = []
        self._strange: List[Values] = []  # items that no other may notice
        self._takes_one = True
        self._session = Session()

    @property
    def why(self) -> str:
        """The reason why the sizes end, ``""`` where they do not."""
        return self._ends[min(self._ends)] if self._ends else ""

    def order(self) -> Tuple[int, ...]:
        """The order of the sizes to check: the smallest first, since a model that mixes two items mixes more, then
        from the largest down, so that memory grows once. Where the smallest fails the others need no look."""
        several = [size for size in self._sizes if size > 1]
        return (*several[:1], *several[:0:-1])

    def sizes(self) -> Tuple[int, ...]:
        """The sizes before the first that failed. Raises :class:`EngineError` where that leaves a batch of one, which
        the model does not run."""
        kept = tuple(size for size in self._sizes if not self._ends or size < min(self._ends))
        if not kept and not self._takes_one:
            raise EngineError(f"{self.why}, and the model runs no batch of one")
        return kept or (1,)

    def begin(self, session: Session, example: Values) -> None:
        """Run items alone. Raises what the example raises; a drawn item that does not run is left out."""
        self._session = session
        if self._facts.open_axes or any(isinstance(value, str) for value in example.values()):
            self._strict = self._rounding  # other lengths beside an item are other kernels
        draw = np.random.RandomState(SEED)
        self._takes_one = self._sizes[0] == 1 or self._runs_one(example)
        self._cases = [RowCase(example, None, self._alone(example, None))]
        for manner, share in enumerate(self._cuts, 1):
            most = self._facts.numbers_max
            if self._reason:
                break
            for length, numbers_max in ((share, most), (share, most // 8), (1.0, most // 8), (1.0, 1)):
                item = drawn_item(example, manner, self._facts._replace(numbers_max=numbers_max), length, draw)
                try:
                    self._cases.append(RowCase(item, None, self._alone(item, None)))
                    break
                except WrongRows as error:
                    self._depends(error)
                    break
                except DEVICE_TROUBLE:
                    raise
                except ProcessEnded as error:
                    self._reason = f"a drawn item ends its process, so that no more are tried ({error})"
                    break
                except Exception:  # noqa: BLE001 a drawn item need not be one that the model takes
                    pass
        for _ in range(DOUBTFUL_ITEMS if self._facts.lacking and not self._reason else 0):
            self._count_rows(drawn_item(example, SPARSE, self._facts._replace(numbers_max=1), 1.0, draw))
        if self._sizes[-1] > 1 and self._facts.numbers_max > 1 and not self._reason:
            strange = [drawn_item(example, STRANGE, self._facts, 1.0, draw)]
            self._strange = [*filter(self._runs, strange), *self._of_own_numbers(example)]
        if self._facts.longer:
            self._look_at_rounding(example, draw)
        if any(case.alone.state is not None for case in self._cases):
            self._cases[1:3] = self._with_states()
        self._put_different_ones_first()

    def stands_still(self) -> None:
        """Raises :class:`Remembers` where an item gets another answer after others than before them, by a model that
        draws nothing by chance."""
        if self._facts.by_chance is not False or not self._cases:
            return
        found = SAME
        for _ in range(2):
            for case in reversed(self._cases):
                again = self._alone(case.values, case.state)
            found = self._from_alone(self._cases[0].alone, again)
            if found.over <= 1.0:
                return
        raise Remembers(
            f"{found.text} when the same item runs again after others: the model keeps something from one run to the "
            "next, and each client would get something of the others. BatchNorm exported in training mode does, and "
            "modules that write into themselves: export it after model.eval(), with what it keeps as an input and an "
            "output (state). batch_tolerance = 1 accepts what is meant so"
        )

    def give_up(self, why: str) -> None:
        """No item is known, so that no size will do."""
        self._reason = self._reason or why

    def look(self, size: int) -> str:
        """The reason why the model does not keep the items of a batch of ``size`` apart, ``""`` where it does."""
        why = self._reason
        if not why and size > 1:
            try:
                why = self._look(size) or self._unsure
            except DEVICE_TROUBLE:
                raise
            except WrongRows as error:
                self.other_rows = True
                why = f"a batch of {size} fails: {error}"
            except Exception as error:  # noqa: BLE001 an engine may raise anything, and the items ran alone
                why = f"a batch of {size} fails: {error}"
        if why:
            self._ends[size] = why
        return why

    # --- the items alone ---

    def _runs_one(self, item: Values) -> bool:
        try:
            self._run([item], [None], 1)
        except DEVICE_TROUBLE:
            raise
        except Exception:  # noqa: BLE001 what the smallest size raises is told
            return False
        return True

    def _alone(self, item: Values, state: Any, exact: bool = False) -> Result:
        """The result of an item alone: in a batch of one, or where the model takes none, in the smallest batch."""
        return self._run([item], [state], 1 if self._takes_one else self._sizes[0], exact)[0]

    def _depends(self, error: WrongRows) -> None:
        self.wrong_rows = error
        self._reason = self._reason or f"how many rows an output has depends on what the model sees: {error}"

    def _count_rows(self, item: Values) -> None:
        """Run an item alone to see whether its outputs have one row."""
        try:
            self._alone(item, None)
        except WrongRows as error:
            self._depends(error)
        except DEVICE_TROUBLE:
            raise
        except Exception:  # noqa: BLE001 a drawn item need not be one that the model takes
            pass

    def _look_at_rounding(self, example: Values, draw: Any) -> None:
        """Compare items with themselves where lengths are not rounded up, and take one of the next length."""
        worst = SAME
        for case in self._cases if self._facts.by_chance is not True else ():
            try:
                exact, again = self._alone(case.values, None, exact=True), self._alone(case.values, None, exact=True)
            except DEVICE_TROUBLE:
                raise
            except Exception:  # noqa: BLE001 a model may take rounded lengths alone
                return
            found = self._from_alone(exact, case.alone)
            if self._from_alone(exact, again).over <= 1.0:
                worst = max(worst, found)
        if worst.over > 1.0:
            log.warning(
                "model %s: options.pad_multiple changes the answer of an item alone: %s; options.mask and "
                "options.crop_outputs keep out what fills up, where the model can",
                self._name,
                worst.text,
            )
        item = longer_item(example, self._facts, draw)
        if self._runs(item):
            self._cases.append(RowCase(item, None, self._alone(item, None)))

    def _runs(self, item: Values) -> bool:
        """True if the model runs an item of strange values alone."""
        try:
            self._alone(item, None)
        except DEVICE_TROUBLE:
            raise
        except ProcessEnded as error:
            self._reason = f"an item of strange values ends its process ({error})"
        except Exception:  # noqa: BLE001 a drawn item need not be one that the model takes
            return False
        return True

    def _of_own_numbers(self, example: Values) -> List[Values]:
        """Items of the numbers that stand in the model, but for the largest where those are no place in a table."""
        numbers = [number for number in self._facts.numbers if MARKS_MAX < number < OWN_NUMBER_MAX]
        while numbers and not self._reason:
            items = items_of_numbers(example, numbers)
            if all(map(self._runs, items)):
                return items
            numbers = numbers[: len(numbers) // 2]
        return []

    def _with_states(self) -> List[RowCase]:
        """Two items with the states that others left behind: the one with the widest values, and the one before."""
        found = []
        for before, case in zip((self._cases[-1], self._cases[1]), self._cases[1:3]):
            state = before.alone.state
            found.append(RowCase(case.values, state, self._alone(case.values, state)))
        return found

    def _put_different_ones_first(self) -> None:
        """Items of which nothing can be told apart show nothing."""
        first = self._cases[0]
        for place, case in enumerate(self._cases):
            if difference(first.alone, case.alone, self._strict._replace(tolerance=0.0)).over > 1.0:
                self._cases.insert(1, self._cases.pop(place))
                return
        self._unsure = self._facts.lacking or (
            "each item that was tried gets the same answer, so that a run does not show whether a batch keeps items "
            "apart; options.example = 'module:function' gives a real one"
        )

    # --- batches ---

    def _run(self, items: Sequence[Values], states: Sequence[Any], size: int, exact: bool = False) -> List[Result]:
        given = states if any(state is not None for state in states) else ()
        return run_whole(self._session, Batch(items, size, given, exact=exact))[0]

    def _batch(self, places: Sequence[int], size: int) -> List[Result]:
        cases = [self._cases[place] for place in places]
        return self._run([case.values for case in cases], [case.state for case in cases], size)

    def _look(self, size: int) -> str:
        whole, wild = self._places(size)
        half = size // 2
        changed = [*wild[:half], *whole[half:]]
        first, other = self._batch(whole, size), self._batch(changed, size)
        fewer = self._batch(whole[:half], size)  # the other rows only fill up
        more = [(self._batch(places, size), places) for places in self._more_places(size)]
        moved = self._moved(first[:half], fewer)
        if moved.over > 1.0:  # an engine need not fill up: then other kernels ran
            moved = self._moved(first[:half], self._batch([*whole[:half], *wild[half:]], size)[:half])
        moved = max(moved, self._moved(first[half:], other[half:]))
        if moved.over > 1.0:
            noise = self._moved(first, self._batch(whole, size))
            if noise.share > NOISE_MAX:
                return (
                    f"the same batch of {size} gets other answers each time ({noise.what}), so that a run does not "
                    "show whether it keeps items apart"
                )
            if moved.over > NOISE_FACTOR * noise.over:
                self.mixing = max(self.mixing, min(1.0, moved.share))
                return f"{moved.text} when only the others of a batch of {size} change{self._padding()}"
        for strange in self._strange:
            beside = self._beside(strange, whole[: max(1, half)], size)
            found = max(self._from_alone(self._cases[place].alone, result) for place, result in zip(whole, beside))
            if found.over > 1.0:
                return f"{found.text} in a batch of {size} beside an item of strange values{self._padding()}"
        for results, places in ((first, whole), (fewer, whole[:half]), (other, changed), *more):
            for place, result in zip(places, results):
                found = self._from_alone(self._cases[place].alone, result)
                if found.over > 1.0:
                    self.mixing = max(self.mixing, min(1.0, found.share))
                    return f"{found.text} in a batch of {size} from what the item gets alone{self._padding()}"
        return ""

    def _beside(self, strange: Values, places: Sequence[int], size: int) -> List[Result]:
        cases, rest = [self._cases[place] for place in places], size - len(places)
        items = [*(case.values for case in cases), *[strange] * rest]
        return self._run(items, [*(case.state for case in cases), *[None] * rest], size)[: len(cases)]

    def _places(self, size: int) -> Tuple[List[int], List[int]]:
        """The item at each place of a batch, and another that takes its place: of the other end, whose values are the
        widest."""
        count = len(self._cases)
        whole = [place % count for place in range(size)]
        return whole, [count - 1 - place if 2 * place + 1 != count else 0 for place in whole]

    def _more_places(self, size: int) -> List[List[int]]:
        """More places for a batch that does not hold all items: items of zeros and of wide values side by side."""
        count = len(self._cases)
        return [[(begin + place) % count for place in range(size)] for begin in range(2, count - 1) if size < count]

    def _moved(self, ones: Sequence[Result], others: Sequence[Result]) -> RowDifference:
        return max([SAME, *[difference(one, other, self._strict) for one, other in zip(ones, others)]])

    def _from_alone(self, alone: Result, result: Result) -> RowDifference:
        found = difference(alone, result, self._rounding)
        if found.over > 1.0:
            found = min(found, difference(alone, result, self._rounding._replace(in_order=False)))
        return found

    def _padding(self) -> str:
        """Advice for a model whose inputs are padded to the longest item."""
        return (
            "; its inputs are padded to the longest item of a batch: options.mask and options.crop_outputs keep the "
            "padding out where the model can"
            if self._facts.open_axes
            else ""
        )
