"""The conformance suite itself: each broken engine below must fail the test that is about its defect."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from edgeserve.engines.base import Batch, Engine, Footprint, Result, with_failures
from edgeserve.errors import EngineError
from edgeserve.testing.engine_conformance import EngineConformance


class Good(Engine):
    def __init__(self):
        self.loaded = False

    def load(self):
        self.loaded = True
        return Footprint(10)

    def unload(self):
        self.loaded = False

    def example(self):
        return {"x": np.ones(2)}

    def run(self, batch):
        if not self.loaded:
            raise EngineError("model 'model' is not loaded")
        failed = {index: EngineError("model 'model': input 'x' is missing")
                  for index, item in enumerate(batch.items) if "x" not in item}
        return with_failures(self.answer(batch.without(failed)), failed)

    def answer(self, batch):
        return [Result({"y": item["x"] * 2}) for item in batch.items]


class Reversed(Good):
    def answer(self, batch):
        return super().answer(batch)[::-1]


class LeaksPadding(Good):
    def answer(self, batch):
        return [Result({"y": item["x"] * 2 + batch.size - len(batch.items)}) for item in batch.items]


class Weightless(Good):
    def load(self):
        super().load()
        return Footprint(0)


class RunsUnloaded(Good):
    def run(self, batch):
        return self.answer(batch)


class Scribbles(Good):
    def answer(self, batch):
        results = super().answer(batch)
        for item in batch.items:
            item["x"] += 1
        return results


class Nameless(Good):
    def run(self, batch):
        if any("x" not in item for item in batch.items):
            raise EngineError("bad input")
        return super().run(batch)


class AllOrNothing(Good):
    """One wrong item fails its whole batch."""

    def run(self, batch):
        if any("x" not in item for item in batch.items):
            raise EngineError("model 'model': input 'x' is missing")
        return super().run(batch)


class Misplaces(Good):
    """The failure stands at the end, wherever its item was."""

    def run(self, batch):
        return sorted(super().run(batch), key=lambda result: result.error is not None)


class NamesNobody(Good):
    def run(self, batch):
        results = super().run(batch)
        for result in results:
            result.error = result.error and EngineError("bad input")
        return results


class RaisesForNone(Good):
    """Thinks that a batch of which nothing can run is a failure of the batch."""

    def run(self, batch):
        results = super().run(batch)
        if len(results) > 1 and all(result.error for result in results):
            raise EngineError("model 'model': nothing to run")
        return results


class Counts(Good):
    """Its state is a counter."""

    def run(self, batch):
        results = super().run(batch)
        for place, result in enumerate(results):
            state = (batch.states[place] if batch.states else None) or {"count": 0}
            self.count(state, result)
        return results

    def count(self, state, result):
        if result.error is None:
            result.outputs["count"] = np.int64(state["count"])
            result.state, result.state_bytes = {"count": state["count"] + 1}, 8


class CountsFailures(Counts):
    """Writes into the state that it was given, also for an item that fails."""

    def count(self, state, result):
        super().count(state, result)
        if result.error is not None:
            state["count"] += 1


class Forgetful(Good):
    """Returns a state and ignores it."""

    def answer(self, batch):
        return [Result({"y": item["x"] * 2}, state=1, state_bytes=8) for item in batch.items]


class MixesThreads(Good):
    """Keeps its items where another thread overwrites them."""

    def answer(self, batch):
        self.items = batch.items
        threading.Event().wait(0.002)  # long enough for the other thread to overwrite them
        return [Result({"y": item["x"] * 2}) for item in self.items]


def suite_of(engine_class, stateful=False):
    class Suite(EngineConformance):
        def make(self, directory):
            return engine_class()

        def items(self, count):
            return [{"x": np.arange(2.0) + index} for index in range(count)]

        def wrong_items(self):
            return {"nothing": {}}

    Suite.stateful = stateful
    return Suite()


def call(suite, test):
    engine = suite.make("")
    if test in ("test_load_says_what_it_occupies", "test_run_before_load_is_refused",
                "test_unload_twice_then_run_is_refused", "test_load_after_unload_gives_the_same_answers"):
        getattr(suite, test)("")
    else:
        engine.load()
        getattr(suite, test)(engine)


TESTS = [name for name in dir(EngineConformance) if name.startswith("test_")]


@pytest.mark.parametrize("test", TESTS)
def test_a_good_engine_passes(test):
    call(suite_of(Good), test)


@pytest.mark.parametrize("test", TESTS)
def test_a_good_engine_with_states_passes(test):
    call(suite_of(Counts, stateful=True), test)


@pytest.mark.parametrize(("engine_class", "test", "stateful"), [
    (Reversed, "test_batch_equals_single_runs_in_order", False),
    (LeaksPadding, "test_padding_does_not_leak", False),
    (Weightless, "test_load_says_what_it_occupies", False),
    (RunsUnloaded, "test_run_before_load_is_refused", False),
    (RunsUnloaded, "test_unload_twice_then_run_is_refused", False),
    (Scribbles, "test_run_leaves_its_inputs_alone", False),
    (Nameless, "test_wrong_inputs_are_refused_by_name", False),
    (Forgetful, "test_state_goes_round", True),
    (Forgetful, "test_state_goes_round", False),
    (AllOrNothing, "test_a_wrong_item_fails_alone", False),
    (Misplaces, "test_a_wrong_item_fails_alone", False),
    (NamesNobody, "test_a_wrong_item_fails_alone", False),
    (NamesNobody, "test_wrong_inputs_are_refused_by_name", False),
    (RaisesForNone, "test_a_batch_of_wrong_items_has_an_error_each", False),
    (CountsFailures, "test_a_wrong_item_leaves_the_state_as_it_was", True),
    (MixesThreads, "test_two_threads_at_once", False),
])
def test_a_broken_engine_fails(engine_class, test, stateful):
    # pytest.raises has an exception of its own, which is no Exception: Failed.
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        call(suite_of(engine_class, stateful), test)


def test_the_broken_engines_can_run():
    assert Good().load() == Footprint(10)
    assert len(suite_of(Good).items(3)) == 3
    good = Good()
    good.load()
    assert good.run(Batch([{"x": np.ones(1)}], 1))[0].done
