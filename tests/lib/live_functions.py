"""Host functions for the live tests. The gates let a test hold a lane without sleeping."""

from __future__ import annotations

import gc
import os
import threading
import time
from typing import Any, Dict, List, Tuple

import numpy as np

from edgeserve.engines.base import Result
from edgeserve.engines.python import Parts

GATE_S_MAX = 20  # a test that forgets to open a gate fails by its own time limit before this

gate = threading.Event()
entered = threading.Event()


def close_gate() -> None:
    gate.clear()
    entered.clear()


def example() -> Dict[str, Any]:
    return {"x": np.zeros(4, np.float32)}


def no_x() -> Dict[str, Any]:
    return {"y": 1.0}


def echo(item: Dict[str, Any]) -> Dict[str, Any]:
    return {"x": item["x"]}


def double(item: Dict[str, Any]) -> Dict[str, Any]:
    if float(item["x"][0]) < 0:
        raise ValueError("negative input")
    return {"y": item["x"] * 2}


def request(item: Dict[str, Any]) -> Dict[str, Any]:
    """Waits at the gate when asked to (``x[0] == 1``)."""
    if item["x"][0] == 1:
        entered.set()
        gate.wait(GATE_S_MAX)
    return {"x": item["x"]}


def leave(item: Dict[str, Any]) -> Dict[str, Any]:
    if item["x"][0] == 1:
        raise SystemExit("an engine wanted to leave")
    return {"x": item["x"]}


def sum_up(item: Dict[str, Any], state: Any) -> Tuple[Dict[str, Any], Any]:
    total = float(item["x"][0]) + (state or 0.0)
    return {"total": np.float32(total)}, total


def sum_up_held(item: Dict[str, Any], state: Any) -> Tuple[Dict[str, Any], Any]:
    """Waits at the gate as ``request`` does, and takes no negative numbers."""
    request(item)
    if item["x"][0] < 0:
        raise ValueError("negative input")
    return sum_up(item, state)


def cut(item: Dict[str, Any]) -> Parts:
    return Parts([{"piece": value, "index": index} for index, value in enumerate(item["x"])], shared={"scale": 10})


def times(item: Dict[str, Any]) -> Dict[str, Any]:
    return {"value": float(item["piece"]) * item["scale"]}


def join(item: Dict[str, Any]) -> Dict[str, Any]:
    return {"sum": sum(item["values"]), "order": item["indexes"]}


def example_piece() -> Dict[str, Any]:
    return {"piece": 1.0, "scale": 10}


def example_join() -> Dict[str, Any]:
    return {"values": [1.0], "indexes": [0]}


def too_few(items: List[Dict[str, Any]]) -> Any:
    """A full batch of the warm-up passes; a real one comes back short."""
    results = [Result({"x": item["x"]}) for item in items]
    return results if items[0]["x"][0] == 0 else results[1:]


def say(item: Dict[str, Any]) -> Result:
    """Says how many steps read will need: the sum of x, a number of numpy's. Nonsense of a negative x."""
    x = item["x"]
    return Result({"x": x}, hints={"read.steps": x.sum() if x[0] >= 0 else "many", "read.work": 0.5})


# --- predictors -------------------------------------------------------------------------------------------------------

predicted_on: List[int] = []
"""Threads that a predictor ran on."""


def total_of_x(inputs: Dict[str, Any]) -> Any:
    predicted_on.append(threading.get_ident())
    if inputs["x"][0] < 0:
        raise ValueError("x is negative")
    return inputs["x"].sum()


def nap(items: List[Dict[str, Any]]) -> List[Result]:
    """Takes as long as the longest of its inputs says."""
    time.sleep(max(item["ms"] for item in items) / 1000)
    return [Result({"ms": item["ms"]}) for item in items]


def nap_example() -> Dict[str, Any]:
    return {"ms": 5}


def hold_and_count(inputs: Dict[str, Any]) -> float:
    """Waits at the gate when asked to (``x[0] == 1``), or for ``x[1]`` seconds."""
    if inputs["x"][0] == 1:
        entered.set()
        gate.wait(GATE_S_MAX)
    else:
        time.sleep(float(inputs["x"][1]))
    return 1.0


def sum_slowly(item: Dict[str, Any], state: Any) -> Tuple[Dict[str, Any], Any]:
    """The same; the first of a stream waits at the gate."""
    if item["x"][0] == 1:
        entered.set()
        gate.wait(GATE_S_MAX)
    return sum_up(item, state)


def frozen(item: Dict[str, Any]) -> Dict[str, Any]:
    """The number of objects that this process's garbage collector skips."""
    return {"frozen": np.int64(gc.get_freeze_count())}


def process_id(item: Dict[str, Any]) -> Dict[str, Any]:
    return {"pid": np.int64(os.getpid())}


def everything(item: Dict[str, Any]) -> Dict[str, Any]:
    return dict(item)


def length_of_text(item: Dict[str, Any]) -> Dict[str, Any]:
    return {"length": len(item["text"])}
