"""The contract of ``edgeserve.engines.base`` as tests: subclass once per engine, give it a model, run pytest.

Everything that is asserted here holds for every engine that ships with EdgeServe. What an engine computes is its own
tests' business; this suite asks whether batches, padding, sessions, launches, states, threads and failures behave as
lanes expect.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple, Type

import numpy as np
import pytest

from edgeserve.engines.base import (
    ANSWERED,
    Batch,
    BatchControl,
    Engine,
    Footprint,
    LaneInfo,
    Pending,
    Result,
    Session,
    Values,
    Written,
    release_state,
    run_batch,
    run_whole,
    written_of,
)
from edgeserve.errors import DeviceLost, EngineError

THREAD_WAIT_S = 30.0
"""A batch that is not over by then hangs: a failure, not a slow machine."""

ECHO_SHAPE = (2, 3, 1, 2)
"""The shape of an item of :meth:`EngineConformance.make_echo`, as far as it has axes."""

ECHO_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "text"),
)
"""The dtypes that a tensor of a request may have."""

ECHO_SIZES = (1, 2, 3)

WAIT_EXTRA_S = 2.0
"""The time by which a wait may exceed what it was asked to take on a busy machine."""


class ListeningControl(BatchControl):
    """Keeps what is emitted: ``pieces`` of items, and what those ``ended`` with that were over before the batch.
    ``stop`` ends batches after their first step, ``gone`` are items that no client waits for, and after ``lost_at``
    pieces the device is lost."""

    def __init__(self, stop: bool = False, gone: Sequence[int] = (), lost_at: int = 0) -> None:
        self.ended: Dict[int, Result] = {}
        self.pieces: List[Result] = []
        self._stop = stop
        self._gone = gone
        self._lost_at = lost_at

    def emit(self, index: int, result: Result) -> None:
        assert index not in self.ended, f"item {index} was over, and more was emitted for it"
        if result.done or result.error is not None:
            self.ended[index] = result
            return
        assert isinstance(result.outputs, dict), f"a piece of item {index} is {result.outputs!r}, expected a dict"
        self.pieces.append(result)
        if len(self.pieces) == self._lost_at:
            raise DeviceLost("the device was lost while a piece was emitted")

    def ends(self, results: Sequence[Result]) -> List[Result]:
        """The end of each item of a batch: as emitted while it ran, else as it returned."""
        for index, result in enumerate(results):
            assert (result is ANSWERED) == (index in self.ended), (
                f"item {index}: exactly the items that were emitted as over hold ANSWERED, this one is {_shown(result)}"
            )
        return [self.ended.get(index, result) for index, result in enumerate(results)]

    @property
    def stop(self) -> bool:
        return self._stop

    def dropped(self, index: int) -> bool:
        return index in self._gone


class Panic(BaseException):
    """As the panics of libraries that are written in Rust, which are no ``Exception``."""


class Poison:
    """A value that raises for any operation: a value of one item must fail that item alone."""

    def __init__(self, kind: Type[BaseException]) -> None:
        object.__setattr__(self, "_kind", kind)

    def _raise(self, *_: Any, **__: Any) -> Any:
        raise object.__getattribute__(self, "_kind")("poison")

    __array__ = __len__ = __iter__ = __getitem__ = __contains__ = __bool__ = __index__ = __int__ = __float__ = _raise
    __str__ = __reduce_ex__ = __getattr__ = __call__ = __eq__ = __lt__ = __add__ = _raise
    __hash__ = None  # type: ignore[assignment]  # nor is it a key

    def __repr__(self) -> str:
        raise ValueError("poison")  # what pytest survives, when it shows a failure


POISONS = (ValueError, RuntimeError, RecursionError, OverflowError, MemoryError)
"""The exceptions of values and libraries that know nothing of engines."""

ALL_POISONS = (*POISONS, SystemExit, Panic)
"""The same, and what an engine that catches ``Exception`` alone lets pass."""


class EngineConformance:
    """Override :meth:`make` and :meth:`items`, and what else differs. ``name`` is the model's name in messages."""

    name = "model"
    sizes: Tuple[int, ...] = (1, 2, 4)  # batch sizes that the model may run
    lane = LaneInfo(depth=2)  # the lane that sessions are opened for; make the engine for it
    poisons: Tuple[Type[BaseException], ...] = POISONS  # that an item's values may raise
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

    def make_lost(self, directory: str) -> Optional[Engine]:
        """A new engine whose first batch loses the device (a broken library in place of the real one will do).
        ``None``: this engine's device cannot be lost."""
        return None

    def make_echo(self, directory: str, rank: int, dtype: str) -> Optional[Engine]:
        """A new engine, not loaded, that runs batches of :data:`ECHO_SIZES`: its model takes one input ``x`` that has
        ``rank`` axes per item (:data:`ECHO_SHAPE`) and one of :data:`ECHO_DTYPES`, and returns it as ``y``. ``None``:
        this engine has no such model. Files of an earlier call may lie in ``directory``."""
        raise NotImplementedError

    def poisoned_items(self) -> Dict[str, Values]:
        """Items with which something is raised that is no error of the engine's own: each input in turn raises for any
        operation."""
        item = self.items(1)[0]
        return {
            f"{name} raises {kind.__name__}": {**item, name: Poison(kind)}
            for name in sorted(item)
            for kind in self.poisons
        }

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
        for shared in (self._lane().common or {}).values():
            if hasattr(shared, "close"):
                shared.close()

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
            self._run(self.make(directory), Batch(self.items(1), min(self.sizes)))

    def test_unload_twice_then_run_is_refused(self, directory: str) -> None:
        engine = self.make(directory)
        engine.unload()  # never loaded: nothing to do
        engine.load()
        engine.unload()
        engine.unload()
        with pytest.raises(EngineError, match=self.name):
            self._run(engine, Batch(self.items(1), min(self.sizes)))

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
            assert len(self._whole(engine, Batch([item] * size, size))) == size

    # --- batches ---

    def test_batch_equals_single_runs_in_order(self, engine: Engine) -> None:
        for size in self.sizes:
            items = self.items(size)
            results = self._run(engine, Batch(items, size))
            assert len(results) == size
            for item, result in zip(items, results):
                assert isinstance(result, Result)
                self._assert_alike(result, self._single(engine, item))

    def test_padding_does_not_leak(self, engine: Engine) -> None:
        size = max(self.sizes)
        for count in range(1, size + 1):
            items = self.items(count)
            results = self._run(engine, Batch(items, size))
            assert len(results) == count
            for item, result in zip(items, results):
                self._assert_alike(result, self._single(engine, item))

    def test_items_of_every_shape_and_dtype_come_back_as_they_were(self, directory: str) -> None:
        """A single number stays one, in a batch of one too."""
        for rank in range(len(ECHO_SHAPE) + 1):
            for dtype in ECHO_DTYPES:
                engine = self.make_echo(directory, rank, dtype)
                if engine is None:
                    continue
                engine.load()
                session = engine.open(self._new_lane())
                try:
                    for size, count in ((1, 1), (2, 1), (2, 2), (3, 1), (3, 3)):  # of ECHO_SIZES, full and filled up
                        items = [_echo_item(rank, dtype, place) for place in range(count)]
                        for item, result in zip(items, run_whole(session, Batch(items, size))[0]):
                            got, sent = np.asarray(result.outputs["y"]), np.asarray(item["x"])
                            what = f"{dtype} {list(sent.shape)} in a batch of {size}, {count} of them items"
                            assert got.shape == sent.shape, f"{what}: it came back with the shape {list(got.shape)}"
                            assert dtype == "text" or got.dtype == sent.dtype, f"{what}: it came back as {got.dtype}"
                            assert got.tolist() == sent.tolist(), f"{what}: other values came back"
                finally:
                    engine.unload()

    def test_run_leaves_its_inputs_alone(self, engine: Engine) -> None:
        items = self.items(max(self.sizes))
        kept = [{name: np.copy(value) for name, value in item.items()} for item in items]
        self._run(engine, Batch(items, max(self.sizes)))
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
                session = engine.open(self._new_lane()._replace(depth=1))  # as on two lanes
                for item in items:
                    got[index].append(run_batch(session, Batch([item], min(self.sizes)))[0][0])
            except BaseException as error:  # noqa: BLE001 shown by the test's own thread
                errors.append(error)

        threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(THREAD_WAIT_S)
        if errors:
            raise errors[0]
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
        second = self._run(engine, Batch([second_item], min(self.sizes), [first.state]))[0]
        again = self._run(engine, Batch([second_item], min(self.sizes), [None]))[0]
        assert not self._alike(second, again), "the state changes nothing: the items cannot test it"
        if max(self.sizes) < 2:
            return
        size = min(size for size in self.sizes if size >= 2)
        mixed = self._run(engine, Batch([fresh_item, second_item], size, [None, first.state]))
        self._assert_alike(mixed[0], self._single(engine, fresh_item))
        self._assert_alike(mixed[1], second)

    # --- sequences (engines whose ``sequence`` is not None; items that need three steps at least) ---

    def test_items_of_sequences_end_one_by_one_and_once(self, engine: Engine) -> None:
        if engine.sequence() is None:
            return
        items = self.items(max(self.sizes))
        control = ListeningControl()
        ends = control.ends(self._run(engine, Batch(items, len(items), control=control)))
        for item, end in zip(items, ends):
            self._assert_alike(end, self._single(engine, item))

    def test_a_cut_batch_of_sequences_goes_on_later(self, engine: Engine) -> None:
        info = engine.sequence()
        if info is None:
            return
        items = self.items(max(self.sizes))
        control = ListeningControl(stop=True)
        cut = control.ends(self._run(engine, Batch(items, len(items), control=control)))
        assert all(not result.done and result.state is not None for result in cut), "it was cut: expected states"
        cut = self._run(engine, Batch(items, len(items), [result.state for result in cut], steps_max=2))
        grows = info.bytes_per_token > 0
        assert all(result.done or (result.state_bytes > 0) == grows for result in cut), (
            "an unfinished item's state has bytes, where sequences take memory as they grow"
        )
        assert all(1 <= result.steps <= 2 for result in cut), "steps_max = 2 bounds the steps of the call"
        left = [index for index, result in enumerate(cut) if not result.done][::-1]  # in other places
        ends = (
            self._run(
                engine, Batch([items[index] for index in left], max(self.sizes), [cut[index].state for index in left])
            )
            if left
            else []
        )
        for index, result in zip(left, ends):
            self._assert_alike(result, self._single(engine, items[index]))

    def test_a_released_state_goes_on_and_in_another_session_too(self, engine: Engine) -> None:
        if engine.sequence() is None:
            return
        item, smallest = self.items(1)[0], min(self.sizes)
        expected = self._single(engine, item)
        session = engine.open(self._lane())
        for released, where in ((True, session), (False, engine.open(self._new_lane())), (True, session)):
            begun = run_batch(session, Batch([item], smallest, steps_max=2))[0][0]
            assert not begun.done, "give items() that need three steps at least"
            if released:
                release_state(begun.state)
            self._assert_alike(run_batch(where, Batch([item], smallest, [begun.state]))[0][0], expected)

    def test_a_dropped_sequence_ends_without_an_answer(self, engine: Engine) -> None:
        if engine.sequence() is None:
            return
        items = self.items(2)
        control = ListeningControl(gone=(1,))
        ends = control.ends(self._run(engine, Batch(items, max(self.sizes), control=control)))
        assert ends[1].done and ends[1].outputs == {}, f"no client waited for this item: {_shown(ends[1])}"
        self._assert_alike(ends[0], self._single(engine, items[0]))

    def test_from_its_last_piece_a_sequence_goes_on_elsewhere(self, engine: Engine) -> None:
        """The lane was lost while the batch ran: what the piece came with is all that is left."""
        if engine.sequence() is None:
            return
        item, control = self.items(1)[0], ListeningControl(lost_at=2)
        with pytest.raises((DeviceLost, EngineError)):
            self._run(engine, Batch([item], min(self.sizes), control=control))
        state = control.pieces[-1].state
        if state is not None:
            again = run_batch(engine.open(self._new_lane()), Batch([item], min(self.sizes), [state]))[0][0]
            self._assert_alike(again, self._single(engine, item))

    def test_what_a_sequence_has_written_is_there_from_its_first_step_on(self, engine: Engine) -> None:
        """The rule of engines that keep it: at every piece, and when the batch is cut, an answer that ends there begins
        as the whole one does."""
        if engine.sequence() is None:
            return
        item = self.items(1)[0]
        seen: List[Optional[Written]] = []

        class AskingControl(ListeningControl):
            def emit(self, index: int, result: Result) -> None:
                super().emit(index, result)
                if not result.done and result.error is None:
                    seen.append(written_of(result.state))

        control = AskingControl()
        (whole,) = control.ends(self._run(engine, Batch([item], min(self.sizes), control=control)))
        told = [written for written in seen if written is not None]
        if not told:
            return
        assert len(told) == len(seen), "a state that says what it has written says it at every piece"
        for written in told:
            assert sorted(written.outputs) == sorted(whole.outputs) and written.amount
            for name, value in whole.outputs.items():
                if isinstance(value, str) and name == "text":
                    assert value.startswith(written.outputs[name].rstrip("\ufffd")), name
        cut = self._run(engine, Batch([item], min(self.sizes), steps_max=1))[0]
        assert not cut.done and written_of(cut.state) is not None, "one step is something"

    # --- failures ---

    def test_wrong_inputs_are_refused_by_name(self, engine: Engine) -> None:
        wrong = self.wrong_items()
        assert wrong, "give wrong_items(): what the engine must refuse"
        for why, item in wrong.items():
            with pytest.raises(EngineError) as caught:  # raised, or the error of its result: alone they mean the same
                self._whole(engine, Batch([item], min(self.sizes)))
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
                self._fails_alone(engine, good, expected, item, place, why)

    def test_a_poisoned_item_fails_alone(self, engine: Engine) -> None:
        """Any error raised while one item is processed is that item's."""
        size = max(self.sizes)
        good = self.items(min(size, 3) - 1)
        expected = [self._single(engine, item) for item in good]
        for number, (why, item) in enumerate(self.poisoned_items().items()):
            self._fails_alone(engine, good, expected, item, number % (len(good) + 1), why)

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
        state, smallest = self._single(engine, first_item).state, min(self.sizes)
        expected = self._whole(engine, Batch([second_item], smallest, [state]))[0]
        for why, item in self.wrong_items().items():
            with pytest.raises(EngineError):
                self._whole(engine, Batch([item], smallest, [state]))
            again = self._whole(engine, Batch([second_item], smallest, [state]))[0]
            assert self._alike(again, expected), f"{why}: the state was changed"

    # --- sessions and launches ---

    def test_a_session_of_an_unloaded_model_is_refused(self, directory: str) -> None:
        engine = self.make(directory)
        with pytest.raises(EngineError, match=self.name):
            engine.open(self._lane()).launch(Batch(self.items(1), min(self.sizes)))
        engine.load()
        session = engine.open(self._lane())
        run_whole(session, Batch(self.items(1), min(self.sizes)))
        engine.unload()
        with pytest.raises(EngineError, match=self.name):
            session.launch(Batch(self.items(1), min(self.sizes))).result()
        engine.load()
        try:
            run_whole(engine.open(self._lane()), Batch(self.items(1), min(self.sizes)))
        finally:
            engine.unload()

    def test_launched_batches_end_in_order_each_with_its_own_results(self, engine: Engine) -> None:
        expected = [self._single(engine, item) for item in self.items(2)]
        session = engine.open(self._lane())
        for _ in range(3):
            launched = [
                session.launch(Batch([item], size))
                for item, size in zip(self.items(2), (max(self.sizes), min(self.sizes)))
            ]
            while not launched[1].done():
                launched[0].wait(0.001)
            assert launched[0].done(), "the second batch of a session was over before the first"
            for pending, want in zip(launched, expected):
                self._assert_alike(self._ended(pending)[0], want)

    def test_the_models_of_a_lane_take_turns(self, engine: Engine, directory: str) -> None:
        """A lane's batches run one after the other, also where they are of two models."""
        other = self.make(directory)
        other.load()
        try:
            sessions = [engine.open(self._lane()), other.open(self._lane())]
            launched = [
                session.launch(Batch(self.items(1), size))
                for session, size in zip(sessions, (max(self.sizes), min(self.sizes)))
            ]
            while not launched[1].done():
                launched[0].wait(0.001)
            assert launched[0].done(), "a later batch of the lane was over first; share one stream in LaneInfo.common"
            for pending in launched:
                self._ended(pending)
            first, second = [pending.times() for pending in launched]
            assert first is None or second is None or first[1] <= second[0], "two batches of a lane ran at once"
        finally:
            other.unload()

    def test_a_batch_stays_over_and_a_wait_has_an_end(self, engine: Engine) -> None:
        pending = engine.open(self._lane()).launch(Batch(self.items(1), max(self.sizes)))
        begun_s = time.monotonic()
        pending.wait(0.0)
        assert time.monotonic() - begun_s < WAIT_EXTRA_S, "wait(0) waited"
        self._ended(pending)
        assert pending.done(), "a batch that was over is not over any more"
        assert pending.wait(THREAD_WAIT_S), "a batch that was over is not over any more"

    def test_results_stay_as_they_are_when_the_next_batch_runs(self, engine: Engine) -> None:
        session = engine.open(self._lane())
        first, second = self.items(2)
        result = run_whole(session, Batch([first], min(self.sizes)))[0][0]
        before = {name: np.copy(value) for name, value in result.outputs.items()}
        run_whole(session, Batch([second], min(self.sizes)))
        for name, value in before.items():
            np.testing.assert_array_equal(
                result.outputs[name], value, f"output {name!r} lies in a buffer that the next batch writes to; copy it"
            )

    def test_device_times_are_of_this_batch_alone(self, engine: Engine) -> None:
        session, clock_ns = engine.open(self._lane()), time.monotonic_ns
        begun_ns = clock_ns()
        launched = [session.launch(Batch(self.items(1), max(self.sizes))) for _ in range(self.lane.depth)]
        for pending in launched:
            self._ended(pending)
            times = pending.times()
            if times is None:
                continue
            assert begun_ns <= times[0] <= times[1] <= clock_ns(), f"{times} are not on the lane's clock"
            begun_ns = times[1]

    def test_abort_says_whether_it_could(self, engine: Engine) -> None:
        session = engine.open(self._lane())
        pending = session.launch(Batch(self.items(1), max(self.sizes)))
        aborted = pending.abort()
        assert aborted in (True, False), f"abort() returned {aborted!r}"
        assert self._over(pending), "the batch was aborted and is not over"
        if aborted:
            with pytest.raises(EngineError):
                pending.result()
        else:
            self._assert_alike(pending.result()[0], self._single(engine, self.items(1)[0]))
        self._assert_alike(
            run_whole(session, Batch(self.items(1), min(self.sizes)))[0][0], self._single(engine, self.items(1)[0])
        )

    def test_a_failed_batch_leaves_those_beside_it_alone(self, engine: Engine) -> None:
        before, after = self.items(2)
        expected = [self._single(engine, item) for item in (before, after)]
        for why, item in self.wrong_items().items():
            session = engine.open(self._lane())
            good = session.launch(Batch([before], max(self.sizes)))
            try:
                wrong = session.launch(Batch([item], max(self.sizes)))
            except EngineError:
                wrong = None
            self._assert_alike(self._ended(good)[0], expected[0])
            if wrong is not None:
                with contextlib.suppress(EngineError):
                    self._ended(wrong)
            last = self._tried(session, after, why)
            self._assert_alike(last, expected[1])

    def test_every_variant_runs_and_unknown_ones_are_refused(self, engine: Engine) -> None:
        expected = self._single(engine, self.items(1)[0])
        for variant in engine.variants:
            for size in self.sizes:
                result = self._whole(engine, Batch(self.items(1), size, variant=variant))[0]
                if result.done:  # a phase of a model may leave items unfinished
                    assert sorted(result.outputs) == sorted(expected.outputs), variant
        if engine.variants:
            with pytest.raises(EngineError, match=self.name):
                self._whole(engine, Batch(self.items(1), min(self.sizes), variant="no such variant"))

    def test_a_lost_device_says_so_and_ends_what_was_launched(self, directory: str) -> None:
        engine = self.make_lost(directory)
        if engine is None:
            return
        engine.load()
        session = engine.open(self._lane())
        batches = [Batch(self.items(1), min(self.sizes))] * 2
        pendings = []
        with pytest.raises(DeviceLost, match=self.name):
            for batch in batches:
                pendings.append(session.launch(batch))
            self._ended(pendings[0])
        for pending in pendings:
            assert self._over(pending), "a batch of a lost device is never over"
        engine.unload()  # does not raise

    # --- helpers ---

    def _lane(self) -> LaneInfo:
        """One lane per test."""
        lane: LaneInfo = self.__dict__.setdefault("_lane_info", self._new_lane())
        return lane

    def _new_lane(self) -> LaneInfo:
        return self.lane._replace(clock_ns=time.monotonic_ns, common={})

    def _run(self, engine: Engine, batch: Batch) -> List[Result]:
        return run_batch(engine.open(self._lane()), batch)[0]

    def _whole(self, engine: Engine, batch: Batch) -> List[Result]:
        return run_whole(engine.open(self._lane()), batch)[0]

    def _tried(self, session: Session, item: Values, why: str) -> Result:
        try:
            return run_whole(session, Batch([item], min(self.sizes)))[0][0]
        except EngineError as error:
            raise AssertionError(f"{why}: the batch after the one that failed failed too: {error}") from error

    def _over(self, pending: Pending) -> bool:
        due_s = time.monotonic() + THREAD_WAIT_S
        while not pending.wait(0.05):
            if time.monotonic() > due_s:
                return False
        return True

    def _ended(self, pending: Pending) -> List[Result]:
        assert self._over(pending), f"a batch is not over after {THREAD_WAIT_S:.0f} s"
        assert pending.done(), "wait() says that the batch is over, done() that it is not"
        return pending.result()

    def _mixed(self, engine: Engine, items: Sequence[Values], size: int, why: str) -> List[Result]:
        try:
            return self._run(engine, Batch(items, size))
        except (KeyboardInterrupt, AssertionError):
            raise
        except BaseException as error:
            raise AssertionError(
                f"{why}: the item failed its whole batch ({error!r}); expected Result({{}}, error=...) "
                "in its place, and the others' results"
            ) from error

    def _fails_alone(
        self, engine: Engine, good: Sequence[Values], expected: Sequence[Result], item: Values, place: int, why: str
    ) -> None:
        """``item`` has an error that names the model, and the good ones beside it have what is ``expected``."""
        size = max(self.sizes)
        results = self._mixed(engine, [*good[:place], item, *good[place:]], size, why)
        assert len(results) == len(good) + 1, why
        failed = results.pop(place)
        assert isinstance(failed.error, EngineError), f"{why}: {_shown(failed)}"
        assert self.name in str(failed.error), f"{why}: the message does not name the model: {failed.error}"
        for result, want in zip(results, expected):
            self._assert_alike(result, want)

    def _single(self, engine: Engine, item: Values) -> Result:
        return self._run(engine, Batch([item], min(self.sizes)))[0]

    def _assert_alike(self, one: Result, other: Result) -> None:
        assert self._alike(one, other), f"{_shown(one)}\nis not\n{_shown(other)}"

    def _alike(self, one: Result, other: Result) -> bool:
        return (
            one.error is None
            and other.error is None
            and one.done == other.done
            and one.route == other.route
            and self._close(one.outputs, other.outputs)
            and self._close_lists(one.parts or [], other.parts or [])
        )

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


def _echo_item(rank: int, dtype: str, place: int) -> Values:
    """Values that tell the place and the element."""
    shape = ECHO_SHAPE[:rank]
    numbers = np.arange(int(np.prod(shape))).reshape(shape) + 20 * place
    if dtype != "text":
        return {"x": np.asarray(numbers % 2 if dtype == "bool" else numbers).astype(dtype)}
    texts = np.array([f"text {number}" for number in numbers.reshape(-1)], object).reshape(shape)
    return {"x": texts if rank else str(texts[()])}


def _shown(result: Result) -> str:
    return (
        f"outputs={result.outputs!r} parts={result.parts!r} route={result.route!r} done={result.done!r} "
        f"error={result.error!r}"
    )
