"""The conformance suite itself: each broken engine below must fail the test that is about its defect."""

from __future__ import annotations

import inspect
import threading
import time

import numpy as np
import pytest

from edgeserve.engines.base import Engine, Footprint, Pending, Result, Session, own_failure, with_failures
from edgeserve.errors import DeviceLost, EngineError
from edgeserve.testing import engine_conformance
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
        failed = {index: why for index, why in enumerate(map(self.wrong, batch.items)) if why is not None}
        return with_failures(self.answer(batch.without(failed)), failed)

    def wrong(self, item):
        if "x" not in item:
            return EngineError("model 'model': input 'x' is missing")
        try:
            np.asarray(item["x"])
        except Exception as error:  # noqa: BLE001 any failure
            return own_failure("model", error)
        return None

    def answer(self, batch):
        return [Result({"y": item["x"] * 2}) for item in batch.items]


class Echo(Good):
    def answer(self, batch):
        return [Result({"y": self.said(item["x"], len(batch.items))}) for item in batch.items]

    def said(self, value, count):
        return value


class ListsOfOne(Echo):
    """As ``np.ascontiguousarray`` makes of a single number."""

    def said(self, value, count):
        return np.atleast_1d(value) if count == 1 else value


class OtherTypes(Echo):
    def said(self, value, count):
        return value.astype(np.float64) if getattr(value, "dtype", None) == np.float16 else value


class Transposes(Echo):
    def said(self, value, count):
        return np.swapaxes(value, -1, -2).reshape(value.shape) if np.ndim(value) == 2 and count == 3 else value


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


class NamesNoModel(Good):
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
            state = batch.states[place] or {"count": 0}
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


class Device(Good):
    """A good engine whose batches run one after the other on a device of its own clock, 1 ms per item."""

    variants = ("half",)

    def __init__(self, lost=False):
        super().__init__()
        self.lost = lost

    def open(self, lane):
        return Stream(self, self.shared_by(lane))

    def shared_by(self, lane):
        return lane.common.setdefault("stream", {"free": 0})

    def launched(self, stream, batch, times):
        return Launched(self, batch, times)

    def lose(self):
        raise DeviceLost("model 'model': the device is gone")


class Stream(Session):
    def __init__(self, engine, shared):
        self.engine = engine
        self.shared = shared

    def launch(self, batch):
        if not self.engine.loaded:
            raise EngineError("model 'model' is not loaded")
        if batch.variant not in ("", "half"):
            raise EngineError(f"model 'model' has no variant {batch.variant}")
        begins_ns = max(time.monotonic_ns(), self.shared["free"])
        self.shared["free"] = begins_ns + batch.size * 1_000_000
        return self.engine.launched(self, batch, (begins_ns, self.shared["free"]))


class Launched(Pending):
    def __init__(self, engine, batch, times):
        self.engine = engine
        self.batch = batch
        self.span = times
        self.aborted = False

    def done(self):
        return self.aborted or time.monotonic_ns() >= self.span[1]

    def wait(self, timeout_s):
        left_s = (self.span[1] - time.monotonic_ns()) / 1e9
        if left_s > 0 and not self.aborted:
            threading.Event().wait(min(timeout_s, left_s))
        return self.done()

    def result(self):
        if self.engine.lost:
            self.engine.lose()
        if self.aborted:
            raise EngineError("model 'model': aborted")
        return self.engine.run(self.batch)

    def times(self):
        return self.span

    def abort(self):
        self.aborted = not self.done()
        return self.aborted


def device_with(**changes):
    """A device whose launched batches differ by some methods."""
    kind = type("Changed", (Launched,), changes)

    class Changed(Device):
        def launched(self, stream, batch, times):
            return kind(self, batch, times)

    return Changed


class AtOnce(Device):
    """Each batch runs as if it were alone."""

    def open(self, lane):
        return AtOnceStream(self, {"free": 0})


class AtOnceStream(Stream):
    def launch(self, batch):
        self.shared["free"] = 0
        return super().launch(batch)


class OwnStreams(Device):
    """Each model of a lane has its own stream."""

    def shared_by(self, lane):
        return {"free": 0}


class LatestResults(Device):
    """Gives the results of the batch that was launched last."""

    def launched(self, stream, batch, times):
        self.latest = super().launched(stream, batch, times)
        return type("Any", (Launched,), {"result": lambda pending: self.run(self.latest.batch)})(self, batch, times)


class OneBuffer(Device):
    """All results lie in one array."""

    def __init__(self, lost=False):
        super().__init__(lost)
        self.buffer = np.zeros((4, 2))

    def answer(self, batch):
        for row, item in enumerate(batch.items):
            self.buffer[row] = item["x"] * 2
        return [Result({"y": self.buffer[row]}) for row in range(len(batch.items))]


class Poisoned(Device):
    """A wrong item spoils the session."""

    def run(self, batch):
        results = super().run(batch)
        if any(result.error for result in results):
            self.loaded = False
        return results


class AnyVariant(Device):
    def open(self, lane):
        stream = super().open(lane)
        launch = stream.launch
        stream.launch = lambda batch: launch(batch._replace(variant=""))
        return stream


class NoSuchVariant(Device):
    variants = ("half", "third")


class LivesOn(Device):
    """Its sessions outlive the model."""

    def unload(self):
        pass


class LostPlainly(Device):
    def lose(self):
        raise EngineError("model 'model': it failed")


class LostForEver(Device):
    """A batch that was launched when the device was lost never ends."""

    def launched(self, stream, batch, times):
        if self.lost and "second" in stream.shared:
            times = (times[0], times[1] + 10**12)
        stream.shared["second"] = True
        return super().launched(stream, batch, times)


