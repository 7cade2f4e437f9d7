"""A function may change the dict and the containers that it is given, and returns what it made of them."""

from __future__ import annotations

import numpy as np
import pytest

from edgeserve.config.schema import ModelConfig
from edgeserve.engines.base import Batch
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
