"""A function may change the dict and the containers that it is given, and returns what it made of them."""

from __future__ import annotations

import array
import collections
import copy
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from edgeserve.config.schema import ModelConfig
from edgeserve.engines.base import Batch, Engine, LaneInfo, Result
from edgeserve.engines.python import PythonEngine


def _doubled(item):
    item["x"] = item["x"] * 2
    return item


def _longer(item):
    item["x"].append(1)
    return {"x": item["x"]}


def _longer_within(item):
    item["x"][0].append(1)
    return {"x": item["x"]}


class _Missing(KeyError):
    def __init__(self, name, place):
        super().__init__(name)


def _missing(item):
    raise _Missing("y", 1)


def _run(function, item, batched):
    whole = (lambda items: [function(item) for item in items]) if batched else function
    engine = PythonEngine(ModelConfig(name="m", engine="python", given=whole, options={"batched": batched}), ".")
    engine.load()
    return engine.run(Batch([item], 1))[0]


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize(
    ("function", "given", "expected"),
    [
        (_doubled, np.ones(3), [2, 2, 2]),
        (_doubled, np.ones(1 << 15), [2] * (1 << 15)),
        (_longer, [0], [0, 1]),
        (_longer_within, ([0],), ([0, 1],)),
    ],
)
def test_what_a_function_made_of_its_inputs_is_what_it_returns(function, given, expected, batched):
    before = repr(given)
    result = _run(function, {"x": given}, batched)
    returned = result.outputs["x"]
    assert (returned.tolist() if isinstance(returned, np.ndarray) else returned) == expected
    assert repr(given) == before


@pytest.mark.parametrize("batched", [False, True])
def test_an_input_that_comes_back_is_the_requests_own(batched):
    given = np.ones(3)
    assert _run(lambda item: item, {"x": given}, batched).outputs["x"] is given


def test_an_error_with_arguments_of_its_own_is_told():
    result = _run(_missing, {"x": 1}, False)
    assert "'y' is not among its inputs (x)" in str(result.error)


# --- what a function or an engine fills again for its next item -------------------------------------------------------

LARGE = 1 << 16
_block = bytearray(LARGE)
_array = np.zeros(LARGE, np.uint8)
_masked = np.ma.masked_array(np.zeros(LARGE), mask=False)
_objects = np.array([[0], [1]] + [None], object)[:1]
_numbers = array.array("d", [0])
_Pair = collections.namedtuple("_Pair", "left right")


class _Tensor:
    """Another library's array, as torch's is one."""

    def __init__(self, memory):
        self.memory = memory

    def __array__(self, *more, **by):
        return self.memory

    def __deepcopy__(self, memo):
        return _Tensor(copy.deepcopy(self.memory))


_tensor = _Tensor(np.zeros(3))


class _Table(dict):
    """A container of a class of one's own."""


def _filled(number):
    _block[:] = bytes([number]) * LARGE
    _array[:] = number
    _masked[:] = number
    _objects[0][0] = number
    _numbers[0] = number
    _tensor.memory[:] = number


REUSED = {
    "memory of another library": lambda: np.frombuffer(_block, np.uint8),
    "part of it": lambda: np.frombuffer(_block, np.uint8).reshape(2, -1)[0],
    "a view": lambda: _array[10:],
    "a matrix": lambda: _array.reshape(2, -1).view(np.matrix),
    "a masked array": lambda: _masked,
    "objects": lambda: _objects,
    "an array in a list": lambda: [_array],
    "deeper": lambda: [{"boxes": (_array,)}],
    "a list in a list": lambda: [_objects[0]],
    "a tuple": lambda: (_array, 1),
    "a named tuple": lambda: _Pair(_array, 1),
    "an ordered dict": lambda: collections.OrderedDict(a=_array),
    "a dict of its own class": lambda: _Table(a=_array),
    "a deque": lambda: collections.deque([_array]),
    "bytes in place": lambda: memoryview(_block),
    "a bytearray": lambda: _block,
    "numbers in place": lambda: memoryview(_numbers),
    "the standard library's array": lambda: _numbers,
    "another library's array": lambda: _tensor,
    "one in a list": lambda: [_tensor],
}


def _first_number(value):
    while not isinstance(value, (int, float, np.generic)):
        inner = value.values() if isinstance(value, dict) else value
        value = next(iter(np.asarray(value).flat if isinstance(value, (np.ndarray, _Tensor)) else inner))
    return int(value)


