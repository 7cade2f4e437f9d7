"""The contract of ``edgeserve.engines.base`` as tests: subclass once per engine, give it a model, run pytest.

Everything that is asserted here holds for every engine that ships with EdgeServe. What an engine computes is its own
tests' business; this suite asks whether batches, padding, states, threads and failures behave as lanes expect.
"""

from __future__ import annotations

import threading
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
import pytest

from edgeserve.engines.base import Batch, Engine, Footprint, Result, Values, run_whole
from edgeserve.errors import EngineError

THREAD_WAIT_S = 30.0
"""A run that has not returned by then hangs: a failure, not a slow machine."""


class EngineConformance:
    """Override :meth:`make` and :meth:`items`, and what else differs. ``name`` is the model's name in messages."""

    name = "model"
    sizes: Tuple[int, ...] = (1, 2, 4)  # batch sizes that the model may run
    stateful = False  # results carry a state that the next call of the same stream needs
    tolerance = 1e-5

    def make(self, directory: str) -> Engine:
        """A new engine, not loaded. ``directory`` is empty and writable (put the model's files there)."""
        raise NotImplementedError

    def items(self, count: int) -> List[Values]:
        """``count`` valid items, different from each other."""
        raise NotImplementedError

    def wrong_items(self) -> Dict[str, Values]:
        """Items that must be refused: what is wrong -> the item. At least a wrong name, dtype and shape."""
        return {}

    # --- fixtures ---

    @pytest.fixture
    def directory(self, tmp_path: Any) -> str:
        return str(tmp_path)

    @pytest.fixture
    def engine(self, directory: str) -> Any:
        engine = self.make(directory)
        engine.load()
        yield engine
        engine.unload()

    # --- life ---

    def test_load_says_what_it_occupies(self, directory: str) -> None:
        engine = self.make(directory)
        footprint = engine.load()
        try:
            assert isinstance(footprint, Footprint)
            assert footprint.weights_bytes > 0
            assert footprint.work_bytes >= 0
            assert isinstance(footprint.weights_bytes, int)
        finally:
            engine.unload()

    def test_load_twice_is_load_once(self, engine: Engine) -> None:
        assert engine.load() == engine.load()
        self._assert_alike(self._single(engine, self.items(1)[0]), self._single(engine, self.items(1)[0]))

    def test_run_before_load_is_refused(self, directory: str) -> None:
        with pytest.raises(EngineError, match=self.name):
            self.make(directory).run(Batch(self.items(1), 1))

    def test_unload_twice_then_run_is_refused(self, directory: str) -> None:
        engine = self.make(directory)
        engine.unload()  # never loaded: nothing to do
        engine.load()
        engine.unload()
        engine.unload()
        with pytest.raises(EngineError, match=self.name):
            engine.run(Batch(self.items(1), 1))

    def test_load_after_unload_gives_the_same_answers(self, directory: str) -> None:
        engine = self.make(directory)
        footprint = engine.load()
        before = self._single(engine, self.items(1)[0])
        engine.unload()
        assert engine.load() == footprint
        try:
            self._assert_alike(before, self._single(engine, self.items(1)[0]))
        finally:
            engine.unload()

    def test_example_runs_at_every_size(self, engine: Engine) -> None:
        item = engine.example()
        for size in self.sizes:
            assert len(run_whole(engine, Batch([item] * size, size))) == size

    # --- batches ---

    def test_batch_equals_single_runs_in_order(self, engine: Engine) -> None:
        for size in self.sizes:
            items = self.items(size)
            results = engine.run(Batch(items, size))
            assert len(results) == size
            for item, result in zip(items, results):
                assert isinstance(result, Result)
                self._assert_alike(result, self._single(engine, item))

    def test_padding_does_not_leak(self, engine: Engine) -> None:
        size = max(self.sizes)
        for count in range(1, size + 1):
            items = self.items(count)
            results = engine.run(Batch(items, size))
            assert len(results) == count
            for item, result in zip(items, results):
                self._assert_alike(result, self._single(engine, item))

    def test_run_leaves_its_inputs_alone(self, engine: Engine) -> None:
        items = self.items(max(self.sizes))
        kept = [{name: np.copy(value) for name, value in item.items()} for item in items]
        engine.run(Batch(items, max(self.sizes)))
        for item, before in zip(items, kept):
            assert list(item) == list(before)
            for name in before:
                np.testing.assert_array_equal(item[name], before[name])

    def test_two_threads_at_once(self, engine: Engine) -> None:
        items = self.items(4)
        expected = [self._single(engine, item) for item in items]
        got: List[List[Result]] = [[], []]
        errors: List[BaseException] = []

        def work(index: int) -> None:
            try:
                for item in items:
                    got[index].append(self._single(engine, item))
            except BaseException as error:  # noqa: BLE001 shown by the test's own thread
                errors.append(error)

        threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(THREAD_WAIT_S)
        assert not errors
        for results in got:
            assert len(results) == len(items)
            for result, want in zip(results, expected):
                self._assert_alike(result, want)

    # --- states ---

    def test_state_goes_round(self, engine: Engine) -> None:
        """A stream's state comes back, has a size, and a mixed batch gives what each stream alone would get."""
        if not self.stateful:
            first = self._single(engine, self.items(1)[0])
            assert first.state is None or not first.done, "set stateful = True: this engine returns a state"
            return
        first_item, second_item, fresh_item = self.items(3)
        first = self._single(engine, first_item)
        assert first.state is not None
        assert first.state_bytes > 0
        second = engine.run(Batch([second_item], 1, [first.state]))[0]
        again = engine.run(Batch([second_item], 1, [None]))[0]
        assert not self._alike(second, again), "the state changes nothing: the items cannot test it"
        if max(self.sizes) < 2:
            return
        size = min(size for size in self.sizes if size >= 2)
        mixed = engine.run(Batch([fresh_item, second_item], size, [None, first.state]))
        self._assert_alike(mixed[0], self._single(engine, fresh_item))
        self._assert_alike(mixed[1], second)

    # --- failures ---

    def test_wrong_inputs_are_refused_by_name(self, engine: Engine) -> None:
        wrong = self.wrong_items()
        assert wrong, "give wrong_items(): what the engine must refuse"
        for why, item in wrong.items():
            with pytest.raises(EngineError) as caught:  # raised, or the error of its result: alone they mean the same
                run_whole(engine, Batch([item], 1))
            assert self.name in str(caught.value), f"{why}: the message does not name the model: {caught.value}"
        self._single(engine, self.items(1)[0])  # and it still works

    def test_a_wrong_item_fails_alone(self, engine: Engine) -> None:
        """The others of its batch belong to other clients: they get what they would get without it."""
        size = max(self.sizes)
        if size < 2:
            return
        good = self.items(min(size, 3) - 1)
        expected = [self._single(engine, item) for item in good]
        for why, item in self.wrong_items().items():
            for place in range(len(good) + 1):
                results = self._mixed(engine, [*good[:place], item, *good[place:]], size, why)
                assert len(results) == len(good) + 1, why
                failed = results.pop(place)
                assert isinstance(failed.error, EngineError), f"{why}: {_shown(failed)}"
                assert self.name in str(failed.error), f"{why}: the message does not name the model: {failed.error}"
                for result, want in zip(results, expected):
                    self._assert_alike(result, want)

    def test_a_batch_of_wrong_items_has_an_error_each(self, engine: Engine) -> None:
        size = max(self.sizes)
        if size < 2:
            return
        for why, item in self.wrong_items().items():
            results = self._mixed(engine, [item] * size, size, why)
            assert [isinstance(result.error, EngineError) for result in results] == [True] * size, why
        self._single(engine, self.items(1)[0])

    def test_a_wrong_item_leaves_the_state_as_it_was(self, engine: Engine) -> None:
        if not self.stateful:
            return
        first_item, second_item = self.items(2)
        state = self._single(engine, first_item).state
        expected = run_whole(engine, Batch([second_item], 1, [state]))[0]
        for why, item in self.wrong_items().items():
            with pytest.raises(EngineError):
                run_whole(engine, Batch([item], 1, [state]))
            again = run_whole(engine, Batch([second_item], 1, [state]))[0]
            assert self._alike(again, expected), f"{why}: the state was changed"

    # --- helpers ---

    def _mixed(self, engine: Engine, items: Sequence[Values], size: int, why: str) -> List[Result]:
        try:
            return engine.run(Batch(items, size))
        except EngineError as error:
            raise AssertionError(f"{why}: the item failed its whole batch ({error}); expected Result({{}}, error=...) "
                                 "in its place, and the others' results") from error

    def _single(self, engine: Engine, item: Values) -> Result:
        return engine.run(Batch([item], 1))[0]

    def _assert_alike(self, one: Result, other: Result) -> None:
        assert self._alike(one, other), f"{_shown(one)}\nis not\n{_shown(other)}"

    def _alike(self, one: Result, other: Result) -> bool:
        return (one.error is None and other.error is None and one.done == other.done and one.route == other.route
                and self._close(one.outputs, other.outputs)
                and self._close_lists(one.parts or [], other.parts or []))

    def _close_lists(self, ones: Sequence[Values], others: Sequence[Values]) -> bool:
        return len(ones) == len(others) and all(self._close(one, other) for one, other in zip(ones, others))

    def _close(self, one: Values, other: Values) -> bool:
        if sorted(one) != sorted(other):
            return False
        for name, value in one.items():
            a, b = np.asarray(value), np.asarray(other[name])
            if a.shape != b.shape or a.dtype != b.dtype:
                return False
            if a.dtype.kind == "f" and not np.allclose(a, b, rtol=self.tolerance, atol=self.tolerance):
                return False
            if a.dtype.kind != "f" and not np.array_equal(a, b):
                return False
        return True


def _shown(result: Result) -> str:
    return (f"outputs={result.outputs!r} parts={result.parts!r} route={result.route!r} done={result.done!r} "
            f"error={result.error!r}")