def suite_of(engine_class, stateful=False):
    class Suite(EngineConformance):
        def make(self, directory):
            return engine_class()

        def make_echo(self, directory, rank, dtype):
            return engine_class() if issubclass(engine_class, Echo) else None

        def items(self, count):
            return [{"x": np.arange(2.0) + index} for index in range(count)]

        def wrong_items(self):
            return {"nothing": {}}

        def make_lost(self, directory):
            return engine_class(lost=True) if issubclass(engine_class, Device) else None

    Suite.stateful = stateful
    return Suite()


def call(suite, test):
    method, arguments = getattr(suite, test), {}
    if "engine" in inspect.signature(method).parameters:
        arguments["engine"] = suite.make("")
        arguments["engine"].load()
    if "directory" in inspect.signature(method).parameters:
        arguments["directory"] = ""
    method(**arguments)


TESTS = [name for name in dir(EngineConformance) if name.startswith("test_")]


@pytest.mark.parametrize("test", TESTS)
def test_a_good_engine_passes(test):
    call(suite_of(Good), test)


def test_an_engine_that_returns_its_input_passes_and_one_that_does_not_say_is_told_to():
    test = "test_items_of_every_shape_and_dtype_come_back_as_they_were"
    call(suite_of(Echo), test)
    with pytest.raises(NotImplementedError):
        call(EngineConformance(), test)


@pytest.mark.parametrize("test", TESTS)
def test_a_good_engine_with_states_passes(test):
    call(suite_of(Counts, stateful=True), test)


@pytest.mark.parametrize("test", TESTS)
def test_a_good_device_passes(test):
    call(suite_of(Device), test)


@pytest.mark.parametrize(
    ("engine_class", "test"),
    [
        (AtOnce, "test_launched_batches_end_in_order_each_with_its_own_results"),
        (LatestResults, "test_launched_batches_end_in_order_each_with_its_own_results"),
        (OwnStreams, "test_the_models_of_a_lane_take_turns"),
        (
            device_with(wait=lambda self, timeout_s: Launched.wait(self, 1.0)),
            "test_a_batch_stays_over_and_a_wait_has_an_end",
        ),
        (
            device_with(result=lambda self: [Launched.result(self), setattr(self, "span", (0, 2**62))][0]),
            "test_a_batch_stays_over_and_a_wait_has_an_end",
        ),
        (OneBuffer, "test_results_stay_as_they_are_when_the_next_batch_runs"),
        (
            device_with(times=lambda self: (self.span[0] - 3_000_000, self.span[1])),
            "test_device_times_are_of_this_batch_alone",
        ),
        (device_with(times=lambda self: (5, 7)), "test_device_times_are_of_this_batch_alone"),
        (device_with(abort=lambda self: None), "test_abort_says_whether_it_could"),
        (device_with(abort=lambda self: True), "test_abort_says_whether_it_could"),
        (
            device_with(abort=lambda self: bool(setattr(self, "span", (0, 2**62))) or True),
            "test_abort_says_whether_it_could",
        ),
        (
            device_with(abort=lambda self: Launched.abort(self) and self.engine.unload() is None),
            "test_abort_says_whether_it_could",
        ),
        (Poisoned, "test_a_failed_batch_leaves_those_beside_it_alone"),
        (AnyVariant, "test_every_variant_runs_and_unknown_ones_are_refused"),
        (NoSuchVariant, "test_every_variant_runs_and_unknown_ones_are_refused"),
        (LivesOn, "test_a_session_of_an_unloaded_model_is_refused"),
        (LostPlainly, "test_a_lost_device_says_so_and_ends_what_was_launched"),
        (LostForEver, "test_a_lost_device_says_so_and_ends_what_was_launched"),
    ],
)
def test_a_broken_device_fails(engine_class, test, monkeypatch):
    monkeypatch.setattr(engine_conformance, "WAIT_EXTRA_S", 0.001)
    monkeypatch.setattr(engine_conformance, "THREAD_WAIT_S", 0.1)
    with pytest.raises((AssertionError, pytest.fail.Exception, EngineError)):
        call(suite_of(engine_class), test)


class NeedsTwo(Good):
    """Runs batches of two and four only."""

    def answer(self, batch):
        assert batch.size in (2, 4), batch.size
        return super().answer(batch)


@pytest.mark.parametrize("test", TESTS)
def test_batch_sizes_need_not_contain_one(test):
    suite = suite_of(NeedsTwo)
    suite.sizes = (2, 4)
    call(suite, test)


@pytest.mark.parametrize(
    ("engine_class", "test", "stateful"),
    [
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
        (NamesNoModel, "test_a_wrong_item_fails_alone", False),
        (NamesNoModel, "test_wrong_inputs_are_refused_by_name", False),
        (RaisesForNone, "test_a_batch_of_wrong_items_has_an_error_each", False),
        (CountsFailures, "test_a_wrong_item_leaves_the_state_as_it_was", True),
        (MixesThreads, "test_two_threads_at_once", False),
        *[
            (kind, "test_items_of_every_shape_and_dtype_come_back_as_they_were", False)
            for kind in (ListsOfOne, OtherTypes, Transposes)
        ],
    ],
)
def test_a_broken_engine_fails(engine_class, test, stateful):
    # pytest.raises has an exception of its own, which is no Exception: Failed. Inputs cannot be written: ValueError.
    with pytest.raises((AssertionError, ValueError, pytest.fail.Exception)):
        call(suite_of(engine_class, stateful), test)
