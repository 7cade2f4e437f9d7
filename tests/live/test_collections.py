"""Full collections of garbage stop every thread: none looks at what was there when a runtime started."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
from for_each import each_time
from serving import LIB

OBJECTS = 200_000

PROGRAM = """
import asyncio, gc, sys, time
sys.path.insert(0, {lib!r})
import numpy as np
import edgeserve
from edgeserve.config.loading import parse_config

X = {{"x": np.ones(4, np.float32)}}


def config_of(*names, **options):
    options["example"] = "live_functions:example"
    model = {{"engine": "python", "function": "live_functions:frozen", "options": options}}
    apps = {{name: {{"model": name, "slo": "20s"}} for name in names}}
    return parse_config({{"model": dict.fromkeys(names, model), "app": apps}}, {lib!r})


def collection_ms():
    times = []
    for _ in range(3):
        began = time.perf_counter()
        gc.collect()
        times.append((time.perf_counter() - began) * 1e3)
    return min(times)


alive = [{{"frame": [index]}} for index in range({objects} // 2)]
before_ms = collection_ms()
"""

EMBEDDED = """
with edgeserve.Runtime(config_of("a")) as runtime:
    runtime.infer("a", X)
    frozen = gc.get_freeze_count()
    assert frozen >= {objects}, frozen
    during_ms = collection_ms()
    more = [[index] for index in range(50_000)]
    runtime.reload(config_of("a", "b"))
    runtime.infer("b", X)
    assert gc.get_freeze_count() >= frozen + 50_000  # nor at what a reload found
    assert collection_ms() < before_ms / 4
assert gc.get_freeze_count() == 0  # what a runtime leaves can be collected
assert during_ms < before_ms / 4, (during_ms, before_ms)
"""

ASYNC = """
async def main():
    async with edgeserve.AsyncRuntime(config_of("a")) as runtime:
        await runtime.infer("a", X)
        return gc.get_freeze_count(), collection_ms()

frozen, during_ms = asyncio.run(main())
assert frozen >= {objects} and during_ms < before_ms / 4, (frozen, during_ms, before_ms)
assert gc.get_freeze_count() == 0
"""

TWO = """
with edgeserve.Runtime(config_of("a")) as first:
    with edgeserve.Runtime(config_of("b")) as second:
        second.infer("b", X)
    assert gc.get_freeze_count() >= {objects}  # the first still runs
assert gc.get_freeze_count() == 0
"""

OBJECTING = """
for kind in (edgeserve.Runtime, edgeserve.AsyncRuntime):
    made = kind(config_of("a"), freeze=False)
    with getattr(made, "runtime", made) as runtime:
        runtime.infer("a", X)
        assert gc.get_freeze_count() == 0
gc.freeze()  # the program's own
with edgeserve.Runtime(config_of("a")) as runtime:
    pass
assert gc.get_freeze_count() >= {objects}
"""

PROCESS = """
with edgeserve.Runtime(config_of("a", process=True)) as runtime:
    assert runtime.infer("a", X)["frozen"] > 1000  # of the model's own process
"""

ENDED = """
import weakref
class Left:
    pass
for _ in range(3):
    runtime = edgeserve.Runtime(config_of("a"))
    with runtime:
        runtime.infer("a", X)
    runtime.left, left = Left(), None
    left = weakref.ref(runtime.left)
    runtime.left.runtime = runtime
    del runtime
    gc.collect()
    assert left() is None
"""


@pytest.mark.parametrize(
    "program",
    each_time([EMBEDDED, ASYNC, TWO, OBJECTING, PROCESS, ENDED], EMBEDDED, PROCESS),
    ids=["embedded", "async", "two", "objecting", "process", "ended"],
)
def test_a_full_collection_looks_at_no_object_of_before_the_start(program: str) -> None:
    assert gc.isenabled()
    text = (PROGRAM + program).format(lib=LIB, objects=OBJECTS)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