class _Reusing(Engine):
    """An engine whose outputs, results and lists are the same objects in each batch."""

    def __init__(self, returned):
        self._returned = returned
        self._results = [Result({})]

    def run(self, batch):
        _filled(batch.items[0]["n"])
        self._results[0].outputs["y"] = self._returned()
        return self._results


@pytest.mark.parametrize("returned", REUSED.values(), ids=REUSED)
def test_what_is_filled_again_for_the_next_item_is_copied(returned):
    def function(item):
        _filled(item["n"])
        return {"y": returned()}

    engine = PythonEngine(ModelConfig(name="m", engine="python", given=function), ".")
    engine.load()
    results = engine.run(Batch([{"n": 1}, {"n": 2}], 2))
    assert [_first_number(result.outputs["y"]) for result in results] == [1, 2]
    assert type(results[0].outputs["y"]) is type(returned())


def test_a_result_that_a_function_fills_again_is_each_items_own():
    said = Result({})

    def function(item):
        said.outputs = {"y": item["n"]}
        return said

    engine = PythonEngine(ModelConfig(name="m", engine="python", given=function), ".")
    engine.load()
    assert [result.outputs for result in engine.run(Batch([{"n": 1}, {"n": 2}], 2))] == [{"y": 1}, {"y": 2}]


@pytest.mark.parametrize("returned", REUSED.values(), ids=REUSED)
def test_what_an_engine_fills_again_for_the_next_batch_is_copied(returned):
    session = _Reusing(returned).open(LaneInfo())
    results = [session.launch(Batch([{"n": number}], 1)).result()[0] for number in (1, 2)]
    assert [_first_number(result.outputs["y"]) for result in results] == [1, 2]


@pytest.mark.parametrize("batched", [False, True])
def test_what_a_function_writes_into_another_librarys_array_is_its_own(batched):
    def function(item):
        item["x"].memory[:] = 5
        return {"x": item["x"]}

    given = _Tensor(np.zeros(3))
    assert _first_number(_run(function, {"x": given}, batched).outputs["x"]) == 5
    assert given.memory.tolist() == [0, 0, 0]


class _Writing(Engine):
    def run(self, batch):
        for item in batch.items:
            item["x"] *= 2
        return [Result(item) for item in batch.items]


def test_an_engine_cannot_write_into_its_inputs():
    given = np.ones(3)
    with pytest.raises(ValueError, match="read-only"):
        _Writing().open(LaneInfo()).launch(Batch([{"x": given}], 1))
    assert given.tolist() == [1, 1, 1]


def _adding(item, state):
    state = {"seen": [], "sum": np.zeros(LARGE)} if state is None else state
    state["seen"].append(item["n"])
    state["sum"] += item["n"]
    if item["n"] < 0:
        raise ValueError("negative")
    return {"seen": [state["seen"]], "sum": state["sum"]}, state


@pytest.mark.parametrize("batched", [False, True])
def test_a_state_that_a_failed_call_changed_in_place_is_as_it_was(batched):
    def whole(items, states):
        return [_tried(item, state) for item, state in zip(items, states)]

    def _tried(item, state):
        try:
            return _adding(item, state)
        except ValueError as error:
            return error

    options = {"stateful": True, "batched": batched}
    engine = PythonEngine(
        ModelConfig(name="m", engine="python", given=whole if batched else _adding, options=options), "."
    )
    engine.load()
    state, answers = None, []
    for number in (1, -5, 2):
        result = engine.run(Batch([{"n": number}], 1, [state]))[0]
        if result.error is None:
            state = result.state
            answers.append(result.outputs)
    assert [answer["seen"] for answer in answers] == [[[1]], [[1, 2]]]
    assert [answer["sum"][0] for answer in answers] == [1, 3]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit, SystemExit, StopIteration, BaseException])
def test_whatever_a_function_raises_on_a_lane_fails_its_item_alone(kind):
    def function(item):
        if item["n"] == 1:
            raise kind
        return {"n": item["n"]}

    engine = PythonEngine(ModelConfig(name="m", engine="python", given=function), ".")
    engine.load()
    with ThreadPoolExecutor(1) as lane:
        results = lane.submit(engine.run, Batch([{"n": number} for number in range(3)], 4)).result()
    assert [result.outputs for result in results] == [{"n": 0}, {}, {"n": 2}]
    assert f"raised {kind.__name__} on item 1" in str(results[1].error)


def test_ctrl_c_in_a_function_on_the_main_thread_is_raised():
    engine = PythonEngine(ModelConfig(name="m", engine="python", given=_interrupted), ".")
    engine.load()
    with pytest.raises(KeyboardInterrupt):
        engine.run(Batch([{}], 1))


def _interrupted(item):
    raise KeyboardInterrupt
