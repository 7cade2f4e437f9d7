"""Language models on a GPU: the tokens of the CPU, alone, in company and cut; what they took is given back."""

from __future__ import annotations

import time
from typing import Any, List

import lm_models
import numpy as np
import pytest
import saved_llama
from gpu import why_no_llama, why_no_transformers

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, Engine, LaneInfo

BACKENDS = {
    "llama.cpp": (lm_models.gguf, why_no_llama()),
    "transformers": (saved_llama.save, why_no_transformers()),
}
on_each = pytest.mark.parametrize(
    "make_file",
    [
        pytest.param(make, id=name, marks=pytest.mark.skipif(bool(why), reason=why or "there is a device"))
        for name, (make, why) in BACKENDS.items()
    ],
)

ITEMS = [
    {"prompt": prompt, "max_tokens": length, "ignore_eos": True}
    for prompt, length in (("Hello there", 9), ("x", 17), ("The quick brown fox", 5), ("the then", 12))
]
KINDS = ("cpu", "cuda")


def engine_on(kind: str, make_file: Any, folder: str) -> Engine:
    model = ModelConfig("chat", "lm", file=make_file(folder), batch=(1, 2, 4), options={"context": 64})
    engine = make_engine(model, [LaneInfo(kind)], folder)
    engine.load()
    return engine


def tokens(session: Any, items: Any, states: Any = (), **settings: Any) -> List[Any]:
    results = session.launch(Batch(items, len(items), states, **settings)).result()
    assert [result.error for result in results] == [None] * len(items)
    if settings:
        return [result.state for result in results]
    return [np.asarray(result.outputs["tokens"]).tolist() for result in results]


@on_each
def test_a_gpu_writes_what_the_cpu_writes_in_any_company(make_file: Any, tmp_path: Any) -> None:
    written = {}
    for kind in KINDS:
        engine = engine_on(kind, make_file, str(tmp_path))
        session = engine.open(LaneInfo(kind, name=kind, clock_ns=time.monotonic_ns, common={}))
        alone = [tokens(session, [item])[0] for item in ITEMS]
        assert tokens(session, ITEMS) == alone
        assert tokens(session, ITEMS, tokens(session, ITEMS, steps_max=3)) == alone, "cut after three steps"
        written[kind] = alone
        engine.unload()
    assert written[KINDS[0]] == written[KINDS[1]]


@on_each
def test_lives_of_a_model_leave_no_memory_behind(make_file: Any, tmp_path: Any) -> None:
    from edgeserve.engines.cuda.device import CudaDevice
    from edgeserve.engines.cuda.driver import open_driver

    device = CudaDevice(open_driver())
    free: List[int] = []
    for _ in range(4):
        engine = engine_on("cuda", make_file, str(tmp_path))
        session = engine.open(LaneInfo("cuda", name="gpu0", clock_ns=time.monotonic_ns, common={}))
        tokens(session, ITEMS)
        del session
        engine.unload()
        free.append(device.memory()[0])
    device.close()
    assert free[0] - free[-1] < 32 << 20, "the first life also brings the library's own memory"
