"""A function that writes into its inputs changes nothing for other readers of the same values: branches beside it, and
the caller."""

import copy

import numpy as np
import pytest

from edgeserve import App, Model, Node, Runtime
from edgeserve.errors import Failed

VALUES = {
    "array": np.arange(4.0),
    "view": np.arange(8.0)[::2],
    "list": [3, 1, 2],
    "nested": [[1], {"k": [2]}, np.arange(3.0)],
    "pair": (np.arange(2.0), [1]),
    "mapping": {"a": [1], "b": np.arange(3.0)},
    "bytes": bytearray(b"abc"),
    "set": {1, 2},
}


def spoil(value):
    """Write into each array that can be written; one that refuses is as good."""
    try:
        if isinstance(value, np.ndarray):
            value[...] = -1
        elif isinstance(value, (list, tuple)):
            for inner in value:
                spoil(inner)
            value.append(-1)
        elif isinstance(value, dict):
            for inner in value.values():
                spoil(inner)
            value["new"] = -1
        elif isinstance(value, bytearray):
            value += b"!"
        else:
            value.add(-1)
    except (ValueError, AttributeError):
        pass


def spoiler(inputs):
    spoil(inputs["x"])
    return {"spoiled": 1}


def spoiler_of_many(items):
    return [spoiler(item) for item in items]


def shown(value):
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [shown(inner) for inner in value]
    return {name: shown(inner) for name, inner in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("made", [False, True], ids=["of the request", "of a node"])
@pytest.mark.parametrize("spoils", [Model(spoiler), Model(spoiler_of_many, options={"batched": True})])
def test_what_a_function_writes_into_its_inputs_is_read_by_no_other(spoils, made):
    begins = ["makes"] if made else []
    models = {
        "makes": lambda inputs: {"x": copy.deepcopy(inputs["given"])},
        "spoils": spoils,
        "reads": lambda inputs: {"read": shown(inputs["x"])},
    }
    nodes = [Node("makes", after=[])] if made else []
    nodes += [Node("spoils", after=begins), Node("reads", after=["spoils", *begins])]
    with Runtime(models=models, apps={"both": App(*nodes, slo="5s", outputs=["reads.read"])}) as runtime:
        for name, value in VALUES.items():
            before = shown(value)
            assert runtime.infer("both", {"given" if made else "x": value})["read"] == before, name
            assert shown(value) == before, f"{name}: the caller's own"


def test_a_function_that_writes_into_an_input_is_told_to_copy_it():
    def less(inputs):
        inputs["x"] -= 1
        return {"y": inputs["x"]}

    with Runtime(models={"less": less}, apps={"less": App("less", slo="5s")}) as runtime:
        with pytest.raises(Failed, match=r"read-only; inputs may be read elsewhere too: change a copy"):
            runtime.infer("less", {"x": np.arange(3.0)})


def test_an_input_that_is_an_answer_is_the_callers_own():
    x = np.arange(3.0)
    with Runtime(models={"same": lambda inputs: dict(inputs)}, apps={"same": App("same", slo="5s")}) as runtime:
        assert runtime.infer("same", {"x": x})["x"] is x
