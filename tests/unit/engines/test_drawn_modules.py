"""Nothing of another item in any answer of the ``torch`` engine: modules are drawn, opened as a start opens them, and
each item of a batch is compared with the module's own answer to it alone. A refusal is right, another value never is.
"""

from __future__ import annotations

import numpy as np
import pytest

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo, run_batch
from edgeserve.engines.row_check import RowCheck, row_check_of
from edgeserve.errors import EngineError

pytest.importorskip("torch", reason="make test-torch")

import torch
from drawn_modules import Drawn

SIZES = (1, 2, 4)
SEEDS = 120
ITEMS = 9


def answers(module, x):
    """The module's answer to one item, as numpy."""
    with torch.inference_mode():
        said = module(torch.from_numpy(x)[None])
    said = said if isinstance(said, dict) else dict(zip(module.names, said if isinstance(said, tuple) else (said,)))
    return {
        name: (value.float() if value.dtype == torch.bfloat16 else value).numpy()[0] for name, value in said.items()
    }


def opened(seed, names, folder):
    """An engine, its session and the sizes that a start leaves; None where it refuses."""
    options = {"arguments": {"seed": seed}, "outputs": names}
    model = ModelConfig("m", "torch", function="drawn_modules:Drawn", batch=SIZES, shapes={"x": (4,)}, options=options)
    engine = make_engine(model, [LaneInfo()], folder)
    try:
        engine.load()
        session, check = engine.open(LaneInfo()), row_check_of(model, engine)
        check.begin(session, engine.example())
        for size in check.order():
            check.look(size)
        return engine, session, check.sizes()
    except EngineError:
        engine.unload()
        return None


def run(folder):
    """The numbers of answered items, of refused modules, and of modules that kept all sizes. Fails at the first
    wrong answer."""
    answered = refused = whole = 0
    for seed in range(SEEDS):
        module = Drawn(seed)
        found = opened(seed, module.names, folder)
        if found is None:
            refused += 1
            continue
        engine, session, sizes = found
        whole += sizes == SIZES
        draw = np.random.RandomState(seed)
        items = [draw.uniform(-2, 2, 4).astype(np.float32) for _ in range(ITEMS)]
        for size in sizes:
            for begin in range(0, ITEMS - size + 1, size):
                chosen = items[begin : begin + size]
                results, _ = run_batch(session, Batch([{"x": x} for x in chosen], size))
                for x, result in zip(chosen, results):
                    for name, right in answers(module, x).items():
                        got = np.asarray(result.outputs[name], np.float64)
                        close = 2e-2 * max(1.0, float(np.abs(right.astype(np.float64)).max()))
                        assert got.shape == right.shape, (seed, name)
                        assert np.abs(got - right).max() <= close, (seed, module.chains, module.ends, name)
                    answered += 1
        engine.unload()
    return answered, refused, whole


def test_no_answer_has_anything_of_another_item(tmp_path):
    answered, refused, whole = run(str(tmp_path))
    assert answered > 8 * SEEDS and refused < SEEDS / 2 and whole > SEEDS / 5, (answered, refused, whole)


def test_it_finds_what_nobody_looks_for(tmp_path, monkeypatch):
    monkeypatch.setattr(RowCheck, "look", lambda self, size: "")
    with pytest.raises(AssertionError, match="'y0'|'y1'|'y2'"):
        run(str(tmp_path))
