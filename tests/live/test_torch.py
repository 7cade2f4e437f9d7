"""A network of torch served like any other: loaded, warmed up, run in batches on two lanes, profiled."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed; make test-torch")

import edgeserve
from edgeserve.config.loading import parse_config


def test_a_network_of_torch_answers_in_batches_on_two_lanes(tmp_path):
    config = parse_config(
        {
            "lane": {"cpu0": {"depth": 2}, "cpu1": {}},
            "model": {
                "net": {"engine": "torch", "function": "torch_models:Linear", "batch": [1, 4], "shapes": {"x": [4]}}
            },
            "app": {"a": {"model": "net", "slo": "10s"}},
        },
        str(tmp_path),
    )
    with edgeserve.Runtime(config) as runtime:
        waiting = [runtime.submit("a", {"x": np.full(4, row, np.float32)}) for row in range(12)]
        answers = [future.result(30)["output"] for future in waiting]
    np.testing.assert_allclose(answers, [[1.8 * row, 2.2 * row, 2.6 * row] for row in range(12)], rtol=1e-5, atol=1e-6)
